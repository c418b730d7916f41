"""What a failure and an end of all ranks leave in the journal grows with their number, not with its square."""

from __future__ import annotations

import pytest

from gangrun.core.machine.running import ROWS_MAX_COUNT
from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.supervisor import agent_messages
from gangrun.wire import record as wire_record
from tests.sim.canaries.mutation import Swap, swapped

DESIGN_RANKS_COUNT = 16_384
FAILURE_MAX_BYTES = END_MAX_BYTES = 10e6
NODES_COUNT, RANKS_PER_NODE = 32, 16
RANKS_COUNT = NODES_COUNT * RANKS_PER_NODE
RULES: dict[str, Swap] = {
    "what grows is not written again": (wire_record, "_GROWING", frozenset()),
    "texts of the first ranks only": (agent_messages, "abridged", lambda state, event: event),
}


def size_of(world: World, *kinds: str) -> float:
    """Bytes of these kinds' records, as many ranks as a run is designed for. The first ones bear texts, in every run as
    many; all others grow with the ranks.
    """
    records = [line.record for lines in world.disk.journals.values() for line in lines if line.record.kind in kinds]
    assert len(records) >= RANKS_COUNT - RANKS_PER_NODE
    sizes = [len(wire_record.encode(record)) for record in records]
    others = sizes[ROWS_MAX_COUNT:]
    return sum(sizes[:ROWS_MAX_COUNT]) + sum(others) * (DESIGN_RANKS_COUNT - ROWS_MAX_COUNT) / len(others)


def all_fall() -> World:
    """The node with the supervisor and rank 0 is lost, and every other rank raises for it."""
    plan = FaultPlan().fail_at(30.0, Kind.KILL_NODE)
    plan = plan.fail_at(30.0, Kind.FALL_RANKS, node=None, rank=RANKS_PER_NODE, amount=3000.0)
    world = World(Setup.of(NODES_COUNT, ranks_per_node=RANKS_PER_NODE, requeue=True), plan, 1)
    world.start()
    world.run_until(60.0)
    return world


def failure_bytes() -> float:
    """Of the ends of ranks."""
    return size_of(all_fall(), "RankExited")


def test_a_failure_of_all_ranks_leaves_what_is_new() -> None:
    assert failure_bytes() <= FAILURE_MAX_BYTES


def test_an_end_of_all_ranks_leaves_what_is_new() -> None:
    world = World(Setup.of(NODES_COUNT, ranks_per_node=RANKS_PER_NODE, script=Script(steps_count=20)), FaultPlan(), 1)
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase is Phase.SUCCEEDED
    assert size_of(world, "RankFinished") <= END_MAX_BYTES


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_it_is_many_times_that(rule: str) -> None:
    with swapped(RULES[rule]):
        assert failure_bytes() > 3 * FAILURE_MAX_BYTES
