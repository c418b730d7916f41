"""A rank that takes longer than the others for its own work: it is named, once, and nobody else is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gangrun.core.evidence import AlertKind
from gangrun.core.model import OnSlowRank, Phase, RunState
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


def on_gpus(plan: FaultPlan, *, spares: int = 0, moves: bool = False, seed: int = 3) -> World:
    """Four ranks whose collectives are NCCL's: only their GPUs tell which of them is slow."""
    script = Script(steps_count=900, checkpoint_every_count=100, on_gpus=True, saves_when_asked=True)
    usual = Setup.of(4, script=script)
    what = OnSlowRank.MOVE if moves else OnSlowRank.ALERT
    policy = replace(usual.policy, trends=TrendPolicy(window_s=100.0), on_slow_rank=what)
    pool_count = usual.pool_count + spares
    return World(replace(usual, policy=policy, spares_count=spares, pool_count=pool_count), plan, seed)


THROTTLED = FaultPlan().fail_at(400.0, Kind.SLOW_RANK, rank=SLOW, amount=1.5)


def test_with_nccl_the_throttled_gpu_is_named_by_its_clock_and_no_rank_by_its_pace() -> None:
    one = on_gpus(THROTTLED)
    state = one.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, one.story()
    found = {seen.alert.kind: seen.alert for seen in state.alerts}
    assert found.keys() == {AlertKind.SLOW_GPU, AlertKind.SLOWER}, one.story()
    slow = found[AlertKind.SLOW_GPU]
    assert (slow.rank, slow.signs) == (SLOW, ("its clock is 1,320 MHz, the others' 1,980 (HW thermal slowdown)",))
    assert 0.45 < slow.share < 0.55 and len(state.attempts) == 1


def test_gpus_that_are_alike_are_no_alert() -> None:
    state = on_gpus(FaultPlan().fail_at(400.0, Kind.SLOW_RANK, rank=SLOW, amount=1.05)).run().state
    assert state is not None and state.phase is Phase.SUCCEEDED and state.alerts == ()


@pytest.mark.parametrize("seed", range(5))
def test_where_the_user_wants_it_a_spare_takes_the_throttled_gpus_place_once(seed: int) -> None:
    one = on_gpus(THROTTLED, spares=1, moves=True, seed=seed)
    state = one.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, one.story()
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "succeeded"], one.story()
    before, after = (attempt.nodes for attempt in state.attempts)
    slow = next(seen.alert.node for seen in state.alerts if seen.alert.kind is AlertKind.SLOW_GPU)
    assert slow in before and slow not in after and len(set(before) & set(after)) == 3
    assert state.health.excluded == {} and state.budget.total_count == 0, "it is set aside, and no restart is charged"
    assert state.roster.nodes[slow].slow and len([seen for seen in state.alerts if seen.attempt == 1]) == 0


def test_without_a_spare_nobody_moves() -> None:
    one = on_gpus(THROTTLED, moves=True)
    state = one.run().state
    assert state is not None and [attempt.outcome for attempt in state.attempts] == ["succeeded"], one.story()


# ---- --race-stragglers -----------------------------------------------------------------------------------------------

SLOW_NODE, SPARE = 2, 4  # of ten nodes in one job; the first four train


def race(plan: FaultPlan, *, spares: int = 1, seed: int = 3, steps_count: int = 1200, step_s: float = 1.0) -> World:
    """A save each 100 steps, and when asked. The comparison takes some 100 steps of a second each."""
    script = Script(step_s, steps_count=steps_count, checkpoint_every_count=100, saves_when_asked=True)
    usual = Setup.of(4, script=script)
    policy = replace(usual.policy, trends=TrendPolicy(window_s=100.0), race_stragglers=True)
    pool_count = usual.pool_count + spares
    return World(replace(usual, policy=policy, spares_count=spares, pool_count=pool_count), plan, seed)


def ran(one: World) -> tuple[RunState, list[str]]:
    state = one.run(settle_s=10_000.0).state
    assert state is not None and state.phase is Phase.SUCCEEDED, one.story()
    assert state.health.excluded == {} and state.race.open is None, one.story()
    return state, [record.reason for record in one.checker.records]


