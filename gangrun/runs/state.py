"""The state of a run now: its journal's word, and the scheduler's if that is newer.

A journal tells what a supervisor decided. Of a job that waits, or that ended with no supervisor left to write, only
the scheduler knows. What is concluded here is written nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.model import EXIT_CODES, RunState
from gangrun.runs.job_queue import (
    Queue,
    active_words,
    ended_words,
    failure_before_it_began,
    waiting_words,
    was_cancelled,
)
from gangrun.runs.liveness import is_abandoned
from gangrun.runs.snapshot import RunSnapshot

CANCELLED, FAILED, PENDING = "CANCELLED", "FAILED", "PENDING"
CANCELLED_CODE, FAILED_CODE = 130, 1
NOT_BEGUN = "no supervisor has begun yet"


@dataclass(frozen=True, slots=True)
class CurrentState:
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


def run_state(run: RunSnapshot, now: float) -> CurrentState:
    """``now`` decides only whether a run that nobody took up counts as abandoned."""
    told = _journal_state(run.state)
    if run.resumed:
        told = CurrentState(PENDING, f"the run was resumed, and {NOT_BEGUN}; before that: {told.reason}")
    if told.ended:
        return told
    if run.spec.is_scheduled and run.queue is not None:
        return _scheduled_state(run, run.queue, told, now)
    abandoned = is_abandoned(run, now)
    if run.cancelled is not None and (abandoned or run.state is None):
        return _cancelled(run)
    return CurrentState(told.state, told.reason, failure=told.failure, abandoned=abandoned)


def _journal_state(state: RunState | None) -> CurrentState:
    if state is None:
        return CurrentState(PENDING, NOT_BEGUN)
    failure = state.ending.failure.value if state.ending.failure else None
    return CurrentState(state.phase.value, state.reason, EXIT_CODES.get(state.phase), failure)


def _cancelled(run: RunSnapshot) -> CurrentState:
    """Ended by the cancel mark alone."""
    by = run.cancelled.by if run.cancelled is not None else "nobody"
    when = "before it began" if run.state is None else ", and killed before that could be written down"
    return CurrentState(CANCELLED, f"cancelled by {by}{'' if when[0] == ',' else ' '}{when}", CANCELLED_CODE)


def _scheduled_state(run: RunSnapshot, queue: Queue, told: CurrentState, now: float) -> CurrentState:
    """``told`` is the journal's word."""
    if queue.silent:
        if run.state is not None:
            return told
        if run.cancelled is not None:
            return _cancelled(run)
        return CurrentState(PENDING, f"{NOT_BEGUN}, and Slurm does not say how its job stands: {queue.silent}")
    leaving = run.state is not None and run.state.ending.leaving and queue.jobs[-1:] == queue.waiting[-1:]
    if queue.active and not leaving and not _is_lost(queue):
        if run.state is not None:
            return told
        asked = f"; {run.cancelled.by} asked the run to stop" if run.cancelled is not None else ""
        return CurrentState(PENDING, f"{active_words(queue.active[-1])}; {NOT_BEGUN}{asked}")
    if run.cancelled is not None:
        return _cancelled(run)
    if queue.waiting:
        waits = waiting_words(queue.waiting[-1], run.spec.run)
        return CurrentState(PENDING, f"{waits}; before that: {told.reason}" if run.state is not None else waits)
    return _without_jobs(run, queue, told, now)


def _is_lost(queue: Queue) -> bool:
    """Is the job that was to go on gone before it began, and does no other do more than end?"""
    newest = queue.newest
    return newest is not None and newest.ended and not newest.began and not queue.busy


def _without_jobs(run: RunSnapshot, queue: Queue, told: CurrentState, now: float) -> CurrentState:
    """No job of the run is there or to come, and the journal does not say that it has ended."""
    if queue.stopped:
        return CurrentState(FAILED, queue.stopped, FAILED_CODE, queue.stopped_by.value)
    newest = queue.newest
    if newest is not None and was_cancelled(newest):
        return CurrentState(CANCELLED, ended_words(newest), CANCELLED_CODE)
    before = f"; before that: {told.reason}" if run.state is not None else ""
    if newest is not None and (failure := failure_before_it_began(newest)) is not None:
        way_out = f"nothing runs now; gangrun resume {run.spec.run} continues the run"
        return CurrentState(FAILED, f"{ended_words(newest)}; {way_out}{before}", FAILED_CODE, failure.value)
    if not is_abandoned(run, now) and not _is_lost(queue):
        return CurrentState(told.state, "it is being submitted" if run.state is None else told.reason)
    last = f"{ended_words(newest)}; " if newest is not None else ""
    return CurrentState(told.state, f"{last}no job of this run is left{before}", failure=told.failure, abandoned=True)
