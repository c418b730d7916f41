"""A node that still works and needs a reset makes room for the spare at the next checkpoint, on a real cluster."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.slurm.test_health import TWENTY_MORE, Gpus, told

pytestmark = pytest.mark.compiler


@pytest.mark.timeout(240)
def test_a_suspect_that_still_works_makes_room_at_the_next_checkpoint(cluster: Cluster, run: Run) -> None:
    gpus = Gpus(run)
    run.step(2, 1, "--spares", "1", "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE, env=gpus.environment)
    run.wait_for_step(12)
    before = {host for host, _ in run.ranks().values()}
    (suspect, *_) = sorted(before - {"n1"})
    [spare] = {"n1", "n2", "n3"} - before
    gpus.say(suspect, {"event0": "1 8 63"})
    told(run, "XID 63 on gpu 1", f"it is replaced by {spare} at the next checkpoint")
    status = run.end(deadline_s=120)
    first, second = status["attempts"]
    assert (first["outcome"], first["job"]) == ("moved", second["job"])
    assert (status["excluded"], status["restarts"]) == ([], 0), "nobody is left out, and no restart is charged"
    assert second["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.host for row in run.rows() if row.attempt == 1} == before - {suspect} | {spare}
    assert f"{spare} takes the place of {suspect}, a suspect that still works" in " ".join(run.explain().split())
    cluster.assert_clean(20)
