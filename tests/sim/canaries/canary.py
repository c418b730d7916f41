"""One mutant in one of its worlds: what breaks? Used by ``hunt``, which finds seeds, and ``test_canaries``."""

from __future__ import annotations

import random

from gangrun.sim import InvariantBroken, World
from tests.sim.canaries import worlds_judgement, worlds_late
from tests.sim.canaries.mutants import MUTANTS
from tests.sim.canaries.recipes import RECIPES
from tests.sim.canaries.worlds import anything

__all__ = ["MUTANTS", "breaks", "breaks_with", "breaks_without", "world_for", "worlds_judgement", "worlds_late"]


def world_for(name: str, seed: int) -> World:
    """The world in which this mutant is looked for."""
    return RECIPES.get(name, anything)(random.Random(f"{name} {seed}"), seed)


def breaks_without(name: str, seed: int) -> str:
    """What breaks with the rule taken out."""
    mutant = MUTANTS[name]
    with mutant.without(), mutant.installed():
        return breaks(name, seed)


def breaks_with(name: str, seed: int) -> str:
    """What breaks with the rule in (and out only what covers it): nothing should."""
    with MUTANTS[name].without():
        return breaks(name, seed)


def breaks(name: str, seed: int) -> str:
    """The invariant that this seed breaks, "" for none."""
    try:
        world_for(name, seed).run()
    except InvariantBroken as broken:
        return str(broken).split(":")[0]
    return ""
