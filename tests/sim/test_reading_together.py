"""In simulated worlds too, all nodes read a checkpoint before it is resumed from, whoever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.wire.messages import VerifyShare


def world_of(plan: FaultPlan, seed: int) -> tuple[World, list[VerifyShare]]:
    """Four nodes; and what any of them was asked to read."""
    world = World(replace(Setup.of(4, script=Script(steps_count=40)), reads_together=True), plan, seed)
    asked: list[VerifyShare] = []
    damage_of = world.checkpoint_fs.damage_of

    def noted(path: str, nonce: str) -> str:
        asked.append(VerifyShare(0, (0, 0), path, nonce, 0, 0))
        return damage_of(path, nonce)

    world.checkpoint_fs.damage_of = noted  # type: ignore[method-assign]
    return world, asked


@pytest.mark.parametrize("seed", range(3))
def test_the_other_nodes_read_what_is_resumed_from(seed: int) -> None:
    world, asked = world_of(FaultPlan().fail_at(25.0, Kind.KILL_RANK, rank=seed), seed)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert len(asked) == 3 and len(set(asked)) == 1


@pytest.mark.parametrize("late_s", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(("kind", "readings_count"), [(Kind.KILL_SUPERVISOR, 6), (Kind.KILL_AGENT, 3)])
def test_a_supervisor_that_dies_meanwhile_is_followed_by_one_that_asks_again(
    kind: Kind, readings_count: int, late_s: float
) -> None:
    """And an agent that dies by one that reads what was asked of it."""
    node = 0 if kind is Kind.KILL_SUPERVISOR else 2
    plan = FaultPlan().fail_at(25.0, Kind.KILL_RANK, rank=1).fail_at(25.0 + late_s, kind, node=node)
    world, asked = world_of(plan, seed=5)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert len(asked) == readings_count
