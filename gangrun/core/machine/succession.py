"""A new term, a new job, a run taken up again.

A new supervisor adopts a gang that lives and is whole; anything less is stopped and started anew. ``redrive`` names
what the dead supervisor had asked for and the new one must ask again: every action is idempotent by its keys.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import (
    Action,
    Decision,
    EndJob,
    SealAttempts,
    TakeStacks,
)
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.events import TermTaken
from gangrun.core.evidence import Evidence
from gangrun.core.machine import total_time
from gangrun.core.machine.transitions import (
    WHY,
    enter,
    finish,
    left_by_its_job,
    may_hold_ranks,
    stay,
    stop_all,
    stop_gang,
    with_deadline,
)
from gangrun.core.model import EXIT_CODES, TERMINAL, After, Phase, RunState, StartStage, Underway
from gangrun.core.nodes import absences, device_test, roster
from gangrun.core.policy import Policy
from gangrun.core.recovery import choose

ABSENT_WITHIN_S = 5.0  # so long the last resort waits for what the job's launcher knows of its nodes


def redrive(state: RunState, now: float, policy: Policy) -> tuple[Action, ...]:
    """What must be asked again in this phase."""
    match state.phase:
        case Phase.CHECKING:
            return device_test.ask(state, roster.unchecked(state), policy)
        case Phase.STARTING if state.underway.stage is StartStage.SEALING:
            return (SealAttempts(state.attempt.number), *device_test.asked_again(state, policy))
        case Phase.RUNNING:
            stacks = (TakeStacks(state.attempt.number),) if state.attempt.evidence.hang is not None else ()
            return (*stacks, *device_test.asked_again(state, policy))
        case Phase.STOPPING:
            return (stop_gang(state, now, policy, state.reason, state.underway.saving),)
        case Phase.WAITING if state.underway.bringing is not None:
            return (flush_to_disk.again(state, now),)
        case Phase.WAITING if state.underway.submitting:
            return (choose.successor(state, now, state.reason),)
        case Phase.WAITING:
            return device_test.asked_again(state, policy)
        case Phase.SUCCEEDED | Phase.FAILED | Phase.CANCELLED | Phase.TIME_UP:
            return (EndJob(state.phase, EXIT_CODES[state.phase], state.reason, state.checkpoints.cleared),)
        case _:
            return ()


def term_taken(state: RunState, event: TermTaken, now: float, policy: Policy) -> Decision:
    """In every phase: know the term, then adopt, stop, or go on where the last supervisor was."""
    another_job = bool(state.job) and event.job != state.job
    new = replace(
        state,
        term=event.term,
        job=event.job,
        seq=max(state.seq, event.seq),
        attempt=replace(state.attempt, number=max(state.attempt.number, event.highest_attempt)),
        roster=replace(state.roster, expected=event.expected, alone=event.alone),
        store_stalled_since=None,  # its claim was written: the disk answers
    )
    who = f"supervisor #{event.term} took over"
    if state.term == 0:
        who = f"supervisor #{event.term} begins"
    if state.phase in TERMINAL:
        return stay(new, f"{who}; the run has ended", *redrive(new, now, policy))
    if state.ending.leaving and not another_job:
        reason = f"{who}; the run goes on in another job, so this one ends"
        return stay(new, reason, EndJob(Phase.PENDING, 0, reason))
    if another_job:
        return _in_another_job(new, now, policy, who)
    if new.underway.bringing is not None and event.alone:
        return flush_to_disk.go_on(new, now, policy, f"{who}, and no node is left that could hold a step in memory")
    if new.underway.bringing is not None:
        return stay(new, who, *redrive(new, now, policy))
    if event.alone and not new.underway.submitting:
        return _alone(new, now, policy, who)
    if new.attempt.number != state.attempt.number and state.phase not in {Phase.PENDING, Phase.CHECKING}:
        why = f"{who}; the nodes know attempt {new.attempt.number}, the journal only attempt {state.attempt.number}"
        evidence = state.attempt.evidence if state.underway.after is After.JUDGE else Evidence()
        return stop_all(new, now, policy, _what_was_to_follow(state), why, evidence)
    if state.phase is Phase.RUNNING:
        return _adopt(new, event, now, policy, who)
    if state.underway.stage is StartStage.LAUNCHING:
        if _whole(new, event):
            why = f"{who} and found all ranks of attempt {new.attempt.number} running"
            return enter(new, Phase.RUNNING, why, *device_test.asked_again(new, policy))
        why = f"{who} while attempt {new.attempt.number} was starting"
        return stop_all(new, now, policy, After.AGAIN, why, Evidence())
    if state.underway.stage is StartStage.CHOOSING:
        new = replace(new, underway=Underway(StartStage.SEALING))  # the last supervisor alone knew which commits stand
    if new.checkpoints.held is not None:  # this term has staging of its own that is not sealed, so it is brought there
        new = replace(new, checkpoints=replace(new.checkpoints, held=None))
    return stay(_with_time(new, now + policy.start_within_s), who, *redrive(new, now, policy))


def _alone(state: RunState, now: float, policy: Policy, who: str) -> Decision:
    """The last resort: nobody is left to beat, so all nodes count as lost; then as whenever too few are left."""
    reason = f"{who}, because all gangrun processes on the job's nodes have ended"
    gone = {name: replace(node, lost=True, silent_since=now) for name, node in state.roster.nodes.items()}
    state = replace(state, roster=replace(state.roster, nodes=gone))
    if state.phase is Phase.PENDING:  # what the launcher knows of each node is being read
        return stay(with_deadline(state, "join", now + ABSENT_WITHIN_S), reason, loud=True)
    if not may_hold_ranks(state):
        return absences.too_few(state, now, policy, f"{reason}{absences.told(state.roster)}")
    after = After.JUDGE if state.underway.after is None else state.underway.after
    held = state.attempt.placement.nodes if state.attempt.placement else ()
    died = tuple(dict.fromkeys((*state.attempt.evidence.agents_died, *held)))
    return stop_all(state, now, policy, after, reason, replace(state.attempt.evidence, agents_died=died))


def _what_was_to_follow(state: RunState) -> After:
    """A stop that is asked for anew must not forget why: a cancelled run would start again."""
    if state.underway.after is not None:
        return state.underway.after
    return After.REQUEUE if state.underway.submitting else After.AGAIN


def _with_time(state: RunState, at: float) -> RunState:
    """What is asked for again gets the time for it again."""
    for name, due in state.timers.deadlines.items():
        if name != WHY:
            state = with_deadline(state, name, max(due.at, at))
    return state


def _adopt(state: RunState, event: TermTaken, now: float, policy: Policy, who: str) -> Decision:
    """RUNNING: keep what lives. A node that has not answered yet is for the beats to judge."""
    assert state.attempt.placement is not None
    held = {inventory.node: inventory for inventory in event.inventories}
    for name in state.attempt.placement.nodes:
        if name in held and held[name].attempt != state.attempt.number:
            reason = f"{who}; {name} no longer holds attempt {state.attempt.number}"
            died = replace(state.attempt.evidence, agents_died=(*state.attempt.evidence.agents_died, name))
            return stop_all(state, now, policy, After.JUDGE, reason, died)
    missing = [name for name in state.attempt.placement.nodes if name not in held]
    ranks = sum(len(inventory.ranks) for inventory in event.inventories)
    answered = f"{ranks} of {state.attempt.placement.world_size} ranks reported in"
    what = f"{who} and adopted attempt {state.attempt.number} ({answered})"
    if missing:
        what += f"; no report yet from {', '.join(missing)}"
    return stay(_with_time(state, now + policy.stacks_within_s), what, *redrive(state, now, policy))


def _whole(state: RunState, event: TermTaken) -> bool:
    assert state.attempt.placement is not None
    alive = {rank.rank for held in event.inventories if held.attempt == state.attempt.number for rank in held.ranks}
    return alive | state.attempt.finished >= set(range(state.attempt.placement.world_size))


def _in_another_job(state: RunState, now: float, policy: Policy, who: str) -> Decision:
    reason = f"{who} in job {state.job}; waiting for its nodes"
    if state.underway.after is After.CANCEL:
        return finish(state, Phase.CANCELLED, now, f"cancelled by {state.ending.cancelled_by}")
    if state.underway.after is After.SUCCEED:
        return finish(state, Phase.SUCCEEDED, now, "all ranks finished before their job ended")
    if state.underway.after is After.TIME_UP:
        return total_time.end(state, now, policy)
    if state.underway.bringing is not None and state.underway.bringing.then in TERMINAL:
        return finish(state, state.underway.bringing.then, now, state.underway.bringing.reason, state.ending.failure)
    join_at = now + (ABSENT_WITHIN_S if state.roster.alone else policy.join_within_s)
    return enter(left_by_its_job(state, now, policy), Phase.PENDING, reason, deadlines={"join": join_at})


def first_state(state: RunState, now: float, policy: Policy) -> RunState:
    """The state with which a run's first term begins."""
    fresh = enter(state, Phase.PENDING, "waiting for nodes", deadlines={"join": now + policy.join_within_s}).state
    return replace(fresh, updated_at=now)
