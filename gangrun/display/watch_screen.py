"""``gangrun status --watch`` on a terminal: the run on one screen, drawn anew each second, with keys.

What is drawn is a function of values (``screen_lines``). The terminal's mode, which the keys need, is put back in every
exit; only SIGKILL leaves no time for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import click

from gangrun.core.text import counted
from gangrun.display.status_page import PageFormat, gpu_words, page, state_line, step_line, warning_words
from gangrun.display.text import clean, number_words, packed, styled
from gangrun.display.times import clock_words, short_span_words
from gangrun.runs.status import Status
from gangrun.runs.times import pause, steady_now
from gangrun.runs.watched import NodeSquares, RankKind, WatchedLook, WatchedRun

DRAW_EVERY_S = 1.0
LABEL_CHARS = 11
ROWS_MIN, COLUMNS_MIN = 10, 40  # what is drawn for a smaller terminal, which shows a part of it
_BARS = "▁▂▃▄▅▆▇█"
KEYS = (
    ("q", "leave; the run goes on"),
    ("j, ↓", "older decisions"),
    ("k, ↑", "newer decisions"),
    ("space, PageDown", "a page of older decisions"),
    ("b, PageUp", "a page of newer decisions"),
    ("g", "back to the newest decision"),
    ("?", "show or hide these keys"),
)


# The sign and the colour of a square; a node's square shows the last of these kinds that it has.
_SQUARES = {
    RankKind.ENDED: ("·", "dim"),
    RankKind.SPARE: ("+", "cyan"),
    RankKind.RUNNING: ("■", "green"),
    RankKind.WAITING: ("□", "yellow"),
    RankKind.LOST: ("x", "red"),
}
_ORDER = {kind: k for k, kind in enumerate(_SQUARES)}


@dataclass(frozen=True, slots=True)
class Scrolled:
    """What the keys have done to the screen."""

    decisions_count: int = 0  # newer ones that are not shown
    helps: bool = False


# ---- what is drawn ----


def screen_lines(run: WatchedLook, at: Scrolled, look: PageFormat, rows: int) -> list[str]:
    """The screen: ``rows`` lines of at most ``look.columns`` characters each, or the least that can be drawn."""
    rows, columns = max(ROWS_MIN, rows), max(COLUMNS_MIN, look.columns)
    status, look = run.status, replace(look, columns=columns)
    plain = state_line(status, replace(look, color=False))
    head = state_line(status, look) if len(plain) <= columns else _cut(plain, columns)
    lines = [head, _cut(f"  {clean(status.reason)}", columns)]
    warnings = [_cut(f"  ! {words}", columns) for words in warning_words(status, look)[:2]]
    lines += [styled(line, "yellow", look.color) for line in warnings]
    facts = [f"step {step_line(status)}"]
    facts += [f"loss {number_words(status.loss)}"] if status.loss is not None else []
    facts += [f"GPU {gpu_words(status.gpu)[0]}"] if status.gpu is not None and gpu_words(status.gpu) else []
    facts += (
        [f"checkpoint {status.checkpoint.step}"] if status.checkpoint and status.checkpoint.step is not None else []
    )
    facts += [counted(status.restarts, "restart")] if status.restarts else []
    lines += [_cut(f"  {line}", columns) for line in packed(facts, columns - 2)[:2]]
    if status.attempts:
        lines += ["", *_attempt_strip(status, look)]
    if run.nodes:
        room = max(2, (rows - 14) // 2)
        lines += ["", *_node_map(run.nodes, look, room)]
    sparks = [
        _spark("step time", run.step_times_s, " s", look, 0.1),
        _spark("loss", run.losses, "", look, 0.0),
    ]
    if drawn := [line for line in sparks if line]:
        lines += ["", *drawn]
    foot = "q leaves · j k scroll · ? keys" if not at.helps else "? hides the keys"
    lines = [*lines[: rows - 4], ""]
    lines += _keys(look) if at.helps else _decisions(run, at, look, rows - len(lines) - 1)
    lines = lines[: rows - 1]
    return [*lines, *[""] * (rows - 1 - len(lines)), styled(_cut(foot, columns), "dim", look.color)]


def _label(words: str, look: PageFormat) -> str:
    return styled(f"  {words.ljust(LABEL_CHARS)}", "dim", look.color)


def _attempt_strip(status: Status, look: PageFormat) -> list[str]:
    """The time since the first attempt began, from left to right: whose ranks ran when, and where they fell."""
    attempts, wide = status.attempts, look.columns - LABEL_CHARS - 4
    until = status.updated if status.exit_code is not None and status.updated else look.now
    began = attempts[0].started
    per_cell = max(1e-9, (until - began) / wide)

    def cell_of(wall: float) -> int:
        return max(0, min(wide - 1, int((wall - began) / per_cell)))

    cells: list[tuple[str, str]] = [("·", "dim")] * wide
    for k, one in enumerate(attempts):
        newest = k == len(attempts) - 1
        first, last = cell_of(one.started), cell_of(until if one.ended is None else one.ended)
        for at in range(first, last + 1):
            cells[at] = ("█", "green" if newest else ("cyan", "")[k % 2])
        number = str(one.number)
        for at, digit in enumerate(number, first + (k > 0)):  # the cell before tells how the one before it ended
            if first + len(number) < last:
                cells[at] = (digit, "bold")
        if k and attempts[k - 1].outcome not in ("succeeded", "cancelled"):
            cells[cell_of(attempts[k - 1].ended or one.started)] = ("x", "red")
    left, right = (clock_words(wall, look.now, look.zone) for wall in (began, until))
    middle = counted(len(attempts), "attempt") if len(attempts) > 1 else ""
    ends = f"{left}{middle.center(max(0, wide - len(left) - len(right)))}{right}"
    return [
        _label("attempts", look) + _painted(cells, look),
        _label("", look) + styled(_cut(ends, wide), "dim", look.color),
    ]


def _painted(cells: Iterable[tuple[str, str]], look: PageFormat) -> str:
    return "".join(
        styled("".join(sign for sign, _ in same), style, look.color)
        for style, same in groupby(cells, key=lambda cell: cell[1])
    )


def _node_map(nodes: Sequence[NodeSquares], look: PageFormat, rows: int) -> list[str]:
    """A square for each rank if that fits, else for each node, else for several nodes: then the worst of them."""
    wide = look.columns - LABEL_CHARS - 4
    every = max(len(one.node) for one in nodes)
    told = "one square: a rank"
    if len(nodes) <= rows and all(len(one.ranks) + every + 2 <= wide for one in nodes):
        lines = [
            [*((char, "") for char in clean(one.node).ljust(every + 2)), *map(_SQUARES.__getitem__, one.ranks)]
            for one in nodes
        ]
    else:
        by_rank: list[tuple[str, str]] = []
        for one in nodes:
            by_rank += [*map(_SQUARES.__getitem__, one.ranks), (" ", "")]
        squares = by_rank
        if len(by_rank) > wide * rows:
            share = math.ceil(len(nodes) / (wide * rows))
            parts = [nodes[k : k + share] for k in range(0, len(nodes), share)]
            squares = [_SQUARES[_worst(kind for one in part for kind in one.ranks)] for part in parts]
            told = "one square: a node" if share == 1 else f"one square: the worst of {share} nodes"
        lines = [squares[k : k + wide] for k in range(0, len(squares), wide)]
    counts = {kind: sum(one.ranks.count(kind) for one in nodes) for kind in _SQUARES}
    known = [kind for kind in reversed(_SQUARES) if counts[kind]]
    lost = [one.node for one in nodes if RankKind.LOST in one.ranks]
    where = f" ({', '.join(map(clean, lost[:3]))}{', ...' if len(lost) > 3 else ''})" if lost else ""
    first, *rest = [_painted(line, look) for line in lines]
    told_of = {RankKind.LOST: where}
    legend = ", ".join(f"{_SQUARES[kind][0]} {counts[kind]} {kind.value}{told_of.get(kind, '')}" for kind in known)
    words = _cut(f"{legend} · {told}", wide)
    return [
        _label("ranks", look) + first,
        *(_label("", look) + line for line in rest),
        _label("", look) + styled(words, "dim", look.color),
    ]


def _worst(kinds: Iterable[RankKind]) -> RankKind:
    return max(kinds, key=_ORDER.__getitem__)


def _spark(label: str, values: Sequence[float], unit: str, look: PageFormat, alike: float) -> str:
    """The newest values as bars, then the newest and between which bounds they are; "" of fewer than two.

    Values that differ by less than the share ``alike`` make no mountain.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    room = look.columns - LABEL_CHARS - 4
    words = f"  {number_words(known[-1], 3)}{unit}"
    shown = known[-max(8, room - 34) :]
    low, most = min(shown), max(shown)
    floor = min(low, most - alike * abs(most))
    words += f" ({number_words(low, 3)} to {number_words(most, 3)})"
    top = len(_BARS) - 1
    bars = "".join(_BARS[round((value - floor) / (most - floor) * top) if most > floor else 0] for value in shown)
    return _label(label, look) + styled(bars, "cyan", look.color) + _cut(words, max(0, room - len(bars)))


