"""Ranks that stand, in scripts that print nothing and report nothing: found in seconds, and named."""

from __future__ import annotations

import os
import signal

import pytest

from gangrun.node.processes import host_name
from tests.local.harness import Box

pytestmark = pytest.mark.no_warm

SILENT = """
import os, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["GANGRUN_ATTEMPT"])
pipe = f"pipe-{attempt}"
if rank == 0: os.mkfifo(pipe)
while not os.path.exists(pipe): time.sleep(0.01)
with open(f"pid-{attempt}-{rank}.new", "w") as file: file.write(str(os.getpid()))
os.rename(f"pid-{attempt}-{rank}.new", f"pid-{attempt}-{rank}")
end = os.open(pipe, os.O_WRONLY if rank else os.O_RDONLY)
for _ in range(10 if attempt else 1_000_000):
    if rank: os.write(end, b"x"); time.sleep(0.05)
    else: assert os.read(end, 1)
"""

COLLECTIVES = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1_000_000):
    if step == 3: print("the time-out counts from here", flush=True)
    if step == 3 and os.environ["RANK"] == "1": time.sleep(1_000_000)
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_a_stopped_rank_of_a_silent_script_is_found_in_seconds_and_all_ranks_restart(box: Box) -> None:
    box.start("--nproc-per-node", "2", box.script(SILENT))
    pid = box.work / "pid-0-1"
    box.until(pid.exists, "ranks that run")
    os.kill(int(pid.read_text()), signal.SIGSTOP)
    assert box.end(90) == 0, box.told()
    first, second = box.status()["attempts"]
    assert (first["outcome"], second["outcome"]) == ("hang", "succeeded")
    assert f"rank 1 on {host_name()} is stopped (state T" in first["reason"] and "(limit 10 s)" in first["reason"]


@pytest.mark.slow
def test_a_rank_that_sleeps_before_a_collective_is_named_and_the_collective_with_it(box: Box) -> None:
    limit = ("--hang-timeout", "20", "--max-restarts", "0")  # so early in a run the limit is that of a start
    box.start("--nproc-per-node", "3", *limit, box.script(COLLECTIVES))
    found = box.until_status("a suspicion", lambda found: "collectives" in found["warning"], 120)
    said = found["warning"]
    assert said.startswith(f"rank 1 on {host_name()} has stood in train.py:7 in <module> for "), said
    assert "and issued 3 collectives where others issued 4; 2 ranks wait; counts as hung" in said
    assert found["state"] == "RUNNING" and len(found["attempts"]) == 1
    assert box.end(90) == 1, box.told()
    reason = box.status()["attempts"][0]["reason"]
    assert f"rank 1 on {host_name()} is in train.py:7 in <module>" in reason
    assert "collective 4 of group 0 is all_reduce of 1, which rank 1 did not enter (newest 3)" in reason


# After four evaluations one rank hangs in a step.
EVALUATES = """
import os, time
import torch, torch.distributed as dist
import gangrun
def hang(): time.sleep(1_000_000)
dist.init_process_group("gloo")
odd, attempt = dist.get_rank() == 1, os.environ["GANGRUN_ATTEMPT"]
for step in range(10 if attempt == "1" else 1_000_000):
    time.sleep(0.1)
    if odd and step == 90: hang()
    dist.all_reduce(torch.ones(1))
    gangrun.step(step)
    if step % 20 == 19:
        with gangrun.phase("eval"):
            time.sleep(2)
            dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_limit_of_a_step_is_its_own_whatever_evaluations_take(box: Box) -> None:
    """An evaluation takes 20 times as long as a step."""
    box.start("--nproc-per-node", "2", box.script(EVALUATES))
    assert box.end(500) == 0, box.told()
    reason = box.status()["attempts"][0]["reason"]
    assert "(limit 60 s)" in reason and f"rank 1 on {host_name()} is in train.py:5 in hang" in reason, reason
