"""What is true of a run now (room: cli; values in, values out): its journal's word, and Slurm's where that is newer.

A journal tells what a supervisor decided; of a job that waits, or that ended with nobody left to write, only Slurm
knows. What is concluded here is written nowhere. Next: ``status_json`` and ``steering``, which go by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.cli.queue_words import Queue, active_words, ended_words, waiting_words, was_cancelled
from gangrun.cli.reading import Reading
from gangrun.core.model import Failure, RunState
from gangrun.core.moves import EXIT_CODES

CANCELLED, FAILED, PENDING = "CANCELLED", "FAILED", "PENDING"
CANCELLED_CODE, FAILED_CODE = 130, 1


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
    if told.ended:
        return told
    if reading.spec.world != "slurm" or reading.queue is None:
        return _unasked(reading, told, now)
    return _in_slurm(reading, reading.queue, told, now)


def _told(state: RunState | None) -> Truth:
    if state is None:
        return Truth(PENDING, "no supervisor has begun yet")
    failure = state.failure.value if state.failure else None
    return Truth(state.phase.value, state.reason, EXIT_CODES.get(state.phase), failure)


def _cancelled(reading: Reading) -> Truth:
    """Ended by the mark alone."""
    by = reading.cancelled.by if reading.cancelled is not None else "nobody"
    if reading.state is None:
        return Truth(CANCELLED, "cancelled before it began", CANCELLED_CODE)
    words = f"cancelled by {by}, and killed before that could be written down"
    return Truth(CANCELLED, words, CANCELLED_CODE)


def _unasked(reading: Reading, told: Truth, now: float) -> Truth:
    abandoned = reading.abandoned(now)
    if reading.cancelled is not None and (abandoned or reading.state is None):
        return _cancelled(reading)
    return Truth(told.state, told.reason, failure=told.failure, abandoned=abandoned)


def _in_slurm(reading: Reading, queue: Queue, told: Truth, now: float) -> Truth:
    run = reading.spec.run
    if queue.silent:
        if reading.state is not None:
            return told
        if reading.cancelled is not None:
            return _cancelled(reading)
        return Truth(PENDING, f"no supervisor has begun yet, and Slurm does not say how its job stands: {queue.silent}")
    if queue.active:
        if reading.state is not None:
            return told
        asked = f"; it is asked to stop by {reading.cancelled.by}" if reading.cancelled is not None else ""
        return Truth(PENDING, f"{active_words(queue.active[-1])}; no supervisor has begun yet{asked}")
    if reading.cancelled is not None:
        return _cancelled(reading)
    if queue.waiting:
        waits = waiting_words(queue.waiting[-1], run)
        return Truth(PENDING, f"{waits}; before that: {told.reason}" if reading.state is not None else waits)
    return _without_jobs(reading, queue, told, now)


def _without_jobs(reading: Reading, queue: Queue, told: Truth, now: float) -> Truth:
    """No job of the run is there or to come, and the journal does not say that it has ended."""
    if queue.stopped:
        return Truth(FAILED, queue.stopped, FAILED_CODE, Failure.SCRIPT.value)
    newest = queue.newest
    if newest is not None and was_cancelled(newest):
        return Truth(CANCELLED, ended_words(newest), CANCELLED_CODE)
    if not reading.abandoned(now):
        return Truth(told.state, "it is being submitted" if reading.state is None else told.reason)
    last = f"{ended_words(newest)}; " if newest is not None else ""
    before = f"; before that: {told.reason}" if reading.state is not None else ""
    return Truth(told.state, f"{last}no job of this run is left{before}", failure=told.failure, abandoned=True)
