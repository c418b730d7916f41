"""What dies, and what comes back: ranks, agent, supervisor, warden, and the owner itself."""

from __future__ import annotations

import os
import signal

import pytest

from tests.local.evidence import alive
from tests.local.harness import Box
from tests.waiting import until, within

DEAD_WITHIN_S = 2.0  # beyond what a lease allows: promised, so measured where nothing else runs


@pytest.mark.serial
@pytest.mark.parametrize("part", ["entry.agent", "node/warden.py"])
def test_a_killed_agent_or_warden_takes_its_ranks_with_it_at_once(box: Box, part: str) -> None:
    box.step(2, steps=100_000)
    ranks = box.stepping()
    os.kill(box.one(part), signal.SIGKILL)
    within(lambda: not any(map(alive, ranks)), DEAD_WITHIN_S, "the ranks are dead")


def test_when_the_owner_is_killed_nothing_stays_and_the_run_can_be_taken_up_again(box: Box) -> None:
    memory = box.folder / "memory"
    (memory / f"gangrun-{os.getuid()}" / "another" / "n0").mkdir(parents=True)
    box.environment["GANGRUN_LOCAL_DIR"] = str(memory)
    box.step(2, steps=100)
    box.wait_for_step(5)
    assert box.process is not None
    box.process.kill()
    until(lambda: not box.left(), 10, f"every process of the run is gone {box.left()}")
    status = box.status()
    assert status["abandoned"]
    left = [path.name for path in memory.glob("gangrun-*/*")]
    assert sorted(left) == sorted([status["run"], "another"])  # who was killed could not clean up
    (memory / f"gangrun-{os.getuid()}" / "another" / "n0" / ".held").touch()  # as a killed agent leaves it
    done = box.gangrun("resume", status["run"], "--runs-dir", str(box.runs), check=False)
    assert done.returncode == 0, done.stderr + box.told()
    assert box.status()["state"] == "SUCCEEDED"
    assert not list(memory.glob("gangrun-*/*")), box.told()
