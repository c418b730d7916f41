"""How a small world is entered for the mutants that show in it (room: tests of sim). Next: ``worlds``, ``worlds_late``.

A recipe makes a world from a seed, so that a search is a range. It is as wide as the rule needs and no wider: a handful
of faults whose times the seed moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gangrun.sim import World

Recipe = Callable[[random.Random, int], World]
RECIPES: dict[str, Recipe] = {}


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    """These mutants are looked for here."""

    def register(make: Recipe) -> Recipe:
        for name in names:
            assert name not in RECIPES, name
            RECIPES[name] = make
        return make

    return register
