"""What is true of a run on Slurm that its journal does not call ended.

Imported for such runs only.
"""

from __future__ import annotations

from gangrun.core.model import Failure
from gangrun.runs.queue import (
    Queue,
    active_words,
    ended_words,
    failure_before_it_began,
    waiting_words,
    was_cancelled,
)
from gangrun.runs.snapshot import Reading
from gangrun.runs.state import CANCELLED, CANCELLED_CODE, PENDING, Truth, by_the_mark

FAILED, FAILED_CODE = "FAILED", 1


def in_slurm(reading: Reading, queue: Queue, told: Truth, now: float) -> Truth:
    """``told`` is the journal's word; ``now`` as for ``truth_of``."""
    run = reading.spec.run
    if queue.silent:
        if reading.state is not None:
            return told
        if reading.cancelled is not None:
            return by_the_mark(reading)
        return Truth(PENDING, f"no supervisor has begun yet, and Slurm does not say how its job stands: {queue.silent}")
    leaving = reading.state is not None and reading.state.leaving and queue.jobs[-1:] == queue.waiting[-1:]
    if queue.active and not leaving and not _is_lost(queue):
        if reading.state is not None:
            return told
        asked = f"; it is asked to stop by {reading.cancelled.by}" if reading.cancelled is not None else ""
        return Truth(PENDING, f"{active_words(queue.active[-1])}; no supervisor has begun yet{asked}")
    if reading.cancelled is not None:
        return by_the_mark(reading)
    if queue.waiting:
        waits = waiting_words(queue.waiting[-1], run)
        return Truth(PENDING, f"{waits}; before that: {told.reason}" if reading.state is not None else waits)
    return _without_jobs(reading, queue, told, now)


def _is_lost(queue: Queue) -> bool:
    """Is the job that was to go on gone before it began, and does no other do more than end?"""
    newest = queue.newest
    return newest is not None and newest.ended and not newest.began and not queue.busy


def _without_jobs(reading: Reading, queue: Queue, told: Truth, now: float) -> Truth:
    """No job of the run is there or to come, and the journal does not say that it has ended."""
    if queue.stopped:
        return Truth(FAILED, queue.stopped, FAILED_CODE, Failure.SCRIPT.value)
    newest = queue.newest
    if newest is not None and was_cancelled(newest):
        return Truth(CANCELLED, ended_words(newest), CANCELLED_CODE)
    before = f"; before that: {told.reason}" if reading.state is not None else ""
    if newest is not None and (failure := failure_before_it_began(newest)) is not None:
        way_out = f"nothing runs; gangrun resume {reading.spec.run} goes on"
        return Truth(FAILED, f"{ended_words(newest)}; {way_out}{before}", FAILED_CODE, failure.value)
    if not reading.abandoned(now) and not _is_lost(queue):
        return Truth(told.state, "it is being submitted" if reading.state is None else told.reason)
    last = f"{ended_words(newest)}; " if newest is not None else ""
    return Truth(told.state, f"{last}no job of this run is left{before}", failure=told.failure, abandoned=True)
