"""Every wait has an end: pauses, nodes that may come back, the next job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import CheckNodes, EndJob, StartGang, SubmitSuccessor
from gangrun.core.events import (
    ActDone,
    ActFailed,
    ActUnknown,
    AgentJoined,
    AgentRejoined,
    FindingRaised,
    GangStarted,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
)
from gangrun.core.model import Exclusion, Failure, Phase, StartStage
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal

SCHEDULER = Policy(can_requeue=True)
SUBMIT = "SubmitSuccessor"


# ---- WAITING -----------------------------------------------------------------------------------------------------


def test_the_pause_before_a_second_try_has_an_end() -> None:
    life = Life().running()
    for _ in range(2):
        life.exit(0, code=None, signal=9)
        life.stopped()
        if life.phase is Phase.STARTING:
            life.again()
            life.on(GangStarted(life.state.attempt.number))
    assert life.phase is Phase.WAITING
    life.says("rank 0 on n0", "restarting in place in")
    life.on(NodeSilent("n1", life.now - 6))
    life.on(NodeHeard("n1"))
    life.join("s0")
    assert life.phase is Phase.WAITING, "a pause is a pause"
    life.due("backoff")
    assert life.phase is Phase.CHECKING
    assert life.actions == (CheckNodes(("s0",)),)


def test_a_wait_for_nodes_ends_when_enough_are_back() -> None:
    life = Life(3)
    life.names = ["n0", "n1", "n2"]
    life.running()
    life.on(NodeLost("n1", 90.0, "lost"))
    life.on(NodeLost("n2", 90.0, "lost"))
    life.stopped()
    assert life.phase is Phase.WAITING
    life.says("n[1-2]", "waiting up to")
    life.on(NodeHeard("n1"))
    life.says("n1 is heard again", "2 nodes usable, 3 needed")
    life.on(NodeHeard("n2"))
    assert life.phase is Phase.STARTING


def test_nodes_are_waited_for_once() -> None:
    """A node that never answers its checks beside one that is gone must not turn in a circle for ever."""
    life = Life(2).running()
    life.on(AgentRejoined("n0", "i2", "another boot", 2))
    life.on(NodeLost("n1", 90.0, "lost"))
    life.stopped()
    assert life.phase is Phase.WAITING
    life.due("nodes")
    assert life.phase is Phase.CHECKING
    life.due("check")
    assert life.phase is Phase.FAILED, life.reason
    life.says("n1 lost")
    assert life.state.ending.failure is Failure.NODE


def test_a_node_that_flaps_is_not_waited_for_for_ever_either() -> None:
    life = Life(2).waiting()
    life.on(NodeHeard("n1"))
    assert life.phase is Phase.STARTING
    life.on(NodeLost("n1", life.now, "lost again"))
    life.again()
    assert life.phase is Phase.FAILED
    assert life.count(StartGang) == 1


def test_after_a_launch_nodes_may_be_waited_for_again() -> None:
    life = Life(2).waiting()
    life.on(NodeHeard("n1"))
    life.again()
    life.on(GangStarted(1))
    life.on(NodeLost("n1", life.now, "lost again"))
    life.stopped()
    assert life.phase is Phase.WAITING


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_while_waiting(kind: NoticeKind) -> None:
    life = Life().waiting()
    life.on(Notice(kind, 30.0))
    ends = {
        NoticeKind.CANCEL: Phase.CANCELLED,
        NoticeKind.UNKNOWN: Phase.CANCELLED,
        NoticeKind.REQUEUE: Phase.PENDING,
    }
    assert life.phase is ends.get(kind, Phase.FAILED)


def test_a_bad_node_is_not_waited_for() -> None:
    life = Life().waiting()
    life.on(FindingRaised(fatal("n1")))
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    assert life.phase is Phase.CHECKING, "a new agent is asked anew"
    life.on(NodeChecked("n1", False, "GPU 0 is missing"))
    assert life.phase is Phase.FAILED
    life.says("GPU 0 is missing")


# ---- WAITING: the next job ---------------------------------------------------------------------------------------


def test_refused_jobs_are_asked_for_with_growing_pauses_and_then_no_more() -> None:
    life = Life(policy=SCHEDULER).submitting()
    pauses: list[float] = []
    while True:
        life.on(ActFailed((1, 9), SUBMIT, "sbatch: error: QOSMaxSubmitJobPerUserLimit"))
        if life.phase is Phase.FAILED:
            break
        life.says("QOSMaxSubmitJobPerUserLimit", "asking again in")
        pauses.append(life.state.timers.deadlines["submit"].at - life.now)
        life.due("submit")
        assert life.last(SubmitSuccessor).seq == 1
    assert pauses == sorted(pauses)
    assert pauses[-1] <= life.policy.waiting_max_s < sum(pauses)
    life.says("QOSMaxSubmitJobPerUserLimit", f"{len(pauses) + 1} times")
    assert life.state.ending.failure is Failure.SCHEDULER
    assert not life.state.underway.submitting


def test_a_job_that_may_be_in_the_queue_is_looked_for_again_but_not_for_ever() -> None:
    life = Life(policy=SCHEDULER).submitting()
    while life.phase is Phase.WAITING:
        life.on(ActUnknown((1, 9), SUBMIT, "sbatch timed out"))
        life.says("not known whether", "sbatch timed out")
        if life.phase is Phase.WAITING:
            assert life.state.timers.deadlines["submit"].at - life.now >= 30.0
            life.due("submit")
    assert life.state.ending.failure is Failure.SCHEDULER


def test_a_scheduler_that_never_answers_ends_the_wait() -> None:
    life = Life(policy=SCHEDULER).submitting()
    asked = 0
    while life.phase is Phase.WAITING:
        asked += 1
        life.due("submit")
    life.says("did not answer", f"{asked} times")
    assert asked < 20


def test_what_others_acts_became_is_not_for_whoever_waits_for_a_job() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.refused(ActDone((1, 3), "SealAttempts"), "SealAttempts")
    life.refused(ActFailed((1, 3), "SealAttempts", "late"), "SealAttempts")
    life.refused(ActUnknown((1, 3), "SealAttempts", "late"), "SealAttempts")
    life = Life().waiting()
    life.refused(ActDone((1, 3), SUBMIT), SUBMIT)
    life.refused(ActFailed((1, 3), SUBMIT, "late"), SUBMIT)
    life.refused(ActUnknown((1, 3), SUBMIT, "late"), SUBMIT)


def test_the_next_job_does_without_the_excluded_as_long_as_they_are() -> None:
    life = Life(3, policy=SCHEDULER).running()
    old, new = Exclusion("old", 0.0, life.now - 1), Exclusion("new", 0.0, life.now + 1e5)
    life.state = replace(life.state, health=replace(life.state.health, excluded={"n7": old, "n8": new}))
    life.on(Notice(NoticeKind.PREEMPTION, 30.0))
    life.stopped()
    assert life.last(SubmitSuccessor).exclude == ("n8",)
    life.says("without n8")
    life.due("submit")
    assert life.last(SubmitSuccessor).exclude == ("n8",)


@pytest.mark.parametrize("kind", [kind for kind in NoticeKind if kind is not NoticeKind.CANCEL])
def test_a_notice_while_the_next_job_is_asked_for_asks_no_second_time(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(Notice(kind, 30.0))
    life.says(kind.value)
    assert life.count(SubmitSuccessor) == 1
    life.on(ActDone((1, 9), SUBMIT))
    assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 1, True)
    life.on(Notice(kind, 30.0))
    assert life.state.ending.leaving
    life.on(Notice(NoticeKind.CANCEL, 30.0))
    assert life.phase is Phase.CANCELLED


def test_a_scheduler_that_gives_this_very_job_back_keeps_its_place() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(ActDone((1, 9), SUBMIT, same_job=True))
    life.says("comes back by itself")
    assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
    assert (life.phase, life.state.seq, life.state.ending.leaving, life.state.underway.submitting) == (
        Phase.PENDING,
        0,
        True,
        False,
    )


def test_the_next_job_is_in_the_queue_so_this_one_ends() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(ActDone((1, 9), SUBMIT))
    assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
    assert (life.phase, life.state.seq, life.state.roster.nodes) == (Phase.PENDING, 1, {})
    life.ignored(ActDone((1, 9), SUBMIT))
    life.ignored(AgentJoined("n0", "i", "b", 2))


def test_smaller_is_an_answer_where_the_user_allows_it() -> None:
    life = Life(3, at_least=2, policy=SCHEDULER).running()
    life.on(NodeLost("n1", 90.0, "lost"))
    life.stopped()
    life.says("restarting smaller, on n[0,2]")
    assert life.state.underway.stage is StartStage.SEALING
