"""Before a job ends, the newest step in its nodes' memory is brought to the disk.

A job's end takes its memory along. So an end, or asking for the next job, waits in WAITING while nodes write what is
newer there than on disk: within the time until the scheduler takes the nodes, and in any case not for ever. What was
decided stands in ``state.underway.bringing`` and is done afterwards, whatever became of it. A run that succeeded left
what it wanted to leave; who cancels twice waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangrun.core.actions import BringSteps, Decision, EndJob, SubmitSuccessor
from gangrun.core.checkpoints.memory import offered, with_fewer_copies
from gangrun.core.events import FlushDue, Notice, NoticeKind, StepBrought, StepHeld
from gangrun.core.machine.transitions import LEAVE_S, LEAVE_SHARE_MAX, enter, finish, ignored, stay, with_deadline
from gangrun.core.model import TERMINAL, Bringing, MemoryStep, Outcome, Phase, RunState, Underway
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose

END_WITHIN_S = 900.0  # where nobody takes the nodes away: as long as before an attempt
LEAST_S = 1.0  # nothing is begun for less
TIMER = "bring"


def first(before: RunState, decision: Decision, now: float, policy: Policy) -> Decision:
    """The decision as it is; or, where it ends this job and its memory may hold more than the disk, a wait for that."""
    ends = [one for one in decision.actions if isinstance(one, EndJob | SubmitSuccessor)]
    if not policy.keeps_memory or not ends or decision.outcome is not Outcome.APPLIED:
        return decision
    state = decision.state
    roster = state.roster.nodes or before.roster.nodes  # who leaves forgets them
    nodes = tuple(sorted(name for name, node in roster.items() if not node.lost))
    theirs = offered([one for one in before.attempts if one.job == before.job], before.attempt.number + 1)
    attempt = theirs.attempt if theirs is not None else -1
    over = before.underway.bringing is not None or before.phase in TERMINAL or before.underway.hurried
    if over or state.phase is Phase.SUCCEEDED or not nodes or attempt <= before.checkpoints.brought_attempt:
        return decision
    within_s = _within_s(state, state.phase, now, policy)
    if within_s < LEAST_S:
        reason = f"{decision.reason}; no time is left to write the newest in-memory step to disk"
        return replace(decision, reason=reason, state=replace(state, reason=reason))
    what = f"first the newest in-memory checkpoint is written to disk, which may take up to {within_s:.0f} s"
    return enter(
        replace(state, roster=replace(state.roster, nodes=roster), ending=replace(state.ending, leaving=False)),
        Phase.WAITING,
        f"{ends[0].reason}; {what}",
        BringSteps(attempt, state.checkpoints.disk_step, within_s, nodes),
        deadlines={TIMER: now + within_s},
        underway=Underway(bringing=Bringing(attempt, nodes, state.phase, ends[0].reason)),
    )


def _within_s(state: RunState, then: Phase, now: float, policy: Policy) -> float:
    """A cancel waits no longer than for a script's own save, and nobody longer than the nodes are there."""
    limit_s = policy.checkpoint_grace_s if then is Phase.CANCELLED else END_WITHIN_S
    if state.ending.gone_at is None:
        return limit_s
    left_s = max(0.0, state.ending.gone_at - now)
    return min(limit_s, left_s - min(LEAVE_S, LEAVE_SHARE_MAX * left_s))


def flush(state: RunState, event: FlushDue, now: float, policy: Policy) -> Decision:
    """RUNNING: the disk falls behind while ranks train on, or a node that held copies is gone, so the nodes write down
    what they hold.
    """
    del now, policy
    assert state.attempt.placement is not None
    if event.step <= state.checkpoints.disk_step:
        return ignored(state, f"step {event.step} is not newer than the newest checkpoint on disk")
    nodes = tuple(sorted(name for name in state.attempt.placement.nodes if not state.roster.nodes[name].lost))
    action = BringSteps(state.attempt.number, state.checkpoints.disk_step, END_WITHIN_S, nodes, flush=True)
    fewer = with_fewer_copies(state.attempts)
    is_fewer = fewer is not None and fewer.step == event.step
    why = f"step {event.step} is only in memory"
    if is_fewer:
        why += ", and a node that saved it no longer has its part"
    return stay(state, f"{why}: gangrun writes it to disk while the ranks train", action)


