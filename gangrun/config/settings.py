"""Every setting of a run: its name, what values it takes, what it means.

One row makes the flag, the ``GANGRUN_*`` variable, the key in ``gangrun.toml`` and the line in ``gangrun config``.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangrun.config.environment import RUNS_DIR
from gangrun.config.health_table import HealthTable, health_table

_SPAN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)?\s*$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?")
NODE_RANKS_MAX_COUNT = 1024
GROUP_MAX_COUNT = 128  # nodes that code together: up to twice as many do, and the field has 256 elements
_SECONDS = {None: 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def span_s(value: object) -> float:
    """Seconds from 90, "90", "90s", "15m", "2h"; ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError("must be a time such as 90, 90s, 15m or 2h")  # noqa: TRY004 - a user's mistake
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    match = _SPAN.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a time: write seconds, or 90s, 15m, 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def count(value: object) -> int:
    """A whole number from 0 up; ValueError otherwise."""
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d+\s*", str(value)):
        raise ValueError(f"{value!r} is not a whole number from 0 up")
    return int(str(value))


def at_least_one(value: object) -> int:
    """A whole number from 1 up; ValueError otherwise."""
    number = count(value)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def words(value: object) -> tuple[str, ...]:
    """A command as a shell would split it, without a shell; "" is none; ValueError otherwise."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is not a command")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a command: {error}") from None


def positive_span_s(value: object) -> float:
    """A time of more than nothing; ValueError otherwise."""
    seconds = span_s(value)
    if not seconds > 0:
        raise ValueError("must be more than 0")
    return seconds


def at_least_two(value: object) -> int:
    """A whole number from 2 up; ValueError otherwise."""
    number = count(value)
    if number < 2:
        raise ValueError("must be at least 2: once proves nothing")
    return number


def ranks_per_node(value: object) -> str:
    """A number from 1 up, or auto, gpu, cpu; ValueError otherwise."""
    text = str(value).strip().lower()
    if text in {"auto", "gpu", "cpu"}:
        return text
    try:
        number = at_least_one(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither a number of ranks nor one of auto, gpu, cpu") from None
    if number > NODE_RANKS_MAX_COUNT:
        raise ValueError(f"{NODE_RANKS_MAX_COUNT} ranks on a node at most")
    return str(number)


def switch(value: object) -> bool:
    """True or false in the usual spellings; ValueError otherwise."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def size_bytes(value: object) -> int:
    """Bytes from 1048576, "512M", "64G", "64GiB"; ValueError otherwise."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError(f"{value!r} is not a size: write bytes, or 512M, 64G")
    return int(float(match.group(1)) * 1024 ** " kmgt".index(match.group(2) or " "))


def memory_protection(value: object) -> str:
    """copy, or 8+2: data of so many nodes, and so many of a group that may be lost; ValueError otherwise."""
    text = str(value).strip().lower()
    if text == "copy":
        return text
    match = re.fullmatch(r"([1-9]\d{0,2})\+([1-9]\d{0,2})", text)
    if match is None:
        raise ValueError(f"{value!r} is neither copy nor parity as 8+2: of 10 nodes any 2 may be lost")
    if sum(map(int, match.groups())) > GROUP_MAX_COUNT:
        raise ValueError(f"a group has {GROUP_MAX_COUNT} nodes at most")
    return text


def resume_request(value: object) -> str:
    """auto, none, a step, or a path."""
    text = str(value)
    if not text.strip():
        raise ValueError("must be auto, none, a step or a path")
    return text


SAVE_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "URG")


def save_signal(value: object) -> str:
    """USR1 from USR1, SIGUSR1, usr1 or 10; "" means none; ValueError otherwise."""
    text = str(value).strip().upper()
    if text.isdigit() and int(text) in {number.value for number in signal.Signals}:
        text = signal.Signals(int(text)).name
    name = text.removeprefix("SIG")
    if name and (isinstance(value, bool) or name not in SAVE_SIGNALS):
        raise ValueError(f"{value!r} is no signal that a script can save on: give one of {', '.join(SAVE_SIGNALS)}")
    return name


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - a user's mistake, not a programmer's
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One row."""

    name: str  # as in gangrun.toml; the flag has dashes
    parse: Callable[[object], Any]
    default: Any
    metavar: str
    help: str
    flag: bool = False  # takes no value on the command line
    many: bool = False  # may be given several times
    flags: tuple[str, ...] = ()  # other spellings of the flag
    in_files_only: bool = False  # a table: no flag and no variable


