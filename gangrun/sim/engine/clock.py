"""Time that jumps.

``Timeline`` is the world's one heap: what is due next runs next, and time is wherever that is. ``NodeClock`` is what a
simulated host takes for CLOCK_BOOTTIME and for wall time: it may drift, stop with its virtual machine, or be set wrong.
A blocking call of a simulated process is a nested ``run_until``: the world goes on around it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]
ROUNDING_S = 1e-6  # so that whoever sleeps until an instant finds on waking that it has come
EPOCH_S = 1_800_000_000.0  # wall time at the start of every simulated world


class Scheduled:
    """One thing that is due; ``cancel`` leaves it in the heap, where it does nothing."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Action) -> None:
        """Due at ``when``."""
        self.when = when
        self.action: Action | None = action

    def cancel(self) -> None:
        """It will not run."""
        self.action = None


class Timeline:
    """Everything that is yet to happen, in order of time, then of being asked for."""

    def __init__(self) -> None:
        """At time 0 nothing is due."""
        self.now = 0.0
        self.events_count = 0
        self.stopped = False  # set by whoever knows that nothing more will happen
        self._order = 0
        self._heap: list[tuple[float, int, Scheduled]] = []

    def at(self, when: float, action: Action) -> Scheduled:
        """Run ``action`` at ``when``, or next if that is past."""
        entry = Scheduled(max(when, self.now), action)
        self._order += 1
        heapq.heappush(self._heap, (entry.when, self._order, entry))
        return entry

    def after(self, delay_s: float, action: Action) -> Scheduled:
        """Run ``action`` that many seconds from now."""
        return self.at(self.now + delay_s, action)

    def run_until(self, until: float) -> None:
        """Let everything happen that is due up to ``until``, or until somebody says ``stop``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if self.stopped:
                return
            when, _, entry = heapq.heappop(heap)
            action = entry.action
            if action is None:
                continue
            entry.action = None
            self.now = max(self.now, when)  # a nested run may already have gone further
            self.events_count += 1
            action()
        if not self.stopped and until > self.now and until != math.inf:
            self.now = until


class NodeClock:
    """One host's clocks as functions of the world's time; both can be told to go wrong."""

    __slots__ = ("_boot", "_true", "rate", "stood_s", "stopped", "wall_offset_s")

    def __init__(self, boot_s: float, rate: float = 1.0) -> None:
        """A host that was booted ``boot_s`` seconds before the world began."""
        self._true = 0.0
        self._boot = boot_s
        self.rate = rate
        self.stopped = False
        self.stood_s = 0.0  # since the boot, as somebody outside would have measured it
        self.wall_offset_s = 0.0

    def boot(self, now: float) -> float:
        """CLOCK_BOOTTIME when the world's time is ``now``."""
        return self._boot if self.stopped else self._boot + (now - self._true) * self.rate

    def wall(self, now: float) -> float:
        """CLOCK_REALTIME when the world's time is ``now``."""
        return EPOCH_S + now + self.wall_offset_s

    def when(self, boot: float) -> float:
        """The world's time at which CLOCK_BOOTTIME gets to ``boot``, as things are; infinite while it stands."""
        if self.stopped or boot == math.inf:
            return math.inf
        return self._true + (boot - self._boot) / self.rate + ROUNDING_S

    def change_rate(self, now: float, rate: float) -> None:
        """Drift: from now on it runs at ``rate``."""
        self.stood_s += now - self._true if self.stopped else 0.0
        self._boot, self._true, self.rate = self.boot(now), now, rate

    def stop(self, now: float) -> None:
        """The virtual machine is paused: its clock stands."""
        self._boot, self._true, self.stopped = self.boot(now), now, True

    def go_on(self, now: float) -> None:
        """The virtual machine goes on where it stood."""
        self.stood_s += now - self._true
        self._true, self.stopped = now, False

    def restart(self, now: float) -> None:
        """A reboot: CLOCK_BOOTTIME begins again."""
        self._boot, self._true, self.stopped, self.stood_s = 1.0, now, False, 0.0
