"""The run directory refuses what is written: on one host, or for good when a job claims its place."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from datetime import datetime
from pathlib import Path

from gangrun.adapters.fs.run_dir import RunPaths
from tests.faults.disk import FreezableDisk
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.waiting import until

PRINTS = """
def hook(step):
    if rank == 1 and attempt == 1 and step == 3:
        for number in range(3000): print(f"number {number:04}", "x" * 200, flush=True)
"""
LINES_COUNT = 3000
WAITING_MAX_S = 6.0
HELD = '"$real" --hold "$@"'


def fill(folder: Path) -> Path:
    """Take all that is left there; the file that holds it."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast


def test_lines_that_one_hosts_disk_refuses_stand_in_the_jobs_output(cluster: Cluster, run: Run) -> None:
    """Its logs are a small file system of its own, which the second attempt fills."""
    told = run.step(2, 1, steps=100_000, hook=PRINTS)
    run.wait_for_step(3)
    host, pid = run.ranks()[1]
    cluster.hide(host, run.root / "logs", "size=256k")
    os.kill(pid, signal.SIGKILL)
    output = run.root / "logs" / f"job-{told['job']}.out"
    log = run.root / "logs" / "1" / f"{host}.log"

    def numbers() -> list[str]:
        """Of whole lines, on the host's disk and in the output of the job."""
        texts = [cluster.room.run(host, "cat", str(log), check=False).stdout, output.read_text()]
        of_rank = re.compile(rf"\[{host}:rank1 [\d:]+\] number ")
        lines = [line for text in texts for line in text.splitlines() if of_rank.match(line)]
        return [line.partition("x")[0].rpartition("number ")[2].strip() for line in lines if line.endswith("x" * 200)]

    until(lambda: len(numbers()) >= LINES_COUNT, 20, lambda: f"every line: {len(numbers())}\n{run.told()}")
    assert numbers() == [f"{number:04}" for number in range(LINES_COUNT)], "each once, in order"
    assert "] number 2999 " in output.read_text()
    assert "the disk refuses what ranks print (No space left on device)" in output.read_text()
    (note,) = run.wait("the loss to be known", lambda status: status["notes"])["notes"]
    assert f"is missing in logs/1/{host}.log (" in note
    run.gangrun("cancel", run.id, "-y")
    run.end("CANCELLED")
    cluster.assert_clean(20)
    said = output.read_text()
    assert f"bytes of what ranks printed are missing in {log}" in said
    assert f"some of what ranks printed is missing in logs/1/{host}.log (" in said


def test_a_job_that_cannot_claim_its_place_gives_its_nodes_back(
    cluster: Cluster, run: Run, disk: FreezableDisk
) -> None:
    """The disk is full for longer than ``waiting_max_s``; once it takes files again a person resumes the run."""
    cluster.order("sbatch", HELD, times=1)
    told = run.step(2, 1, "--runs-dir", str(disk.folder), steps=20, stays=True)
    spec = RunPaths(run.root).spec
    spec.write_text(spec.read_text().replace('"waiting_max_s": 3600.0', f'"waiting_max_s": {WAITING_MAX_S}'))
    assert f'"waiting_max_s": {WAITING_MAX_S}' in spec.read_text()
    ballast = fill(disk.folder)
    cluster.user_run(["scontrol", "release", told["job"]])
    ended = cluster.wait_job(told["job"], "FAILED", deadline_s=60)
    assert ended["ExitCode"] == "78:0", "although its output lies on the same disk"
    took = datetime.fromisoformat(ended["EndTime"]) - datetime.fromisoformat(ended["StartTime"])
    assert took.total_seconds() >= WAITING_MAX_S
    cluster.assert_clean(10)
    assert run.rows() == []
    ballast.unlink()
    assert run.status()["abandoned"]
    run.gangrun("resume", run.id)
    run.end()
    assert attempts_that_stepped(run.rows()) == [0]
    cluster.assert_clean(20)
