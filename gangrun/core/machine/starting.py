"""PENDING, CHECKING and STARTING: from nobody there to all ranks alive.

An attempt starts in three stages: staging of older attempts is *sealed*, the resume point is *chosen*, the gang is
*launched*. Nodes are picked last, at the launch, so that a node lost meanwhile costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import ChooseResume, Decision, EndJob, SealAttempts, StartGang
from gangrun.core.checkpoints import flush_to_disk, poison
from gangrun.core.events import (
    ActFailed,
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    DeadlinePassed,
    FindingRaised,
    FirstStepSeen,
    GangStarted,
    GangStartFailed,
    NodeAbsent,
    NodeChecked,
    NodeLost,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    RankExited,
    RankFinished,
    ResumeChosen,
)
from gangrun.core.machine import running
from gangrun.core.machine.transitions import (
    at_step,
    enter,
    finish,
    ignored,
    may_hold_ranks,
    refused,
    stay,
    stop_all,
    with_deadline,
)
from gangrun.core.model import After, Evidence, Failure, Outcome, Phase, RunState, StartStage
from gangrun.core.nodes import (
    absences,
    device_test,
    history,
    placement,
    planned_replacement,
    quarantine,
    roster,
)
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget, recovery_steps
from gangrun.core.text import all_of, counted, finding_told

NAMED_MAX_COUNT = 256  # more nodes than that are counted, not named


def agent_joined(state: RunState, event: AgentJoined | AgentRejoined, now: float, policy: Policy) -> Decision:
    """PENDING: count heads; unless this job only ends, since its successor is in the queue."""
    if state.leaving:
        return ignored(state, f"{event.node} joined a job that ends: the run goes on in another")
    state = replace(state, nodes=roster.joined(state, event))
    here, wanted = len(state.nodes), state.shape.nodes_count
    reason = f"{event.node} joined ({here} of {wanted} nodes)"
    if here < wanted:
        return (
            _with_those(state, now, policy, reason)
            if absences.nobody_else_comes(state)
            else stay(state, reason, loud=True)
        )
    return recovery_steps.begin_checks(
        state, now, policy, f"all {wanted} nodes are here" if wanted > 1 else f"{event.node} is here"
    )


def node_absent(state: RunState, event: NodeAbsent, now: float, policy: Policy) -> Decision:
    """PENDING: one node less to wait for; the last one decides."""
    decision = absences.noted(state, event, now, policy)
    state = decision.state
    if decision.outcome is not Outcome.APPLIED or state.leaving or not absences.nobody_else_comes(state):
        return decision
    return _with_those(state, now, policy, decision.reason)


def _with_those(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Nobody else comes: start with those who came, if they are enough."""
    here = len(state.nodes)
    if here >= max(1, state.shape.nodes_min_count):
        return recovery_steps.begin_checks(state, now, policy, reason)
    count = max(state.shape.nodes_count, len(state.expected))
    return absences.too_few(state, now, policy, f"{here} of {count} nodes joined{absences.told(state)}")


def late_agent(state: RunState, event: AgentJoined | AgentRejoined, now: float, policy: Policy) -> Decision:
    """CHECKING: one more node, or one that came back: it is asked too."""
    state = replace(state, nodes=roster.joined(state, event))
    asked = device_test.ask(state, (event.node,), policy) if state.nodes[event.node].checked is None else ()
    if any(one.tests for one in asked):
        due = max(state.deadlines["check"].at, now + device_test.within_s(asked, policy))
        state = with_deadline(state, "check", due)
    return stay(state, f"{event.node} joined while nodes are being checked", *asked)


def node_checked(state: RunState, event: NodeChecked, now: float, policy: Policy) -> Decision:
    """CHECKING: one answer; the last one starts the gang."""
    if event.node not in state.nodes:
        return ignored(state, f"{event.node} is not in this job")
    node = state.nodes[event.node]
    if event.ok and node.checked is False:
        return ignored(state, f"{event.node} passed its checks, but it stays unused: {node.check_reason}")
    if node.trial:
        done = device_test.answered(state, event, now, policy)
        return _when_checked(done.state, now, policy, done.sentence)
    state = replace(state, nodes=roster.checked(state, event))
    return _when_checked(state, now, policy, f"{event.node} {roster.checks_told(event)}")


