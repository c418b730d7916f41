"""An exit code of 0 is the end of a run only if its goal is reached, as far as anybody knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.actions import StartGang, SubmitSuccessor
from gangrun.core.events import (
    CancelRequested,
    FirstStepSeen,
    GangStarted,
    Notice,
    NoticeKind,
    ProgressMarked,
    RankExited,
    RankFinished,
)
from gangrun.core.evidence import RankExit
from gangrun.core.model import Failure, Phase
from gangrun.core.policy import Policy
from tests.core.life import BUG, Life, saved

GOAL = Policy(total_steps=1000)


def ended(life: Life, step: int = -1, log_reach: int = -1) -> Life:
    """All ranks end with 0; rank 0 alone reports or prints."""
    for rank in range(4):
        told = (step, log_reach) if rank == 0 else (-1, -1)
        life.on(RankFinished(life.state.attempt.number, rank, life.holder(rank), life.now, *told))
    assert life.phase is Phase.STOPPING
    return life


@pytest.mark.parametrize(
    ("reported", "printed", "resumed", "words"),
    [
        (999, -1, None, "finished at step 999 of 1000"),  # counted from 0
        (1000, -1, None, "finished at step 1000 of 1000"),
        (-1, -1, 1000, "finished at step 1000 of 1000"),  # nothing was left to do
        (-1, 1000, None, "their log does not contradict 1000 steps"),
        (-1, 100, 900, "their log does not contradict 1000 steps"),  # printed from 1 in each attempt
        (-1, -1, None, "no step was seen to compare with 1000"),
        (-1, -1, 500, "no step was seen to compare with 1000"),
    ],
)
def test_a_goal_that_is_reached_ends_the_run(reported: int, printed: int, resumed: int | None, words: str) -> None:
    life = ended(Life(policy=GOAL).running(None if resumed is None else saved(resumed)), reported, printed)
    life.says("all 4 ranks finished", words)
    life.stopped()
    assert life.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("reported", "printed", "resumed", "words"),
    [
        (998, -1, None, "exit code 0 at step 998 of 1000, so the run is not finished"),
        (700, 1000, 500, "exit code 0 at step 700 of 1000"),  # what is reported counts for more
        (-1, 700, None, "at step 700 of 1000 at most (from the log)"),
        (-1, 200, 500, "at step 700 of 1000 at most (from the log)"),
    ],
)
def test_a_goal_that_is_not_reached_means_another_attempt(
    reported: int, printed: int, resumed: int | None, words: str
) -> None:
    life = ended(Life(policy=GOAL).running(None if resumed is None else saved(resumed)), reported, printed)
    life.says("ended with exit code 0", words)
    life.stopped()
    life.says(words)
    assert life.phase is Phase.STARTING and life.state.attempts[0].outcome == "left early"
    assert not life.state.health.suspicion, "no node did this"


def again(life: Life, loaded: int) -> None:
    """The next attempt runs."""
    if life.phase is Phase.WAITING:
        life.due("backoff")
    life.again(saved(loaded))
    life.on(GangStarted(life.state.attempt.number))


def test_the_same_end_at_the_same_step_is_the_scripts_and_one_farther_on_is_not() -> None:
    life = Life(policy=replace(GOAL, restarts_max_count=1)).running()
    for step in (100, 200, 300, 400):  # a limit of time of the script's own: each attempt comes farther
        life.on(FirstStepSeen(life.state.attempt.number, step - 99))
        ended(life, step).stopped()
        again(life, step)
    ended(life, 400).stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("exit code 0 at step 400 of 1000", "failed in the same way")


def test_without_a_goal_0_is_taken_for_the_end() -> None:
    life = ended(Life().running(), 7)
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and life.state.reason == "all 4 ranks finished at step 7"


def of_script(life: Life, step: int, total: int, log_step: int = -1) -> Life:
    """All ranks end with 0; rank 0 alone reports, or prints, with how many steps there are."""
    for rank in range(4):
        told = (step, log_step, log_step, total, 2.5) if rank == 0 else ()
        life.on(RankFinished(life.state.attempt.number, rank, life.holder(rank), life.now, *told))
    return life


@pytest.mark.parametrize(("reported", "printed"), [(59, -1), (60, -1), (-1, 60)])
def test_a_script_that_reaches_the_goal_that_it_names_has_finished(reported: int, printed: int) -> None:
    life = of_script(Life().running(), reported, 60, printed)
    assert life.phase is Phase.STOPPING
    life.says(f"finished at step {max(reported, printed)} of 60" + (" (from the log)" if printed > 0 else ""))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED
    assert life.state.attempt.loss == 2.5


@pytest.mark.parametrize(("reported", "printed"), [(34, -1), (-1, 34)])
def test_a_script_that_stops_early_on_purpose_is_not_trained_again(reported: int, printed: int) -> None:
    life = of_script(Life().running(), reported, 60, printed)
    assert life.phase is Phase.RUNNING, "a node may have been told to end just now"
    life.says("the last one; listening whether a node was told to end")
    life.due("doubt")
    life.says("finished at step 34", "ended by itself before the 60 steps that it named", "--total-steps 60")
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and "ended by itself" in life.state.reason


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_script_that_stops_early_as_its_node_is_told_to_end_goes_on(asked_first: bool) -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    asked = Notice(NoticeKind.UNKNOWN, 60.0, asking=True)
    if asked_first:
        life.on(asked)
    of_script(life, 34, 60)
    if not asked_first:
        life.on(asked)
        life.due("doubt")
    life.says("at step 34 of 60, so the run is not finished: a node was told to end")
    life.on(Notice(NoticeKind.PREEMPTION, 55.0))
    life.stopped()
    assert life.last(SubmitSuccessor)


def test_a_script_that_has_done_all_is_finished_though_its_node_is_told_to_end() -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(Notice(NoticeKind.UNKNOWN, 60.0, asking=True))
    of_script(life, 60, 60).stopped()
    assert life.phase is Phase.SUCCEEDED


def test_a_notice_that_comes_while_finished_ranks_are_cleaned_up_changes_nothing() -> None:
    life = ended(Life(policy=Policy(can_requeue=True)).running(), 7)
    life.on(Notice(NoticeKind.UNKNOWN, 60.0, asking=True))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and life.state.reason == "all 4 ranks finished at step 7"


THREAD = "terminate called without an active exception"


def crash(life: Life, rank: int, **what: Any) -> Life:
    """A rank's process aborts."""
    how = {"signal": 6, **what}
    died = RankExit(rank, life.holder(rank), how.pop("code", None), how.pop("signal"), at=life.now, **how)
    life.on(RankExited(life.state.attempt.number, died))
    return life