def again(state: RunState, now: float) -> BringSteps:
    """The same once more, for a new supervisor."""
    held = state.underway.bringing
    assert held is not None
    left_s = max(LEAST_S, state.timers.deadlines[TIMER].at - now)
    return BringSteps(held.attempt, state.checkpoints.disk_step, left_s, held.nodes)


def brought(state: RunState, event: StepBrought, now: float, policy: Policy) -> Decision:
    """What became of it; what waited for it goes on."""
    told = sentence(event)
    if state.underway.bringing is None or event.attempt != state.underway.bringing.attempt:
        return stay(state, told)
    return go_on(state, now, policy, told if event.step >= 0 or event.why else "")


def sentence(event: StepBrought | StepHeld) -> str:
    """In a person's words."""
    if isinstance(event, StepHeld):
        have = who_have(event.save, event.nodes)
        return f"{have} step {event.save.step} whole in memory; no checkpoint on disk is as new"
    if event.step < 0:
        return event.why or "memory holds nothing newer than the disk"
    if event.why:
        return f"step {event.step}, which only memory holds, could not be written to disk: {event.why}"
    return f"step {event.step} was written to disk from the memory of {fold(event.nodes)}"


def who_have(step: MemoryStep, nodes: Iterable[str]) -> str:
    """Subject and verb of a sentence about a step in the memory of these nodes, some of which may lack it."""
    there = [node for node in nodes if node not in step.lacking]
    return f"{fold(there)} {'has' if len(there) == 1 else 'together have' if step.is_shared else 'have'}"


def time_is_up(state: RunState, now: float, policy: Policy) -> Decision:
    """WAITING: it is given up."""
    return go_on(state, now, policy, "the newest in-memory step could not be written to disk in time")


def go_on(state: RunState, now: float, policy: Policy, told: str) -> Decision:
    """Do what was decided before."""
    held = state.underway.bringing
    assert held is not None
    reason = "; ".join(filter(None, (held.reason, told)))
    saved = replace(state.checkpoints, brought_attempt=held.attempt)
    state = replace(state, underway=Underway(), checkpoints=saved)
    match held.then:
        case Phase.WAITING:
            return choose.ask_for_job(state, now, policy, reason)
        case Phase.PENDING:
            return choose.leave(state, now, policy, reason)
        case _:
            return finish(state, held.then, now, reason, state.ending.failure)


def cancel(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """WAITING: whatever was to follow, nothing does; asked twice, at once."""
    held = state.underway.bringing
    assert held is not None
    if held.then is Phase.CANCELLED:
        reason = f"cancelled again by {by}; the steps that only memory holds are lost with the job"
        return finish(state, Phase.CANCELLED, now, reason)
    reason = f"cancelled by {by}"
    cancelled = replace(held, then=Phase.CANCELLED, reason=reason)
    ending = replace(state.ending, cancelled_by=by, failure=None)
    state = replace(state, underway=Underway(bringing=cancelled), ending=ending)
    return stay(
        _fitted(state, now, policy),
        f"{reason} while the newest step in memory was being written to disk",
        loud=True,
    )


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """WAITING: the nodes go, so there is less time; whose nodes they are decides what follows."""
    held = state.underway.bringing
    assert held is not None
    if event.kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN} and held.then is not Phase.CANCELLED:
        return cancel(state, "the scheduler" if event.kind is NoticeKind.CANCEL else "a signal", now, policy)
    reason = f"{event.kind.value} while the newest step in memory was being written to disk"
    state = _fitted(state, now, policy)
    return stay(state, reason, loud=True)


def _fitted(state: RunState, now: float, policy: Policy) -> RunState:
    assert state.underway.bringing is not None
    at = now + max(0.0, _within_s(state, state.underway.bringing.then, now, policy))
    return with_deadline(state, TIMER, min(at, state.timers.deadlines[TIMER].at))
