"""Nodes are lost one after another, at any moment of getting over the last loss, and no rank ever saves to the disk."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.body.agent import BRING_S
from gangrun.sim.faults import HOLDER

SCRIPT = Script(steps_count=300, checkpoint_every_count=0, memory_every_count=4)
LOSSES_COUNT = 3


def world_of(plan: FaultPlan, seed: int) -> World:
    """Four nodes hold ranks, and so many more may be lost."""
    setup = replace(Setup.of(4, script=SCRIPT), spares_count=LOSSES_COUNT, pool_count=7, reads_together=True)
    return World(setup, plan, seed)


@pytest.mark.parametrize("seed", range(24))
def test_what_those_that_are_left_hold_whole_is_never_passed_over(seed: int) -> None:
    """That is invariant 5, checked at each choice. Getting over a loss takes as long as the lost node's lease."""
    rng = random.Random(f"lost {seed}")
    plan, at_s = FaultPlan(), rng.uniform(14.0, 18.0)
    for node in rng.sample([HOLDER, 1, 2, 3, 4, 5], LOSSES_COUNT):
        plan = plan.fail_at(at_s, Kind.KILL_NODE, node=node)
        at_s += rng.choice((rng.uniform(0.0, 3.0), rng.uniform(28.0, 40.0), rng.uniform(50.0, 80.0)))
    world = world_of(plan, seed)
    state = world.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, world.story()


@pytest.mark.parametrize("lost", [0, 1])
def test_one_that_is_lost_while_it_brings_its_part_is_done_without(lost: int) -> None:
    """What it holds another one holds, too, though it was not asked for it. The supervisor is on node 0."""
    plan = FaultPlan().fail_at(16.0, Kind.KILL_RANK, node=None, rank=2)
    world = world_of(plan, seed=1)
    brought_at: list[float] = []
    bring = world.checkpoint_fs.bring

    def noted(path: str, files: Collection[str]) -> str:
        brought_at.append(world.timeline.now)
        return bring(path, files)

    world.checkpoint_fs.bring = noted  # type: ignore[method-assign]
    once = world.run()
    assert once.state is not None and once.state.attempts[1].resumed_from_step == 8
    rescued_at = next(at for at in brought_at if at > 16.0)  # the ones before are written while ranks train
    again = world_of(plan.fail_at(rescued_at - BRING_S / 2, Kind.KILL_NODE, node=lost), seed=1)
    twice = again.run()
    assert twice.state is not None and twice.state.phase is Phase.SUCCEEDED, again.story()
    assert twice.state.attempts[1].resumed_from_step == 8
    assert twice.took_s < once.took_s + 90.0
