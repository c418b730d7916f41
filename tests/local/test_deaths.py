"""What dies with a killed agent, warden or owner, and what comes back; what an agent costs while nobody dies."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

from tests.local.evidence import alive, each_second_in_one_class
from tests.local.harness import Box
from tests.waiting import stays, until, within

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
    box.step(2, steps=40)
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


DIES_FARTHER_ON = """
    def hook(step):
        gangrun.step(step)
        if rank == 0 and attempt < 5 and step == (16, 24, 37, 45, 45)[attempt]: os.kill(os.getpid(), 9)
"""


def test_each_step_that_no_attempt_had_reached_is_progress(box: Box) -> None:
    """One restart is allowed. Four deaths are each farther on than the last; the fifth is where the fourth was."""
    box.step(2, "--max-restarts", "1", steps=60, pace=0.01, hook=f"import gangrun\n{textwrap.dedent(DIES_FARTHER_ON)}")
    assert box.end() == 1, box.told()
    status = box.status()
    assert (status["state"], status["failure"], len(status["attempts"])) == ("FAILED", "budget", 5), box.told()
    assert "1 of 1 spent since step 45" in status["reason"]
    each_second_in_one_class(box)


PRINTS_FARTHER = """
    import os, time
    rank, attempt = int(os.environ["RANK"]), int(os.environ["GANGRUN_ATTEMPT"])
    deaths = {deaths}
    for step in range(60):
        if rank == 0: print(f"step {{step}}/60 | loss {{2.5 - step / 100:.2f}}", flush=True)
        time.sleep(0.01)
        if rank == 0 and attempt < len(deaths) and step == deaths[attempt]: os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("deaths", [(16, 24, 37), (16, 16, 16)])
def test_a_step_that_only_the_log_shows_is_progress_if_no_attempt_had_reached_it(
    box: Box, deaths: tuple[int, ...]
) -> None:
    box.start("--max-restarts", "2", "--nproc-per-node", "2", box.script(PRINTS_FARTHER.format(deaths=deaths)))
    goes_on = len(set(deaths)) > 1
    assert box.end() == (0 if goes_on else 1), box.told()
    status = box.status()
    if goes_on:
        assert len(status["attempts"]) == 4, box.told()
        assert (status["state"], status["restarts"]) == ("SUCCEEDED", 3), box.told()
        assert status["log_step"] >= 37
    else:
        assert status["failure"] == "budget", box.told()
        assert "2 of 2 spent since step 16" in status["reason"]


def slept_count(pid: int) -> int:
    """How often its threads have gone to sleep, to be woken again."""
    texts = [one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for text in texts for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


FAIL_TOGETHER = """
    import os, pathlib, time
    rank, fell = int(os.environ["RANK"]), pathlib.Path("fell")
    if rank == 2: time.sleep(600)
    if rank == 0: fell.touch()
    while not fell.exists(): time.sleep(0.01)
    time.sleep(4 * rank)
    raise ValueError("loss is nan")
"""


def test_ranks_that_fail_a_moment_later_are_culprits_too(box: Box) -> None:
    """The stop settles for longer than that moment. Rank 2, which never fails, is stopped by gangrun."""
    box.start("--nproc-per-node", "3", "--max-restarts", "0", "--settle", "8", box.script(FAIL_TOGETHER))
    assert box.end() == 1, box.told()
    found = json.loads(box.gangrun("logs", "--errors", "--json", "--runs-dir", str(box.runs)).stdout)
    culprits, *others = found["failures"]
    assert culprits["ranks"] == [0, 1], box.told()
    assert [(one["ranks"], one["stopped_by_us"]) for one in others] == [([2], True)]
    assert found["verdict"].startswith("rank 0 on ") and "ValueError: loss is nan" in found["verdict"]
    out = box.out.read_text() + box.err.read_text()
    assert out.count("first to fail in attempt 0: rank 0 on ") == 1


@pytest.mark.serial
def test_an_agent_costs_next_to_nothing(box: Box) -> None:
    """Under 60 MB, and few wake-ups at a heartbeat per second: what one costs differs by machine (hot_paths.py)."""
    box.start("--nproc-per-node", "2", box.script("import time\ntime.sleep(600)\n"))
    until(lambda: len(box.ranks()) == 2, 20, box.told)
    agent = box.one("entry.agent")
    before, began = slept_count(agent), time.monotonic()
    stays(lambda: alive(agent), 6, "the agent lives")
    per_s = (slept_count(agent) - before) / (time.monotonic() - began)
    status = Path(f"/proc/{agent}/status").read_text()
    resident_mb = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident_mb < 60, f"{resident_mb:.1f} MB"
    assert per_s < 20, f"{per_s:.1f} wake-ups a second"
