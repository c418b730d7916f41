"""A node is lost, no spare: job end to successor start, beside what `scontrol requeue` needs. Real Slurm; needs root.

Slurm's own StartTime and EndTime, which are whole seconds; the ranks' own clocks for the step-to-step gap.
Run:  python benchmarks/requeue.py [--rounds 3] [--json FILE]
"""

import argparse
import json
import statistics
import sys
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.slurm.cluster import Cluster, shared  # noqa: E402 - the real cluster of the tests
from tests.slurm.harness import Run  # noqa: E402
from tests.slurm.place import missing  # noqa: E402
from tests.waiting import until  # noqa: E402

REQUEUE_PATIENCE_S = 200.0
__all__ = ["measure", "missing", "table"]


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def ours(cluster: Cluster, number: int) -> dict[str, float]:
    """One run of three nodes loses one of them."""
    run = Run(cluster, f"requeue-{number}")
    first = run.step(3, 1, steps=4000, pace=0.05, every=20)["job"]
    run.wait_for_step(30)
    lost_at = time.monotonic()
    cluster.power_off("n2" if cluster.job(first)["BatchHost"] != "n2" else "n3")
    until(lambda: any(row.attempt == 1 for row in run.rows()), 120, run.told)
    second = max(int(row["id"]) for row in cluster.squeue())
    until(lambda: cluster.job(first)["JobState"] != "RUNNING", 60, lambda: f"{cluster.job(first)}")  # EndTime holds now
    before, after = cluster.job(first), cluster.job(second)
    resumed_at = min(row.at for row in run.rows() if row.attempt == 1)
    run.gangrun("cancel", run.id, check=False)
    cluster.reset()
    return {
        "gap_s": seconds(after["StartTime"]) - seconds(before["EndTime"]),
        "loss_to_step_s": resumed_at - lost_at,
    }


def theirs(cluster: Cluster) -> float:
    """A plain job asks to be requeued: its end -> its next start. Slurm holds it for about two minutes."""
    job = cluster.submit("sleep 600", "-N1", "--requeue")
    cluster.wait_job(job, "RUNNING")
    asked = time.monotonic()
    cluster.user_run(["scontrol", "requeue", str(job)])
    until(
        lambda: cluster.job(job).get("Restarts") == "1" and cluster.job(job)["JobState"] == "RUNNING",
        REQUEUE_PATIENCE_S,
        "the job runs again",
    )
    return time.monotonic() - asked


def measure(rounds: int) -> dict[str, object]:
    cluster = shared()
    found = [ours(cluster, number) for number in range(rounds)]
    waited_s = theirs(cluster)
    gaps = [one["gap_s"] for one in found]
    return {
        "rounds": rounds,
        "gap_s": gaps,
        "gap_median_s": statistics.median(gaps),
        "loss_to_step_s": [round(one["loss_to_step_s"], 1) for one in found],
        "scontrol_requeue_s": round(waited_s, 1),
    }


def table(result: dict[str, object]) -> str:
    return "\n".join(
        [
            f"requeue after one lost node, {result['rounds']} rounds, 3 nodes of a real test cluster",
            f"  gangrun: job's end -> successor's start   {result['gap_s']} s, median {result['gap_median_s']} s",
            f"  gangrun: power off -> first step again    {result['loss_to_step_s']} s (lease 15 s in this benchmark)",
            f"  scontrol requeue: asked -> running again  {result['scontrol_requeue_s']} s",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.rounds)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
