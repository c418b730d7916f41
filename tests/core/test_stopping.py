"""Ranks go down, evidence comes in, the next rung is due: STOPPING."""

from __future__ import annotations

import pytest

from gangrun.core.actions import StartGang, StopGang, SubmitSuccessor
from gangrun.core.events import (
    ActFailed,
    AgentRejoined,
    Event,
    FindingRaised,
    GangStartFailed,
    NodeHeard,
    NodeLost,
    Notice,
    NoticeKind,
    ProgressStalled,
    StacksTaken,
    StopTimedOut,
    StoreBack,
    StoreStalled,
)
from gangrun.core.model import After, Failure, Outcome, Phase, RankStack
from gangrun.core.policy import Policy
from tests.core.life import BUG, VICTIM, Life, fatal, warning

SCHEDULER = Policy(can_requeue=True)


# ---- STOPPING: evidence ------------------------------------------------------------------------------------------


def test_who_falls_later_is_counted_once_and_the_first_stays_the_story() -> None:
    life = Life().running()
    life.exit(2, error=BUG)
    life.exit(0, error=VICTIM)
    life.says("rank 0 on n0", "DistBackendError")
    life.exit(0, error=VICTIM)
    assert life.answer.outcome is Outcome.IGNORED
    life.says("rank 0", "already")
    life.stopped()
    assert "rank 2 on n1 raised ValueError" in life.state.attempts[0].reason


def test_finishing_while_being_stopped_is_no_success() -> None:
    life = Life().stopping()
    life.finish(0, 1, 2, 3)
    life.says("rank 3", "being stopped")
    life.stopped()
    assert life.phase is Phase.STARTING


def test_what_is_lost_or_found_or_restarted_meanwhile_is_evidence_only_if_it_held_ranks() -> None:
    life = Life().stopping()
    life.join("s0")
    before = life.state.attempt.evidence
    for event in (
        NodeLost("s0", 99.0, "its probes failed"),
        NodeHeard("s0"),
        AgentRejoined("s0", "i2", "b", 2),
        FindingRaised(fatal("s0")),
        FindingRaised(warning("n1")),
        FindingRaised(warning("s0")),
    ):
        life.on(event)
        assert life.state.attempt.evidence == before, event
    assert life.state.roster.nodes["s0"].checked is False
    told: list[tuple[Event, str]] = [
        (FindingRaised(fatal("n1")), "gpu lost"),
        (NodeLost("n1", 99.0, "its probes failed"), "its probes failed"),
        (AgentRejoined("n1", "i2", "b-n1", 2), "agent on n1"),
    ]
    for said, words in told:
        seen = life.state.attempt.evidence
        life.on(said)
        life.says(words)
        assert life.state.attempt.evidence != seen
    assert life.phase is Phase.STOPPING


def test_an_agent_of_a_spare_restarted_while_stopping_does_not_hide_the_bug() -> None:
    life = Life().running()
    life.join("s0")
    life.exit(2, error=BUG)
    life.on(AgentRejoined("s0", "i2", "b", 2))
    life.stopped()
    assert life.state.attempts[0].outcome == "rank error"


def test_stacks_that_come_after_a_rank_fell_are_kept() -> None:
    life = Life().running()
    life.on(ProgressStalled(0, 130.0, 120.0, ()))
    life.exit(1, error=VICTIM)
    stacks = (RankStack(0, "n0", "load_batch", ""),)
    life.on(StacksTaken(0, stacks))
    assert life.state.attempt.evidence.hang is not None
    assert life.state.attempt.evidence.hang.stacks == stacks
    life = Life().stopping()
    life.ignored(StacksTaken(0, stacks), "nobody asked")


def test_processes_that_the_kernel_holds_make_the_node_the_suspect() -> None:
    life = Life().stopping()
    life.on(StopTimedOut(0, "n1", ("python[123]",)))
    life.says("n1", "python[123]", "D state")
    assert life.state.reason == life.reason
    life.on(StopTimedOut(0, "n1", ("python[123]", "python[124]")))
    life.says("python[124]")
    assert len(life.state.attempt.evidence.findings) == 1
    life.stopped()
    assert "unkillable" in life.state.health.excluded["n1"].reason


def test_what_could_not_be_cleaned_away_is_said_whatever_follows() -> None:
    for begin in (Life().stopping(), Life(policy=SCHEDULER).stopping()):
        begin.stopped(leftovers=("/dev/shm/psm_x",))
        begin.says("left behind", "/dev/shm/psm_x")
        assert begin.state.reason == begin.reason
    life = Life(1, 1).running()
    life.finish(0)
    life.stopped(leftovers=("/dev/shm/psm_x",))
    assert life.phase is Phase.SUCCEEDED
    life.says("all ranks finished", "/dev/shm/psm_x")


