"""``gangrun chaos`` on a run of real Slurm jobs: ranks and agents of other nodes, a requeue, a cancelled job."""

from __future__ import annotations

import json
from concurrent import futures

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, TINY, Run
from tests.slurm.test_preemption import comes_back
from tests.waiting import until

PLAN = """
[sla]
steps_lost = 100000
recovery = "5m"
[[drill]]
kind = "kill-rank"
rank = 1
[[drill]]
kind = "kill-agent"
node = "n2"
[[drill]]
kind = "preempt"
[[drill]]
kind = "scancel"
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ranks_of_other_nodes_are_struck_and_nothing_is_leaked(cluster: Cluster, run: Run) -> None:
    job = run.step(2, 1, "--requeue", "same-job", steps=100_000)["job"]
    run.wait_for_step(2)
    plan = run.folder / "plan.toml"
    plan.write_text(PLAN)
    words = ["chaos", run.id, "--plan", str(plan), "--yes", "--json"]
    with futures.ThreadPoolExecutor(1) as pool:
        drills = pool.submit(
            cluster.user_run, [*GANGRUN, *words], cwd=run.folder, env={"TINY": str(TINY)}, check=False, within_s=900
        )
        until(lambda: drills.done() or cluster.job(job)["Restarts"] == "1", 240, "the requeue")
        if not drills.done():
            comes_back(cluster, job, "n1", "n2")
        done = drills.result()
    assert done.returncode == 0, done.stdout + done.stderr
    rank, agent, preempted, cancelled = json.loads(done.stdout)["drills"]
    assert (rank["concluded"], rank["nodes"]) == ("killed", ["n2"])
    assert (agent["concluded"], agent["nodes"]) == ("agent died", ["n2"])
    assert (preempted["concluded"], cancelled["concluded"]) == ("preempted", "cancelled")
    assert [one["leaked_allocations"] for one in (rank, agent, preempted)] == [0, 0, 0]
    assert rank["orphans"] is None, "those would be on other machines"
    cluster.assert_clean(60)
