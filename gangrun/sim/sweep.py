"""Many seeds, each a world of its own.

``seeded(seed, nodes_count)`` is the one way from a number to a world, for the test that runs thousands, the benchmark
and ``python -m gangrun.sim`` alike. Most seeds begin *warm*, in a world that already trains, and end once all ranks
step undisturbed again; every sixteenth goes the whole way, from the first job to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gangrun.core.policy import HangPolicy
from gangrun.sim.body.gang import Script
from gangrun.sim.faults import FaultPlan
from gangrun.sim.invariants import InvariantBroken
from gangrun.sim.setup import Setup
from gangrun.sim.world import World, WorldOutcome

WARM_AT_S = 8.0
WITHIN_S = 40.0  # faults of a random plan come within so long
WHOLE_EVERY_COUNT = 16
LONG_COUNT, SHORT_COUNT = 600, 40  # steps of a script that does not end before the plan, and of one that does
DISK_EVERY_COUNT, MEMORY_EVERY_COUNT = 24, 4  # where steps are kept in memory
HANG_AFTER_S = 12.0  # hundreds of agents beat while their gang stalls: do not simulate that for longer than needed


@dataclass(frozen=True, slots=True)
class WorldKind:
    """What kinds of world there are; ``whole`` ones begin cold and end at the end."""

    requeue: bool
    foreign: bool
    whole: bool = False


def kind_of(seed: int) -> WorldKind:
    """A seed's kind."""
    return WorldKind(seed % 3 == 0, seed % 5 == 0, seed % WHOLE_EVERY_COUNT == 0)


def begin(kind: WorldKind, nodes_count: int) -> World:
    """A world of this kind, without faults yet; warm unless it is to be whole."""
    script = Script(steps_count=SHORT_COUNT if kind.whole else LONG_COUNT, foreign=kind.foreign)
    if kind.requeue and not kind.foreign:
        script = replace(script, checkpoint_every_count=DISK_EVERY_COUNT, memory_every_count=MEMORY_EVERY_COUNT)
    setup = Setup.of(nodes_count, script=script, requeue=kind.requeue)
    policy = replace(setup.policy, hang=HangPolicy(timeout_s=HANG_AFTER_S))
    together = script.memory_every_count > 0
    world = World(replace(setup, policy=policy, label=f"--nodes {nodes_count}", reads_together=together))
    if not kind.whole:
        world.start()
        world.run_until(WARM_AT_S)
    return world


def finish(world: World, seed: int, nodes_count: int) -> WorldOutcome:
    """Let this seed's faults come over a world of its kind. Raises ``InvariantBroken``."""
    world.arm(FaultPlan.random(seed, nodes_count, nodes_count, WITHIN_S), seed)
    return world.run(until_steady=not kind_of(seed).whole)


def seeded(seed: int, nodes_count: int) -> World:
    """The world of one seed, ready for ``finish``."""
    return begin(kind_of(seed), nodes_count)


@dataclass(frozen=True, slots=True)
class Measured:
    """How fast the simulator is, and what its worlds went through."""

    seeds_count: int
    nodes_count: int
    took_s: float
    simulated_s: float
    events_count: int
    attempts_count: int
    broken: tuple[str, ...]

    def table(self) -> dict[str, float]:
        """For people and for JSON."""
        return {
            "seeds": self.seeds_count,
            "nodes": self.nodes_count,
            "seeds_per_s": self.seeds_count / self.took_s,
            "events_per_s": self.events_count / self.took_s,
            "simulated_node_hours_per_s": self.simulated_s * self.nodes_count / 3600.0 / self.took_s,
            "attempts_per_seed": self.attempts_count / self.seeds_count,
            "broken": len(self.broken),
        }


def measure(seeds: Iterable[int], nodes_count: int, now: Callable[[], float]) -> Measured:
    """Run these seeds one after the other, each from its beginning; ``now`` is a clock in seconds."""
    began, simulated_s, seeds_count, events_count, attempts_count = now(), 0.0, 0, 0, 0
    broken: list[str] = []
    for seed in seeds:
        world = seeded(seed, nodes_count)
        seeds_count += 1
        try:
            finish(world, seed, nodes_count)
        except InvariantBroken as error:
            broken.append(str(error))
        simulated_s += world.timeline.now
        events_count += world.timeline.events_count
        attempts_count += len(world.gangs)
    return Measured(seeds_count, nodes_count, now() - began, simulated_s, events_count, attempts_count, tuple(broken))
