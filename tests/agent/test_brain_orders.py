"""Commands and attempts: what is obeyed, refused, repeated from memory."""

from __future__ import annotations

import pytest

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.orders import ANSWERS_MAX
from gangrun.core.events import StacksTaken
from gangrun.core.evidence import RankStack
from gangrun.wire.messages import (
    Beat,
    CheckAnswer,
    CheckNode,
    CommandResult,
    Farewell,
    Launch,
    MemoryAnswer,
    Prepare,
    Recover,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    StopAnswer,
    VerifyShare,
)
from tests.agent.stage import Stage, dial, died, launch, live, prepare, stop


def answers(stage: Stage) -> list[tuple[bool, str]]:
    return [(r.ok, r.why) for r in stage.only(CommandResult)]


def test_prepare_then_launch_then_up():
    stage = Stage().follow()
    command = prepare(0, rank_zero=True)
    assert stage.sup(command) == [command]
    stage.local(facts.NodePrepared(0, True, port=2345))
    assert [r.answer for r in stage.only(CommandResult)] == [StartAnswer(2345)]
    assert stage.sup(launch(0)) == [launch(0)]
    assert stage.brain.hello().launching
    assert not stage.brain.empty
    stage.local(facts.RanksLaunched(0, True, ranks=live(0, 1)))
    assert [(r.ok, r.act, r.answer) for r in stage.only(CommandResult)] == [(True, (1, 200), StartAnswer())]
    assert not stage.brain.hello().launching


def test_a_slate_that_is_not_clean_is_told_and_forbids_the_launch():
    stage = Stage().follow()
    stage.sup(prepare(0))
    stage.local(facts.NodePrepared(0, False, "process 77 is left", retry_free=True))
    [result] = stage.only(CommandResult)
    assert (result.ok, result.why, result.answer) == (False, "process 77 is left", StartAnswer(retry_free=True))
    stage.sup(launch(0))
    assert answers(stage) == [(False, "attempt 0 was not prepared by this agent")]


def test_an_attempt_is_launched_only_if_this_incarnation_prepared_it():
    """The one before it was told to, died with its ranks, and the command is said again to its successor."""
    stage = Stage().follow()
    stage.sup(launch(4))
    assert not any(isinstance(e, Launch) for e in stage.done)
    assert answers(stage) == [(False, "attempt 4 was not prepared by this agent")]


def test_an_attempt_prepared_in_an_older_term_is_not_launched_in_a_newer():
    stage = Stage().follow(1)
    stage.sup(prepare(0))
    stage.local(facts.NodePrepared(0, True))
    stage.follow(2)
    stage.sup(launch(0, term=2))
    assert answers(stage)[-1] == (False, "attempt 0 was not prepared by this agent")


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_no_attempt_twice_and_none_below_the_newest(attempt):
    stage = Stage().follow().run(2)
    stage.sup(stop(2))
    stage.local(facts.RanksStopped(2, True))
    stage.take()
    stage.sup(prepare(attempt, n=900))
    stage.sup(launch(attempt, n=901))
    assert answers(stage) == [(False, "attempt 2 was already started or stopped here")] * 2


def test_a_newer_term_may_not_launch_the_same_attempt_again():
    stage = Stage().follow(1).run(2)
    stage.sup(stop(2))
    stage.local(facts.RanksStopped(2, True))
    stage.follow(2)
    stage.sup(prepare(2, term=2))
    assert answers(stage)[-1][0] is False


def test_a_stop_forbids_what_was_not_started_yet():
    stage = Stage().follow()
    stage.sup(prepare(3))
    stage.local(facts.NodePrepared(3, True))
    stage.sup(stop(3))
    stage.local(facts.RanksStopped(3, True))
    stage.take()
    stage.sup(launch(3))
    assert answers(stage) == [(False, "attempt 3 was already started or stopped here")]


def test_a_stop_overtakes_a_slate_that_is_still_being_proven():
    stage = Stage().follow()
    stage.sup(prepare(3))
    stage.sup(stop(3))
    stage.local(facts.NodePrepared(3, True))
    stage.take()
    stage.sup(launch(3))
    assert answers(stage) == [(False, "attempt 3 was already started or stopped here")]


def test_nothing_is_prepared_or_launched_while_ranks_of_another_attempt_live():
    stage = Stage().follow().run(0)
    stage.sup(prepare(1))
    stage.sup(launch(1))
    assert answers(stage) == [
        (False, "ranks of attempt 0 are alive"),
        (False, "something of attempt 0 may be left"),
    ]


def test_ranks_that_ended_by_themselves_may_have_left_children():
    stage = Stage().follow().run(0)
    for rank in (0, 1):
        stage.local(facts.RankEnded(0, died(rank, code=1)))
    assert not stage.brain.empty
    stage.take()
    stage.sup(launch(1))
    assert answers(stage) == [(False, "something of attempt 0 may be left")]
    stage.sup(prepare(1))
    stage.local(facts.NodePrepared(1, True))
    assert stage.brain.empty, "proven"


