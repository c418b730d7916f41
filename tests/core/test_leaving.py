"""A job whose successor is in the queue only ends, whoever supervises it."""

from __future__ import annotations

from gangrun.core.actions import EndJob, SubmitSuccessor
from gangrun.core.events import Notice, NoticeKind, Stamped, TermTaken
from gangrun.core.machine.lifecycle import step
from gangrun.core.model import Deadline, Ending, Phase, RunState, Shape, Timers
from gangrun.core.policy import Policy

LEAVING = RunState(
    run="r",
    shape=Shape(2, 2, 1, 1),
    job="7",
    seq=1,
    ending=Ending(leaving=True),
    timers=Timers(deadlines={"join": Deadline(3600.0, 1)}),
)


def taken_by(job: str):
    return step(LEAVING, Stamped(TermTaken(3, job, (), (), -1)), 10.0, Policy())


def test_a_new_term_in_the_old_job_ends_it():
    decision = taken_by("7")
    assert decision.state.phase is Phase.PENDING
    assert [(type(action), action.phase) for action in decision.actions] == [(EndJob, Phase.PENDING)]
    assert "this one ends" in decision.reason


def test_the_next_job_begins():
    decision = taken_by("8")
    assert not decision.state.ending.leaving
    assert decision.actions == ()
    assert decision.state.job == "8"


def test_a_job_that_a_person_asked_for_holds_its_own_place_and_asks_for_the_one_after_it():
    """Nobody was left to ask. Else this job would find itself in the queue, and end for its own sake."""
    policy = Policy(can_requeue=True)
    taken = step(LEAVING, Stamped(TermTaken(3, "9", (), (), -1, seq=2)), 10.0, policy).state
    assert taken.seq == 2
    leaves = step(taken, Stamped(Notice(NoticeKind.PREEMPTION, 30.0)), 11.0, policy)
    assert [action.seq for action in leaves.actions if isinstance(action, SubmitSuccessor)] == [3]


def test_a_job_that_only_ends_does_not_ask_twice_for_the_next_place():
    assert step(LEAVING, Stamped(TermTaken(3, "7", (), (), -1, seq=0)), 10.0, Policy()).state.seq == 1
