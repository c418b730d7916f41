"""Errors of the file system that come from outside: no free file descriptor, a full one, one that is read-only."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaims
from gangrun.adapters.fs.run_dir import RunPaths, create_run, write_spec, write_submission
from gangrun.entry.wiring import own_command
from gangrun.wire.spec import RunSpec
from gangrun.wire.submission import Submission
from tests.local.harness import Box
from tests.waiting import stays, until

pytestmark = pytest.mark.processes


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.close()


def test_a_supervisor_without_a_free_file_descriptor_cancels_nothing(box: Box) -> None:
    box.step(2, steps=100_000)
    ranks = box.stepping()
    supervisor = box.one("entry.supervisor")
    _, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{supervisor}/fd")}
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (free, hard))
    before = len(box.rows())
    stays(lambda: [box.pid_of(rank) for rank in (0, 1)] == ranks, 3, "all ranks live")
    until(lambda: len(box.rows()) > before + 10, 10, f"the ranks step on\n{box.told()}")
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (hard, hard))
    assert box.process is not None
    assert box.process.poll() is None, box.told()
    assert "cancel" not in box.explain()
    box.interrupt()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def submitted(place: Path) -> RunPaths:
    paths = create_run(Disk(), place / "runs", 1.7e9, os.urandom)
    spec = RunSpec(
        run=paths.run, name="n", world="slurm", command=("true",), python=False, working_directory="/", nodes=(),
        nodes_count=1, nodes_min_count=1, slots_per_node=1, ranks_per_slot=1,
    )  # fmt: skip
    write_spec(Disk(), paths, spec)
    write_submission(
        Disk(), paths, Submission(job_name="n", nodes_count=1, python=sys.executable, working_directory="/")
    )
    return paths


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            return


@pytest.mark.root
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_job_that_cannot_write_its_claim_waits_for_the_file_system(small: Path, tmp_path: Path, fault: str) -> None:
    paths, tools, launched = submitted(small), tmp_path / "bin", tmp_path / "launched"
    tools.mkdir()
    (tools / "srun").write_text(f"#!/bin/sh\necho $$ > {launched}.new\nmv {launched}.new {launched}\nexec sleep 600\n")
    (tools / "srun").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1", "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path),
    }  # fmt: skip
    if fault == "full":
        fill(small)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    words = own_command("gangrun.entry.slurm_job", ["--run-dir", str(paths.root), "--seq", "0"], sys.executable)
    said = tmp_path / "said"
    with said.open("wb") as out:
        job = subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: "asking again" in said.read_text(), 20, said.read_text)
        stays(lambda: job.poll() is None and not launched.exists(), 1.5, f"the job waits\n{said.read_text()}")
        if fault == "full":
            (small / "filler").unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
        until(launched.exists, 20, said.read_text)
        held = JobClaims(paths).holder(0)
        assert held is not None
        assert (held.job, held.pid) == ("7", job.pid)
    finally:
        os.killpg(job.pid, 9)
        job.wait()
        if launched.exists():  # in a session of its own
            os.kill(int(launched.read_text()), 9)
