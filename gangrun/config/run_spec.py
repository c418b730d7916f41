"""From what the user typed to what the run is: command, ranks, environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gangrun.checkpoint.scan import is_checkpoint
from gangrun.config.health_table import HealthTable
from gangrun.config.layers import PREFIX, Value
from gangrun.config.secrets import redacted
from gangrun.core.policy import HangPolicy, Policy, PolicyError, Timing
from gangrun.errors import UserError
from gangrun.wire.spec import CheckpointSpec, HealthSpec, LogSpec, RunSpec

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def command_of(
    words: tuple[str, ...], module: str, no_python: bool, python: str, *, look: bool = True
) -> tuple[tuple[str, ...], bool]:
    """(argv of a rank, does it start through boot.py): ``-m MODULE``, a ``.py`` file, ``python …``, or any command.

    Without ``look`` a command need not be on this machine's PATH.
    """
    if module:
        return (python, "-m", module, *words), True
    if not words:
        raise UserError(
            "usage", "what shall run? Give a script or a command", "gangrun run --nproc-per-node 4 train.py"
        )
    first = words[0]
    if no_python:
        return _resolved(words, look), False
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise UserError("usage", f"no such script: {first}", f"looked in {Path.cwd()}")
        return (python, *words), True
    name = Path(first).name
    if re.fullmatch(r"(python|pypy)[0-9.]*", name):
        rest = words[1:]
        # only the plain forms can go through boot.py; with interpreter options python must parse them itself
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return _resolved(words, look), True
        return _resolved(words, look), False
    return _resolved(words, look), False


def _resolved(words: tuple[str, ...], look: bool) -> tuple[str, ...]:
    if look and shutil.which(words[0]) is None:
        raise UserError("usage", f"no such command: {redacted(words)[0]}", "is it on your PATH, and executable?")
    return words


def environment_of(pairs: Iterable[str], files: Iterable[Path], inherited: Mapping[str, str]) -> dict[str, str]:
    """What --env-file and --env set, later ones winning; ``K`` alone copies the value that the user has now."""
    found: dict[str, str] = {}
    for path in files:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("usage", f"--env-file {path}: {error}") from error
        for number, raw in enumerate(lines, 1):
            line = raw.strip()
            if line and not line.startswith("#"):
                _set(found, line.removeprefix("export "), inherited, f"{path}:{number}")
    for pair in pairs:
        _set(found, pair, inherited, "--env")
    return found


def _set(found: dict[str, str], pair: str, inherited: Mapping[str, str], where: str) -> None:
    name, equals, value = pair.partition("=")
    name = name.strip()
    if not _VARIABLE.match(name):
        raise UserError(
            "usage", f"{where}: {name!r} is not a variable's name", "write NAME=VALUE, or NAME to copy yours"
        )
    if equals:
        words = value.strip()
        quoted = len(words) > 1 and words[0] == words[-1] and words[0] in "'\""
        found[name] = shlex.split(words)[0] if quoted and where != "--env" else value
    elif name in inherited:
        found[name] = inherited[name]
    else:
        raise UserError("usage", f"{where}: {name} is not set in your environment, so there is nothing to copy")


def ranks_of(asked: str | None, gpus_count: int, cpus_count: int) -> int:
    """How many ranks per node ``--nproc-per-node`` means here."""
    if asked is None:
        return gpus_count or 1
    if asked == "gpu":
        if not gpus_count:
            raise UserError("usage", "--nproc-per-node gpu: this machine has no GPU", "give a number, or cpu")
        return gpus_count
    if asked == "cpu":
        return cpus_count
    if asked == "auto":
        return gpus_count or cpus_count
    return int(asked)


# Where thousands of nodes load python from one file system the last of them take minutes; one that cannot begin at all
# is told of by srun, at once.
JOIN_WITHIN_S = {"local": Policy().join_within_s, "slurm": 300.0}


def policy_of(settings: Mapping[str, Value], world: str, *, can_requeue: bool = False) -> Policy:
    """The policy that these settings make; a law broken between times is a usage error."""
    join_s, health, checks = settings["join_within"].value, settings["health"].value, not settings["no_health"].value
    hang_s = settings["hang_timeout"].value
    try:
        return Policy(
            timing=Timing(silence_after_s=settings["silence_after"].value, fence_after_s=settings["fence_after"].value),
            hang=HangPolicy(timeout_s=hang_s),
            restarts_max_count=settings["max_restarts"].value,
            stop_grace_s=settings["stop_grace"].value,
            checkpoint_grace_s=settings["checkpoint_grace"].value,
            save_lead_s=settings["save_lead"].value,
            join_within_s=JOIN_WITHIN_S[world] if join_s is None else join_s,
            poison_after_steps=settings["poison_after"].value,
            poison_times_count=settings["poison_times"].value,
            can_requeue=can_requeue,
            keeps_memory=settings["memory_checkpoints"].value,
            observe=settings["observe"].value,
            test_at_start=checks and health.active_at_start,
            test_suspects=checks and health.active_on_suspicion,
            move_suspects=health.move_suspects,
        )
    except PolicyError as error:
        raise UserError("usage", str(error)) from error


def pattern_of(text: str) -> str:
    """A checked ``--checkpoint-pattern``."""
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise UserError("usage", f"--checkpoint-pattern {text!r}: {error}") from error
    if "step" not in compiled.groupindex and compiled.groups != 1:
        raise UserError("usage", f"--checkpoint-pattern {text!r} needs exactly one group, the step", r"e.g. step-(\d+)")
    return text


def refuse_unfindable(resume: str, directory: str) -> None:
    """A step or a path that was asked for must not be passed over in silence: the script would begin anew."""
    if resume not in ("auto", "none") and not directory:
        hint = "--checkpoint-dir says where the script keeps its checkpoints, and --resume which of them it begins from"
        raise UserError("usage", f"--resume {resume}: no checkpoint directory is known", hint)


def refuse_file(directory: str) -> None:
    """What is no directory would be tried again and again, as storage that may come back; in a checkpoint is none."""
    path = os.path.expanduser(directory)
    if os.path.exists(path) and not os.path.isdir(path):
        raise UserError("usage", f"--checkpoint-dir {directory}: that is no directory", "name the one above step-N")
    if directory and is_checkpoint(path):
        raise UserError("usage", f"--checkpoint-dir {directory}: that is a checkpoint itself", "name the one above it")


def refuse_unusable(validator: tuple[str, ...], directory: str, world: str) -> None:
    """A validator that is never asked, or that this box cannot start, judges nothing, and nobody would notice."""
    if validator and not directory:
        raise UserError("usage", "--validator: no checkpoint directory is known", "give --checkpoint-dir")
    if validator and world == "local" and shutil.which(validator[0]) is None:
        hint = "name a program on PATH, or the path of one that may be executed"
        raise UserError("usage", f"--validator: {validator[0]!r} is no command here", hint)


def refuse_unkept(settings: Mapping[str, Value], directory: str) -> None:
    """Steps in memory that could be brought nowhere; and what is said about steps in memory where there are none."""
    if settings["memory_checkpoints"].value:
        if not directory:
            hint = "give --checkpoint-dir: what is in memory is brought there when ranks die"
            raise UserError("usage", "--memory-checkpoints: no checkpoint directory is known", hint)
        return
    for name in ("memory_limit", "memory_protection", "flush_every"):
        where = settings[name].origin
        if where.startswith(("--", PREFIX)):  # in a file it is for those runs that keep some
            raise UserError("usage", f"{where}: this run keeps no steps in memory", "give --memory-checkpoints too")


def spec_of(settings: Mapping[str, Value], *, can_requeue: bool = False, **rest: Any) -> RunSpec:
    """The spec as every process will read it."""
    directory = settings["checkpoint_dir"].value
    refuse_file(directory)
    refuse_unfindable(settings["resume"].value, directory)
    refuse_unkept(settings, directory)
    refuse_unusable(settings["validator"].value, directory, rest["world"])
    nodes_count = rest.get("nodes_count", 0) or len(rest["nodes"])
    nodes_min = settings["min_nodes"].value or nodes_count
    if nodes_min > nodes_count:
        raise UserError("usage", f"--min-nodes {nodes_min} is more than --nodes {nodes_count}")
    return RunSpec(
        nodes_min_count=nodes_min,
        resume=settings["resume"].value,
        checkpoint=CheckpointSpec(
            directory=str(Path(directory).expanduser().absolute()) if directory else "",
            pattern=pattern_of(settings["checkpoint_pattern"].value),
            validator=settings["validator"].value,
            validator_within_s=settings["validator_timeout"].value,
            reading_share_bytes=settings["reading_share"].value,
            memory=settings["memory_checkpoints"].value,
            flush_every_s=settings["flush_every"].value,
            memory_limit_bytes=settings["memory_limit"].value,
            memory_parity=settings["memory_protection"].value.replace("copy", ""),
        ),
        save_signal=settings["save_signal"].value,
        health=_health(settings),
        log=LogSpec(per_rank=settings["log_per_rank"].value),
        policy=policy_of(settings, rest["world"], can_requeue=can_requeue),
        **rest,
    )


def _health(settings: Mapping[str, Value]) -> HealthSpec:
    table: HealthTable = settings["health"].value
    return HealthSpec(not settings["no_health"].value, table.bounds, table.off, table.commands)
