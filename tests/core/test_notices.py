"""Notices of the scheduler, what people ask of a run that trains, and runs that only observe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import SaveGang, StopGang, TakeStacks
from gangrun.core.events import (
    CancelRequested,
    DeadlinePassed,
    FindingRaised,
    FirstStepSeen,
    GangStarted,
    Notice,
    NoticeKind,
    ProgressStalled,
    RankExited,
    SaveAnswered,
    SaveRequested,
    StacksTaken,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.evidence import NodeFinding, RankObservation, RankStack
from gangrun.core.machine.transitions import WHY
from gangrun.core.model import TERMINAL, After, Failure, Inventory, Origin, Outcome, Phase, RankAlive
from gangrun.core.policy import Policy
from tests.core.life import Life, at, fatal, saved

# ---- asking the scheduler why ----------------------------------------------------------------------------------------


SCHEDULER = Policy(can_requeue=True)
ON_N1 = Origin("j", "n1", "b-n1", "i-n1", 1)


def asks(life: Life, grace_s: float = 30.0) -> None:
    life.on(Notice(NoticeKind.UNKNOWN, grace_s, asking=True))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in TERMINAL])
def test_an_agents_word_alone_stops_nothing_and_no_answer_stops_all(phase: Phase) -> None:
    life = at(phase)
    due = dict(life.state.timers.deadlines)
    asks(life)
    life.says("received SIGTERM; asking the scheduler for the reason")
    assert (life.phase, life.actions) == (phase, ())
    assert set(life.state.timers.deadlines) == {*due, WHY}
    assert life.state.timers.deadlines[WHY].at == life.now + 15.0
    life.ignored(Notice(NoticeKind.UNKNOWN, 30.0, asking=True), "too")
    life.due(WHY)
    assert WHY not in life.state.timers.deadlines
    if phase is Phase.WAITING:
        assert life.state.underway.submitting, "why the nodes go is known: the run goes on elsewhere"
        return
    assert life.phase in {Phase.STOPPING, Phase.CANCELLED}
    assert life.state.ending.cancelled_by == "a signal"


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase in TERMINAL])
def test_after_the_end_nobody_asks(phase: Phase) -> None:
    life = at(phase)
    life.ignored(Notice(NoticeKind.UNKNOWN, 30.0, asking=True))


def test_it_says_on_which_node() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.UNKNOWN, 30.0, asking=True), origin=ON_N1)
    life.says("n1 received SIGTERM")


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_the_answer_decides_and_ends_the_wait(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).running()
    asks(life)
    life.on(Notice(kind, 28.0))
    assert WHY not in life.state.timers.deadlines
    stops = {NoticeKind.CANCEL: After.CANCEL, NoticeKind.UNKNOWN: After.CANCEL, NoticeKind.REQUEUE: After.RETURN}
    assert life.state.underway.after is stops.get(kind, After.REQUEUE)


def test_maintenance_says_which_reservation_takes_which_nodes() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.MAINTENANCE, 90.0, about="reservation firmware on n2"))
    assert life.state.underway.after is After.REQUEUE
    assert "maintenance (reservation firmware on n2): 90 s to save and stop" in life.reason


def test_the_wait_goes_on_through_other_phases_and_terms() -> None:
    life = Life(policy=SCHEDULER).launching()
    asks(life)
    at_s = life.state.timers.deadlines[WHY]
    life.on(StoreStalled(life.now - 5.0))
    life.on(StoreBack(6.0))
    life.on(GangStarted(0))
    held = tuple(Inventory(name, 0, tuple(RankAlive(r, 1, 1) for r in range(2))) for name in life.names)
    life.on(TermTaken(1, "j", held, (), 0))
    life.exit(0)
    assert (life.phase, life.state.timers.deadlines[WHY]) == (Phase.STOPPING, at_s)
    life.on(Notice(NoticeKind.TIME_LIMIT, 20.0))
    asks(life)
    life.due(WHY)
    assert life.state.underway.after is After.REQUEUE, (
        "a signal whose reason nobody knows does not undo one that is known"
    )
    asks(life)
    life.on(TermTaken(2, "k", (), (), 0))
    assert WHY not in life.state.timers.deadlines, "the signal was meant for the job before"


@pytest.mark.parametrize(
    ("signalled_s", "answer_s", "save_s"),
    [(90.0, 20.0, 7.5), (90.0, 3600.0, 60.0), (20.0, 3600.0, 7.5)],
)
def test_where_nobody_says_why_the_sooner_end_counts(signalled_s: float, answer_s: float, save_s: float) -> None:
    """An agent knows how patient it is, and the scheduler's silence how soon it kills."""
    life = Life(policy=SCHEDULER).running()
    asks(life, signalled_s)
    life.on(Notice(NoticeKind.UNKNOWN, answer_s))
    assert life.last(StopGang).checkpoint_grace_s == pytest.approx(save_s, abs=0.1)


