"""A better job that takes a run's nodes, with more grace than the test cluster gives: preemption as tests want it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.slurm.cluster import Cluster

PARTITIONS = ("low-cancel", "low-requeue")
NODES = "n[1-2]"
GRACE_S = 60  # nobody waits for its end: what has time to save leaves as soon as it has


class Better:
    """It is in the queue from the beginning, so that nothing that is done to sbatch afterwards concerns it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._job = str(cluster.submit("sleep 100", "--hold", "--partition=high", f"--nodelist={NODES}", "--exclusive"))

    def take(self) -> None:
        """Preempt whatever has the nodes."""
        self._cluster.tool("scontrol", "release", self._job)

    def has_them(self) -> None:
        """Wait for it."""
        self._cluster.wait_job(self._job, "RUNNING")

    def give_back(self) -> None:
        """It is over."""
        self._cluster.tool("scancel", self._job)


def waiting(cluster: Cluster) -> Iterator[Better]:
    """One of them; the partitions are as before afterwards."""
    before = {name: cluster.tool("scontrol", "show", "partition", name) for name in PARTITIONS}
    graces = {name: re.search(r"GraceTime=(\d+)", text) for name, text in before.items()}
    for name in PARTITIONS:
        cluster.tool("scontrol", "update", f"PartitionName={name}", f"GraceTime={GRACE_S}")
    try:
        yield Better(cluster)
    finally:
        for name, grace in graces.items():
            assert grace is not None
            cluster.tool("scontrol", "update", f"PartitionName={name}", f"GraceTime={grace[1]}")
