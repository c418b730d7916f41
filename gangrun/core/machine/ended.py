"""Ends that somebody asks for: a cancel, a notice of the scheduler, a signal. And a person who resumes an ended run.

A signal does not say why. If a scheduler can be asked, an agent's "I was told to end" only begins a wait for the
scheduler's answer, which is a ``Notice`` without an origin. No answer in time means: stop. The wait goes on through all
phases (its timer is ``WHY``).
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, StopGang
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import CancelRequested, DeadlinePassed, Event, Notice, NoticeKind, ResumeRequested
from gangrun.core.machine.transitions import (
    WHY,
    enter,
    finish,
    ignored,
    may_hold_ranks,
    stay,
    stop_all,
    with_deadline,
    without_deadline,
)
from gangrun.core.model import TERMINAL, After, Budget, Evidence, Phase, RunState
from gangrun.core.nodes import quarantine
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose

ANSWER_SHARE = 0.5  # of the time until the nodes go; the rest is for the stop
_ENDS_THE_RUN = {NoticeKind.CANCEL: "the scheduler", NoticeKind.UNKNOWN: "a signal"}  # by whom it is cancelled


def cancel_requested(state: RunState, event: CancelRequested, now: float, policy: Policy) -> Decision:
    """Someone asked for the end."""
    return cancel(state, event.by, now, policy)


def cancel(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """Stop in order. In RUNNING a script that asked for it may save first; a second cancel ends every wait."""
    if state.underway.bringing is not None:
        return flush_to_disk.cancel(state, by, now, policy)
    if state.phase is Phase.STOPPING:
        return _cancel_stopping(state, by)
    state = replace(state, ending=replace(state.ending, cancelled_by=by))
    reason = f"cancelled by {by}"
    if not may_hold_ranks(state):
        return finish(state, Phase.CANCELLED, now, reason)
    save = state.phase is Phase.RUNNING
    return stop_all(state, now, policy, After.CANCEL, f"{reason}; stopping all ranks", checkpoint_first=save)


def _cancel_stopping(state: RunState, by: str) -> Decision:
    if state.underway.after is After.CANCEL:
        reason = f"cancelled again by {by}; killing all ranks"
        stop = StopGang(state.attempt.number, 0.0, False, reason)
        return stay(state, reason, stop, loud=True, underway=replace(state.underway, saving=False, hurried=True))
    if state.underway.after is After.SUCCEED:
        return ignored(state, f"cancelled by {by}, but all ranks have finished already")
    reason = f"cancelled by {by} while all ranks were being stopped"
    return stay(
        state,
        reason,
        loud=True,
        underway=replace(state.underway, after=After.CANCEL),
        ending=replace(state.ending, cancelled_by=by),
    )


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The scheduler takes the nodes: save, stop, and go on elsewhere unless the run was cancelled."""
    if state.underway.bringing is not None:
        return flush_to_disk.notice(state, event, now, policy)
    if state.phase is Phase.STOPPING:
        return _notice_stopping(state, event, now, policy)
    goes_on_elsewhere = state.underway.submitting or state.ending.leaving
    if event.kind is not NoticeKind.CANCEL and goes_on_elsewhere and not may_hold_ranks(state):
        return stay(state, f"{event.kind.value} while the next job is being asked for")
    if event.kind in _ENDS_THE_RUN:
        return cancel(state, _ENDS_THE_RUN[event.kind], now, policy)
    if may_hold_ranks(state):
        save = state.phase is Phase.RUNNING
        reason = f"{event.kind.value}: {event.grace_s:.0f} s to {'save and ' if save else ''}stop"
        return stop_all(state, now, policy, _after_notice(event), reason, checkpoint_first=save)
    if event.kind is NoticeKind.REQUEUE:
        return choose.come_back(state, now, policy, event.kind.value)
    return choose.requeue(state, now, policy, event.kind.value)


def _notice_stopping(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The nodes go while all ranks are stopped: what was to be restarted here is requeued."""
    reason = f"{event.kind.value} while all ranks were being stopped"
    if state.underway.after in {After.CANCEL, After.SUCCEED}:
        # Every node's agent passes the same notice on: none hurries.
        return stay(state, reason)
    after = _after_notice(event)
    why_is_known = event.kind is NoticeKind.UNKNOWN and state.underway.after in {After.REQUEUE, After.RETURN}
    if why_is_known or (event.kind is not NoticeKind.CANCEL and state.underway.after is after):
        return stay(state, f"{reason}, which is known")  # what was said of it first tells more
    if event.kind in _ENDS_THE_RUN:
        return cancel(state, _ENDS_THE_RUN[event.kind], now, policy)
    return stay(state, reason, loud=True, underway=replace(state.underway, after=after))


def _after_notice(event: Notice) -> After:
    """Whether the run goes on in the same job, which comes back by itself, or in another."""
    return After.RETURN if event.kind is NoticeKind.REQUEUE else After.REQUEUE


def told_to_end(state: RunState, event: Notice, node: str, now: float) -> Decision:
    """An agent was told to end, and the scheduler is being asked why."""
    if state.phase in TERMINAL or WHY in state.timers.deadlines:
        return ignored(state, f"{node} was told to end too; the scheduler is being asked why")
    state = with_deadline(state, WHY, now + ANSWER_SHARE * event.grace_s)
    return stay(
        state,
        f"{node} was told to end; asking the scheduler why",
        ending=replace(state.ending, gone_at=now + event.grace_s),
    )


def as_meant(state: RunState, event: Event, now: float) -> tuple[RunState, Event]:
    """The event as its handler is to see it: an answer ends the wait for it, and so does its deadline."""
    if isinstance(event, Notice):
        gone_at: float | None = now + event.grace_s
        if event.kind is NoticeKind.UNKNOWN:  # nobody has said that the nodes go: only sooner than was thought
            gone_at = None if state.ending.gone_at is None else min(state.ending.gone_at, now + event.grace_s)
        return replace(without_deadline(state, WHY), ending=replace(state.ending, gone_at=gone_at)), event
    if isinstance(event, DeadlinePassed) and event.name == WHY:
        left_s = max(0.0, state.ending.gone_at - now) if state.ending.gone_at is not None else 0.0
        return without_deadline(state, WHY), Notice(NoticeKind.UNKNOWN, left_s)
    return state, event


def resume_requested(state: RunState, event: ResumeRequested, now: float, policy: Policy) -> Decision:
    """A person takes the run up again: a fresh budget, and exclusions only as long as they last."""
    return enter(
        state,
        Phase.PENDING,
        f"resumed by {event.by}; waiting for nodes",
        deadlines={"join": now + policy.join_within_s},
        ending=replace(state.ending, gone_at=None, failure=None, cancelled_by=""),
        job=event.job,
        seq=max(state.seq, event.seq),
        roster=replace(state.roster, nodes={}, absent={}, waited_for_nodes=False),
        budget=Budget(total_count=state.budget.total_count, mark=state.budget.mark),
        health=replace(
            state.health, suspicion={}, suspected_at={}, excluded=quarantine.kept(state.health.excluded, now)
        ),
        attempt=replace(state.attempt, evidence=Evidence(), finished=frozenset()),
        checkpoints=replace(state.checkpoints, resume_request=event.resume_request),
        tries_count=0,
    )
