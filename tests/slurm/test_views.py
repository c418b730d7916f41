"""What people see of a run on a real cluster, and how they end it and take it up again, as they type it."""

from __future__ import annotations

import json
from typing import Any

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, TINY, Run

FOREVER = 100_000


def said(run: Run, *words: str, within_s: float = 60.0) -> tuple[int, str, str]:
    """A command of gangrun's about this run, however it ends."""
    done = run.cluster.user_run(
        [*GANGRUN, words[0], run.id, *words[1:]], cwd=run.folder, env={"TINY": str(TINY)}, check=False,
        within_s=within_s,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def fill(cluster: Cluster, nodes: int) -> int:
    """Somebody else's job."""
    job = cluster.submit("sleep 600", f"-N{nodes}", "--exclusive")
    cluster.wait_job(job, "RUNNING")
    return job


def test_a_run_in_the_queue_is_cancelled_and_taken_up_again(cluster: Cluster, run: Run) -> None:
    other = fill(cluster, 6)
    job = run.step(2, 1, steps=3)["job"]
    status = run.wait("Slurm's reason", lambda found: "(Resources)" in found["reason"], 20)
    assert (status["state"], status["job"], status["scheduler"]["state"]) == ("PENDING", job, "PENDING")
    code, _, err = said(run, "resume")
    assert code == 2
    assert f"job {job} waits in the queue" in err
    foreign = cluster.submit("true", "--hold", f"--job-name={cluster.job(job)['JobName']}")
    assert said(run, "cancel")[0] == 0
    status = run.status()
    assert (status["state"], status["exit_code"], status["abandoned"]) == ("CANCELLED", 130, False)
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert cluster.job(foreign)["JobState"] == "PENDING"
    assert said(run, "wait")[0] == 130
    code, out, err = said(run, "resume", "--json")
    assert code == 0, err
    again: dict[str, Any] = json.loads(out)
    assert again["seq"] == 1
    waiter = cluster.popen([*GANGRUN, "wait", run.id], cwd=run.folder)
    cluster.tool("scancel", str(other), str(foreign))
    assert waiter.wait(300) == 0
    cluster.wait_job(again["job"], "COMPLETED")
    assert run.status()["job"] == again["job"]


def test_a_running_job_is_stopped_in_order_and_nothing_stays(cluster: Cluster, run: Run) -> None:
    job = run.step(2, 1, steps=FOREVER)["job"]
    run.wait_for_step(2)
    status = run.status()
    assert (status["state"], status["nodes"], status["owner"]["alive"]) == ("RUNNING", ["n1", "n2"], True)
    assert status["scheduler"]["jobs"][0]["nodes"] == ["n1", "n2"]
    code, _, err = said(run, "resume")
    assert (code, f"job {job} runs on n[1-2]" in err) == (2, True)
    code, out, _ = said(run, "cancel")
    assert (code, "CANCELLED, cancelled by" in out) == (0, True)
    assert not cluster.calls("scancel")  # its supervisor and its batch script ended it
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "130:0"
    cluster.assert_clean(15)
    assert said(run, "wait")[0] == 130
    assert f"job {job} began on n[1-2]" in run.explain()


def heal(cluster: Cluster) -> None:
    """The prolog works again, and the nodes that it drained are back."""
    for order in cluster.control.glob("prolog-fails@*"):
        order.unlink()
    cluster.tool("scontrol", "update", f"NodeName={','.join(cluster.names)}", "State=RESUME", check=False)


def test_a_job_that_slurm_holds_is_released(cluster: Cluster, run: Run) -> None:
    for name in cluster.names:
        cluster.fail_prolog(name)
    job = run.step(2, 1, "--requeue", "same-job", steps=3)["job"]
    status = run.wait("the hold", lambda found: "Slurm holds it" in found["reason"], 20)
    assert status["scheduler"]["jobs"][0]["held"] is True
    heal(cluster)
    code, out, err = said(run, "resume", "--json")
    assert code == 0, err
    assert (json.loads(out)["job"], json.loads(out)["released"]) == (job, True)
    assert run.end()["job"] == job
