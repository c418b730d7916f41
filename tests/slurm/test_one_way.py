"""Links that break in one direction under a run: a supervisor that nobody hears, and a node that hears nobody."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import TRAINS, Run, attempts_that_stepped
from tests.waiting import until

LEASE_ENDS_WITHIN_S = 15 * 1.01 + 1 + 0.25  # of a node's last word: --fence-after, its drift, a kill, a warden's wake
TWENTY_MORE = "if attempt: steps = start + 20"


@pytest.mark.timeout(600)
def test_a_supervisor_that_nobody_hears_and_a_node_that_hears_nobody(cluster: Cluster, run: Run) -> None:
    """Two runs at once: one has a spare. Ranks meet on the shared disk, so no cut stops a gang by itself."""
    spared = Run(cluster, "one way, with a spare")
    spared.step(2, 1, "--spares", "1", "-w", "n[4-6]", steps=9999, every=5, hook=TWENTY_MORE)
    run.step(3, 1, "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE)
    for one in (run, spared):
        one.wait_for_step(12)
    (first,), (only,) = run.jobs(), spared.jobs()
    leader = first["BatchHost"]
    other = next(host for host, _ in spared.ranks().values() if host != only["BatchHost"])
    cluster.cut_one_way(leader, "out")
    cluster.cut_one_way(other, "in")
    until(
        lambda: not [one for lost in (leader, other) for one in cluster.processes_on(lost, TRAINS)],
        LEASE_ENDS_WITHIN_S + 5, lambda: f"dead ranks on {leader} and {other}\n{run.told()}\n{spared.told()}",
    )  # fmt: skip
    for one, lost in ((spared, other), (run, leader)):
        one.wait_for_step(0, attempt=1)
        cluster.heal(lost)
    for one, lost in ((spared, other), (run, leader)):
        status = one.end()
        assert [found["node"] for found in status["excluded"]] == [lost]
        assert attempts_that_stepped(one.rows()) == [0, 1]
        one.assert_undisturbed()
        assert lost not in status["attempts"][1]["nodes"]
        assert status["attempts"][1]["resumed_from_step"] >= 10
    assert [found["job"] for found in spared.status()["attempts"]] == [only["JobId"]] * 2
    _, second = run.jobs()
    assert second["ExcNodeList"] == leader
    for job in (only, second):
        assert cluster.wait_job(job["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.declare_down(leader)
    cluster.wait_job(first["JobId"], "CANCELLED")
    cluster.assert_clean(60)
