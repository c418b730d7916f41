"""What the user typed, and the ``RunSpec`` that it makes: command, ranks, environment, settings.

Nothing here parses the command line: ``gangrun.cli`` does, and hands over a ``Request``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gangrun import __version__
from gangrun.checkpoint.scan import is_checkpoint
from gangrun.config import environment
from gangrun.config.launchers import launched_per_node, meant_for_gangrun, taken_apart
from gangrun.config.layers import BY_NAME, DEFAULT, Value, layered, unknown_variables, usual_files
from gangrun.config.secrets import is_secret, redacted, secret_names
from gangrun.config.slurm_script import literal
from gangrun.core.checkpoints.resume import ResumeKind, parse_resume
from gangrun.core.policy import HangPolicy, Policy, PolicyError, Timing, TrendPolicy
from gangrun.core.text import counted
from gangrun.errors import UserError
from gangrun.frameworks.framework import AUTO, FILE, Framework, frameworks_of
from gangrun.wire.spec import CheckpointSpec, HealthSpec, LogSpec, MetricsSpec, NotifySpec, RunSpec

DEBUGGED_WITHIN_S = 30 * 86400.0  # ranks that have ended wait for one in a debugger
# Where thousands of nodes load python from one file system the last of them take minutes.
JOIN_WITHIN_S = {"local": Policy().join_within_s, "slurm": 300.0}


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed."""

    words: tuple[str, ...]
    module: str = ""
    no_python: bool = False
    env_pairs: tuple[str, ...] = ()
    env_files: tuple[Path, ...] = ()
    config_file: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    as_json: bool = False
    quiet: bool = False
    detach: bool = False  # the run goes on in the background
    debug_rank: int | None = None  # gets the terminal, for a debugger
    submits: bool = False  # setup lines run before the command
    here: bool = False  # on this machine, whatever a scheduler has to do with it
    body: str = ""  # of the user's batch script: shell text that runs before the command, in each job
    raw_words: tuple[str, ...] = ()  # module and words as that script has them, for the shell to expand


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request with its settings found, its command resolved and its environment read."""

    request: Request
    settings: Mapping[str, Value]
    variables: Mapping[str, str]  # the user's environment
    argv: tuple[str, ...]
    python: bool
    added: Mapping[str, str]  # --env and --env-file
    warnings: tuple[str, ...]
    line: str = ""  # the command in the shell's words, if a batch script of the user's leads to it

    @property
    def runs_dir(self) -> Path:
        """Where the run directory will lie."""
        return Path(self.value("runs_dir")).expanduser().absolute()

    @property
    def everything(self) -> dict[str, str]:
        """The environment for ranks."""
        return {**self.variables, **self.added}

    def value(self, name: str) -> Any:
        """A setting's value."""
        return self.settings[name].value

    def is_set(self, name: str) -> bool:
        """Did anybody set it?"""
        return self.settings[name].origin != DEFAULT

    @property
    def _named_by(self) -> tuple[str, ...]:
        """The command after which the run is named: a launcher's script, not the launcher."""
        scripts = [at for at, word in enumerate(self.argv) if word.endswith(".py")] if self.value("per_node") else []
        return self.argv[scripts[0] :] if scripts else self.argv

    def fields(self, struct: str) -> dict[str, Any]:
        """The fields of a struct that settings fill, by name."""
        return fields_of(self.settings, struct)

    def draft(self, wall: float, **shape: Any) -> RunSpec:
        """The spec but for the run's id, which its directory will give."""
        secret = tuple(sorted(name for name, value in self.added.items() if is_secret(name, value)))
        return spec_of(
            self.settings,
            run="-",
            name=self.value("name") or name_of(self._named_by, self.request.module, self.python),
            command=self.argv,
            python=self.python,
            working_directory=os.getcwd(),
            environment={name: value for name, value in self.added.items() if name not in secret},
            secret_names=secret,
            created_wall=wall,
            created_by=environment.user_name(),
            gangrun_version=__version__,
            debug_rank=self.request.debug_rank,
            **shape,
        )


