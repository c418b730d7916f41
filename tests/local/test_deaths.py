"""What dies, and what comes back: ranks, agent, supervisor, warden, and the owner itself."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.local.evidence import alive
from tests.local.harness import Box
from tests.waiting import until, within

DEAD_WITHIN_S = 2.0  # beyond what a lease allows: promised, so measured where nothing else runs


@pytest.mark.serial
def test_the_death_of_a_rank_is_seen_at_once(box: Box) -> None:
    box.step(2, steps=1000)
    box.wait_for_step(3)
    other, victim = box.pid_of(0), box.pid_of(1)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: not alive(other), 5, "the other rank is stopped")
    assert time.monotonic() - killed_at < 2.0
    box.wait_for_step(0, attempt=1)


@pytest.mark.serial
def test_a_killed_agent_takes_its_ranks_with_it_and_the_gang_comes_back(box: Box) -> None:
    box.step(2, steps=60)
    ranks = box.stepping()
    os.kill(box.one("entry.agent"), signal.SIGKILL)
    within(lambda: not any(map(alive, ranks)), DEAD_WITHIN_S, "the ranks are dead")
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["restarts"] == 1
    assert "agent" in status["attempts"][0]["reason"]
    assert status["excluded"] == []


@pytest.mark.serial
def test_a_killed_warden_leaves_no_rank_and_the_run_goes_on(box: Box) -> None:
    box.step(2, steps=60)
    ranks = box.stepping()
    os.kill(box.one("node/warden.py"), signal.SIGKILL)
    within(lambda: not any(map(alive, ranks)), DEAD_WITHIN_S, "the ranks are dead")
    assert box.end(90) == 0, box.told()
    assert box.status()["state"] == "SUCCEEDED"


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


def test_json_prints_exactly_one_object(box: Box) -> None:
    box.step(2, "--json", steps=5)
    assert box.end() == 0, box.told()
    found = json.loads(box.out.read_text())
    assert found["schema"] == 1
    assert found["state"] == "SUCCEEDED"
    assert "step 4" in box.err.read_text()
