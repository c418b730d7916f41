"""Checkpoints in simulated worlds: held by memory alone, read by all nodes together, poisoned."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from gangrun.core.model import Phase, RunState
from gangrun.sim import HOLDER, Behaviour, FaultPlan, Kind, Script, Setup, World
from gangrun.sim.body.agent import BRING_S
from gangrun.sim.engine.clock import EPOCH_S
from gangrun.wire.messages import VerifyShare

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


def brought_at(world: World) -> list[float]:
    """From now on, when nodes write what is in their memory."""
    times: list[float] = []
    bring = world.checkpoint_fs.bring

    def noted(path: str, files: Collection[str]) -> str:
        times.append(world.timeline.now)
        return bring(path, files)

    world.checkpoint_fs.bring = noted  # type: ignore[method-assign]
    return times


@pytest.mark.parametrize("lost", [0, 1])
def test_one_that_is_lost_while_it_brings_its_part_is_done_without(lost: int) -> None:
    """What it holds another one holds, too, though it was not asked for it. The supervisor is on node 0."""
    plan = FaultPlan().fail_at(16.0, Kind.KILL_RANK, node=None, rank=2)
    world = world_of(plan, seed=1)
    times = brought_at(world)
    once = world.run()
    assert once.state is not None and once.state.attempts[1].resumed_from_step == 8
    rescued_at = next(at for at in times if at > 16.0)  # the ones before are written while ranks train
    again = world_of(plan.fail_at(rescued_at - BRING_S / 2, Kind.KILL_NODE, node=lost), seed=1)
    twice = again.run()
    assert twice.state is not None and twice.state.phase is Phase.SUCCEEDED, again.story()
    assert twice.state.attempts[1].resumed_from_step == 8
    assert twice.took_s < once.took_s + 90.0


def reading_world(plan: FaultPlan, seed: int) -> tuple[World, list[VerifyShare]]:
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
    world, asked = reading_world(FaultPlan().fail_at(25.0, Kind.KILL_RANK, rank=seed), seed)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert len(asked) == 3 and len(set(asked)) == 1


@pytest.mark.parametrize("late_s", [0.8, 1.0, 1.2])
@pytest.mark.parametrize(("kind", "readings_count"), [(Kind.KILL_SUPERVISOR, 6), (Kind.KILL_AGENT, 3)])
def test_a_supervisor_that_dies_meanwhile_is_followed_by_one_that_asks_again(
    kind: Kind, readings_count: int, late_s: float
) -> None:
    """And an agent that dies by one that reads what was asked of it."""
    node = 0 if kind is Kind.KILL_SUPERVISOR else 2
    plan = FaultPlan().fail_at(25.0, Kind.KILL_RANK, rank=1).fail_at(25.0 + late_s, kind, node=node)
    world, asked = reading_world(plan, seed=5)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert len(asked) == readings_count


def bad(step: int, *attempts: int) -> Behaviour:
    return Behaviour(step, code=1, signature="not a number", attempts=frozenset(attempts))


KILLED = Behaviour(58, signal=9)


def played(world: World) -> RunState:
    """A broken promise raises: a poisoned one that is brought to the disk again is one."""
    world.run()
    state = world.newest_state()
    assert state is not None
    assert state.phase is Phase.SUCCEEDED, state.reason
    fs = world.checkpoint_fs
    assert fs.poisoned
    spoilt = {one.attempt for one in state.checkpoints.poisoned}
    ever = [one for one in (*fs.saved.values(), *fs.set_aside) if one.nonce in world.memory.names]
    assert not [one for one in ever if one.name[1] in spoilt], "what they kept in memory was brought to the disk"
    return state


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("memory", "starts"),
    [(0, [None, 50, 50, 40, 30]), (8, [None, 56, 56, 50, 40])],
    ids=["disk", "memory"],
)
def test_two_in_a_row_are_set_aside_wherever_they_were(memory: int, starts: list[int | None], seed: int) -> None:
    newest, older = starts[2] or 0, starts[3] or 0
    script = Script(
        steps_count=80, memory_every_count=memory, behaviours=(KILLED, bad(newest + 3, 1, 2), bad(older + 3, 3))
    )
    state = played(World(Setup.of(4, script=script), FaultPlan(), seed))
    assert [one.resumed_from_step for one in state.attempts] == starts
    assert {one.step for one in state.checkpoints.poisoned} == {newest, older}


SPOILT = Script(
    steps_count=80,
    checkpoint_every_count=20,
    memory_every_count=5,
    behaviours=(KILLED, bad(59, 1), bad(62, 2), bad(52, 3)),  # the last two have kept a step of the poisoned state
)


@pytest.mark.parametrize("late_s", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_a_supervisor_that_is_lost_on_the_way_brings_none_back(late_s: float) -> None:
    """What whoever loaded it has kept in memory is asked for by nobody, whoever makes the choice, or makes it again."""
    setup = Setup.of(4, script=SPOILT)
    quiet = played(World(setup, FaultPlan(), 1))
    assert [one.resumed_from_step for one in quiet.attempts] == [None, 55, 55, 45, 40]
    for attempt in quiet.attempts[2:4]:
        assert attempt.ended is not None
        at_s = attempt.ended - EPOCH_S + late_s
        played(World(setup, FaultPlan().fail_at(at_s, Kind.KILL_SUPERVISOR, node=HOLDER), 1))


@pytest.mark.parametrize("seed", range(24))
def test_all_ranks_save_one_step_however_late_a_node_hears_of_it(seed: int) -> None:
    """A save of all ranks waits for each of them, so it succeeds only if all were told the same step."""
    rng = random.Random(f"asked {seed}")
    step_s = rng.choice((0.004, 0.05, 0.7, 5.0))
    script = Script(step_s=step_s, steps_count=10**6, checkpoint_every_count=0, saves_when_asked=True)
    late = FaultPlan().fail_at(10.0, Kind.DELAY, node=rng.randrange(4), for_s=90.0, amount=rng.uniform(0.0, 0.45))
    plan = late.fail_at(rng.uniform(20.0, 40.0), Kind.CANCEL)
    saves_one_step(World(Setup.of(4, ranks_per_node=2, script=script), plan, seed))


@pytest.mark.parametrize("step_s", [0.005, 3.0])
@pytest.mark.parametrize("after_s", [-0.6, -0.4, -0.2, 0.0, 0.003, 0.2, 0.7, 1.3])
@pytest.mark.parametrize("late_s", [0.0, 0.45])
def test_all_ranks_save_one_step_in_the_first_seconds_of_an_attempt(
    step_s: float, after_s: float, late_s: float
) -> None:
    """Nobody knows their pace yet: the supervisor may know of one step, and the ranks have done 400 since."""
    script = Script(step_s=step_s, steps_count=10**6, checkpoint_every_count=0, saves_when_asked=True)
    setup = Setup.of(3, script=script)
    late = FaultPlan().fail_at(1.0, Kind.DELAY, node=1, for_s=90.0, amount=late_s) if late_s else FaultPlan()
    quiet = World(setup, late.fail_at(20.0, Kind.CANCEL), 5)
    quiet.run()
    began_at = quiet.gangs[0].whole_since + script.startup_s
    saves_one_step(World(setup, late.fail_at(began_at + after_s, Kind.CANCEL), 5))


def saves_one_step(world: World) -> None:
    done = world.run()
    assert done.state is not None and done.state.phase is Phase.CANCELLED, world.story()
    (saved,) = world.checkpoint_fs.saved.values()
    assert saved.whole and done.took_s < 60.0, "nothing waited for the end of the grace"
