"""``gangrun convert``: a batch script whose launch line becomes a ``gangrun run`` line; nothing else changes.

The launch line is the one that starts the ranks: srun, mpirun, torchrun, accelerate launch, deepspeed, or python with a
script. Its wrappers go (srun, ``bash -c``), what a launcher needs to find its peers goes, variables of the script that
hold the launcher are looked up. What cannot be understood is an error that names the line: no script is half converted.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gangrun.config.launchers import (
    CONTAINERS,
    COPIERS,
    MODULE,
    NO_PYTHON,
    TORCHRUN,
    launcher_behind,
    launcher_words,
    option_words,
)
from gangrun.config.slurm_script import (
    ASSIGNED,
    ShellLine,
    SlurmScript,
    lines_after,
    literal,
    names_script,
    plain_value,
    ranks_per_node,
    run_words,
    sbatch_words,
    split_words,
    spread,
)
from gangrun.errors import UserError

_SRUN_VALUELESS = {
    "-l", "--label", "-u", "--unbuffered", "-K", "--kill-on-bad-exit", "--pty", "--overlap", "--exclusive", "-X",
    "--disable-status", "-v", "--verbose", "-Q", "--quiet", "-O", "--overcommit", "-s", "--oversubscribe", "--no-kill",
    "--multi-prog", "--exact", "--allow-run-as-root", "--use-hwthread-cpus", "--display-map", "--tag-output",
}  # fmt: skip
_PEERS = {
    "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf", "rdzv_id", "same_network",
    "hostfile", "master_addr", "master_port", "node_rank", "launcher", "no_ssh", "ssh_port", "force_multi",
}  # fmt: skip
_SINGLE = {"same_network", "no_ssh", "force_multi"}  # without a value
_GPUS = re.compile(r"\$\{?SLURM_(GPUS_ON_NODE|GPUS_PER_NODE|GPUS_PER_TASK)\b|^gpu$|^auto$")


@dataclass(frozen=True, slots=True)
class Converted:
    """The new script, what changed as a unified diff, and what the user should know."""

    text: str
    diff: str
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Launch:
    """A launch line, unwrapped step by step; ``words`` are as the shell reads them."""

    line: ShellLine
    assigned: list[str]
    words: list[str]
    copier: str = ""
    ranks_count: int = 0  # per node, as its copier was told; 0: not told
    notes: list[str] | None = None


def converted(script: SlurmScript, variables: Mapping[str, str]) -> Converted:
    """The script with a ``gangrun run`` line; ``UserError`` with the line where that cannot be made."""
    if found := next((line for line in script.lines if run_words(line) is not None), None):
        way = f"gangrun submit {script.path}"
        raise UserError("usage", f"{script.place(found.number)} is a gangrun run line already", way)
    launches = [launch for line in script.lines if (launch := _launch(script, line)) is not None]
    launches = [one for one in launches if one.copier] or [one for one in launches if _launcher(one.words)] or launches
    if not launches:
        way = "write gangrun run before the command that starts the training"
        raise UserError("usage", f"{script.path} holds no line that starts ranks", way)
    if len(launches) > 1:
        places = ", ".join(str(one.line.number) for one in launches)
        way = "one run is one such line: submit a script for each"
        raise UserError("usage", f"{script.path}: lines {places} each start ranks", way)
    launch = launches[0]
    options, command = _asked(script, launch, variables)
    command = [*(_held(script, command) or command[:1]), *command[1:]]
    new = " ".join((*launch.assigned, "gangrun", "run", *options, *command))
    lines = script.text.splitlines(keepends=True)
    old = lines[launch.line.number - 1]
    indent = old[: len(old) - len(old.lstrip())]
    made = [*lines[: launch.line.number - 1], f"{indent}{new}\n", *lines[launch.line.last :]]
    diff = difflib.unified_diff(lines, made, str(script.path), "converted")
    return Converted("".join(made), "".join(diff), (*(launch.notes or ()), *_later(script, launch.line)))


def _later(script: SlurmScript, line: ShellLine) -> Iterator[str]:
    for one, matters in lines_after(script, line):
        told = "gangrun submit refuses that" if matters else "it never runs"
        yield f"{script.place(one.number)}: {one.text!r} follows the gangrun run line: {told}"


def _launch(script: SlurmScript, line: ShellLine) -> _Launch | None:
    """The line unwrapped; None if it starts no ranks."""
    count = next((at for at, word in enumerate(line.words) if not ASSIGNED.match(word)), len(line.words))
    launch = _Launch(line, list(line.words[:count]), list(line.words[count:]), notes=[])
    for _ in range(8):
        first = Path(launch.words[0]).name if launch.words else ""
        if first in ("exec", "time", "nohup", "env"):
            launch.words = launch.words[1:]
        elif first in COPIERS and not launch.copier and not _is_query(launch.words):
            _uncopied(script, launch, first)
        elif first in ("bash", "sh") and launch.words[1:2] in (["-c"], ["-lc"]):
            launch.words = _inner(script, line, launch.words)
        elif (held := _held(script, launch.words)) is not None:
            launch.words = [*held, *launch.words[1:]]
        else:
            break
    in_container = bool(launch.words) and Path(launch.words[0]).name in CONTAINERS
    if launch.words and not in_container and (at := launcher_behind(tuple(launch.words))):
        before, launcher = " ".join(launch.words[:at]), launcher_words(tuple(launch.words), at)
        way = f"activate the environment in the script, above this line, and leave {before} out"
        raise UserError("usage", f"{script.place(line.number)}: {before} starts {launcher}", way)
    if not launch.words or not (launch.copier or _launcher(launch.words) or _is_training(launch.words)):
        return None
    if line.rest and not re.match(r"(2?>|&>|\|\s*tee\b|&$)", line.rest):
        way = "let the line end with the command"
        raise UserError("usage", f"{script.place(line.number)}: {line.rest!r} follows the command", way)
    if line.rest:
        assert launch.notes is not None
        where = "gangrun writes the output of ranks to logs/ in the run directory"
        launch.notes.append(f"{script.place(line.number)}: {line.rest} is left out: {where}")
    return launch


def _is_query(words: list[str]) -> bool:
    """Does srun only ask a node for its name or address, or copy a file?"""
    asked = ("hostname", "ip", "nvidia-smi", "rm", "mkdir", "cp", "ls", "echo", "tar", "rsync", "python3 -c")
    return any(Path(word).name in asked for word in words[1:])


def _uncopied(script: SlurmScript, launch: _Launch, copier: str) -> None:
    """Take srun or mpirun away, with its options."""
    at = 1
    while at < len(launch.words) and launch.words[at].startswith("-"):
        word = launch.words[at]
        has_value = "=" not in word and word not in _SRUN_VALUELESS and (word.startswith("--") or len(word) == 2)
        at += 3 if word in ("-mca", "--mca") else 2 if has_value or word == "-np" else 1
    assert launch.notes is not None
    left = launch.words[1:at]
    if left:
        launch.notes.append(f"{script.place(launch.line.number)}: options of {copier} left out: {' '.join(left)}")
    given = dict(sbatch_words([literal(word) or word for word in left])) if copier == "srun" else {}
    kept = [f"--srun {name}={value}" for name, value in given.items() if name.startswith("container") and value]
    if kept:
        launch.notes.append(f"give these to gangrun submit: {' '.join(kept)}")
    per_node = given.get("ntasks-per-node") or ""
    passed = [value for name, value in pairwise(left) if name == "-x" and "=" in value]
    launch.assigned += passed  # mpirun's way to set a variable
    launch.copier, launch.words = copier, launch.words[at:]
    launch.ranks_count = int(per_node) if per_node.isdecimal() else ranks_per_node(script)


def _inner(script: SlurmScript, line: ShellLine, words: list[str]) -> list[str]:
    """The command inside ``bash -c '…'``."""
    text = words[2] if len(words) > 2 else ""
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1]
    elif len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\([$`\"\\])", r"\1", text[1:-1])
    found, rest = split_words(re.sub(r"\\\n[ \t]*", " ", text).strip())
    if rest or not found:
        way = "move its other commands into the script, above it"
        raise UserError("usage", f"{script.place(line.number)}: {words[0]} -c runs more than one command", way)
    return list(found)


def _held(script: SlurmScript, words: list[str]) -> tuple[str, ...] | None:
    """The words of the variable that a command begins with, if the script sets it once to plain text."""
    match = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*)\}?"?', words[0]) if words else None
    if match is None:
        return None
    sets = [word for line in script.lines for word in line.words if word.startswith(match.group(1) + "=")]
    if len(sets) != 1:
        return None
    value = sets[0].partition("=")[2]
    text = value[1:-1] if value[:1] in "'\"" and value[-1:] == value[:1] else value
    found, rest = split_words(re.sub(r"\\\n[ \t]*", " ", text).strip())
    return found if found and not rest else None


def _launcher(words: list[str]) -> str:
    """The launcher that begins here, or ""."""
    at, first = 0, Path(words[0]).name if words else ""
    if re.fullmatch(r"python[0-9.]*", first):
        at = next((at for at, word in enumerate(words[1:], 1) if word not in ("-u", "-O")), 0)
        if words[at : at + 1] != ["-m"] or len(words) <= at + 1:
            return ""
        first = words[at + 1]
    names = {
        "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "launch",
        "accelerate": "accelerate", "accelerate.commands.launch": "accelerate", "deepspeed": "deepspeed",
        "fabric": "fabric", "accelerate-launch": "accelerate",
    }  # fmt: skip
    if first == "accelerate" and words[at + 1 :][:1] not in (["launch"], []) and at == 0:
        return ""  # accelerate config, say
    return names.get(first, "")


def _is_training(words: list[str]) -> bool:
    """Is it python with a script or a module, rather than with ``-c``?"""
    is_python = re.fullmatch(r"python[0-9.]*", Path(words[0]).name) is not None
    later = [word for word in words[1:] if word not in ("-u", "-O")]
    return bool(later) and ((is_python and (later[0].endswith(".py") or later[0] == "-m")) or words[0].endswith(".py"))


def _asked(script: SlurmScript, launch: _Launch, variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(options of gangrun run, the command) as they are to stand in the script."""
    container, words = _contained(launch.words)
    launcher = _launcher(words)
    if launcher in ("torchrun", "launch") and not (launcher == "launch" and "--use_env" not in words):
        options, command = _torchrun(script, launch, words, variables)
        return options, [*container, *command]
    if container and launcher:
        way = (
            "start python there instead of the launcher, as in: gangrun run singularity exec image.sif python train.py"
        )
        raise UserError("usage", f"{script.place(launch.line.number)}: {launcher} runs in a container", way)
    if launcher:
        return [], _without_peers(script, launch, words, variables)
    ranks = launch.ranks_count or ranks_per_node(script) if launch.copier else 1
    return [f"--nproc-per-node {ranks}"], [*container, *words]


