"""The simulated world: the real core, supervisor loop and agent brains through random faults, many seeds over.

A seed that breaks an invariant is a bug; it is listed with how to see it again.
Run:  python benchmarks/simulation.py [--seeds 200] [--nodes 128] [--json FILE]
      python benchmarks/simulation.py --start 1000 10000     what it costs until all ranks of so many nodes train
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, InvariantBroken, Setup, World

FIRST_SEED = 1_000_000  # far from those that the tests use
START_S = 30.0


def one_seed(job: tuple[int, int]) -> tuple[int, float, int, int, str]:
    """(seed, simulated seconds, events, attempts, what was broken)."""
    seed, nodes = job
    world = World(Setup.of(nodes, requeue=seed % 2 == 1), FaultPlan.random(seed, nodes, nodes), seed)
    try:
        outcome = world.run(until_steady=True)
    except InvariantBroken as broken:
        return seed, 0.0, 0, 0, str(broken).splitlines()[0]
    return seed, outcome.took_s, outcome.events_count, len(outcome.gangs), ""


def start(nodes: int) -> None:
    """Processor time of the first simulated seconds, from the first job until all ranks train, by node."""
    began, world = time.process_time(), World(Setup.of(nodes), seed=1)
    world.start()
    world.run_until(START_S)
    took_s, state = time.process_time() - began, world.newest_state()
    assert state is not None, nodes
    assert state.phase is Phase.RUNNING, state.reason
    print(f"{nodes} nodes: {took_s:.1f} s of processor time, {took_s / nodes * 1e3:.2f} ms a node", flush=True)


def measure(seeds: int, nodes: int, seconds_max: float = 1800.0) -> dict:
    """As many seeds as asked for, or as fit into the time."""
    began, done = time.monotonic(), []
    cores = os.cpu_count() or 1
    jobs = ((FIRST_SEED + n, nodes) for n in range(seeds))
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        for row in pool.imap_unordered(one_seed, jobs, chunksize=4):
            done.append(row)
            if time.monotonic() - began > seconds_max:
                pool.terminate()
                break
            if len(done) % 500 == 0:
                print(f"{len(done)} seeds", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began
    return {
        "seeds": len(done),
        "asked": seeds,
        "nodes": nodes,
        "cores": cores,
        "seconds": took_s,
        "seeds_per_s": len(done) / took_s,
        "simulated_s": sum(row[1] for row in done),
        "events": sum(row[2] for row in done),
        "gangs": sum(row[3] for row in done),
        "broken": [[row[0], row[4]] for row in sorted(done) if row[4]],
    }


def table(result: dict) -> str:
    hours = result["simulated_s"] / 3600
    speed = result["simulated_s"] / result["seconds"]
    seeds = f"{result['seeds']} of {result['asked']} seeds x {result['nodes']} nodes"
    lines = [
        f"{seeds} on {result['cores']} cores in {result['seconds']:.0f} s: {result['seeds_per_s']:.1f} seeds/s",
        f"{hours:.1f} simulated hours ({speed:.0f} x real time), {result['events']} events, {result['gangs']} gangs",
        f"{len(result['broken'])} seeds broke a promise",
    ]
    lines += [f"  seed {seed}: {what}" for seed, what in result["broken"][:20]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--start", type=int, nargs="+", metavar="NODES")
    args = parser.parse_args()
    if args.start:
        for nodes in args.start:
            start(nodes)
        return
    result = measure(args.seeds, args.nodes)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
