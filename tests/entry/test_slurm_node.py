"""The first process on a node of a job: one place for a warden, and nothing left of the last one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.entry import slurm_node
from gangrun.launch.node_spec import EXIT_WAITED


def test_a_place_is_taken_by_one_at_a_time(tmp_path: Path) -> None:
    first = slurm_node.take_place(f"{tmp_path}\0job\0n1")
    assert not first.waited
    other = slurm_node.take_place(f"{tmp_path}\0job\0n2")
    assert not other.waited, "of another node"
    os.close(other.fd)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(first.fd)

    second = slurm_node.take_place(f"{tmp_path}\0job\0n1", wait)
    os.close(second.fd)
    assert (second.waited, second.code, len(waits)) == (True, None, 2)


HOLDS = """
import os, sys
from gangrun.entry import slurm_node
place = slurm_node.take_place(sys.argv[1])
os.set_inheritable(place.fd, True)
os.execv("/bin/sh", ["sh", "-c", "echo has it; read line"])
"""


@pytest.mark.processes
def test_whoever_is_executed_in_a_holders_place_has_it_until_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"has it\n"
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            holder.kill()
            holder.wait()

        place = slurm_node.take_place(str(tmp_path), wait)
        os.close(place.fd)
    assert (place.waited, place.code, len(waits)) == (True, None, 1)


WARDEN = """
import os, sys
from gangrun.entry import slurm_node
from gangrun.node import warden
place = slurm_node.take_place(sys.argv[1])
os.set_inheritable(place.fd, True)
print("has it", flush=True)
spec = {"agent": ["sh", "-c", "read line"], "place_fd": place.fd, "restarts_max_count": 0}
command = warden.argv(sys.executable, spec)
os.execv(command[0], command)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("killed", "code"), [(False, 70), (True, None)])
def test_a_warden_that_ends_by_itself_tells_its_exit_code_to_those_that_wait(
    tmp_path: Path, killed: bool, code: int | None
) -> None:
    command = [sys.executable, "-c", WARDEN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None and holder.stdout.readline() == b"has it\n"
        stdin = holder.stdin

        def wait(seconds: float) -> None:
            del seconds
            if killed:
                holder.kill()
            else:
                stdin.close()  # its agent ends, and none may be started again
            holder.wait()

        place = slurm_node.take_place(str(tmp_path), wait)
        os.close(place.fd)
    assert (place.waited, place.code) == (True, code)


@pytest.mark.processes
def test_all_that_a_warden_left_is_killed_and_nothing_else(tmp_path: Path) -> None:
    root, claim = str(tmp_path), JobClaim(0, "12", 1, "n1", 100, 5)

    def sleeper(**other: str) -> subprocess.Popen[bytes]:
        marks = {"GANGRUN_RUN_DIR": root, "GANGRUN_STAY": "12r1", "SLURM_JOB_ID": "12", "PATH": "/bin", **other}
        return subprocess.Popen(["sleep", "600"], env=marks)

    left = sleeper()
    submitted = sleeper(SLURM_JOB_ID="13")
    batch_script = sleeper(GANGRUN_STAY="11r0")  # of this very job, which the supervisor of job 11 submitted
    others = submitted, batch_script, sleeper(GANGRUN_RUN_DIR=f"{root}x")
    try:
        assert slurm_node.clear(root, claim) == []
        assert left.wait(10) == -9
        assert [other.poll() for other in others] == [None] * 3
    finally:
        for one in (left, *others):
            one.kill()
            one.wait()


def test_each_launch_of_a_stay_has_the_same_place() -> None:
    claim = JobClaim(0, "12", 1, "n1", 100, 5)
    assert slurm_node.stay_of(claim) == slurm_node.stay_of(msgspec.structs.replace(claim, launch=2)) == "12r1"
    assert slurm_node.stay_of(msgspec.structs.replace(claim, restart=2)) == "12r2"


WAITS = """
import sys
from gangrun.entry import slurm_node
with slurm_node.only_waiting():
    print("waits", flush=True)
    slurm_node.take_place(sys.argv[1])
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_task_that_waits_tells_that_it_only_waited(tmp_path: Path, number: signal.Signals) -> None:
    place = slurm_node.take_place(str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", WAITS, str(tmp_path)], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == b"waits\n"
        for harmless in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            waiting.send_signal(harmless)
        waiting.send_signal(number)
        assert waiting.wait(10) == EXIT_WAITED
    os.close(place.fd)
