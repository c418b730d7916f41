"""How a state becomes the next one.

The small verbs that the handlers in ``starting``, ``running``, ``stopping`` and ``waiting`` share: enter a phase,
stay in it, refuse, ignore, finish. Each returns a ``Decision``; none decides anything by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gangrun.core.actions import Action, Decision, EndJob, StopGang
from gangrun.core.evidence import Evidence
from gangrun.core.model import (
    EXIT_CODES,
    TERMINAL,
    After,
    AttemptRecord,
    Deadline,
    Failure,
    Fence,
    Outcome,
    Phase,
    RunState,
    StartStage,
    Timers,
    Underway,
)
from gangrun.core.policy import Policy
from gangrun.core.protocol.lease import fence_after_seal_s, fence_wait_s
from gangrun.core.recovery import budget
from gangrun.core.versions import Ranks

# Of the time until the nodes are taken away, for what comes after the stop: the record, the next job.
LEAVE_S, LEAVE_SHARE_MAX = 5.0, 1 / 3
NOTHING = Underway()
WHY = "why"  # the scheduler is being asked why an agent was told to end: goes on whatever the phase


def refused(state: RunState, reason: str) -> Decision:
    """The event may not happen here: nothing changes."""
    return Decision(state, (), reason, Outcome.REFUSED)


def ignored(state: RunState, reason: str) -> Decision:
    """The event is stale or says nothing new: nothing changes."""
    return Decision(state, (), reason, Outcome.IGNORED)


def stay(state: RunState, reason: str, *actions: Action, loud: bool = False, **changes: Any) -> Decision:
    """Same phase, same deadlines; ``loud``: the reason becomes what users read as the run's."""
    if loud:
        changes["reason"] = reason
    return Decision(replace(state, **changes), actions, reason)


def enter(
    state: RunState,
    phase: Phase,
    reason: str,
    *actions: Action,
    deadlines: Mapping[str, float] | None = None,
    underway: Underway = NOTHING,
    **changes: Any,
) -> Decision:
    """Another phase: its deadlines replace all earlier ones, and ``reason`` is what users read."""
    generation = state.timers.generation
    asking = WHY in state.timers.deadlines and phase not in TERMINAL
    fresh: dict[str, Deadline] = {WHY: state.timers.deadlines[WHY]} if asking else {}
    for name, at in (deadlines or {}).items():
        generation += 1
        fresh[name] = Deadline(at, generation)
    timers = Timers(fresh, generation)
    new = replace(state, phase=phase, reason=reason, underway=underway, timers=timers, **changes)
    return Decision(new, actions, reason)


def with_deadline(state: RunState, name: str, at: float) -> RunState:
    """The state with one more deadline (or a moved one)."""
    generation = state.timers.generation + 1
    return replace(state, timers=Timers({**state.timers.deadlines, name: Deadline(at, generation)}, generation))


def without_deadline(state: RunState, name: str) -> RunState:
    """The state without that deadline."""
    left = {key: due for key, due in state.timers.deadlines.items() if key != name}
    return replace(state, timers=Timers(left, state.timers.generation))


def close_attempt(state: RunState, now: float, outcome: str, reason: str) -> tuple[AttemptRecord, ...]:
    """The attempts with the newest one ended, if it was still open."""
    if not state.attempts or state.attempts[-1].ended is not None:
        return state.attempts
    step = state.attempt.step
    last = replace(
        state.attempts[-1], ended=now, outcome=outcome, reason=reason, last_step=step,
        last_told=max(step, state.attempt.printed_step),
    )  # fmt: skip
    return (*state.attempts[:-1], last)


def finish(state: RunState, phase: Phase, now: float, reason: str, failure: Failure | None = None) -> Decision:
    """The run ends here, with its story."""
    return enter(
        state,
        phase,
        reason,
        EndJob(phase, EXIT_CODES[phase], reason, state.checkpoints.cleared),
        attempts=close_attempt(state, now, phase.value.lower(), reason),
        ending=replace(state.ending, failure=failure, leaving=False),
    )


def stop_bound_s(policy: Policy, checkpoint_first: bool) -> float:
    """How long a stop may take before it is asked again: every grace, then the longest lease."""
    save_s = policy.checkpoint_grace_s if checkpoint_first else 0.0
    return save_s + policy.stop_grace_s + fence_wait_s(policy.timing) + policy.stop_within_s


def stop_all(
    state: RunState,
    now: float,
    policy: Policy,
    after: After,
    reason: str,
    evidence: Evidence | None = None,
    *,
    checkpoint_first: bool = False,
    settle_s: float = 0.0,
    peer_gone: bool = False,
) -> Decision:
    """Stop every rank, then do ``after``. ``peer_gone``: a rank is known to be, so that no other can finish a step."""
    reason += _cut_short(state, now, policy) if checkpoint_first else ""
    stop = stop_gang(state, now, policy, reason, checkpoint_first)
    alone_s = policy.peer_gone_grace_s if peer_gone and not policy.replica_ranks_count else None
    stop = replace(stop, settle_s=settle_s, peer_gone_grace_s=alone_s)
    return enter(
        state if evidence is None else with_evidence(state, evidence),
        Phase.STOPPING,
        reason,
        stop,
        deadlines={"stop": now + stop_bound_s(policy, checkpoint_first)},
        underway=Underway(after=after, saving=stop.checkpoint_first),
        tries_count=0,
    )


