"""A rank that takes longer than the others for its own work: it is named, once, and nobody else is."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.evidence import AlertKind
from gangrun.core.model import Phase
from gangrun.core.policy import TrendPolicy
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

SLOW = 3


def world(plan: FaultPlan, steps_count: int = 900) -> World:
    usual = Setup.of(4, script=Script(steps_count=steps_count, checkpoint_every_count=100))
    policy = replace(usual.policy, trends=TrendPolicy(window_s=200.0))
    return World(replace(usual, policy=policy), plan, 3)


def test_the_slow_rank_is_named_once_and_once_more_when_it_is_as_fast_as_the_others_again() -> None:
    one = world(FaultPlan().fail_at(300.0, Kind.SLOW_RANK, rank=SLOW, amount=1.5, for_s=400.0))
    state = one.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, one.story()
    slow = [seen for seen in state.alerts if seen.alert.kind is AlertKind.SLOW_RANK]
    assert [seen.alert.rank for seen in slow] == [SLOW], one.story()
    assert state.attempt.placement is not None
    assert slow[0].alert.node == next(seat.slot.node for seat in state.attempt.placement.seats if SLOW in seat.ranks), (
        one.story()
    )
    assert 0.45 < slow[0].alert.share < 0.55 and slow[0].until is not None
    told = [record for record in one.checker.records if record.kind == "AlertSeen"]
    assert len(told) == 2 * len(state.alerts), "an event for each change, not for each heartbeat"


def test_the_training_that_slows_down_for_it_is_told_too() -> None:
    one = world(FaultPlan().fail_at(700.0, Kind.SLOW_RANK, rank=SLOW, amount=1.5), 1400)
    state = one.run().state
    assert state is not None
    found = {seen.alert.kind: seen.alert for seen in state.alerts}
    assert found.keys() == {AlertKind.SLOW_RANK, AlertKind.SLOWER}, one.story()
    before, now = found[AlertKind.SLOWER].rates
    assert (round(before, 2), round(now, 2)) == (1.0, 0.67)


def test_a_gang_whose_ranks_are_alike_has_no_alert() -> None:
    one = world(FaultPlan().fail_at(100.0, Kind.SLOW_RANK, rank=SLOW, amount=1.1))
    state = one.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED and state.alerts == (), one.story()