def resolved(request: Request, variables: Mapping[str, str]) -> ResolvedRequest:
    """Find every setting, the command and the environment; a mistake in them is a ``UserError``.

    Setup lines may bring the command, or another python, only where the job runs: then neither is looked for here.
    """
    settings = layered(request.flags, variables, usual_files(request.config_file))
    there = bool(request.submits and (settings["setup"].value or request.body))
    raw_words = request.raw_words
    typed_words = (request.module, *request.words) if request.module else request.words
    python_here = "python" if there else environment.python_of(variables)
    asked_here = environment.python_of(variables) if request.body or not there else None
    typed = ("python", "-m", request.module, *request.words) if request.module else request.words
    per_node, script = settings["per_node"].value, request.words
    if per_node and "nproc_per_node" in request.flags:
        words = "--nproc-per-node: with --per-node the command starts the ranks of its node"
        raise UserError("usage", words, "give it to the command, as in: gangrun run --per-node torchrun ...")
    line = (launched_per_node if per_node else taken_apart)(typed, asked_here) if not request.no_python else None
    if line is not None:
        flags = {**line.settings, **request.flags}  # what gangrun itself was told is stronger
        script = line.words[len(line.words) - line.script_count :] if per_node else line.words
        settings = layered(flags, variables, usual_files(request.config_file))
        request = replace(request, words=line.words, module=line.module, no_python=line.no_python, flags=flags)
    if per_node:
        settings = layered({**request.flags, "nproc_per_node": "1"}, variables, usual_files(request.config_file))
    argv, python = command_of(
        request.words, request.module, request.no_python, python_here, look=not there, anywhere=bool(request.body)
    )
    python = python and not per_node  # a launcher knows nothing of the boot file
    added = environment.added_variables(request.env_pairs, request.env_files, variables)
    told = [] if line is None else [line.told]
    resume_told = resume_argument_of(settings, argv)[1]
    told += [resume_told] if resume_told else []
    told += _resize_told(settings)
    warnings = (*told, *unknown_variables(variables), *_misplaced_told(script), *_secrets_told(request.words))
    variables_told = {} if line is None else line.variables
    shell_line = _shell_line(raw_words, typed_words, argv, python) if raw_words else ""
    return ResolvedRequest(
        request, settings, variables, argv, python, {**variables_told, **added}, warnings, shell_line
    )


def _shell_line(raw_words: tuple[str, ...], words: tuple[str, ...], argv: tuple[str, ...], python: bool) -> str:
    """The command in the shell's words: as a script has them, since its variables may stand in them.

    Args:
        raw_words: the command as the script has it.
        words: the same, each as far as it is known before the job runs.
        argv: what gangrun makes of ``words``; their last ones are the script's own arguments.
        python: whether ranks start through the boot file.
    """
    pairs = zip(reversed(words), reversed(argv), strict=False)
    same_count = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(words), len(argv)))
    own_count = len(argv) - same_count
    first_count = len(raw_words) - same_count + (own_count <= python)
    first = zip(raw_words[:first_count], words, strict=False)
    unknown = next((raw for raw, known in first if raw == known and literal(raw) is None), None)
    if unknown is not None:
        way = "write it out; the arguments of the script alone may hold variables"
        raise UserError("usage", f"gangrun must know what {unknown} is before the job runs", way)
    return " ".join((*map(shlex.quote, argv[:own_count]), *raw_words[len(raw_words) - same_count :]))


def _misplaced_told(words: tuple[str, ...]) -> Iterator[str]:
    if names := meant_for_gangrun(words, [flag for row in BY_NAME.values() for flag in (row.flag, *row.flags)]):
        after = f"{', '.join(names)} after {words[0]} goes to the script, not to gangrun"
        yield f"{after};\nput what is meant for gangrun before {words[0]}"


