"""Nodes that are lost and come back in simulated worlds: the gang shrinks, grows again, and no promise breaks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gangrun.core.model import Phase, RunState
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

AWAY = (Kind.CUT, Kind.CUT_TO, Kind.CUT_FROM, Kind.SUSPEND_NODE, Kind.PAUSE_NODE, Kind.REBOOT_NODE)
BESIDE = (Kind.KILL_RANK, Kind.KILL_SUPERVISOR, Kind.KILL_AGENT, Kind.KILL_WARDEN, Kind.FS_STALL, Kind.DRAIN)


def shrinking(
    nodes: int, least: int, *, steps: int = 300, ranks: int = 1, multiple: int = 1, every_s: float = 20.0,
    requeue: bool = False, limit_s: float = 0.0,
) -> Setup:  # fmt: skip
    script = Script(steps_count=steps, victims_after_s=0.5, saves_when_asked=True)
    setup = Setup.of(nodes, ranks_per_node=ranks, script=script, requeue=requeue)
    shape = replace(setup.shape, nodes_min_count=least, world_multiple=multiple)
    return replace(setup, shape=shape, policy=replace(setup.policy, grow_every_s=every_s), time_limit_s=limit_s)


def sizes(state: RunState) -> list[int]:
    return [len(attempt.nodes) for attempt in state.attempts if attempt.nodes]


def ended(world: World) -> RunState:
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase is Phase.SUCCEEDED, world.story()
    return state


@pytest.mark.parametrize("kind", AWAY)
def test_a_node_that_was_away_is_used_again_and_costs_one_restart(kind: Kind) -> None:
    """Only the loss is charged. Where it is back before all ranks are down there is nothing to grow."""
    state = ended(World(shrinking(4, 3), FaultPlan().fail_at(20.0, kind, node=2, for_s=60.0), 3))
    assert sizes(state) == [4, 3, 4], state.attempts
    assert (state.attempts[1].outcome, state.budget.total_count) == ("grown", 1)
    resumed, last = state.attempts[2].resumed_from_step, state.attempts[1].last_step
    assert resumed is not None and resumed >= last - 1, "all ranks saved first, and trained on until they were stopped"
    assert not [name for name, out in state.health.excluded.items() if out.until > state.updated_at]


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (shrinking(4, 3, every_s=0.0), ""),
        (shrinking(4, 3, every_s=10_000.0), "all ranks were started less than 10000 s ago (--grow-every)"),
        (shrinking(4, 3, limit_s=170.0, requeue=True), "the job's time limit is "),
    ],
)
def test_it_stays_as_it_is_where_that_is_wanted_or_would_not_pay(setup: Setup, why: str) -> None:
    world = World(setup, FaultPlan().fail_at(20.0, Kind.CUT, node=2, for_s=40.0), 3)
    state = ended(world)
    assert "grown" not in {attempt.outcome for attempt in state.attempts}
    told = [record.reason for record in world.checker.records if record.kind == "CheckpointSeen"]
    assert (not why) or any(why in one and "is free and stays so" in one for one in told), told


def test_ranks_stay_a_multiple_whatever_is_lost() -> None:
    """Four nodes of three ranks in groups of six: three nodes hold two groups no more, so one of them is a spare."""
    setup = shrinking(4, 2, ranks=3, multiple=6)
    state = ended(World(setup, FaultPlan().fail_at(20.0, Kind.CUT, node=2, for_s=60.0), 3))
    assert sizes(state) == [4, 2, 4]


def test_a_node_that_is_lost_again_and_again_is_left_out_in_the_end() -> None:
    plan = FaultPlan()
    for number in range(4):
        plan = plan.fail_at(20.0 + 100.0 * number, Kind.CUT, node=2, for_s=45.0)
    world = World(shrinking(4, 3, steps=900), plan, 3)
    state = ended(world)
    assert [attempt.outcome for attempt in state.attempts].count("grown") == 2, state.attempts
    assert list(state.health.excluded) == [world.nodes[2].name]


@pytest.mark.slow
def test_two_hundred_seeds() -> None:
    """Whatever else goes wrong beside it. The world checks every promise at each event."""
    grown = smaller = 0
    for seed in range(200):
        rng = random.Random(f"grow {seed}")
        nodes, ranks = rng.randrange(3, 7), rng.choice((1, 2))
        setup = shrinking(
            nodes, nodes - rng.choice((1, 2)), ranks=ranks, multiple=rng.choice((1, ranks)),
            every_s=rng.choice((3.0, 30.0)), requeue=rng.random() < 0.3,
        )  # fmt: skip
        policy = replace(setup.policy, test_suspects=rng.random() < 0.5)
        setup = replace(setup, policy=policy, spares_count=rng.choice((0, 0, 1)), pool_count=nodes + 4)
        plan = FaultPlan()
        for _ in range(rng.choice((1, 2, 3))):
            away, for_s = rng.choice(AWAY), rng.uniform(5.0, 80.0)
            plan = plan.fail_at(rng.uniform(8.0, 120.0), away, node=rng.randrange(nodes), for_s=for_s)
        for _ in range(rng.choice((0, 1, 2))):
            beside, node = rng.choice(BESIDE), rng.randrange(nodes)
            plan = plan.fail_at(rng.uniform(8.0, 120.0), beside, node=node, rank=rng.randrange(nodes), for_s=15.0)
        world = World(setup, plan, seed)
        world.run()
        state = world.newest_state()
        assert state is not None and state.phase in (Phase.SUCCEEDED, Phase.FAILED), world.story()
        grown += any(attempt.outcome == "grown" for attempt in state.attempts)
        smaller += any(size < nodes for size in sizes(state))
    assert grown > 60 and smaller > 100, (grown, smaller)
