"""A node so busy that its agent hardly runs: is it taken for gone? Real Slurm on one machine; needs root.

Twenty endless loops run on one of three nodes for a minute. The hosts of the test cluster share this machine's cores,
so supervisor and all agents are as slow. No node may be excluded, and no attempt may end. It also tells how often a
node counted as silent, and the longest pause between two steps.
Run:  python benchmarks/busy_node.py [--loops 20] [--seconds 60] [--json FILE]
"""

import argparse
import json
import os
import sys
import threading
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lost_node import DefaultTimes  # noqa: E402 - a run with the times that users have
from tests.slurm.cluster import shared  # noqa: E402 - the real cluster of the tests


def measure(loops_count: int, for_s: float) -> dict[str, object]:
    cluster = shared()
    run = DefaultTimes(cluster, "busy")
    run.step(3, 1, "--spares", "1", steps=100000, pace=0.05, every=20)
    run.wait_for_step(30)
    host = run.host_of(1)
    loop = ["timeout", str(for_s), sys.executable, "-c", "while True: pass"]
    busy = [cluster.popen(loop, host=host) for _ in range(loops_count)]
    threading.Event().wait(for_s)
    for one in busy:
        one.wait(60)
    load = os.getloadavg()[0]
    status = run.status()
    at = [row.at for row in run.rows() if row.rank == 0]
    silent = run.gangrun("explain", run.id, "--all").count("NodeSilent")
    run.gangrun("cancel", run.id, check=False)
    cluster.reset()
    return {
        "loops": loops_count,
        "load": round(load, 1),
        "restarts": status["restarts"],
        "excluded": [one["node"] for one in status["excluded"]],
        "silent": silent,
        "longest_step_s": round(max(after - before for before, after in pairwise(at)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.loops, args.seconds)
    print(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if result["restarts"] or result["excluded"]:
        sys.exit("a node that was only busy was taken for gone")


if __name__ == "__main__":
    main()
