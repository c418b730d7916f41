"""A supervisor is killed, or stopped and woken under its successor, or loses its host, at every position there is.

A position is a boundary of the supervisor's process: before and after each fsync, claim, seal and ticket, before each
act. A first run counts them; then each gets a run of its own, with one such fault there and nothing else changed.
That no two gangs ever stepped, and that nothing was done twice, is what the world's checker looks at all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.engine.process import SimProcess

SOON_S = 8.0  # it wakes while others are about to take over
LATE_S = 75.0  # more than any of: take-over, lease, the counter's standing still, the word of a cancel
SCRIPT = Script(steps_count=12, checkpoint_every_count=4)
FALL_S = 8.0  # in the middle of training, which begins after three seconds and lasts for twelve


@dataclass(frozen=True)
class Scenario:
    """What happens anyway."""

    plan: FaultPlan
    ends: Phase = Phase.SUCCEEDED
    nodes: tuple[int, ...] = (1, 2, 3)
    requeue: bool = False

    def world(self, nodes_count: int, *, requeue: bool = False) -> World:
        setup = Setup.of(nodes_count, script=SCRIPT, requeue=self.requeue or requeue)
        return World(replace(setup, pool_count=nodes_count + 3), self.plan, seed=nodes_count)


SCENARIOS = {
    "start and finish": Scenario(FaultPlan()),
    "a rank dies": Scenario(FaultPlan().fail_at(FALL_S, Kind.KILL_RANK, rank=0)),
    "a script fails": Scenario(FaultPlan().fail_at(FALL_S, Kind.EXIT_RANK, rank=1, amount=9.0)),
    "a node is lost": Scenario(FaultPlan().fail_at(FALL_S, Kind.KILL_NODE, node=1), nodes=(2, 3), requeue=True),
    "cancel": Scenario(FaultPlan().fail_at(FALL_S, Kind.CANCEL), Phase.CANCELLED),
    "takeover": Scenario(FaultPlan().fail_at(FALL_S, Kind.KILL_SUPERVISOR)),
    "an agent dies": Scenario(FaultPlan().fail_at(FALL_S, Kind.KILL_AGENT, node=1), nodes=(3,)),
    "a node is silent": Scenario(FaultPlan().fail_at(FALL_S, Kind.CUT, node=2, for_s=45.0), nodes=(3,), requeue=True),
}


class At:
    """A probe that does something once, at the k-th position of all supervisors together."""

    def __init__(self, k: int, harm: Callable[[SimSupervisor], None]) -> None:
        self.k = k
        self.harm = harm
        self.seen = 0
        self.label = ""

    def __call__(self, process: SimProcess, label: str) -> None:
        self.seen += 1
        if self.seen == self.k:
            assert isinstance(process, SimSupervisor)
            self.label = f"{process.name} at {process.timeline.now:.3f} s, {label}"
            self.harm(process)


def kill(process: SimSupervisor) -> None:
    process.kill()


def pause(process: SimSupervisor, for_s: float = LATE_S) -> None:
    process.world.unpark_all()
    process.pause(for_s)


def doze(process: SimSupervisor) -> None:
    pause(process, SOON_S)


def lose_host(process: SimSupervisor) -> None:
    process.node.kill()


def positions(scenario: Scenario, nodes_count: int, *, requeue: bool = False) -> int:
    """How many positions an undisturbed run has."""
    counter = At(-1, kill)
    world = scenario.world(nodes_count, requeue=requeue)
    world.supervisor_probe = counter
    world.run()
    state = world.newest_state()
    assert state is not None and state.phase is scenario.ends
    return counter.seen


def each_run(
    scenario: Scenario, nodes_count: int, harm: Callable[[SimSupervisor], None], *, requeue: bool = False
) -> Iterator[tuple[World, str]]:
    """One finished world for each position, with what was done in it."""
    for k in range(1, positions(scenario, nodes_count, requeue=requeue) + 1):
        probe = At(k, harm)
        world = scenario.world(nodes_count, requeue=requeue)
        world.supervisor_probe = probe
        world.run()
        assert probe.label, f"position {k} was not reached"
        yield world, f"{harm.__name__} {k}: {probe.label}"


def ended_right(world: World, scenario: Scenario, what: str) -> None:
    """As the scenario wants it, with nobody left behind."""
    state = world.newest_state()
    phase = None if state is None else state.phase
    if scenario.ends is Phase.CANCELLED:
        assert world.disk.cancelled_at is not None, what
        # the scheduler may have taken the job away before the end was written down: then the marker tells it
        assert phase not in {Phase.SUCCEEDED, Phase.FAILED}, f"{what}: {phase}\n{world.story()}"
    else:
        assert phase is scenario.ends, f"{what}: {phase}\n{world.story()}"
        assert world.outcome().steps == SCRIPT.steps_count, what
    assert world.is_over(), f"{what}\n{world.story()}"
    assert not world.checker.refused, f"{what}: {world.checker.refused}"
    assert not any(rank.alive for node in world.nodes for rank in node.ranks), what


CASES = [pytest.param(name, n, id=f"{name}-{n}") for name, one in SCENARIOS.items() for n in one.nodes]


@pytest.mark.parametrize(("name", "nodes_count"), CASES)
def test_killed_at_every_position(name: str, nodes_count: int) -> None:
    for world, what in each_run(SCENARIOS[name], nodes_count, kill):
        ended_right(world, SCENARIOS[name], what)


@pytest.mark.parametrize(("name", "nodes_count"), CASES)
def test_stopped_at_every_position_and_woken_under_its_successor(name: str, nodes_count: int) -> None:
    deposed = 0
    for world, what in each_run(SCENARIOS[name], nodes_count, pause):
        ended_right(world, SCENARIOS[name], what)
        deposed += len(world.disk.claims) > 1
    # alone on its node nobody can take over from it before the cancel itself ends the job
    assert deposed or (nodes_count == 1 and SCENARIOS[name].ends is Phase.CANCELLED), "somebody took over at least once"


@pytest.mark.parametrize("name", SCENARIOS)
def test_stopped_at_every_position_and_woken_soon(name: str) -> None:
    for world, what in each_run(SCENARIOS[name], 3, doze):
        ended_right(world, SCENARIOS[name], what)


# A majority must be left, or nobody may decide anything: alone there is none, and a node more is lost in one scenario.
HOSTS = [pytest.param(name, n, id=f"{name}-{n}") for name, one in SCENARIOS.items() if one.nodes != (3,)
         for n in ((5,) if "lost" in name else (2, 3))]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes_count"), HOSTS)
def test_its_host_lost_at_every_position(name: str, nodes_count: int) -> None:
    for world, what in each_run(SCENARIOS[name], nodes_count, lose_host, requeue=True):
        ended_right(world, SCENARIOS[name], what)


def test_a_run_has_the_positions_that_it_should_have() -> None:
    labels: list[str] = []
    world = SCENARIOS["takeover"].world(2)
    world.supervisor_probe = lambda process, label: labels.append(label)
    world.run()
    kinds = {" ".join(label.split()[:2]) for label in labels}
    for what in ("fsync", "ticket", "claim", "open", "seal"):
        assert {f"before {what}", f"after {what}"} <= kinds, kinds
    assert {"before sending", "before choice", "before history"} <= kinds, kinds
    sent = {label.split()[2] for label in labels if label.startswith("before sending")}
    assert {"Prepare", "Launch", "Goodbye"} <= sent or {"Prepare", "Launch"} <= sent, sent