@pytest.mark.parametrize("command", [prepare(0), launch(0)])
def test_nothing_starts_without_a_live_lease_first_an_ack_then_ranks(command):
    stage = Stage().follow()
    if command == launch(0):
        stage.sup(prepare(0))
        stage.local(facts.NodePrepared(0, True))
    stage.take()
    stage.now = stage.brain.lease_deadline
    stage.sup(command)
    [effect] = stage.take()
    assert isinstance(effect, effects.SendSupervisor)
    assert isinstance(effect.message, Beat), "neither obeyed nor refused: the command is said again"
    stage.ack(effect.message)
    stage.take()
    [effect] = stage.sup(command)
    assert isinstance(effect, Prepare | Launch)


def test_no_launch_while_the_journal_does_not_take_our_events():
    stage = Stage().follow().run(0)
    for _ in range(1100):
        stage.local(facts.RankEnded(0, died(0, code=1)))
    stage.sup(stop(0))
    stage.local(facts.RanksStopped(0, True))
    stage.sup(prepare(1))
    stage.local(facts.NodePrepared(1, True))
    stage.take()
    stage.sup(launch(1))
    assert answers(stage) == [(False, "too many events of this node wait for the journal")]


@pytest.mark.parametrize("command", [prepare(0), stop(0), Stacks(1, (1, 1), 0), CheckNode(1, (1, 1))])
def test_a_command_said_again_while_it_is_in_hand_is_done_once(command):
    stage = Stage().follow()
    assert len(stage.sup(command)) == 1
    assert stage.sup(command) == []


def test_a_command_said_again_after_its_answer_is_answered_from_memory():
    stage = Stage().follow()
    stage.sup(CheckNode(1, (1, 1)))
    stage.local(facts.Checked(False, "no"))
    first = stage.only(CommandResult)
    stage.sup(CheckNode(1, (1, 1)))
    assert stage.take() == [effects.SendSupervisor(first[0])]


def test_an_answer_is_of_the_check_that_asked_for_it():
    stage = Stage().follow()
    stage.sup(CheckNode(1, (1, 1)))
    assert stage.sup(CheckNode(1, (1, 2), "thorough")) == [CheckNode(1, (1, 2), "thorough")]
    stage.local(facts.Checked(True))
    stage.local(facts.Checked(True, tested="4 products", tests="thorough"))
    plain, tested = stage.only(CommandResult)
    assert (plain.act, plain.answer) == ((1, 1), None)
    assert (tested.act, tested.answer) == ((1, 2), CheckAnswer("4 products"))


def test_the_same_number_in_another_term_is_another_command():
    stage = Stage().follow(1)
    stage.sup(CheckNode(1, (1, 1)))
    stage.local(facts.Checked(True))
    stage.follow(2)
    assert stage.sup(CheckNode(2, (2, 1))) == [CheckNode(2, (2, 1))]


def test_memory_is_bounded():
    stage = Stage().follow()
    for n in range(1, ANSWERS_MAX + 2):
        stage.sup(CheckNode(1, (1, n)))
        stage.local(facts.Checked(True))
    assert len(stage.brain.orders._answers) == ANSWERS_MAX
    assert stage.sup(CheckNode(1, (1, ANSWERS_MAX))), "the newest are kept"


def test_a_newer_prepare_withdraws_the_older_one():
    stage = Stage().follow()
    stage.sup(prepare(0))
    stage.sup(prepare(1))
    stage.take()
    stage.local(facts.NodePrepared(0, True))
    assert answers(stage) == []
    stage.local(facts.NodePrepared(1, True))
    assert answers(stage) == [(True, "")]


def test_a_launch_that_fails_is_told_and_not_tried_again():
    stage = Stage().follow()
    stage.sup(prepare(0))
    stage.local(facts.NodePrepared(0, True))
    stage.sup(launch(0))
    stage.take()
    stage.local(facts.RanksLaunched(0, False, "no such file: python"))
    assert answers(stage) == [(False, "no such file: python")]
    stage.sup(launch(0, n=999))
    assert answers(stage)[0][0] is False


def test_a_stop_while_launching_ends_the_launch_too():
    stage = Stage().follow()
    stage.sup(prepare(0))
    stage.local(facts.NodePrepared(0, True))
    stage.sup(launch(0))
    stage.sup(stop(0))
    stage.local(facts.RanksStopped(0, True))
    assert not stage.brain.hello().launching
    assert stage.brain.empty
    stage.take()
    stage.local(facts.RanksLaunched(0, True, ranks=live(0)))
    assert stage.brain.hello().ranks == (), "late news of what is gone"
    stage.sup(launch(0))
    assert answers(stage) == [(False, "stopped before it was up")]


def test_a_stop_is_answered_once_nothing_is_left():
    stage = Stage().follow().run(0)
    assert stage.sup(stop(0)) == [stop(0)]
    stage.local(facts.RankEnded(0, died(0, signal=15)))
    stage.take()
    assert not stage.brain.empty
    stage.local(facts.RanksStopped(0, True, ("shared memory x removed",)))
    [result] = stage.only(CommandResult)
    assert (result.ok, result.answer) == (True, StopAnswer(("shared memory x removed",)))
    assert stage.brain.empty


