"""The owner of a local run: starts the hosts, shows what happens, turns signals into a cancel.

It decides nothing about the run; it reads the journal like any viewer. What it does own is the run's life: Ctrl-C here
cancels, and when this process dies its wardens notice and kill all they have.
"""

from __future__ import annotations

import selectors
import signal
from collections import deque
from dataclasses import dataclass, field

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.hosts import LocalHosts
from gangrun.display.live_view import LiveView
from gangrun.display.observer import Onlooker
from gangrun.launch.stop_signals import Cancelling

LOOK_EVERY_S = 0.1
RESTARTS_MAX = 3  # of one host's warden: something outside kills it
EXIT_GOOD = 0
DRAIN_WITHIN_S = 1.0
LAST_LOOK_WITHIN_S = 5.0
LETS_GO_WITHIN_S = 5.0
EXPLAINED_WITHIN_S = 2.0
NEVER = float("inf")


@dataclass(slots=True)
class Launcher:
    """One ``gangrun run`` (or ``resume``) on this box."""

    paths: RunPaths
    hosts: LocalHosts
    nodes: tuple[str, ...]
    view: LiveView
    disk: Disk = field(default_factory=Disk)
    clock: SystemClock = field(default_factory=SystemClock)
    onlooker: Onlooker = field(init=False)
    urgent: deque[str] = field(default_factory=deque)  # filled from the threads that hear the hosts
    cancelling: Cancelling = field(init=False)
    _removed: bool = False
    _let_go_by: float = NEVER
    _dismissed: bool = False
    _restarts: dict[str, int] = field(default_factory=dict)
    _ended_badly: deque[tuple[float, str]] = field(default_factory=deque)  # until when the run's end may explain it

    def __post_init__(self) -> None:
        """Its eyes are its own."""
        self.onlooker = Onlooker(self.paths, self.disk, self.clock, self.view)
        self.cancelling = Cancelling(
            self.paths, self.disk, self.clock, self.view.say, self.onlooker.state,
            insist=lambda: self.hosts.signal(signal.SIGINT),  # means cancel; of SIGTERM nobody knows what it means
            kill=self._kill, urgent=self.urgent,
        )  # fmt: skip

    def run(self) -> int:
        """Until every warden has gone; the run's exit code."""
        self.onlooker.catch_up()
        wake = self.cancelling.listen()
        self.hosts.open()
        try:
            self.onlooker.start()
            for node in self.nodes:
                self.hosts.start(node)
            with selectors.DefaultSelector() as selector:
                selector.register(wake, selectors.EVENT_READ)
                while self.hosts.running():
                    for _ in selector.select(LOOK_EVERY_S):
                        wake.recv(4096)
                    self.cancelling.turn()
                    self._heed_removal()
                    self._bury()
                    self._tell_bad_ends(self.clock.now())
                    self._dismiss()
        finally:
            self.hosts.close()
            self.hosts.sweep()
            self.hosts.drain(DRAIN_WITHIN_S)
            self.cancelling.say_urgent()
            self.cancelling.keep_mark()
            heard_count = len(self.cancelling.signals)
            if not self.onlooker.leave(LAST_LOOK_WITHIN_S, lambda: len(self.cancelling.signals) > heard_count):
                self.view.say(f"the last lines are missing here: gangrun logs {self.paths.run} shows all there is")
            self._tell_bad_ends(NEVER)
        return self.cancelling.code()

    def _heed_removal(self) -> None:
        if self.onlooker.removed and not self._removed:
            self._removed = True
            self._kill()
            words = f"the run directory {self.paths.root} was removed"
            self.view.say(f"{words}: nothing can be kept or decided any more, killing all ranks")

    def _kill(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):  # two of one kind would be one
            self.hosts.signal(signum)

    def _bury(self) -> None:
        for gone in self.hosts.ended():
            if gone.code == EXIT_GOOD or self.cancelling.signals or self._removed or self.onlooker.ended:
                continue
            count = self._restarts[gone.node] = self._restarts.get(gone.node, 0) + 1
            how = f"signal {signal.Signals(-gone.code).name}" if gone.code < 0 else f"exit code {gone.code}"
            if gone.code > 0 or count > RESTARTS_MAX:
                log = self.hosts.logs[gone.node]
                words = f"the warden of {gone.node} ended ({how}); its last words are in {log}"
                self._ended_badly.append((self.clock.now() + EXPLAINED_WITHIN_S, words))
                continue
            self.view.say(f"the warden of {gone.node} was killed ({how}): starting it again")
            self.hosts.start(gone.node)

    def _tell_bad_ends(self, before: float) -> None:
        """A warden whose run failed ends with the run's own code, mostly before its last record is read here."""
        if self.onlooker.ended:
            self._ended_badly.clear()
        while self._ended_badly and self._ended_badly[0][0] <= before:
            self.view.say(self._ended_badly.popleft()[1])

    def _dismiss(self) -> None:
        """Who joined too late to hear the supervisor's farewell would look for one that is gone: perhaps all did."""
        if not self.onlooker.ended:
            self._let_go_by = NEVER
        elif self._let_go_by == NEVER:
            self._let_go_by = self.clock.now() + LETS_GO_WITHIN_S
        if not self._dismissed and self.clock.now() >= self._let_go_by:
            self._dismissed = True
            self._kill()
