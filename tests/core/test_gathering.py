"""From nobody there to nodes that have proven themselves: PENDING and CHECKING."""

from __future__ import annotations

import pytest

from gangrun.core.actions import CheckNodes, EndJob, SealAttempts, SubmitSuccessor
from gangrun.core.events import (
    AgentRejoined,
    FindingRaised,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
)
from gangrun.core.model import Failure, Phase
from gangrun.core.nodeset import NAMED_MAX_COUNT
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal, warning

SCHEDULER = Policy(can_requeue=True)


# ---- PENDING -----------------------------------------------------------------------------------------------------


def test_heads_are_counted_until_all_are_here() -> None:
    life = Life(3)
    life.join("n0")
    life.says("n0", "1 of 3")
    assert life.state.reason == life.reason
    life.join("n1", "n2")
    assert life.phase is Phase.CHECKING
    assert life.actions == (CheckNodes(("n0", "n1", "n2")),)
    life.says("all 3 nodes", "n[0-2]")


def test_one_node_alone_is_named_and_not_called_all_of_them() -> None:
    life = Life(1)
    life.join()
    life.says("n0 is here")


def test_those_who_came_are_enough_if_the_user_said_so() -> None:
    life = Life(3, at_least=2)
    life.join("n0", "n2")
    life.due("join")
    assert life.phase is Phase.CHECKING
    life.says("2 of 3 nodes joined within 60 s", "n[0,2]")


@pytest.mark.parametrize("came", [(), ("n1",)])
def test_too_few_came(came: tuple[str, ...]) -> None:
    life = Life(3)
    life.join(*came) if came else None
    life.due("join")
    assert life.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.NODE
    life.says(f"{len(came)} of 3 nodes joined within 60 s", *came)
    assert life.last(EndJob).exit_code == 1


def test_too_few_came_and_a_scheduler_is_asked_for_another_job() -> None:
    life = Life(3, policy=SCHEDULER)
    life.due("join")
    assert life.last(SubmitSuccessor).seq == 1


def test_nodes_that_fall_silent_before_the_start_are_noted_and_heard_again() -> None:
    life = Life(3)
    life.join("n0", "n1")
    life.on(NodeSilent("n0", life.now - 6))
    life.says("n0", "6 s")
    life.on(NodeLost("n1", life.now - 30, "its probes failed"))
    life.says("n1", "its probes failed")
    assert life.state.roster.nodes["n1"].lost
    life.on(NodeHeard("n1"))
    life.says("n1 sends heartbeats again")
    assert not life.state.roster.nodes["n1"].lost
    life.on(NodeSilent("x9", life.now))
    assert "x9" not in life.state.roster.nodes


def test_a_node_known_to_be_bad_is_not_used() -> None:
    life = Life(2)
    life.join("n0")
    life.on(FindingRaised(warning("n0")))
    assert life.state.roster.nodes["n0"].checked is None
    life.on(FindingRaised(fatal("x9")))
    life.on(FindingRaised(fatal("n0")))
    life.says("n0", "gpu lost")
    life.join("n1")
    assert life.actions == (CheckNodes(("n1",)),), "there is nothing more to ask n0"
    life.on(NodeChecked("n1", True))
    assert life.phase is Phase.FAILED
    life.says("1 node usable, 2 needed", "n0 excluded", "gpu lost")


# ---- CHECKING ----------------------------------------------------------------------------------------------------


def test_the_last_answer_starts_the_gang() -> None:
    life = Life(3)
    life.join()
    life.on(NodeChecked("n1", True))
    life.says("n1 passed", "waiting for n[0,2]")
    life.on(NodeChecked("n0", True))
    life.on(NodeChecked("n2", True))
    assert life.phase is Phase.STARTING
    assert life.actions == (SealAttempts(0),)


def test_thousands_that_have_not_answered_are_counted_not_named() -> None:
    life = Life(NAMED_MAX_COUNT + 2)
    life.join()
    life.on(NodeChecked("n1", True))
    life.says("n1 passed", f"waiting for {NAMED_MAX_COUNT + 1} nodes")
    life.on(NodeChecked("n0", True))
    life.says("n0 passed", f"waiting for n[2-{NAMED_MAX_COUNT + 1}]")


def test_a_failed_check_says_why_and_leaves_the_node_out() -> None:
    life = Life(3, at_least=2)
    life.join()
    life.on(NodeChecked("n1", False, "GPU 3 is missing"))
    life.says("n1 failed", "GPU 3 is missing")
    life.on(NodeChecked("n0", True, "its ranks may use 1 of 8 CPUs"))
    life.says("n0 passed its checks, but its ranks may use 1 of 8 CPUs")
    life.on(NodeChecked("n2", True))
    life.again()
    assert life.started().placement.nodes == ("n0", "n2")


def test_a_check_that_passes_does_not_undo_a_fatal_finding() -> None:
    life = Life(2)
    life.join()
    life.on(FindingRaised(fatal("n0")))
    life.says("gpu lost", "waiting for n1")
    life.ignored(NodeChecked("n0", True), "n0", "stays unused", "gpu lost")
    life.on(NodeChecked("n1", True))
    assert life.phase is Phase.FAILED


def test_an_answer_of_a_stranger_counts_for_nothing() -> None:
    life = Life(2)
    life.join()
    life.ignored(NodeChecked("x9", True), "x9", "not in this job")


def test_nobody_waits_for_the_check_of_a_lost_node() -> None:
    life = Life(2, at_least=1)
    life.join()
    life.on(NodeChecked("n0", True))
    life.on(NodeLost("n1", life.now, "its probes failed"))
    assert life.phase is Phase.STARTING
    life.says("n1 is lost", "its probes failed")


def test_a_checker_that_does_not_answer_excludes_nobody() -> None:
    life = Life(2)
    life.join()
    life.on(NodeChecked("n0", True))
    life.due("check")
    assert life.phase is Phase.STARTING
    life.says("no answer from the checks on n1", "does not count against a node")
    life.again()
    assert life.started().placement.nodes == ("n0", "n1")


def test_an_agent_that_comes_late_is_asked_too_and_one_that_passed_is_not() -> None:
    life = Life(2)
    life.join()
    life.join("n2")
    assert life.actions == (CheckNodes(("n2",)),)
    life.on(NodeChecked("n0", True))
    life.on(AgentRejoined("n0", "i2", "b-n0", 2))
    assert life.actions == ()
    life.on(AgentRejoined("n0", "i3", "another boot", 2))
    assert life.actions == (CheckNodes(("n0",)),)


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_before_the_start(kind: NoticeKind) -> None:
    life = Life(2, policy=SCHEDULER)
    life.join()
    life.on(Notice(kind, 30.0))
    if kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        assert life.phase is Phase.CANCELLED
        life.says("scheduler" if kind is NoticeKind.CANCEL else "signal")
    elif kind is NoticeKind.REQUEUE:
        assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 0, True)
    else:
        assert life.last(SubmitSuccessor).seq == 1
        life.says(kind.value, "the next job")
