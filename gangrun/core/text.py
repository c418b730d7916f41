"""How a sentence to an operator is put together: signals by name, counts, one line.

Values in, words out. What a user or a rank wrote is foreign text: it is folded to one printable line and cut here.
Used by ``blame``, ``placement``, ``budget`` and ``hang``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone

from gangrun.core.evidence import NodeFinding

MESSAGE_CHARS_COUNT = 240
SAVE_TIMES = range(10**12, 10**14)  # in ms since 1970; no training gets to so many steps
NAMES_COUNT = 3  # a sentence names this many, then says how many more

_SIGNALS = (  # noqa: SIM905 - a list would fill a page
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM"
    " SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF"
    " SIGWINCH SIGIO SIGPWR SIGSYS"
).split()


def signal_name(number: int) -> str:
    """``SIGKILL (9)``; Linux numbers, since core may not ask the machine it runs on."""
    if 1 <= number <= len(_SIGNALS):
        return f"{_SIGNALS[number - 1]} ({number})"
    return f"signal {number}"


def one_line(text: str, chars_count: int = MESSAGE_CHARS_COUNT) -> str:
    """Foreign text as it may stand in a sentence: one line, printable, not too long."""
    folded = " ".join(text.split())
    if not folded.isprintable():
        folded = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in folded)
    return folded if len(folded) <= chars_count else folded[: chars_count - 1] + "…"


def cut_middle(text: str, chars_count: int) -> str:
    """Its first and last characters if it is too long: numbers of errors often stand at the end."""
    half = (chars_count - 1) // 2
    return text if len(text) <= chars_count else f"{text[: chars_count - 1 - half]}…{text[len(text) - half :]}"


def last_lines(text: str, count: int = 3) -> str:
    """The last lines of a traceback, which say what went wrong, on one line and without the markers below them."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t^~")]
    return one_line(" | ".join(lines[-count:]), 2 * MESSAGE_CHARS_COUNT)


def finding_told(found: NodeFinding) -> str:
    """``n3: gpu 1 is lost (gpu_lost)``."""
    return f"{found.node}: {one_line(found.sentence)} ({found.check})"


def step_words(step: int) -> str:
    """``step 40``. A file that the script overwrites tells no step: ``step`` is then the time of its save, in ms."""
    if not is_save_time(step):
        return f"step {step}"
    saved = datetime.fromtimestamp(step / 1000, timezone.utc)
    return f"the save of {saved:%Y-%m-%d %H:%M:%S} UTC"


def is_save_time(step: int) -> bool:
    """Is this the time of a save, which stands for a step that is not known?"""
    return step in SAVE_TIMES


def known_step(step: int) -> int:
    """The step, -1 if it is not known."""
    return -1 if is_save_time(step) else step


def step_or_none(step: int) -> int | None:
    """The step as JSON has it."""
    return None if is_save_time(step) else step


def json_number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: ``NaN`` and the infinities are words, spelled as Protocol Buffers do."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def time_words(seconds: float) -> str:
    """A time that a person chose: hours, minutes and seconds, of each only if there are any."""
    minutes, rest_s = divmod(round(seconds), 60)
    parts = zip((*divmod(minutes, 60), rest_s), ("h", "min", "s"), strict=True)
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def all_of(number: int, noun: str) -> str:
    """``the only rank``, ``all 4 ranks``."""
    return f"the only {noun}" if number == 1 else f"all {counted(number, noun)}"


def listed(names: Sequence[str]) -> str:
    """``a, b, c and 4 more``."""
    told = ", ".join(names[:NAMES_COUNT])
    rest = len(names) - NAMES_COUNT
    return f"{told} and {rest} more" if rest > 0 else told


_REMARK = re.compile(
    r"\b(INFO|DEBUG)\b|UCX +WARN\b|libibverbs: Warning|errno: 97 - Address family"
    r"|The IPv6 network addresses of .* cannot be|slurmstepd: error: Failed to send "
)


def is_remark(line: str) -> bool:
    """Is it a line that a library writes on every node at its start, such as how many GPUs it found?"""
    return _REMARK.search(line) is not None
