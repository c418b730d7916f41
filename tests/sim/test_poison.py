"""Checkpoints that break whoever loads them, in simulated worlds: none comes into use again, from whichever tier."""

from __future__ import annotations

import pytest

from gangrun.core.model import Phase, RunState
from gangrun.sim import HOLDER, Behaviour, FaultPlan, Kind, Script, Setup, World


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
    memory_every_count=3,
    behaviours=(KILLED, bad(59, 1), bad(62, 2), bad(50, 3)),  # the last two have kept a step of the poisoned state
)


@pytest.mark.parametrize("late_s", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_a_supervisor_that_is_lost_on_the_way_brings_none_back(late_s: float) -> None:
    """What whoever loaded it has kept in memory is asked for by nobody, whoever makes the choice, or makes it again."""
    setup = Setup.of(4, script=SPOILT)
    quiet = played(World(setup, FaultPlan(), 1))
    assert [one.resumed_from_step for one in quiet.attempts] == [None, 57, 57, 45, 40]
    for attempt in quiet.attempts[2:4]:
        assert attempt.ended is not None
        played(World(setup, FaultPlan().fail_at(attempt.ended + late_s, Kind.KILL_SUPERVISOR, node=HOLDER), 1))
