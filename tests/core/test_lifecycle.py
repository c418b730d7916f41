"""The table: every pair is there, refused events change nothing, and whole lives run through it by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import (
    CheckNodes,
    ChooseResume,
    EndJob,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.events import (
    ActDone,
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    CancelRequested,
    CheckpointSeen,
    Event,
    FirstStepSeen,
    GangStarted,
    GangStartFailed,
    GangStopped,
    NodeChecked,
    NodeLost,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    ResumeRequested,
    StacksTaken,
    Stamped,
    TermTaken,
)
from gangrun.core.machine.lifecycle import TABLE, Refusal, step
from gangrun.core.model import (
    After,
    CheckpointRef,
    ErrorReport,
    Failure,
    Inventory,
    Level,
    Origin,
    Outcome,
    Phase,
    RankAlive,
    RankExit,
    Shape,
)
from gangrun.core.policy import Policy
from tests.core.life import Life


def test_every_phase_lists_or_refuses_every_event() -> None:
    kinds = set(Event.__args__)
    for phase in Phase:
        assert set(TABLE[phase]) == kinds, (phase, kinds ^ set(TABLE[phase]))
    assert any(isinstance(entry, Refusal) for entry in TABLE[Phase.PENDING].values())


def test_a_clean_run_goes_through_the_phases_and_ends_its_job() -> None:
    life = Life().running()
    assert isinstance(life.asked[0], CheckNodes)
    assert life.last(SealAttempts) and life.last(ChooseResume)
    start = life.last(StartGang)
    assert start.placement.world_size == 4
    life.on(FirstStepSeen(0, 0))
    for rank in range(4):
        life.on(RankFinished(0, rank, life.names[rank // 2], life.now))
    assert life.state.phase is Phase.STOPPING
    life.on(GangStopped(0))
    assert life.state.phase is Phase.SUCCEEDED
    assert life.last(EndJob) == EndJob(Phase.SUCCEEDED, 0, life.state.reason)
    assert life.state.attempts[-1].outcome == "succeeded"
    assert not life.state.timers.deadlines


def test_a_killed_rank_restarts_in_place_and_blames_nobody() -> None:
    life = Life().running()
    life.exit(1, code=None, signal=9)
    assert life.state.phase is Phase.STOPPING
    assert isinstance(life.last(StopGang), StopGang)
    life.on(GangStopped(0))
    assert life.state.phase is Phase.STARTING
    assert life.state.attempt.number == 1
    life.again(CheckpointRef(7, "/c/step-7", Level.VERIFIED))
    start = life.last(StartGang)
    assert start.attempt == 1
    assert start.placement.nodes == ("n0", "n1")
    assert start.resume is not None
    assert start.resume.step == 7
    life.on(GangStarted(1))
    assert life.state.phase is Phase.RUNNING
    assert not life.state.health.excluded


def test_the_same_bug_twice_stops_with_the_traceback() -> None:
    life = Life().running()
    bug = ErrorReport("ValueError", "bad batch", "sig", "Traceback ...\nValueError: bad batch", False)
    life.exit(3, error=bug)
    life.on(GangStopped(0))
    life.again()
    life.on(GangStarted(1))
    life.exit(3, error=bug)
    life.on(GangStopped(1))
    assert life.state.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.SCRIPT
    assert "ValueError" in life.state.reason
    assert not life.state.health.excluded


def test_a_lost_node_without_a_spare_is_waited_for_then_ends_the_run() -> None:
    life = Life().running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    assert life.state.phase is Phase.WAITING
    life.due("nodes")
    assert life.state.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.NODE


def test_a_lost_node_that_comes_back_ends_the_wait() -> None:
    life = Life().running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    assert life.state.phase is Phase.STARTING


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    life = Life()
    life.state = replace(life.state, shape=Shape(2, 2, 2, 1))
    life.running()
    life.on(AgentJoined("n2", "i", "b", 2))
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    assert "n1" in life.state.health.excluded
    life.on(NodeChecked("n2", True))
    life.again()
    start = life.last(StartGang)
    assert start.placement.nodes == ("n0", "n2")


def test_with_a_scheduler_too_few_nodes_ask_for_the_next_job() -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    submit = life.last(SubmitSuccessor)
    assert submit.exclude == ("n1",)
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    assert life.state.phase is Phase.PENDING
    assert life.state.seq == 1
    assert life.last(EndJob).phase is Phase.PENDING


def test_a_cancel_ends_cancelled_from_every_phase() -> None:
    for stop_at in range(5):
        life = Life()
        if stop_at == 1:
            life.on(AgentJoined("n0", "i", "b", 2))
        elif stop_at == 2:
            for name in life.names:
                life.on(AgentJoined(name, "i", "b", 2))
        elif stop_at == 3:
            life.launching()
        elif stop_at == 4:
            life.running()
        life.on(CancelRequested("someone"))
        if life.state.phase is Phase.STOPPING:
            life.on(GangStopped(life.state.attempt.number))
        assert life.state.phase is Phase.CANCELLED, stop_at
        end = life.last(EndJob)
        assert end.exit_code == 130
        life.on(GangStarted(0))
        assert life.state.phase is Phase.CANCELLED


def test_a_second_cancel_takes_the_grace_away() -> None:
    life = Life().running()
    life.on(CancelRequested("someone"))
    life.on(CancelRequested("someone"))
    stop = life.last(StopGang)
    assert stop.grace_s == 0.0


def test_starting_over_stops_the_run() -> None:
    life = Life().running(CheckpointRef(40, "/c/step-40", Level.COMPLETE))
    life.on(FirstStepSeen(0, 0))
    life.on(GangStopped(0))
    assert life.state.phase is Phase.FAILED
    assert "started over" in life.state.reason


def test_none_valid_never_starts_from_zero() -> None:
    life = Life()
    life.checked()
    life.on(AttemptSealed(0))
    life.on(NoneValid(0, "3 checkpoints were committed and none is valid"))
    assert life.state.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.STORAGE
    assert not [action for action in life.asked if isinstance(action, StartGang)]


def test_a_hang_takes_stacks_before_it_stops() -> None:
    life = Life().running()
    life.on(ProgressStalled(0, 130.0, 120.0, ()))
    assert life.last(TakeStacks) == TakeStacks(0)
    assert life.state.phase is Phase.RUNNING
    life.on(StacksTaken(0, ()))
    assert life.state.phase is Phase.STOPPING
    life.on(GangStopped(0))
    assert life.state.attempt.number == 1


def test_a_taken_port_is_nobodys_fault_and_free() -> None:
    life = Life().launching()
    life.on(GangStartFailed(0, "n0", "port 29501 is taken", retry_free=True))
    assert life.state.underway.after is After.AGAIN
    life.on(GangStopped(0))
    assert life.state.phase is Phase.STARTING
    assert life.state.budget.total_count == 0


def test_duplicates_and_stale_events_change_nothing() -> None:
    life = Life().running()
    origin = Origin("j", "n0", "b-n0", "i-n0", 5)
    exit_ = RankExit(0, "n0", 1, None, False, False, None, life.now)
    first = step(life.state, Stamped(RankExited(0, exit_), origin), life.now, life.policy)
    assert first.outcome is Outcome.APPLIED
    second = step(first.state, Stamped(RankExited(0, exit_), origin), life.now, life.policy)
    assert second.outcome is Outcome.IGNORED
    assert second.state == first.state
    old = Origin("j", "n0", "b-n0", "older", 1)
    third = step(life.state, Stamped(RankExited(0, exit_), old), life.now, life.policy)
    assert third.outcome is Outcome.IGNORED
    other = step(life.state, Stamped(GangStarted(7)), life.now, life.policy)
    assert other.outcome is Outcome.IGNORED


def test_a_new_term_adopts_a_whole_gang_and_stops_a_broken_one() -> None:
    life = Life().running()
    whole = tuple(
        Inventory(name, 0, tuple(RankAlive(2 * k + i, 1, 1) for i in range(2))) for k, name in enumerate(life.names)
    )
    life.on(TermTaken(2, "j", whole, (), 0))
    assert life.state.phase is Phase.RUNNING
    assert life.state.term == 2
    life.on(TermTaken(3, "j", (whole[0], Inventory("n1", -1)), (), 0))
    assert life.state.phase is Phase.STOPPING
    assert life.state.underway.after is After.JUDGE
    redone = life.on(TermTaken(4, "j", whole, (), 0))
    assert redone.phase is Phase.STOPPING
    assert isinstance(life.asked[-1], StopGang)


@pytest.mark.parametrize("highest", [0, 3])
def test_a_new_term_in_the_middle_of_a_start_never_uses_a_known_number_again(highest: int) -> None:
    life = Life().launching()
    life.on(TermTaken(2, "j", (), ("n0", "n1"), highest))
    assert life.state.phase is Phase.STOPPING
    life.on(GangStopped(life.state.attempt.number))
    assert life.state.attempt.number == highest + 1


def test_another_job_waits_for_the_leases_of_nodes_that_did_not_come_back() -> None:
    life = Life().running()
    life.on(TermTaken(2, "k", (), (), 0))
    assert life.state.phase is Phase.PENDING
    life.names = ["m0", "m1"]
    for name in life.names:
        life.on(AgentJoined(name, "i", "b", 2))
    for name in life.names:
        life.on(NodeChecked(name, True))
    assert life.state.phase is Phase.WAITING
    life.due("backoff")
    assert life.state.phase is Phase.STARTING
    assert life.state.attempt.number == 1


def test_a_run_that_ended_is_taken_up_again_only_when_asked() -> None:
    life = Life().running()
    life.on(CancelRequested("someone"))
    life.on(GangStopped(0))
    life.on(TermTaken(2, "k", (), (), 0))
    assert life.state.phase is Phase.CANCELLED
    life.on(ResumeRequested("someone", "k", 1))
    assert life.state.phase is Phase.PENDING
    assert life.state.ending.cancelled_by == ""
    life.launching()
    assert life.state.attempt.number == 1


def test_preemption_saves_stops_and_requeues() -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(Notice(NoticeKind.PREEMPTION, 60.0))
    stop = life.last(StopGang)
    assert stop.checkpoint_first
    life.on(GangStopped(0))
    assert isinstance(life.last(SubmitSuccessor), SubmitSuccessor)


def test_checkpoints_never_go_back() -> None:
    life = Life().running()
    life.on(CheckpointSeen(CheckpointRef(10, "/c/step-10", Level.VERIFIED)))
    life.on(CheckpointSeen(CheckpointRef(5, "/c/step-5", Level.VERIFIED)))
    assert life.state.checkpoints.best_step == 10


def test_a_rank_says_in_dying_how_far_it_got() -> None:
    life = Life().running()
    life.on(ProgressMarked(0, 4))
    died = RankExit(1, "n0", None, 9, False, False, None, life.now, step=15)
    life.on(RankExited(0, died))
    assert life.state.attempt.step == 15
    assert life.state.checkpoints.observed_step == 15
    life.on(RankFinished(0, 2, "n1", life.now, step=14))
    assert life.state.attempt.step == 15
