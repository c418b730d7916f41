"""What ``gangrun run`` shows while it runs: the story, some ranks' output, one line of progress.

On a terminal the last line is alive (rich draws it, which also minds COLUMNS and NO_COLOR); elsewhere there are plain
lines only. The first and the last rank's output is passed through; the rest is in the log files.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gangrun.core.model import TERMINAL, RunState
from gangrun.display.text import clean, log_line
from gangrun.runs.rank_output import parts_of
from gangrun.wire.record import Record

if TYPE_CHECKING:
    from rich.live import Live

# the last two are told by the supervisor itself, at the time: their records come when the disk is back
QUIET = frozenset(
    {
        "ProgressMarked",
        "FirstStepSeen",
        "NodeChecked",
        "AgentJoined",
        "AttemptSealed",
        "ActDone",
        "StoreStalled",
        "StoreBack",
    }
)
READ_MAX_BYTES = 1 << 20


class Tail:
    """New whole lines of a growing log, also where it goes on in another file; see ``agent/ranks/capped_log``."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset, self._rest = path, 0, 0, b""
        self.is_behind = False  # more was there than is read at once

    def lines(self) -> list[str]:
        """Lines that came since the last call; none while the file is missing or unreadable."""
        self.is_behind = False
        try:
            data = self._fresh()
        except OSError:
            return []
        self.is_behind = len(data) >= READ_MAX_BYTES
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _fresh(self) -> bytes:
        parts = [(part.stat().st_ino, part) for part in parts_of(self._path)]
        inodes, data = [inode for inode, _ in parts], b""
        begin = inodes.index(self._inode) if self._inode in inodes else int(self._inode > 0)
        for inode, part in parts[begin:]:
            with part.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != inode:
                    return data  # it was turned into an older one just now
                if inode != self._inode or found.st_size < self._offset:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                more = file.read(READ_MAX_BYTES - len(data))
            self._offset += len(more)
            data += more
            if len(data) >= READ_MAX_BYTES:
                return data
        return data


def _of_tests(record: Record) -> bool:
    """That devices are put to work, for which a person waits; and what came of it."""
    if any(one.kind == "CheckNodes" and one.args.get("tests") for one in record.actions):
        return True
    return record.kind == "NodeChecked" and record.was != record.phase and bool(record.event.get("tested"))


@dataclass(slots=True)
class LiveView:
    """Shows one run. ``out`` gets the ranks' output, ``err`` the story; with --json both are stderr."""

    log_of: Callable[[int, str], Path]
    live_of: Callable[[int], Mapping[str, Any]]
    wall: Callable[[], float]
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    terminal: bool = False  # draw a live line on ``err``
    quiet_ranks: bool = False
    _live: Live | None = None
    _tails: dict[tuple[int, str], Tail] = field(default_factory=dict)
    _shown: tuple[str, ...] = ()
    _drawn: str = ""
    _attempt: int = -1
    _began: float = 0.0
    emitted_count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)  # the owner speaks beside its onlooker
    _closed: set[int] = field(default_factory=set)  # ids of streams whose reader left

    def say(self, sentence: str, wall: float | None = None) -> None:
        """One line of our own."""
        at = datetime.fromtimestamp(self.wall() if wall is None else wall, tz=timezone.utc).astimezone()
        self._emit(self.err, f"gangrun {at:%H:%M:%S} {clean(sentence)}", style="cyan")

    def record(self, record: Record) -> None:
        """One line of the story, when it tells something new."""
        ended = record.was != record.phase and record.phase in {phase.value for phase in TERMINAL}
        if record.outcome != "applied" or record.kind == "Snapshot":
            return
        if record.kind in QUIET and not ended and not _of_tests(record):
            return
        if record.was != record.phase or "reason" in record.patch:
            self.say(record.reason, record.wall)

    def pass_over(self, state: RunState) -> None:
        """What ranks printed up to here was shown by an earlier owner of the run."""
        self._attempt = state.attempt

    def tick(self, state: RunState | None) -> bool:
        """Pass output on and refresh the live line; whether there is more output already."""
        if state is None:
            return False
        is_behind = self._pass_output(state)
        if self.terminal:
            self._draw(state)
        return is_behind

    def close(self) -> None:
        """The last lines, and the live one gone."""
        while self._drain():
            pass
        if self._live is not None:
            self._live.stop()
            self._live = None
        with contextlib.suppress(OSError, ValueError):
            self.err.flush()

    def _pass_output(self, state: RunState) -> bool:
        if self.quiet_ranks or state.placement is None:
            return False
        if state.attempt != self._attempt:
            if state.placement.world_size > 2 and not self._tails:
                last, run = state.placement.world_size - 1, clean(state.run)
                self.say(f"of what ranks print, that of 0 and {last} is shown here; all of it: gangrun logs -f {run}")
            self._drain()
            self._attempt = state.attempt
            self._shown = tuple(f":rank{rank}]" for rank in sorted({0, state.placement.world_size - 1}))
            for node in (state.placement.nodes[0], state.placement.nodes[-1]):
                self._tails.setdefault((state.attempt, node), Tail(self.log_of(state.attempt, node)))
        return self._drain()

    def _drain(self) -> bool:
        """Pass on what came; whether there is more."""
        is_behind = False
        for (attempt, _), tail in self._tails.items():
            if attempt < self._attempt - 1:
                continue
            lines = [line for line in tail.lines() if any(mark in line.split(" ", 1)[0] for mark in self._shown)]
            color, is_behind = self.out.isatty(), is_behind or tail.is_behind
            if lines:
                self._emit(self.out, "\n".join(log_line(line, color=color) for line in lines))
        return is_behind

    def _draw(self, state: RunState) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        words = self._progress(state)
        if words == self._drawn:
            return  # a line that is painted ten times a second flickers, over ssh above all
        self._drawn = words
        line = Text(words, style="bold", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            console = Console(file=self.err, highlight=False)
            self._live = Live(line, console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def _progress(self, state: RunState) -> str:
        live = self.live_of(state.term)
        step = live.get("step", state.attempt_step)
        if not self._began:
            self._began = self.wall()
        minutes, seconds = divmod(max(0, int(self.wall() - self._began)), 60)
        parts = [f"{state.phase.value} {minutes}:{seconds:02d}", f"attempt {max(state.attempt, 0)}"]
        if isinstance(step, int) and step >= 0:
            parts.append(f"step {step}")
        if isinstance(live.get("loss"), float):
            parts.append(f"loss {live['loss']:.4g}")
        if state.checkpoint is not None:
            parts.append(f"checkpoint {state.checkpoint.step}")
        if state.budget.total_count:
            parts.append(f"restarts {state.budget.total_count}")
        return " · ".join(parts)

    def _emit(self, stream: TextIO, line: str, style: str = "") -> None:
        if id(stream) in self._closed:
            return
        with self._lock:
            self._emit_alone(stream, line, style)
        self.emitted_count += 1

    def _emit_alone(self, stream: TextIO, line: str, style: str) -> None:
        try:
            if self._live is not None and stream.isatty():
                from rich.text import Text

                # the terminal breaks long lines, not we: what is copied out of it stays one line
                self._live.console.print(Text.from_ansi(line, style=style), soft_wrap=True)
            else:
                stream.write(line + "\n")
                stream.flush()
        except (BrokenPipeError, ValueError):
            self._closed.add(id(stream))  # the reader left; the run goes on, and so does its log
