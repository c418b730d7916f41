"""The test cluster itself: each of its faults means what it says, and nothing of it stays."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.place import emptied, leave_place, lock_of
from tests.waiting import until


def test_all_parts_are_of_the_slurm_that_was_asked_for(cluster: Cluster) -> None:
    version = cluster.user_run(["sbatch", "--version"]).stdout.split()[1]
    shown = cluster.tool("scontrol", "show", "config")
    assert re.search(rf"SLURM_VERSION\s+= {re.escape(version)}\n", shown), "slurmctld"
    assert all(f"Version={version}" in cluster.tool("scontrol", "show", "node", name) for name in cluster.names), (
        "slurmd"
    )
    assert version.startswith("24.11.") or not reach.OTHER_SLURM, version


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


@pytest.mark.root
def test_what_a_killed_test_left_mounted_in_a_place_is_removed_with_it(tmp_path: Path) -> None:
    mounted = tmp_path / "place" / "home"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
    assert emptied(tmp_path / "place")
    assert not (tmp_path / "place").exists()
