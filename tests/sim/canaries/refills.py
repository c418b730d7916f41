"""Mutants of rung 4, one-node jobs beside the run's own, and the worlds in which they show."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from gangrun.core.nodes import refilling
from gangrun.sim import FaultPlan, Kind, Setup, World
from gangrun.sim.body import refills as body
from tests.sim.canaries.mutation import Swaps, mutant
from tests.sim.canaries.recipes import recipe


def _setup(wait_s: float = 300.0) -> Setup:
    usual = Setup.of(4, requeue=True)
    return replace(usual, pool_count=8, policy=replace(usual.policy, refill_wait_s=wait_s))


def _node_goes(rng: random.Random) -> FaultPlan:
    return FaultPlan().fail_at(rng.uniform(10.0, 20.0), Kind.KILL_NODE, node=rng.choice((1, 2, 3)))


@mutant("a refill's batch script starts nothing, and leaves, where it is not wanted", "4", "I8", "I15")
def refill_asks_nobody() -> Swaps:
    """It starts its node's processes, and stays."""
    original = body.SimRefills._begin

    def begin(self: body.SimRefills, *args: Any) -> None:
        self.looks_whether_wanted = False
        original(self, *args)

    return ((body.SimRefills, "_begin", begin),)


@recipe("refill_asks_nobody")
def a_refill_waits_until_the_run_is_over(rng: random.Random, seed: int) -> World:
    """The gang goes on smaller. When the run ends Slurm does not answer, so nobody cancels the refill."""
    plan = _node_goes(rng).fail_at(8.0, Kind.REFILLS_WAIT, node=None, for_s=400.0)
    setup = _setup(0.0)
    setup = replace(setup, shape=replace(setup.shape, nodes_min_count=3))
    return World(setup, plan.fail_at(rng.uniform(36.0, 40.0), Kind.SLURM_DOWN, node=None, for_s=300.0), seed)


@mutant("a refill is looked for by its comment before it is asked for again", "4", "I7")
def refill_asked_blindly() -> Swaps:
    """A timeout counts as a no."""
    original = body.RefillJobs._try

    def again(self: body.RefillJobs, *args: Any) -> None:
        self._refills.looks_before_retry = False
        original(self, *args)

    return ((body.RefillJobs, "_try", again),)


@recipe("refill_asked_blindly")
def sbatch_times_out(rng: random.Random, seed: int) -> World:
    """And has made the refill."""
    return World(_setup(), _node_goes(rng).fail_at(5.0, Kind.SLURM_TIMEOUT, node=None), seed)


@mutant("there are never more refills on their way than nodes are missing", "9", "I7")
def one_refill_too_many() -> Swaps:
    """One for good luck."""
    original = refilling.wanted_count

    def wanted_count(*args: Any) -> int:
        return original(*args) + 1

    return ((refilling, "wanted_count", wanted_count),)


@recipe("one_refill_too_many")
def a_node_goes(rng: random.Random, seed: int) -> World:
    """Nothing else does."""
    return World(_setup(), _node_goes(rng), seed)