# ---- STOPPING: how it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "ends"),
    [(After.JUDGE, Phase.FAILED), (After.CANCEL, Phase.CANCELLED), (After.SUCCEED, Phase.SUCCEEDED)],
)
def test_a_stop_that_nobody_can_prove_ends_the_run_and_fences_the_next(after: After, ends: Phase) -> None:
    life = Life(1, 1).running()
    if after is After.JUDGE:
        life.exit(0)
    elif after is After.CANCEL:
        life.cancel()
    else:
        life.finish(0)
    for turn in range(1, 4):
        life.due("stop")
        life.says(f"{turn} of 3", "attempt 0")
        assert life.actions == (StopGang(0, 0.0, False, life.reason),)
    life.due("stop")
    assert life.phase is ends
    life.says("nobody can prove", "attempt 0")
    assert life.state.fence.until > life.now + life.policy.timing.fence_after_s
    assert life.state.ending.failure is (Failure.NODE if ends is Phase.FAILED else None)


def test_a_stop_that_nobody_can_prove_leaves_the_job_to_its_nodes_where_there_is_a_scheduler() -> None:
    life = Life(policy=SCHEDULER).stopping()
    life.on(StopTimedOut(0, "n1", ("python[7]",)))
    for _ in range(4):
        life.due("stop")
    life.says("nobody can prove", "n1 left out", "the next job of this run without n1")
    assert life.last(SubmitSuccessor).exclude == ("n1",)
    assert life.state.fence.nodes == ("n0", "n1")
    assert life.state.fence.until > life.now + life.policy.timing.fence_after_s
    life = Life(policy=SCHEDULER).stopping()
    for _ in range(4):
        life.due("stop")
    assert life.last(SubmitSuccessor).exclude == ()


def test_rounds_of_a_stop_are_not_counted_against_storage() -> None:
    life = Life().stopping()
    life.due("stop")
    life.due("stop")
    life.stopped()
    life.on(ActFailed((1, 4), "SealAttempts", "EIO"))
    life.says("trying again in 2 s")


def test_a_cancel_overrides_what_was_to_follow() -> None:
    life = Life().stopping()
    life.cancel("a person")
    life.says("a person")
    assert life.count(StopGang) == 1
    life.cancel("a person")
    assert life.last(StopGang).grace_s == 0.0
    life.stopped()
    assert life.phase is Phase.CANCELLED
    assert life.count(StartGang) == 1


def test_a_cancel_that_comes_after_all_have_finished_is_too_late() -> None:
    life = Life(1, 1).running()
    life.finish(0)
    life.cancel("a person")
    assert life.answer.outcome is Outcome.IGNORED
    life.says("a person", "finished already")
    life.on(Notice(NoticeKind.CANCEL, 10.0))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED


def test_the_notice_that_each_node_passes_on_takes_no_grace_away() -> None:
    life = Life(policy=SCHEDULER).running()
    for _ in range(3):
        life.on(Notice(NoticeKind.UNKNOWN, 30.0))
    life.on(Notice(NoticeKind.PREEMPTION, 30.0))
    assert life.count(StopGang) == 1
    life.stopped()
    assert life.phase is Phase.CANCELLED


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_while_stopping(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).stopping()
    life.on(Notice(kind, 30.0))
    life.stopped()
    if kind is NoticeKind.CANCEL:
        life.says("cancelled by the scheduler")
    elif kind is NoticeKind.UNKNOWN:
        life.says("cancelled by a signal")
    elif kind is NoticeKind.REQUEUE:
        life.says(kind.value, "comes back by itself")
        assert life.state.ending.leaving
    else:
        life.says(kind.value, "the next job")
        assert life.state.underway.submitting


@pytest.mark.parametrize("again", [NoticeKind.PREEMPTION, NoticeKind.TIME_LIMIT, NoticeKind.UNKNOWN])
def test_a_notice_that_comes_twice_does_not_hide_what_was_said_of_it_first(again: NoticeKind) -> None:
    """Who looks from time to time and who is asked may both see the same."""
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 14.0))
    first = life.state.reason
    assert first.startswith("preempted: 14 s to save and stop")
    life.on(Notice(again, 14.0))
    assert life.state.reason == first
    life.stopped()
    life.says("preempted: 14 s to save and stop", "the next job")
    assert life.state.underway.submitting


def test_a_cancel_counts_though_the_nodes_go_anyway() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 14.0))
    life.on(Notice(NoticeKind.CANCEL, 14.0))
    life.stopped()
    assert life.phase is Phase.CANCELLED


def test_a_stalled_disk_does_not_hide_why_all_are_stopped() -> None:
    life = Life().launching()
    life.on(GangStartFailed(0, "n0", "port 29501 is taken", retry_free=True))
    life.on(StoreStalled(life.now - 5))
    life.on(StoreBack(6.0))
    life.stopped()
    life.says("port 29501")
