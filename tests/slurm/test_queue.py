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
IMPATIENT = {"backoff_first_s": 0.2, "waiting_max_s": 1.0}


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
    assert f"it started nothing, as place 1 is held by job {holder}" in run.explain()
    (run.steps / "go").touch()
    assert run.end()["job"] == holder
    cluster.wait_job(after, "COMPLETED", deadline_s=20)  # it was told to wait for the one that sbatch named
    assert attempts_that_stepped(run.rows()) == [0, 1]
    cluster.assert_clean(10)


def test_sbatch_that_always_refuses_ends_the_run_in_its_words(cluster: Cluster, run: Run, better: Better) -> None:
    job = preemptible(cluster, run, steps=400, policy=IMPATIENT)["job"]
    cluster.refuse("sbatch", FULL)
    better.take()
    status = run.end("FAILED")
    assert status["failure"] == "scheduler"
    assert "refused the next job 3 times: QOSMaxSubmitJobPerUserLimit" in status["reason"]
    cluster.wait_job(job, "FAILED", "PREEMPTED")  # the latter since 24.11, whatever its exit code
    assert len(run.jobs()) == 1
    better.give_back()
    cluster.assert_clean(20)


def test_a_job_that_waits_says_what_for(cluster: Cluster, run: Run) -> None:
    blocker = str(cluster.submit("sleep 100", "--nodes=6", "--exclusive"))
    cluster.wait_job(blocker, "RUNNING")
    job = run.step(2, 2, "--sbatch", "hold", steps=5)["job"]
    status = run.status()
    assert (status["state"], status["scheduler"]["reason"]) == ("PENDING", "JobHeldUser")
    assert "held by its user" in status["reason"]
    run.gangrun("resume", run.id)
    status = run.wait("a reason of Slurm's", lambda seen: seen["scheduler"]["reason"] == "Resources", 20)
    assert (status["state"], status["abandoned"]) == ("PENDING", False)
    assert f"job {job} waits in the queue (Resources)" in status["reason"]
    cluster.user_run(["scancel", blocker])
    run.end()
    assert len(run.jobs()) == 1
    cluster.assert_clean(10)


def test_a_script_that_is_sent_twice_makes_no_second_gang(cluster: Cluster, run: Run) -> None:
    job = run.step(2, 2, steps=50, pace=0.05, hook=STAYS, env={"STAYS_IN": "0"})["job"]
    run.wait_for_step(2)
    script = run.root / ".gangrun" / "slurm" / "job-0.sh"
    again = cluster.user_run(["sbatch", "--parsable", script], cwd=run.folder).stdout.strip()
    assert cluster.wait_job(again, "FAILED")["ExitCode"] == "75:0"
    said = (run.root / "logs" / f"job-{again}.out").read_text()
    assert f"nothing is started: place 0 is held by job {job}" in said
    (run.steps / "go").touch()
    status = run.end()
    assert [attempt["job"] for attempt in status["attempts"]] == [job]
    assert attempts_that_stepped(run.rows()) == [0]
    cluster.wait_job(job, "COMPLETED")
    cluster.assert_clean(10)
