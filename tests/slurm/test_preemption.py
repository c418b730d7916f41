"""Slurm takes a job's nodes: a better job, an admin, the time limit, a node that dies. The run saves, and goes on."""

from __future__ import annotations

from typing import Any

from tests.slurm.better import NODES, Better
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped

# Each rank ends when it is told to save; rank 0 leaves the step that was to come next. Later attempts need not be slow.
SAVES = """
def save(*_):
    if rank == 0 and not (saves / f"step-{step}").exists():
        shutil.copytree(os.environ["TINY"], saves / "unfinished")
        (saves / "unfinished").rename(saves / f"step-{step}")
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
pace = 0 if attempt else pace
"""
SAVING = ("--save-signal", "USR1", "--checkpoint-grace", "10", "--stop-grace", "2")


def saving(run: Run, *options: str, steps: int = 60) -> str:
    """A run on n1 and n2 that saves when it is told so, and never else; its first job."""
    kept = ("--checkpoint-dir", str(run.saves))
    job = run.step(2, 2, "-w", NODES, *SAVING, *kept, *options, steps=steps, pace=0.05, hook=SAVES)["job"]
    run.wait_for_step(5)
    return str(job)


def went_on(run: Run, status: dict[str, Any], why: str) -> None:
    """One attempt was told to save and did, the next one began there; nobody was blamed, no restart was charged."""
    first, second = status["attempts"]
    assert first["reason"].startswith(why)
    (saved,) = run.saved()
    assert second["resumed_from_step"] == saved
    assert (status["restarts"], status["excluded"]) == (0, [])
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.step for row in run.rows() if row.attempt == 1} == set(range(saved, 60))


def test_preempted_by_cancel(cluster: Cluster, run: Run, better: Better) -> None:
    job = saving(run, "-p", "low-cancel")
    better.take()
    better.has_them()
    status = run.wait("what the next job waits for", lambda seen: seen["scheduler"]["reason"] == "Resources", 20)
    assert (status["state"], len(status["scheduler"]["jobs"])) == ("PENDING", 2)
    better.give_back()
    went_on(run, run.end(), "preempted")
    successor = run.jobs()[-1]
    assert [found["JobId"] for found in run.jobs()] == [job, successor["JobId"]]
    cluster.wait_job(successor["JobId"], "COMPLETED")
    cluster.assert_clean(10)


def test_preempted_and_requeued(cluster: Cluster, run: Run, better: Better) -> None:
    job = saving(run, "-p", "low-requeue", "--requeue", "same-job")
    better.take()
    better.has_them()
    status = run.wait("its way back", lambda seen: seen["scheduler"]["state"] == "PENDING", 20)
    assert (status["state"], status["job"]) == ("PENDING", job)
    better.give_back()
    comes_back(cluster, job)
    went_on(run, run.end(), "preempted")
    assert [found["JobId"] for found in run.jobs()] == [job]
    assert cluster.wait_job(job, "COMPLETED")["Restarts"] == "1"
    cluster.assert_clean(10)


def comes_back(cluster: Cluster, job: str) -> None:
    """A requeued job would wait for two minutes."""
    cluster.wait_job(job, "PENDING")
    cluster.tool("scontrol", "update", f"JobId={job}", "StartTime=now")


def test_requeued_by_an_admin(cluster: Cluster, run: Run) -> None:
    cluster.reconfigure(KillWait=30)  # as most sites have it: there is time to save
    job = saving(run, "--requeue", "same-job")
    cluster.tool("scontrol", "requeue", job)
    comes_back(cluster, job)
    went_on(run, run.end(), "requeued")
    assert [found["JobId"] for found in run.jobs()] == [job]
    assert cluster.wait_job(job, "COMPLETED")["Restarts"] == "1"
    cluster.assert_clean(10)


def test_time_limit(cluster: Cluster, run: Run) -> None:
    job = saving(run, "-t", "1", steps=700)
    status = run.end()
    first, second = status["attempts"]
    assert first["reason"].startswith("time limit: ")
    assert second["resumed_from_step"] == max(run.saved())
    before, after = run.jobs()
    assert (before["JobId"], before["ExitCode"]) == (job, "75:0")
    assert cluster.wait_job(after["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(10)


def test_a_lost_node_where_the_same_job_is_requeued(cluster: Cluster, run: Run) -> None:
    job = run.step(2, 2, "--requeue", "same-job", steps=60, every=10, pace=0.05, hook="pace = 0 if attempt else pace")[
        "job"
    ]
    run.wait_for_step(13)
    lost = next(host for host in ("n1", "n2") if host != cluster.job(job)["BatchHost"])
    cluster.power_off(lost)
    status = run.end()
    assert [found["JobId"] for found in run.jobs()] == [job]
    ended = cluster.wait_job(job, "COMPLETED")
    assert (ended["Restarts"], ended["ExcNodeList"]) == ("1", lost)
    assert [found["node"] for found in status["excluded"]] == [lost]
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    cluster.assert_clean(10)


def test_signals_to_the_whole_step(cluster: Cluster, run: Run) -> None:
    """What a site's tools send as a warning changes nothing; SIGTERM without a word of Slurm's means stop."""
    cluster.reconfigure(KillWait=30)
    job = saving(run, steps=400)
    for name in ("USR1", "USR2", "USR1"):
        cluster.user_run(["scancel", "--signal", name, job])
        run.wait_for_step(run.rows()[-1].step + 10)
    assert (run.status()["state"], run.saved()) == ("RUNNING", [])
    cluster.user_run(["scancel", "--signal", "TERM", job])
    status = run.end("CANCELLED", 30)
    assert status["reason"] == "cancelled by a signal"
    assert len(run.saved()) == 1
    assert len(status["attempts"]) == 1
    cluster.wait_job(job, "FAILED")
    cluster.assert_clean(10)