def _resize_told(settings: Mapping[str, Value]) -> list[str]:
    """What is assumed of a script that may run on fewer nodes than it was asked for."""
    least, most = settings["min_nodes"].value, settings["nodes"].value
    if not least or least >= most or settings["on_resize"].value:
        return []
    what = f"--min-nodes {least}: after a failure the run may continue with {least} to {most} nodes, and grow again"
    need = "gangrun assumes that the script keeps its global batch at each size, as gangrun.GlobalBatchSampler does"
    return [f"{what};\n{need}; --on-resize passes the new size to the script"]


def _secrets_told(words: tuple[str, ...]) -> Iterator[str]:
    if names := secret_names(words):
        kept = (
            "gangrun stores arguments in the run directory, and every user of a node can see them in its process list"
        )
        way = "pass a secret with --env NAME instead: gangrun stores no secret variable"
        yield f"the value of {', '.join(names)} looks like a secret: {kept};\n{way}"


def name_of(argv: tuple[str, ...], module: str, python: bool) -> str:
    """A run's name when none was given: the script's or the command's."""
    if module:
        return module.rsplit(".", 1)[-1]
    if python and argv[1:2] == ("-m",) and len(argv) > 2:  # python -m, typed out
        return argv[2].rsplit(".", 1)[-1]
    word = argv[1] if python and len(argv) > 1 else argv[0]
    return re.sub(r"\.py$", "", Path(word).name) or "run"


def command_of(
    words: tuple[str, ...], module: str, no_python: bool, python: str, *, look: bool = True, anywhere: bool = False
) -> tuple[tuple[str, ...], bool]:
    """(argv of a rank, does it start through boot.py): ``-m MODULE``, a ``.py`` file, ``python …``, or any command.

    Without ``look`` a command need not be on this machine's PATH. A script may be ``anywhere`` if the job's shell says
    where it runs.
    """
    if module:
        return (python, "-m", module, *words), True
    if not words:
        hint = "for example: gangrun run --nproc-per-node 4 train.py"
        raise UserError("usage", "no script or command was given", hint)
    first, rest = words[0], words[1:]
    if first.endswith(".py") and not no_python:
        if not (Path(first).is_file() or anywhere):
            raise UserError("usage", f"no such script: {first}", f"gangrun looked in {Path.cwd()}")
        return (python, *words), True
    if look and shutil.which(first) is None:
        raise UserError("usage", f"no such command: {redacted(words)[0]}", "is it on your PATH, and executable?")
    is_python = not no_python and re.fullmatch(r"(python|pypy)[0-9.]*", Path(first).name) is not None
    # only the plain forms can go through boot.py; with interpreter options python must parse them itself
    return words, is_python and bool(rest) and (rest[0] == "-m" or not rest[0].startswith("-"))


def ranks_of(asked: str | None, gpus_count: int, cpus_count: int, *, here: bool = True) -> int:
    """How many ranks per node ``--nproc-per-node`` means; not ``here``, 0 GPUs or CPUs mean that nobody knows."""
    if asked is None:
        return gpus_count or 1
    most = asked.rpartition(":")[-1]
    if most.isdecimal():
        return int(most)
    if count := {"gpu": gpus_count, "cpu": cpus_count, "auto": gpus_count or cpus_count}[asked]:
        return count
    if here:
        raise UserError("usage", "--nproc-per-node gpu: this machine has no GPU", "give a number, or cpu")
    needed = {"gpu": "--gpus-per-node", "cpu": "--cpus-per-task"}.get(asked, "--gpus-per-node or --cpus-per-task")
    words = f"--nproc-per-node {asked}: the hardware of the cluster's nodes is not known here"
    raise UserError("usage", words, f"give a number, or {needed}")


