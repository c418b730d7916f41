"""Worlds that showed a fault once, kept so that it stays mended."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gangrun.core.model import TERMINAL, Phase
from gangrun.sim import FaultPlan, InvariantBroken, Kind, Script, Setup, World
from gangrun.sim.engine.process import SimProcess


@pytest.mark.parametrize("seed", range(20))
def test_a_new_term_begins_to_ack_before_its_agents_give_it_up(seed):
    """With half its roster lost on disk it must gather first: its agents must not make yet another term meanwhile."""
    plan = FaultPlan().fail_at(36.426, Kind.CUT_FROM, node=1, for_s=12.0)
    plan = plan.fail_at(40.088, Kind.CUT_HALF, node=0, for_s=12.0, amount=0.4)
    plan = plan.fail_at(42.668, Kind.CUT, node=0, for_s=40.0)
    world = World(Setup.of(3, script=Script(steps_count=40)), plan, seed)
    world.run()
    assert len(world.disk.claims) == 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes_count", [6, 12])
def test_nodes_whose_candidates_are_all_gone_do_not_wait_for_ever(nodes_count, seed):
    """A rack is lost with the supervisor and all whom acks named as its successors: the others decide all the same."""
    plan = FaultPlan()
    for node in range(5):
        plan = plan.fail_at(20.0, Kind.KILL_NODE, node=node)
    world = World(Setup.of(nodes_count), plan, seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase in TERMINAL


@pytest.mark.parametrize("where", ["before claim", "after claim", "after open acts", "after fsync 0"])
@pytest.mark.parametrize("nodes_count", [1, 2, 3])
def test_a_supervisor_that_stops_before_its_first_word_and_never_wakes_is_replaced(nodes_count, where):
    stopped: list[SimProcess] = []

    def probe(process: SimProcess, label: str) -> None:
        if label == where and not stopped:
            stopped.append(process)
            process.pause(1e6)

    world = World(Setup.of(nodes_count, script=Script(steps_count=20)), FaultPlan(), 3, probe=probe)
    world.start()
    world.run_until(200.0)
    state = world.newest_state()
    assert state is not None and state.phase is Phase.SUCCEEDED


def test_agents_whose_journal_cannot_be_used_leave():
    plan = FaultPlan().fail_at(12.0, Kind.FLIP_JOURNAL, amount=100.0).fail_at(14.0, Kind.KILL_SUPERVISOR)
    world = World(Setup.of(3, script=Script(steps_count=400)), plan, 1)
    world.run()
    assert len(world.checker.refused) >= 5
    assert world.is_over()
    assert {node.exit_code for node in world.nodes} == {78}


def test_an_agent_that_missed_the_farewell_is_let_go():
    """It was no candidate, and all who were have left."""
    plan = FaultPlan().fail_at(33.0, Kind.CUT, node=5, for_s=60.0)
    world = World(Setup.of(6, script=Script(steps_count=30)), plan, 1)
    world.run()
    assert world.is_over()


@pytest.mark.parametrize("for_s", [60.0, 90.0, 120.0, 200.0])
def test_two_agents_that_promised_themselves_in_turns_come_together_again(for_s):
    """Each talks to the supervisor for some seconds between two promises; it needs both at the same time."""
    plan = FaultPlan().fail_at(14.0, Kind.KILL_NODE, node=0).fail_at(56.477, Kind.CUT_FROM, node=1, for_s=for_s)
    setup = Setup.of(3, script=Script(steps_count=60, victims_after_s=30.0), requeue=True)
    world = World(replace(setup, shape=replace(setup.shape, nodes_min_count=2)), plan, 1085)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED


def paused_as_it_launches(kind: Kind, attempt: int, seed: int, node_rank: int = 2) -> World:
    """The node is stopped for longer than a lease after it was told to launch, and before it has forked anybody."""
    plan = FaultPlan().fail_at(7.0, Kind.OOM_RANK, rank=1)
    setup = Setup.of(5, script=Script(steps_count=30), requeue=True)
    model = World(setup, plan, seed)
    model.run()
    forked = [gang for gang in model.gangs if gang.members][attempt].members[node_rank]
    at_s = forked.start_ticks / 100 - 0.03
    return World(setup, plan.fail_at(at_s, kind, node=forked.host.index, for_s=40.0), seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attempt", [0, 1])
def test_no_rank_is_forked_after_the_lease_has_ended(attempt, seed):
    """Its warden wakes with it, and gives a gap of its own a beat's grace to renew: to no new rank."""
    world = paused_as_it_launches(Kind.SUSPEND_NODE, attempt, seed)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attempt", [0, 1])