def test_a_signal_that_no_scheduler_sent_takes_no_nodes_away() -> None:
    life = Life().running()
    life.on(Notice(NoticeKind.UNKNOWN, 5.0))
    assert (life.state.ending.gone_at, life.last(StopGang).grace_s) == (None, 10.0)


def test_an_answer_after_the_wait_is_no_news_and_an_old_timer_none_either() -> None:
    life = Life(policy=SCHEDULER).running()
    asks(life)
    due = life.state.timers.deadlines[WHY]
    life.on(Notice(NoticeKind.PREEMPTION, 25.0))
    life.ignored(DeadlinePassed(WHY, due.generation), "already over")


@pytest.mark.parametrize(
    ("within_s", "stop_s", "save_s"),
    [(600.0, 10.0, 60.0), (60.0, 10.0, 45.0), (30.0, 10.0, 15.0), (15.0, 5.0, 5.0), (6.0, 2.0, 2.0), (0.0, 0.0, 0.0)],
)
def test_saving_and_stopping_fit_into_the_time_that_is_left(within_s: float, stop_s: float, save_s: float) -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, within_s))
    stop = life.last(StopGang)
    assert (stop.grace_s, stop.checkpoint_grace_s, stop.checkpoint_first) == (stop_s, save_s, save_s > 0)


def test_a_save_that_was_measured_gets_twice_its_time_if_that_is_left() -> None:
    for within_s, save_s, words in ((300.0, 180.0, ""), (150.0, 135.0, "so a save gets 1.4e+02 of its 180 s")):
        life = Life(policy=SCHEDULER).running()
        life.on(Notice(NoticeKind.TIME_LIMIT, within_s, save_s=90.0))
        assert life.last(StopGang).checkpoint_grace_s == pytest.approx(save_s, abs=10.0)
        assert words in life.state.reason and ("gets" in life.state.reason) == bool(words)


@pytest.mark.parametrize(
    ("within_s", "words"), [(6.0, "; the nodes go in 6 s, so a save gets 2 of its 60 s"), (90.0, "")]
)
@pytest.mark.parametrize("kind", [NoticeKind.PREEMPTION, NoticeKind.CANCEL])
def test_that_there_is_too_little_time_to_save_is_said(kind: NoticeKind, within_s: float, words: str) -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(kind, within_s))
    assert life.state.reason.endswith(words) and ("gets" in life.state.reason) == bool(words)
    if kind is NoticeKind.PREEMPTION:
        life.stopped()
        assert words in life.state.attempts[0].reason


def test_of_time_that_is_over_nothing_is_said() -> None:
    life = Life(policy=SCHEDULER).running()
    asks(life, 1.0)
    life.on(FindingRaised(fatal("n1")), after_s=5.0)
    assert "gets" not in life.state.reason


def test_whoever_takes_over_has_only_what_is_left_of_it() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 60.0))
    life.now += 30.0
    life.on(TermTaken(1, "j", (), (), 0))
    stop = life.last(StopGang)
    assert stop.checkpoint_first and stop.grace_s == 10.0
    assert stop.checkpoint_grace_s == pytest.approx(15.0, abs=0.3)
    life.now += 60.0
    life.on(TermTaken(2, "j", (), (), 0))
    assert life.last(StopGang).checkpoint_grace_s is None, "the time is over and the nodes are still there"


@pytest.mark.parametrize(("seq", "phase"), [(0, Phase.WAITING), (1, Phase.FAILED), (2, Phase.FAILED)])
def test_after_the_last_of_its_jobs_the_run_asks_for_no_other(seq: int, phase: Phase) -> None:
    life = Life(policy=Policy(can_requeue=True, jobs_max_count=2)).running()
    life.state = replace(life.state, seq=seq)
    life.on(Notice(NoticeKind.TIME_LIMIT, 30.0))
    life.stopped()
    assert life.phase is phase
    if phase is Phase.FAILED:
        life.says("time limit", f"no other job is asked for: this was job {seq + 1} of 2 (--max-jobs)")
        assert life.state.ending.failure is Failure.BUDGET


def test_a_stop_that_cannot_be_proven_leaves_the_place_to_the_job_that_comes_back() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.REQUEUE, 30.0))
    while life.phase is Phase.STOPPING:
        life.due("stop")
    assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 0, True)
    assert life.state.fence.nodes == ("n0", "n1")


def test_a_rank_that_falls_after_the_word_is_judged_as_any_other() -> None:
    life = Life().running()
    asks(life)
    life.on(RankExited(0, life.died(1).exit))
    life.stopped()
    assert life.phase is Phase.STARTING
    assert WHY in life.state.timers.deadlines
    assert life.answer.outcome is Outcome.APPLIED


# ---- ``--observe``: everything is seen, concluded and told; nothing that still trains is stopped ---------------------


OBSERVED = (RankObservation(0, "n0", "S", 5, 0.0), RankObservation(1, "n0", "T", 5, 0.0))


def watched(*, can_requeue: bool = False) -> Life:
    return Life(policy=Policy(observe=True, can_requeue=can_requeue)).running()