@pytest.mark.parametrize(
    ("goal", "what"),
    [
        (0, {"script_ended": True}),
        (0, {"script_ended": True, "signal": 11}),
        (60, {"tail": ("wandb: done", THREAD), "step": 59}),
        (60, {"tail": (THREAD,), "log_step": 60, "log_reach": 60}),
        (0, {"tail": (THREAD,), "step": 60, "total_steps": 60}),
        (60, {"tail": (THREAD,), "step": 60, "code": 134, "signal": None}),
    ],
)
def test_a_crash_after_the_end_of_the_script_is_no_failure(goal: int, what: dict[str, Any]) -> None:
    life = Life(policy=Policy(total_steps=goal)).running()
    for rank in range(3):
        life.on(RankFinished(0, rank, life.holder(rank), life.now))
    crash(life, 3, **what)
    life.says("all 4 ranks finished", "then 1 process crashed on the way out, after the training, so nothing is lost")
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and "1 process crashed" in life.state.reason
    assert life.state.budget.total_count == 0


def test_crashes_after_the_end_are_counted_in_words() -> None:
    life = Life().running()
    for rank in range(2):
        life.on(RankFinished(0, rank, life.holder(rank), life.now))
    for rank in (2, 3):
        crash(life, rank, script_ended=True)
    life.says("all 4 ranks finished", "then 2 processes crashed on the way out")


@pytest.mark.parametrize(
    ("goal", "what"),
    [
        (60, {"tail": (THREAD,), "step": 30}),  # in the middle
        (0, {"tail": (THREAD,), "step": 60}),  # nobody knows the goal
        (60, {"tail": ("free(): invalid pointer",), "step": 60}),  # perhaps in the last save
        (60, {"tail": (THREAD,), "step": 60, "signal": 9}),
        (60, {"script_ended": True, "signal": 9, "oom_kill": True, "step": 60}),
        (60, {"script_ended": True, "error": BUG, "step": 60}),
    ],
)
def test_a_crash_that_may_have_cost_something_is_a_failure(goal: int, what: dict[str, Any]) -> None:
    life = crash(Life(policy=Policy(total_steps=goal)).running(), 0, **what)
    life.stopped()
    assert life.phase is Phase.STARTING


