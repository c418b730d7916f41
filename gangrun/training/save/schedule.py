"""When to save, agreed by all ranks without a word at most steps, and whether the last step still has to be.

Steps are counted alike everywhere, so "every N steps" needs no talk. Time, requests and stops are seen by each rank
at a moment of its own; so the ranks meet at agreed steps, about once a second, and do together what any of them has
seen.

A run that begins anew and saves at the measured optimum saves once after its first step: an early failure then loses
nothing, and what a save costs is known from there on.

At the end nothing is saved while an error is under way: the state may be of half a step, and the other ranks are
elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gangrun.planning.cadence import STALL_GUESS_S, Cadence, cadence, expected_mtbf_s, observed_mtbf_s
from gangrun.ports import Clock
from gangrun.training.ranks import RankGone, RankGroup, ScriptCall

MEET_EVERY_S = 1.0
MEET_STEPS_MAX_COUNT = 100  # should steps grow a thousandfold slower, ranks still meet within them
_PERSIST_GUESS_S = 5.0


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks do after this step. ``asked``: somebody waits for the save."""

    save: bool = False
    asked: bool = False
    stop: bool = False


NOTHING = Agreed()


@dataclass(frozen=True, slots=True)
class Every:
    """How often to save: after so many steps, or after so many seconds; neither: at the measured optimum ("auto")."""

    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FailuresSeen:
    """What this run has to learn its time between failures from, beside the time that it trained."""

    count: int
    nodes_count: int


class Schedule:
    """When to save ``every`` so often; None: only when asked."""

    def __init__(
        self,
        every: Every | None,
        ranks: RankGroup,
        clock: Clock,
        seen: FailuresSeen,
        *,
        mtbf_s: float | None,
        early: bool = True,
    ) -> None:
        """``mtbf_s``: what the user knows of the machine; otherwise it is learnt from the failures ``seen``. ``early``:
        with "auto", the first save is at once.
        """
        self._is_early = early and every == Every()
        self._every = every
        self._ranks, self._clock = ranks, clock
        self._seen, self._mtbf_s = seen, mtbf_s
        self.stall_s, self.persist_s = STALL_GUESS_S, _PERSIST_GUESS_S
        self.trained_before_s = self.stalled_s = 0.0
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
        if self._every is None:
            return Cadence(0.0, "only when asked: gangrun writes checkpoints from the nodes' memory to the disk")
        if self._every == Every():
            prior_s = expected_mtbf_s(self._seen.nodes_count)
            mtbf_s = self._mtbf_s or observed_mtbf_s(self.trained_s, self._seen.count, prior_s)
            return cadence(self.stall_s, self.persist_s, mtbf_s)
        if self._every.steps:
            return Cadence(float(self._every.steps), f"every {self._every.steps} steps, as asked")
        return Cadence(self._every.seconds, f"every {self._every.seconds:g} s, as asked")

    def after(self, step: int, *, asked: bool, stop: bool) -> Agreed:
        """What to do after this step; called by all ranks for the same steps."""
        self._steps_count += 1
        steps_count = 0 if self._every is None else self._every.steps
        by_count = bool(steps_count) and (step + 1) % steps_count == 0
        if self._steps_count < self._meet_at:
            return Agreed(save=True) if by_count else NOTHING
        now = self._clock.now()
        timed = self._every is not None and not steps_count
        by_time = timed and (self._is_early or now - self._last_save >= self.plan.interval_s)
        any_asked, any_stop, due, gap = self._ranks.largest(
            int(asked), int(stop), *((int(by_time), self._gap(now)) if self._ranks.rank == 0 else (0, 0))
        )
        self._meet_at, self._last_met = self._steps_count + gap, now
        return Agreed(bool(any_asked or due or by_count), bool(any_asked), bool(any_stop))

    def saved(self, stall_s: float) -> None:
        """A save was taken; training stood still for so long."""
        self.stall_s = stall_s
        self.stalled_s += stall_s
        self._last_save = self._clock.now()
        self._is_early = False

    def resumed(self, trained_s: float) -> None:
        """Training goes on from a checkpoint, before which it took so long."""
        self.trained_before_s = trained_s
        self._is_early = False

    def _gap(self, now: float) -> int:
        """Steps until the ranks meet again: about a second's, at most twice as many as the last time."""
        gap_before = max(1, self._steps_count - self._met_at_count)
        step_s = max(1e-6, (now - self._last_met) / gap_before)
        self._met_at_count = self._steps_count
        return max(1, min(int(MEET_EVERY_S / step_s), 2 * gap_before, MEET_STEPS_MAX_COUNT))


class Steps:
    """Of one Checkpointer; -1: none yet."""

    def __init__(self) -> None:
        self.last = self.resumed = -1  # training has done this one; it came from that one
        self._called = self._begun = self._committed = -1

    def resumed_from(self, step: int) -> None:
        """Training goes on after this one, which is on disk."""
        self.last = self.resumed = self._called = self._begun = self._committed = step

    def save_called(self, step: int) -> None:
        """The script, or the schedule, wants this one saved."""
        self._called = max(self._called, step)

    def save_begun(self, step: int) -> None:
        """It is on its way to the disk."""
        self._begun = step

    def save_ended(self, step: int, *, committed: bool) -> None:
        """It is on disk, or not."""
        if committed:
            self._committed = max(self._committed, step)
        elif step == self._begun:
            self._begun = -1

    def is_saved(self, step: int) -> bool:
        """Whether this one is on disk or on its way: what would be saved now may be of a later moment."""
        return step in (self._begun, self._committed)

    @property
    def last_is_unsaved(self) -> bool:
        """Whether the end has to save the last step: nothing as new is on disk or on its way, and the script did not
        want a newer one saved, since the state is that one's.
        """
        return self.last > self._committed and self.last >= self._called and self.last != self._begun


class LastSave:
    """Of one Checkpointer. An error that is being handled as this is made is none of its training's."""

    def __init__(self, ranks: RankGroup, name: str) -> None:
        """``name``: of this one alone."""
        self._ranks = ranks
        self._mark = f"gangrun: before {name}"
        if (error := sys.exc_info()[1]) is not None:
            vars(error)[self._mark] = True  # held instead it would keep its frames and all that they hold, as a model

    def hindered(self, step: int) -> str:
        """Why ``step`` cannot be saved by whoever calls this: an error is under way, as in a ``finally``, or is being
        handled; "" where none is.
        """
        error = sys.exc_info()[1]
        if error is None or self._mark in vars(error):
            return ""
        return (
            f"step {step}, the last one, is not saved: close() was called while {type(error).__name__} is under way or "
            "being handled; call it after the except block"
        )

    def agreed(self, step: int, *, unsaved: bool) -> tuple[bool, str]:
        """Whether all ranks save ``step`` now, and why they cannot; called by all of them, which know alike what is
        saved.
        """
        self._ranks.called(ScriptCall.CLOSE, step)
        try:
            last, first, any_unsaved = self._ranks.largest(step, -step, int(unsaved))
        except RankGone as gone:
            return False, f"step {step}, the last one, was not saved: {gone}"
        if any_unsaved and last != -first:
            return False, f"no last step was saved: one rank ended after step {-first} and another after step {last}"
        return bool(any_unsaved), ""
