"""A rank whose weights differ from its peers' copies, in simulated clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World


def run(nodes_count: int, plan: FaultPlan, *, tests: bool = True) -> World:
    setup = Setup.of(nodes_count, script=Script(steps_count=90), requeue=True)
    setup = replace(setup, pool_count=nodes_count + 3, policy=replace(setup.policy, test_suspects=tests))
    one = World(setup, plan, 5)
    state = one.run().state
    assert state is not None and state.phase is Phase.SUCCEEDED, one.story()
    return one


def corrupt(at_s: float, rank: int, amount: float = 1.0) -> FaultPlan:
    return FaultPlan().fail_at(at_s, Kind.CORRUPT_RANK, rank=rank, amount=amount)


def outcomes(one: World) -> list[str]:
    state = one.checker.replayed()
    assert state is not None
    return [record.outcome for record in state.attempts if record.outcome]


@pytest.mark.parametrize("nodes_count", [2, 4])
def test_all_go_back_to_the_last_agreement_and_nobody_is_excluded(nodes_count: int) -> None:
    """I19 holds that no later attempt resumes from what was saved since."""
    one = run(nodes_count, corrupt(36.0, 1))
    state = one.checker.replayed()
    assert state is not None
    assert outcomes(one)[0] == "silent corruption" and len(state.divergences) == 1, one.story()
    (seen,) = state.divergences
    assert seen.divergence.step == seen.divergence.agreed_step + 10
    assert state.attempts[1].resumed_from_step == seen.divergence.agreed_step, one.story()
    assert not state.health.excluded
    told = [record.reason for record in one.checker.records if "are tested" in record.reason]
    assert told, one.story()


def test_a_node_that_is_odd_twice_goes_if_another_can_take_its_place() -> None:
    """Of ranks on a node of which nobody can test the devices."""
    one = run(4, corrupt(36.0, 1) | corrupt(70.0, 1), tests=False)
    state = one.checker.replayed()
    assert state is not None and outcomes(one).count("silent corruption") == 2, one.story()
    assert set(state.health.excluded) <= one.at_fault and len(state.health.excluded) == 1, one.story()


def test_of_two_copies_none_is_excluded_however_often_they_differ() -> None:
    one = run(2, corrupt(36.0, 1) | corrupt(70.0, 0), tests=False)
    state = one.checker.replayed()
    assert state is not None and outcomes(one).count("silent corruption") == 2, one.story()
    assert not state.health.excluded, one.story()


def test_if_all_differ_nothing_is_stopped() -> None:
    plan = FaultPlan()
    for rank in range(4):
        plan |= corrupt(36.0, rank, 1.0 + rank)
    one = run(4, plan)
    state = one.checker.replayed()
    assert state is not None and len(state.attempts) == 1 and state.divergences, one.story()
