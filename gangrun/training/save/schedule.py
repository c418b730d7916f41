"""When to save, agreed by all ranks without a word at most steps.

Steps are counted alike everywhere, so "every N steps" needs no talk. Time, requests and stops are seen by each rank
at a moment of its own; so the ranks meet at agreed steps, about once a second, and do together what any of them has
seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.checkpoints.cadence import Cadence, cadence, observed_mtbf_s
from gangrun.training.clock import Clock
from gangrun.training.ranks import Ranks

MEET_EVERY_S = 1.0
MEET_STEPS_MAX_COUNT = 100  # should steps grow a thousandfold slower, ranks still meet within them
_STALL_GUESS_S = 1.0
_PERSIST_GUESS_S = 5.0


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks do after this step. ``asked``: somebody waits for the save."""

    save: bool = False
    asked: bool = False
    stop: bool = False


NOTHING = Agreed()


class Schedule:
    """``interval``: "auto", a whole number of steps, or seconds as a float; None: only when asked."""

    def __init__(
        self, interval: str | float | None, ranks: Ranks, clock: Clock, *, failures_count: int, mtbf_s: float | None
    ) -> None:
        """``mtbf_s``: what the user knows of the machine; otherwise it is learnt from ``failures_count``."""
        self._interval: str | float | int | None = interval
        self._ranks, self._clock = ranks, clock
        self._timed = not (interval is None or isinstance(interval, int))
        self._failures_count, self._mtbf_s = failures_count, mtbf_s
        self.stall_s, self.persist_s = _STALL_GUESS_S, _PERSIST_GUESS_S
        self.trained_before_s = 0.0
        self._began = self._last_save = self._last_met = clock.now()
        self._steps_count = 0
        self._met_at_count = 0
        self._meet_at = 1

    @property
    def trained_s(self) -> float:
        """Seconds that the run has trained, over all attempts that were saved."""
        return self.trained_before_s + self._clock.now() - self._began

    @property
    def plan(self) -> Cadence:
        """The interval in seconds as things stand, and why; of steps only the reason is meant."""
        if isinstance(self._interval, str):
            mtbf_s = self._mtbf_s or observed_mtbf_s(self.trained_s, self._failures_count)
            return cadence(self.stall_s, self.persist_s, mtbf_s)
        if self._interval is None:
            return Cadence(0.0, "only when asked: what is in the nodes' memory is brought to the disk by gangrun")
        unit = "steps" if isinstance(self._interval, int) else "s"
        return Cadence(float(self._interval), f"every {self._interval} {unit}, as asked")

    def after(self, step: int, *, asked: bool, stop: bool) -> Agreed:
        """What to do after this step; called by all ranks for the same steps."""
        self._steps_count += 1
        by_count = isinstance(self._interval, int) and (step + 1) % self._interval == 0
        if self._steps_count < self._meet_at:
            return Agreed(save=True) if by_count else NOTHING
        now = self._clock.now()
        by_time = self._timed and now - self._last_save >= self.plan.interval_s
        any_asked, any_stop, due, gap = self._ranks.largest(
            int(asked), int(stop), *((int(by_time), self._gap(now)) if self._ranks.rank == 0 else (0, 0))
        )
        self._meet_at, self._last_met = self._steps_count + gap, now
        return Agreed(bool(any_asked or due or by_count), bool(any_asked), bool(any_stop))

    def saved(self, stall_s: float) -> None:
        """A save was taken; training stood still for so long."""
        self.stall_s = stall_s
        self._last_save = self._clock.now()

    def _gap(self, now: float) -> int:
        """Steps until the ranks meet again: about a second's, at most twice as many as the last time."""
        gap_before = max(1, self._steps_count - self._met_at_count)
        step_s = max(1e-6, (now - self._last_met) / gap_before)
        self._met_at_count = self._steps_count
        return max(1, min(int(MEET_EVERY_S / step_s), 2 * gap_before, MEET_STEPS_MAX_COUNT))
