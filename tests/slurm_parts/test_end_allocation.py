"""An allocation whose batch host is gone is given back by whoever is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gangrun.adapters.slurm.commands import Answer
from gangrun.adapters.slurm.jobs import end_allocation
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from tests.slurm_parts.pretend import PretendJob, PretendSlurm, PretendTime


class World:
    """One running job."""

    def __init__(self) -> None:
        self.time = PretendTime()
        self.slurm = PretendSlurm(self.time)
        self.me = self.slurm.add(PretendJob("7", state="RUNNING"))


def end(world: World, wait: Callable[[float], bool] | None = None) -> str:
    return end_allocation(SlurmScheduler(world.slurm), "7", clock=world.time, wait=wait or world.time.wait)


def test_an_allocation_without_a_batch_script_is_ended() -> None:
    world = World()
    assert end(world) == "" and world.me.state == "COMPLETING"
    assert [line.split()[0] for line in world.slurm.asked] == ["scontrol", "scancel", "scontrol"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", None])
def test_one_that_is_over_is_left_alone(state: str | None) -> None:
    world = World()
    if state is None:
        del world.slurm.jobs["7"]
    else:
        world.me.state = state
    assert end(world) == "" and len(world.slurm.asked) == 1


def test_asked_again_until_slurm_hears() -> None:
    world = World()
    world.slurm.down = True
    world.time.later(4.5, lambda: setattr(world.slurm, "down", False))
    assert end(world) == "" and world.time.now() == 106.0


def test_given_up_in_words() -> None:
    world = World()
    world.slurm.down = True
    assert "job 7 could not be ended: " in end(world) and world.time.now() == 130.0
    world = World()
    world.slurm.instead["scancel"] = [Answer(0)] * 100  # it says yes and does nothing
    assert end(world) == "Slurm took the scancel of job 7, but still shows it after 30 s"
    world = World()
    world.slurm.down = True
    assert end(world, lambda for_s: True) != "" and world.time.now() == 100.0
