"""A job whose successor is in the queue only ends, whoever supervises it."""

from __future__ import annotations

from gangrun.core.actions import EndJob
from gangrun.core.events import Stamped, TermTaken
from gangrun.core.lifecycle import step
from gangrun.core.model import Deadline, Phase, RunState, Shape
from gangrun.core.policy import Policy

LEAVING = RunState(
    run="r", shape=Shape(2, 2, 1, 1), job="7", seq=1, leaving=True, deadlines={"join": Deadline(3600.0, 1)}
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
    assert not decision.state.leaving
    assert decision.actions == ()
    assert decision.state.job == "8"