def test_ranks_that_had_to_be_killed_are_named_in_the_answer():
    stage = Stage().follow().run(0)
    stage.sup(stop(0))
    stage.take()
    stage.local(facts.RanksStopped(0, True, (), (0,), 2.0))
    [result] = stage.only(CommandResult)
    assert (result.ok, result.answer) == (True, StopAnswer((), (0,), 2.0))


def test_what_cannot_be_killed_is_named():
    stage = Stage().follow().run(0)
    stage.sup(stop(0))
    stage.take()
    stage.local(facts.RanksStopped(0, False, ("77 (python, state D)",)))
    assert answers(stage) == [(False, "cannot be killed: 77 (python, state D)")]
    assert not stage.brain.empty


def test_the_same_stop_in_other_words_does_not_hurry_a_save_but_a_less_patient_one_does():
    stage = Stage().follow().run(0)
    stage.sup(stop(0, save=True))
    assert stage.sup(stop(0, n=400, save=True)) == []
    hurried = stop(0, n=401, grace_s=0.0)
    assert stage.sup(hurried) == [hurried]
    stage.take()
    stage.local(facts.RanksStopped(0, True))
    assert answers(stage) == [(True, "")] * 3, "each is answered"


def test_a_stop_of_an_attempt_that_is_over_touches_nothing():
    stage = Stage().follow().run(5)
    assert stage.sup(stop(3))
    assert not any(isinstance(e, Stop) for e in stage.done)
    assert answers(stage) == [(True, "")]


def test_a_stop_for_more_than_the_one_in_hand_is_asked_again_afterwards():
    stage = Stage().follow().run(5)
    stage.sup(stop(5))
    stage.sup(stop(6))
    stage.take()
    stage.local(facts.RanksStopped(5, True))
    done = stage.take()
    assert stop(6) in done
    stage.local(facts.RanksStopped(6, True))
    assert answers(stage) == [(True, "")]


def test_stacks_are_answered_with_where_every_rank_stands():
    stage = Stage().follow().run(0)
    stage.sup(Stacks(1, (1, 50), 0))
    stage.take()
    stacks = (RankStack(0, "n1", "train.py:3 in f", "/x"),)
    stage.local(StacksTaken(0, stacks))
    [result] = stage.only(CommandResult)
    assert result.answer == StacksAnswer(stacks)


def test_facts_nobody_asked_for_are_not_told():
    stage = Stage().follow()
    for fact in (
        facts.NodePrepared(0, True),
        facts.RanksLaunched(0, True, ranks=live(0)),
        facts.RanksStopped(0, True),
        StacksTaken(0, ()),
        facts.Checked(True),
        facts.RankEnded(3, died(0, code=1)),
    ):
        assert stage.local(fact) == []
    assert stage.brain.orders.alive == {}


def test_an_answer_that_nobody_can_hear_is_kept_for_when_it_is_asked_again():
    stage = Stage(roster_count=1).follow(1).run(0)
    stage.sup(stop(0))
    stage.pass_s(6.0)  # unacked: it promised itself away
    assert stage.brain.lease.promised_term == 1
    assert stage.sup(stop(0)) == []
    stage.take()
    stage.local(facts.RanksStopped(0, True))
    assert not stage.only(CommandResult)


def test_farewell_is_answered_then_everything_is_stopped_then_it_leaves():
    stage = Stage().follow().run(0)
    stage.sup(Farewell(1, (1, 9), 3, "done"))
    done = stage.take()
    assert isinstance(done[0], effects.SendSupervisor)
    assert isinstance(done[1], Stop)
    stage.sup(prepare(1))
    assert stage.take() == [], "nothing starts any more"
    stage.local(facts.RanksStopped(0, True))
    assert stage.take()[-1] == effects.Leave(3, "done")
    assert stage.brain.gone
    assert stage.brain.next_wake() == float("inf")
    assert stage.brain.tick(1e9) == []
    for silent in (stage.sup(prepare(9)), stage.peer(dial(9)), stage.local(facts.Checked(True))):
        assert silent == []
    assert stage.brain.catch_up_acked(1.0, 1.0) == []


def test_farewell_with_nothing_left_leaves_at_once_and_with_something_unkillable_in_the_end():
    stage = Stage().follow()
    stage.sup(Farewell(1, (1, 9), 0, "done"))
    assert stage.take()[-1] == effects.Leave(0, "done")
    stuck = Stage().follow().run(0)
    stuck.sup(Farewell(1, (1, 9), 0, "done"))
    assert stuck.sup(Farewell(1, (1, 9), 0, "done")), "answered from memory"
    stuck.local(facts.RanksStopped(0, False, ("77",)))
    stuck.take()
    stuck.pass_s(20, acks=True)
    assert stuck.only(effects.Leave) == [effects.Leave(0, "done")]


def test_beats_say_empty_only_when_it_is():
    stage = Stage().follow()
    assert stage.brain.beat(stage.now).empty
    stage.run(0)
    assert not stage.brain.beat(stage.now).empty
    stage.sup(stop(0))
    stage.local(facts.RanksStopped(0, True))
    assert stage.brain.beat(stage.now).empty


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
