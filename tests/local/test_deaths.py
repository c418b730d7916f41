"""What dies, and what comes back: ranks, agent, supervisor, warden, and the owner itself."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.local.harness import Box
from tests.waiting import until, within

DEAD_WITHIN_S = 2.0  # beyond what a lease allows: promised, so measured where nothing else runs


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_clean_run_ends_with_zero_and_leaves_nothing(box: Box) -> None:
    box.step(4, steps=10)
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["state"] == "SUCCEEDED"
    assert status["failure"] is None
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["succeeded"]
    assert not box.left()
    shown = box.out.read_text()
    assert ":rank0] step 9" in shown
    assert ":rank3] step 9" in shown
    assert ":rank1]" not in shown


def test_a_killed_rank_comes_back_in_place_and_nobody_is_blamed(box: Box) -> None:
    box.step(3, steps=40)
    box.wait_for_step(5)
    os.kill(box.pid_of(1), signal.SIGKILL)
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["restarts"] == 1
    assert status["excluded"] == []
    first, second = status["attempts"]
    assert "rank 1" in first["reason"]
    assert "SIGKILL" in first["reason"]
    assert second["outcome"] == "succeeded"
    assert {row[0] for row in box.rows(0)} == {0, 1}


@pytest.mark.serial
def test_the_death_of_a_rank_is_seen_at_once(box: Box) -> None:
    box.step(2, steps=1000)
    box.wait_for_step(3)
    other, victim = box.pid_of(0), box.pid_of(1)
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: gone(other), 5, "the other rank is stopped")
    assert time.monotonic() - killed_at < 2.0
    box.wait_for_step(0, attempt=1)


def test_a_bug_stops_the_run_with_its_traceback_and_excludes_nobody(box: Box) -> None:
    box.step(2, hook="if rank == 1:\n    def hook(step):\n        if step == 3: raise ValueError('no such sample')")
    assert box.end() == 1, box.told()
    status = box.status()
    assert "the warden of" not in box.err.read_text(), "it ended with the run, as it should"
    assert status["state"] == "FAILED"
    assert status["failure"] == "script"
    assert "ValueError" in status["reason"]
    assert "no such sample" in status["reason"]
    assert status["excluded"] == []
    assert len(status["attempts"]) <= 3


@pytest.mark.serial
def test_a_killed_agent_takes_its_ranks_with_it_and_the_gang_comes_back(box: Box) -> None:
    box.step(2, steps=60)
    box.wait_for_step(5)
    ranks = [box.pid_of(rank) for rank in (0, 1)]
    os.kill(box.one("entry.agent"), signal.SIGKILL)
    within(lambda: all(map(gone, ranks)), DEAD_WITHIN_S, "the ranks are dead")
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["restarts"] == 1
    assert "agent" in status["attempts"][0]["reason"]
    assert status["excluded"] == []


def test_a_killed_supervisor_is_replaced_and_training_goes_on(box: Box) -> None:
    box.step(2, steps=60)
    box.wait_for_step(5)
    ranks = [box.pid_of(rank) for rank in (0, 1)]
    os.kill(box.one("entry.supervisor"), signal.SIGKILL)
    box.until_status("a second term", lambda status: status["supervisor"]["term"] >= 2)
    assert [box.pid_of(rank) for rank in (0, 1)] == ranks
    assert box.end() == 0, box.told()
    status = box.status()
    assert len(status["attempts"]) == 1
    assert status["restarts"] == 0


def test_a_supervisor_stopped_for_good_is_replaced_and_leaves_when_it_wakes(box: Box) -> None:
    box.step(2, steps=60)
    box.wait_for_step(5)
    ranks = [box.pid_of(rank) for rank in (0, 1)]
    old = box.one("entry.supervisor")
    os.kill(old, signal.SIGSTOP)
    box.until_status("a second term", lambda status: status["supervisor"]["term"] >= 2)
    assert [box.pid_of(rank) for rank in (0, 1)] == ranks
    os.kill(old, signal.SIGCONT)
    until(lambda: gone(old), 10, "the deposed supervisor leaves")
    assert box.end(90) == 0, box.told()
    status = box.status()
    assert len(status["attempts"]) == 1
    log = box.run_dir() / ".gangrun" / f"processes-{status['nodes'][0]}.log"
    assert "supervisor #1 leaves" in log.read_text()


@pytest.mark.serial
def test_a_killed_warden_leaves_no_rank_and_the_run_goes_on(box: Box) -> None:
    box.step(2, steps=60)
    box.wait_for_step(5)
    ranks = [box.pid_of(rank) for rank in (0, 1)]
    os.kill(box.one("node/warden.py"), signal.SIGKILL)
    within(lambda: all(map(gone, ranks)), DEAD_WITHIN_S, "the ranks are dead")
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
