"""Every kind of loss, and the seconds until the first new step: five rounds each, with what else a user could use.

A rank is killed on this machine (torchrun beside it, same script). On a real test cluster, which needs root: a node,
the first node and a network are lost (``lost_node.py``), and a node without a spare, where Slurm alone would requeue
the job (``requeue.py``). The goals are the project's own.
Run:  python benchmarks/recovery.py [--rounds 5] [--json FILE]
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import lost_node
import requeue
import restart

GOALS_S = {"rank": 0.15, "power": 6.0, "first": 12.0, "alone": 20.0, "cut": 8.0}


def measure(rounds: int) -> dict:
    killed = restart.measure(rounds, ranks=2)
    result: dict = {"rounds": rounds, "rank": killed["gangrun"], "torchrun": killed["torchrun"]}
    if os.geteuid() != 0 or requeue.missing():
        return {**result, "left_out": "the losses of nodes need root and Slurm's packages (make system)"}
    for name, taken in lost_node.measure(rounds).items():
        result[name] = {"median_s": statistics.median(taken), "min_s": min(taken), "max_s": max(taken)}
    result["scontrol_requeue_s"] = requeue.measure(1)["scontrol_requeue_s"]
    return result


def table(result: dict) -> str:
    told = {"rank": "kill -9 of a rank (2 ranks, gloo)", **lost_node.TOLD}
    others = {
        "rank": f"torchrun {result['torchrun']['median_s']:.2f} s",
        "alone": f"scontrol requeue {result.get('scontrol_requeue_s', '?')} s until the job runs",
    }
    lines = ["| what is lost | median | from - to | goal | others |", "|---|---|---|---|---|"]
    for name, words in told.items():
        if row := result.get(name):
            seconds = f"{row['median_s']:.2f} s | {row['min_s']:.2f} - {row['max_s']:.2f} s"
            lines.append(f"| {words} | {seconds} | {GOALS_S[name]:g} s | {others.get(name, '-')} |")
    return "\n".join([*lines, *([result["left_out"]] if "left_out" in result else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.rounds)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
