"""``--total-time``: what counts, how the run ends, and that nothing begins afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core import invariants
from gangrun.core.actions import BringSteps, EndJob, SealAttempts, StopGang, SubmitSuccessor
from gangrun.core.events import (
    GangStarted,
    NodeLost,
    Notice,
    NoticeKind,
    ProgressMarked,
    ResumeRequested,
    StepBrought,
    TermTaken,
)
from gangrun.core.machine import total_time
from gangrun.core.model import After, Inventory, Phase, RankAlive, TrainingTime
from gangrun.core.policy import Policy, PolicyError
from gangrun.core.text import time_words
from tests.core.life import BUG, Life, saved

TOTAL_S = 100.0
POLICY = Policy(can_requeue=True, total_time_s=TOTAL_S)


def running(policy: Policy = POLICY) -> Life:
    return Life(policy=policy).running()


def used_s(life: Life) -> float:
    return total_time.trained_s(life.state, life.now)


def due_in_s(life: Life) -> float:
    return life.state.timers.deadlines[total_time.TIMER].at - life.now


def up(life: Life) -> Life:
    """The total is used and all ranks are down."""
    life.due(total_time.TIMER)
    life.stopped()
    return life


def next_job(life: Life, job: str, seq: int, after_s: float = 1.0) -> None:
    life.on(TermTaken(life.state.term + 1, job, (), (), life.state.attempt.number, seq=seq), after_s)


def taken_up(life: Life) -> None:
    """All that a job does until its ranks run."""
    life.checked()
    life.again(saved(10))
    life.on(GangStarted(life.state.attempt.number))


def test_at_the_end_of_its_time_a_run_saves_stops_and_is_not_finished() -> None:
    life = running()
    assert due_in_s(life) == pytest.approx(TOTAL_S)
    life.due(total_time.TIMER)
    life.says(
        "all ranks have run for 1 min 40 s, the run's total time (--total-time): ranks are asked to save, then all stop"
    )
    assert (life.phase, life.state.underway.after) == (Phase.STOPPING, After.TIME_UP)
    assert life.last(StopGang).checkpoint_first
    life.save(40)
    life.stopped()
    assert (life.phase, life.state.ending.failure, life.count(SubmitSuccessor)) == (Phase.TIME_UP, None, 0)
    assert (life.last(EndJob).phase, life.last(EndJob).exit_code) == (Phase.TIME_UP, 124)
    life.says("the run ends, and its newest checkpoint is of step 40; gangrun resume gives it as much time again")
    assert "no checkpoint of it is known" in up(running()).reason


def test_the_queue_starts_and_stops_do_not_count_and_jobs_add_up() -> None:
    life = running()
    life.on(Notice(NoticeKind.TIME_LIMIT, 60.0), after_s=40.0)
    assert used_s(life) == pytest.approx(40.0)
    life.stopped()
    life.now += 500.0
    next_job(life, "k", 1, after_s=5000.0)
    life.checked()
    life.again(saved(10))
    life.on(GangStarted(life.state.attempt.number), after_s=30.0)
    assert (used_s(life), due_in_s(life)) == (pytest.approx(40.0), pytest.approx(60.0))
    assert up(life).phase is Phase.TIME_UP
    assert used_s(life) == pytest.approx(TOTAL_S)


def test_a_restart_in_place_goes_on_counting() -> None:
    life = running()
    life.on(life.died(0), after_s=30.0)
    life.stopped()
    life.again(saved(5))
    life.on(GangStarted(life.state.attempt.number), after_s=20.0)
    assert (used_s(life), due_in_s(life)) == (pytest.approx(30.0), pytest.approx(70.0))


@pytest.mark.parametrize("alone", [False, True])
def test_of_a_job_that_went_away_only_what_its_journal_shows_counts(alone: bool) -> None:
    """Nobody knows how long its ranks ran after that."""
    life = running()
    life.on(ProgressMarked(0, 3), after_s=20.0)
    term = TermTaken(1, life.state.job if alone else "k", (), (), 0, alone=alone, seq=0 if alone else 1)
    life.on(term, after_s=3000.0)
    assert life.state.training.running_since is None
    assert life.state.training.trained_s == pytest.approx(20.0)


def test_a_new_supervisor_of_the_same_job_goes_on_counting() -> None:
    life = running()
    nodes = [
        Inventory(name, 0, tuple(RankAlive(2 * k + i, 1, 1) for i in range(2))) for k, name in enumerate(("n0", "n1"))
    ]
    life.on(TermTaken(1, life.state.job, tuple(nodes), (), 0), after_s=20.0)
    assert life.phase is Phase.RUNNING
    assert (used_s(life), due_in_s(life)) == (pytest.approx(20.0), pytest.approx(80.0))


def spent(life: Life, used: float = TOTAL_S) -> Life:
    """As if the timer were a moment late: something else stops the ranks just then."""
    life.state = replace(life.state, training=replace(life.state.training, trained_s=used))
    return life


@pytest.mark.parametrize("left_s", [0.0, 0.8])
def test_ranks_that_fall_when_the_time_is_used_are_not_started_again(left_s: float) -> None:
    life = spent(running(), TOTAL_S - 0.1 - left_s)
    life.exit(0, error=BUG)
    life.stopped()
    life.says("ValueError: bad batch", "total time (--total-time)")
    assert (life.phase, life.count(SealAttempts)) == (Phase.TIME_UP, 1)


def test_ranks_that_fall_a_little_earlier_are() -> None:
    life = spent(running(), TOTAL_S - 5.0)
    life.exit(0, error=BUG)
    life.stopped()
    assert life.phase is Phase.STARTING


@pytest.mark.parametrize("event", [Notice(NoticeKind.TIME_LIMIT, 60.0), Notice(NoticeKind.PREEMPTION, 60.0)])
def test_no_job_is_asked_for_when_the_time_is_used(event: Notice) -> None:
    life = spent(running(), TOTAL_S - 0.1)
    life.on(event)
    life.stopped()
    assert (life.phase, life.count(SubmitSuccessor)) == (Phase.TIME_UP, 0)
    life.says(event.kind.value, "total time (--total-time)")


def test_a_planned_restart_does_not_begin_when_the_time_is_used() -> None:
    life = spent(running(), TOTAL_S - 0.1)
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.state = replace(life.state, underway=replace(life.state.underway, after=After.MOVE))
    life.stopped()
    assert life.phase is Phase.TIME_UP


def test_a_job_that_comes_back_by_itself_finds_the_time_used() -> None:
    life = spent(running(), TOTAL_S - 0.1)
    life.on(Notice(NoticeKind.REQUEUE, 60.0))
    life.stopped()
    next_job(life, "j+1", 0)
    life.checked()
    assert (life.phase, life.count(SealAttempts)) == (Phase.TIME_UP, 1)


@pytest.mark.parametrize("kind", [NoticeKind.TIME_LIMIT, NoticeKind.REQUEUE, NoticeKind.UNKNOWN])
def test_slurm_takes_the_nodes_while_the_last_save_is_made(kind: NoticeKind) -> None:
    life = running()
    life.due(total_time.TIMER)
    life.on(Notice(kind, 30.0))
    life.stopped()
    assert (life.phase, life.count(SubmitSuccessor)) == (Phase.TIME_UP, 0)


@pytest.mark.parametrize("by_slurm", [False, True])
def test_a_cancel_meanwhile_is_a_cancel(by_slurm: bool) -> None:
    life = running()
    life.due(total_time.TIMER)
    life.on(Notice(NoticeKind.CANCEL, 30.0)) if by_slurm else life.cancel()
    life.stopped()
    assert life.phase is Phase.CANCELLED


def test_another_job_after_that_ends_the_run_too() -> None:
    life = running()
    life.due(total_time.TIMER)
    next_job(life, "k", 1)
    assert life.phase is Phase.TIME_UP


def test_ranks_that_cannot_be_proven_gone_end_it_too() -> None:
    life = running()
    life.due(total_time.TIMER)
    while life.phase is Phase.STOPPING:
        life.due("stop")
    assert life.phase is Phase.TIME_UP
    life.says("gangrun cannot prove that all ranks of attempt 0 are gone")


def test_what_only_memory_holds_is_brought_to_the_disk_first() -> None:
    life = up(running(replace(POLICY, keeps_memory=True)))
    assert life.phase is Phase.WAITING
    assert life.last(BringSteps).attempt == 0
    life.on(StepBrought(0, 12, ("n0", "n1")))
    assert life.phase is Phase.TIME_UP
    life.says("step 12 was written to disk")


@pytest.mark.parametrize(("step", "phase"), [(9, Phase.SUCCEEDED), (5, Phase.TIME_UP)])
def test_ranks_that_end_at_their_goal_meanwhile_have_succeeded(step: int, phase: Phase) -> None:
    life = running(replace(POLICY, total_steps=10))
    life.mark(step)
    life.due(total_time.TIMER)
    life.finish(0, 1, 2, 3)
    life.stopped()
    assert life.phase is phase


def test_ranks_that_have_all_ended_are_not_told_to_save() -> None:
    """The end was doubtful: the script had named more steps."""
    life = running()
    life.on(ProgressMarked(0, 3, total_steps=100))
    life.now = life.state.timers.deadlines[total_time.TIMER].at - 1.0
    life.finish(0, 1, 2, 3)
    assert "doubt" in life.state.timers.deadlines
    life.due(total_time.TIMER)
    assert life.state.underway.after is After.SUCCEED


def test_who_only_observes_stops_nothing() -> None:
    life = running(replace(POLICY, observe=True))
    life.due(total_time.TIMER)
    life.says("observing only, so gangrun stops nothing")
    assert life.phase is Phase.RUNNING
    assert total_time.TIMER not in life.state.timers.deadlines


def test_a_person_gives_the_run_as_much_time_again() -> None:
    life = up(running())
    life.on(ResumeRequested("a person", "k", 1))
    assert life.state.training == TrainingTime()
    next_job(life, "k", 1)
    taken_up(life)
    assert due_in_s(life) == pytest.approx(TOTAL_S)


def test_a_run_that_ended_for_another_reason_has_what_was_left() -> None:
    life = running()
    life.cancel()
    life.stopped()
    used = used_s(life)
    life.on(ResumeRequested("a person", "k", 1))
    assert used_s(life) == used > 0


def test_a_run_without_a_total_counts_and_has_no_timer() -> None:
    life = running(Policy())
    assert total_time.TIMER not in life.state.timers.deadlines
    life.on(ProgressMarked(0, 3), after_s=20.0)
    assert used_s(life) == pytest.approx(20.0)


def test_the_invariant_sees_a_job_and_an_attempt_after_the_end() -> None:
    life = Life(policy=Policy(can_requeue=True)).submitting()
    asked = replace(life.state, training=TrainingTime(TOTAL_S))
    before = replace(asked, underway=replace(asked.underway, submitting=False))
    assert invariants.check(before, asked, POLICY) == ("I7: a job is asked for although the run's total time is used",)
    begun = replace(Life().launching().state, training=TrainingTime(TOTAL_S))
    late = invariants.check(replace(begun, phase=Phase.CHECKING, underway=asked.underway), begun, POLICY)
    assert "I7: attempt 0 begins although the run's total time is used" in late


@pytest.mark.parametrize("total_s", [-1.0, 0.5, float("nan")])
def test_a_total_below_a_second_is_refused(total_s: float) -> None:
    with pytest.raises(PolicyError, match=r"total_time_s = .* must be 0 \(no limit\) or at least 1"):
        Policy(total_time_s=total_s)
    assert Policy(total_time_s=1.0).total_time_s == 1.0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (45, "45 s"), (3600, "1 h"), (5400, "1 h 30 min"), (90061, "25 h 1 min 1 s")]
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


def test_no_node_is_waited_for_when_the_time_is_used() -> None:
    life = spent(running(Policy(total_time_s=TOTAL_S)), TOTAL_S - 0.1)
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.stopped()
    assert life.phase is Phase.TIME_UP


def test_a_free_start_does_not_begin_when_the_time_is_used() -> None:
    """A new supervisor found an attempt that the journal does not know."""
    life = spent(running(), TOTAL_S - 0.1)
    life.on(TermTaken(1, life.state.job, (), (), 3))
    assert life.state.underway.after is After.AGAIN
    life.stopped()
    assert life.phase is Phase.TIME_UP
