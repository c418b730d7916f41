"""A simulated process: it may be killed or paused at any boundary.

Code of ours that runs in it is ordinary synchronous code. Where it touches the world it crosses a ``boundary``: there a
plan may kill it (``ProcessKilled`` unwinds it) or pause it (the world runs on, nested, until it wakes).
"""

from __future__ import annotations

from collections.abc import Callable

from gangrun.sim.engine.clock import Timeline

Probe = Callable[["SimProcess", str], None]


class ProcessKilled(BaseException):
    """SIGKILL, as seen from inside; not an Exception, so that no handler of ours can catch it by accident."""


class SimProcess:
    """One process of ours on one node."""

    def __init__(self, timeline: Timeline, name: str, pid: int) -> None:
        """It lives."""
        self.timeline = timeline
        self.name = name
        self.pid = pid
        self.start_ticks = int(timeline.now * 100)
        self.alive = True
        self.paused_until = 0.0
        self.probe: Probe | None = None  # sees every boundary; may kill or pause
        self._on_wake: list[Callable[[], None]] = []

    @property
    def awake(self) -> bool:
        """It can run code now."""
        return self.alive and self.timeline.now >= self.paused_until

    def pause(self, for_s: float) -> None:
        """SIGSTOP now, SIGCONT later."""
        until = self.timeline.now + for_s
        if until > self.paused_until:
            self.paused_until = until
            self.timeline.at(until, self._woken)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self._on_wake.clear()

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run ``action`` now, or as soon as it is awake, or never if it dies before."""
        if self.awake:
            action()
        elif self.alive:
            self._on_wake.append(action)

    def _woken(self) -> None:
        if not self.awake:
            return
        waiting, self._on_wake = self._on_wake, []
        for action in waiting:
            self.when_awake(action)

    def boundary(self, label: str) -> None:
        """A place where the process may be killed or paused: it goes on only if it lives and is awake."""
        if self.probe is not None:
            self.probe(self, label)
        while self.alive and self.timeline.now < self.paused_until:
            self.timeline.run_until(self.paused_until)
        if not self.alive:
            raise ProcessKilled(f"{self.name} was killed at {label}")

    def wait_until(self, when: float) -> None:
        """Block until ``when``; the world goes on meanwhile."""
        if when > self.timeline.now:
            self.timeline.run_until(when)
        self.boundary("after a wait")
