"""What Slurm sends to every process of a job: nothing breaks before gangrun has decided, and a save is waited for."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

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
