"""Which rung comes next.

Called when all ranks are down, or when a start cannot go on: weigh the evidence (``blame``), charge the budget
(``budget``), leave guilty nodes out (``quarantine``), and take the cheapest rung that will work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangrun.core.actions import Decision
from gangrun.core.checkpoints import poison
from gangrun.core.machine.transitions import close_attempt, enter, finish
from gangrun.core.model import Cause, Failure, Phase, Rung, RunState, Verdict
from gangrun.core.nodes import device_test, placement, quarantine
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame, budget, recovery_steps


def judge(state: RunState, now: float, policy: Policy) -> Decision:
    """All ranks are down: conclude whose fault it was, then choose the rung. Who only observes ends the run with what
    it died of, and tells whom that would leave out and what would come next.
    """
    judged = _weigh(state, now, policy)
    decision = _conclude(judged, now, replace(policy, observe=False))
    if not policy.observe:
        return decision
    reason = decision.reason
    if decision.state.phase is not Phase.FAILED:
        reason = f"{reason}; observing only, so nothing of that is done"
    failure = decision.state.failure or judged.verdict.failure
    return finish(replace(judged.state, excluded=state.excluded), Phase.FAILED, now, reason, failure)


def unobserved(state: RunState, now: float, policy: Policy) -> str:
    """What would be concluded and done if all ranks were down now and nobody only observed."""
    return judge(state, now, replace(policy, observe=False)).reason


@dataclass(frozen=True, slots=True)
class _Judged:
    state: RunState
    verdict: Verdict
    ruling: budget.Ruling
    sentence: str


def _weigh(state: RunState, now: float, policy: Policy) -> _Judged:
    verdict = blame.judge(
        replace(state.evidence, findings=blame.recent(state.evidence.findings, now)),
        attempt=state.attempt,
        attempt_step=state.attempt_step,
        placement=state.placement,
        sightings=state.budget.sightings,
        suspicion=blame.unfaded(state.suspicion, state.suspected_at, now),
        nodes_count=len(state.nodes),
        policy=policy,
        load=poison.load_of(state),
        finished=state.finished,
    )
    loaded_step = state.resume.step if state.resume else -1
    charged, ruling = budget.charge(
        state.budget, verdict, state.attempt, state.attempt_step, policy, state.run, loaded_step
    )
    accused = device_test.accused(state, verdict, now, policy)
    guilty = [name for name in _guilty(state, verdict, now, policy) if name not in accused]
    fatal = [found for found in state.evidence.findings if found.fatal]
    broken, boots = {found.node for found in fatal}, {found.node: found.boot_id for found in fatal if found.boot_id}
    count = len(state.nodes)
    resets = quarantine.cured_by_reset(fatal)
    left_out = quarantine.exclude(state.excluded, guilty, verdict.sentence, now, policy, count, broken, boots, resets)
    state = replace(
        state,
        budget=charged,
        excluded=left_out.excluded,
        suspicion=blame.suspect(blame.unfaded(state.suspicion, state.suspected_at, now), verdict),
        suspected_at={**state.suspected_at, **dict.fromkeys(verdict.suspects, now)},
        attempts=close_attempt(state, now, verdict.cause.value, verdict.sentence),
    )
    sentence = f"{verdict.sentence}; {left_out.sentence}" if left_out.sentence else verdict.sentence
    state = device_test.begun(state, accused, f"attempt {state.attempt}: {verdict.cause.value}")
    return _Judged(state, verdict, ruling, sentence + device_test.told(state, accused, now))


def _conclude(judged: _Judged, now: float, policy: Policy) -> Decision:
    state, verdict, ruling, sentence = judged.state, judged.verdict, judged.ruling, judged.sentence
    if verdict.final or not ruling.allowed:
        why, failure = (
            (sentence, verdict.failure) if verdict.final else (f"{sentence}; {ruling.sentence}", Failure.BUDGET)
        )
        state, also = poison.cleared(state, verdict.signature)
        return finish(state, Phase.FAILED, now, f"{why}{also}", failure)
    if verdict.cause is Cause.POISONED:
        state = poison.condemn(state, verdict, blame.traceback_told(state.evidence), policy)
    return _climb(state, verdict, sentence, ruling.backoff_s, now, policy)


def leave_behind(state: RunState, now: float, policy: Policy, reason: str) -> Decision:
    """Nobody can prove that all ranks are gone, so nothing may start here. The next job may, on other nodes and after
    the leases; without a scheduler the run ends.
    """
    if not policy.can_requeue or policy.observe:
        return finish(state, Phase.FAILED, now, reason, Failure.NODE)
    bad = [found.node for found in state.evidence.findings if found.fatal] + list(state.evidence.silent)
    left_out = quarantine.exclude(state.excluded, bad, reason, now, policy, len(state.nodes))
    sentence = f"{reason}; {left_out.sentence}" if left_out.sentence else reason
    return recovery_steps.requeue(replace(state, excluded=left_out.excluded), now, policy, sentence)


def _guilty(state: RunState, verdict: Verdict, now: float, policy: Policy) -> tuple[str, ...]:
    """Whom to leave out. Nodes that may be innocent go only where the gang can do without them: a silent one may have
    been asleep, and one against which there is nothing but that ranks fell there first may be as good as any.
    """
    blamed = verdict.blamed
    doubtful = blamed if verdict.cause is Cause.NODE_SILENT else blame.on_suspicion_only(verdict)
    if not doubtful or policy.can_requeue:
        return blamed
    excluded = quarantine.active(state.excluded, now)
    if placement.can_do_without(state.nodes, excluded, state.shape, blamed):
        return blamed
    return tuple(name for name in blamed if name not in doubtful)


def _climb(state: RunState, verdict: Verdict, sentence: str, backoff_s: float, now: float, policy: Policy) -> Decision:
    before = state.placement
    nodes = device_test.in_prospect(state, now)
    placed = placement.place(nodes, quarantine.active(state.excluded, now), state.shape, prefer=before)
    if isinstance(placed, placement.NotEnough):
        return recovery_steps.too_few_nodes(state, now, policy, f"{sentence}; {placed.why}", verdict.failure)
    match placement.rung_of(before, placed):
        case Rung.SWAP:
            how = f"restarting on {fold(placed.nodes)}"
        case Rung.SHRINK:
            how = f"restarting smaller, on {fold(placed.nodes)}"
        case _:
            how = "restarting in place"
    if backoff_s > 0:
        reason = f"{sentence}; {how} in {backoff_s:.0f} s"
        asked = device_test.ask(state, device_test.on_trial(state), policy)
        return enter(state, Phase.WAITING, reason, *asked, deadlines={"backoff": now + backoff_s})
    return recovery_steps.begin_checks(state, now, policy, f"{sentence}; {how}")
