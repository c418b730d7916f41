"""STOPPING and WAITING: ranks go down, evidence comes in, the next rung is due."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, StopGang, SubmitSuccessor
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import (
    ActDone,
    ActFailed,
    ActUnknown,
    AgentJoined,
    AgentRejoined,
    CheckpointSeen,
    DeadlinePassed,
    FindingRaised,
    GangStopped,
    NodeAbsent,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    RankExited,
    RankFinished,
    StacksTaken,
    StopTimedOut,
)
from gangrun.core.machine import running, starting
from gangrun.core.machine.transitions import (
    at_step,
    close_attempt,
    enter,
    fenced,
    finish,
    ignored,
    refused,
    stay,
    stop_bound_s,
    stop_gang,
    with_deadline,
)
from gangrun.core.model import After, Evidence, Failure, Finding, Outcome, Phase, RunState
from gangrun.core.nodes import absences, history, placement, planned_replacement, quarantine, roster
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget, choose, recovery_steps
from gangrun.core.text import finding_told

STOP_ROUNDS_MAX = 3
UNKILLABLE = "unkillable processes"
FREE_STARTS_MAX = 20
LOOK_AGAIN_S = 30.0  # a job that sbatch made although it timed out shows in the queue by then


# ---- STOPPING ------------------------------------------------------------------------------------------------------


def rank_exited(state: RunState, event: RankExited, now: float, policy: Policy) -> Decision:
    """One more report for the verdict."""
    del now, policy
    died = event.exit
    if any(other.rank == died.rank for other in state.evidence.exits):
        return ignored(state, f"rank {died.rank} is already known to have ended")
    state = at_step(state, died.step)
    reason = f"rank {died.rank} on {died.node} ended ({running.how_it_ended(died)})"
    if died.by_us:  # says nothing of a cause, and with thousands of ranks each record would carry all those before it
        return stay(state, reason)
    return stay(state, reason, evidence=replace(state.evidence, exits=(*state.evidence.exits, died)))


def rank_finished(state: RunState, event: RankFinished, now: float, policy: Policy) -> Decision:
    """Finished while it was being stopped: a script that is asked to stop may well end with 0, so it proves nothing."""
    del now, policy
    state = at_step(state, event.step)
    finished = state.finished | {event.rank}
    return stay(state, f"rank {event.rank} finished while all ranks were being stopped", finished=finished)


def node_lost(state: RunState, event: NodeLost, now: float, policy: Policy) -> Decision:
    """Evidence; that its ranks are gone is for ``GangStopped`` to prove."""
    del now, policy
    state = replace(state, nodes=roster.lost(state, event))
    if not roster.in_gang(state, event.node):
        return stay(state, f"{event.node} is lost: {event.why}")
    evidence = replace(state.evidence, silent={**state.evidence.silent, event.node: event.since})
    return stay(state, f"{event.node} is lost: {event.why}", evidence=evidence)


def agent_rejoined(state: RunState, event: AgentRejoined, now: float, policy: Policy) -> Decision:
    """Evidence, and one node less to wait for."""
    del now, policy
    state = replace(state, nodes=roster.joined(state, event))
    if not roster.in_gang(state, event.node):
        return stay(state, f"the agent on {event.node}, which holds no ranks, was restarted")
    evidence = replace(state.evidence, agents_died=(*state.evidence.agents_died, event.node))
    return stay(state, f"the agent on {event.node} was restarted while all ranks were being stopped", evidence=evidence)


def finding(state: RunState, event: FindingRaised, now: float, policy: Policy) -> Decision:
    """Evidence if it is fatal to a node of the gang, or poor hardware; a spare is not used any more."""
    state, found = history.heard(state, event.finding, now)
    sentence = finding_told(found)
    if not found.fatal:
        evidence = _with_finding(state, found) if found.poor else state.evidence
        return stay(state, sentence, nodes=planned_replacement.noted(state, found, now, policy), evidence=evidence)
    if not roster.in_gang(state, found.node):
        return stay(state, f"{sentence}; it holds no ranks", nodes=roster.found_bad(state, found))
    return stay(state, sentence, evidence=_with_finding(state, found))


def _with_finding(state: RunState, found: Finding) -> Evidence:
    return replace(state.evidence, findings=(*state.evidence.findings, found))


def stacks_taken(state: RunState, event: StacksTaken, now: float, policy: Policy) -> Decision:
    """Evidence that came after a rank fell by itself."""
    del now, policy
    hang = state.evidence.hang
    if hang is None:
        return ignored(state, "nobody asked for stacks in this attempt")
    return stay(state, "stacks are in", evidence=replace(state.evidence, hang=replace(hang, stacks=event.stacks)))


def checkpoint_seen(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """What all were told to save is there, whole: whoever trains on after saving is not waited for any longer."""
    decision = running.checkpoint_seen(state, event, now, policy)
    step = event.checkpoint.step
    if decision.outcome is not Outcome.APPLIED or not state.saving or not event.told or step < state.attempt_step:
        return decision
    reason = f"{decision.reason}, as ranks were told to save: stopping all of them"
    new = with_deadline(decision.state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    return stay(new, reason, stop_gang(new, now, policy, reason, checkpoint_first=False), saving=False)


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
        name: state.nodes[name].silent_since or 0.0
        for name, _ in event.presumed
        if roster.in_gang(state, name) and name in state.nodes and state.nodes[name].silent_since is not None
    }
    evidence = replace(state.evidence, silent={**silent, **state.evidence.silent})
    return replace(state, evidence=evidence) if silent and not state.alone else state


def _what_follows(state: RunState, now: float, policy: Policy) -> Decision:
    match state.after:
        case After.SUCCEED:
            steps = f" at step {state.attempt_step}" if state.attempt_step >= 0 else ""
            return finish(state, Phase.SUCCEEDED, now, f"all ranks finished{steps}")
        case After.CANCEL:
            return finish(state, Phase.CANCELLED, now, f"cancelled by {state.cancelled_by}")
        case After.REQUEUE:
            return recovery_steps.requeue(state, now, policy, state.reason)
        case After.RETURN:
            return recovery_steps.come_back(state, now, policy, state.reason)
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
        evidence = replace(state.evidence, start_failed=("", f"{state.reason}, {FREE_STARTS_MAX} times over"))
        return choose.judge(replace(state, evidence=evidence), now, policy)
    used = {**state.budget.used, budget.FREE_STARTS: count}
    closed = close_attempt(state, now, "not started", state.reason)
    again = replace(state, attempts=closed, budget=replace(state.budget, used=used))
    return recovery_steps.begin_attempt(again, now, policy, state.reason)


def stop_timed_out(state: RunState, event: StopTimedOut, now: float, policy: Policy) -> Decision:
    """Processes that not even SIGKILL ends: the kernel holds them, so the node is the suspect."""
    del policy
    sentence = f"{event.node} cannot end {', '.join(event.processes)}: the kernel holds them (D state)"
    if any((other.node, other.check) == (event.node, UNKILLABLE) for other in state.evidence.findings):
        return stay(state, sentence)
    found = Finding(event.node, UNKILLABLE, True, sentence, now)
    return stay(state, sentence, loud=True, evidence=_with_finding(state, found))


def stop_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Ask again without grace; after some rounds end the run rather than risk a second gang."""
    del event
    rounds = state.tries_count + 1
    if rounds > STOP_ROUNDS_MAX:
        reason = f"nobody can prove that all ranks of attempt {state.attempt} are gone: {state.reason}"
        names = state.placement.nodes if state.placement else ()
        unproven = fenced(state, names, now + stop_bound_s(policy, checkpoint_first=False), now)
        match state.after:
            case After.CANCEL:
                return finish(unproven, Phase.CANCELLED, now, reason)
            case After.SUCCEED:
                return finish(unproven, Phase.SUCCEEDED, now, reason)
            case After.RETURN:
                return recovery_steps.come_back(unproven, now, policy, reason)
            case _:
                return choose.leave_behind(unproven, now, policy, reason)
    reason = f"ranks of attempt {state.attempt} are still not proven gone; asking again ({rounds} of {STOP_ROUNDS_MAX})"
    state = with_deadline(state, "stop", now + stop_bound_s(policy, checkpoint_first=False))
    return stay(state, reason, StopGang(state.attempt, 0.0, False, reason), tries_count=rounds, saving=False)


