"""The process that owns a run in the foreground: what it shows to people, and what Ctrl-C means to it.

A SIGTERM may come from the scheduler, with every reason that a job can end for: then the owner asks whether the signal
means the run. The first signal stops in order: the mark is written, the supervisor watches for it, and agents are told
only if no supervisor heeds it. The second signal kills, unless it is SIGHUP: a terminal that is closed sends that, and
nobody who closes one is in such a hurry. SIGQUIT, which ``gangrun cancel --now`` sends, kills at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import live_of
from gangrun.adapters.fs.run_dir import RunPaths, mark_cancelled
from gangrun.core.model import EXIT_CODES, TERMINAL, Phase, RunState
from gangrun.display.live_view import LiveView, Observer
from gangrun.display.text import clean
from gangrun.entry.wiring import loss_part, output_part, urgent_part
from gangrun.errors import UserError
from gangrun.launch.stop import tell_end, wait_for_end
from gangrun.ports import Clock
from gangrun.runs.failures import failure_in, is_stopped
from gangrun.runs.follow import JournalReplay
from gangrun.runs.rank_output import Wanted, tail_of
from gangrun.runs.snapshot import read

AT_ONCE = signal.SIGQUIT
HEEDED_WITHIN_S = 15.0  # a takeover and more
MARKED_WITHIN_S = 2.0  # a disk that takes longer stands still
MARK_LOOK_EVERY_S = 0.1
LAST_LOOK_WITHIN_S = 5.0
KEPT_WITHIN_S = 10.0  # what it gets to come back before nothing tells that the run was cancelled


def hears(view: LiveView, urgent: deque[str]) -> Callable[[str], bool]:
    """What to do with each line of the processes on a node; whether it belongs into their log. From any thread."""

    def hear(line: str) -> bool:
        if loss := loss_part(line):
            attempt, node, words = loss
            view.losses[attempt, node] = words
            return False
        if output := output_part(line):
            view.refused.append(output)
            return False
        if sentence := urgent_part(line):
            urgent.append(sentence)
        return True

    return hear


@dataclass(slots=True)
class Cancelling:
    """``insist``: tell every agent to cancel. ``kill``: no more grace. ``state``: as far as it can be read now."""

    paths: RunPaths
    disk: Disk
    clock: Clock
    say: Callable[[str], None]
    state: Callable[[], RunState | None]
    insist: Callable[[], None]
    kill: Callable[[], None]
    signals: list[int] = field(default_factory=list)
    urgent: deque[str] = field(default_factory=deque)  # sentences that cannot wait; filled from other threads too
    passed_on: Callable[[], bool] = lambda: False  # whether a Ctrl-C went to the rank that is debugged
    excuse: Callable[[], str] | None = None  # why a SIGTERM does not mean the run, "" if it does; may take seconds
    meant: bool = False  # a signal to this process did
    by_signal: bool = False  # it was a signal to this process that cancelled the run, not a person elsewhere
    _handled_count: int = 0
    _insist_at: float | None = None
    _marked_by: float = 0.0
    _marking: threading.Thread | None = None
    _asking: threading.Thread | None = None
    _not_excused: bool = False
    _keep: tuple[socket.socket, ...] = ()

    def listen(self) -> socket.socket:
        """Take signals from here on; what is returned can be read whenever one came, or a child ended."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._keep = wake_read, wake_write  # signals come until the process ends
        under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for signum in (signal.SIGINT, signal.SIGTERM, AT_ONCE, *(() if under_nohup else (signal.SIGHUP,))):
            signal.signal(signum, lambda number, _frame: self.note(number))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return wake_read

    def note(self, number: int) -> None:
        """A signal came. A closed terminal asks once, and adds nothing to what was asked before."""
        if number == signal.SIGINT and not self.meant and self.passed_on():
            return
        if number != signal.SIGHUP or not (self.meant or signal.SIGHUP in self.signals):
            self.signals.append(number)

    def turn(self) -> None:
        """Heed what came."""
        self.say_urgent()
        while self._handled_count < len(self.signals):
            name = signal.Signals(self.signals[self._handled_count]).name
            self._handled_count += 1
            if name == "SIGTERM" and self.excuse is not None and not self.meant:
                self._ask(self.excuse)
            else:
                self._heed(name)
        if self._not_excused and not self.meant:
            self._heed("SIGTERM")
        self._insist()

    def _ask(self, excuse: Callable[[], str]) -> None:
        """Once at a time: a scheduler may tell a job twice."""

        def ask() -> None:
            why = excuse()
            if why:
                self.urgent.append(f"SIGTERM: {why}")
            else:
                self._not_excused = True

        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=ask, name="why SIGTERM", daemon=True)
            self._asking.start()

    def _heed(self, name: str) -> None:
        if self.meant and name == "SIGHUP":
            return
        if self.meant or name == AT_ONCE.name:
            self._kill(name)
            return
        self.meant = True
        self._first(name)

    def _kill(self, name: str) -> None:
        words = f"{name} again"
        if name == AT_ONCE.name:
            words = f"{name} (gangrun cancel --now, or Ctrl-\\)"
        if not self.meant:
            self.meant = self.by_signal = True
            self._begin_mark(name)
        self.kill()
        self.say(f"{words}: killing all ranks")

    def say_urgent(self) -> None:
        """What cannot wait until the journal tells it."""
        while self.urgent:
            self.say(self.urgent.popleft())

    def _first(self, name: str) -> None:
        by = {"SIGINT": "Ctrl-C", "SIGHUP": "SIGHUP (the terminal was closed)"}.get(name, name)
        self.by_signal = name != "SIGINT"
        self._insist_at = self.clock.now() + HEEDED_WITHIN_S
        self._begin_mark(by)
        again = "Ctrl-C or SIGTERM" if name == "SIGHUP" else f"a second {by}"
        self.say(f"{by}: stopping all ranks; {again} kills them")

    def _begin_mark(self, by: str) -> None:
        self._marked_by = self.clock.now() + MARKED_WITHIN_S
        self._marking = threading.Thread(target=self._mark, args=(by,), name="cancel mark", daemon=True)
        self._marking.start()

    def _mark(self, by: str) -> None:
        try:
            first = mark_cancelled(self.disk, self.paths, by, self.clock.wall())
        except OSError as error:
            self.urgent.append(f"the cancel cannot be recorded ({error.strerror or error}): telling every agent")
            self._insist_at = self.clock.now()
        else:
            self.by_signal = self.by_signal and first

    def _insist(self) -> None:
        if self._insist_at is None:
            return
        stuck = self._marking is not None and self._marking.is_alive() and self.clock.now() >= self._marked_by
        if not stuck and self.clock.now() < self._insist_at:
            return
        self._insist_at = None
        state = self.state()
        if state is None or not (state.ending.cancelled_by or state.phase in {Phase.STOPPING, *TERMINAL}):
            self.say("no supervisor reacts to the cancel: telling every agent")
            self.insist()

    def keep_mark(self) -> None:
        """The last of all: a mark that the disk has not taken yet is lost with this process, and the run would look as
        if it had been left alone. A signal more, and it is.
        """
        marking, heard_count = self._marking, len(self.signals)
        if marking is None:
            return
        marking.join(MARK_LOOK_EVERY_S)
        if not marking.is_alive():
            return
        waits = f"waiting up to {KEPT_WITHIN_S:.0f} s to record the cancel (Ctrl-C leaves at once)"
        self.say(f"{self.paths.root} does not answer: {waits}")
        until = self.clock.now() + KEPT_WITHIN_S
        while marking.is_alive() and self.clock.now() < until and len(self.signals) == heard_count:
            marking.join(MARK_LOOK_EVERY_S)
        if marking.is_alive():
            words = f"the cancel is not recorded yet: when {self.paths.root} answers, run"
            self.say(f"{words} gangrun cancel {self.paths.run}")

    def code(self) -> int:
        """The owner's exit code."""
        state = self.state()
        phase = state.phase if state else None
        if phase in {Phase.SUCCEEDED, Phase.TIME_UP}:
            return EXIT_CODES[phase]
        if phase is Phase.CANCELLED or (phase is not Phase.FAILED and self.meant):
            return 143 if self.by_signal else 130
        return 1


