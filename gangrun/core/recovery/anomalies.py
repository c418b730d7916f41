"""What is wrong with the training's numbers: remembered, told, and acted on if the user asked for it.

A rollback goes to the newest checkpoint that is proven to be from before the anomaly. The loss of a step is computed
with the weights that the steps before it left. So a checkpoint counts as good only if the step after it had a good loss
too, whether its name counts the steps that are done or names the last one (``MARGIN_STEPS``). Later ones are set aside.

An anomaly is noted twice at least: by ``AnomalySeen`` while ranks train, and with each rank's own end, since a short
run may be over before its first heartbeat. Both lead to one ``SeenAnomaly`` for each stretch of bad reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangrun.core.evidence import Anomaly, AnomalyKind, AnomalyStop, SeenAnomaly
from gangrun.core.model import OnAnomaly, Poisoned, RunState
from gangrun.core.policy import Policy
from gangrun.core.recovery.loss_rules import CALM_COUNT
from gangrun.core.text import is_save_time, listed

KEPT_MAX_COUNT = 32
SPOILING = frozenset({AnomalyKind.NOT_FINITE, AnomalyKind.BLOW_UP})  # the weights may be of no use any more


def noted(state: RunState, rank: int, node: str, anomaly: Anomaly, at: float) -> tuple[RunState, SeenAnomaly]:
    """The state that knows it, and what it knows: the earliest beginning, the newest report."""
    number = state.attempt.number
    known = next((one for one in state.anomalies if one.attempt == number and _is_same(one.anomaly, anomaly)), None)
    if known is None:
        one = SeenAnomaly(number, rank, node, anomaly, at)
        kept = [old for old in state.anomalies if old.rolled_back]
        others = [old for old in state.anomalies if not old.rolled_back][-(KEPT_MAX_COUNT - 1) :]
        in_order = sorted((*kept, *others, one), key=lambda other: (other.attempt, other.at))
        return replace(state, anomalies=tuple(in_order)), one
    before = known.anomaly
    newest = anomaly if anomaly.step >= before.step else before
    since_step, count = min(before.since_step, anomaly.since_step), max(before.count, anomaly.count)
    lasting = before.lasting or anomaly.lasting
    where = (rank, node) if anomaly.since_step < before.since_step else (known.rank, known.node)
    merged = replace(newest, since_step=since_step, count=count, lasting=lasting)
    one = replace(known, rank=where[0], node=where[1], anomaly=merged)
    if one == known:
        return state, known
    return replace(state, anomalies=tuple(one if other is known else other for other in state.anomalies)), one


def _is_same(known: Anomaly, other: Anomaly) -> bool:
    """Of one stretch: no calm lay between them."""
    if (known.kind, known.what) != (other.kind, other.what):
        return False
    return known.since_step <= other.step + CALM_COUNT and other.since_step <= known.step + CALM_COUNT


def with_last_words(state: RunState, rank: int, node: str, anomalies: Iterable[Anomaly], at: float) -> RunState:
    """The state that knows what a rank had reported of its loss when it ended."""
    for anomaly in anomalies:
        state, _ = noted(state, rank, node, anomaly, at)
    return state


def told(one: SeenAnomaly) -> str:
    """As news, which are read while it lasts and afterwards: ``the loss became NaN at step 100 (rank 0 on n1)``."""
    anomaly = one.anomaly
    began, where = f"at step {anomaly.since_step}", f"(rank {one.rank} on {one.node})"
    match anomaly.kind:
        case AnomalyKind.NOT_FINITE if anomaly.count == 1:
            return f"the {anomaly.what} was {anomaly.value} at step {anomaly.step} {where}"
        case AnomalyKind.NOT_FINITE:
            return f"the {anomaly.what} became {anomaly.value} {began} {where}"
        case AnomalyKind.BLOW_UP:
            return f"the loss rose far above its {anomaly.usual} {began}, to {anomaly.value} by now {where}"
        case AnomalyKind.GRADIENT:
            return (
                f"the gradient norm rose over 10 times its {anomaly.usual} {began}, to {anomaly.value} by now {where}"
            )
        case AnomalyKind.FLAT:  # pragma: no branch - the enum has no other member
            return f"the loss stopped changing {began}: {anomaly.value} in {anomaly.count + 1} reports {where}"


def summary(state: RunState) -> str:
    """Of the newest attempt, once it is over; "" if there was nothing."""
    return listed([past_words(one) for one in state.anomalies if one.attempt == state.attempt.number])


def past_words(one: SeenAnomaly) -> str:
    """As it was: ``the loss was NaN from step 100 to step 120 (rank 0 on n1)``."""
    anomaly = one.anomaly
    until = f" to step {anomaly.step}" if anomaly.step > anomaly.since_step else ""
    during = f"{'from' if until else 'at'} step {anomaly.since_step}{until} (rank {one.rank} on {one.node})"
    match anomaly.kind:
        case AnomalyKind.FLAT:
            return f"the loss stayed at {anomaly.value} {during}"
        case AnomalyKind.NOT_FINITE:
            return f"the {anomaly.what} was {anomaly.value} {during}"
        case _:
            return f"the {anomaly.what} was far above its {anomaly.usual} {during}"


MARGIN_STEPS = 1


def acts_on(one: SeenAnomaly, policy: Policy) -> bool:
    """Did the user ask for more than an alert here?"""
    return policy.on_anomaly is not OnAnomaly.ALERT and one.anomaly.lasting and one.anomaly.kind in SPOILING


def stop_for(state: RunState, one: SeenAnomaly, policy: Policy) -> AnomalyStop:
    """Why all ranks are stopped, and what follows. The same step again after a rollback is no accident."""
    said, since_step = told(one), one.anomaly.since_step
    if policy.on_anomaly is OnAnomaly.CHECKPOINT:
        back = f"gangrun resume --resume STEP goes back to a step below {_first_bad(since_step)}"
        asked = f"all ranks save and stop, because of --on-anomaly checkpoint; {back}"
        return AnomalyStop(since_step, f"{said}; {asked}", is_final=True)
    before = [old for old in state.anomalies if old.rolled_back and old.anomaly.since_step == since_step]
    if not before:
        skipped = f", without {policy.skip_batches_count} global batches" if policy.skip_batches_count else ""
        back = f"all ranks go back to the newest checkpoint from before step {_first_bad(since_step)}{skipped}"
        return AnomalyStop(since_step, f"{said}; {back}", is_final=False)
    again = f"{said}; attempt {before[-1].attempt} came to the same at this step, and a rollback did not cure it"
    if before[-1].skipped_count:
        without = f"although {before[-1].skipped_count} global batches were left out: the data is not at fault"
        return AnomalyStop(since_step, f"{again}, {without}", is_final=True)
    cure = "look at its batch, or leave it out with --skip-batches N"
    return AnomalyStop(since_step, f"{again}: the data of this step is at fault; {cure}", is_final=True, is_data=True)


def _first_bad(since_step: int) -> int:
    return max(0, since_step - MARGIN_STEPS)


def roll_back(state: RunState, stop: AnomalyStop, policy: Policy) -> RunState:
    """The state whose next choice sets aside what was saved since the anomaly began."""
    number, first_bad = state.attempt.number, _first_bad(stop.since_step)
    why = f"it may have been saved after the loss went bad at step {stop.since_step} of attempt {number}"
    bad = Poisoned(first_bad, "", "", number, why, stop.sentence)
    anomalies = tuple(
        replace(one, rolled_back=True, skipped_count=policy.skip_batches_count)
        if one.attempt == number and one.anomaly.since_step == stop.since_step
        else one
        for one in state.anomalies
    )
    return replace(state, anomalies=anomalies, checkpoints=replace(state.checkpoints, condemned=bad))


def skips(state: RunState, resume_step: int) -> tuple[tuple[int, int], ...]:
    """(batches to train on after the resume point, batches to leave out then) of the rollbacks that are still ahead.

    Batches are left out from two before the anomaly on: the one before it may have spoilt the weights, and a script may
    count its steps from 0 or from 1. What lies before the resume point was left out by an earlier attempt.
    """
    if is_save_time(resume_step):
        return ()
    ahead = {
        (one.anomaly.since_step - MARGIN_STEPS - 1 - resume_step, one.skipped_count)
        for one in state.anomalies
        if one.rolled_back and one.skipped_count
    }
    return tuple(sorted((max(0, after), count) for after, count in ahead if after >= 0 or resume_step < 0))
