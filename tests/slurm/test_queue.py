"""Between two jobs of a run: sbatch says no, or nothing; jobs wait for nodes or people; one comes twice."""

from __future__ import annotations

import json
from typing import Any

from tests.slurm.better import NODES, Better
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped

FULL = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
STAYS = """
def hook(step):
    while attempt == int(os.environ.get("STAYS_IN", 1)) and step == 40 and not (folder / "go").exists():
        time.sleep(0.01)
"""
LATER = "pace = 0 if attempt else pace"  # nothing more is looked at in the next job


def preemptible(
    cluster: Cluster, run: Run, *, steps: int, policy: dict[str, float] | None = None, hook: str = LATER
) -> dict[str, Any]:
    """A run on the nodes that a better job may take. Some knobs have no option: they are set before it may start."""
    told = run.step(
        2, 2, "-p", "low-cancel", "-w", NODES, "--sbatch", "hold", steps=steps, every=10, pace=0.05, hook=hook,
        stays=True, env={"FAULT_SBATCH_WITHIN": "6"},
    )  # fmt: skip
    path = run.root / ".gangrun" / "spec.json"
    spec = json.loads(path.read_text())
    spec["policy"] |= policy or {}
    path.write_text(json.dumps(spec))
    cluster.tool("scontrol", "release", told["job"])
    run.wait_for_step(12)
    return told


HANGS = '"$real" "$@" >/dev/null; exec sleep infinity'
TWICE = '"$real" "$@" >/dev/null; exec "$real" --hold "$@"'


def test_sbatch_refuses_and_then_submits_and_hangs(cluster: Cluster, run: Run, better: Better) -> None:
    told = preemptible(cluster, run, steps=80, policy={"backoff_first_s": 0.2})
    after = cluster.submit("true", f"--dependency=afterok:{told['job']}")
    cluster.refuse("sbatch", FULL, times=1)
    cluster.order("sbatch", HANGS, times=1)
    better.take()
    better.has_them()
    better.give_back()
    status = run.end()
    first, second = run.jobs()
    assert first["JobState"] in {"FAILED", "PREEMPTED"}  # nobody takes it for a finished run
    assert cluster.wait_job(second["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    assert cluster.wait_job(after, "COMPLETED", deadline_s=20)["JobState"] == "COMPLETED"
    assert [attempt["job"] for attempt in status["attempts"]] == [first["JobId"], second["JobId"]]
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert "QOSMaxSubmitJobPerUserLimit; asking again in" in run.explain()
    assert len([words for host, words in cluster.calls("sbatch") if host in cluster.names]) == 2
    cluster.assert_clean(10)


def test_two_jobs_for_one_place(cluster: Cluster, run: Run, better: Better) -> None:
    """As where the queue was old when it was looked into: whoever comes later starts nothing, and misleads nobody."""
    told = preemptible(cluster, run, steps=50, hook=STAYS)
    after = cluster.submit("true", f"--dependency=afterok:{told['job']}")
    cluster.order("sbatch", TWICE, times=1)
    better.take()
    better.has_them()
    better.give_back()
    run.wait_for_step(20, attempt=1)
    _, holder, loser = (job["JobId"] for job in run.jobs())
    status = run.status()
    assert (status["state"], status["job"], status["scheduler"]["state"]) == ("RUNNING", holder, "RUNNING")
    cluster.tool("scontrol", "release", loser)
    assert cluster.wait_job(loser, "FAILED")["ExitCode"] == "75:0"
    status = run.status()
    assert (status["state"], status["job"]) == ("RUNNING", holder)
    assert f"it started nothing, because place 1 is held by job {holder}" in run.explain()
    (run.steps / "go").touch()
    assert run.end()["job"] == holder
    cluster.wait_job(after, "COMPLETED", deadline_s=20)  # it was told to wait for the one that sbatch named
    assert attempts_that_stepped(run.rows()) == [0, 1]
    cluster.assert_clean(10)
