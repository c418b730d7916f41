"""The owner of a local run: starts the hosts, shows what happens, turns signals into a cancel (room: cli).

It decides nothing about the run; it reads the journal like any viewer. What it does own is the run's life: Ctrl-C here
cancels, and when this process dies its wardens notice and kill all they have.
"""

from __future__ import annotations

import selectors
import signal
import socket
import threading
from collections import deque
from dataclasses import dataclass, field

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, mark_cancelled
from gangrun.adapters.local.hosts import LocalHosts
from gangrun.cli.live_view import LiveView
from gangrun.cli.onlooker import Onlooker
from gangrun.core.model import TERMINAL, Phase

LOOK_EVERY_S = 0.1
RESTARTS_MAX = 3  # of one host's warden: something outside kills it
EXIT_GOOD = 0
HEEDED_WITHIN_S = 15.0  # a takeover and more
DRAIN_WITHIN_S = 1.0
MARKED_WITHIN_S = 2.0  # a disk that takes longer stands still
LAST_LOOK_WITHIN_S = 5.0
LETS_GO_WITHIN_S = 5.0


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
    signals: list[int] = field(default_factory=list)
    urgent: deque[str] = field(default_factory=deque)  # filled from the threads that hear the hosts
    _handled_count: int = 0
    _insist_at: float | None = None
    _marked_by: float = 0.0
    _by_signal: bool = False  # it was a signal to this process that cancelled the run, not a person elsewhere
    _removed: bool = False
    _let_go_by: float | None = None
    _marking: threading.Thread | None = None
    _restarts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Its eyes are its own."""
        self.onlooker = Onlooker(self.paths, self.disk, self.clock, self.view)

    def run(self) -> int:
        """Until every warden has gone; the run's exit code."""
        self.onlooker.catch_up()
        wake = self._listen()
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
                    self._say_urgent()
                    self._heed_signals()
                    self._insist()
                    self._heed_removal()
                    self._bury()
                    self._dismiss()
        finally:
            self.hosts.close()
            self.hosts.sweep()
            self.hosts.drain(DRAIN_WITHIN_S)
            self._say_urgent()
            if not self.onlooker.leave(LAST_LOOK_WITHIN_S):
                self.view.say(f"{self.paths.root} does not answer: the last lines are missing here")
        return self._code()

    def _listen(self) -> socket.socket:
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        self._keep = wake_write
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, lambda number, _frame: self.signals.append(number))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return wake_read

    _keep: socket.socket | None = None

    def _say_urgent(self) -> None:
        """What cannot wait until the journal tells it."""
        while self.urgent:
            self.view.say(self.urgent.popleft())

    def _heed_signals(self) -> None:
        while self._handled_count < len(self.signals):
            name = signal.Signals(self.signals[self._handled_count]).name
            self._handled_count += 1
            if self._handled_count == 1:
                by = "Ctrl-C" if name == "SIGINT" else name
                self._by_signal = name != "SIGINT"
                self._insist_at = self.clock.now() + HEEDED_WITHIN_S
                self._marked_by = self.clock.now() + MARKED_WITHIN_S
                self._marking = threading.Thread(target=self._mark, args=(by,), name="cancel mark", daemon=True)
                self._marking.start()
                self.view.say(f"{by}: stopping all ranks in order; once more to kill them")
            else:
                self._kill()
                self.view.say(f"{name} again: killing all ranks")

    def _mark(self, by: str) -> None:
        """The supervisor watches for this mark; agents are told only if it does not heed it (``_insist``)."""
        try:
            first = mark_cancelled(self.disk, self.paths, by, self.clock.wall())
        except OSError as error:
            self.urgent.append(f"the cancel cannot be written down ({error.strerror or error}); telling every agent")
            self._insist_at = self.clock.now()
        else:
            self._by_signal = self._by_signal and first

    def _insist(self) -> None:
        if self._insist_at is None:
            return
        stuck = self._marking is not None and self._marking.is_alive() and self.clock.now() >= self._marked_by
        if not stuck and self.clock.now() < self._insist_at:
            return
        self._insist_at = None
        state = self.onlooker.state()
        if state is None or state.phase not in {Phase.STOPPING, *TERMINAL}:
            self.view.say("no supervisor heeds the cancel: telling every agent")
            self.hosts.signal(signal.SIGINT)  # which means cancel; of SIGTERM nobody knows what it means

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
            if self._let_go_by is None and self._ended():
                self._let_go_by = self.clock.now() + LETS_GO_WITHIN_S
            if gone.code == EXIT_GOOD or self.signals or self._removed or self._ended():
                continue
            count = self._restarts[gone.node] = self._restarts.get(gone.node, 0) + 1
            how = f"signal {signal.Signals(-gone.code).name}" if gone.code < 0 else f"exit code {gone.code}"
            if gone.code > 0 or count > RESTARTS_MAX:
                log = self.hosts.logs[gone.node]
                self.view.say(f"the warden of {gone.node} ended ({how}); its last words are in {log}")
                continue
            self.view.say(f"the warden of {gone.node} was killed ({how}): starting it again")
            self.hosts.start(gone.node)

    def _dismiss(self) -> None:
        """Who joined too late to hear the supervisor's farewell would look for one that is gone."""
        if self._let_go_by is not None and self.clock.now() >= self._let_go_by:
            self._let_go_by = None
            self._kill()

    def _ended(self) -> bool:
        state = self.onlooker.state()
        return state is not None and state.phase in TERMINAL

    def _code(self) -> int:
        state = self.onlooker.state()
        phase = state.phase.value if state else ""
        if phase == "SUCCEEDED":
            return 0
        if phase == "CANCELLED" or (phase not in {"FAILED", "SUCCEEDED"} and self.signals):
            return 143 if self._by_signal else 130
        return 1