def late_answer(state: RunState, event: NodeChecked, now: float, policy: Policy) -> Decision:
    """STARTING: only whoever is on trial is still being asked."""
    if event.node not in state.nodes or not state.nodes[event.node].trial:
        return ignored(state, "nodes are not being checked now")
    done = device_test.answered(state, event, now, policy)
    return stay(done.state, done.sentence)


def lost_while_checking(state: RunState, event: NodeLost, now: float, policy: Policy) -> Decision:
    """CHECKING: do not wait for a node that is gone."""
    state = replace(state, nodes=roster.lost(state, event))
    return _when_checked(state, now, policy, f"{event.node} was lost while being checked: {event.why}")


def _when_checked(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    waiting = device_test.awaited(state, now)
    if waiting:
        # Said once per answer, so naming thousands each time would cost the square of their number, on disk too.
        rest = fold(waiting) if len(waiting) <= NAMED_MAX_COUNT else counted(len(waiting), "node")
        return stay(state, f"{reason}; waiting for {rest}", loud=True)
    return recovery_steps.begin_attempt(state, now, policy, reason)


def check_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """CHECKING: a checker that does not answer is unknown, which excludes nobody."""
    del event
    asked = device_test.ask(state, roster.unchecked(state), policy)
    late = device_test.overdue(state, now, policy)
    state, waiting = late.state, device_test.awaited(late.state, now)
    unknown = (
        f"no answer from the checks on {fold(waiting)} in {device_test.within_s(asked, policy):g} s: unknown is not bad"
    )
    why = "; ".join(filter(None, (late.sentence, unknown if waiting else "")))
    return recovery_steps.begin_attempt(state, now, policy, why)


def join_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """PENDING: start with those who came, if they are enough; a job that only ends is told so again."""
    if state.leaving:
        reason = "the run goes on in another job, and this one has not ended yet"
        again = with_deadline(state, event.name, now + policy.join_within_s)
        return stay(again, reason, EndJob(Phase.PENDING, 0, reason), loud=True)
    here, shape = len(state.nodes), state.shape
    count = max(shape.nodes_count, len(state.expected))
    names = fold(tuple(state.nodes)) if here else "none"
    reason = f"{here} of {count} nodes joined within {policy.join_within_s:g} s ({names}){absences.told(state)}"
    if here >= max(1, shape.nodes_min_count):
        return recovery_steps.begin_checks(state, now, policy, reason)
    return absences.too_few(state, now, policy, reason)


def sealed(state: RunState, event: AttemptSealed, now: float, policy: Policy) -> Decision:
    """STARTING: nothing older can be committed any more, so the choice will stand."""
    if state.stage is not StartStage.SEALING or event.attempt != state.attempt:
        return ignored(state, f"attempt {event.attempt} is not being sealed")
    new = replace(state, stage=StartStage.CHOOSING, brought_attempt=max(state.brought_attempt, state.attempt - 1))
    reason = f"older attempts are sealed; looking for the checkpoint that attempt {state.attempt} resumes from"
    return enter(
        new,
        Phase.STARTING,
        reason,
        ChooseResume(state.attempt, state.resume_request, state.best_step, poison.to_set_aside(state), state.cleared),
        deadlines={"choose": now + policy.choose_within_s},
        stage=StartStage.CHOOSING,
    )


def resume_chosen(state: RunState, event: ResumeChosen, now: float, policy: Policy) -> Decision:
    """STARTING: pick the nodes and launch."""
    if state.stage is not StartStage.CHOOSING or event.attempt != state.attempt:
        return ignored(state, f"attempt {event.attempt} is not choosing")
    weighed = quarantine.weigh(state, now, policy)
    if weighed.look_again:
        return recovery_steps.look_again(weighed.state, now, policy, weighed.sentence)
    state = weighed.state
    placed = placement.place(state.nodes, quarantine.active(state.excluded, now), state.shape, prefer=state.placement)
    if isinstance(placed, placement.NotEnough):
        return recovery_steps.too_few_nodes(state, now, policy, "; ".join(filter(None, (weighed.sentence, placed.why))))
    chosen = event.checkpoint
    record = replace(
        state.attempts[-1], nodes=placed.nodes, started=now, resumed_from_step=chosen.step if chosen else None
    )
    ranks = "1 rank" if placed.world_size == 1 else f"{placed.world_size} ranks"
    reason = f"attempt {state.attempt}: {ranks} on {fold(placed.nodes)}; {event.reason}"
    return enter(
        state,
        Phase.STARTING,
        reason,
        StartGang(state.attempt, placed, chosen),
        deadlines={"start": now + 2 * policy.start_within_s},
        stage=StartStage.LAUNCHING,
        placement=placed,
        resume=chosen,
        **poison.set_aside(state),
        resume_request="auto",  # what the request put out of use is remembered where checkpoints are judged
        checkpoint=chosen or state.checkpoint,
        best_step=max(state.best_step, chosen.step if chosen else -1),
        budget=budget.refill(state.budget, chosen.step) if chosen else state.budget,  # no look may have met it before
        attempts=(*state.attempts[:-1], record),
        waited_for_nodes=False,
        tries_count=0,
    )


def none_valid(state: RunState, event: NoneValid, now: float, policy: Policy) -> Decision:
    """STARTING: never from zero when something was committed; storage that cannot be read may come back."""
    if state.stage is StartStage.LAUNCHING or event.attempt != state.attempt:
        return ignored(state, f"attempt {event.attempt} is not choosing")
    if event.storage:
        return recovery_steps.storage_trouble(state, now, policy, event.reason)
    condemned = poison.to_set_aside(state)
    if condemned is not None:  # nothing was moved
        state, also = poison.cleared(replace(state, condemned=None), condemned.signature)
        reason = f"{poison.told(condemned)}; no other may be taken instead: {event.reason}{also}"
        return finish(state, Phase.FAILED, now, reason, Failure.SCRIPT)
    return finish(state, Phase.FAILED, now, event.reason, Failure.STORAGE)


def act_failed(state: RunState, event: ActFailed, now: float, policy: Policy) -> Decision:
    """STARTING: sealing or choosing was refused by the file system."""
    if state.stage is StartStage.LAUNCHING or event.what not in {SealAttempts.__name__, ChooseResume.__name__}:
        return ignored(state, f"{event.what} failed, for which nobody waits now: {event.why}")
    return recovery_steps.storage_trouble(state, now, policy, f"{event.what} failed: {event.why}")


def start_deadline(state: RunState, event: DeadlinePassed, now: float, policy: Policy) -> Decision:
    """STARTING: whichever stage it is, it took too long."""
    if event.name in {"seal", "choose"}:
        what = "sealing older attempts" if event.name == "seal" else "choosing a checkpoint"
        return recovery_steps.storage_trouble(state, now, policy, f"{what} took over {policy.choose_within_s:g} s")
    within_s = 2 * policy.start_within_s
    if state.store_stalled_since is not None:
        reason = "ranks may not be started before the run directory answers; waiting for it"
        return stay(with_deadline(state, event.name, now + within_s), reason, loud=True)
    why = f"not all ranks started within {within_s:g} s"
    return stop_all(state, now, policy, After.JUDGE, why, Evidence(start_failed=("", why)))


def gang_started(state: RunState, event: GangStarted, now: float, policy: Policy) -> Decision:
    """STARTING: all ranks live."""
    del now, policy
    if state.stage is not StartStage.LAUNCHING:
        return ignored(state, f"attempt {event.attempt} is not being launched")
    assert state.placement is not None
    origin = f"from step {state.resume.step}" if state.resume else "from the beginning"
    ranks = "1 rank runs" if state.placement.world_size == 1 else f"all {state.placement.world_size} ranks run"
    return enter(state, Phase.RUNNING, f"attempt {state.attempt}: {ranks} {origin}")


def start_failed(state: RunState, event: GangStartFailed, now: float, policy: Policy) -> Decision:
    """STARTING: some node refused; others may have launched."""
    if state.stage is not StartStage.LAUNCHING:
        return ignored(state, f"attempt {event.attempt} is not being launched")
    where = f"on {event.node}" if event.node else "somewhere"
    reason = f"attempt {event.attempt} could not start {where}: {event.why}"
    if event.retry_free:
        return stop_all(state, now, policy, After.AGAIN, reason, Evidence())
    return stop_all(state, now, policy, After.JUDGE, reason, Evidence(start_failed=(event.node, event.why)))


def rank_exited(state: RunState, event: RankExited, now: float, policy: Policy) -> Decision:
    """STARTING: a rank fell before the last one was up."""
    if not may_hold_ranks(state):
        return refused(state, "no rank has been launched yet")
    died = event.exit
    state = at_step(state, died.step)
    how = running.how_it_ended(died)
    reason = f"rank {died.rank} on {died.node} ended while ranks were starting ({how})"
    return stop_all(state, now, policy, After.JUDGE, reason, Evidence(exits=(died,)))


def rank_finished(state: RunState, event: RankFinished, now: float, policy: Policy) -> Decision:
    """STARTING: a very short script; all of it may be over before the last node says that it has launched."""
    if not may_hold_ranks(state):
        return refused(state, "no rank has been launched yet")
    state = at_step(state, event.step)
    assert state.placement is not None
    finished, world_size = state.finished | {event.rank}, state.placement.world_size
    if len(finished) >= world_size:
        state = replace(state, finished=finished)
        return stop_all(state, now, policy, After.SUCCEED, f"{all_of(world_size, 'rank')} finished")
    return stay(state, f"rank {event.rank} finished ({len(finished)} of {world_size})", finished=finished)


def first_step(state: RunState, event: FirstStepSeen, now: float, policy: Policy) -> Decision:
    """STARTING: some ranks step while the last ones are still being launched."""
    if not may_hold_ranks(state):
        return refused(state, f"step {event.step} of an attempt of which no rank has been launched yet")
    return running.first_step(state, event, now, policy)


def progress(state: RunState, event: ProgressMarked, now: float, policy: Policy) -> Decision:
    """STARTING: as with the first step."""
    if not may_hold_ranks(state):
        return refused(state, f"step {event.step} of an attempt of which no rank has been launched yet")
    return running.progress(state, event, now, policy)


def node_lost(state: RunState, event: NodeLost, now: float, policy: Policy) -> Decision:
    """STARTING: before the launch it costs nothing, after it the attempt."""
    state = replace(state, nodes=roster.lost(state, event))
    reason = f"{event.node} was lost: {event.why}"
    if not may_hold_ranks(state) or not roster.in_gang(state, event.node):
        return stay(state, reason)
    return stop_all(state, now, policy, After.JUDGE, reason, Evidence(silent={event.node: event.since}))


def agent_rejoined(state: RunState, event: AgentRejoined, now: float, policy: Policy) -> Decision:
    """STARTING: the ranks that the old agent was starting are gone."""
    state = replace(state, nodes=roster.joined(state, event))
    reason = f"the agent on {event.node} was restarted{': ' + event.why if event.why else ''}"
    if not may_hold_ranks(state) or not roster.in_gang(state, event.node):
        return stay(state, reason)
    return stop_all(state, now, policy, After.JUDGE, reason, Evidence(agents_died=(event.node,)))


def finding(state: RunState, event: FindingRaised, now: float, policy: Policy) -> Decision:
    """PENDING to STARTING: a node that is already known to be bad is not used."""
    state, found = history.heard(state, event.finding, now)
    sentence = finding_told(found)
    if not found.fatal or found.node not in state.nodes:
        return stay(state, sentence, nodes=planned_replacement.noted(state, found, now, policy))
    if policy.observe:
        return stay(state, f"{sentence}; observing only, so {found.node} is used all the same")
    state = replace(state, nodes=roster.found_bad(state, found))
    if may_hold_ranks(state) and roster.in_gang(state, found.node):
        return stop_all(state, now, policy, After.JUDGE, sentence, Evidence(findings=(found,)))
    if state.phase is Phase.CHECKING:
        return _when_checked(state, now, policy, sentence)
    return stay(state, sentence)


def notice(state: RunState, event: Notice, now: float, policy: Policy) -> Decision:
    """STARTING: the nodes go before anything was trained on them."""
    if event.kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        return cancel(state, "the scheduler" if event.kind is NoticeKind.CANCEL else "a signal", now, policy)
    if may_hold_ranks(state):
        reason = f"{event.kind.value} while ranks were starting"
        return stop_all(state, now, policy, running.after_notice(event), reason)
    if event.kind is NoticeKind.REQUEUE:
        return recovery_steps.come_back(state, now, policy, event.kind.value)
    return recovery_steps.requeue(state, now, policy, event.kind.value)


def cancel(state: RunState, by: str, now: float, policy: Policy) -> Decision:
    """PENDING to STARTING and WAITING: nothing runs, or what runs is stopped first."""
    if state.bringing is not None:
        return flush_to_disk.cancel(state, by, now, policy)
    state = replace(state, cancelled_by=by)
    if may_hold_ranks(state):
        return stop_all(state, now, policy, After.CANCEL, f"cancelled by {by}", checkpoint_first=False)
    return finish(state, Phase.CANCELLED, now, f"cancelled by {by}")