def _decisions(run: WatchedLook, at: Scrolled, look: PageFormat, rows: int) -> list[str]:
    """The newest first, with their age."""
    newest = list(reversed(run.decisions))[at.decisions_count :]
    lines = [
        _cut(f"  {short_span_words(look.now - wall):>8}  {clean(words)}", look.columns)
        for wall, words in newest[: max(0, rows - 1)]
    ]
    before = f" ({at.decisions_count} newer above)" if at.decisions_count else ""
    return [styled(_cut(f"  decisions{before}, with their age", look.columns), "bold", look.color), *lines]


def _keys(look: PageFormat) -> list[str]:
    return [styled("  keys", "bold", look.color), *(_cut(f"  {key:<16} {words}", look.columns) for key, words in KEYS)]


def _cut(words: str, chars: int) -> str:
    return words if len(words) <= chars else words[: max(chars - 1, 0)] + "…"


# ---- the terminal ----


@contextlib.contextmanager
def keyboard() -> Iterator[Callable[[float], list[str]]]:
    """Keys as they are pressed, without an echo: a function that waits so long for some.

    ``SystemExit`` on SIGTERM and SIGHUP, so that the mode is put back before they end the process.
    """
    fd = sys.stdin.fileno() if sys.stdin.isatty() else -1
    if fd < 0 or os.tcgetpgrp(fd) != os.getpgrp():  # the terminal stops a background process that sets its mode
        yield _nobody
        return
    before = termios.tcgetattr(fd)
    mode = termios.tcgetattr(fd)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VSUSP] = b"\0"  # a viewer that Ctrl-Z stops would leave its screen behind
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, mode)
        yield lambda within_s: _pressed(fd, within_s)
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _nobody(within_s: float) -> list[str]:
    pause(within_s)
    return []