def stop_or_note(
    state: RunState,
    now: float,
    policy: Policy,
    reason: str,
    evidence: Evidence,
    settle_s: float = 0.0,
    *,
    peer_gone: bool = False,
) -> Decision:
    """Something fell: stop every rank and judge; if they are being stopped already it is evidence only."""
    if state.phase is Phase.STOPPING:
        return stay(with_evidence(state, evidence), reason)
    why = f"{reason}; stopping all ranks"
    return stop_all(state, now, policy, After.JUDGE, why, evidence, settle_s=settle_s, peer_gone=peer_gone)


def stop_gang(state: RunState, now: float, policy: Policy, reason: str, checkpoint_first: bool) -> StopGang:
    """The act that stops all ranks, fitted into the time until the nodes are taken away, if they are."""
    if state.ending.gone_at is None or now > state.ending.gone_at:
        return StopGang(state.attempt.number, policy.stop_grace_s, checkpoint_first, reason)
    stop_s, save_s = _graces(state, state.ending.gone_at - now, policy)
    return StopGang(state.attempt.number, stop_s, checkpoint_first and save_s > 0, reason, save_s)


def _graces(state: RunState, left_s: float, policy: Policy) -> tuple[float, float]:
    """Seconds between SIGTERM and SIGKILL, and those to save before that: some of each, however short the time."""
    ranks_s = left_s - min(LEAVE_S, LEAVE_SHARE_MAX * left_s)
    stop_s = min(policy.stop_grace_s, ranks_s / 2)
    return stop_s, min(policy.save_within_s(state.ending.measured_save_s), ranks_s - stop_s)


def _cut_short(state: RunState, now: float, policy: Policy) -> str:
    """What a script may have too little time for, in words; "" where nobody takes the nodes away so soon."""
    if state.ending.gone_at is None or now > state.ending.gone_at:
        return ""
    left_s = state.ending.gone_at - now
    _, save_s = _graces(state, left_s, policy)
    wanted_s = policy.save_within_s(state.ending.measured_save_s)
    if save_s >= wanted_s:
        return ""
    return f"; the nodes go in {left_s:.3g} s, so a save gets {save_s:.2g} of its {wanted_s:g} s"


def with_evidence(state: RunState, evidence: Evidence) -> RunState:
    """The state in which that is the evidence of this attempt."""
    return replace(state, attempt=replace(state.attempt, evidence=evidence))


def fenced(state: RunState, nodes: Iterable[str], until: float, now: float) -> RunState:
    """The state that knows that ranks may live on these nodes until then."""
    kept = state.fence.nodes if state.fence.until > now else ()
    names = tuple(sorted({*kept, *nodes}))
    return replace(state, fence=Fence(max(until, state.fence.until) if names else 0.0, names))


def left_by_its_job(state: RunState, now: float, policy: Policy) -> RunState:
    """The state as another job finds it. Ranks of the last one can no longer be asked: staging seals and leases keep
    them apart from the next gang.
    """
    if may_hold_ranks(state):
        held = state.attempt.placement.nodes if state.attempt.placement else ()
        state = fenced(state, held, now + fence_after_seal_s(policy.timing), now)
    return replace(
        without_deadline(state, WHY),
        ending=replace(state.ending, gone_at=None, leaving=False),
        roster=replace(
            state.roster,
            nodes={},
            absent={},
            waited_for_nodes=False,
            refill_failures_count=0,
            refill_failed_at=0.0,
            refills_off=False,
            refill_until=0.0,
        ),
        attempts=close_attempt(state, now, "job ended", "the job that held it ended"),
        attempt=replace(state.attempt, evidence=Evidence(), finished=Ranks(), reach=-1),
        tries_count=0,
    )


def at_step(state: RunState, step: int) -> RunState:
    """The state that knows that this attempt got to ``step`` at least; one that no attempt had reached is progress."""
    if step <= state.attempt.step:
        return state
    known_step = state.checkpoints.observed_step
    return replace(
        state,
        attempt=replace(state.attempt, step=step),
        checkpoints=replace(state.checkpoints, observed_step=max(known_step, step)),
        budget=budget.refill(state.budget, step, known_step),
    )


def at_log_step(state: RunState, step: int) -> RunState:
    """The state that knows that ranks printed ``step``. It refills the budget and counts for nothing else: what a line
    says may count from 1 in each attempt.
    """
    if step > state.attempt.printed_step:
        state = replace(state, attempt=replace(state.attempt, printed_step=step))
    known_step = state.checkpoints.logged_step
    if step <= known_step or state.attempt.step >= 0:
        return state
    refilled = budget.refill(state.budget, step, known_step)
    return replace(state, checkpoints=replace(state.checkpoints, logged_step=step), budget=refilled)


def is_unlaunched(state: RunState) -> bool:
    """Is the newest attempt one that was opened, but of which no start was decided?"""
    newest = state.attempts[-1] if state.attempts else None
    return newest is not None and newest.ended is None and not newest.nodes and newest.number == state.attempt.number


def may_hold_ranks(state: RunState) -> bool:
    """Has this attempt been told to start? Then a stop must be proven, not assumed."""
    return state.phase in {Phase.RUNNING, Phase.STOPPING} or (
        state.phase is Phase.STARTING and state.underway.stage is StartStage.LAUNCHING
    )
