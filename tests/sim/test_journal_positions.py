"""The supervisor is killed, and stopped then woken, at every boundary of several stories: the run ends right each time.

A boundary is every place where it touches the world: before and after each claim, seal, fsync and ticket, before each
message that asks an agent for something, before each act on checkpoints. Whatever the boundary, all invariants hold,
never two gangs, and the story ends as it would have without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gangrun.core.model import Phase
from gangrun.sim import Behaviour, FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine.process import SimProcess

STOPPED_FOR_S = (1.0, 8.0, 40.0)  # the longest is over the 20 s in which the word of a cancel must reach everybody
SCRIPT = Script(steps_count=8, checkpoint_every_count=3, victims_after_s=0.5)


@dataclass(frozen=True)
class Story:
    """A short run, what befalls it, and how it must end."""

    script: Script
    plan: FaultPlan
    ends: frozenset[Phase]
    requeue: bool = False

    def world(self, probe: Callable[[SimProcess, str], None]) -> World:
        return World(Setup.of(3, script=self.script, requeue=self.requeue), self.plan, 7, probe=probe)


DONE = frozenset({Phase.SUCCEEDED})
STORIES = {
    "start and finish": Story(SCRIPT, FaultPlan(), DONE),
    "a rank fails": Story(
        Script(steps_count=8, checkpoint_every_count=3, behaviours=(Behaviour(step=5, rank=1, code=9),)),
        FaultPlan(),
        DONE,
    ),
    "a node is silent": Story(SCRIPT, FaultPlan().fail_at(6.0, Kind.CUT, node=2, for_s=45.0), DONE, requeue=True),
    "a node is lost": Story(SCRIPT, FaultPlan().fail_at(6.0, Kind.KILL_NODE, node=1), DONE, requeue=True),
    "an agent dies": Story(SCRIPT, FaultPlan().fail_at(6.0, Kind.KILL_AGENT, node=1), DONE),
    # cancelled, unless it had finished by then
    "it is cancelled": Story(SCRIPT, FaultPlan().fail_at(6.0, Kind.CANCEL), frozenset({Phase.CANCELLED}) | DONE),
}


def boundaries(story: Story) -> list[str]:
    """All boundaries of the first supervisor, in order."""
    seen: list[str] = []
    story.world(lambda process, label: seen.append(label)).run()
    return seen


def run_with(story: Story, position: int, act: Callable[[SimProcess], None]) -> World:
    """The story, with something done to whichever supervisor comes to that boundary first."""
    count = -1

    def probe(process: SimProcess, label: str) -> None:
        del label
        nonlocal count
        count += 1
        if count == position:
            act(process)

    world = story.world(probe)
    world.run()
    return world


def ends_right(story: Story, world: World, where: str) -> None:
    state = world.newest_state()
    cancelled = world.disk.cancelled_at is not None
    assert not world.scheduler.running(), f"{where}: jobs still hold nodes"
    assert not world.checker.refused, f"{where}: {world.checker.refused}"
    if not cancelled:  # where it is, the last resort takes the nodes away and the marker tells the end
        assert state is not None, where
        assert state.phase in story.ends, f"{where}: {state.phase} {state.reason}\n{world.story()}"


@pytest.mark.parametrize("name", STORIES)
def test_killed_at_every_boundary(name):
    story = STORIES[name]
    for position, label in enumerate(boundaries(story)):
        ends_right(story, run_with(story, position, lambda process: process.kill()), f"killed at {position}: {label}")


@pytest.mark.parametrize("for_s", STOPPED_FOR_S)
@pytest.mark.parametrize("name", STORIES)
def test_stopped_then_woken_at_every_boundary(name, for_s):
    story = STORIES[name]
    for position, label in enumerate(boundaries(story)):
        world = run_with(story, position, lambda process: process.pause(for_s))
        ends_right(story, world, f"stopped for {for_s:g} s at {position}: {label}")
