"""What is true of a run now: its journal's word, and Slurm's where that is newer.

A journal tells what a supervisor decided; of a job that waits, or that ended with nobody left to write, only Slurm
knows. What is concluded here is written nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.model import EXIT_CODES, RunState
from gangrun.runs.snapshot import Reading

CANCELLED, PENDING = "CANCELLED", "PENDING"
CANCELLED_CODE = 130


@dataclass(frozen=True, slots=True)
class Truth:
    """``state`` as users read it; ``exit_code`` None: the run has not ended."""

    state: str
    reason: str
    exit_code: int | None = None
    failure: str | None = None
    abandoned: bool = False

    @property
    def ended(self) -> bool:
        """Is the run over?"""
        return self.exit_code is not None

    @property
    def over(self) -> bool:
        """Ended, or nobody is left to end it: waiting is in vain."""
        return self.ended or self.abandoned


def truth_of(reading: Reading, now: float) -> Truth:
    """``now`` decides only whether a run that nobody took up counts as abandoned."""
    told = _told(reading.state)
    if reading.resumed:
        told = Truth(PENDING, f"it is asked to go on, and no supervisor has begun yet; before that: {told.reason}")
    if told.ended:
        return told
    if reading.spec.world != "slurm" or reading.queue is None:
        return _unasked(reading, told, now)
    from gangrun.runs.slurm_state import in_slurm

    return in_slurm(reading, reading.queue, told, now)


def _told(state: RunState | None) -> Truth:
    if state is None:
        return Truth(PENDING, "no supervisor has begun yet")
    failure = state.failure.value if state.failure else None
    return Truth(state.phase.value, state.reason, EXIT_CODES.get(state.phase), failure)


def by_the_mark(reading: Reading) -> Truth:
    """Ended by the cancel mark alone."""
    by = reading.cancelled.by if reading.cancelled is not None else "nobody"
    if reading.state is None:
        return Truth(CANCELLED, f"cancelled by {by} before it began", CANCELLED_CODE)
    words = f"cancelled by {by}, and killed before that could be written down"
    return Truth(CANCELLED, words, CANCELLED_CODE)


def _unasked(reading: Reading, told: Truth, now: float) -> Truth:
    abandoned = reading.abandoned(now)
    if reading.cancelled is not None and (abandoned or reading.state is None):
        return by_the_mark(reading)
    return Truth(told.state, told.reason, failure=told.failure, abandoned=abandoned)
