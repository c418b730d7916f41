"""WAITING: a back-off, storage, nodes that may come back, the next job, or memory that is written to the disk.

Every wait has a timer: ``backoff``, ``nodes``, ``submit``, ``bring`` (see ``flush_to_disk``).
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, SubmitSuccessor
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import ActDone, ActFailed, ActUnknown, DeadlinePassed
from gangrun.core.machine.transitions import finish, refused, stay, with_deadline
from gangrun.core.model import Failure, Phase, RunState
from gangrun.core.nodes import placement
from gangrun.core.nodeset import NAMED_MAX_COUNT, fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose

LOOK_AGAIN_S = 30.0  # a job that was made although the request timed out shows in the queue by then


def deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """One of the timers above."""
    match event.name:
        case flush_to_disk.TIMER:
            return flush_to_disk.time_is_up(state, now, policy)
        case "submit":
            return _submit_again(state, now, policy)
        case "nodes":
            return choose.begin_checks(state, now, policy, "no node came back in time")
        case _:
            return choose.begin_checks(state, now, policy, "the wait is over")


def go_on_if_enough(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """A node is here or back, which may be what the run waits for."""
    if "nodes" not in state.timers.deadlines:
        return stay(state, reason)
    needed, here = state.shape.nodes_min_count, sum(not node.away for node in state.roster.nodes.values())
    if here < needed and len(state.roster.nodes) > NAMED_MAX_COUNT:
        # Of thousands that fall silent together each comes back with an event of its own: each must cost little.
        return stay(state, f"{reason}; {here} of {needed} nodes that are needed are here")
    placed = placement.place_now(state, now, anew=True)
    if isinstance(placed, placement.NotEnough):
        return stay(state, f"{reason}; {placed.why}")
    return choose.begin_checks(state, now, policy, reason)


def submitted(state: RunState, event: ActDone, now: float, policy: Policy) -> Decision:
    """The successor is in the queue: this job may end."""
    if not _waits_for(state, event.what):
        return refused(state, f"gangrun no longer waits for {event.what}")
    back = f"; {fold(event.booted)} has rebooted; if it is in that job, it is tested first" if event.booted else ""
    if event.same_job:
        return choose.come_back(state, now, policy, f"{state.reason}{back}")
    reason = f"the next job of this run is submitted; this one ends{back}"
    return choose.leave(replace(state, seq=state.seq + 1), now, policy, reason)


def not_submitted(state: RunState, event: ActFailed | ActUnknown, now: float, policy: Policy) -> Decision:
    """Refused, or unknown: try again with growing pauses, then stop with the scheduler's words.

    A timeout is not a no: the performer looks the job up by its comment before it asks again.
    """
    if not _waits_for(state, event.what):
        return refused(state, f"gangrun no longer waits for {event.what}")
    unknown = isinstance(event, ActUnknown)
    what = "it is not known whether the scheduler took" if unknown else "the scheduler refused"
    wait_s = _ask_again_in_s(state, policy)
    if wait_s > policy.waiting_max_s:
        reason = f"{what} the next job: {event.why}; gangrun asked {state.tries_count} times"
        return finish(state, Phase.FAILED, now, reason, Failure.SCHEDULER)
    wait_s = max(LOOK_AGAIN_S, wait_s) if unknown else wait_s
    reason = f"{what} the next job: {event.why}; asking again in {wait_s:.0f} s"
    return stay(with_deadline(state, "submit", now + wait_s), reason, loud=True)


def _submit_again(state: RunState, now: float, policy: Policy) -> Decision:
    """Ask again, at most so often that even a scheduler that never answers ends the wait."""
    if _ask_again_in_s(state, policy) > policy.waiting_max_s:
        reason = (
            f"the scheduler did not answer in {policy.waiting_max_s:.0f} s; gangrun asked {state.tries_count} times"
        )
        return finish(state, Phase.FAILED, now, reason, Failure.SCHEDULER)
    action = choose.successor(state, now, state.reason)
    state = with_deadline(state, "submit", now + policy.waiting_max_s)
    return stay(state, "asking the scheduler again", action, tries_count=state.tries_count + 1)


def _waits_for(state: RunState, what: str) -> bool:
    return state.underway.submitting and what == SubmitSuccessor.__name__


def _ask_again_in_s(state: RunState, policy: Policy) -> float:
    """Twice as long each time; over ``waiting_max_s`` means that it was asked often enough."""
    return policy.backoff_first_s * 2.0 ** min(state.tries_count, 60)
