"""What never reaches the table: duplicates, other jobs, other attempts, agents that were replaced; each counts once."""

from __future__ import annotations

from gangrun.core.events import AgentJoined, AgentRejoined, DeadlinePassed, NodeSilent
from gangrun.core.model import Origin, Outcome, Phase
from tests.core.life import Life, at


def origin(seq: int, incarnation: str = "i-n0", node: str = "n0", job: str = "j") -> Origin:
    return Origin(job, node, "b-n0", incarnation, seq)


def test_an_event_counts_once_whatever_becomes_of_it() -> None:
    life = Life().running()
    life.on(life.died(0, code=None, signal=9), origin=origin(1))
    assert life.phase is Phase.STOPPING
    life.on(life.died(0, code=None, signal=9), origin=origin(1))
    assert life.answer.outcome is Outcome.IGNORED
    life.says("said before", "event 1 of n0")
    life = Life()
    life.checked()
    life.on(life.died(0), origin=origin(4))
    assert life.answer.outcome is Outcome.REFUSED
    assert life.state.marks == {"n0": ("i-n0", 4)}
    life.on(life.died(0), origin=origin(3))
    life.says("said before")
    assert life.state.marks == {"n0": ("i-n0", 4)}


def test_another_job_is_not_this_one() -> None:
    life = Life().running()
    life.on(life.died(0), origin=origin(1, job="older"))
    assert life.answer.outcome is Outcome.IGNORED
    life.says("job older", "job j")


def test_an_agent_that_was_replaced_says_nothing_more_and_makes_nothing_new_again() -> None:
    life = Life().running()
    life.on(AgentRejoined("n0", "i2", "b-n0", 2), origin=origin(1, "i2"))
    life.on(life.died(0), origin=origin(2, "i2"))
    marks = life.state.marks
    life.on(life.died(1), origin=origin(9, "i-n0"))
    assert life.answer.outcome is Outcome.IGNORED
    life.says("n0", "replaced")
    assert life.state.marks == marks
    life.on(life.died(0), origin=origin(2, "i2"))
    life.says("said before")


def test_a_new_agents_first_word_counts_though_its_number_is_low() -> None:
    life = Life().running()
    life.on(life.died(0), origin=origin(7))
    life.on(AgentRejoined("n0", "i2", "b-n0", 2), origin=origin(1, "i2"))
    assert life.answer.outcome is Outcome.APPLIED
    assert life.state.marks == {"n0": ("i2", 1)}


def test_an_agent_of_which_nobody_knows_yet_may_speak() -> None:
    life = Life()
    life.on(AgentJoined("n0", "i", "b", 2), origin=origin(1, "i"))
    assert life.state.marks == {"n0": ("i", 1)}
    life.on(NodeSilent("x9", 1.0), origin=origin(1, "i", "x9"))
    assert life.state.marks["x9"] == ("i", 1)


def test_other_attempts_and_old_timers_are_over() -> None:
    life = Life().running()
    died = life.died(0)
    life.exit(1)
    life.stopped()
    life.ignored(died, "attempt 0", "attempt 1")
    life.ignored(DeadlinePassed("stop", 1), "stop")
    timer = life.state.timers.deadlines["seal"]
    life.ignored(DeadlinePassed("seal", timer.generation + 1), "seal")


def test_ignored_words_do_not_make_a_run_look_alive() -> None:
    life = at(Phase.RUNNING)
    before = life.state.updated_at
    life.on(life.died(0), after_s=50.0, origin=origin(1, job="older"))
    assert life.state.updated_at == before
