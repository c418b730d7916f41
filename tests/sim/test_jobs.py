"""From one job of a run to the next: how long it takes, and that it comes to that at all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from gangrun.core.model import Phase, RunState, Savers
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine.clock import EPOCH_S
from tests.sim.time_limit import STOPS_WITHIN_S, watched

SCRIPT = Script(steps_count=60, victims_after_s=0.5)


def with_spare_nodes(nodes_count: int, plan: FaultPlan, seed: int = 3, **setup: object) -> World:
    usual = Setup.of(nodes_count, script=SCRIPT, requeue=True)
    return World(replace(usual, pool_count=2 * nodes_count, **setup), plan, seed)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("savers", "from_s", "to_s"), [(None, 5.0, 20.0), (Savers.ALL, 30.0, 45.0)])
def test_the_next_gang_waits_for_the_lease_of_a_node_only_if_what_it_holds_could_do_harm(
    savers: Savers | None, from_s: float, to_s: float
) -> None:
    plan = FaultPlan().fail_at(12.0, Kind.CUT, node=2, for_s=300.0).fail_at(12.0, Kind.KILL_RANK, rank=0)
    usual = Setup.of(3, script=SCRIPT, requeue=True)
    setup = replace(usual, pool_count=6, policy=replace(usual.policy, saves_with=savers))
    world = World(setup, plan, 3)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED
    second = world.scheduler.jobs[1]
    started = began_at(world, "GangStarted", second.id)
    assert 12.0 + from_s < started < 12.0 + to_s, started


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


@pytest.mark.parametrize("jump_s", [-21600.0, 0.0, 21600.0])
@pytest.mark.parametrize(("node", "at_s"), [(None, 1.0), (0, 1.0), (0, 100.0), (1, 150.0)])
def test_a_job_has_all_of_its_time_whatever_the_wall_clocks_say(jump_s: float, node: int | None, at_s: float) -> None:
    plan = FaultPlan()
    for one in range(3) if node is None else (node,):
        plan = plan.fail_at(at_s, Kind.WALL_JUMP, node=one, amount=jump_s)
    plan = plan.fail_at(60.0, Kind.KILL_SUPERVISOR)
    setup = replace(Setup.of(3, script=Script(steps_count=700), requeue=True), time_limit_s=600.0)
    world = watched(World(setup, plan, seed=3))
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    first = world.scheduler.jobs[0]
    lead_s = world.setup.policy.lead_s() + STOPS_WITHIN_S + world.setup.policy.stop_grace_s
    assert 600.0 - lead_s - 10.0 < first.ended_at - first.began_at < 600.0, "it used its time, and saved in time"
    assert len(world.scheduler.jobs) == 2


@pytest.mark.parametrize(("jobs_max_count", "jobs_count", "phase"), [(0, 3, Phase.SUCCEEDED), (2, 2, Phase.FAILED)])
def test_a_run_longer_than_its_jobs_goes_on_in_the_next_one_until_they_are_used(
    jobs_max_count: int, jobs_count: int, phase: Phase
) -> None:
    setup = replace(Setup.of(3, script=Script(steps_count=500), requeue=True), time_limit_s=300.0)
    policy = replace(setup.policy, jobs_max_count=jobs_max_count)
    world = watched(World(replace(setup, policy=policy), FaultPlan(), seed=3))
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is phase, world.story()
    assert len(world.scheduler.jobs) == jobs_count
    resumed = [attempt.resumed_from_step for attempt in outcome.state.attempts]
    assert resumed[0] is None and resumed[1:] == sorted(step or 0 for step in resumed[1:]) and resumed[1]
    if phase is Phase.FAILED:
        assert outcome.state.reason.endswith("no other job is asked for: this was job 2 of 2 (--max-jobs)")
        assert outcome.state.checkpoints.best_step > (resumed[-1] or 0)


@pytest.mark.parametrize("total_time_s", [500.0, 260.0])
def test_a_chain_of_jobs_ends_when_its_total_time_is_used(total_time_s: float) -> None:
    """The simulated ranks tell how long they stepped: that is what counts, less loading and the last save."""
    setup = replace(Setup.of(3, script=Script(steps_count=5000), requeue=True), time_limit_s=300.0)
    world = watched(World(replace(setup, policy=replace(setup.policy, total_time_s=total_time_s)), FaultPlan(), seed=3))
    outcome = world.run()
    state = outcome.state
    assert state is not None and state.phase is Phase.TIME_UP, world.story()
    assert total_time_s <= state.training.trained_s < total_time_s + 5.0
    assert len(world.scheduler.jobs) == (3 if total_time_s > 300 else 2), "each trains for less than its 300 s"
    assert not world.scheduler.running() and all(job.ended_at for job in world.scheduler.jobs)
    assert state.checkpoints.best_step > state.attempts[-2].last_step - 20
    ran = [(one.started, one.ended) for one in state.attempts if one.ended]
    assert total_time_s < sum(ended - started for started, ended in ran) < total_time_s + 60.0 * len(ran)


@pytest.mark.parametrize("at_s", [100.0, 225.5, 227.0, 228.5, 230.0, 300.0, 455.0, 480.0])
def test_a_cancelled_chain_is_never_taken_up_again(at_s: float) -> None:
    """While it trains, saves before a limit, asks for the next job, waits in the queue, or saves for the last time."""
    setup = replace(Setup.of(3, script=Script(steps_count=5000), requeue=True), time_limit_s=300.0)
    setup = replace(setup, policy=replace(setup.policy, total_time_s=480.0))
    world = watched(World(setup, FaultPlan().fail_at(at_s, Kind.CANCEL), seed=3))
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase in {Phase.CANCELLED, Phase.PENDING}, outcome.state
    assert not world.scheduler.running()
    assert not [one.number for one in outcome.state.attempts if one.started - world.began_at > at_s + 1.0]


@pytest.mark.parametrize("measured", [True, False])
def test_a_save_that_takes_longer_than_its_grace_is_begun_early_enough_if_it_was_measured(measured: bool) -> None:
    """Unmeasured, the save at the end of the job is cut, and the next job goes on from the one before it."""
    script = Script(steps_count=550, save_s=100.0, checkpoint_every_count=150, saves_when_asked=True)
    world = watched(
        World(replace(Setup.of(3, script=script, requeue=True), time_limit_s=500.0), seed=3), measured=measured
    )
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    second = outcome.state.attempts[1]
    assert (second.resumed_from_step in {150, 300}) is not measured, world.story()


def all_leave(at_s: float, nodes_count: int) -> FaultPlan:
    """Agent after agent dies, until each warden gives up."""
    plan = FaultPlan()
    for node in range(nodes_count):
        for count in range(12):
            plan = plan.fail_at(at_s + 0.1 * node + 0.35 * count, Kind.KILL_AGENT, node=node)
    return plan


def wardens_die(at_s: float, nodes: Iterable[int], apart_s: float = 0.1) -> FaultPlan:
    plan = FaultPlan()
    for place, node in enumerate(nodes):
        plan = plan.fail_at(at_s + apart_s * place, Kind.KILL_WARDEN, node=node)
    return plan


def ends_well_in_one_job(world: World) -> RunState:
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert len(world.scheduler.jobs) == 1, world.story()
    assert not outcome.state.health.excluded and not outcome.state.fence.nodes, world.story()
    return outcome.state


@pytest.mark.parametrize("nodes", [(1,), (0,), (0, 1, 2)], ids=["one", "the supervisor's", "all"])
@pytest.mark.parametrize("at_s", [2.5, 3.0, 12.0])
def test_killed_wardens_are_started_again_in_the_same_job(at_s: float, nodes: tuple[int, ...]) -> None:
    state = ends_well_in_one_job(with_spare_nodes(3, wardens_die(at_s, nodes)))
    assert len(state.attempts) <= 2
    assert max(one.started for one in state.attempts) < EPOCH_S + at_s + 20.0, (
        "nobody waited for a counter to stand still"
    )


@pytest.mark.parametrize("for_s", [0.5, 3.0, 60.0])
def test_a_killed_srun_costs_nothing(for_s: float) -> None:
    state = ends_well_in_one_job(with_spare_nodes(3, FaultPlan().fail_at(12.0, Kind.KILL_SRUN, for_s=for_s)))
    assert len(state.attempts) == 1


@pytest.mark.parametrize("for_s", [0.5, 3.0])
def test_a_warden_that_dies_unheard_is_started_again_by_the_next_srun(for_s: float) -> None:
    plan = FaultPlan().fail_at(12.0, Kind.KILL_SRUN, for_s=for_s) | wardens_die(12.2, (1,))
    state = ends_well_in_one_job(with_spare_nodes(3, plan))
    assert [one.outcome for one in state.attempts] == ["agent died", "succeeded"]


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_wardens_and_sruns_die_among_other_faults(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        rng = random.Random(f"wardens {seed}")
        plan = FaultPlan.random(seed, 3, 3, within_s=30.0)
        for _ in range(rng.choice((1, 2, 3))):
            at_s, node = rng.uniform(1.0, 25.0), rng.randrange(3)
            plan = plan.fail_at(at_s, Kind.KILL_WARDEN, node=node)
            if rng.random() < 0.5:
                plan = plan.fail_at(at_s - rng.uniform(0.0, 1.0), Kind.KILL_SRUN, for_s=rng.choice((0.5, 3.0, 10.0)))
            if rng.random() < 0.3:
                plan = plan.fail_at(at_s - 0.1, Kind.SLOW_KILL, node=node, for_s=30.0, amount=0.9)
        with_spare_nodes(3, plan, seed).run()


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
