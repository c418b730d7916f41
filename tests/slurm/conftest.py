"""``cluster``: one real Slurm cluster for all tests of this folder, in order again after each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.disk import FreezableDisk
from tests.slurm.better import Better, waiting
from tests.slurm.cluster import Cluster, shared
from tests.slurm.harness import Run
from tests.slurm.place import missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Network namespaces and daemons need root."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def standing_cluster() -> Cluster:
    """It stays from the first test that wants it to the end of the session."""
    if absent := missing():
        pytest.skip(f"needs {', '.join(absent)}: see `make system`")
    return shared()


@pytest.fixture
def cluster(standing_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whole and empty; whatever the test did to it is undone."""
    standing_cluster.ready()
    try:
        yield standing_cluster
    finally:
        standing_cluster.reset()


@pytest.fixture
def run(cluster: Cluster, request: pytest.FixtureRequest) -> Run:
    """A user in a new folder, who has submitted nothing yet."""
    return Run(cluster, request.node.name)


@pytest.fixture
def disk(cluster: Cluster, run: Run) -> Iterator[FreezableDisk]:
    """A file system of 32 MiB for the run directory, mounted on every host."""
    made = FreezableDisk(run.folder / "frozen")
    user = run.folder.stat()
    os.chown(made.folder, user.st_uid, user.st_gid)
    for host in cluster.room.hosts:
        cluster.room.run(host, "mount", made.device, str(made.folder))
    yield made
    made.thaw()
    for host in cluster.room.hosts:
        cluster.room.run(host, "umount", "--lazy", str(made.folder))
    made.close()


@pytest.fixture
def better(cluster: Cluster) -> Iterator[Better]:
    """A better job that waits for the word to take n1 and n2 from those of the low partitions."""
    yield from waiting(cluster)
