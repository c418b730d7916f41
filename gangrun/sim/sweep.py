"""Many seeds, each a world of its own.

``seeded(seed, size)`` is the one way from a number to a world, for the test that runs thousands and for
``python -m gangrun.sim``. ``size_of(seed)`` is the size that the test gives it: most rules meet in a few nodes, where
a majority hangs on each of them; every seventh world is large. Most seeds begin *warm*, in a world that already trains,
and end once all ranks step undisturbed again; every sixteenth goes the whole way, from the first job to the last.
``failing(seed)`` is the way to worlds in which ranks fail with error texts; their plans are no part of the others, so
that no seed's story changes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from gangrun.core.policy import HangPolicy
from gangrun.sim.body.gang import Script
from gangrun.sim.faults import FaultPlan
from gangrun.sim.setup import Setup
from gangrun.sim.world import World, WorldOutcome

WARM_AT_S = 8.0
WITHIN_S = 40.0  # faults of a random plan come within so long
WHOLE_EVERY_COUNT = 16
LONG_COUNT, SHORT_COUNT = 600, 40  # steps of a script that does not end before the plan, and of one that does
DISK_EVERY_COUNT, MEMORY_EVERY_COUNT = 24, 4  # where steps are kept in memory
LARGE_EVERY_COUNT, LARGE_NODES_COUNT = 7, 128
SMALL_NODES_COUNTS = (2, 3, 4, 5, 6, 8)
SPARE_EVERY_COUNT = 4  # of the small worlds
HANG_AFTER_S = 12.0  # hundreds of agents beat while their gang stalls: do not simulate that for longer than needed


@dataclass(frozen=True, slots=True)
class WorldKind:
    """What kinds of world there are; ``whole`` ones begin cold and end at the end."""

    requeue: bool
    foreign: bool
    whole: bool = False


@dataclass(frozen=True, slots=True)
class WorldSize:
    """Nodes with ranks, and nodes that each job has besides."""

    nodes_count: int
    spares_count: int = 0


def kind_of(seed: int) -> WorldKind:
    """A seed's kind."""
    return WorldKind(seed % 3 == 0, seed % 5 == 0, seed % WHOLE_EVERY_COUNT == 0)


def size_of(seed: int) -> WorldSize:
    """A seed's size, which does not go with its kind."""
    if seed % LARGE_EVERY_COUNT == 0:
        return WorldSize(LARGE_NODES_COUNT)
    rng = random.Random(f"size {seed}")
    return WorldSize(rng.choice(SMALL_NODES_COUNTS), int(rng.randrange(SPARE_EVERY_COUNT) == 0))


def begin(kind: WorldKind, size: WorldSize) -> World:
    """A world of this kind, without faults yet; warm unless it is to be whole."""
    script = Script(steps_count=SHORT_COUNT if kind.whole else LONG_COUNT, foreign=kind.foreign)
    if kind.requeue and not kind.foreign:
        script = replace(script, checkpoint_every_count=DISK_EVERY_COUNT, memory_every_count=MEMORY_EVERY_COUNT)
    setup = Setup.of(size.nodes_count, script=script, requeue=kind.requeue)
    policy = replace(setup.policy, hang=HangPolicy(timeout_s=HANG_AFTER_S))
    together, label = script.memory_every_count > 0, f"--nodes {size.nodes_count} --spares {size.spares_count}"
    setup = replace(setup, spares_count=size.spares_count, pool_count=setup.pool_count + size.spares_count)
    world = World(replace(setup, policy=policy, label=label, reads_together=together))
    if not kind.whole:
        world.start()
        world.run_until(WARM_AT_S)
    return world


def finish(world: World, seed: int, size: WorldSize) -> WorldOutcome:
    """Let this seed's faults come over a world of its kind. Raises ``InvariantBroken``."""
    world.arm(FaultPlan.random(seed, size.nodes_count + size.spares_count, size.nodes_count, WITHIN_S), seed)
    return world.run(until_steady=not kind_of(seed).whole)


def failing(seed: int) -> World:
    """A small world in which ranks fail with error texts, from the first job to the last."""
    rng = random.Random(f"failing {seed}")
    nodes_count, ranks_per_node, spares_count = rng.choice((2, 3, 4, 6)), rng.choice((1, 1, 2)), rng.choice((0, 1))
    script, requeue = Script(victims_after_s=rng.choice((0.05, 0.6, 3.0))), rng.random() < 0.5
    setup = Setup.of(nodes_count, ranks_per_node=ranks_per_node, script=script, requeue=requeue)
    policy = replace(setup.policy, test_suspects=rng.random() < 0.3)
    pool_count = nodes_count + (4 if requeue else spares_count)
    setup = replace(setup, spares_count=spares_count, pool_count=pool_count, policy=policy, label="--rank-failures")
    plan = FaultPlan.random_failures(seed, nodes_count + spares_count, nodes_count * ranks_per_node)
    return World(setup, plan, seed)


def seeded(seed: int, size: WorldSize) -> World:
    """The world of one seed, ready for ``finish``."""
    return begin(kind_of(seed), size)
