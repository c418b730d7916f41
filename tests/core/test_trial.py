"""Whose devices are put to work before ranks use them, who waits for it, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import CheckNodes, SealAttempts, StartGang, SubmitSuccessor
from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    FindingRaised,
    GangStarted,
    GangStartFailed,
    NodeChecked,
    NodeLost,
    TermTaken,
)
from gangrun.core.evidence import NodeFinding
from gangrun.core.model import Failure, Inventory, Node, Outcome, Phase, RankAlive, Roster, RunState, Shape, StartStage
from gangrun.core.nodes import device_test, standing
from gangrun.core.policy import Policy, PolicyError
from tests.core.life import BUG, Life

TRIES = Policy(test_suspects=True)
SLURM = replace(TRIES, can_requeue=True)
AT_START = Policy(test_at_start=True)
CLEAN = "48 products and 0.3 GB of memory right, in 9 s"


def poor(node: str, check: str = "xid") -> FindingRaised:
    return FindingRaised(NodeFinding(node, check, False, f"XID 94 on gpu 1 of {node}", 0.0, True, "reset", "gpu 1"))


def broken(node: str) -> FindingRaised:
    return FindingRaised(NodeFinding(node, "active_gemm", True, f"gpu 1 of {node} computed 3 numbers wrong", 0.0))


def spared(life: Life, *names: str) -> Life:
    for name in names:
        life.join(name)
        life.on(NodeChecked(name, True))
    return life


def suspected(nodes: int = 3, policy: Policy = SLURM, spares: tuple[str, ...] = ()) -> Life:
    """Ranks fell on n1, just after its hardware was poor."""
    life = spared(Life(nodes, 1, policy=policy).running(), *spares)
    fall(life)
    return life


def fall(life: Life, node: str = "n1") -> None:
    """The gang stops for a signal that nobody explains, on poor hardware."""
    life.mark(life.state.checkpoints.observed_step + 10)
    life.on(poor(node))
    life.exit(0, signal=11)
    life.stopped()


def go_on(life: Life) -> None:
    life.again()
    life.on(GangStarted(life.state.attempt.number))


# ---- at the start ----------------------------------------------------------------------------------------------------


def test_by_policy_every_node_of_a_job_is_put_to_work_before_the_first_attempt_and_no_restart_waits_for_it() -> None:
    life = Life(2, 1, policy=AT_START)
    life.join()
    assert life.actions == (CheckNodes(("n0", "n1"), device_test.QUICK),)
    assert life.state.timers.deadlines["check"].at == pytest.approx(life.now + 120.0)
    life.on(NodeChecked("n0", True, tested=CLEAN))
    life.says("n0 passed its checks, and its devices work: 48 products")
    life.on(NodeChecked("n1", True, "it could not be tested: torch is not installed"))
    life.says("n1 passed its checks, but it could not be tested")
    go_on(life)
    life.join("s0")
    assert life.last(CheckNodes) == CheckNodes(("s0",), device_test.QUICK), "it holds no ranks"
    life.on(NodeChecked("s0", True, tested=CLEAN))
    before = life.count(CheckNodes)
    life.mark(5)
    life.exit(0, error=BUG)
    life.stopped()
    assert (life.phase, life.count(CheckNodes)) == (Phase.STARTING, before)


def test_without_the_policy_devices_are_left_alone_and_a_late_node_moves_no_deadline() -> None:
    life = Life(2, 1)
    life.join()
    assert life.actions == (CheckNodes(("n0", "n1")),)
    due = life.state.timers.deadlines["check"]
    life.join("s0")
    assert life.actions == (CheckNodes(("s0",)),)
    assert life.state.timers.deadlines["check"] == due


def test_a_node_that_joins_while_others_are_tested_has_the_time_for_it() -> None:
    life = Life(2, 1, policy=AT_START)
    life.join()
    life.now += 100.0
    life.join("s0")
    assert life.state.timers.deadlines["check"].at == pytest.approx(life.now + 120.0)
    life.on(AgentJoined("s0", "i-s0", "b-s0", 1))
    life.due("check")
    life.says("no answer from the checks on n[0-1],s0 in 120 s, which does not count against a node", "attempt 0")


def test_the_time_for_tests_is_some() -> None:
    with pytest.raises(PolicyError, match="tests_within_s = 0"):
        Policy(tests_within_s=0)


# ---- suspects --------------------------------------------------------------------------------------------------------


def test_the_gang_waits_for_a_suspect_that_it_needs_and_takes_it_back_clean() -> None:
    life = suspected()
    life.says("just before, n1: XID 94", "devices of n1 are tested first", "restarting in place; checking n1")
    assert life.phase is Phase.CHECKING
    assert life.actions == (CheckNodes(("n1",), device_test.THOROUGH),)
    assert life.state.timers.deadlines["check"].at == pytest.approx(life.now + 180.0)
    life.on(NodeChecked("n1", True, tested=CLEAN))
    life.says("n1 was suspected (attempt 0: signal), and its devices work: 48 products", "starting attempt 1")
    life.again()
    assert life.started().placement.nodes == ("n0", "n1", "n2")
    assert life.state.health.excluded == {}
    life.now += 3600.0
    assert life.state.health.suspicion == {"n1": 1}
    assert standing.unfaded(life.state.health, life.now) == {}, "sooner than a day later"


def test_a_suspect_that_fails_is_left_out_before_the_gang_starts() -> None:
    life = suspected()
    life.on(broken("n1"))
    life.says("n1: gpu 1 of n1 computed 3 numbers wrong", "excluded for 24 h")
    assert life.last(SubmitSuccessor).exclude == ("n1",)
    assert life.count(StartGang) == 1
    life = suspected()
    life.on(NodeChecked("n1", False, "its /dev/shm is full"))
    life.says("n1 was suspected (attempt 0: signal), and failed: its /dev/shm is full", "2 nodes usable")
    assert life.count(StartGang) == 1


def test_where_the_gang_is_whole_without_it_nobody_waits() -> None:
    life = suspected(spares=("s0",))
    life.says("devices of n1 are tested meanwhile; other nodes take part", "restarting on n[0,2],s0")
    assert life.phase is Phase.STARTING
    assert CheckNodes(("n1",), device_test.THOROUGH) in life.actions
    go_on(life)
    assert life.started().placement.nodes == ("n0", "s0", "n2")
    life.on(NodeChecked("n1", True, tested=CLEAN))
    assert life.state.roster.nodes["n1"].checked is True
    life.says("it may be used again")
    life.on(NodeLost("s0", life.now - 30, "its lease is over"))
    life.stopped()
    life.again()
    assert life.started().placement.nodes == ("n0", "n1", "n2")


def test_one_that_fails_while_others_train_is_not_used_again() -> None:
    life = suspected(spares=("s0",))
    go_on(life)
    life.on(broken("n1"))
    life.on(NodeChecked("n1", False, "gpu 1 computed 3 numbers wrong (active_gemm)"))
    assert life.phase is Phase.RUNNING
    life.on(NodeLost("s0", life.now - 30, "its lease is over"))
    life.stopped()
    assert set(life.last(SubmitSuccessor).exclude) == {"n1", "s0"}


def test_an_answer_that_comes_while_the_next_attempt_starts_counts() -> None:
    life = suspected(spares=("s0",))
    life.ignored(NodeChecked("n0", True), "not being checked now")
    life.ignored(NodeChecked("elsewhere", True), "not in this job")
    life.on(NodeChecked("n1", True, tested=CLEAN))
    assert (life.phase, life.answer.outcome) == (Phase.STARTING, Outcome.APPLIED)
    life.again()
    assert life.started().placement.nodes == ("n0", "s0", "n2"), "clean or not, poor hardware is used last"


def test_a_second_time_it_is_tested_and_a_third_time_left_out_although_it_was_clean() -> None:
    life = suspected()
    life.on(NodeChecked("n1", True, tested=CLEAN))
    go_on(life)
    life.now += 600.0
    fall(life)
    life.says("n1 was suspected for the 2nd time", "tested first")
    assert (life.phase, life.state.health.excluded) == (Phase.CHECKING, {})
    life.on(NodeChecked("n1", True, tested=CLEAN))
    go_on(life)
    fall(life)
    life.says("n1 was suspected for the 3rd time, so it is blamed; n1 excluded for 24 h")
    assert set(life.state.health.excluded) == {"n1"}


@pytest.mark.parametrize("times", [1, 2])
def test_where_nobody_could_tell_the_suspicion_alone_counts(times: int) -> None:
    life = suspected()
    if times == 2:
        life.on(NodeChecked("n1", True, "torch is not installed"))
        life.says("could not be tested: torch is not installed; that says nothing against it")
        go_on(life)
        fall(life)
    life.on(NodeChecked("n1", True))
    life.says("n1 was suspected", "could not be tested: it does not say why")
    assert set(life.state.health.excluded) == ({"n1"} if times == 2 else set())
    assert life.phase is (Phase.WAITING if times == 2 else Phase.STARTING)


def test_one_that_does_not_answer_is_left_out_and_holds_nobody_up() -> None:
    life = suspected()
    life.due("check")
    life.says("n1: it was suspected (attempt 0: signal), and its device test has not answered; n1 excluded")
    assert life.last(SubmitSuccessor).exclude == ("n1",)
    life = suspected(policy=TRIES)
    life.due("check")
    life.says("no other node can take its place")
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.NODE)
    assert life.state.health.excluded == {}


def test_others_that_are_new_are_checked_beside_it() -> None:
    life = suspected()
    life.join("s0")
    assert life.actions == (CheckNodes(("s0",)),)
    life.on(NodeChecked("s0", True))
    life.says("starting attempt 1")
    assert life.state.roster.nodes["n1"].checked is None, "it is still at work, and nobody waits for it any more"
    go_on(life)
    assert life.started().placement.nodes == ("n0", "s0", "n2")


def test_a_suspect_is_tested_while_the_pause_before_the_next_try_runs() -> None:
    life = suspected(spares=("s0",))
    go_on(life)
    life.on(NodeChecked("n1", True, tested=CLEAN))
    life.on(poor("n2"))
    life.exit(0, signal=11)
    life.stopped()
    assert life.phase is Phase.WAITING, life.reason
    assert life.actions == (CheckNodes(("n2",), device_test.THOROUGH),)
    life.on(NodeChecked("n2", True, tested=CLEAN))
    life.due("backoff")
    assert life.phase is Phase.STARTING


def test_a_spare_lost_before_the_launch_makes_the_suspect_needed() -> None:
    life = suspected(spares=("s0",))
    life.again()
    life.on(GangStartFailed(1, "n0", "a port was taken", retry_free=True))
    life.on(NodeLost("s0", life.now - 30, "its lease is over"))
    life.stopped()
    life.says("checking n1")
    assert life.phase is Phase.CHECKING
    assert life.last(CheckNodes) == CheckNodes(("n1",), device_test.THOROUGH)
    life.on(NodeChecked("n1", True, tested=CLEAN))
    assert life.phase is Phase.STARTING


def taken_over(life: Life, *inventories: Inventory) -> tuple[object, ...]:
    life.on(TermTaken(life.state.term + 1, life.state.job, inventories, (), life.state.attempt.number))
    return life.actions


ASKED = CheckNodes(("n1",), device_test.THOROUGH)


def test_a_new_supervisor_asks_again() -> None:
    assert taken_over(suspected()) == (ASKED,)


def test_who_is_tested_beside_a_gang_is_asked_by_every_new_supervisor_until_it_has_answered() -> None:
    life = suspected(spares=("s0",))
    assert (life.phase, taken_over(life)) == (Phase.STARTING, (SealAttempts(1), ASKED))
    life.on(AttemptSealed(1))
    life.choose()
    assert life.state.underway.stage is StartStage.LAUNCHING
    alive = tuple(
        Inventory(name, 1, (RankAlive(rank, 1, 0),)) for rank, name in enumerate(life.started().placement.nodes)
    )
    assert (taken_over(life, *alive), life.phase) == ((ASKED,), Phase.RUNNING)
    assert taken_over(life, *alive) == (ASKED,)
    life.on(NodeChecked("n1", True, tested=CLEAN))
    assert taken_over(life, *alive) == ()


def test_who_is_tested_in_the_pause_before_the_next_try_is_asked_again_too() -> None:
    life = suspected(spares=("s0",))
    go_on(life)
    life.on(NodeChecked("n1", True, tested=CLEAN))
    life.on(poor("n2"))
    life.exit(0, signal=11)
    life.stopped()
    assert (life.phase, life.state.underway.submitting) == (Phase.WAITING, False)
    assert taken_over(life) == (CheckNodes(("n2",), device_test.THOROUGH),)


def test_an_agent_that_comes_back_is_still_on_trial_until_its_next_boot() -> None:
    life = suspected()
    node = life.state.roster.nodes["n1"]
    life.on(AgentRejoined("n1", "i7", node.boot_id, 1))
    assert life.actions == (CheckNodes(("n1",), device_test.THOROUGH),)
    life.on(AgentRejoined("n1", "i8", "another boot", 1))
    assert life.actions == (CheckNodes(("n1",)),)
    life.on(NodeChecked("n1", True))
    assert life.phase is Phase.STARTING


@pytest.mark.parametrize(
    "policy", [Policy(can_requeue=True), replace(SLURM, observe=True)], ids=["turned off", "observing"]
)
def test_nobody_is_tried_without_the_policy_nor_by_who_only_observes(policy: Policy) -> None:
    life = suspected(policy=policy)
    assert not any(node.trial for node in life.state.roster.nodes.values())
    assert not any(one.tests for one in life.asked if isinstance(one, CheckNodes))


def test_who_is_merely_the_first_to_fall_restarts_in_place_untested() -> None:
    life = Life(3, 1, policy=SLURM).running()
    life.exit(1, error=BUG)
    life.stopped()
    assert (life.phase, life.state.health.suspicion) == (Phase.STARTING, {"n1": 1})
    life = Life(3, 1, policy=SLURM).running()
    life.on(poor("n1", "storage_space"))
    life.exit(1, signal=11)
    life.stopped()
    assert (life.phase, life.state.health.suspicion) == (Phase.STARTING, {"n1": 1}), "a poor file system says nothing"


def test_a_suspect_that_is_gone_is_not_asked() -> None:
    life = Life(3, 1, policy=SLURM).running()
    life.on(poor("n1"))
    life.exit(0, signal=11)
    life.on(FindingRaised(NodeFinding("n9", "xid", False, "of no node of ours", 0.0, True)))
    life.state = replace(
        life.state,
        roster=replace(
            life.state.roster, nodes={name: one for name, one in life.state.roster.nodes.items() if name != "n1"}
        ),
    )
    life.stopped()
    assert not any(node.trial for node in life.state.roster.nodes.values())


def test_nobody_on_trial_is_nothing_to_tell() -> None:
    nodes = {"n0": Node("n0", "i", "b", 1, checked=True)}
    state = RunState(run="r", shape=Shape(1, 1, 1, 1), roster=Roster(nodes=nodes))
    assert device_test.told(state, (), 0.0) == ""
    assert device_test.begun(state, (), "no reason") is state
    assert device_test.overdue(state, 0.0, SLURM) == device_test.Answered(state, "")