def cancel(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """Whatever was to follow, nothing does; asked twice, without grace."""
    if state.after is After.CANCEL:
        return running.hurry(state, by, now, policy)
    if state.after is After.SUCCEED:
        return ignored(state, f"cancelled by {by}, but all ranks have finished already")
    reason = f"cancelled by {by} while all ranks were being stopped"
    return stay(state, reason, loud=True, after=After.CANCEL, cancelled_by=by)


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The nodes go while we stop: what was to be restarted here is requeued."""
    reason = f"{event.kind.value} while all ranks were being stopped"
    if state.after in {After.CANCEL, After.SUCCEED}:  # every node's agent passes the same notice on: none hurries
        return stay(state, reason)
    after = running.after_notice(event)
    why_is_known = event.kind is NoticeKind.UNKNOWN and state.after in {After.REQUEUE, After.RETURN}
    if why_is_known or (event.kind is not NoticeKind.CANCEL and state.after is after):
        return stay(state, f"{reason}, which is known")  # what was said of it first tells more
    if event.kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        return cancel(state, "the scheduler" if event.kind is NoticeKind.CANCEL else "a signal", now, policy)
    return stay(state, reason, loud=True, after=after)


# ---- WAITING -------------------------------------------------------------------------------------------------------


def wait_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """WAITING has three timers: bringing what is in memory, the next question to the scheduler, and the pause."""
    if event.name == flush_to_disk.TIMER:
        return flush_to_disk.time_is_up(state, event, now, policy)
    return (submit_deadline if event.name == "submit" else backoff_over)(state, event, now, policy)


def backoff_over(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Try again."""
    why = "nobody came back in time" if event.name == "nodes" else "the wait is over"
    return recovery_steps.begin_checks(state, now, policy, why)


def waiting_agent(state: RunState, event: AgentJoined | AgentRejoined, now: float, policy: Policy) -> Decision:
    """A node more, in a phase that does not depend on it; it ends a wait for nodes if it is enough."""
    state = replace(state, nodes=roster.joined(state, event))
    return _if_enough(state, now, policy, f"{event.node} joined")


def heard_in_waiting(state: RunState, event: NodeHeard, now: float, policy: Policy) -> Decision:
    """A node is back, which may be what the run waits for."""
    state = replace(state, nodes=roster.heard(state, event.node))
    return _if_enough(state, now, policy, f"{event.node} is heard again")


def absent_in_waiting(state: RunState, event: NodeAbsent, now: float, policy: Policy) -> Decision:
    """A node will not join. If the run waits only for such nodes, the wait is over."""
    decision = absences.noted(state, event, now, policy)
    if "nodes" not in state.deadlines or not recovery_steps.still_joining(state, now):
        return decision
    after = decision.state
    away = any(node.lost or node.silent_since is not None for node in after.nodes.values())
    if away or recovery_steps.still_joining(after, now):
        return decision
    return recovery_steps.begin_checks(after, now, policy, decision.reason)


def _if_enough(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    if "nodes" not in state.deadlines:
        return stay(state, reason)
    placed = placement.place(state.nodes, quarantine.active(state.excluded, now), state.shape)
    if isinstance(placed, placement.NotEnough):
        return stay(state, f"{reason}; {placed.why}")
    return recovery_steps.begin_checks(state, now, policy, reason)


def quiet_node(state: RunState, event: NodeSilent | NodeLost, now: float, policy: Policy) -> Decision:
    """Noted, in any phase in which no rank could be hurt by it."""
    del policy
    nodes = roster.silent(state, event) if isinstance(event, NodeSilent) else roster.lost(state, event)
    word = f"silent for {now - event.since:.0f} s" if isinstance(event, NodeSilent) else f"lost: {event.why}"
    return stay(replace(state, nodes=nodes), f"{event.node} is {word}")


def heard_node(state: RunState, event: NodeHeard, now: float, policy: Policy) -> Decision:
    """Noted, in any phase."""
    del now, policy
    return stay(replace(state, nodes=roster.heard(state, event.node)), f"{event.node} is heard again")


def submitted(state: RunState, event: ActDone, now: float, policy: Policy) -> Decision:
    """The successor is in the queue: this job may end."""
    if not state.submitting or event.what != SubmitSuccessor.__name__:
        return refused(state, f"nobody waits for {event.what}")
    back = f"; {fold(event.booted)} may be in it, booted since, and is tested first" if event.booted else ""
    if event.same_job:
        return recovery_steps.come_back(state, now, policy, f"{state.reason}{back}")
    reason = f"the next job of this run is submitted; this one ends{back}"
    return recovery_steps.leave(replace(state, seq=state.seq + 1), now, policy, reason)


def not_submitted(state: RunState, event: ActFailed, now: float, policy: Policy) -> Decision:
    """Refused: try again with growing pauses, then stop with the scheduler's words."""
    if not state.submitting or event.what != SubmitSuccessor.__name__:
        return refused(state, f"nobody waits for {event.what}")
    wait_s = _ask_again_in_s(state, policy)
    if wait_s > policy.waiting_max_s:
        reason = f"the scheduler refused the next job {state.tries_count} times: {event.why}"
        return finish(state, Phase.FAILED, now, reason, Failure.SCHEDULER)
    reason = f"the scheduler refused the next job: {event.why}; asking again in {wait_s:.0f} s"
    return enter(state, Phase.WAITING, reason, deadlines={"submit": now + wait_s})


def _ask_again_in_s(state: RunState, policy: Policy) -> float:
    """Twice as long each time; over ``waiting_max_s`` means that it was asked often enough."""
    return policy.backoff_first_s * 2.0 ** min(state.tries_count, 60)


def maybe_submitted(state: RunState, event: ActUnknown, now: float, policy: Policy) -> Decision:
    """A timeout is not a no: the performer looks the job up by its comment before it asks again."""
    if not state.submitting or event.what != SubmitSuccessor.__name__:
        return refused(state, f"nobody waits for {event.what}")
    wait_s = _ask_again_in_s(state, policy)
    unknown = f"nobody knows whether the scheduler took the next job: {event.why}"
    if wait_s > policy.waiting_max_s:
        reason = f"{unknown}; asked {state.tries_count} times"
        return finish(state, Phase.FAILED, now, reason, Failure.SCHEDULER)
    wait_s = max(LOOK_AGAIN_S, wait_s)
    state = with_deadline(state, "submit", now + wait_s)
    return stay(state, f"{unknown}; looking again in {wait_s:.0f} s", loud=True)


def submit_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Ask again; so often at most that even a scheduler that never answers ends the wait."""
    del event
    if _ask_again_in_s(state, policy) > policy.waiting_max_s:
        reason = f"the scheduler did not answer in {policy.waiting_max_s:.0f} s, asked {state.tries_count} times"
        return finish(state, Phase.FAILED, now, reason, Failure.SCHEDULER)
    action = recovery_steps.successor(state, now, state.reason)
    state = with_deadline(state, "submit", now + policy.waiting_max_s)
    return stay(state, "asking the scheduler again", action, tries_count=state.tries_count + 1)


def waiting_notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """PENDING to WAITING: nothing runs, so there is nothing to save."""
    if state.bringing is not None:
        return flush_to_disk.notice(state, event, now, policy)
    if event.kind is not NoticeKind.CANCEL and (state.submitting or state.leaving):
        return stay(state, f"{event.kind.value} while the next job is being asked for")
    if event.kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        return starting.cancel(state, "the scheduler" if event.kind is NoticeKind.CANCEL else "a signal", now, policy)
    if event.kind is NoticeKind.REQUEUE:
        return recovery_steps.come_back(state, now, policy, event.kind.value)
    return recovery_steps.requeue(state, now, policy, event.kind.value)
