"""A question about this node's memory, or a share of a checkpoint, is asked of the body once, and answered as often as
it is said.
"""

from __future__ import annotations

from gangrun.agent.brain import facts
from gangrun.wire.messages import CommandResult, MemoryAnswer, Recover, VerifyShare
from tests.agent.stage import Stage

QUESTION = Recover(1, (1, 7), 3)


def test_it_is_asked_once_and_answered_from_memory_later() -> None:
    stage = Stage().follow()
    assert stage.sup(QUESTION) == [QUESTION]
    assert stage.sup(QUESTION) == []
    stage.local(facts.DiskTaskDone(QUESTION, True, answer=MemoryAnswer(())))
    [answer] = stage.only(CommandResult)
    assert (answer.ok, answer.act, answer.answer) == (True, (1, 7), MemoryAnswer(()))
    stage.sup(QUESTION)
    assert stage.only(CommandResult) == [answer]


def test_two_of_them_are_not_taken_for_each_other_and_what_nobody_asked_is_not_said() -> None:
    stage = Stage().follow()
    stage.sup(QUESTION)
    written = Recover(1, (1, 8), 3, "/into", 5, "ab", ("0",))
    stage.sup(written)
    stage.local(facts.DiskTaskDone(written, False, "No space left on device"))
    stage.local(facts.DiskTaskDone(Recover(1, (1, 9), 3), True))
    assert [(one.act, one.ok, one.why) for one in stage.only(CommandResult)] == [
        ((1, 8), False, "No space left on device")
    ]


def test_a_share_of_a_checkpoint_is_read_once_without_a_lease_and_answered_as_often_as_it_is_said() -> None:
    stage = Stage().follow()
    asked = VerifyShare(1, (1, 7), "/ckpt/step-5", "ab", 1, 3)
    assert stage.sup(asked) == [asked]
    assert stage.sup(asked) == []
    stage.local(facts.DiskTaskDone(QUESTION, True))  # another question's answer
    stage.local(facts.DiskTaskDone(asked, False, "__1_0.distcp is damaged"))
    stage.sup(asked)
    answers = [(one.ok, one.why) for one in stage.only(CommandResult)]
    assert answers == [(False, "__1_0.distcp is damaged")] * 2