def test_a_machine_whose_clock_stood_forks_late_and_its_rank_does_nothing(attempt, seed):
    """Its lease goes on by its own clock: what it forks meets nobody, and the run is long somewhere else."""
    world = paused_as_it_launches(Kind.PAUSE_NODE, attempt, seed)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED
    gangs = [gang for gang in world.gangs if gang.members and gang.name[1] == attempt]
    assert all(gang.fresh for gang in gangs)
    assert max(rank.start_ticks for gang in gangs for rank in gang.members.values()) > 40 * 100


def test_seed_371_with_a_sick_node():
    """The first seen of these: a virtual machine paused in the very moment of a launch."""
    plan = FaultPlan.random(371, 5, 5, 40.0).fail_at(5.0, Kind.SICK, node=1)
    outcome = World(Setup.of(5, script=Script(steps_count=30), requeue=True), plan, 371).run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("nodes_count", [2, 3, 5])
def test_a_node_that_is_cut_off_is_not_the_only_one_left_in_every_job(nodes_count):
    """It is the first of each, so it decides, and saw its neighbours missing until all jobs were spent."""
    plan = FaultPlan().fail_at(3.0, Kind.CUT, node=0, for_s=900.0)
    setup = replace(Setup.of(nodes_count, script=Script(steps_count=40), requeue=True), pool_count=nodes_count + 4)
    outcome = World(setup, plan, 1).run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, outcome.state
    assert "n0000" in outcome.state.health.excluded


@pytest.mark.parametrize("seed", range(3))
def test_a_holder_that_gave_the_others_up_as_lost_leads_alone_until_it_is_sealed(seed):
    """Too few of the others hear each other to take its term; when they do, they are a majority of nobody it counts."""
    plan = (
        FaultPlan().fail_at(21.944, Kind.CUT_TO, node=3, for_s=90.0).fail_at(29.944, Kind.CUT_TO, node=0, for_s=600.0)
    )
    setup = replace(Setup.of(4, script=Script(steps_count=40), requeue=True), pool_count=8)
    outcome = World(setup, plan, 131 + seed).run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("read_before", [True, False])
def test_the_run_clock_need_not_know_of_a_record_that_came_after_the_next_term_had_read(read_before):
    """Two hosts' clocks differ by milliseconds, and the next term begins by its own."""
    world = World(Setup.of(1))
    world.start()
    world.run_until(10.0)
    last = world.checker.records[-1]
    if read_before:
        world.disk.lineage[2] = {1: len(world.disk.journals[1])}
    world.checker.record(msgspec.structs.replace(last, n=last.n + 1, at=last.at + 0.003))
    snapshot = msgspec.structs.replace(world.checker.records[0], term=2, at=last.at)
    if read_before:
        world.checker.record(snapshot)
    else:
        with pytest.raises(InvariantBroken, match="I10"):
            world.checker.record(snapshot)


@pytest.mark.parametrize(("requeue", "phase"), [(False, Phase.FAILED), (True, Phase.SUCCEEDED)])
@pytest.mark.parametrize("resort_is_killed", [False, True])
def test_a_run_on_one_node_whose_warden_gives_up_is_decided(requeue, phase, resort_is_killed):
    """By the supervisor of last resort, which the batch script starts again if it is killed itself."""
    plan = FaultPlan()
    for count in range(12):
        plan = plan.fail_at(12.0 + 0.35 * count, Kind.KILL_AGENT, node=0)
    killed: list[SimProcess] = []

    def probe(process: SimProcess, label: str) -> None:
        if resort_is_killed and label == "before fsync 0" and process.timeline.now > 12.0 and not killed:
            killed.append(process)
            process.kill()

    world = World(Setup.of(1, script=Script(steps_count=40), requeue=requeue), plan, 1, probe=probe)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is phase, outcome.state
    resorts = [supervisor for supervisor in world.supervisors if supervisor.alone is not None]
    assert len(resorts) == 1 + resort_is_killed
