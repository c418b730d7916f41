"""Does a run live? One answer for all who ask.

The snapshot of a run has the facts: the journal's last word, whether the owner's process is there, and the run's jobs,
if the scheduler was asked. What follows from them is concluded here and nowhere else.
"""

from __future__ import annotations

from enum import Enum

from gangrun.core.model import TERMINAL
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.times import UNCLAIMED_FOR_S


class RunLiveness(Enum):
    """Whether a run lives, as far as this host can tell."""

    ENDED = "ended"  # the journal says so, and nobody has asked it to go on
    ALIVE = "alive"  # its owner's process is there, or a job of it has nodes
    QUEUED = "queued"  # a job of it waits in the queue
    UNCLAIMED = "unclaimed"  # it was made just now, and nobody has taken it up yet
    UNKNOWN = "unknown"  # its owner is on another host, or the scheduler does not answer or was not asked
    ABANDONED = "abandoned"  # it has not ended, and nobody is left to end it


def liveness_of(run: RunSnapshot, now: float) -> RunLiveness:
    """``now`` (wall clock) decides only whether a run that nobody took up counts as abandoned."""
    if run.ended:
        return RunLiveness.ENDED
    if run.owner_alive:
        return RunLiveness.ALIVE
    is_new = now - run.spec.created_wall <= UNCLAIMED_FOR_S
    if run.spec.is_scheduled:
        queue = run.queue
        if queue is None or queue.silent:
            return RunLiveness.UNKNOWN
        if queue.waiting or queue.active:
            return RunLiveness.ALIVE if queue.active else RunLiveness.QUEUED
        return RunLiveness.UNCLAIMED if is_new and not queue.jobs else RunLiveness.ABANDONED
    if run.owner is None:
        return RunLiveness.UNCLAIMED if is_new else RunLiveness.ABANDONED
    return RunLiveness.UNKNOWN if run.owner_alive is None else RunLiveness.ABANDONED


def is_abandoned(run: RunSnapshot, now: float) -> bool:
    """Not over, and nobody is left to end it."""
    return liveness_of(run, now) is RunLiveness.ABANDONED


def begins(run: RunSnapshot) -> bool:
    """Has a job claimed its place whose supervisor has not written to the journal yet?"""
    owner, state = run.owner, run.state
    if owner is None or state is None:
        return owner is not None
    return owner.seq > state.seq or (owner.seq == state.seq and owner.token != state.job)


def lives_now(run: RunSnapshot) -> bool | None:
    """Does it do anything at this moment? None: only what it writes can tell. The scheduler need not be asked."""
    if not begins(run) and (run.state is None or run.state.phase in TERMINAL):
        return False  # it waits in a queue, or has ended
    if run.owner is not None and run.paths.setup_failed(run.owner.seq).exists():
        return False  # its job started nothing, and said so
    return run.owner_alive
