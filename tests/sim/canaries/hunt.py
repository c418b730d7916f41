"""Search for seeds: ``python -m tests.sim.canaries.hunt [COUNT] [MUTANT...]`` prints lines for ``SEEDS``.

What broke otherwise than expected, and what broke with the rule in, is printed too.
"""

from __future__ import annotations

import sys

from tests.sim.canaries.canary import MUTANTS, breaks_with, breaks_without

ENOUGH_COUNT = 3


def main(arguments: list[str]) -> None:
    """Mutant by mutant."""
    count = int(arguments[0]) if arguments else 400
    for name in arguments[1:] or MUTANTS:
        found: list[int] = []
        others: dict[str, int] = {}
        for seed in range(count):
            which = breaks_without(name, seed)
            if which in MUTANTS[name].breaks:
                if breaks_with(name, seed):
                    print(f"    # {name}: seed {seed} breaks with the rule in")
                else:
                    found.append(seed)
            elif which:
                others.setdefault(which, seed)
            if len(found) == ENOUGH_COUNT:
                break
        print(f'    "{name}": {tuple(found)!r},' if found else f"    # {name}: nothing in {count} seeds", flush=True)
        if others:
            print(f"    # {name} also breaks {others}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