SETTINGS: tuple[Setting, ...] = (
    Setting("nproc_per_node", ranks_per_node, None, "N|auto|gpu|cpu", "Ranks per node (default: one per GPU, else 1)."),
    Setting("nodes", at_least_one, 1, "K", "Nodes; on one box only with --local-hosts.", flags=("--nnodes",)),
    Setting("min_nodes", at_least_one, None, "K", "Go on with so few nodes rather than stop (default: all)."),
    Setting("local_hosts", switch, False, "", "Play K nodes on this box, each with its own agent.", flag=True),
    Setting("max_restarts", count, 3, "N", "Restarts for one cause without progress in between."),
    Setting(
        "checkpoint_dir", text, "", "DIR", "Where the script keeps its checkpoints; the newest valid one is resumed."
    ),
    Setting(
        "checkpoint_pattern", text, r"step-(\d+)", "REGEX", "Names of checkpoint directories; the group is the step."
    ),
    Setting(
        "reading_share",
        size_bytes,
        256 * 1024 * 1024,
        "SIZE",
        "Nodes share the reading of the checkpoint to be resumed from, each at least so much (256M); 0 = one reads it.",
    ),
    Setting(
        "memory_checkpoints",
        switch,
        False,
        "",
        "Keep steps in the nodes' memory between saves to disk: what dies with a rank is then seconds of work.",
        flag=True,
    ),
    Setting(
        "flush_every",
        span_s,
        300.0,
        "TIME",
        "The disk has had nothing new for so long: the newest step in memory is written there meanwhile; 0 = never.",
    ),
    Setting(
        "memory_limit", size_bytes, 0, "SIZE", "So much of a node's memory for them, 64G say (default: a quarter)."
    ),
    Setting(
        "memory_protection",
        memory_protection,
        "copy",
        "copy|K+M",
        "What protects them from lost nodes: a copy on another node (default), or parity: 8+2 means any 2 of 10.",
    ),
    Setting(
        "validator",
        words,
        (),
        "COMMAND",
        "Judges checkpoints too: told the directory as its last argument, it ends with 0 (valid) or 1 (not).",
    ),
    Setting(
        "validator_timeout", positive_span_s, 600.0, "TIME", "What the validator gets; after it, it has no opinion."
    ),
    Setting(
        "poison_after",
        count,
        10,
        "STEPS",
        "A failure so soon after loading a checkpoint, and of no other, may be the checkpoint's; 0 = never.",
    ),
    Setting("poison_times", at_least_two, 2, "N", "So often, and that checkpoint is set aside for the one before it."),
    Setting("runs_dir", text, RUNS_DIR, "DIR", "Where run directories live."),
    Setting("name", text, "", "NAME", "A name for the run (default: the script's)."),
    Setting("resume", resume_request, "auto", "auto|none|STEP|PATH", "What the first attempt resumes from."),
    Setting("hang_timeout", span_s, None, "TIME", "No progress for so long is a hang; 0 = never (default: learnt)."),
    Setting("stop_grace", span_s, 10.0, "TIME", "What ranks get between SIGTERM and SIGKILL."),
    Setting("checkpoint_grace", span_s, 60.0, "TIME", "What a script that asked for it gets to save before a stop."),
    Setting(
        "save_signal",
        save_signal,
        "",
        "SIG",
        "The script saves on this signal (USR1, say): ranks get it before a stop in which they may save.",
    ),
    Setting(
        "save_lead",
        span_s,
        None,
        "TIME",
        "Ranks are told to save so long before a time limit (default: checkpoint_grace).",
    ),
    Setting("join_within", span_s, None, "TIME", "What nodes get to join (default: 60 s; under Slurm 5 min)."),
    Setting("silence_after", span_s, 5.0, "TIME", "An agent without a beat for so long is a suspect."),
    Setting("fence_after", span_s, 30.0, "TIME", "Ranks whose agent is cut off die after so long."),
    Setting("observe", switch, False, "", "Decide and tell, and act on nothing: no stop, no restart.", flag=True),
    Setting("no_health", switch, False, "", "Check no node's hardware, before the run and while it lives.", flag=True),
    Setting("health", health_table, HealthTable(), "", "The table [health]: bounds of the checks.", in_files_only=True),
    Setting("log_per_rank", switch, False, "", "Keep one more log file for each rank.", flag=True),
)