def shown(paths: RunPaths, variables: Mapping[str, str], *, as_json: bool, quiet: bool) -> LiveView:
    """What the person in front of a run's owner sees."""
    disk = Disk()
    return LiveView(
        log_of=paths.node_log,
        live_of=lambda term: live_of(disk, paths, term),
        wall=SystemClock().wall,
        out=sys.stderr if as_json else sys.stdout,
        terminal=sys.stderr.isatty() and variables.get("TERM", "") != "dumb",
        quiet_ranks=quiet,
        closing=lambda: closing(paths),
    )


def closing(paths: RunPaths) -> list[str]:
    """Below the end of a run that did not succeed: who failed first in its last attempt, and how to go on."""
    from gangrun.display.explain_page import closing_lines

    reading, run = read(paths, timeline=True), clean(paths.run)
    on = f"gangrun resume {run} continues the run"
    if reading.state is None or reading.state.phase is not Phase.FAILED:
        return [f"{on}; gangrun explain {run} shows every decision"]
    failure = failure_in(reading, reading.state.attempt.number, Wanted())
    told = [f"gangrun explain {run} shows every decision; {on}"]
    if not failure.hung and all(is_stopped(group.exit) and group.exit.error is None for group in failure.groups):
        return told  # no rank failed: the run was ended for another reason, which is told above
    tails = {one.exit.rank: tail_of(paths, failure.number, one.exit.rank) for one in failure.groups[:1]}
    more = f"gangrun logs --errors {run} shows all tracebacks"
    return [*closing_lines(failure, tails, color=sys.stderr.isatty()), more, *told]