def fields_of(settings: Mapping[str, Value], struct: str) -> dict[str, Any]:
    """The fields of ``struct`` ("" is ``RunSpec`` itself) that settings fill, by name."""
    rows = [(row.into.rpartition("."), row.name) for row in BY_NAME.values() if row.into]
    return {into: settings[name].value for (whole, _, into), name in rows if whole == struct}


def policy_of(settings: Mapping[str, Value], world: str, *, can_requeue: bool = False) -> Policy:
    """The policy that these settings make; a law broken between times is a usage error."""
    join_s, health, checks = settings["join_within"].value, settings["health"].value, not settings["no_health"].value
    try:
        return Policy(
            timing=Timing(**fields_of(settings, "policy.timing")),
            hang=HangPolicy(**fields_of(settings, "policy.hang")),
            trends=TrendPolicy(**fields_of(settings, "policy.trends")),
            join_within_s=JOIN_WITHIN_S[world] if join_s is None else join_s,
            can_requeue=can_requeue,
            total_steps=settings["total_steps"].value,
            keeps_memory=settings["memory_checkpoints"].value,
            test_at_start=checks and health.active_at_start,
            test_suspects=checks and health.active_on_suspicion,
            move_suspects=health.move_suspects,
            **fields_of(settings, "policy"),
        )
    except PolicyError as error:
        hint = "change the setting; gangrun config shows where each one is set"
        raise UserError("usage", str(error), hint) from error


def _for_a_person(policy: Policy, settings: Mapping[str, Value]) -> Policy:
    """The policy for a run with a rank in a debugger: nothing may end it for being slow, and it is not started again
    behind the person's back.
    """
    unset = settings["max_restarts"].origin == DEFAULT
    restarts = 0 if unset else policy.restarts_max_count
    return replace(
        policy, hang=HangPolicy(timeout_s=0.0), finish_grace_s=DEBUGGED_WITHIN_S, restarts_max_count=restarts
    )


def refuse_unfindable(resume: str, directory: str, *, here: bool = True) -> None:
    """A step or a path that was asked for must not be passed over in silence: the script would begin anew.

    Not ``here``, a path counts only if this host sees the directory around it: other hosts may have file systems more.
    """
    if resume not in ("auto", "none") and not directory:
        hint = "--checkpoint-dir says where the script keeps its checkpoints, and --resume which of them it begins from"
        raise UserError("usage", f"--resume {resume}: no checkpoint directory is known", hint)
    asked = parse_resume(resume)
    if asked.kind is not ResumeKind.PATH or os.path.exists(asked.path):
        return
    if here or os.path.isdir(os.path.dirname(os.path.abspath(asked.path))):
        hint = f"gangrun checkpoints {directory} lists those in its directory; --resume auto takes the newest valid one"
        raise UserError("usage", f"--resume {resume}: there is no such checkpoint", hint)


