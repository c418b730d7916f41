"""Supervisors that are of no use: stopped at birth, without a journal that can be read, in a job that is over."""

from __future__ import annotations

from gangrun.agent.brain import effects, facts
from tests.agent.stage import PEERS, Stage, dial
from tests.agent.test_brain_takeover import lonely


def test_a_supervisor_that_was_stopped_before_it_claimed_is_replaced_where_nobody_else_can():
    stage = Stage(roster_count=1, founder=True)
    stage.local(facts.TermFound(None))
    (first,) = stage.only(effects.SpawnSupervisor)
    assert (first.term_min, first.promises) == (1, ())
    for _ in range(59):
        stage.pass_s(1.0)
        stage.local(facts.TermFound(None))
    assert not stage.only(effects.SpawnSupervisor)
    stage.pass_s(2.0)
    (second,) = stage.only(effects.SpawnSupervisor)
    assert (second.term_min, second.promises) == (2, ("n1",)), (
        "its own word, or the warden would not start one beside it"
    )


def test_where_others_can_the_founders_warden_is_only_asked():
    stage = Stage(roster_count=3, founder=True)
    stage.local(facts.TermFound(None))
    stage.pass_s(62.0)
    first, second = stage.only(effects.SpawnSupervisor)
    assert (first.term_min, second.term_min, second.promises) == (1, 2, ())


def test_a_supervisor_that_claimed_and_is_being_born_is_not_called_stuck():
    stage = Stage(roster_count=1, founder=True)
    stage.local(facts.TermFound(None))
    stage.take()
    stage.peer(dial(1))
    stage.pass_s(4.0)
    assert not stage.only(effects.SpawnSupervisor)


def test_a_journal_that_nobody_can_use_is_given_up_with_the_words():
    stage = lonely()
    for count in range(1, 6):
        assert not stage.only(effects.Leave)
        stage.local(facts.SupervisorExited(78, 2))
        stage.pass_s(1.0)
        assert stage.brain.follow.asked.refusals_count == count
    (leave,) = stage.only(effects.Leave)
    assert leave.code == 78
    assert "a person must look" in leave.reason


def test_one_that_can_use_it_ends_the_count():
    stage = lonely()
    for _ in range(4):
        stage.local(facts.SupervisorExited(78, 2))
    stage.follow(2, candidates=PEERS, roster_count=5)
    stage.local(facts.SupervisorExited(78, 3))
    stage.pass_s(1.0)
    assert not stage.only(effects.Leave)


def test_an_agent_whose_run_went_on_in_another_job_leaves_once_that_is_certain():
    stage = Stage(roster_count=2, founder=True)
    for _ in range(7):
        stage.local(facts.TermFound(dial(3), "another"))
        assert not stage.only(effects.Leave), "its own job may be about to take a term"
        stage.local(facts.SupervisorExited(75, 4))
    stage.local(facts.TermFound(dial(3), "another"))
    (leave,) = stage.only(effects.Leave)
    assert (leave.code, leave.reason) == (0, "the run went on in job another")


def test_supervisors_that_end_the_job_and_do_not_let_this_agent_go_are_asked_for_more_and_more_rarely():
    """Each of them acks it, and is gone before its farewell gets through."""
    stage = lonely(3, PEERS[:3])
    asked_at: list[float] = []
    for term in range(2, 10):
        began = stage.now
        while not stage.brain.follow.asked.spawning:
            stage.pass_s(0.5)
        asked_at.append(stage.now - began)
        stage.follow(term, candidates=PEERS[:3], roster_count=3)
        stage.local(facts.SupervisorExited(0, term))
    assert all(asked_at[0] <= s <= 70 for s in asked_at), asked_at
    assert min(asked_at[5:]) > 60, asked_at
