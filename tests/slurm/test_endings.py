"""People or Slurm end a run at whatever moment: what may save has saved, it is CANCELLED, and nothing comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from gangrun.adapters.fs.run_dir import RunPaths
from tests.slurm import reach
from tests.slurm.better import NODES, Better
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import stays, until

SOON_S = 2.0  # a job that could start is started by Slurm well within it


def over_for_good(cluster: Cluster, run: Run) -> None:
    """The mark is there that keeps every script of the run from starting anything; no job, no process is left."""
    assert RunPaths(run.root).cancelled.exists()
    cluster.assert_clean(15)
    stays(lambda: not cluster.squeue(), SOON_S, "no job of a cancelled run comes back")
    assert run.status()["state"] == "CANCELLED"


def in_the_queue(status: dict[str, Any]) -> bool:
    """One job of the run is over, the next one waits."""
    jobs = status["scheduler"]["jobs"]
    return status["state"] == "PENDING" and [job["ended"] for job in jobs] == [True, False]


def test_scancel_of_the_running_job(cluster: Cluster, run: Run) -> None:
    job = run.step(2, 2, steps=400)["job"]
    after = str(cluster.submit("true", f"--dependency=afterany:{job}"))
    run.wait_for_step(5)
    cluster.user_run(["scancel", job])
    status = run.end("CANCELLED", 30)
    assert (status["exit_code"], status["reason"]) == (130, "cancelled by the scheduler")
    assert cluster.wait_job(job, "CANCELLED")["Restarts"] == "0"
    cluster.wait_job(after, "COMPLETED")
    assert len(run.jobs()) == 1
    over_for_good(cluster, run)


def test_no_warden_is_started_again_while_scancel_ends_the_job(cluster: Cluster, run: Run) -> None:
    """The rank ignores SIGTERM, so the end takes as long as Slurm lets it."""
    job = run.step(3, 1, hook="__import__('signal').signal(15, lambda *_: None)", stays=True)["job"]
    run.wait_for_step(5)
    host = run.host_of(2)
    warden = cluster.warden_on(host)
    cluster.user_run(["scancel", job])
    os.kill(warden, signal.SIGKILL)
    until(lambda: warden not in [one.pid for one in cluster.processes_on(host, r"warden\.py")], SOON_S, "its end")
    stays(lambda: not cluster.processes_on(host, r"warden\.py|slurm_node"), SOON_S, "no warden comes back")
    cluster.wait_job(job, "CANCELLED")
    cluster.assert_clean(15)
    told = (run.root / "logs" / f"job-{job}.out").read_text()
    assert f"job {job} is COMPLETING in Slurm: no warden is started again" in told
    assert "again in this job" not in told
    assert run.status()["state"] == "CANCELLED"


def test_scancel_of_the_job_that_was_to_follow(cluster: Cluster, run: Run, better: Better) -> None:
    """Nobody of ours is left who could see it: what Slurm shows is what status says."""
    run.step(2, 2, "-p", "low-cancel", "-w", NODES, steps=400)
    run.wait_for_step(3)
    better.take()
    better.has_them()
    run.wait("the next job in the queue", in_the_queue, 20)
    successor = run.jobs()[-1]["JobId"]
    cluster.user_run(["scancel", successor])
    status = run.end("CANCELLED", 20)
    assert f"job {successor} was cancelled in Slurm (scancel)" in status["reason"]
    better.give_back()
    cluster.assert_clean(10)
    assert len(run.jobs()) == 2


def test_cancel_while_the_setup_lines_run(cluster: Cluster, run: Run) -> None:
    """Nothing of ours is there yet that could be told; it finds the mark."""
    go = run.folder / "go"
    job = run.step(
        2,
        2,
        "--setup",
        f"export PATH={Path(reach.PYTHON).parent}:$PATH",
        "--setup",
        f"until [ -e {go} ]; do sleep 0.1; done",
        steps=400,
    )["job"]
    cluster.wait_job(job, "RUNNING")
    run.gangrun("cancel", "--no-wait", run.id)
    go.touch()
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "130:0"
    assert "nothing is started" in (run.root / "logs" / f"job-{job}.out").read_text()
    over_for_good(cluster, run)


# A rank with a forked and a spawned worker; it saves on USR1, and ends with 3 if a worker dies.
FAMILY = """
import multiprocessing, os, pathlib, signal, sys, time
def work(): time.sleep(600)
def save(number, frame):
    time.sleep(0.5)
    alive = sum(worker.is_alive() for worker in workers)
    pathlib.Path(sys.argv[1], f"saved-{os.environ['RANK']}").write_text(f"{number} with {alive} workers")
    sys.exit(0)
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, save)
    workers = [multiprocessing.get_context(how).Process(target=work, daemon=True) for how in ("fork", "spawn")]
    for worker in workers: worker.start()
    turn = 0
    while all(worker.is_alive() for worker in workers):
        turn += 1
        pathlib.Path(sys.argv[1], f"turn-{os.environ['RANK']}").write_text(str(turn))
        time.sleep(0.05)
    sys.exit(3)
"""


def turns(folder: Path) -> list[int]:
    return [int(path.read_text() or 0) for path in sorted(folder.glob("turn-*"))]


def test_signals_to_all_of_a_job_break_nothing_and_scancel_lets_it_save(cluster: Cluster, run: Run) -> None:
    cluster.reconfigure(KillWait=60)  # a part of it is for what comes after the stop
    folder = run.saves_made()
    told = run.submit("-N", "2", "--nproc-per-node", "1", "--save-signal", "USR1", run.script(FAMILY), folder)
    until(lambda: len(turns(folder)) == 2 and min(turns(folder)) > 20, 60, run.told)
    for _ in range(3):
        for number in ("USR1", "USR2", "CONT", "URG"):
            cluster.tool("scancel", "--signal", number, told["job"])
    before = turns(folder)
    until(lambda: all(now > then + 20 for now, then in zip(turns(folder), before, strict=True)), 20, run.told)
    assert not list(folder.glob("saved-*"))
    assert run.status()["restarts"] == 0
    cluster.tool("scancel", told["job"])
    status = run.end("CANCELLED")
    saved = [path.read_text() for path in folder.glob("saved-*")]
    assert saved == ["10 with 2 workers"] * 2, f"{run.explain()}\n{run.told()}"
    assert len(status["attempts"]) == 1
    cluster.assert_clean(15)
