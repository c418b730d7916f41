"""A question about this node's memory is asked of the body once, and answered as often as it is said."""

from __future__ import annotations

from gangrun.agent import effects, facts
from gangrun.wire.messages import CommandResult, Rescue
from tests.agent.stage import Stage

QUESTION = Rescue(1, (1, 7), 3)


def test_it_is_asked_once_and_answered_from_memory_later() -> None:
    stage = Stage().follow()
    assert stage.sup(QUESTION) == [effects.RescueSteps(QUESTION)]
    assert stage.sup(QUESTION) == []
    stage.local(facts.Rescued(1, (1, 7), True, data={"steps": []}))
    [answer] = stage.only(CommandResult)
    assert (answer.ok, answer.act, answer.data) == (True, (1, 7), {"command": "Rescue", "steps": []})
    stage.sup(QUESTION)
    assert stage.only(CommandResult) == [answer]


def test_two_of_them_are_not_taken_for_each_other_and_what_nobody_asked_is_not_said() -> None:
    stage = Stage().follow()
    stage.sup(QUESTION)
    stage.sup(Rescue(1, (1, 8), 3, "/into", 5, "ab", ("0",)))
    stage.local(facts.Rescued(1, (1, 8), False, "No space left on device"))
    stage.local(facts.Rescued(1, (1, 9), True))
    assert [(one.act, one.ok, one.why) for one in stage.only(CommandResult)] == [
        ((1, 8), False, "No space left on device")
    ]
