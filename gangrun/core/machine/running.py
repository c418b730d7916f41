"""RUNNING: all ranks are alive.

Most of what happens here needs no stop (rung 0). What does need one only *stops* and keeps the evidence: conclusions
are drawn in ``recovery`` once every rank is down, when the late reports are in.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision, ProbeNode, StopGang, TakeStacks
from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    CheckpointSeen,
    DeadlinePassed,
    FindingRaised,
    FirstStepSeen,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    StacksTaken,
)
from gangrun.core.machine.transitions import at_step, ignored, stay, stop_all, with_deadline, without_deadline
from gangrun.core.model import After, Evidence, Hang, Phase, RankExit, RunState
from gangrun.core.nodes import device_test, history, planned_replacement, roster
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame, blame_hang, budget, can_checkpoint, choose
from gangrun.core.text import all_of, finding_told, listed

FINDINGS_MAX_COUNT = 32


def how_it_ended(died: RankExit) -> str:
    """A rank's end in a few words."""
    if died.oom_kill:
        return "killed for memory by its own cgroup"
    if died.error is not None:
        message = died.error.message.splitlines()[0] if died.error.message else ""
        return f"{died.error.kind}: {message}" if message else died.error.kind
    return f"signal {died.signal}" if died.signal is not None else f"exit code {died.code}"


def rank_exited(state: RunState, event: RankExited, now: float, policy: Policy) -> Decision:
    """One rank fell, so all must stop."""
    died = event.exit
    state = at_step(state, died.step)
    reason = f"rank {died.rank} on {died.node} ended ({how_it_ended(died)}); stopping all ranks"
    evidence = replace(state.evidence, exits=(*state.evidence.exits, died))
    return stop_all(state, now, policy, After.JUDGE, reason, evidence)


def rank_finished(state: RunState, event: RankFinished, now: float, policy: Policy) -> Decision:
    """The last one ends the run; an early one is watched by the hang watch, since a last save may take long."""
    state = at_step(state, event.step)
    assert state.placement is not None
    finished, world_size = state.finished | {event.rank}, state.placement.world_size
    if len(finished) >= world_size:
        state = replace(state, finished=finished)
        return stop_all(state, now, policy, After.SUCCEED, f"{all_of(world_size, 'rank')} finished")
    if "finish" not in state.deadlines:
        state = with_deadline(state, "finish", now + policy.finish_grace_s)
    return stay(state, f"rank {event.rank} finished ({len(finished)} of {world_size})", finished=finished)


def deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """RUNNING has two timers: stacks that do not come, and ranks that finish long before the others."""
    return (stacks_deadline if event.name == "stacks" else finish_deadline)(state, event, now, policy)


def finish_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """Say who is still at it; whether they are stuck is for the hang watch."""
    del event, now
    assert state.placement is not None
    left = [f"rank {rank}" for rank in range(state.placement.world_size) if rank not in state.finished]
    done = f"{blame_hang.ended_words(state.finished)}, the first over {policy.finish_grace_s:g} s ago"
    reason = f"{done}; not ended: {listed(left)}, which hang if they wait for those"
    return stay(without_deadline(state, "finish"), reason, loud=True)


def node_silent(state: RunState, event: NodeSilent, now: float, policy: Policy) -> Decision:
    """A suspect, not a reason to stop: other nodes are asked whether they reach it."""
    if event.node not in state.nodes:
        return ignored(state, f"{event.node} is not in this job")
    del policy
    state = replace(state, nodes=roster.silent(state, event))
    reason = f"{event.node} has been silent for {now - event.since:.0f} s; asking other nodes whether they reach it"
    if len(state.nodes) < 2:
        reason = f"{event.node} has been silent for {now - event.since:.0f} s"
        return stay(state, reason, loud=roster.in_gang(state, event.node))
    return stay(state, reason, ProbeNode(event.node), loud=roster.in_gang(state, event.node))


def node_heard(state: RunState, event: NodeHeard, now: float, policy: Policy) -> Decision:
    """It was only slow; who reads the run's reason must not be left with the suspicion."""
    del now, policy
    was_away = event.node in state.nodes and state.nodes[event.node].silent_since is not None
    loud = was_away and roster.in_gang(state, event.node)
    return stay(state, f"{event.node} is heard again", loud=loud, nodes=roster.heard(state, event.node))


def node_lost(state: RunState, event: NodeLost, now: float, policy: Policy) -> Decision:
    """A node of the gang is gone, and the gang with it; a spare's loss costs nothing."""
    state = replace(state, nodes=roster.lost(state, event))
    reason = f"{event.node} is lost: {event.why}"
    if not roster.in_gang(state, event.node):
        return stay(state, f"{reason}; it holds no ranks")
    evidence = replace(state.evidence, silent={**state.evidence.silent, event.node: event.since})
    return stop_all(state, now, policy, After.JUDGE, f"{reason}; stopping all ranks", evidence)