def _refuse_unusable(settings: Mapping[str, Value], world: str) -> None:
    """What would be passed over in silence, or tried again and again as storage that may come back."""
    validator = settings["validator"].value
    directory, file = checkpoint_place(settings)
    named, wrong, hint = settings["checkpoint_dir"].value or directory, "", "give --checkpoint-dir"
    unkept = [settings[name].origin for name in ("memory_limit", "memory_protection", "flush_every")]
    unkept = [where for where in unkept if where.startswith(("--", environment.PREFIX))]  # a file is for other runs too
    ranks = settings["nproc_per_node"].value or ""
    if world == "slurm" and (settings["spare_gpus"].value or ":" in ranks):
        flag = f"--nproc-per-node {ranks}" if ":" in ranks else "--spare-gpus"
        wrong = f"{flag} is for one machine: under Slurm a node with a broken GPU is left out as a whole"
        hint = "leave it out; --spares and --min-nodes are for nodes"
    elif os.path.exists(directory) and not os.path.isdir(directory):
        wrong, hint = (
            f"--checkpoint-dir {named} is not a directory",
            "give the directory that contains the step-N directories",
        )
    elif file and os.path.isdir(os.path.join(directory, file)):
        wrong, hint = f"--checkpoint-file {os.path.join(directory, file)} is a directory", "use --checkpoint-dir for it"
    elif file and settings["framework"].value not in ("", AUTO, FILE):
        wrong = f"--checkpoint-file is one file, and --framework {settings['framework'].value} saves many"
        hint = "leave one of them out"
    elif not file and settings["framework"].value == FILE:
        wrong, hint = "--framework file judges one file, and no file is named", "give --checkpoint-file"
    elif file and settings["memory_checkpoints"].value:
        wrong = "--memory-checkpoints keeps the saves of gangrun.Checkpointer, and not --checkpoint-file"
        hint = "leave one of them out"
    elif settings["keep_copies"].value and not file:
        wrong, hint = "--keep-copies copies one file, and no --checkpoint-file is given", "add --checkpoint-file"
    elif directory and not file and is_checkpoint(directory):
        wrong, hint = f"--checkpoint-dir {named} is itself a checkpoint", "name the directory that holds it"
    elif (settings["framework"].value or settings["resume_argument"].value) and not directory:
        wrong = "--framework and --resume-argument need a checkpoint directory"
    elif validator and not directory:
        wrong = "--validator needs a checkpoint directory"
    elif validator and world == "local" and shutil.which(validator[0]) is None:
        wrong = f"--validator: there is no command {validator[0]!r} on this machine"
        hint = "name a program on your PATH, or the path of an executable file"
    elif settings["memory_checkpoints"].value:
        wrong = "" if directory else "--memory-checkpoints needs a checkpoint directory"
        hint = "give --checkpoint-dir: in-memory checkpoints are written there when ranks die"
    elif unkept:
        wrong, hint = f"{unkept[0]}: this run keeps no checkpoints in memory", "add --memory-checkpoints"
    if wrong:
        raise UserError("usage", wrong, hint)


def _refuse_other_sizes(
    settings: Mapping[str, Value], nodes_min: int, nodes_count: int, shape: Mapping[str, Any]
) -> None:
    """Sizes of the gang that ``--world-multiple-of`` forbids, and arguments for sizes that never come."""
    multiple, ranks = settings["world_multiple_of"].value, shape["slots_per_node"] * shape["ranks_per_slot"]
    slots_min = shape.get("slots_min_per_node", 0)
    if settings["on_resize"].value and nodes_min == nodes_count and not slots_min:
        words = "--on-resize is for a run that may continue with fewer nodes, and all nodes are needed"
        raise UserError("usage", words, "add --min-nodes, or leave it out")
    sizes = {f"--nodes {nodes_count}": nodes_count * ranks, f"--min-nodes {nodes_min}": nodes_min * ranks}
    if slots_min:
        sizes |= {f"--nproc-per-node {slots_min}:{shape['slots_per_node']}": slots_min * shape["ranks_per_slot"]}
    for flag, size in sizes.items():
        if size % multiple:
            nodes = next((count for count in range(1, nodes_count + 1) if not count * ranks % multiple), 0)
            hint = "change --nodes, --nproc-per-node or --world-multiple-of"
            if nodes and not slots_min:
                hint = f"with {counted(ranks, 'rank')} per node, a multiple of {counted(nodes, 'node')} fits"
            words = f"{flag} means {size} ranks, which is no multiple of {multiple} (--world-multiple-of)"
            raise UserError("usage", words, hint)


def checkpoint_place(settings: Mapping[str, Value]) -> tuple[str, str]:
    """The checkpoint directory as an absolute path, "" if there is none; the file in it that counts, "" for all."""
    directory, file = settings["checkpoint_dir"].value, settings["checkpoint_file"].value
    place = Path(directory).expanduser().absolute() if directory else None
    if not file:
        return str(place or ""), ""
    path = Path(file).expanduser()
    whole = place / path if place and path.parent == Path() else path.absolute()
    if place and whole.parent != place:
        words = f"--checkpoint-file {file} is not in --checkpoint-dir {directory}"
        raise UserError("usage", words, "leave --checkpoint-dir out: it is the file's directory")
    return str(whole.parent), whole.name


