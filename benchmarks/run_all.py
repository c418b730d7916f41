"""All benchmarks, a table on stdout and JSON under --out:  make bench  (ROUNDS=20, SEEDS=20000 in the environment)."""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import health
import hot_paths
import preflight
import requeue
import restart
import simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"python": sys.version.split()[0], "machine": platform.machine(), "cpus": os.cpu_count()}
    result["hot_paths"] = hot_paths.measure()
    print(hot_paths.table(result["hot_paths"]), end="\n\n")
    result["health"] = health.measure()
    print(health.table(result["health"]), end="\n\n")
    result["preflight"] = preflight.measure()
    print(preflight.table(result["preflight"]), end="\n\n")
    result["restart"] = restart.measure(int(os.environ.get("ROUNDS", "20")), ranks=2)
    print(restart.table(result["restart"]), end="\n\n")
    result["simulation"] = simulation.measure(int(os.environ.get("SEEDS", "20000")), nodes=128)
    print(simulation.table(result["simulation"]))
    if os.geteuid() == 0 and not requeue.missing():
        result["requeue"] = requeue.measure(int(os.environ.get("REQUEUES", "3")))
        print("\n" + requeue.table(result["requeue"]))
    else:
        print("\nrequeue: left out, it needs root and Slurm's packages (make system)")
    path = args.out / "results.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