def agent_joined(state: RunState, event: AgentJoined, now: float, policy: Policy) -> Decision:
    """A spare that comes late proves itself at once, so that no restart has to wait for it."""
    del now
    state = replace(state, nodes=roster.joined(state, event))
    asked = device_test.ask(state, (event.node,), policy) if state.nodes[event.node].checked is None else ()
    return stay(state, f"{event.node} joined", *asked)


def node_checked(state: RunState, event: NodeChecked, now: float, policy: Policy) -> Decision:
    """RUNNING to WAITING: a late node's answer; what is known to be bad stays so."""
    node = state.nodes.get(event.node)
    if node is None or (event.ok and node.checked is False):
        return ignored(state, f"{event.node} is not in this job" if node is None else f"{event.node} stays unused")
    if node.trial:
        done = device_test.answered(state, event, now, policy)
        return stay(done.state, done.sentence)
    return stay(state, f"{event.node} {roster.checks_told(event)}", nodes=roster.checked(state, event))


def agent_rejoined(state: RunState, event: AgentRejoined, now: float, policy: Policy) -> Decision:
    """A new agent means that the old one's ranks are dead."""
    state = replace(state, nodes=roster.joined(state, event))
    reason = f"the agent on {event.node} was restarted{': ' + event.why if event.why else ''}"
    if not roster.in_gang(state, event.node):
        return stay(state, f"{reason}; it held no ranks")
    evidence = replace(state.evidence, agents_died=(*state.evidence.agents_died, event.node))
    return stop_all(state, now, policy, After.JUDGE, f"{reason}; its ranks died with it", evidence)


def finding(state: RunState, event: FindingRaised, now: float, policy: Policy) -> Decision:
    """A fatal finding on a node of the gang stops it, with a checkpoint first where that may succeed; a spare is not
    used any more; others are ridden out. Poor hardware is evidence of what happens soon after, not hours later.
    """
    state, found = history.heard(state, event.finding, now)
    sentence = finding_told(found)
    if not found.fatal:
        kept = (*blame.recent(state.evidence.findings, now), found) if found.poor else state.evidence.findings
        evidence = replace(state.evidence, findings=kept[-FINDINGS_MAX_COUNT:])
        told = replace(state, nodes=planned_replacement.noted(state, found, now, policy), evidence=evidence)
        what = planned_replacement.foreseen(told, found.node, now, policy)
        return stay(told, f"{sentence}{what}", loud=bool(what))
    if not roster.in_gang(state, found.node):
        return stay(state, f"{sentence}; it holds no ranks", nodes=roster.found_bad(state, found))
    fatal = [other for other in state.evidence.findings if other.fatal]
    known = any((other.node, other.check) == (found.node, found.check) for other in fatal)
    evidence = replace(state.evidence, findings=(*state.evidence.findings, found))
    if policy.observe:
        return stay(state, sentence) if known else _observed(state, evidence, sentence, now, policy)
    reason = f"{sentence}; {can_checkpoint.told(found)}"
    save = can_checkpoint.can_save(found)
    return stop_all(state, now, policy, After.JUDGE, reason, evidence, checkpoint_first=save)


def _observed(state: RunState, evidence: Evidence, reason: str, now: float, policy: Policy) -> Decision:
    """What would stop all ranks is only told, with what would follow; the evidence bears on what happens next."""
    would = choose.unobserved(replace(state, evidence=evidence), now, policy)
    told = f"{reason}; observing only, so training goes on; else all ranks would be stopped: {would}"
    return stay(state, told, loud=True, evidence=evidence)


def first_step(state: RunState, event: FirstStepSeen, now: float, policy: Policy) -> Decision:
    """A script that was told to resume and began again would write over what it had."""
    resumed = state.resume.step if state.resume else -1
    if event.step < resumed:
        reason = f"it started over: the first step seen is {event.step}, though it was to resume from step {resumed}"
        evidence = replace(state.evidence, started_over=(event.step, resumed))
        if policy.observe:
            told = _observed(state, evidence, reason, now, policy)
            return replace(told, state=at_step(replace(told.state, evidence=state.evidence), event.step))
        return stop_all(state, now, policy, After.JUDGE, reason, evidence)
    return stay(
        state,
        f"first step of attempt {state.attempt}: {event.step}",
        attempt_step=max(state.attempt_step, event.step),
        observed_step=max(state.observed_step, event.step),
    )


