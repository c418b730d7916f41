"""Before a job ends, what only its nodes' memory holds is written to disk, in the time there is and no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.actions import BringSteps, EndJob, StopGang, SubmitSuccessor
from gangrun.core.checkpoints.flush_to_disk import END_WITHIN_S, sentence
from gangrun.core.events import (
    ActDone,
    AttemptSealed,
    FlushDue,
    GangStarted,
    NodeLost,
    NoneValid,
    Notice,
    NoticeKind,
    StepBrought,
    TermTaken,
)
from gangrun.core.model import Bringing, Outcome, Phase
from gangrun.core.policy import Policy
from tests.core.life import BUG, Life, saved


def life(*, scheduler: bool = False, **policy: Any) -> Life:
    return Life(policy=Policy(keeps_memory=True, can_requeue=scheduler, **policy)).running()


def failed(one: Life) -> Life:
    """Two equal failures: nothing would cure it."""
    for _ in range(2):
        one.exit(0, error=BUG)
        one.stopped()
        if one.phase is Phase.STARTING:
            one.again()
            one.on(GangStarted(one.state.attempt.number))
    return one


def cancelled(one: Life) -> Life:
    one.cancel()
    one.stopped()
    return one


def preempted(one: Life, grace_s: float = 60.0, kind: NoticeKind = NoticeKind.PREEMPTION) -> Life:
    one.on(Notice(kind, grace_s))
    one.stopped()
    return one


def brings(one: Life) -> BringSteps:
    """It waits for memory, and for nothing else."""
    assert one.phase is Phase.WAITING, one.reason
    assert set(one.state.timers.deadlines) == {"bring"}
    [action] = one.actions
    assert isinstance(action, BringSteps)
    assert one.state.timers.deadlines["bring"].at == pytest.approx(one.now + action.within_s)
    one.says("first the newest in-memory checkpoint is written to disk")
    return action


def brought(one: Life, step: int = 12, why: str = "") -> None:
    assert one.state.underway.bringing is not None
    one.on(StepBrought(one.state.underway.bringing.attempt, step, ("n0", "n1") if step >= 0 else (), why))


def took_over(one: Life, *, job: str = "j", alone: bool = False) -> None:
    state = one.state
    one.on(TermTaken(state.term + 1, job, (), (), state.attempt.number, alone=alone))


def test_a_failed_run_ends_when_its_memory_is_on_disk() -> None:
    one = life()
    one.save(7)
    assert brings(failed(one)) == BringSteps(1, 7, END_WITHIN_S, ("n0", "n1"))
    assert one.state.ending.failure is not None
    brought(one)
    assert one.phase is Phase.FAILED
    one.says("bad batch", "step 12 was written to disk from the memory of n[0-1]")
    [end] = one.actions
    assert end == EndJob(Phase.FAILED, 1, one.reason)


def test_nothing_newer_in_memory_is_not_worth_a_word() -> None:
    one = failed(life())
    why = one.state.underway.bringing
    brought(one, -1)
    assert why is not None
    assert (one.phase, one.reason) == (Phase.FAILED, why.reason)


def test_what_could_not_be_brought_is_said_and_holds_nobody_up() -> None:
    one = failed(life())
    brought(one, 12, "n1: No space left on device")
    assert one.phase is Phase.FAILED
    one.says("step 12, which only memory holds, could not be written to disk: n1: No space left on device")
    one = failed(life())
    one.due("bring")
    assert one.phase is Phase.FAILED
    one.says("could not be written to disk in time")


def test_the_next_job_is_asked_for_when_the_disk_has_what_it_needs() -> None:
    one = life(scheduler=True)
    one.on(NodeLost("n1", one.now - 30, "its lease is over"))
    one.stopped()
    assert brings(one).nodes == ("n0",)
    assert not one.state.underway.submitting
    charged = one.state.budget
    brought(one)
    assert one.state.underway.submitting
    assert one.state.budget == charged
    [asked] = one.actions
    assert isinstance(asked, SubmitSuccessor)
    one.says("n1", "step 12 was written to disk", "asking the scheduler for the next job")
    one.on(ActDone((1, 1), "SubmitSuccessor"))
    assert isinstance(one.actions[0], EndJob), "once is enough"


def test_a_grace_is_never_passed() -> None:
    one = life(scheduler=True)
    one.on(Notice(NoticeKind.PREEMPTION, 60.0))
    one.now += 20.0
    one.stopped()
    assert brings(one).within_s == pytest.approx(40.0 - 0.1 - 5.0)
    one = life(scheduler=True)
    one.on(Notice(NoticeKind.TIME_LIMIT, 30.0))
    one.now += 29.0
    one.stopped()
    assert one.state.underway.submitting
    one.says("no time is left to write the newest in-memory step to disk")


def test_a_job_that_comes_back_by_itself_leaves_its_memory_on_disk_too() -> None:
    one = preempted(life(scheduler=True), kind=NoticeKind.REQUEUE)
    brings(one)
    assert one.state.roster.nodes
    assert not one.state.ending.leaving
    brought(one)
    assert one.state.ending.leaving
    assert isinstance(one.actions[0], EndJob)
    one.says("comes back by itself", "step 12 was written to disk")


def test_a_cancel_waits_as_long_as_for_a_script_that_saves() -> None:
    one = cancelled(life(checkpoint_grace_s=17.0))
    assert brings(one).within_s == 17.0
    brought(one)
    assert one.phase is Phase.CANCELLED
    one.says("cancelled by someone", "step 12 was written to disk")
    one = cancelled(life(checkpoint_grace_s=0.0))
    assert one.phase is Phase.CANCELLED


def test_who_cancels_twice_waits_for_nothing() -> None:
    one = life()
    one.cancel()
    one.cancel()
    assert one.last(StopGang).grace_s == 0.0
    one.stopped()
    assert one.phase is Phase.CANCELLED
    one = cancelled(life())
    brings(one)
    one.cancel()
    assert one.phase is Phase.CANCELLED
    one.says("cancelled again by someone")


def test_a_cancel_meanwhile_is_the_end_and_in_its_own_time() -> None:
    one = preempted(life(scheduler=True), grace_s=600.0)
    brings(one)
    one.cancel()
    assert one.phase is Phase.WAITING
    assert one.state.ending.cancelled_by
    assert one.state.timers.deadlines["bring"].at == pytest.approx(one.now + one.policy.checkpoint_grace_s)
    brought(one)
    assert one.phase is Phase.CANCELLED
    assert one.count(SubmitSuccessor) == 0


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (NoticeKind.CANCEL, Phase.CANCELLED),
        (NoticeKind.UNKNOWN, Phase.CANCELLED),
        (NoticeKind.PREEMPTION, Phase.FAILED),
    ],
)
def test_a_notice_meanwhile_leaves_less_time(kind: NoticeKind, then: Phase) -> None:
    one = failed(life(scheduler=True))
    brings(one)
    one.on(Notice(kind, 30.0))
    assert one.phase is Phase.WAITING
    bound_s = 25.0 if kind is not NoticeKind.UNKNOWN else one.policy.checkpoint_grace_s
    assert one.state.timers.deadlines["bring"].at == pytest.approx(one.now + bound_s)
    one.on(Notice(kind, 20.0))
    assert one.phase is Phase.WAITING, "every node's agent passes it on: none hurries"
    brought(one)
    assert one.phase is then


def test_who_succeeded_left_what_it_wanted_to_leave() -> None:
    one = life()
    one.finish(0, 1, 2, 3)
    one.stopped()
    assert one.phase is Phase.SUCCEEDED
    assert one.count(BringSteps) == 0


def test_nothing_is_asked_where_no_memory_is_kept_or_nobody_is_left_to_ask() -> None:
    assert failed(Life().running()).count(BringSteps) == 0
    one = life()
    one.state = replace(
        one.state,
        roster=replace(
            one.state.roster, nodes={n: replace(node, lost=True) for n, node in one.state.roster.nodes.items()}
        ),
    )
    assert failed(one).count(BringSteps) == 0


def test_a_restart_needs_nothing_of_it_and_what_an_attempt_brought_is_not_brought_again() -> None:
    one = life()
    one.exit(0)
    one.stopped()
    assert one.phase is Phase.STARTING
    assert one.count(BringSteps) == 0
    one.on(AttemptSealed(1))
    one.on(NoneValid(1, "all are damaged"))
    assert one.phase is Phase.FAILED
    assert one.count(BringSteps) == 0


def test_memory_of_another_job_is_gone() -> None:
    one = preempted(life(scheduler=True))
    brought(one)
    one.on(ActDone((1, 1), "SubmitSuccessor"))
    took_over(one, job="k")
    one.join("n0")
    one.due("join")
    assert one.count(BringSteps) == 1


def test_a_new_supervisor_asks_again_for_the_time_that_is_left() -> None:
    one = preempted(life(scheduler=True), grace_s=60.0)
    first = brings(one)
    one.now += 10.0
    took_over(one)
    [again] = one.actions
    assert isinstance(again, BringSteps)
    assert again == replace(first, within_s=again.within_s)
    assert again.within_s == pytest.approx(first.within_s - 10.1)
    brought(one)
    assert one.state.underway.submitting


def test_the_last_resort_has_nobody_to_ask() -> None:
    one = cancelled(life(scheduler=True))
    took_over(one, alone=True)
    assert one.phase is Phase.CANCELLED
    one.says("no node is left that could hold a step in memory")


def test_another_job_does_not_undo_what_was_decided() -> None:
    one = cancelled(life(scheduler=True))
    took_over(one, job="k")
    assert one.phase is Phase.CANCELLED
    one = preempted(life(scheduler=True))
    took_over(one, job="k")
    assert one.phase is Phase.PENDING
    assert one.state.underway.bringing is None


def test_while_ranks_train_on_the_nodes_write_down_what_the_disk_has_not() -> None:
    one = life()
    one.save(7)
    one.on(FlushDue(0, 7))
    assert one.answer.outcome is Outcome.IGNORED
    one.on(FlushDue(0, 9))
    assert one.phase is Phase.RUNNING
    assert one.actions == (BringSteps(0, 7, END_WITHIN_S, ("n0", "n1"), flush=True),)
    one.on(StepBrought(0, 9, ("n0", "n1"), "n1: No space left on device"))
    assert one.phase is Phase.RUNNING
    one.says("step 9", "No space left on device")
    one.ignored(FlushDue(1, 12), "of attempt 1")
    one.exit(0)
    one.ignored(FlushDue(0, 12), "no rank trains on")


def test_what_another_call_brought_ends_no_wait() -> None:
    one = failed(life())
    one.on(StepBrought(0, 5, ("n0",)))
    assert one.state.underway.bringing == Bringing(1, ("n0", "n1"), Phase.FAILED, one.state.underway.bringing.reason)  # type: ignore[union-attr]
    one = life()
    one.on(StepBrought(0, 5, ("n0",)))
    assert one.phase is Phase.RUNNING
    one.says("step 5 was written to disk from the memory of n0")
    assert sentence(StepBrought(0)) == "memory holds nothing newer than the disk"
    assert saved(1).step == 1