@pytest.mark.parametrize("seed", range(3))
def test_a_node_whose_ranks_are_faster_on_the_spare_stays_set_aside_with_both_figures(seed: int) -> None:
    one = race(FaultPlan().fail_at(200.0, Kind.SLOW_NODE, node=SLOW_NODE, amount=1.5), seed=seed)
    state, _ = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "succeeded"], one.story()
    slow = one.nodes[SLOW_NODE].name
    assert slow in state.attempts[0].nodes and slow not in state.attempts[1].nodes
    why = state.roster.nodes[slow].slow
    words = rf"a step took 1\.5\d? s with rank {SLOW_NODE} on {slow} and 1 s with it on {one.nodes[SPARE].name}"
    assert re.search(words, why), why  # heartbeats tell a step's time to within one per cent
    assert state.race.followed == () and state.budget.total_count == 0


def test_if_the_ranks_are_as_slow_on_the_spare_their_node_is_innocent_and_they_move_no_more() -> None:
    plan = FaultPlan().fail_at(200.0, Kind.HEAVY_RANK, node=None, rank=SLOW_NODE, amount=1.5)
    one = race(plan, spares=2, steps_count=5000)
    state, told = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "succeeded"], one.story()
    assert not any(node.slow for node in state.roster.nodes.values())
    assert state.race.followed == (SLOW_NODE,)
    assert any(f"the slowness followed rank {SLOW_NODE}" in reason for reason in told), one.story()
    assert state.updated_at > 2 * 3600.0, "long after the hour in which no second node is left for it"


def test_from_a_spare_that_is_slower_still_the_ranks_go_back_once() -> None:
    plan = FaultPlan().fail_at(100.0, Kind.SLOW_NODE, node=SPARE, amount=3.0)
    one = race(plan.fail_at(200.0, Kind.SLOW_NODE, node=SLOW_NODE, amount=1.5), steps_count=1500)
    state, _ = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "moved", "succeeded"], one.story()
    first, second, third = (attempt.nodes for attempt in state.attempts)
    assert first == third != second
    spare = one.nodes[SPARE].name
    why = state.roster.nodes[spare].slow
    assert re.search(rf"1\.5\d? s with rank {SLOW_NODE}\b", why) and f"3 s with it on {spare}" in why, why
    assert state.race.back is None


@pytest.mark.parametrize("at_s", [375.0, 400.0])
def test_a_new_supervisor_in_the_middle_drops_the_comparison_and_blames_nobody(at_s: float) -> None:
    plan = FaultPlan().fail_at(200.0, Kind.SLOW_NODE, node=SLOW_NODE, amount=1.5)
    one = race(plan.fail_at(at_s, Kind.KILL_SUPERVISOR))
    state, told = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "succeeded"], one.story()
    assert any("another supervisor took over meanwhile. Neither is blamed" in reason for reason in told), one.story()
    assert not any(node.slow for node in state.roster.nodes.values())


def test_a_rank_that_falls_in_the_middle_drops_the_comparison() -> None:
    plan = FaultPlan().fail_at(200.0, Kind.SLOW_NODE, node=SLOW_NODE, amount=1.5)
    one = race(plan.fail_at(400.0, Kind.KILL_RANK, node=None, rank=0))
    state, told = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "killed", "succeeded"], one.story()
    assert any("is not compared: the ranks were stopped for another reason" in reason for reason in told), one.story()
    assert not any(node.slow for node in state.roster.nodes.values())


def test_steps_that_take_long_are_compared_too() -> None:
    """The trend window has ten of them, and a rank is judged over fifty."""
    one = race(FaultPlan().fail_at(300.0, Kind.SLOW_NODE, node=SLOW_NODE, amount=1.5), steps_count=200, step_s=10.0)
    state, _ = ran(one)
    assert [attempt.outcome for attempt in state.attempts] == ["moved", "succeeded"], one.story()
    (alert,) = [seen.alert for seen in state.alerts if seen.alert.kind is AlertKind.SLOW_RANK]
    assert 700.0 < alert.over_s < 900.0, alert
    slow = one.nodes[SLOW_NODE].name
    why = state.roster.nodes[slow].slow
    figures = re.search(rf"a step took (.+) s with rank {SLOW_NODE} on {slow} and (.+) s with it on ", why)
    assert figures is not None, why
    assert [float(one) for one in figures.groups()] == [pytest.approx(15.0, 0.1), pytest.approx(10.0, 0.1)]
