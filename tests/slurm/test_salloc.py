"""``gangrun run`` inside salloc: it trains on all nodes of the allocation; where it cannot go on it stops and tells.

Nobody is asked for another job: what a user holds by hand is his to give back or to ask for again.
"""

from __future__ import annotations

import json

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, SHORT, STEPPER, TINY, Run, attempts_that_stepped
from tests.waiting import PATIENCE

FALLS = "def hook(step):\n    if step == 8 and rank == 1: os._exit(3 + attempt)"


def test_in_salloc_it_uses_all_nodes_and_ends_with_its_story(cluster: Cluster, run: Run) -> None:
    words = ["salloc", "-N", "2", *GANGRUN, "run", "--json", *SHORT, "--nproc-per-node", "1", "--max-restarts", "1"]
    told, said = run.folder / "told", run.folder / "said"
    env = {"TINY": str(TINY), "HOOK": FALLS, "MAY_END": ""}
    with told.open("wb") as out, said.open("wb") as err:
        salloc = cluster.popen(
            [*words, run.script(STEPPER), run.steps, "9999", "0.05", "0"],
            cwd=run.folder,
            env=env,
            stdout=out,
            stderr=err,
        )
        assert salloc.wait(120 * PATIENCE) == 1, said.read_text()
    status = json.loads(told.read_text())
    assert (status["state"], status["world"], status["failure"]) == ("FAILED", "slurm", "budget"), status["reason"]
    nodes = [sorted(one["nodes"]) for one in status["attempts"]]
    assert nodes == [nodes[0]] * 2 and len(nodes[0]) == 2, "in place, on all that is held"
    assert "rank 1" in status["reason"] and status["excluded"] == []
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.host for row in run.rows()} == set(nodes[0])
    assert cluster.calls("sbatch") == []
    cluster.assert_clean(30)
