"""Scores from journals: what a simulated run concluded of a fault, against the SLA, point by point."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gangrun.launch.chaos.kinds import NOTHING, DrillKind
from gangrun.launch.chaos.plan import Drill, Sla
from gangrun.launch.chaos.score import (
    DrillConclusion,
    DrillScore,
    LeftBehind,
    Struck,
    concluded,
    is_over,
    not_done,
    scored,
)
from gangrun.sim import FaultPlan, Kind, Setup, World

AT_S = 30.0


def drilled(
    fault: Kind, *, node: int | None = 2, rank: int = 2, for_s: float = 20.0, also: Kind | None = None
) -> tuple[Struck, DrillConclusion]:
    """One fault in a world of four nodes and a spare one, each with a rank; what its journal says of it."""
    setup = replace(Setup.of(4, requeue=True), spares_count=1)
    plan = FaultPlan().fail_at(AT_S, fault, node=node, rank=rank, for_s=for_s)
    world = World(setup, plan if also is None else plan.fail_at(AT_S, also, rank=rank))
    world.start()
    world.run_until(AT_S + 100.0)
    state = world.newest_state()
    assert state is not None
    # clocks of nodes differ by some ms
    records = [msgspec.structs.replace(record, wall=record.at) for record in world.checker.records]
    struck = Struck(world.began_at + AT_S - 0.05, 0, world.nodes[2].name, 2, "the fault")
    return struck, concluded(records, state, struck)


USUAL = Sla()


def score(kind: DrillKind, struck: Struck, found: DrillConclusion, sla: Sla = USUAL) -> DrillScore:
    return scored(1, "run", Drill(kind, sla=sla), struck, found, LeftBehind(0, 0))


def missed(one: DrillScore) -> list[str]:
    return [point.name for point in one.points if point.holds is False]


@pytest.mark.parametrize(
    ("fault", "kind", "cause"),
    [
        (Kind.KILL_RANK, DrillKind.KILL_RANK, "killed"),
        (Kind.OOM_RANK, DrillKind.OOM_RANK, "out of memory"),
        (Kind.KILL_AGENT, DrillKind.KILL_AGENT, "agent died"),
        (Kind.SICK, DrillKind.IB_DOWN, "hardware"),
        (Kind.CUT, DrillKind.CUT, "node silent"),
        (Kind.SUSPEND_NODE, DrillKind.STOP_NODE, "node silent"),
        (Kind.KILL_NODE, DrillKind.POWER_OFF, "node silent"),
    ],
)
def test_a_fault_that_restarts_all_ranks_is_scored_by_its_attempt(fault: Kind, kind: DrillKind, cause: str) -> None:
    struck, found = drilled(fault)
    assert (found.cause, found.nodes) == (cause, (struck.node,))
    assert found.noticed is not None and found.recovered is not None
    assert struck.wall <= found.noticed <= found.recovered < struck.wall + 30
    assert found.steps_lost_count is not None and 0 <= found.steps_lost_count <= 20
    one = score(kind, struck, found)
    assert one.holds, one
    assert is_over(Drill(kind), found)


def test_a_supervisor_that_dies_costs_no_attempt() -> None:
    struck, found = drilled(Kind.KILL_SUPERVISOR, node=-1)
    assert (found.cause, found.attempts_count) == ("new supervisor", 0)
    assert score(DrillKind.KILL_SUPERVISOR, struck, found).holds


def test_a_rank_that_dies_while_the_disk_stands_still_shows_that() -> None:
    struck, found = drilled(Kind.FS_STALL, node=None, for_s=12.0, also=Kind.KILL_RANK)
    assert found.cause == "storage stalled" and found.attempts_count == 1
    assert found.recovered is not None and found.recovered >= struck.wall + 12.0
    assert score(DrillKind.STALLED_DISK, struck, found).holds


def test_what_needs_no_reaction_is_right_if_there_is_none() -> None:
    struck, found = drilled(Kind.DELAY, for_s=5.0)
    one = score(DrillKind.LATENCY, struck, found)
    assert found.cause == NOTHING and one.holds
    assert "noticed" not in {point.name for point in one.points}


def test_each_point_of_the_sla_can_be_missed() -> None:
    struck, found = drilled(Kind.KILL_RANK)
    kind = DrillKind.KILL_RANK
    assert missed(score(kind, struck, found, Sla(noticed_s=0.001))) == ["noticed"]
    assert missed(score(kind, struck, found, Sla(recovery_s=0.5))) == ["recovery"]
    assert missed(score(kind, struck, found, Sla(steps_lost_count=0))) == ["steps lost"]
    assert missed(score(DrillKind.SEGFAULT_RANK, struck, found)) == ["right cause"]
    assert missed(score(kind, replace(struck, node="n0000"), found)) == ["right node"]
    left = scored(1, "run", Drill(kind), struck, found, LeftBehind(1, 2))
    assert missed(left) == ["orphans", "leaked allocations"]
    never = score(kind, struck, DrillConclusion())
    assert missed(never) == ["noticed", "right cause", "right node", "steps lost", "recovery"]
    loose = Sla(right_cause=False, right_node=False, steps_lost_count=None)
    assert missed(score(kind, struck, DrillConclusion(), loose)) == ["noticed", "recovery"]


def test_a_restart_that_should_not_be_is_no_right_conclusion() -> None:
    struck, found = drilled(Kind.KILL_SUPERVISOR, node=-1)
    again = replace(found, attempts_count=1)
    assert missed(score(DrillKind.KILL_SUPERVISOR, struck, again)) == ["right cause"]


def test_what_cannot_be_counted_is_no_miss() -> None:
    struck, found = drilled(Kind.KILL_RANK)
    one = scored(1, "run", Drill(DrillKind.KILL_RANK), struck, found, LeftBehind())
    assert one.holds and one.orphans is None
    assert [point.holds for point in one.points if point.name == "orphans"] == [None]


def test_a_drill_that_could_not_be_done_is_a_miss_that_says_why() -> None:
    one = not_done(2, "run", Drill(DrillKind.PREEMPT), "the job may not be requeued")
    assert not one.holds
    assert [(point.name, point.measured) for point in one.points] == [("done", "the job may not be requeued")]
