"""Hundreds of agents that import from one busy file system: some join at once, some after two minutes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import Script, Setup, World

NODES_COUNT = 200
BLAMES = {"NodeSilent", "NodeLost", "NodeAbsent"}


@pytest.mark.parametrize("seed", [1, 2])
def test_who_joins_late_is_neither_silent_nor_excluded(seed: int) -> None:
    usual = Setup.of(NODES_COUNT, script=Script(steps_count=10), requeue=True)
    policy = replace(usual.policy, join_within_s=300.0)  # as in a job of Slurm's
    world = World(replace(usual, policy=policy, agents_begin_s=(5.0, 120.0)), seed=seed)
    state = world.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, world.story()
    assert not BLAMES & {record.kind for record in world.checker.records}
    assert (dict(state.health.excluded), len(world.scheduler.jobs)) == ({}, 1)
    (attempt,) = state.attempts
    assert len(attempt.nodes) == NODES_COUNT
    started = next(record.at for record in world.checker.records if record.kind == "GangStarted") - world.began_at
    assert started > 100.0