def test_a_crash_after_a_script_that_ended_before_the_goal_is_judged_as_an_exit_code_of_0_is() -> None:
    life = Life(policy=GOAL).running()
    for rank in range(4):
        crash(life, rank, script_ended=True, step=400)
    life.stopped()
    assert life.phase is Phase.STARTING and "at step 400 of 1000" in life.state.attempts[0].reason


def test_ranks_that_leave_with_0_as_a_job_ends_have_not_finished() -> None:
    """A wrapper passes the scheduler's SIGTERM on, and Lightning leaves with 0 before Slurm says why it came."""
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(Notice(NoticeKind.UNKNOWN, 60.0, asking=True))
    ended(life).says("just after a node was told to end", "not taken for finished")
    life.on(Notice(NoticeKind.PREEMPTION, 55.0))
    life.stopped()
    assert life.last(SubmitSuccessor)


@pytest.mark.parametrize("goal", [0, 1000])
@pytest.mark.parametrize("kind", [NoticeKind.PREEMPTION, NoticeKind.TIME_LIMIT])
def test_ranks_that_leave_with_0_once_asked_go_on_in_the_next_job(goal: int, kind: NoticeKind) -> None:
    life = Life(policy=Policy(can_requeue=True, total_steps=goal)).running()
    life.on(Notice(kind, 60.0))
    ended(life, 500).stopped()
    assert life.phase is Phase.WAITING and life.last(SubmitSuccessor)


@pytest.mark.parametrize("goal", [0, 400])
def test_ranks_that_leave_with_0_after_a_cancel_are_cancelled(goal: int) -> None:
    life = Life(policy=Policy(total_steps=goal)).running()
    life.on(CancelRequested("ann"))
    ended(life, 500).stopped()
    assert life.phase is Phase.CANCELLED
    assert not [one for one in life.asked if isinstance(one, StartGang)][1:]


def test_a_total_that_a_file_told_long_before_the_end_is_no_reason_for_doubt() -> None:
    """trainer_state.json is as old as the newest checkpoint, so nobody knows how far the script got."""
    life = Life().running()
    life.on(ProgressMarked(0, 40, printed=True, total_steps=60))
    assert life.state.attempt.total_steps == 60
    ended(life).stopped()
    assert life.phase is Phase.SUCCEEDED and life.state.reason == "all 4 ranks finished"


# ---- resumed, or begun again? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{"written": True}, {"printed": True, "total_steps": 1000}, {}])
@pytest.mark.parametrize("observe", [False, True])
def test_a_script_that_began_again_is_stopped(first: dict[str, Any], observe: bool) -> None:
    life = Life(policy=replace(GOAL, observe=observe)).running(saved(500))
    life.on(FirstStepSeen(0, 10, **first))
    what = "the first step that it wrote to a file" if "written" in first else "its first step"
    life.says(f"the script started over: {what} is 10, but it was told to resume from step 500")
    assert life.phase is (Phase.RUNNING if observe else Phase.STOPPING)
    assert life.state.attempt.step == (10 if observe and not first else -1)


def test_a_file_of_a_lower_step_is_no_proof_against_the_scripts_own_word() -> None:
    life = Life().running(saved(500))
    life.on(FirstStepSeen(0, 501))
    life.ignored(FirstStepSeen(0, 3, written=True), "it wrote step 3 to a file, but resumed")
    assert life.phase is Phase.RUNNING


@pytest.mark.parametrize(("goal", "total"), [(0, 1000), (1000, -1), (1000, 267), (0, -1)])
def test_a_counter_that_may_count_anew_is_no_proof(goal: int, total: int) -> None:
    life = Life(policy=Policy(total_steps=goal)).running(saved(500))
    life.on(FirstStepSeen(0, 1, printed=True, total_steps=total))
    life.says("the first step printed is 1", "resume from step 500", "anew in each attempt, or it started over")
    assert life.phase is Phase.RUNNING and life.state.reason == life.reason


@pytest.mark.parametrize("first", [{"written": True}, {"printed": True, "total_steps": 1000}])
def test_what_goes_on_after_the_checkpoint_is_well(first: dict[str, Any]) -> None:
    life = Life(policy=GOAL).running(saved(500))
    life.on(FirstStepSeen(0, 501, **first))
    life.says("first step of attempt 0: 501")
    assert life.phase is Phase.RUNNING and life.state.attempt.step == -1, "it may be far behind"
