"""A job that has to end leaves on disk what was in its hosts' memory only, and the next job goes on from there."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.slurm.test_tiers import train, wait


@pytest.mark.timeout(900)
def test_a_lost_host_without_a_spare_costs_the_next_job_no_step_that_was_in_memory(cluster: Cluster, run: Run) -> None:
    train(run, "--fence-after", "18")
    wait(run, 0, 2)
    assert run.saved() == []
    (job,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != job["BatchHost"])
    cluster.power_off(lost)
    status = run.end(deadline_s=240)
    assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 11]
    told = run.explain()
    assert "for the newest step in memory" in told, told
    assert "step 11 was brought to the disk from the memory of" in told, told
    assert len(run.jobs()) == 2
    cluster.declare_down(lost)
    cluster.assert_clean(20)
