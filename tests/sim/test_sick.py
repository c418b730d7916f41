"""Hardware that breaks in simulated worlds: the sick node is left behind, nobody else is, and no promise breaks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gangrun.core.model import Phase, Shape
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
    assert set(state.health.excluded) == {world.nodes[1].name}
    assert all(out.hardware for out in state.health.excluded.values())


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
    assert state.health.excluded == {}


def tried(setup: Setup, *, at_start: bool = False) -> Setup:
    """Suspects are put to work before they are used again."""
    return replace(setup, policy=replace(setup.policy, test_suspects=True, test_at_start=at_start))


@pytest.mark.parametrize("broken", [False, True])
def test_a_suspect_is_tested_and_only_a_broken_one_left_out(broken: bool) -> None:
    plan = FaultPlan().fail_at(12.0, Kind.POOR, node=1).fail_at(14.0, Kind.KILL_RANK, rank=0)
    world = World(tried(Setup.of(3, script=STEPS, requeue=True)), plan, 7)
    name = world.nodes[1].name
    if broken:
        world.timeline.at(13.0, lambda: world.sick.add(name))
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert set(state.health.excluded) == ({name} if broken else set())
    assert len({attempt.job for attempt in state.attempts}) == (2 if broken else 1)
    first, again = state.attempts[:2]
    assert (name in again.nodes) is not broken
    assert broken or again.started - first.started > 30.0, "the test was waited for, which takes 20 s"


def test_where_a_spare_is_free_the_suspect_is_tested_while_others_train() -> None:
    plan = FaultPlan().fail_at(12.0, Kind.POOR, node=1).fail_at(14.0, Kind.KILL_RANK, rank=0)
    setup = replace(tried(Setup.of(3, script=Script(steps_count=120), requeue=True)), spares_count=1)
    world = World(setup, plan, 7)
    name = world.nodes[1].name
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    first, again = state.attempts
    assert first.ended is not None
    assert again.started - first.ended < 10.0, "nobody waited"
    assert name in first.nodes
    assert name not in again.nodes
    journal = [line.record for lines in world.disk.journals.values() for line in lines]
    told = [one.reason for one in journal if (one.kind, one.phase) == ("NodeChecked", "RUNNING")]
    assert any(f"{name} was suspected" in one and "its devices work" in one for one in told), told


@pytest.mark.parametrize("at", [19.0, 25.0, 40.0])
def test_a_supervisor_that_dies_meanwhile_costs_the_suspect_no_answer(at: float) -> None:
    plan = FaultPlan().fail_at(12.0, Kind.POOR, node=1).fail_at(14.0, Kind.KILL_RANK, rank=0)
    plan = plan.fail_at(at, Kind.KILL_SUPERVISOR)
    setup = replace(tried(Setup.of(3, script=Script(steps_count=240), requeue=True)), spares_count=1)
    world = World(setup, plan, 7)
    name = world.nodes[1].name
    world.run()
    state = world.newest_state()
    assert state is not None
    assert (state.phase, state.health.excluded) == (Phase.SUCCEEDED, {}), state.reason
    assert state.term > 1
    assert (state.roster.nodes[name].trial, bool(state.roster.nodes[name].tested)) == ("", True)


@pytest.mark.parametrize("repaired", [True, False])
def test_one_that_has_booted_is_in_the_next_job_again_and_is_used_where_that_cured_it(repaired: bool) -> None:
    """Node 1 breaks, and boots while the second job runs; then node 2 breaks, and without node 1 a node is missing."""
    setup = replace(tried(Setup.of(3, script=Script(steps_count=400), requeue=True)), pool_count=4)
    plan = FaultPlan().fail_at(15.0, Kind.SICK, node=1).fail_at(60.0, Kind.REBOOT_NODE, node=1, for_s=60.0)
    world = World(setup, plan.fail_at(250.0, Kind.SICK, node=2), 3)
    one, two = world.nodes[1].name, world.nodes[2].name
    if repaired:
        world.timeline.at(90.0, lambda: world.sick.discard(one))
    world.run()
    state = world.newest_state()
    assert state is not None
    assert two in state.health.excluded
    journal = [line.record for lines in world.disk.journals.values() for line in lines]
    told = [record.reason for record in journal]
    assert any(f"{one} has rebooted; if it is in that job" in reason for reason in told), told
    later = [attempt for attempt in state.attempts if attempt.number > 0]
    assert any(one in attempt.nodes for attempt in later) is repaired
    if repaired:
        assert state.phase is Phase.SUCCEEDED, state.reason
        assert any(f"{one} was excluded until it had booted" in r and "its devices work" in r for r in told), told


@pytest.mark.parametrize("seed", range(3))
def test_a_suspect_that_still_works_makes_room_at_a_checkpoint(seed: int) -> None:
    setup = replace(Setup.of(3, script=Script(steps_count=120), requeue=True), spares_count=1)
    world = World(setup, FaultPlan().fail_at(20.0, Kind.POOR, node=seed), seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert (state.phase, state.health.excluded, state.budget.total_count) == (Phase.SUCCEEDED, {}, 0), state.reason
    before, after = state.attempts
    name = world.nodes[seed].name
    assert name in before.nodes
    assert name not in after.nodes
    assert (before.outcome, before.job) == ("moved", after.job)
    assert (after.resumed_from_step or 0) > 0


@pytest.mark.parametrize("seed", range(40))
def test_no_promise_breaks_when_hardware_does_too(seed: int) -> None:
    """Beside whatever else goes wrong."""
    nodes_count = 3 + seed % 6
    plan = FaultPlan.random(seed, nodes_count, nodes_count, 40.0)
    plan = plan.fail_at(5.0 + seed % 7 * 5.0, Kind.SICK, node=seed % nodes_count)
    setup = tried(Setup.of(nodes_count, script=STEPS, requeue=seed % 2 == 1), at_start=seed % 3 == 0)
    setup = replace(setup, spares_count=int(seed % 4 == 1))
    world = World(setup, plan.fail_at(12.0, Kind.POOR, node=seed + 1), seed)
    world.run()
    assert world.newest_state() is not None


@pytest.mark.parametrize("kind", [Kind.BAD_NIC, Kind.BAD_LINK])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_meet_after_a_lost_connection_and_only_one_that_failed_goes(kind: Kind, seed: int) -> None:
    setup = replace(tried(Setup.of(4, script=STEPS, requeue=True)), spares_count=1)
    world = World(setup, FaultPlan().fail_at(12.0, kind, node=1), seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    names = [node.name for node in world.nodes]
    assert len(state.health.excluded) == 1
    assert set(state.health.excluded) <= ({names[1]} if kind is Kind.BAD_NIC else {names[1], names[2]})
    assert len(state.attempts) == 2


def test_a_connection_that_was_lost_once_excludes_nobody() -> None:
    world = World(tried(Setup.of(4, script=STEPS)), FaultPlan().fail_at(12.0, Kind.BAD_NIC, node=1), 3)
    world.timeline.at(13.0, world.bad_links.clear)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert state.health.excluded == {}
    assert len(state.attempts) == 2


def box(spare: int, least: int = 0) -> Setup:
    """One node with a GPU for each of four ranks, and ``spare`` more."""
    shape = Shape(1, 1, 4, 1, least)
    return replace(Setup.of(1, script=Script(steps_count=60)), shape=shape, spare_slots_count=spare)


@pytest.mark.parametrize("seed", range(12))
def test_a_box_trains_on_without_the_gpus_that_broke(seed: int) -> None:
    """Whatever else falls at that moment."""
    rng = random.Random(seed)
    first, second = rng.sample(range(4), 2)
    at = rng.uniform(0.2, 20.0)
    plan = FaultPlan().fail_at(at, Kind.BREAK_SLOT, node=0, amount=first)
    plan = plan.fail_at(rng.uniform(0.2, 30.0), Kind.BREAK_SLOT, node=0, amount=second)
    plan = plan.fail_at(at + rng.uniform(-0.5, 3.0), rng.choice((Kind.KILL_SUPERVISOR, Kind.KILL_AGENT)), node=0)
    world = World(box(spare=1, least=3), plan, seed)
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    assert state.attempt.placement is not None and not state.health.excluded
    used = {seat.slot.index for seat in state.attempt.placement.seats}
    assert used == {0, 1, 2, 3, 4} - {first, second}


@pytest.mark.parametrize("seed", range(8))
def test_a_drained_node_holds_no_rank_in_a_later_attempt(seed: int) -> None:
    """Whoever decides may die at that moment, and the order with it: then the person has no answer."""
    rng = random.Random(seed)
    at = rng.uniform(6.0, 20.0)
    plan = FaultPlan().fail_at(at, Kind.DRAIN, node=1)
    plan = plan.fail_at(at + rng.uniform(-0.3, 6.0), rng.choice((Kind.KILL_SUPERVISOR, Kind.KILL_RANK)), node=0)
    script = Script(steps_count=60, checkpoint_every_count=5)
    setup = replace(Setup.of(4, script=script, requeue=True), spares_count=seed % 2)
    world = World(setup, plan, seed)
    name = world.nodes[1].name
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    journal = [line.record for lines in world.disk.journals.values() for line in lines]
    asked = [one.at for one in journal if one.kind == "DrainRequested" and one.outcome == "applied"]
    assert asked
    later = [one for one in state.attempts if one.started > asked[0]]
    assert later and all(name not in one.nodes for one in later)
    assert set(state.health.excluded) == {name}
    assert (len({one.job for one in state.attempts}) == 1) is bool(seed % 2), "a spare takes its place, or the next job"
