"""What a node must prove, and questions that may never be answered."""

from __future__ import annotations

import threading

import pytest

from gangrun.agent import facts
from gangrun.agent.errands import Errands
from gangrun.agent.preflight import preflight
from tests.waiting import until


@pytest.mark.parametrize(
    ("given", "ok", "word"),
    [
        ({}, True, ""),
        ({"nofile_hard": 1025}, False, "needs 1026"),
        ({"nofile_hard": 1026}, True, ""),
        ({"probe": lambda: "cannot write to /runs"}, False, "cannot write"),
        ({"skew_s": lambda: 61.0}, True, "61 s apart"),
        ({"skew_s": lambda: -3600.0}, True, "3600 s apart"),
        ({"skew_s": lambda: 59.0}, True, ""),
        ({"cpus_asked": 8, "cpus_allowed": 1}, True, "1 of the 8 CPUs"),
        ({"cpus_asked": 8, "cpus_allowed": 8}, True, ""),
        ({"cpus_asked": None, "cpus_allowed": 1}, True, ""),
        ({"cpus_asked": 8, "cpus_allowed": 1, "skew_s": lambda: 61.0}, True, "apart; its ranks"),
    ],
)
def test_refusals_name_the_figure_and_poor_things_are_only_said(given, ok, word):
    facts_given = {"nofile_hard": 4096, "agents_count": 2, "probe": lambda: "", "skew_s": lambda: None, **given}
    checked = preflight(**facts_given)
    assert checked.ok is ok
    assert word in checked.why
    assert bool(checked.why) == bool(word)


def test_an_answer_is_taken_once_and_an_exception_is_one_too():
    errands = Errands()
    assert errands.take() == []
    errands.ask("fine", lambda: facts.Checked(True), lambda e: facts.Checked(False))
    assert until(errands.take, 5, "the answer") == [facts.Checked(True)]
    assert errands.take() == []

    def fails() -> facts.Fact:
        raise OSError("stale file handle")

    errands.ask("fine", fails, lambda e: facts.Checked(False, str(e)))
    assert until(errands.take, 5, "the answer") == [facts.Checked(False, "stale file handle")]


def test_one_of_a_kind_is_out_at_a_time_and_does_not_keep_others_back():
    errands, gate, asked = Errands(), threading.Event(), []

    def slow() -> facts.Fact:
        asked.append(1)
        gate.wait(10)
        return facts.TermFound(None)

    for _ in range(5):
        errands.ask("slow", slow, lambda e: facts.TermFound(None))
    errands.ask("other", lambda: facts.Checked(True), lambda e: facts.Checked(False))
    assert until(errands.take, 5, "the other answer") == [facts.Checked(True)]
    gate.set()
    assert until(errands.take, 5, "the slow answer") == [facts.TermFound(None)]
    assert len(asked) == 1
    errands.ask("slow", slow, lambda e: facts.TermFound(None))
    until(lambda: len(asked) == 2, 5, "asked again")
