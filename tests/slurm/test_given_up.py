"""Slurm gives up nodes that train on: they hear each other, and reach neither Slurm nor the run directory."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import TINY, TRAINS, Run, attempts_that_stepped

CONTROL = "/tmp/disk"  # each host has a /tmp of its own
TWENTY_MORE = "if attempt: steps = start + 20"
LIVES_ON_S = 15  # at least as long as a lease lasts: --fence-after of the harness


@pytest.mark.timeout(600)
def test_the_next_job_trains_once_the_ranks_on_nodes_that_slurm_gave_up_are_gone(cluster: Cluster, run: Run) -> None:
    faults = {"FAULT_DISK_CONTROL": CONTROL}
    told = run.step(2, 1, steps=9999, every=5, hook=TWENTY_MORE, env=faults)
    run.wait_for_step(12)
    old = sorted({row.host for row in run.rows()})
    for host in old:
        cluster.room.run(host, "sh", "-c", f"echo stall >{CONTROL}")
        cluster.part(host, "ctl")
    cluster.declare_down(*old)
    cluster.wait_job(told["job"], "NODE_FAIL")
    given_up = run.rows()[-1]
    run.gangrun("resume", run.id, env={"TINY": str(TINY), "HOOK": TWENTY_MORE, **faults})
    began = run.wait_for_step(0, attempt=1, deadline_s=120)
    assert not [one for host in old for one in cluster.processes_on(host, TRAINS)]
    last = [row for row in run.rows() if row.host in old][-1]
    assert given_up.at + LIVES_ON_S < last.at < began.at, "the ranks trained on after Slurm had given their nodes up"
    status = run.end()
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.host for row in run.rows() if row.attempt} == {*status["attempts"][1]["nodes"]}
    assert not {*old} & {*status["attempts"][1]["nodes"]}
    assert status["attempts"][1]["resumed_from_step"] >= 10
    run.assert_undisturbed()