def resume_argument_of(settings: Mapping[str, Value], argv: tuple[str, ...]) -> tuple[str, str]:
    """The argument with which the script loads a checkpoint, "" if none is known, and a sentence for the user.

    The script's text is searched for it, since a script that does not take it would end with an error.
    """
    given, asked = settings["resume_argument"].value, settings["framework"].value
    if given or not asked:
        return given, ""
    at = next((number for number, word in enumerate(argv) if word.endswith(".py")), len(argv))
    words, takers = argv[at + 1 :], list[Framework]()
    module = next((name for flag, name in pairwise(argv) if flag == "-m"), "")
    if module and at == len(argv):
        takers = [one for one in frameworks_of(asked) if module in one.modules]
    with suppress(OSError, IndexError):
        script = Path(argv[at]).read_text("utf-8", "replace")
        takers = [one for one in frameworks_of(asked) if one.takes_argument(script)]
    if len(words) == 1 and words[0].endswith((".json", ".yaml", ".yml")):
        takers = []  # a file with all arguments: one beside it would not be read as such
    if not takers and asked != AUTO and (tracker := frameworks_of(asked)[0].tracker):
        return "", f"--framework {asked}: before each attempt, gangrun lets {tracker.name} name the checkpoint to load"
    if not takers:
        left = (
            "gangrun finds no argument of the script that loads a checkpoint, so the script itself decides what to load"
        )
        if asked == AUTO:
            left += ", unless a tracker file of its framework does, which gangrun then sets right"
        return "", f"--framework {asked}: {left};\ngive --resume-argument if it has one"
    added = takers[0].resume_argument
    shown = (
        added.replace("{path}", "PATH").replace("{step}", "STEP") if "=" in added or "{" in added else f"{added} PATH"
    )
    return added, f"--framework {asked}: to resume, gangrun adds {shown} to the script's arguments"


def spec_of(settings: Mapping[str, Value], *, can_requeue: bool = False, **rest: Any) -> RunSpec:
    """The spec as every process will read it."""
    (directory, file), health = checkpoint_place(settings), settings["health"].value
    refuse_unfindable(settings["resume"].value, directory, here=rest["world"] == "local")
    _refuse_unusable(settings, rest["world"])
    nodes_count = rest.get("nodes_count", 0) or len(rest["nodes"])
    nodes_min = settings["min_nodes"].value or nodes_count
    if nodes_min > nodes_count:
        hint = "give at most as many as --nodes"
        raise UserError("usage", f"--min-nodes {nodes_min} is more than --nodes {nodes_count}", hint)
    _refuse_other_sizes(settings, nodes_min, nodes_count, rest)
    policy = policy_of(settings, rest["world"], can_requeue=can_requeue)
    return RunSpec(
        nodes_min_count=nodes_min,
        checkpoint=CheckpointSpec(
            directory=directory,
            file=file,
            resume_argument=resume_argument_of(settings, rest["command"])[0],
            memory_parity=settings["memory_protection"].value.replace("copy", ""),
            **fields_of(settings, "checkpoint"),
        ),
        health=HealthSpec(not settings["no_health"].value, health.bounds, health.off, health.commands),
        warm=not settings["no_warm"].value,
        log=LogSpec(**fields_of(settings, "log")),
        notify=NotifySpec(
            services=tuple(one.partition("://")[0].lower() for one in settings["notify"].value),
            **fields_of(settings, "notify"),
        ),
        metrics=MetricsSpec(**fields_of(settings, "metrics")),
        policy=policy if rest.get("debug_rank") is None else _for_a_person(policy, settings),
        **fields_of(settings, ""),
        **rest,
    )
