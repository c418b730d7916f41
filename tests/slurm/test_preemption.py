"""Slurm takes a job's nodes: a better job, an admin, the time limit, a node that dies. The run saves, and goes on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gangrun.core.nodeset import unfold
from tests.slurm import reach
from tests.slurm.better import NODES, Better
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.waiting import until

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
# The README's two lines: all ranks take part in the save, so they have to hear of it at the same step.
READS = """
import gangrun
def hook(step):
    if step == start or not gangrun.step(step - 1).checkpoint: return
    (meet / f"saving-{step}.{rank}").touch()
    while not all((meet / f"saving-{step}.{r}").exists() for r in range(world)): time.sleep(0.01)
    if rank == 0:
        shutil.copytree(os.environ["TINY"], saves / "unfinished")
        (saves / "unfinished").rename(saves / f"step-{step}")
pace = 0 if attempt else pace
"""
STEPS = 300  # more than a busy machine comes to before it is told to save: the last one waits
SAVING = ("--checkpoint-grace", "10", "--stop-grace", "2")
ASKED = pytest.mark.parametrize("hook", [SAVES, READS], ids=["by a signal", "by gangrun.step"])


def saving(run: Run, *options: str, steps: int = STEPS, hook: str = SAVES, env: Mapping[str, str] | None = None) -> str:
    """A run on n1 and n2 that saves when it is told so, and never else; its first job."""
    kept = ("--checkpoint-dir", str(run.saves), *(() if hook is READS else ("--save-signal", "USR1")))
    told = run.step(2, 2, "-w", NODES, *SAVING, *kept, *options, steps=steps, pace=0.05, hook=hook, env=env, stays=True)
    run.wait_for_step(5)
    return str(told["job"])


def went_on(run: Run, status: dict[str, Any], why: str) -> None:
    """One attempt was told to save and did, the next one began there; nobody was blamed, no restart was charged."""
    first, second = status["attempts"]
    assert first["reason"].startswith(why)
    (saved,) = run.saved()
    assert second["resumed_from_step"] == saved
    assert (status["restarts"], status["excluded"]) == (0, [])
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.step for row in run.rows() if row.attempt == 1} == set(range(saved, STEPS))


@ASKED
def test_preempted_by_cancel(cluster: Cluster, run: Run, better: Better, hook: str) -> None:
    job = saving(run, "-p", "low-cancel", hook=hook)
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
    comes_back(cluster, job, "n1", "n2")
    went_on(run, run.end(), "preempted")
    assert [found["JobId"] for found in run.jobs()] == [job]
    if cluster.wait_job(job, "COMPLETED", "PENDING")["JobState"] == "PENDING":
        # 24.11 does it twice, once for us and once for the preemption: a job that finds its run ended starts nothing
        comes_back(cluster, job, "n1", "n2", restarts="2")
        cluster.wait_job(job, "COMPLETED")
        assert (len(run.status()["attempts"]), run.status()["state"]) == (2, "SUCCEEDED")
    cluster.assert_clean(10)


def seconds_until(slurms: str) -> float:
    if slurms == "Unknown":
        return 0.0
    return (datetime.fromisoformat(slurms) - datetime.now()).total_seconds()  # noqa: DTZ005 - as Slurm writes it


def comes_back(cluster: Cluster, job: str, *nodes: str, restarts: str = "1", lost: str = "") -> None:
    """A requeued job waits for two minutes, unless it is told otherwise. Not before its first stay is all over, and not
    at once: Slurm would set the time anew, or take that stay's end, or its revoked credential, for the next one's.
    """
    until(lambda: cluster.job(job)["Restarts"] == restarts, 60, lambda: f"job {job} requeued\n{cluster.told()}")
    if lost:
        cluster.declare_down(lost)

    def is_back() -> bool:
        found = cluster.job(job)
        if found.get("JobState") == "PENDING" and any(cluster.processes_on(name) for name in nodes):
            return False
        far_off = found.get("Reason") == "BeginTime" and seconds_until(found["EligibleTime"]) > 10
        if far_off:
            cluster.tool("scontrol", "update", f"JobId={job}", "StartTime=now+3", check=False)
        return found.get("JobState") in {"RUNNING", "COMPLETED"}

    until(is_back, 60, lambda: f"job {job} back, but: {cluster.job(job)}\n{cluster.told()}")


def test_requeued_by_an_admin(cluster: Cluster, run: Run) -> None:
    cluster.reconfigure(KillWait=60)  # there is time to save
    job = saving(run, "--requeue", "same-job")
    cluster.tool("scontrol", "requeue", job)
    comes_back(cluster, job, "n1", "n2")
    went_on(run, run.end(), "requeued")
    assert [found["JobId"] for found in run.jobs()] == [job]
    assert cluster.wait_job(job, "COMPLETED")["Restarts"] == "1"
    cluster.assert_clean(10)


@ASKED
def test_time_limit(cluster: Cluster, run: Run, hook: str) -> None:
    """By Slurm's clock: that of the nodes is six hours ahead, as if the job had ended long ago."""
    ahead = run.folder / "ahead"
    ahead.write_text(str(6 * 3600))
    job = saving(run, "-t", "1", "--max-jobs", "2", steps=700, hook=hook, env={"FAULT_WALL_OFFSET": str(ahead)})
    status = run.end()
    first, second = status["attempts"]
    assert max(row.step for row in run.rows() if row.attempt == 0) > 100, "it trained for half of its time"
    assert first["reason"].startswith("time limit: ")
    assert second["resumed_from_step"] == max(run.saved())
    before, after = run.jobs()
    assert (before["JobId"], before["ExitCode"]) == (job, "75:0")
    assert cluster.wait_job(after["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(10)


def test_a_chain_of_jobs_ends_when_its_total_time_is_used(cluster: Cluster, run: Run) -> None:
    """Two jobs, by themselves; a third, made by a person, ends with the weights of an undisturbed run."""
    keeps = '(saves / "unfinished" / "weights").write_text(json.dumps(weights))'
    moved = '(saves / "unfinished").rename'
    hook = READS.replace("pace = 0 if attempt else pace", "").replace(moved, f"{keeps}\n        {moved}")
    first_job = saving(run, "-t", "1", "--total-time", "40", steps=9999, hook=hook)
    status = run.end("TIME_UP", deadline_s=150)
    first, second = status["attempts"]
    assert (status["exit_code"], status["restarts"], status["excluded"]) == (124, 0, [])
    assert 40.0 <= status["trained_s"] < 45.0
    assert first["reason"].startswith("time limit: ")
    assert second["reason"].startswith("all ranks have run for 40 s, the run's total time (--total-time)")
    saved = run.saved()
    assert saved[0] == second["resumed_from_step"] > 100
    assert min(row.step for row in run.rows() if row.attempt == 1) == saved[0]
    assert saved[1] > saved[0] + 20, "the second job trained on"
    before, after = run.jobs()
    assert (before["JobId"], before["ExitCode"]) == (first_job, "75:0")
    assert cluster.wait_job(after["JobId"], "FAILED")["ExitCode"] == "124:0"
    assert "total time 40 s of 40 s used" in " ".join(run.gangrun("status", run.id, check=False).split())
    cluster.assert_clean(10)
    run.gangrun("resume", run.id, env={"HOOK": "steps = start + 20"})
    status = run.end()
    assert status["attempts"][2]["resumed_from_step"] == saved[1]
    run.assert_undisturbed()
    assert len(run.jobs()) == 3
    cluster.assert_clean(10)


def test_maintenance_is_treated_like_a_time_limit(cluster: Cluster, run: Run) -> None:
    """An administrator reserves a node of the job for now: the ranks save, and the next job trains on other nodes."""
    job = saving(run, "-w", "", "-t", "60", "--save-lead", "10", steps=2000)
    taken = next(host for host in cluster.names if host in unfold(run.jobs()[0]["NodeList"]))
    words = ("StartTime=now", "Duration=60", f"Nodes={taken}", "Flags=MAINT,IGNORE_JOBS", "Users=root")
    cluster.tool("scontrol", "create", "reservation", "ReservationName=firmware", *words)
    try:
        run.wait("an attempt in the next job", lambda seen: len(seen["attempts"]) == 2)
        run.wait_for_step(max(run.saved()) + 3, attempt=1)
        status = run.status()  # an attempt that only just begins has chosen no checkpoint yet
    finally:
        cluster.tool("scontrol", "delete", "ReservationName=firmware")
    first, second = status["attempts"]
    assert first["reason"].startswith(f"maintenance (reservation firmware on {taken}): ")
    assert second["resumed_from_step"] == max(run.saved())
    assert (status["restarts"], status["excluded"]) == (0, [])
    before, after = run.jobs()
    assert (before["JobId"], before["ExitCode"]) == (job, "75:0")
    assert taken not in unfold(after["NodeList"])
    run.gangrun("cancel", "-y", run.id)
    cluster.assert_clean(10)


def test_gangrun_checkpoint_saves_now_and_ranks_train_on(cluster: Cluster, run: Run) -> None:
    saving(run, steps=2000, hook=READS)
    told = run.gangrun("checkpoint", run.id)
    (step,) = run.saved()
    assert f"step {step} is saved (verified) in {run.saves / f'step-{step}'}" in told
    run.wait_for_step(step + 5)
    run.gangrun("cancel", "-y", run.id)
    assert len(run.status()["attempts"]) == 1
    cluster.assert_clean(10)


# As if what the batch script became had crashed, once: it ends with a code of its own, and nobody has decided anything.
CRASHES = """exec() { command "$@" & while kill -0 $! 2>/dev/null; do mv GO gone 2>/dev/null && exit 3; sleep 0.1; done
wait $!; exit $?; }"""


def test_a_batch_script_that_crashes_ends_its_job_and_not_the_run(cluster: Cluster, run: Run) -> None:
    go = run.folder / "GO"
    setup = "; ".join(CRASHES.replace("GO", str(go)).splitlines())
    job = saving(run, "--setup", f"export PATH={Path(reach.PYTHON).parent}:$PATH", "--setup", setup)
    go.touch()
    status = run.end()
    went_on(run, status, "its batch script died")
    first, second = run.jobs()
    assert (first["JobId"], first["ExitCode"]) == (job, "3:0")
    assert cluster.wait_job(second["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(10)


def test_sigterm_of_which_slurm_says_nothing_means_stop(cluster: Cluster, run: Run) -> None:
    cluster.reconfigure(KillWait=60)
    job = saving(run, steps=400)
    cluster.user_run(["scancel", "--signal", "TERM", job])
    status = run.end("CANCELLED", 30)
    assert status["reason"] == "cancelled by a signal"
    assert (len(run.saved()), len(status["attempts"])) == (1, 1)
    cluster.wait_job(job, "FAILED")
    cluster.assert_clean(10)
