"""``python -m gangrun.sim --seed N --nodes 128``: one seed's world, told from its journal.

The same seed and the same numbers of nodes and spares give the same story, to the last record.
"""

from __future__ import annotations

import argparse
import sys

from gangrun.sim.invariants import InvariantBroken
from gangrun.sim.sweep import WorldSize, failing, finish, seeded


def main(arguments: list[str]) -> int:
    """Run one seed; 0 where every promise held, 1 where one broke."""
    parser = argparse.ArgumentParser(prog="python -m gangrun.sim", description="Run one simulated world.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--rank-failures", action="store_true", help="ranks fail with error texts, on a few nodes")
    asked = parser.parse_args(arguments)
    size = WorldSize(asked.nodes, asked.spares)
    world = failing(asked.seed) if asked.rank_failures else seeded(asked.seed, size)
    broken: InvariantBroken | None = None
    try:
        world.run() if asked.rank_failures else finish(world, asked.seed, size)
    except InvariantBroken as error:
        broken = error
    say = sys.stdout.write
    for fault in world.plan:
        say(f"fault at {fault}\n")
    for record in world.checker.records:
        words = f"#{record.term}.{record.n:<4} {record.at - world.began_at:9.3f} {record.kind}"
        change = record.phase if record.was == record.phase else f"{record.was} -> {record.phase}"
        say(f"{words} [{change}{'' if record.outcome == 'applied' else f', {record.outcome}'}] {record.reason}\n")
    for gang in world.gangs:
        term, attempt = gang.name
        say(f"attempt {attempt} of supervisor #{term} came to step {gang.step()}\n")
    if broken is not None:
        say(f"\n{broken}\n")
    return 0 if broken is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