def _contained(words: list[str]) -> tuple[list[str], list[str]]:
    """(the container's part, the command in it)."""
    if Path(words[0]).name not in CONTAINERS:
        return [], words
    for at in range(1, len(words)):
        if _launcher(words[at:]) or _is_training(words[at:]):
            return words[:at], words[at:]
    return [], words


def _torchrun(
    script: SlurmScript, launch: _Launch, words: list[str], variables: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    at = next(at for at, word in enumerate(words) if not re.fullmatch(r".*python[0-9.]*|-u|-O|-m", word))
    own = spread(script, words[at + 1 :], variables)
    given, command = option_words("torchrun", {**TORCHRUN, "use-env": ""}, tuple(own))
    meanings = {TORCHRUN.get(spelled, "") for spelled in given}
    asked = str(given.pop("nproc-per-node", "1"))
    options = []
    ranks = plain_value(script, asked, variables)
    if ranks is None and not _GPUS.search(asked):
        way = "set the variable to a number in the script, or write the number there"
        raise UserError("usage", f"{script.place(launch.line.number)}: how many ranks per node is {asked}?", way)
    if ranks is not None and not _GPUS.search(asked) and not _GPUS.search(ranks):
        options.append(f"--nproc-per-node {shlex.quote(ranks)}")
    least = str(given.get("nnodes", "")).rpartition(":")[0]
    options += [f"--min-nodes {least}"] if least.isdecimal() else []
    restarts = plain_value(script, str(given.get("max-restarts", "0")), variables)
    options += [f"--max-restarts {restarts}"] if restarts not in (None, "0") else []
    left = [f"--{spelled.split()[-1]}" for spelled in given if spelled.split()[-1] not in ("module", "nnodes")]
    assert launch.notes is not None
    if left:
        launch.notes.append(f"{script.place(launch.line.number)}: options of torchrun not needed: {' '.join(left)}")
    options += ["-m"] if MODULE in meanings else []
    options += ["--no-python"] if NO_PYTHON in meanings else []
    return options, list(command)


def _without_peers(script: SlurmScript, launch: _Launch, words: list[str], variables: Mapping[str, str]) -> list[str]:
    """A launcher that gangrun asks for its meaning, without what only its own peers need; its options written out."""
    kept: list[str] = []
    left: list[str] = []
    words, at = spread(script, words, variables), 0
    while at < len(words) and not names_script(kept):
        word = words[at]
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if word.startswith("--") and name in _PEERS:
            left.append(word.partition("=")[0])
            at += 1 if "=" in word or name in _SINGLE else 2
            continue
        value = plain_value(script, word, variables)
        if value is None:
            way = "set the variable to a plain value in the script, or write the value there"
            raise UserError("usage", f"{script.place(launch.line.number)}: gangrun must know what {word} is", way)
        kept.append(shlex.quote(value))
        at += 1
    assert launch.notes is not None
    if left:
        launch.notes.append(f"{script.place(launch.line.number)}: not needed: {' '.join(left)}")
    return [*kept, *words[at:]]
