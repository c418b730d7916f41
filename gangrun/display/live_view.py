"""What is shown while a run goes on: the screen of ``gangrun run``, and ``gangrun status --watch``.

``gangrun run`` shows decisions, some ranks' output and one line of progress. On a terminal the last line is alive (rich
draws it, which also minds COLUMNS and NO_COLOR); elsewhere there are plain lines only. The first and the last rank's
output is passed through; the rest is in the log files. RunSnapshot may hang with the run directory, and writing with a
terminal that takes no more: both are the observer's, a thread for which the launcher, which must heed Ctrl-C at any
time, never waits.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gangrun.core.events import RankExited
from gangrun.core.model import TERMINAL, After, Phase, RunState
from gangrun.core.text import counted, step_or_none
from gangrun.display.status_page import PageFormat
from gangrun.display.text import clean, let_go, log_line, number_words, packed, rate_words, width
from gangrun.display.times import clock_words, short_span_words
from gangrun.errors import UserError
from gangrun.ports import Clock
from gangrun.runs.failures import SameEnd
from gangrun.runs.figures import figures_of
from gangrun.runs.follow import JournalReplay
from gangrun.runs.rank_output import LogTail, note_loss, rank_of
from gangrun.runs.status import lost_s, status_of
from gangrun.runs.times import pause, wall_now
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError

if TYPE_CHECKING:
    from rich.live import Live

    from gangrun.runs.watched import WatchedRun

ENDS = {phase.value for phase in TERMINAL}
LOOK_EVERY_S = 0.1
LAST_LINES_COUNT = 15  # of each node's ranks, for who looks again
REFUSED_MAX_COUNT = 100_000  # lines that wait for a terminal
REFUSED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EAGAIN})  # by a file that output was sent to
WATCH_EVERY_S = 1.0
FOLD_HOLD_S = 3.0
FOLD_WHOLE_AFTER_S = 0.3  # without another line of its rank
_BEGINS = "Traceback (most recent call last)"
GONE_AFTER_S = 10.0  # a run directory that cannot be found for so long was removed, not moved about
# the last two are told by the supervisor itself, at the time: their records come when the disk is back
QUIET = frozenset(
    {
        "ProgressMarked",
        "NodeChecked",
        "AgentJoined",
        "AttemptSealed",
        "ActDone",
        "StoreStalled",
        "StoreBack",
    }
)


def _of_tests(record: Record) -> bool:
    """That devices are put to work, for which a person waits; and what came of it."""
    if any(one.kind == "CheckNodes" and one.args.get("tests") for one in record.actions):
        return True
    return record.kind == "NodeChecked" and record.was != record.phase and bool(record.event.get("tested"))


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line for the screen."""

    text: str
    is_error: bool = False  # of the rank that failed first


@dataclass(slots=True)
class _Traceback:
    lines: list[str]
    began: float
    grew: float


