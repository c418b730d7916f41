"""An exit code of 0 is the end of a run only if its goal is reached, as far as anybody knows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import StartGang, SubmitSuccessor
from gangrun.core.events import CancelRequested, FirstStepSeen, GangStarted, Notice, NoticeKind, RankFinished
from gangrun.core.model import Failure, Phase
from gangrun.core.policy import Policy
from tests.core.life import Life, saved

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


def test_without_a_goal_0_is_taken_for_the_end_and_that_is_said() -> None:
    life = ended(Life().running(), 7)
    life.says("exit code 0 is taken for the end, as no goal is known (--total-steps)")
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and life.state.reason == "all ranks finished at step 7"


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
