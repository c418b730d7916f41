"""A node loses power or its network: until the first new step. Real Slurm on one machine; needs root.

Four losses: a node with a rank, the first node (batch host, supervisor, rank 0), both with a spare; a node without a
spare (the next job goes on); a node whose network is cut for 20 s. Default times. The ranks write their own times, all
hosts of the cluster share a clock, and the script imports no torch: what is left is gangrun's own time. Its saves are
renames, so that no lease is waited for (`--saves-with checkpointer`).
Run:  python benchmarks/lost_node.py [--rounds 3] [--only power first alone cut] [--json FILE]
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.slurm.cluster import Cluster, shared  # noqa: E402 - the real cluster of the tests
from tests.slurm.harness import Run  # noqa: E402
from tests.waiting import until  # noqa: E402

CUT_S = 20.0
TOLD = {
    "power": "a node with a rank, a spare",
    "first": "the first node (batch host, supervisor, rank 0), a spare",
    "alone": "a node with a rank, no spare: the next job",
    "cut": f"the network of a node with a rank for {CUT_S:g} s, a spare",
}


class DefaultTimes(Run):
    """A run with the times that users have."""

    def submit(self, *words: Any, env: Any = None) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.gangrun("submit", "--json", *words, env=env))
        self.id, self.root = told["run"], Path(told["directory"])
        return told


def begun(cluster: Cluster, name: str, number: int) -> tuple[Run, str]:
    """A run that trains, and its batch host, which holds rank 0: if that node became the spare, another run."""
    for again in range(20):
        run = DefaultTimes(cluster, f"lost-{name}-{number}-{again}")
        spares = [] if name == "alone" else ["--spares", "1"]
        job = run.step(3, 1, *spares, "--saves-with", "checkpointer", steps=100000, pace=0.05, every=20)["job"]
        run.wait_for_step(30)
        host = cluster.job(job)["BatchHost"]
        if run.host_of(0) == host:
            return run, host
        run.gangrun("cancel", run.id)
        cluster.reset()
    raise AssertionError("the batch host never held rank 0")


def once(cluster: Cluster, name: str, number: int, keep: Path | None) -> float:
    """Seconds from the loss to the first step of an attempt that began after it."""
    run, host = begun(cluster, name, number)
    if name != "first":
        host = next(run.host_of(rank) for rank in (2, 1, 0) if run.host_of(rank) != host)
    healer = threading.Timer(CUT_S, cluster.heal, (host,))
    lost_at = time.monotonic()
    if name == "cut":
        for direction in ("in", "out"):
            cluster.cut_one_way(host, direction)
        healer.start()
    else:
        cluster.power_off(host)
    try:
        until(lambda: any(row.attempt == 1 for row in run.rows()), 150, run.told)
    finally:
        healer.join() if healer.is_alive() else None
        if keep is not None:
            (keep / f"{name}-{number}.txt").write_text(run.gangrun("explain", run.id, check=False) + run.told())
    resumed_at = min(row.at for row in run.rows() if row.attempt == 1)
    late = [row for row in run.rows() if row.attempt == 0 and row.at > resumed_at]
    assert not late, f"a rank of attempt 0 completed a step after attempt 1 had: {late[0]}"
    run.gangrun("cancel", run.id, check=False)
    cluster.reset()
    cluster.ready()
    return resumed_at - lost_at


def measure(rounds: int, only: Sequence[str] = tuple(TOLD), keep: Path | None = None) -> dict[str, list[float]]:
    """Seconds of each round of each loss; ``keep``: a folder for what the runs said."""
    cluster, found = shared(), {}
    for name in only:
        found[name] = [round(once(cluster, name, number, keep), 1) for number in range(rounds)]
        print(f"{TOLD[name]:60} {found[name]} s, median {statistics.median(found[name]):g} s", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(TOLD), default=list(TOLD))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for what `explain` and the logs say of each round")
    args = parser.parse_args()
    found = measure(args.rounds, args.only, args.keep)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