def _pressed(fd: int, within_s: float) -> list[str]:
    ready, _, _ = select.select([fd], [], [], within_s)
    if not ready:
        return []
    read = os.read(fd, 256)
    return list(keys_in(read)) if read else ["q"]  # without a byte the terminal is gone


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


_SEQUENCES = {b"\x1b[A": "k", b"\x1b[B": "j", b"\x1bOA": "k", b"\x1bOB": "j", b"\x1b[5~": "b", b"\x1b[6~": " "}


def keys_in(read: bytes) -> Iterator[str]:
    """The keys in what a terminal sent: arrows by the letter that does the same; unknown sequences are passed over."""
    while read:
        if found := next((code for code in _SEQUENCES if read.startswith(code)), None):
            yield _SEQUENCES[found]
            read = read[len(found) :]
        elif read[:1] == b"\x1b":
            return
        else:
            yield chr(read[0])
            read = read[1:]


def turned(at: Scrolled, key: str, rows: int, decisions_count: int) -> Scrolled:
    """The screen after a key."""
    by = {"j": 1, "k": -1, " ": rows, "b": -rows, "g": -decisions_count}.get(key, 0)
    return Scrolled(max(0, min(at.decisions_count + by, decisions_count - 1)), at.helps != (key == "?"))


def watch_screen(watched: WatchedRun, look: Callable[[], PageFormat]) -> None:
    """Until the run has ended, nobody is left who could end it, or a key or Ctrl-C leaves. It only reads."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, at, run = Console(highlight=False), Scrolled(), watched.look()
    with keyboard() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        while run.status.exit_code is None and not run.status.abandoned:
            look_again_at = steady_now() + DRAW_EVERY_S
            while (left_s := look_again_at - steady_now()) > 0:
                columns, rows = console.size
                lines = screen_lines(run, at, replace(look(), columns=columns), rows)
                live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
                for key in pressed(left_s):
                    if key in ("q", "Q"):
                        return
                    at = turned(at, key, max(1, rows // 3), len(run.decisions))
            run = watched.look()
    click.echo("\n".join(page(run.status, look())))
