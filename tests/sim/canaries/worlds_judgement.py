"""Small worlds in which ranks fail with error texts, for the mutants of ``judgement``."""

from __future__ import annotations

import random
from dataclasses import replace

from gangrun.core.model import Shape
from gangrun.core.policy import TrendPolicy
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.body.rank_failures import ALL, MACHINE, OPEN, REMARKS
from tests.sim.canaries.recipes import recipe

TRAINS = Script(steps_count=60, victims_after_s=3.0)


def of(nodes_count: int, plan: FaultPlan, rng: random.Random, *, tests: bool = False, ranks_per_node: int = 1) -> World:
    """With free nodes in the cluster for the next job."""
    setup = Setup.of(nodes_count, ranks_per_node=ranks_per_node, script=TRAINS, requeue=True)
    setup = replace(setup, pool_count=nodes_count + 3, policy=replace(setup.policy, test_suspects=tests))
    return World(setup, plan, rng.randrange(10**6))


@recipe("lines_are_not_compared")
def all_write_a_line_and_one_falls(rng: random.Random, seed: int) -> World:
    """The rank that falls gives no reason."""
    del seed
    plan = FaultPlan().fail_at(0.0, Kind.REMARK, node=None, text=rng.choice(tuple(REMARKS)))
    text, rank = rng.choice(tuple(OPEN)), rng.randrange(1, 4)
    return of(4, plan.fail_at(0.0, Kind.FAIL_RANK, rank=rank, amount=rng.choice((0.5, 3.5)), text=text), rng)


@recipe("a_line_explains_what_others_share")
def one_writes_a_line_and_all_fall(rng: random.Random, seed: int) -> World:
    """In the same way."""
    del seed
    node, amount, text = rng.randrange(1, 4), rng.choice((0.5, 3.5)), rng.choice(tuple(OPEN))
    plan = FaultPlan().fail_at(0.0, Kind.REMARK, node=node, text=rng.choice(tuple(REMARKS)))
    return of(4, plan.fail_at(0.0, Kind.FAIL_ALL, amount=amount, text=text), rng)


@recipe("broken_slots_get_ranks")
def a_gpu_of_one_box_breaks(rng: random.Random, seed: int) -> World:
    """There is a spare one."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(0.2, 20.0), Kind.BREAK_SLOT, node=0, amount=rng.randrange(4))
    setup = replace(Setup.of(1, script=TRAINS), shape=Shape(1, 1, 4, 1), spare_slots_count=1)
    return World(setup, plan, rng.randrange(10**6))


@recipe("no_settle")
def all_fall_at_once(rng: random.Random, seed: int) -> World:
    """With a text that is a node's own if only that node shows it."""
    del seed
    plan = FaultPlan().fail_at(0.0, Kind.FAIL_ALL, amount=rng.choice((0.5, 3.5)), text=rng.choice(tuple(MACHINE)))
    return of(rng.choice((3, 4, 6)), plan, rng)


@recipe("who_falls_first_twice_goes", "a_moved_rank_proves_its_node_guilty", "excludes_as_the_run_ends")
def one_rank_falls_everywhere(rng: random.Random, seed: int) -> World:
    """Its code or its data is at fault."""
    del seed
    text, amount = rng.choice(tuple(OPEN)), rng.choice((0.5, 3.5, 5.5))
    plan = FaultPlan().fail_at(0.0, Kind.FAIL_RANK, rank=rng.randrange(4), amount=amount, text=text)
    return of(4, plan, rng)


@recipe("a_move_has_no_outcome", "a_pass_ends_the_suspicion")
def ranks_fall_on_one_node(rng: random.Random, seed: int) -> World:
    """Whichever they are, and the test finds nothing there."""
    text, node = rng.choice(("illegal access", "runtime error", "exit 17")), rng.randrange(4)
    rank, amount = rng.choice((ALL, 0)), rng.choice((0.5, 3.5))
    plan = FaultPlan().fail_at(0.0, Kind.FAIL_ON_NODE, node=node, rank=rank, amount=amount, text=text)
    return of(4, plan, rng, tests=seed % 2 > 0)


@recipe("keeps_what_differs")
def weights_of_a_rank_are_corrupted(rng: random.Random, seed: int) -> World:
    """In the middle of the training; most other ranks agree."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(15.0, 45.0), Kind.CORRUPT_RANK, rank=rng.randrange(4), amount=1.0)
    return of(rng.choice((3, 4)), plan, rng)


@recipe("blames_the_second_of_two")
def weights_of_one_of_two_ranks_are_corrupted(rng: random.Random, seed: int) -> World:
    """Of the first one."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(15.0, 45.0), Kind.CORRUPT_RANK, rank=0, amount=1.0)
    return of(2, plan, rng)


@recipe("whoever_was_raced_is_slow")
def a_rank_has_more_to_do_wherever_it_runs(rng: random.Random, seed: int) -> World:
    """There is a spare, and stragglers are raced."""
    del seed
    script = replace(TRAINS, steps_count=600, checkpoint_every_count=100, saves_when_asked=True)
    setup = Setup.of(4, script=script)
    policy = replace(setup.policy, trends=TrendPolicy(window_s=100.0), race_stragglers=True)
    setup = replace(setup, pool_count=5, spares_count=1, policy=policy)
    plan = FaultPlan().fail_at(rng.uniform(50.0, 100.0), Kind.HEAVY_RANK, node=None, rank=rng.randrange(4), amount=1.5)
    return World(setup, plan, rng.randrange(10**6))
