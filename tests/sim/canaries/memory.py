"""Mutants of protocol section 8, steps in memory, and the worlds in which they show. Next: ``worlds``."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from gangrun.core.actions import SealAttempts
from gangrun.core.checkpoints import flush_to_disk
from gangrun.core.checkpoints.memory import Offered, offered
from gangrun.sim import FaultPlan, Script, Setup, World
from gangrun.sim.body import memory
from gangrun.sim.faults import Kind
from gangrun.supervisor import gang_commands
from tests.sim.canaries.mutation import Swaps, mutant
from tests.sim.canaries.recipes import recipe


@mutant("older steps in memory go only once every node has a newer one", "8", "I17")
def lets_go_when_it_has_its_own() -> Swaps:
    """A node lets older steps go as soon as it has the manifest of a newer one itself."""
    return ((memory.MemoryTier, "signed", lambda self, key, node: self.release(key, node)),)


@mutant("what only memory holds is brought to the disk before a resume point is chosen", "8", "I5")
def chooses_before_memory_is_asked() -> Swaps:
    """Older attempts are sealed at once."""

    def seal(self: Any, action: SealAttempts, state: Any, now: float) -> None:
        self._checkpoints.seal(action.attempt)

    return ((gang_commands.GangCommands, "_recover_then_seal", seal),)


@mutant("before a job ends, or asks for the next one, what only its memory holds is brought to the disk", "8", "I5")
def ends_with_its_memory() -> Swaps:
    """The end is done as soon as it is decided."""
    return ((flush_to_disk, "first", lambda before, decision, now, policy: decision),)


@mutant("what an attempt began from, in memory, stays until a step of its own is whole", "8", "I17")
def lets_go_of_what_it_began_from() -> Swaps:
    """A node lets it go at the attempt's first save, or with the first question."""
    return ((memory.SimKept, "_base_of", lambda self, attempt: None),)


@mutant("what an attempt began from, in memory, is asked for with its own steps", "8", "I5")
def asks_for_its_own_steps_only() -> Swaps:
    """No node is asked for it."""

    def asked(attempts: Any, before: int) -> Any:
        found = offered(attempts, before)
        return found and Offered(found.attempt)

    return ((gang_commands, "offered", asked),)


@mutant("what was left in memory for an attempt is written into staging that its seal leaves open", "3", "I5")
def brings_it_into_sealed_staging() -> Swaps:
    """Into that of the attempt which saved it."""
    begin = gang_commands.GangCommands._begin_recover

    def begun(self: Any, theirs: Offered, number: int, *rest: Any, **how: Any) -> None:
        begin(self, theirs, theirs.base.attempt if theirs.base else theirs.attempt, *rest, **how)

    return ((gang_commands.GangCommands, "_begin_recover", begun),)


@recipe("lets_go_of_what_it_began_from", "asks_for_its_own_steps_only", "brings_it_into_sealed_staging")
def a_second_rank_dies_before_a_step_is_whole(rng: random.Random, seed: int) -> World:
    """Two nodes have all of each step, and no disk has any. The second rank dies soon after the first one's restart."""
    setup = Setup.of(2, script=Script(steps_count=40, checkpoint_every_count=0, memory_every_count=6))
    at_s = rng.uniform(12.0, 18.0)
    plan = FaultPlan().fail_at(at_s, Kind.KILL_RANK, node=None, rank=1)
    return World(setup, plan.fail_at(at_s + rng.uniform(2.0, 9.0), Kind.KILL_RANK, node=None, rank=0), seed)


@recipe("ends_with_its_memory")
def nobody_restarts(rng: random.Random, seed: int) -> World:
    """A rank dies, and no restart is left."""
    setup = Setup.of(4, script=Script(steps_count=40, checkpoint_every_count=25, memory_every_count=3))
    setup = replace(setup, policy=replace(setup.policy, restarts_max_count=0))
    plan = FaultPlan().fail_at(rng.uniform(9.0, 24.0), Kind.KILL_RANK, node=None, rank=rng.randrange(4))
    return World(setup, plan, seed)


@recipe("lets_go_when_it_has_its_own", "chooses_before_memory_is_asked")
def a_rank_dies_while_steps_are_in_memory(rng: random.Random, seed: int) -> World:
    """Saves to the disk are rare, and some rank dies at any moment of a save to memory."""
    script = Script(steps_count=40, checkpoint_every_count=25, memory_every_count=3)
    setup = Setup.of(4, script=replace(script, save_s=0.2))
    plan = FaultPlan().fail_at(rng.uniform(9.0, 24.0), Kind.KILL_RANK, node=None, rank=rng.randrange(4))
    return World(setup, plan, seed)
