"""Attempts that load a step from the memory of their nodes, and what becomes of it before the disk has it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gangrun.core.model import Phase, RunState
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine.clock import EPOCH_S
from tests.sim.test_checkpoints import brought_at

SCRIPT = Script(steps_count=40, checkpoint_every_count=0, memory_every_count=4)
FALLS_AT_S = 16.0
QUIET = FaultPlan().fail_at(FALLS_AT_S, Kind.KILL_RANK, rank=1)


def world_of(plan: FaultPlan, seed: int = 1, nodes_count: int = 2, spares_count: int = 1) -> World:
    """Nodes each of which has a copy of what another one has, and spares. Of two each has all; of more, none."""
    setup = Setup.of(nodes_count, script=SCRIPT)
    return World(replace(setup, spares_count=spares_count, pool_count=nodes_count + spares_count + 1), plan, seed)


def played(world: World) -> RunState:
    """A broken promise raises: a step that is whole in memory and passed over is one."""
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase is Phase.SUCCEEDED, world.story()
    return state


def began_at(state: RunState) -> float:
    """When the attempt that began from memory did."""
    assert state.attempts[1].memory is not None
    return state.attempts[1].started - EPOCH_S


@pytest.mark.parametrize("nodes_count", [1, 2, 3, 4, 7])
def test_ranks_that_stay_where_they_were_load_from_memory(nodes_count: int) -> None:
    world = world_of(FaultPlan().fail_at(FALLS_AT_S, Kind.KILL_RANK, rank=0), nodes_count=nodes_count)
    times = brought_at(world)
    state = played(world)
    found = state.attempts[1].memory
    assert found is not None and (found.attempt, found.step) == (0, state.attempts[1].resumed_from_step)
    assert found.step > 0 and found.is_shared == (nodes_count > 2)
    assert not [at for at in times if FALLS_AT_S <= at <= began_at(state)], "nothing is written before it begins"


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("nodes_count", [2, 3, 4, 7])
def test_a_spare_is_sent_what_a_lost_node_held(nodes_count: int, node: int) -> None:
    """Then the step is in fewer nodes' memory than saved it, so it is written while ranks train."""
    world = world_of(FaultPlan().fail_at(FALLS_AT_S, Kind.KILL_NODE, node=node), nodes_count=nodes_count)
    times = brought_at(world)
    state = played(world)
    found = state.attempts[1].memory
    assert found is not None and found.is_shared and found.lacking == (world.nodes[nodes_count].name,), world.story()
    assert not [at for at in times if FALLS_AT_S <= at <= began_at(state)], "nothing is written before it begins"
    assert [at for at in times if began_at(state) < at < began_at(state) + 5.0], "and it is written soon after"


@pytest.mark.parametrize("late_s", [0.01, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("node", [0, 2, 3])
def test_the_next_node_is_lost_before_the_step_is_held_twice_again(node: int, late_s: float) -> None:
    """If it had the only copy of a part, the run resumes from the disk."""
    first = FaultPlan().fail_at(FALLS_AT_S, Kind.KILL_NODE, node=1)
    at_s = began_at(played(world_of(first, nodes_count=4, spares_count=2))) + late_s
    world = world_of(first.fail_at(at_s, Kind.KILL_NODE, node=node), nodes_count=4, spares_count=2)
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase is Phase.SUCCEEDED, world.story()
    went_on = state.attempts[2].resumed_from_step
    assert went_on == 8 or (node == 3 and late_s < 1.0 and went_on == 4), world.story()


@pytest.mark.parametrize("nodes_count", [2, 4])
def test_the_same_step_goes_through_the_disk_the_second_time(nodes_count: int) -> None:
    """What it is loaded from may be what fails."""
    again_s = began_at(played(world_of(QUIET, nodes_count=nodes_count))) + 0.3
    state = played(world_of(QUIET.fail_at(again_s, Kind.KILL_RANK, rank=0), nodes_count=nodes_count))
    first, second = state.attempts[1], state.attempts[2]
    assert first.memory is not None and second.memory is None
    assert second.resumed_from_step == first.resumed_from_step


@pytest.mark.parametrize("late_s", [0.1, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_lost_before_anything_newer_is_whole_costs_no_step(node: int, late_s: float) -> None:
    at_s = began_at(played(world_of(QUIET))) + late_s
    state = played(world_of(QUIET.fail_at(at_s, Kind.KILL_NODE, node=node)))
    assert (state.attempts[2].resumed_from_step or -1) >= (state.attempts[1].resumed_from_step or 0)


@pytest.mark.parametrize("nodes_count", [2, 4])
@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.4, 0.8, 1.5])
@pytest.mark.parametrize("kind", [Kind.KILL_SUPERVISOR, Kind.KILL_AGENT, Kind.KILL_WARDEN, Kind.KILL_NODE])
def test_whatever_falls_on_the_way_the_step_is_resumed_from(kind: Kind, late_s: float, nodes_count: int) -> None:
    """From the first rank's fall until its successor trains."""
    plan = QUIET.fail_at(FALLS_AT_S + late_s, kind, node=1 if kind is not Kind.KILL_SUPERVISOR else 0)
    state = played(world_of(plan, nodes_count=nodes_count))
    steps = [one.resumed_from_step for one in state.attempts[1:] if one.nodes]
    assert all(step is not None and step > 0 for step in steps)
    assert steps == sorted(steps, key=lambda step: step or 0)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("nodes_count", [2, 3, 4])
def test_falls_in_any_order_never_pass_over_what_is_whole(seed: int, nodes_count: int) -> None:
    """That is invariant 5, checked at each choice and at the end of each job."""
    rng = random.Random(f"from memory {seed}")
    plan, at_s = FaultPlan(), 12.0
    for _ in range(rng.randrange(2, 6)):
        kind = rng.choice([Kind.KILL_RANK, Kind.KILL_RANK, Kind.KILL_SUPERVISOR, Kind.KILL_AGENT, Kind.EXIT_RANK])
        plan = plan.fail_at(at_s, kind, node=rng.randrange(nodes_count), rank=rng.randrange(nodes_count), amount=1)
        at_s += rng.choice([0.2, 0.5, 1.0, 3.0, 8.0]) * rng.uniform(0.5, 1.5)
    world = world_of(plan, seed, nodes_count)
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase in {Phase.SUCCEEDED, Phase.FAILED}, world.story()