def tell_json(paths: RunPaths) -> None:
    """The final status."""
    from gangrun.runs.status import final_status

    click.echo(final_status(paths))


def attached(paths: RunPaths, variables: Mapping[str, str], *, quiet: bool) -> int:
    """Show a run that another process owns as its owner would, to its end; the run's exit code."""
    view = shown(paths, variables, as_json=False, quiet=quiet)
    observer = Observer(JournalReplay(paths, Disk()), SystemClock(), view)
    observer.catch_up(joins=True)
    state = observer.state()
    if state is None or state.phase not in TERMINAL:
        view.say(f"run {paths.run} in {paths.root}; Ctrl-C leaves this view, gangrun cancel ends the run")
        if state is not None:
            view.say(state.reason)
    observer.start()
    try:
        wait_for_end(paths, None)
    finally:
        observer.leave(LAST_LOOK_WITHIN_S)
    return tell_end(paths, None, as_json=False)


def in_background(log: Path, own: Callable[[Callable[[], None]], int]) -> None:
    """Have ``own(begun)`` done by a process without a terminal, which writes into ``log``. Returns once it called
    ``begun``; a ``UserError`` of before is raised here. Interrupted before, it starts nothing.
    """
    read, write = os.pipe()
    interrupts: list[int] = []  # Python swallows a Ctrl-C that comes while it forks, so both processes note it
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))

    def heed_interrupts() -> None:
        signal.signal(signal.SIGINT, before)
        if interrupts:
            raise KeyboardInterrupt

    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            try:
                heed_interrupts()
                heard = pipe.read()
            except BaseException:  # Ctrl-C reaches this process only: the other has left the terminal
                os.kill(child, signal.SIGINT)
                os.waitpid(child, 0)
                raise
        told = json.loads(heard or b'["system", "the process in the background died", "", 3]')
        if told:
            os.waitpid(child, 0)
            raise UserError(*told)
        return

    answer: list[int] = [write]  # empty once it was given

    def tell(words: list[object]) -> None:
        fd = answer.pop()
        os.write(fd, json.dumps(words).encode())
        os.close(fd)

    code = 1
    try:
        os.close(read)  # or nobody would notice that the other end is gone
        os.setsid()
        null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd, into in ((0, null), (1, file), (2, file)):
            os.dup2(into, fd)
        heed_interrupts()
        code = own(lambda: tell([]))
    except UserError as error:
        if answer:
            tell([error.kind, error.message, error.hint, error.code])
        else:
            os.write(2, f"{error.message}\n".encode("utf-8", "backslashreplace"))
    except BaseException:  # noqa: BLE001 - it goes into the log
        traceback.print_exc()
    finally:
        os._exit(code)  # a forked child must never go on as its parent