def stall(life: Life, stalled_s: float = 40.0) -> None:
    life.on(ProgressStalled(life.state.attempt.number, stalled_s, 30.0, OBSERVED))


def test_a_hang_is_told_with_what_would_follow_and_training_goes_on() -> None:
    life = watched()
    stall(life)
    assert life.last(TakeStacks).attempt == 0
    life.on(StacksTaken(0, (RankStack(1, "n0", "sleep (train.py:3)", ""),)))
    assert (life.phase, life.count(StopGang)) == (Phase.RUNNING, 0)
    life.says("hung", "40 s", "rank 1", "observing only, so training goes on", "restarting in place")
    assert life.state.reason == life.reason
    assert "stacks" not in life.state.timers.deadlines
    life.ignored(StacksTaken(0, ()), "nobody asked")
    life.mark(6)
    life.says("the ranks do not hang")
    assert (life.state.reason, life.state.attempt.evidence.hang) == (life.reason, None)


def test_a_hang_that_lasts_is_looked_at_again_and_stacks_may_be_missing() -> None:
    life = watched()
    stall(life)
    stall(life)
    assert life.answer.outcome is Outcome.IGNORED
    life.due("stacks")
    life.says("40 s", "training goes on")
    stall(life, 80.0)
    life.due("stacks")
    life.says("80 s", "training goes on")
    assert (life.phase, life.count(StopGang), life.count(TakeStacks)) == (Phase.RUNNING, 0, 2)


def test_a_fatal_finding_is_told_once_and_excludes_nobody() -> None:
    life = watched(can_requeue=True)
    life.on(FindingRaised(fatal("n0")))
    life.says("n0", "observing only", "all ranks would be stopped")
    assert life.state.reason == life.reason
    life.on(FindingRaised(fatal("n0")))
    assert "observing" not in life.reason
    assert (life.phase, life.count(StopGang), dict(life.state.health.excluded)) == (Phase.RUNNING, 0, {})


def test_a_script_that_starts_over_is_told_and_let_be() -> None:
    life = Life(policy=Policy(observe=True)).running(saved(20))
    life.on(FirstStepSeen(0, 3))
    life.says("started over", "20", "observing only")
    assert (life.phase, life.count(StopGang)) == (Phase.RUNNING, 0)
    assert life.state.attempt.step == 3
    life.exit(0, code=1)
    life.stopped()
    life.says("exit code 1")


def test_a_rank_that_dies_ends_the_run_with_its_own_result() -> None:
    life = watched()
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("rank 0 on n0", "SIGKILL", "restarting in place", "observing only")
    assert life.state.attempts[0].outcome == "killed"


def test_nobody_is_excluded_for_what_a_rank_died_of() -> None:
    life = watched(can_requeue=True)
    life.on(FindingRaised(NodeFinding("n0", "gpu lost", True, "GPU 0 of n0 is lost")))
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.says("GPU 0 of n0", "observing only")
    assert (life.phase, life.state.ending.failure, dict(life.state.health.excluded)) == (Phase.FAILED, Failure.NODE, {})


def test_what_would_have_ended_the_run_anyway_ends_it_the_same() -> None:
    life = Life(policy=Policy(observe=True, restarts_max_count=0)).running()
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.BUDGET)
    assert "observing" not in life.reason


def test_a_person_asks_for_a_checkpoint_while_ranks_train() -> None:
    life = Life(2)
    life.refused(SaveRequested("ada", "k"), "no rank trains now")
    life.running()
    life.on(SaveRequested("ada", "k"))
    assert (life.phase, life.actions) == (Phase.RUNNING, (SaveGang(0, "k"),))
    life.says("ada asked for a checkpoint")
    life.on(SaveAnswered(0, "k", 7))
    life.says("saved when asked, at step 7")
    life.on(SaveAnswered(0, "k", why="rank 1 ended before all ranks had saved"))
    life.says("no checkpoint was saved on request: rank 1 ended")
    life.ignored(SaveAnswered(1, "k", 7), "of attempt 1")


def test_ranks_that_are_killed_because_they_do_not_end_in_time_are_named_where_they_could_have_saved() -> None:
    life = Life().running()
    life.on(CancelRequested("Ctrl-C"))
    life.stopped(overdue=(1,), grace_s=90.0)
    assert life.reason == "cancelled by Ctrl-C (rank 1 did not end within 1 min 30 s of SIGTERM and was killed)"
    life = Life().running()
    life.on(CancelRequested("Ctrl-C"))
    life.stopped(overdue=(0, 1), grace_s=2.0, leftovers=("/dev/shm/psm_x",))
    life.says("(left behind: /dev/shm/psm_x; ranks 0-1 did not end within 2 s of SIGTERM and were killed)")
    life = Life().running()
    life.on(CancelRequested("Ctrl-C"))
    life.stopped(saved_step=149)
    assert life.reason == "cancelled by Ctrl-C (the script saved step 149 first)"
    life = Life().stopping()
    life.stopped(overdue=(1,), grace_s=2.0)
    assert "SIGTERM" not in life.reason, "after a failure ranks wait for each other, and their end tells nothing"
