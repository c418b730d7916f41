"""The test cluster itself: each of its faults means what it says, and nothing of it stays."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.place import leave_place, lock_of
from tests.waiting import stays, until

ASLEEP = "sleep 600"
TASK = r"^(\S*/)?sleep 600"  # the task itself: neither its srun nor its shell

LISTENER = """
import pathlib, socket, sys
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("", 7000))
heard.settimeout(200)
pathlib.Path(sys.argv[1]).touch()
pathlib.Path(sys.argv[2]).write_bytes(heard.recv(9))
"""
SENDER = "import socket,sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'hello', (sys.argv[1], 7000))"


def asleep(cluster: Cluster, nodes: int, *options: str) -> int:
    """A job with one sleeping task on each of its nodes, all of them started."""
    deaf = f"""srun --no-kill --kill-on-bad-exit=0 bash -c 'trap "" TERM; exec {ASLEEP}'"""
    job = cluster.submit(f"trap '' TERM; {deaf}", f"-N{nodes}", "--no-kill", *options)

    def started() -> bool:
        return sum(bool(cluster.processes_on(name, TASK)) for name in cluster.names) == nodes

    until(started, 30, lambda: f"{nodes} tasks\n{cluster.job(job)}\n{cluster.told()}")
    return job


def hears(cluster: Cluster, host: str, other: str) -> bool:
    """Can ``host`` open a connection to the slurmd of ``other``?"""
    return (
        cluster.user_run(
            ["timeout", "0.5", "bash", "-c", f": </dev/tcp/{other}/6818"], host=host, check=False
        ).returncode
        == 0
    )


def test_all_parts_are_of_the_slurm_that_was_asked_for(cluster: Cluster) -> None:
    version = cluster.user_run(["sbatch", "--version"]).stdout.split()[1]
    shown = cluster.tool("scontrol", "show", "config")
    assert re.search(rf"SLURM_VERSION\s+= {re.escape(version)}\n", shown), "slurmctld"
    assert all(f"Version={version}" in cluster.tool("scontrol", "show", "node", name) for name in cluster.names), (
        "slurmd"
    )
    assert version.startswith("24.11.") or not reach.OTHER_SLURM, version


def test_each_fault_strikes_one_host_and_is_undone(cluster: Cluster) -> None:
    """Hidden, stalled, cut off, without power: n2 alone, while the job and the other hosts go on."""
    job = asleep(cluster, 3, "--nodelist=n[1-3]")
    seen = cluster.user_run(["bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], host="n1").stdout
    assert seen.count(ASLEEP) >= 1 and "slurmd -D -N n1" in seen and "-N n2" not in seen
    folder = cluster.folder("mounted")
    (folder / "file").touch()
    cluster.hide("n2", folder)
    assert [cluster.user_run(["ls", folder], host=name).stdout for name in ("n1", "n2")] == ["file\n", ""]
    cluster.unhide("n2", folder)
    assert cluster.user_run(["ls", folder], host="n2").stdout == "file\n"

    cluster.stall("n2")
    assert {one.state for one in cluster.processes_on("n2", everybody=True)} == {"T"}
    assert "T" not in {one.state for one in cluster.processes_on("n1", everybody=True)}
    cluster.resume("n2")
    assert "T" not in {one.state for one in cluster.processes_on("n2", everybody=True)}

    until(lambda: hears(cluster, "n1", "n2") and hears(cluster, "n2", "n1"), 10, "the link is whole")
    cluster.cut("n2")
    assert not hears(cluster, "n1", "n2") and not hears(cluster, "n2", "n1")
    until(lambda: hears(cluster, "n1", "n3"), 10, "others' links are whole")
    assert cluster.processes_on("n2", TASK)
    cluster.heal("n2")
    until(lambda: hears(cluster, "n1", "n2") and hears(cluster, "n2", "n1"), 10, "the link is whole again")

    assert len(cluster.kill_on("n3", TASK, signal.SIGKILL)) == 1
    until(lambda: not cluster.processes_on("n3", TASK), 5, "it is dead")
    cluster.power_off("n2")
    assert cluster.processes_on("n2", everybody=True) == []
    assert not hears(cluster, "n1", "n2")
    assert cluster.processes_on("n1", TASK)
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.restart("n2")
    until(lambda: hears(cluster, "n1", "n2"), 10, "n2 is back")
    assert cluster.processes_on("n2", everybody=True)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_cut_one_way_lets_the_other_way_through(cluster: Cluster, direction: str) -> None:
    until(lambda: hears(cluster, "n1", "n2"), 10, "the link is whole")
    folder = cluster.folder(f"way-{direction}")
    for name in ("n1", "n2"):
        cluster.popen([reach.PYTHON, "-c", LISTENER, folder / f"{name}.up", folder / f"{name}.heard"], host=name)
    until(lambda: len(list(folder.glob("*.up"))) == 2, 10, "both listen")
    cluster.cut_one_way("n2", direction)
    for here, there in (("n1", "n2"), ("n2", "n1")):
        cluster.user_run([reach.PYTHON, "-c", SENDER, there], host=here, check=False)
    deaf, hearing = ("n2", "n1") if direction == "in" else ("n1", "n2")
    until(lambda: (folder / f"{hearing}.heard").exists(), 5, f"{hearing} hears")
    stays(lambda: not (folder / f"{deaf}.heard").exists(), 0.5, f"{deaf} is deaf")
    cluster.heal("n2")
    cluster.user_run([reach.PYTHON, "-c", SENDER, deaf], host=hearing)
    until(lambda: (folder / f"{deaf}.heard").exists(), 5, "the link is whole again")


def test_settings_change_while_it_runs_and_a_silent_controller_comes_back(cluster: Cluster) -> None:
    with cluster.site.conf.open() as as_it_was:
        cluster.reconfigure(KillWait=7)
        assert "KillWait=7" not in as_it_was.read()  # replaced: a daemon that is just starting reads one or the other
    assert "KillWait                = 7 sec" in cluster.tool("scontrol", "show", "config")
    job = asleep(cluster, 1)
    cluster.stall("ctl")
    assert cluster.user_run(["timeout", "1", "squeue"], check=False).returncode != 0
    cluster.resume("ctl")
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.power_off("ctl")
    assert cluster.user_run(["timeout", "1", "squeue"], check=False).returncode != 0
    cluster.restart("ctl")
    until(lambda: cluster.tool("squeue", check=False), 20, "it answers again")
    assert cluster.job(job)["JobState"] == "RUNNING", "it remembers: no other job gets the number of one that runs"


MAKER = """
import sys
from tests.slurm.cluster import Cluster
cluster = Cluster()
cluster.submit("srun -N2 sleep 601", "-N2")
print(cluster.base, cluster.room.hosts["n1"].first, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_maker() -> Iterator[subprocess.Popen[str]]:
    """Another process with a cluster of its own, as from another clone."""
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=reach.ROOT
    )
    with maker:
        yield maker
        maker.kill()


@pytest.mark.root
def test_nothing_stays_of_a_cluster_whose_maker_is_killed(other_maker: subprocess.Popen[str]) -> None:
    assert other_maker.stdout is not None
    base, first = other_maker.stdout.readline().split()
    assert Path(base).is_dir() and Path(f"/proc/{first}").exists()
    other_maker.kill()
    other_maker.wait(200)
    words = base.encode()

    def left() -> list[str]:
        return [one for one in map(str, Path("/proc").iterdir()) if one[6:].isdigit() and words in cmdline(Path(one))]

    until(lambda: not left(), 10, lambda: f"processes stay: {left()}")
    leave_place(Path(base), until(lambda: lock_of(Path(base))[0], 10, "the lock of a cluster that is gone"))


def cmdline(entry: Path) -> bytes:
    """Nothing, where it is gone meanwhile."""
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
