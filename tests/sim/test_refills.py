"""Refills in simulated worlds: one node comes instead of a new job, late, never, or twice; none is left behind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

LOST_AT_S = 30.0
LOST = FaultPlan().fail_at(LOST_AT_S, Kind.KILL_NODE, node=2)


def setup(wait_s: float | None, nodes: int = 4, *, least: int | None = None, pool: int = 6, steps: int = 150) -> Setup:
    """Four nodes, two more in the cluster."""
    usual = Setup.of(nodes, requeue=True, script=Script(steps_count=steps))
    shape = replace(usual.shape, nodes_min_count=least or nodes)
    return replace(usual, shape=shape, pool_count=pool, policy=replace(usual.policy, refill_wait_s=wait_s))


def run(wait_s: float | None, plan: FaultPlan, *, phase: Phase = Phase.SUCCEEDED, seed: int = 1, **more: int) -> World:
    world = World(setup(wait_s, **more), plan, seed)
    state = world.run().state
    assert state is not None and state.phase is phase, world.story()
    assert all(job.state.value == "ENDED" for job in world.scheduler.refills.jobs), world.story()
    return world


def brought(world: World) -> list[str]:
    """The nodes of refills that began."""
    return [job.node.name for job in world.scheduler.refills.jobs if job.node is not None]


def test_a_refill_saves_the_queue_for_all_nodes() -> None:
    world = run(300.0, LOST)
    assert (len(world.scheduler.jobs), len(brought(world))) == (1, 1)
    started = [record.at - world.began_at for record in world.checker.records if record.kind == "GangStarted"]
    assert len(started) == 2 and started[1] < LOST_AT_S + 8.0, started
    assert len(run(None, LOST).scheduler.jobs) == 2


def test_a_spare_comes_while_the_smaller_gang_steps_and_takes_the_next_lost_node_s_place() -> None:
    world = run(0.0, LOST.fail_at(70.0, Kind.KILL_NODE, node=1), least=3, pool=7)
    assert len(world.scheduler.jobs) == 1
    (first, *_) = brought(world)
    assert first in world.checker.replayed().attempts[-1].nodes  # type: ignore[union-attr]


def test_the_wait_for_a_refill_ends_and_it_is_cancelled() -> None:
    world = run(40.0, LOST.fail_at(20.0, Kind.REFILLS_WAIT, node=None, for_s=900.0), pool=9)
    assert (len(world.scheduler.jobs), brought(world)) == (2, [])


def test_scancel_of_a_refill_ends_the_refill_only() -> None:
    """It holds ranks; the run goes on in another job, as no other refill is asked for."""
    world = run(300.0, LOST.fail_at(60.0, Kind.REFILLS_SCANCELLED, node=None), pool=9)
    assert (len(world.scheduler.jobs), len(world.scheduler.refills.jobs)) == (2, 1)
    state = world.checker.replayed()
    assert state is not None and set(state.health.excluded) == {"n0002"}, "nobody is at fault for a scancel"


@pytest.mark.parametrize("at_s", [33.5, 35.0, 36.0, 45.0])
def test_a_cancel_leaves_no_refill(at_s: float) -> None:
    world = World(setup(300.0), LOST.fail_at(at_s, Kind.CANCEL, node=None), 1)
    world.run()
    assert world.is_over(), world.story()


SLURM = (
    Kind.SLURM_TIMEOUT, Kind.SLURM_REFUSED, Kind.SLURM_STALE, Kind.SLURM_DOWN, Kind.SLURM_NEVER, Kind.SLURM_HELD,
    Kind.REFILLS_WAIT, Kind.REFILLS_SCANCELLED, Kind.CANCEL, Kind.KILL_SUPERVISOR, Kind.PAUSE_SUPERVISOR,
    Kind.KILL_WARDEN, Kind.FS_STALL, Kind.KILL_AGENT, Kind.SLURM_GIVES_UP,
)  # fmt: skip
NODES = (Kind.KILL_NODE, Kind.REBOOT_NODE, Kind.CUT, Kind.SICK, Kind.PAUSE_NODE, Kind.CUT_HALF)


@pytest.mark.parametrize("seed", range(60))
def test_refills_among_other_faults(seed: int) -> None:
    """Nodes go, Slurm has its moods, supervisors die: every invariant holds."""
    rng = random.Random(f"refills {seed}")
    nodes, wait_s = rng.choice((2, 3, 4, 5, 6)), rng.choice((0.0, 20.0, 60.0, 300.0))
    plan, at_s = FaultPlan(), rng.uniform(8.0, 40.0)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(NODES)
        for_s = 0.0 if kind in {Kind.KILL_NODE, Kind.SICK} else rng.choice((6.0, 12.0, 31.0, 60.0))
        plan = plan.fail_at(at_s, kind, node=rng.randrange(-1, nodes), for_s=for_s, amount=rng.choice((0.2, 0.4, 0.6)))
        at_s += rng.choice((0.0, 1.0, 5.0, 20.0, 40.0))
    for _ in range(rng.choice((0, 1, 1, 2))):
        kind, node = rng.choice(SLURM), rng.randrange(-1, nodes + 2)
        plan = plan.fail_at(rng.uniform(5.0, 90.0), kind, node=node, for_s=rng.choice((2.0, 20.0, 60.0)))
    least = rng.choice((nodes, max(1, nodes - 1)))
    World(setup(wait_s, nodes, least=least, pool=nodes + rng.choice((1, 2, 3)), steps=60), plan, seed).run(1500.0)
