"""The supervisor that this agent asked its warden for, and when it may ask for another.

One at a time; what became of each decides how long the next has to wait: 1, 2, 4 .. 64 s after one that failed, counted
apart for those with promises and those that watch.
"""

from __future__ import annotations

from gangrun.agent.brain import effects
from gangrun.agent.brain.effects import Effect
from gangrun.core.policy import Timing
from gangrun.core.protocol.takeover import backoff_s

DEPOSED = 75  # exit code of a supervisor that lost its term
REFUSED = 78  # ... that cannot use the journal: a person must look
ENDED = 0  # ... that saw to the end of the job, and was gone before this agent heard of it
ENDED_FIRST = 2  # how many steps of the back-off are left out then
DEPOSED_MAX = 7  # in a row, over two minutes, with nobody of this job in sight: the run is not this job's
REFUSALS_MAX = 5  # in a row on one node: no other supervisor will fare better
NEVER = float("inf")


class AskedSupervisor:
    """At most one that is on its way."""

    def __init__(self, timing: Timing) -> None:
        self.spawning = False
        self.term = 0  # which it is to claim at least
        self.refusals_count = self.deposed_count = self.watch_failures_count = 0
        self.not_before = self.watch_not_before = 0.0  # the latter for one without promises
        self._failures_count = self._ended_count = 0
        self._timing = timing
        self._watching = False  # it has no promises
        self._asked_at = NEVER

    def ask(self, term_min: int, promises: tuple[str, ...], now: float) -> list[Effect]:
        """One for this term or a later one, unless one is on its way, or it is too early."""
        if self.spawning and not (promises and self._watching):
            return []
        if now < (self.not_before if promises else self.watch_not_before):
            return []
        if self.spawning:  # only a term above the one that the watching one wants lets a warden start another beside it
            term_min = max(term_min, self.term + 1)
        self.spawning, self._watching = True, not promises
        self._asked_at, self.term = now, term_min
        return [effects.SpawnSupervisor(term_min, promises, now)]

    def is_stuck(self, now: float) -> bool:
        """Has it claimed nothing for longer than any file system may take?"""
        return self.spawning and now >= self._asked_at + self._timing.counter_still_s

    def answered(self) -> None:
        """A newer term is there."""
        self.spawning = False
        self.deposed_count = self._failures_count = 0

    def exited(self, code: int, term_min: int, now: float) -> None:
        """It, or one that served, is gone."""
        if term_min >= self.term:
            self.refused(now)
        self.refusals_count += code == REFUSED
        self.deposed_count += code == DEPOSED
        if code == ENDED:  # whatever acked us meanwhile: another will find the same
            self._ended_count += 1
            self.not_before = self.watch_not_before = now + backoff_s(self._ended_count + ENDED_FIRST)

    @property
    def unwanted(self) -> bool:
        """No supervisor of this job gets a term, and there is none."""
        return self.deposed_count >= DEPOSED_MAX

    @property
    def hopeless(self) -> bool:
        """No supervisor can go on from what the journal says."""
        return self.refusals_count >= REFUSALS_MAX

    def refused(self, now: float) -> None:
        """It never came to be; the next one waits longer."""
        if not self.spawning:
            return
        self.spawning = False
        if self._watching:
            self.watch_failures_count += 1
            self.watch_not_before = now + backoff_s(self.watch_failures_count)
        else:
            self._failures_count += 1
            self.not_before = now + backoff_s(self._failures_count)
