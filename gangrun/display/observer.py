"""The owner's eyes: reads the journal and the ranks' output and shows them.

Everything here may hang with the run directory, or with a terminal that takes no more; the launcher, which must heed
Ctrl-C at any time, never waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import JournalFollower
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import TERMINAL, RunState
from gangrun.display.live_view import LiveView
from gangrun.ports import Clock
from gangrun.wire.record import Record, state_of
from gangrun.wire.record import apply as apply_patch

ENDS = {phase.value for phase in TERMINAL}
LOOK_EVERY_S = 0.1
GONE_AFTER_S = 10.0  # a run directory that cannot be found for so long was removed, not moved about


@dataclass(slots=True)
class Replayed:
    """The state as the journal tells it, kept up to date record by record."""

    plain: dict[str, object] | None = None

    def feed(self, record: Record) -> None:
        """Take one more record in."""
        if record.kind == "Snapshot":
            self.plain = dict(record.patch)
        elif self.plain is not None and record.patch:
            self.plain = apply_patch(self.plain, record.patch)

    def state(self) -> RunState | None:
        """The whole state; None before the first snapshot."""
        plain = self.plain
        return None if plain is None else state_of(plain)


class Onlooker(threading.Thread):
    """Shows one run until ``leave``; ``state``, ``removed`` and ``ended`` may be asked from any thread."""

    def __init__(self, paths: RunPaths, disk: Disk, clock: Clock, view: LiveView) -> None:
        super().__init__(name="onlooker", daemon=True)
        self._paths, self._disk, self._clock, self._view = paths, disk, clock, view
        self._replayed = Replayed()
        self._follower = JournalFollower(paths, disk)
        self._over = threading.Event()
        self._missing_since: float | None = None
        self._broken = ""
        self.removed = False
        self.ended = False  # before these eyes: one that is taken up again had ended before

    def catch_up(self) -> None:
        """A run that is taken up again has a story already; it is not told twice. Before ``start``."""
        for record in self._follower.poll():
            self._replayed.feed(record)
        state = self._replayed.state()
        if state is not None:
            self._view.pass_over(state)

    def state(self) -> RunState | None:
        """The newest state that could be read."""
        return self._replayed.state()

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
            for record in self._follower.poll():
                self._replayed.feed(record)
                if record.was != record.phase:
                    self.ended = record.phase in ENDS
                self._view.record(record)
            is_behind = self._view.tick(self._replayed.state())
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
        try:
            self._disk.lstat(self._paths.machine)
        except FileNotFoundError:
            since = self._missing_since = self._missing_since or self._clock.now()
            self.removed = self.removed or self._clock.now() >= since + GONE_AFTER_S
        else:
            self._missing_since = None
