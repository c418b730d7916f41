"""What may reach a terminal, and how wide it is.

Names, reasons and logs are foreign text: nothing in them may move the cursor, set a title or forge a line. Every
command prints foreign text through ``clean``, ``block`` or ``log_line`` and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

WIDTH_MIN, WIDTH_MAX, WIDTH_ELSEWHERE = 40, 120, 100
LAST_CHARS, COLUMN_CHARS_MIN = 16, 8  # of a table's last column, and of one that gives way
_SGR = re.compile(r"\x1b\[[0-9;:]*m")  # colours: the only sequences of a rank's that a terminal may see
_RESET = "\x1b[0m"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PHASE_STYLES = {
    "RUNNING": "green",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "TIME_UP": "yellow",
    "ABANDONED": "red",
    "STOPPING": "yellow",
    "WAITING": "yellow",
}


def let_go(stream: TextIO) -> None:
    """Python writes what is left at its exit, and exits with 120 where that fails: then it must not try."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # it is no file, as under a test
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def clean(text: object) -> str:
    """Foreign text on one line: what does not print is spelled out."""
    line = str(text)
    return line if line.isprintable() else "".join(c if c.isprintable() else _spelled(c) for c in line)


def block(text: object) -> str:
    """Foreign text that may have many lines, a traceback say: only its line ends are kept as they are."""
    lines = str(text).replace("\r\n", "\n").expandtabs().split("\n")
    return "\n".join(clean(line) for line in lines)


def log_line(text: str, color: bool) -> str:
    """A line that a rank printed: its colours stay where colours are welcome, all else is spelled out."""
    if text.isprintable():
        return text
    text = text.expandtabs()
    if not color:
        return clean(_SGR.sub("", text))
    kept, end = [], 0
    for match in _SGR.finditer(text):
        kept += [clean(text[end : match.start()]), match.group()]
        end = match.end()
    return "".join([*kept, clean(text[end:]), _RESET if end else ""])


def _spelled(char: str) -> str:
    return "\\" + {"\n": "n", "\r": "r", "\t": "t", "\x1b": "e"}.get(char, ascii(char)[2:-1])


def width() -> int:
    """Columns to fill: $COLUMNS, else the terminal's, else as much as reads well in a file."""
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size((WIDTH_ELSEWHERE, 24)).columns))


def welcomes_color(variables: Mapping[str, str]) -> bool:
    """A terminal that is not dumb, and nobody who said NO_COLOR."""
    return sys.stdout.isatty() and not variables.get("NO_COLOR") and variables.get("TERM", "") != "dumb"


def styled(text: str, style: str, color: bool) -> str:
    """``text`` in a style; as it is where colours are not welcome."""
    return f"\x1b[{_CODES[style]}m{text}{_RESET}" if color and style else text


def phase_word(phase: str, color: bool) -> str:
    """A run's state, in its colour."""
    return styled(phase, _PHASE_STYLES.get(phase, "bold"), color)


def wrapped(text: str, columns: int, first: str = "", rest: str | None = None) -> list[str]:
    """Clean text over as many lines as it needs; a path longer than a line is not cut, so that it can be copied."""
    rest = " " * len(first) if rest is None else rest
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], columns: int, indent: str = "  ") -> list[str]:
    """Columns as wide as they must be; the last one takes what is left. What does not fit wraps.

    If too little is left for the last column, the widest of the others give way, and their long words are broken.
    Cells are clean already.
    """
    everything = [tuple(head), *(tuple(row) for row in rows)]
    count = len(head) - 1
    *sizes, last = (max(len(row[k]) for row in everything) for k in range(count + 1))
    left = columns - len(indent) - 2 * count
    while left - sum(sizes) < min(last, LAST_CHARS) and max(sizes, default=0) > COLUMN_CHARS_MIN:
        sizes[sizes.index(max(sizes))] -= 1
    sizes.append(max(left - sum(sizes), COLUMN_CHARS_MIN))
    lines = []
    for row in everything:
        cells = [
            textwrap.wrap(cell, size, break_long_words=k < count, break_on_hyphens=False)
            for k, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            told = "  ".join(part.ljust(size) for part, size in zip(parts, sizes, strict=True))
            lines.append((indent + told).rstrip())
    return lines


def packed(parts: Iterable[str], columns: int) -> list[str]:
    """Short facts with dots between them, on as few lines as it takes."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) < columns:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def size_words(count_bytes: int) -> str:
    """``12.3 GB``: powers of 1000, as disks are sold."""
    number = float(count_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("the last unit takes all")


def number_words(value: float | str, digits_count: int = 4) -> str:
    """``2.312``, ``1.2e-05``, ``NaN``: a figure of the training, as JSON has it."""
    return value if isinstance(value, str) else f"{value:.{digits_count}g}"


def rate_words(per_s: float, unit: str) -> str:
    """``3.2 steps/s``, ``12.5k tokens/s``; what takes longer than a second is ``4.1 s/step``."""
    if per_s < 1:
        return f"{1 / per_s:.3g} s/{unit}"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= 10 * factor:
            return f"{per_s / factor:.3g}{prefix} {unit}s/s"
    return f"{per_s:.4g} {unit}s/s"


def echo_json(value: object) -> None:
    """Print one object on one line; ASCII, so that no locale can break it."""
    import json

    import click  # not for the processes of a run
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value)))
