"""STOPPING: all ranks go down, evidence comes in; once no rank lives, what was to follow does."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, StopGang
from gangrun.core.events import CheckpointSeen, DeadlinePassed, GangStopped, StopTimedOut
from gangrun.core.machine import running
from gangrun.core.machine.transitions import (
    close_attempt,
    fenced,
    finish,
    stay,
    stop_bound_s,
    stop_gang,
    with_deadline,
    with_evidence,
)
from gangrun.core.model import After, NodeFinding, Outcome, Phase, RunState
from gangrun.core.nodes import planned_replacement, roster
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget, choose

STOP_ROUNDS_MAX = 3
UNKILLABLE = "unkillable processes"
FREE_STARTS_MAX = 20


def checkpoint_seen(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """What all were told to save is there, whole: whoever trains on after saving is not waited for any longer."""
    decision = running.checkpoint_seen(state, event, now, policy)
    step = event.checkpoint.step
    if (
        decision.outcome is not Outcome.APPLIED
        or not state.underway.saving
        or not event.told
        or step < state.attempt.step
    ):
        return decision
    reason = f"{decision.reason}, as ranks were told to save: stopping all of them"
    new = with_deadline(decision.state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    return stay(
        new,
        reason,
        stop_gang(new, now, policy, reason, checkpoint_first=False),
        underway=replace(new.underway, saving=False),
    )


def gang_stopped(state: RunState, event: GangStopped, now: float, policy: Policy) -> Decision:
    """No rank lives: the next thing is due. What could not be cleaned away is said whatever that is."""
    state = _with_presumed(fenced(state, event.fenced, event.fence_until, now), event)
    decision = _what_follows(replace(state, tries_count=0), now, policy)
    if not event.leftovers:
        return decision
    reason = f"{decision.reason} (left behind: {', '.join(event.leftovers)})"
    return replace(decision, reason=reason, state=replace(decision.state, reason=reason))


def _with_presumed(state: RunState, event: GangStopped) -> RunState:
    """A node that has not said a word until its lease was over is evidence, whoever else could be heard meanwhile."""
    silent = {
        name: state.roster.nodes[name].silent_since or 0.0
        for name, _ in event.presumed
        if roster.in_gang(state, name)
        and name in state.roster.nodes
        and state.roster.nodes[name].silent_since is not None
    }
    evidence = replace(state.attempt.evidence, silent={**silent, **state.attempt.evidence.silent})
    return (
        replace(state, attempt=replace(state.attempt, evidence=evidence))
        if silent and not state.roster.alone
        else state
    )


def _what_follows(state: RunState, now: float, policy: Policy) -> Decision:
    match state.underway.after:
        case After.SUCCEED:
            steps = f" at step {state.attempt.step}" if state.attempt.step >= 0 else ""
            return finish(state, Phase.SUCCEEDED, now, f"all ranks finished{steps}")
        case After.CANCEL:
            return finish(state, Phase.CANCELLED, now, f"cancelled by {state.ending.cancelled_by}")
        case After.REQUEUE:
            return choose.requeue(state, now, policy, state.reason)
        case After.RETURN:
            return choose.come_back(state, now, policy, state.reason)
        case After.AGAIN:
            return _start_again(state, now, policy)
        case After.MOVE:
            return planned_replacement.moved(state, now, policy)
        case _:
            return choose.judge(state, now, policy)


def _start_again(state: RunState, now: float, policy: Policy) -> Decision:
    """Free of charge, but not for ever: what was nobody's fault twenty times over is somebody's."""
    count = state.budget.used.get(budget.FREE_STARTS, 0) + 1
    if count > FREE_STARTS_MAX:
        evidence = replace(state.attempt.evidence, start_failed=("", f"{state.reason}, {FREE_STARTS_MAX} times over"))
        return choose.judge(with_evidence(state, evidence), now, policy)
    used = {**state.budget.used, budget.FREE_STARTS: count}
    closed = close_attempt(state, now, "not started", state.reason)
    again = replace(state, attempts=closed, budget=replace(state.budget, used=used))
    return choose.begin_attempt(again, now, policy, state.reason)


def stop_timed_out(state: RunState, event: StopTimedOut, now: float, policy: Policy) -> Decision:
    """Processes that not even SIGKILL ends: the kernel holds them, so the node is the suspect."""
    del policy
    sentence = f"{event.node} cannot end {', '.join(event.processes)}: the kernel holds them (D state)"
    if any((other.node, other.check) == (event.node, UNKILLABLE) for other in state.attempt.evidence.findings):
        return stay(state, sentence)
    found = NodeFinding(event.node, UNKILLABLE, True, sentence, now)
    evidence = replace(state.attempt.evidence, findings=(*state.attempt.evidence.findings, found))
    return stay(with_evidence(state, evidence), sentence, loud=True)


def stop_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Ask again without grace; after some rounds end the run rather than risk a second gang."""
    del event
    rounds = state.tries_count + 1
    if rounds > STOP_ROUNDS_MAX:
        reason = f"nobody can prove that all ranks of attempt {state.attempt.number} are gone: {state.reason}"
        names = state.attempt.placement.nodes if state.attempt.placement else ()
        unproven = fenced(state, names, now + stop_bound_s(policy, checkpoint_first=False), now)
        match state.underway.after:
            case After.CANCEL:
                return finish(unproven, Phase.CANCELLED, now, reason)
            case After.SUCCEED:
                return finish(unproven, Phase.SUCCEEDED, now, reason)
            case After.RETURN:
                return choose.come_back(unproven, now, policy, reason)
            case _:
                return choose.leave_behind(unproven, now, policy, reason)
    reason = f"ranks of attempt {state.attempt.number} are still not proven gone; asking again"
    reason += f" ({rounds} of {STOP_ROUNDS_MAX})"
    state = with_deadline(state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    return stay(
        state,
        reason,
        StopGang(state.attempt.number, 0.0, False, reason),
        tries_count=rounds,
        underway=replace(state.underway, saving=False),
    )
