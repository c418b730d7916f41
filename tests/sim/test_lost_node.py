"""How long a gang stands still after a node is gone: no lease is waited for if what is left can do no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase, Savers
from gangrun.sim import FaultPlan, Kind, Script, Setup, World

AT_S = 40.0
FIRST, ANY = 0, 1


@pytest.mark.parametrize(
    ("kind", "node", "savers", "within_s"),
    [
        (Kind.KILL_NODE, ANY, None, 3.5),
        (Kind.CUT, ANY, None, 3.5),
        (Kind.KILL_NODE, FIRST, None, 6.5),  # supervisor and rank 0
        (Kind.KILL_NODE, ANY, Savers.RANK0, 3.5),
        (Kind.KILL_NODE, ANY, Savers.ALL, 34.0),
    ],
)
def test_a_spare_takes_the_place_of_a_lost_node(kind: Kind, node: int, savers: Savers | None, within_s: float) -> None:
    usual = Setup.of(4, script=Script(steps_count=150, victims_after_s=300.0))
    setup = replace(usual, spares_count=1, pool_count=5, policy=replace(usual.policy, saves_with=savers))
    for_s = 300.0 if kind is Kind.CUT else 0.0
    world = World(setup, FaultPlan().fail_at(AT_S, kind, node=node, for_s=for_s), 3)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    started = [record.at - world.began_at for record in world.checker.records if record.kind == "GangStarted"]
    assert len(started) == 2 and AT_S < started[1] < AT_S + within_s, started
    assert savers is not Savers.ALL or started[1] > AT_S + 30.0, "each rank may still write: the lease keeps it away"


@pytest.mark.parametrize("kind", [Kind.SUSPEND_NODE, Kind.PAUSE_AGENT])
def test_a_node_that_is_slow_is_not_a_node_that_is_gone(kind: Kind) -> None:
    """Its processes stand for five seconds, again and again; its kernel answers connections all the time."""
    plan = FaultPlan()
    for number in range(20):
        plan = plan.fail_at(20.0 + 11.0 * number, kind, node=1 + number % 3, for_s=4.5)
    setup = replace(Setup.of(4, script=Script(steps_count=200, victims_after_s=300.0)), spares_count=1, pool_count=5)
    world = World(setup, plan, 3)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    assert not outcome.state.health.excluded and len(outcome.state.attempts) == 1, world.story()
    assert not [record for record in world.checker.records if record.kind == "NodeSilent"]


def test_a_node_that_stands_still_for_good_is_lost_although_its_kernel_answers() -> None:
    setup = replace(Setup.of(4, script=Script(steps_count=60, victims_after_s=300.0)), spares_count=1, pool_count=5)
    world = World(setup, FaultPlan().fail_at(AT_S, Kind.SUSPEND_NODE, node=ANY, for_s=300.0), 3)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    started = [record.at - world.began_at for record in world.checker.records if record.kind == "GangStarted"]
    assert len(started) == 2 and AT_S + 5.0 < started[1] < AT_S + 9.0, started


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_supervisor_that_is_cut_off_takes_no_other_node_for_lost(nodes: int, seed: int) -> None:
    """All others fall silent, one after the other, and the agent beside the supervisor reaches none of them either."""
    usual = Setup.of(nodes, script=Script(steps_count=150, victims_after_s=300.0))
    setup = replace(usual, spares_count=1, pool_count=nodes + 1)
    world = World(setup, FaultPlan().fail_at(AT_S, Kind.CUT, node=FIRST, for_s=20.0), seed)
    outcome = world.run()
    assert outcome.state is not None and outcome.state.phase is Phase.SUCCEEDED, world.story()
    records = world.checker.records
    assert [record.kind for record in records].count("TermTaken") == 2, "a node on the other side has taken over"
    assert {record.event["node"] for record in records if record.kind == "NodeLost"} == {world.nodes[FIRST].name}
