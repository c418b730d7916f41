"""A job whose nodes are not what they seem: dead at launch, without gangrun, without the run directory."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

CPUS_COUNT = 16  # of each node, as Slurm is told
SEEN = """
    if rank == 0:
        seen = f"{len(os.sched_getaffinity(0))} {os.environ['SLURM_CPUS_PER_TASK']}"
        (folder / "cpus").write_text(seen)
"""


def test_nodes_that_do_not_come_are_done_without(cluster: Cluster, run: Run) -> None:
    """One is dead though Slurm thinks it idle, one sees no run directory, one has no gangrun."""
    cluster.hide("n2", reach.ROOT / "gangrun")
    cluster.hide("n3", run.folder)
    cluster.power_off("n4")
    asked = ["--min-nodes", "1", "-w", "n[1-4]", "-c", str(CPUS_COUNT), "--exclusive"]
    told = run.step(4, 1, *asked, steps=10, hook=SEEN)
    status = run.end(deadline_s=40)  # nobody waited for the time to join to pass
    assert [(one["job"], one["nodes"]) for one in status["attempts"]] == [(told["job"], ["n1"])]
    log = (run.root / ".gangrun" / "processes-n1.log").read_text()
    assert "n2 will not join: Exited with exit code 1: " in log
    assert "No module named 'gangrun" in log
    assert "n3 will not join: Exited with exit code 74: this node cannot open a file in the run directory: " in log
    assert "n4 will not join: Communication connection failure" in log
    usable = len(os.sched_getaffinity(0))
    assert (run.steps / "cpus").read_text() == f"{usable} {CPUS_COUNT}"
    assert ("of the 16 CPUs asked for" in log) == (usable < CPUS_COUNT)
    cluster.declare_down("n4")
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(10)


def test_a_slurm_that_refuses_comments_is_told_of_before_the_job_ends_for_it(cluster: Cluster, run: Run) -> None:
    """Without that word a supervisor on lost nodes would believe Slurm that its job runs: no second launch."""
    refused = 'case "$*" in *Comment=*) echo "slurm_update error: Access/permission denied" >&2; exit 1;; esac'
    cluster.order("scontrol", f'{refused}; exec $real "$@"')
    cluster.power_off("n3")
    job = run.step(3, 1, "-w", "n1", steps=10)["job"]
    until((run.root / ".gangrun/setup-failed-0").exists, 40, run.told)
    cluster.declare_down("n3")
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "78:0"
    told = (run.root / f"logs/job-{job}.out").read_text()
    assert "Slurm refuses a change of this job's comment (slurm_update error: Access/permission denied)" in told
    assert f"gangrun resume {run.id} continues the run" in run.status()["reason"]
    cluster.assert_clean(10)
    cluster.order("scontrol", 'exec $real "$@"')
    run.gangrun("resume", run.id)
    status = run.end()
    assert len(status["attempts"]) == 1


def test_nodes_that_do_not_come_and_are_needed_are_left_out_of_the_next_job(cluster: Cluster, run: Run) -> None:
    cluster.hide("n2", reach.ROOT / ".venv")
    cluster.power_off("n3")
    run.step(3, 1, "-w", "n1", steps=10)
    status = run.end(deadline_s=50)
    first, second = run.jobs()
    assert second["ExcNodeList"] == "n[2-3]"
    why = {one["node"]: one["reason"] for one in status["excluded"]}
    assert why.keys() == {"n2", "n3"}
    assert "No such file or directory" in why["n2"]
    assert "Communication connection failure" in why["n3"]
    assert len(status["attempts"]) == 1
    assert "No such file or directory" in run.explain()
    cluster.declare_down("n3")
    assert cluster.wait_job(first["JobId"], "FAILED")["ExitCode"] == "75:0"
    assert cluster.wait_job(second["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(10)


def test_a_cluster_without_gangrun_says_so(cluster: Cluster, run: Run) -> None:
    for name in cluster.names:
        cluster.hide(name, reach.ROOT / "gangrun")
    told = run.step(2, 1)
    cluster.wait_job(told["job"], "FAILED")
    until(lambda: "No module named 'gangrun" in run.status()["reason"], 10, lambda: f"the reason\n{run.status()}")
    cluster.assert_clean(10)


BEGUN_WITHIN_S = 30.0  # of its job's claim; other runs waited 120 s or 240 s for one that had claimed and not begun


def test_a_job_that_was_killed_between_its_claim_and_its_first_record_holds_up_no_other_run(
    cluster: Cluster, run: Run
) -> None:
    """Both save to one directory. Of the first nothing tells that it is over, but Slurm."""
    cluster.site.program(run.folder / "srun", "#!/bin/sh\nexec sleep infinity\n")
    place = str(run.saves_made())
    asked = ["--checkpoint-dir", place, "-w", "n1"]
    path = shlex.quote(f"{run.folder}:{Path(reach.PYTHON).parent}")
    told = run.step(1, 1, *asked, "--setup", f"export PATH={path}:$PATH")
    until((run.root / ".gangrun/jobs/0.json").exists, 40, run.told)
    until(lambda: not cluster.kill_on("n1", ""), 20, "nothing lives on n1")  # what was being started is missed once
    cluster.wait_job(told["job"], "FAILED")
    assert not [*run.root.glob(".gangrun/journal/*")]
    other = Run(cluster, "the other")
    other.step(1, 1, *asked, steps=10)
    status = other.end()
    claimed_at = (other.root / ".gangrun/jobs/0.json").stat().st_mtime
    assert status["attempts"][0]["started"] - claimed_at < BEGUN_WITHIN_S
    assert "checking whether it is still alive" not in (other.root / f"logs/job-{status['job']}.out").read_text()
    cluster.assert_clean(20)