class ErrorFold:
    """Tracebacks of one attempt: that of the rank which failed first is red, each victim's is folded to a line.

    A traceback is held until the journal says which rank failed first, for ``FOLD_HOLD_S`` at most. All other lines
    pass at once.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Traceback] = {}
        self._failed_first: int | None = None
        self._told_error = False

    def failed(self, rank: int) -> None:
        """This rank ended of itself, and not because of another one."""
        if self._failed_first is None:
            self._failed_first = rank

    def take(self, lines: list[str], now: float) -> list[ShownLine]:
        """New lines; what can be shown now."""
        shown = []
        for line in lines:
            rank = rank_of(line)
            if rank is None:
                shown.append(ShownLine(line))
            elif rank in self._open:
                self._open[rank].lines.append(line)
                self._open[rank].grew = now
            elif _BEGINS in line:
                self._open[rank] = _Traceback([line], now, now)
            else:
                shown.append(ShownLine(line))
        return shown + self.settled(now)

    def settled(self, now: float, *, end: bool = False) -> list[ShownLine]:
        """What has been held for long enough; all of it at the ``end``."""
        shown: list[ShownLine] = []
        for rank, held in list(self._open.items()):
            is_known = self._failed_first is not None and now - held.grew >= FOLD_WHOLE_AFTER_S
            if end or is_known or now - held.began >= FOLD_HOLD_S:
                del self._open[rank]
                shown += self._judged(rank, held)
        return shown

    def _judged(self, rank: int, held: _Traceback) -> list[ShownLine]:
        first = self._failed_first
        if first not in (None, rank):
            prefix = held.lines[0].partition("] ")[0]
            return [ShownLine(f"{prefix}] ({len(held.lines)} lines folded: rank {first} failed first)")]
        is_error, self._told_error = first == rank or not self._told_error, True
        return [ShownLine(line, is_error) for line in held.lines]


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
    closing: Callable[[], Sequence[str]] = list  # what stands below the last sentence of a run that did not succeed
    refused: deque[str] = field(default_factory=lambda: deque(maxlen=REFUSED_MAX_COUNT))  # lines the disk did not take
    losses: dict[tuple[int, str], str] = field(default_factory=dict)  # (attempt, node) -> what its log lacks
    _live: Live | None = None
    _tails: dict[tuple[int, str], LogTail] = field(default_factory=dict)
    _fold: ErrorFold = field(default_factory=ErrorFold)
    _joins: bool = False  # it begins in the middle of an attempt
    _shown: frozenset[int] = frozenset()
    _drawn: str = ""
    _attempt: int = -1
    _end: Record | None = None
    _checkpoint_seen: dict[object, float] = field(default_factory=dict)  # step -> when
    _began: float = 0.0
    emitted_count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)  # the owner speaks beside its observer
    _missing_count: int = 0  # lines that a file to which this output goes has refused
    _missing_why: str = ""
    _closed: set[int] = field(default_factory=set)  # ids of streams whose reader left

    def say(self, sentence: str, wall: float | None = None) -> None:
        """One line of our own."""
        at = datetime.fromtimestamp(self.wall() if wall is None else wall, tz=timezone.utc).astimezone()
        self._emit(self.err, f"gangrun {at:%H:%M:%S} {clean(sentence)}", style="cyan")

    def record(self, record: Record) -> None:
        """One line of the story, when it tells something new."""
        self.note(record)
        self._note_exit(record)
        ended = record.was != record.phase and record.phase in ENDS
        if record.outcome != "applied" or record.kind == "Snapshot":
            return
        if record.kind in QUIET and not ended and not _of_tests(record):
            return
        if record.patch.get("after") == After.SUCCEED.value and not ended:
            return  # the end says the same, and is told below the last output
        if ended:
            self._end = record  # told below the last output of the ranks
        elif record.was != record.phase or "reason" in record.patch:
            self._end = None
            self.say(record.reason, record.wall)

    def note(self, record: Record) -> None:
        """Remember when a checkpoint was seen, for its age."""
        if record.kind == "CheckpointSeen":
            checkpoint = record.event.get("checkpoint")
            if isinstance(checkpoint, dict):
                self._checkpoint_seen[checkpoint.get("step")] = record.wall

    def _note_exit(self, record: Record) -> None:
        if record.kind == "RankExited" and self.terminal:
            with contextlib.suppress(RecordError):
                event = event_of(record.kind, record.event)
                if isinstance(event, RankExited) and not SameEnd((), event.exit).victim:
                    self._fold.failed(event.exit.rank)

    def pass_over(self, state: RunState, *, joins: bool = False) -> None:
        """What ranks printed up to here was shown by an earlier owner of the run, or, if this view ``joins`` that one,
        by the owner that it has: then the last lines are shown again.
        """
        self._joins = joins
        if not joins:
            self._attempt = state.attempt.number

    def tick(self, state: RunState | None) -> bool:
        """Pass output on and refresh the live line; whether there is more output already."""
        if state is None:
            return False
        is_behind = self._pass_output(state)
        self._note_losses()
        if self.terminal:
            self._draw(state)
        return is_behind

    def close(self) -> None:
        """The last lines, and the live one gone."""
        while self._drain():
            pass
        self._show(self._fold.settled(self.wall(), end=True))
        self._note_losses()
        if self._missing_count:
            self.say(f"up to {self._missing_count} lines are missing in this output: {self._missing_why}")
        if self._end is not None:
            self.say(self._end.reason, self._end.wall)
            with contextlib.suppress(OSError, RecordError, UserError):
                for line in self.closing() if self._end.phase != Phase.SUCCEEDED.value else ():
                    self._emit(self.err, line)
        if self._live is not None:
            self._live.stop()
            self._live = None
        with contextlib.suppress(OSError, ValueError):
            self.err.flush()

    def let_go(self) -> None:
        """Nothing is shown any more: the exit code must not tell that a full disk took no output."""
        for stream in (self.out, self.err):
            let_go(stream)

    def _pass_output(self, state: RunState) -> bool:
        if self.quiet_ranks or state.attempt.placement is None:
            return False
        if state.attempt.number != self._attempt:
            if state.attempt.placement.world_size > 2 and not self._tails:
                last, run = state.attempt.placement.world_size - 1, clean(state.run)
                self.say(f"only the output of ranks 0 and {last} is shown here; gangrun logs -f {run} shows all")
            self._drain()
            self._show(self._fold.settled(self.wall(), end=True))
            self._fold = ErrorFold()
            self._attempt = state.attempt.number
            self._shown = frozenset({0, state.attempt.placement.world_size - 1})
            for node in (state.attempt.placement.nodes[0], state.attempt.placement.nodes[-1]):
                self._tails.setdefault((state.attempt.number, node), LogTail(self.log_of(state.attempt.number, node)))
        is_behind = self._drain(LAST_LINES_COUNT if self._joins else None)
        self._joins = self._joins and is_behind
        return is_behind

    def _drain(self, last_count: int | None = None) -> bool:
        """Pass on what came, or only the last lines of it; whether there is more."""
        is_behind = False
        while self.refused:
            self._pass_on([self.refused.popleft()])
        for (attempt, _), tail in self._tails.items():
            if attempt < self._attempt - 1:
                continue
            try:
                fresh = tail.lines()
            except OSError:
                continue  # unreadable now: the next look may do better
            lines = [line for line in fresh if rank_of(line) in self._shown]
            is_behind = is_behind or tail.is_behind
            if last_count is not None:
                lines = [] if tail.is_behind else lines[-last_count:]
            self._pass_on(lines)
        return is_behind

    def _note_losses(self) -> None:
        for attempt, node in tuple(self.losses):
            words = self.losses.pop((attempt, node))
            try:
                note_loss(self.log_of(attempt, node), words)
            except OSError:  # the next look may do better
                self.losses.setdefault((attempt, node), words)

    def _pass_on(self, lines: list[str]) -> None:
        if self.quiet_ranks:
            return
        if self.terminal:
            self._show(self._fold.take(lines, self.wall()))
        else:
            self._show([ShownLine(line) for line in lines])

    def _show(self, lines: list[ShownLine]) -> None:
        color = self.out.isatty()
        for is_error, same in groupby(lines, lambda line: line.is_error):
            text = "\n".join(log_line(line.text, color=color) for line in same)
            self._emit(self.out, text, style="red" if is_error else "")

    def _draw(self, state: RunState) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        words = "\n".join(packed(self._progress(state), width()))
        if words == self._drawn:
            return  # a line that is painted ten times a second flickers, over ssh above all
        self._drawn = words
        line = Text(words, style="bold", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            console = Console(file=self.err, highlight=False)
            self._live = Live(line, console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def _progress(self, state: RunState) -> list[str]:
        if not self._began:
            self._began = self.wall()
        minutes, seconds = divmod(max(0, int(self.wall() - self._began)), 60)
        parts = [f"{state.phase.value} {minutes}:{seconds:02d}", *_training_words(state, self.live_of(state.term))]
        if state.checkpoints.newest is not None:
            newest = step_or_none(state.checkpoints.newest.step)
            seen = self._checkpoint_seen.get(state.checkpoints.newest.step)
            age = "" if seen is None else f" {short_span_words(self.wall() - seen)} old"
            parts.append("checkpoint" + ("" if newest is None else f" {newest}") + (age or " saved"))
        if state.budget.total_count:
            lost = lost_s(state.attempts)
            parts.append(counted(state.budget.total_count, "restart") + f", {short_span_words(lost)} lost")
        return parts

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
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in REFUSED:  # full: the next line may do better
                self._missing_count += line.count("\n") + 1
                self._missing_why = error.strerror or str(error)
            else:
                self._closed.add(id(stream))  # the reader left, or the terminal; the run goes on, and so does its log


def _training_words(state: RunState, live: Mapping[str, Any]) -> list[str]:
    """Step, rate, loss and time left, as far as they are known."""
    if live.get("attempt", state.attempt.number) != state.attempt.number:
        live = {}
    step = next((one for one in (live.get("step"), live.get("log_step")) if isinstance(one, int) and one >= 0), None)
    runs = state.phase is Phase.RUNNING
    known = state.attempt.step if state.attempt.step >= 0 or runs else state.checkpoints.logged_step
    step = max(known, -1 if step is None else step)
    step = step if step >= 0 else None
    figures, parts = figures_of(live, step, state.attempt, ended=not runs), []
    if step is not None:
        parts.append(f"step {step}" + ("" if figures.total_steps is None else f"/{figures.total_steps}"))
    if runs and figures.steps_per_s is not None:
        parts.append(rate_words(figures.steps_per_s, "step"))
    if figures.loss is not None:
        parts.append(f"loss {number_words(figures.loss)}")
    if figures.gpu is not None and figures.gpu.busy_percent is not None:
        parts.append(f"GPU {figures.gpu.busy_percent:.0f} %")
    if runs and figures.eta_s is not None:
        parts.append(f"{short_span_words(figures.eta_s)} left")
    return parts


class Observer(threading.Thread):
    """Shows one run until ``leave``; ``state``, ``removed`` and ``ended`` may be asked from any thread."""

    def __init__(self, journal: JournalReplay, clock: Clock, view: LiveView) -> None:
        super().__init__(name="observer", daemon=True)
        self._journal, self._clock, self._view = journal, clock, view
        self._over = threading.Event()
        self._missing_since: float | None = None
        self._broken = ""
        self.removed = False
        self.ended = False  # before these eyes: one that is taken up again had ended before

    def catch_up(self, *, joins: bool = False) -> None:
        """A run that is taken up, or looked at, again has a story already; it is not told twice. Before ``start``.

        ``OSError`` only for one who ``joins``: an owner holds the run by now, and goes on whatever can be shown.
        """
        try:
            for record in self._journal.poll():
                self._view.note(record)
        except OSError:
            if joins:
                raise
        state = self._journal.state()
        if state is not None:
            self._view.pass_over(state, joins=joins)

    def state(self) -> RunState | None:
        """The newest state that could be read."""
        return self._journal.state()

    def leave(self, within_s: float, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Show all that is there and end; False if nothing can be shown for so long, or somebody is in a hurry."""
        self._over.set()
        emitted_count = -1
        while self.is_alive() and self._view.emitted_count > emitted_count and not hurried():
            emitted_count = self._view.emitted_count
            self.join(within_s)
        return not self.is_alive()

    def run(self) -> None:
        """Look, again and again."""
        is_behind = False
        while not self._over.wait(0.0 if is_behind else LOOK_EVERY_S):
            is_behind = self._look()
        self._look()
        self._view.close()

    def _look(self) -> bool:
        try:
            for record in self._journal.poll():
                if record.was != record.phase:
                    self.ended = record.phase in ENDS
                self._view.record(record)
            is_behind = self._view.tick(self._journal.state())
            self._watch_directory()
            return is_behind
        except OSError:
            return False  # the disk refuses reading: the next look may do better
        except Exception as error:  # noqa: BLE001 - a thread's main: the run does not depend on being seen
            if self._broken != repr(error):
                self._broken = repr(error)
                self._view.say(f"cannot show the run: {self._broken}")
            return False

    def _watch_directory(self) -> None:
        """Without it nothing is decided any more, and no supervisor can ever begin."""
        if self._journal.is_there():
            self._missing_since = None
            return
        since = self._missing_since = self._missing_since or self._clock.now()
        self.removed = self.removed or self._clock.now() >= since + GONE_AFTER_S


# ---- status --watch ----


def watch_run(run: WatchedRun, look: Callable[[], PageFormat]) -> None:
    """Show a run until it has ended or nobody is left who could end it. Leaving it touches nothing: it only reads.

    On a terminal it has a screen with keys; elsewhere a line is printed when something changed.
    """
    if sys.stdout.isatty() and look().color:
        from gangrun.display.watch_screen import watch_screen

        watch_screen(run, look)
        return
    shown = ""
    while True:
        status = status_of(run.follower.look(), wall_now())
        step = f", step {status.step}" if status.step is not None else ""
        gone = "abandoned, " if status.abandoned else ""
        line = f"{status.state}{step}: {gone}{clean(status.reason)}"
        if line != shown:
            click.echo(f"{clock_words(wall_now(), wall_now())} {line}")
            shown = line
        if status.exit_code is not None or status.abandoned:
            return
        pause(WATCH_EVERY_S)
