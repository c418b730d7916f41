"""From one job of a run to the next: how long it takes, and that it comes to that at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

SCRIPT = Script(steps_count=60, victims_after_s=0.5)


def with_spare_nodes(nodes_count: int, plan: FaultPlan, **setup: object) -> World:
    usual = Setup.of(nodes_count, script=SCRIPT, requeue=True)
    return World(replace(usual, pool_count=2 * nodes_count, **setup), plan, seed=3)  # type: ignore[arg-type]


def began_at(world: World, kind: str, job: str) -> float:
    """When the first record of this kind was written in that job."""
    terms = {term for term, (_, claim) in world.disk.claims.items() if claim.job == job}
    return next(r.at for r in world.checker.records if r.kind == kind and r.term in terms) - world.began_at


def test_the_next_job_starts_at_once_where_all_ranks_of_the_last_were_proven_gone() -> None:
    world = with_spare_nodes(3, FaultPlan().fail_at(12.0, Kind.KILL_NODE, node=1))
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED
    second = world.scheduler.jobs[1]
    took_s = began_at(world, "GangStarted", second.id) - began_at(world, "TermTaken", second.id)
    assert took_s < 5.0, f"{second.id} had its nodes and did not use them for {took_s:.0f} s"
    assert second.submitted_at < 12.0 + 40.0


def test_it_waits_for_the_lease_of_a_node_that_may_still_hold_ranks() -> None:
    plan = FaultPlan().fail_at(12.0, Kind.CUT, node=2, for_s=300.0).fail_at(12.0, Kind.KILL_RANK, rank=0)
    world = with_spare_nodes(3, plan, replica_ranks_count=3)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED
    second = world.scheduler.jobs[1]
    started = began_at(world, "GangStarted", second.id)
    assert 12.0 + 30.0 < started < 12.0 + 45.0, started


@pytest.mark.parametrize("lost", [(1, 2), (0, 1), (0, 2)])
def test_where_most_nodes_are_lost_the_one_that_is_left_sees_to_the_next_job(lost: tuple[int, ...]) -> None:
    plan = FaultPlan()
    for node in lost:
        plan = plan.fail_at(12.0, Kind.KILL_NODE, node=node)
    world = with_spare_nodes(3, plan)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    second = world.scheduler.jobs[1]
    assert second.submitted_at < 12.0 + 160.0
    took_s = began_at(world, "GangStarted", second.id) - began_at(world, "TermTaken", second.id)
    assert took_s < 5.0


def all_leave(at_s: float, nodes_count: int) -> FaultPlan:
    plan = FaultPlan()
    for node in range(nodes_count):
        plan = plan.fail_at(at_s + 0.1 * node, Kind.KILL_WARDEN, node=node)
    return plan


@pytest.mark.parametrize("at_s", [2.5, 3.0, 12.0])
def test_where_all_nodes_leave_undecided_the_batch_script_sees_to_the_next_job(at_s: float) -> None:
    world = with_spare_nodes(3, all_leave(at_s, 3))
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert [supervisor.node for supervisor in world.supervisors if supervisor.alone] == [
        world.scheduler.jobs[0].nodes[0]
    ]
    assert len(world.scheduler.jobs) == 2
    assert all(job.state.value == "ENDED" for job in world.scheduler.jobs)


@pytest.mark.parametrize("kind", [Kind.CANCEL, Kind.KILL_RANK])
def test_where_all_is_decided_it_does_not(kind: Kind) -> None:
    world = with_spare_nodes(3, FaultPlan().fail_at(12.0, kind))
    world.run()
    assert not any(supervisor.alone for supervisor in world.supervisors)


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
