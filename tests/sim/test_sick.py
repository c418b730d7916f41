"""Hardware that breaks in simulated worlds: the sick node is left behind, nobody else is, and no promise breaks."""

from __future__ import annotations

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

STEPS = Script(steps_count=30)


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_falls_sick_is_left_out_of_the_next_job(seed: int) -> None:
    plan = FaultPlan().fail_at(15.0, Kind.SICK, node=1)
    world = World(Setup.of(4, script=STEPS, requeue=True), plan, seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert set(state.excluded) == {world.nodes[1].name}
    assert all(out.hardware for out in state.excluded.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_is_sick_from_the_first_never_holds_a_rank(seed: int) -> None:
    plan = FaultPlan().fail_at(0.0, Kind.SICK, node=2)
    world = World(Setup.of(4, script=STEPS, requeue=True), plan, seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert all(world.nodes[2].name not in attempt.nodes for attempt in state.attempts)


def test_poor_hardware_excludes_nobody() -> None:
    plan = FaultPlan()
    for node in range(4):
        plan = plan.fail_at(10.0 + 4 * node, Kind.POOR, node=node)
    world = World(Setup.of(4, script=STEPS), plan.fail_at(20.0, Kind.KILL_RANK, rank=1), 5)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert state.excluded == {}


@pytest.mark.parametrize("seed", range(40))
def test_no_promise_breaks_when_hardware_does_too(seed: int) -> None:
    """Beside whatever else goes wrong."""
    nodes_count = 3 + seed % 6
    plan = FaultPlan.random(seed, nodes_count, nodes_count, 40.0)
    plan = plan.fail_at(5.0 + seed % 7 * 5.0, Kind.SICK, node=seed % nodes_count)
    setup = Setup.of(nodes_count, script=STEPS, requeue=seed % 2 == 1)
    world = World(setup, plan.fail_at(12.0, Kind.POOR, node=seed + 1), seed)
    world.run()
    assert world.newest_state() is not None
