"""Ranks, nodes and links break under a run on a real cluster: what gangrun says of it, and what Slurm does."""

from __future__ import annotations

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped


def test_a_clean_run_ends_its_job_well_and_dependents_start(cluster: Cluster, run: Run) -> None:
    told = run.step(2, 2, steps=20)
    after = cluster.submit("true", f"--dependency=afterok:{told['job']}")
    status = run.end()
    assert (status["restarts"], len(status["attempts"])) == (0, 1)
    assert attempts_that_stepped(run.rows()) == [0]
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.wait_job(after, "COMPLETED", deadline_s=20)
    assert [job["JobId"] for job in run.jobs()] == [told["job"]]
    cluster.assert_clean(10)