def progress(state: RunState, event: ProgressMarked, now: float, policy: Policy) -> Decision:
    """Steps go on; they refill the budget only where no checkpoint is known to measure by."""
    del now, policy
    reason, was_told = f"step {event.step}", False
    if state.phase is Phase.RUNNING and state.evidence.hang is not None and event.step > state.attempt_step:
        was_told = "stacks" not in state.deadlines  # who only observes has said that it hangs
        state, reason = no_hang(state), f"step {event.step}: it goes on, so it was no hang"
    observed = max(state.observed_step, event.step)
    refilled = state.budget
    if state.best_step < 0:
        refilled = budget.refill(state.budget, observed)
    return stay(
        state,
        reason,
        attempt_step=max(state.attempt_step, event.step),
        observed_step=observed,
        budget=refilled,
        loud=was_told,
    )


def checkpoint_seen(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """A newer valid checkpoint is the progress that refills the budget."""
    del now, policy
    seen = event.checkpoint
    if seen.step <= state.disk_step:
        return ignored(state, f"the checkpoint of step {seen.step} is not newer than step {state.disk_step}")
    return stay(
        state,
        f"checkpoint of step {seen.step} is {seen.level.value}",
        checkpoint=seen,
        best_step=max(state.best_step, seen.step),
        observed_step=max(state.observed_step, seen.step),
        budget=budget.refill(state.budget, seen.step),
    )


def checkpoint_reached(state: RunState, event: CheckpointSeen, now: float, policy: Policy) -> Decision:
    """RUNNING: the same, and the moment at which the least is lost by letting others take the place of suspects."""
    return planned_replacement.at_checkpoint(checkpoint_seen(state, event, now, policy), now, policy)


def stalled(state: RunState, event: ProgressStalled, now: float, policy: Policy) -> Decision:
    """No progress: see where every rank stands before anything is killed."""
    if state.store_stalled_since is not None:
        return ignored(state, "the run directory does not answer, which may be all that the ranks wait for")
    if "stacks" in state.deadlines:
        return ignored(state, "this stall is being looked at")
    hang = Hang(event.stalled_s, event.limit_s, event.observations)
    reason = f"no progress for {event.stalled_s:.0f} s (limit {event.limit_s:.0f} s); taking the stacks of all ranks"
    state = with_deadline(state, "stacks", now + policy.stacks_within_s)
    return stay(state, reason, TakeStacks(state.attempt), loud=True, evidence=replace(state.evidence, hang=hang))


def stacks_taken(state: RunState, event: StacksTaken, now: float, policy: Policy) -> Decision:
    """With the stacks in hand the hang can be judged: stop."""
    hang = state.evidence.hang
    if hang is None or "stacks" not in state.deadlines:
        return ignored(state, "nobody asked for stacks in this attempt")
    evidence = replace(state.evidence, hang=replace(hang, stacks=event.stacks))
    return _stop_hung(state, evidence, hang, now, policy)


def stacks_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """No stacks are evidence too."""
    del event
    hang = state.evidence.hang
    assert hang is not None  # the timer goes with it
    return _stop_hung(state, state.evidence, hang, now, policy)


def no_hang(state: RunState) -> RunState:
    """The state in which nobody suspects a hang any more."""
    return replace(without_deadline(state, "stacks"), evidence=replace(state.evidence, hang=None))


def _stop_hung(state: RunState, evidence: Evidence, hang: Hang, now: float, policy: Policy) -> Decision:
    reason = f"hung: no progress for {hang.stalled_s:.0f} s (limit {hang.limit_s:.0f} s)"
    if policy.observe:
        return _observed(without_deadline(state, "stacks"), evidence, reason, now, policy)
    return stop_all(state, now, policy, After.JUDGE, f"{reason}; stopping all ranks", evidence)


def cancel(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """Stop in order: a script that asked for it may save first."""
    state = replace(state, cancelled_by=by)
    return stop_all(state, now, policy, After.CANCEL, f"cancelled by {by}; stopping all ranks", checkpoint_first=True)


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """The scheduler takes the nodes: save, stop, and go on elsewhere unless the run was cancelled."""
    if event.kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        return cancel(state, "the scheduler" if event.kind is NoticeKind.CANCEL else "a signal", now, policy)
    reason = f"{event.kind.value}: {event.grace_s:.0f} s to save and stop"
    return stop_all(state, now, policy, after_notice(event), reason, checkpoint_first=True)


def after_notice(event: Notice) -> After:
    """Whether the run goes on in the same job, which comes back by itself, or in another."""
    return After.RETURN if event.kind is NoticeKind.REQUEUE else After.REQUEUE


def hurry(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """Asked a second time while stopping: no more grace."""
    del now, policy
    reason = f"cancelled again by {by}; killing all ranks"
    return stay(state, reason, StopGang(state.attempt, 0.0, False, reason), loud=True, saving=False, hurried=True)
