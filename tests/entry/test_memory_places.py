"""Where nodes bring what is in their memory: what the supervisor makes and takes away, the same in every world."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName
from gangrun.checkpoint.memory_tier.recover_from_memory import bring, staging_of
from gangrun.checkpoint.scan import step_pattern
from gangrun.core.events import Stamped
from gangrun.entry.checkpoint_service import CheckpointService
from gangrun.ports import Checkpoints
from gangrun.sim.body.checkpoints import CheckpointFs, SimCheckpoints
from gangrun.sim.engine.clock import Timeline
from gangrun.sim.engine.disk import Mount, SimDisk
from gangrun.sim.engine.process import SimProcess
from tests.supervisor.ports_in_memory import HandCheckpoints
from tests.waiting import until

GONE = "No such file or directory"


class World(NamedTuple):
    """``brings``: what a node does with a path, and why it could not. ``settled``: all that was asked for is done."""

    checkpoints: Checkpoints
    staging: str
    brings: Callable[[str], str]
    settled: Callable[[], object]


def real(folder: Path) -> Iterator[World]:
    said: list[Stamped] = []
    service = CheckpointService(str(folder), step_pattern(), "r", str(folder), said.append)

    def brings(path: str) -> str:
        try:
            bring(cast(KeeperClient, None), StepName(0, 1, "ab"), (), path)  # of no files, so no keeper is asked
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def settled() -> None:
        said.clear()
        service.seal(0)  # answered after all else
        until(lambda: said, 20, "an answer")

    yield World(service, staging_of(str(folder), "r")(1, 0), brings, settled)
    service.close(60)


def simulated(_folder: Path) -> Iterator[World]:
    timeline = Timeline()
    fs, mount = CheckpointFs(timeline), Mount(SimDisk(timeline), timeline)
    port = SimCheckpoints(fs, mount, SimProcess(timeline, "supervisor", 1), 1, lambda item: None)
    yield World(port, "1/0", lambda path: fs.bring(path, ("file",)), lambda: timeline.run_until(timeline.now + 1.0))


def by_hand(_folder: Path) -> Iterator[World]:
    port = HandCheckpoints(lambda item: None)
    yield World(port, "staging/1/0", port.bring, lambda: None)


@pytest.fixture(params=[real, simulated, by_hand])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from request.param(tmp_path)


def test_what_is_given_up_for_something_else_leaves_its_place_and_what_is_discarded_last_takes_it_away(
    world: World,
) -> None:
    """The place is the supervisor's: whoever brings never makes it, so that nothing comes once it is gone."""
    first, other = (os.path.join(world.staging, name) for name in ("20-ab", "10-cd"))
    assert world.brings(first) == GONE
    world.checkpoints.prepare(world.staging)
    world.settled()
    assert world.checkpoints.prepared(world.staging)
    assert world.brings(first) == ""
    world.checkpoints.discard(first, more=True)
    world.settled()
    assert world.brings(other) == ""
    world.checkpoints.discard(first)
    world.settled()
    assert world.brings(other) == "", "something is there"
    world.checkpoints.discard(other)
    world.settled()
    assert world.brings(first) == GONE
    world.checkpoints.prepare(world.staging)
    world.settled()
    assert world.brings(first) == ""


def test_once_a_checkpoint_was_made_of_it_or_could_not_be_the_place_is_gone(world: World) -> None:
    world.checkpoints.prepare(world.staging)
    world.settled()
    path = os.path.join(world.staging, "20-ab")
    assert world.brings(path) == ""
    if isinstance(world.checkpoints, SimCheckpoints):
        world.checkpoints.names = {"ab": ((1, 0), 2)}
    world.checkpoints.adopt(path, 0, 20, "ab", ("n0",), 0)
    world.settled()
    assert world.brings(path) == GONE
