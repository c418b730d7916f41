"""Which rung comes after a failure, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import StopGang
from gangrun.core.events import FindingRaised, GangStarted, NodeHeard, NodeLost
from gangrun.core.model import Exclusion, Failure, Phase
from gangrun.core.policy import Policy, PolicyError
from gangrun.core.recovery.choose import judge
from tests.core.life import BUG, Life, fatal


@pytest.mark.parametrize(("replica", "grace_s"), [(0, 1.0), (2, None)])
def test_ranks_that_wait_in_vain_for_a_lost_node_get_less_grace(replica: int, grace_s: float | None) -> None:
    """With replicas some may go on without it."""
    life = Life(policy=replace(Policy(), replica_ranks_count=replica)).running()
    life.on(NodeLost("n1", 90.0, "no other node reaches it"))
    assert life.last(StopGang).peer_gone_grace_s == grace_s


def test_in_place_with_a_spare_and_smaller() -> None:
    life = Life().running()
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.says("rank 0 on n0", "SIGKILL", "restarting in place")

    life = Life().running()
    life.join("s0")
    life.on(NodeLost("n1", 90.0, "its lease is over"))
    life.stopped()
    life.says("no heartbeat from n1", "excluded for 24 h", "restarting on n0,s0")

    life = Life(2, at_least=1).running()
    life.on(NodeLost("n1", 90.0, "its lease is over"))
    life.stopped()
    life.says("restarting smaller, on n0")
    life.again()
    assert life.started().placement.world_size == 2


def test_a_spent_budget_ends_the_run_and_says_so() -> None:
    life = Life(policy=Policy(restarts_max_count=1)).running()
    for _ in range(2):
        life.exit(0, code=None, signal=9)
        life.stopped()
        if life.phase is Phase.STARTING:
            life.again()
            life.on(GangStarted(life.state.attempt.number))
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.BUDGET)
    life.says("SIGKILL", "no restart is left")


def test_a_silent_node_that_nothing_can_replace_is_not_excluded() -> None:
    life = Life().waiting()
    assert not life.state.health.excluded
    life.says("n1", "to come back")


def test_a_node_that_was_silent_as_the_hardware_of_another_failed_is_not_excluded_if_the_gang_needs_it() -> None:
    life = Life(3, at_least=2).running()
    life.on(FindingRaised(fatal("n1")))
    life.on(NodeLost("n2", 90.0, "its lease is over"))
    life.stopped()
    assert list(life.state.health.excluded) == ["n1"]


def test_a_node_that_is_heard_again_before_all_ranks_are_gone_is_not_excluded() -> None:
    life = Life(3, at_least=2).running()
    life.on(NodeLost("n1", 90.0, "nobody reaches it"))
    life.on(NodeLost("n2", 90.0, "nobody reaches it"))
    life.on(NodeHeard("n2"))
    life.stopped()
    assert list(life.state.health.excluded) == ["n1"]


def test_suspicion_alone_takes_no_node_that_the_gang_needs() -> None:
    life = Life(2, policy=Policy(restarts_max_count=9)).running()
    for kind in ("ValueError", "KeyError", "TypeError"):
        life.exit(2, error=type(BUG)(kind, "x", kind, "", False))
        life.stopped()
        if life.phase is Phase.WAITING:
            life.due("backoff")
        life.again()
        life.on(GangStarted(life.state.attempt.number))
    assert not life.state.health.excluded


def test_more_than_the_hours_share_stays_in() -> None:
    life = Life(policy=Policy(exclusions_per_hour_max_count=0)).running()
    life.join("s0")
    life.on(FindingRaised(fatal("n1")))
    life.stopped()
    assert not life.state.health.excluded
    life.says("n1 is blamed but stays in use")


def test_an_exclusion_ends_when_it_ends() -> None:
    life = Life()
    life.state = replace(
        life.state, health=replace(life.state.health, excluded={"n1": Exclusion("flaky", 0.0, life.now + 500)})
    )
    life.launching()
    assert life.phase is Phase.FAILED
    life = Life()
    life.state = replace(
        life.state, health=replace(life.state.health, excluded={"n1": Exclusion("flaky", 0.0, life.now)})
    )
    life.launching()
    assert life.started().placement.nodes == ("n0", "n1")


def test_nothing_that_says_why_is_said_too() -> None:
    life = Life().stopping()
    quiet = judge(Life().running().state, 200.0, life.policy)
    assert "none reported a cause" in quiet.reason


def test_waits_of_no_time_would_turn_for_ever() -> None:
    for name in ("backoff_first_s", "waiting_max_s", "check_within_s", "choose_within_s"):
        with pytest.raises(PolicyError, match=name):
            Policy(**{name: 0.0})  # type: ignore[arg-type]
