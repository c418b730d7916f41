"""From known nodes to all ranks alive: STARTING."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import ChooseResume, EndJob, StartGang, StopGang, SubmitSuccessor
from gangrun.core.events import (
    ActDone,
    ActFailed,
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    Event,
    FindingRaised,
    FirstStepSeen,
    GangStarted,
    GangStartFailed,
    NodeHeard,
    NodeLost,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    ResumeChosen,
    StoreBack,
    StoreStalled,
)
from gangrun.core.model import After, Failure, Outcome, Phase, StartStage
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal, saved, warning

SCHEDULER = Policy(can_requeue=True)


# ---- STARTING: sealing, choosing ---------------------------------------------------------------------------------


def test_sealed_then_chosen_then_launched() -> None:
    life = Life(2)
    life.checked()
    assert life.state.underway.stage is StartStage.SEALING
    life.ignored(AttemptSealed(7), "attempt 7")
    life.ignored(ResumeChosen(0, None, "too early"), "attempt 0")
    life.ignored(GangStarted(0), "attempt 0")
    life.ignored(GangStartFailed(0, "n0", "too early"), "attempt 0")
    life.on(AttemptSealed(0))
    assert life.actions == (ChooseResume(0, "auto", -1),)
    assert life.state.underway.stage is StartStage.CHOOSING
    life.ignored(AttemptSealed(0), "attempt 0")
    life.ignored(ResumeChosen(3, None, "of another"), "attempt 3")
    life.choose(saved(40))
    life.says("attempt 0", "4 ranks", "n[0-1]")
    assert life.started() == StartGang(0, life.started().placement, saved(40))
    assert (life.state.checkpoints.best_step, life.state.checkpoints.newest) == (40, saved(40))
    assert life.state.attempts[-1].resumed_from_step == 40
    life.ignored(ResumeChosen(0, None, "twice"), "attempt 0")
    life.ignored(NoneValid(0, "twice"), "attempt 0")
    assert life.count(StartGang) == 1


def test_a_request_counts_for_the_first_attempt_only() -> None:
    life = Life(1, 1)
    life.state = replace(life.state, checkpoints=replace(life.state.checkpoints, resume_request="40"))
    life.checked()
    life.on(AttemptSealed(0))
    assert life.last(ChooseResume).request == "40"
    life.choose(saved(40))
    life.says("1 rank on n0")
    life.on(GangStarted(0))
    life.says("1 rank runs from step 40")
    life.exit(0)
    life.stopped()
    life.on(AttemptSealed(1))
    assert life.last(ChooseResume) == ChooseResume(1, "auto", 40)


def test_a_node_lost_while_choosing_is_not_used() -> None:
    life = Life(2, at_least=1)
    life.checked()
    life.on(NodeLost("n0", life.now, "its probes failed"))
    assert life.phase is Phase.STARTING
    life.on(FindingRaised(warning("n1")))
    life.again()
    assert life.started().placement.nodes == ("n1",)


def test_too_few_nodes_at_the_launch() -> None:
    life = Life(2)
    life.checked()
    life.on(FindingRaised(fatal("n0")))
    assert life.phase is Phase.STARTING
    life.again()
    assert life.phase is Phase.FAILED
    life.says("1 node usable, 2 needed", "gpu lost")
    assert life.count(StartGang) == 0


def test_an_agent_restarted_before_the_launch_costs_nothing() -> None:
    life = Life(2)
    life.checked()
    life.on(AgentRejoined("n0", "i2", "b-n0", 2, "signal 9"))
    life.says("n0", "signal 9")
    assert life.phase is Phase.STARTING


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        (lambda life: life.due("seal"), "sealing older attempts took over 1800 s"),
        (lambda life: (life.on(AttemptSealed(0)), life.due("choose")), "choosing a checkpoint took over 1800 s"),
        (lambda life: life.on(NoneValid(0, "the directory cannot be listed", storage=True)), "cannot be listed"),
        (lambda life: life.on(ActFailed((1, 4), "SealAttempts", "EROFS")), "SealAttempts failed: EROFS"),
    ],
)
def test_storage_that_is_in_trouble_is_tried_again(trouble: object, word: str) -> None:
    life = Life(2)
    life.checked()
    trouble(life)  # type: ignore[operator]
    assert life.phase is Phase.WAITING
    life.says(word, "trying again in 2 s")
    life.due("backoff")
    assert life.phase is Phase.STARTING
    assert life.state.attempt.number == 0, "an attempt that was never launched keeps its number"
    assert len(life.state.attempts) == 1
    life.again()
    assert life.state.tries_count == 0


def test_storage_that_stays_in_trouble_ends_the_run_after_the_time_that_is_said() -> None:
    life = Life(1)
    life.checked()
    began = life.now
    while life.phase is not Phase.FAILED:
        life.on(ActFailed((1, 4), "ChooseResume", "EIO"))
        if life.phase is Phase.WAITING:
            life.due("backoff")
    life.says("EIO", "given up after")
    assert life.state.ending.failure is Failure.STORAGE
    waited_s = life.now - began
    assert life.policy.waiting_max_s <= waited_s < life.policy.waiting_max_s + 2 * life.policy.backoff_max_s


def test_a_failed_act_of_another_time_is_no_trouble_with_storage() -> None:
    life = Life(1)
    life.checked()
    life.ignored(ActFailed((1, 2), "SubmitSuccessor", "refused"), "SubmitSuccessor", "refused")
    life.again()
    life.ignored(ActFailed((1, 4), "SealAttempts", "late"), "SealAttempts")
    life.ignored(ActDone((1, 4), "SealAttempts"), "ActDone")


def test_no_rank_can_speak_before_the_launch() -> None:
    life = Life(1)
    life.checked()
    before = life.state
    life.refused(life.died(0), "no rank")
    life.finish(0)
    assert life.answer.outcome is Outcome.REFUSED
    life.refused(FirstStepSeen(0, 3), "no rank")
    life.refused(ProgressMarked(0, 3), "no rank")
    assert life.state == before


# ---- STARTING: launching -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": 3}, ("rank 2 on n1", "exit code 3")),
        ({"code": None, "signal": 11}, ("rank 2 on n1", "signal 11")),
        ({"code": None, "signal": 9, "oom": True}, ("rank 2 on n1", "memory")),
    ],
)
def test_a_rank_that_falls_during_the_launch(how: dict[str, object], words: tuple[str, ...]) -> None:
    life = Life(2).launching()
    life.exit(2, **how)
    assert life.phase is Phase.STOPPING
    assert life.state.underway.after is After.JUDGE
    life.says(*words)
    assert life.last(StopGang).why == life.reason


def test_a_script_that_is_over_before_the_launch_is_acknowledged_has_succeeded() -> None:
    life = Life(2).launching()
    life.finish(0, 1, 2)
    life.says("rank 2", "3 of 4")
    assert life.phase is Phase.STARTING
    life.finish(3)
    assert life.phase is Phase.STOPPING
    life.ignored(GangStarted(0))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED
    life.says("all 4 ranks finished")


def test_ranks_that_finish_before_and_after_the_launch_is_acknowledged() -> None:
    life = Life(2).launching()
    life.finish(0)
    life.on(GangStarted(0))
    life.finish(1)
    assert "finish" in life.state.timers.deadlines
    life.finish(2, 3)
    assert life.state.underway.after is After.SUCCEED


def test_steps_may_be_seen_while_the_last_ranks_are_launched() -> None:
    life = Life(2).launching(saved(40))
    life.first(41)
    life.mark(45)
    assert (life.state.attempt.step, life.state.checkpoints.observed_step) == (45, 45)
    life.first(2)
    assert life.phase is Phase.STOPPING
    life.says("started over", "2", "40")


def test_a_launch_that_takes_too_long_is_stopped_and_judged() -> None:
    life = Life(2).launching()
    life.due("start")
    assert life.phase is Phase.STOPPING
    life.says("240 s")
    life.stopped()
    assert life.phase is Phase.STARTING
    assert life.state.budget.used == {"start failed": 1}


def test_a_stalled_disk_is_no_failed_start() -> None:
    life = Life(2).launching()
    life.on(StoreStalled(life.now - 5))
    life.says("5 s", "nothing is started")
    life.due("start")
    assert life.phase is Phase.STARTING
    life.says("run directory")
    left_s = life.state.timers.deadlines["start"].at - life.now
    life.on(StoreBack(300.0))
    life.says("300 s")
    assert life.state.timers.deadlines["start"].at - life.now > left_s + 290, (
        "the launch could not even begin until now"
    )
    assert life.state.store_stalled_since is None
    life.on(GangStarted(0))
    assert life.phase is Phase.RUNNING


def test_a_start_that_some_node_refuses() -> None:
    life = Life(2).launching()
    life.on(GangStartFailed(0, "n1", "no room in /dev/shm"))
    life.says("n1", "/dev/shm")
    life.stopped()
    life.says("n1", "/dev/shm")
    assert life.state.budget.total_count == 1


def test_free_starts_are_free_but_not_for_ever() -> None:
    life = Life(2).launching()
    for count in range(1, 21):
        life.on(GangStartFailed(life.state.attempt.number, "", "the port is taken", retry_free=True))
        life.says("somewhere", "port")
        life.stopped()
        assert life.phase is Phase.STARTING
        assert life.state.attempt.number == count
        assert life.state.attempts[-2].outcome == "not started"
        life.again()
    assert life.state.budget.total_count == 0
    life.on(GangStartFailed(life.state.attempt.number, "", "the port is taken", retry_free=True))
    life.stopped()
    life.says("the port is taken", "20 times over")
    assert life.state.budget.total_count == 1
    life.again()
    life.on(GangStarted(life.state.attempt.number))
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert life.phase is Phase.STARTING, "free starts leave the budget of the causes whole"


def test_a_gang_node_lost_or_found_bad_or_restarted_during_the_launch() -> None:
    told: list[tuple[Event, tuple[str, ...]]] = [
        (NodeLost("n1", 99.0, "its lease is over"), ("n1", "its lease is over")),
        (FindingRaised(fatal("n1")), ("n1", "gpu lost")),
        (AgentRejoined("n1", "i2", "b-n1", 2, "signal 9"), ("n1", "signal 9")),
    ]
    for event, words in told:
        life = Life(2).launching()
        life.on(event)
        assert life.phase is Phase.STOPPING
        assert life.state.underway.after is After.JUDGE
        life.says(*words)


def test_a_spare_lost_or_found_bad_or_restarted_during_the_launch_costs_nothing() -> None:
    life = Life(2).launching()
    life.join("s0")
    for event in (
        NodeLost("s0", 99.0, "its lease is over"),
        NodeHeard("s0"),
        AgentRejoined("s0", "i2", "b", 2),
        FindingRaised(fatal("s0")),
    ):
        life.on(event)
        assert life.phase is Phase.STARTING
        life.says("s0")
    assert life.state.roster.nodes["s0"].checked is False


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_during_the_start(kind: NoticeKind, launched: bool) -> None:
    life = Life(2, policy=SCHEDULER)
    life.launching() if launched else life.checked()
    life.on(Notice(kind, 30.0))
    if launched:
        assert life.phase is Phase.STOPPING
        life.stopped()
    if kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        assert life.phase is Phase.CANCELLED
        life.says("scheduler" if kind is NoticeKind.CANCEL else "signal")
        assert life.state.attempts[-1].outcome == "cancelled"
    elif kind is NoticeKind.REQUEUE:
        assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 0, True)
        life.says(kind.value, "comes back")
    else:
        assert life.last(SubmitSuccessor).seq == 1
        life.says(kind.value)
        assert life.state.attempts[-1].outcome == "requeued"


def test_a_job_that_only_ends_takes_nobody_in() -> None:
    life = Life(1, policy=SCHEDULER).launching()
    life.on(Notice(NoticeKind.TIME_LIMIT, 30.0))
    life.stopped()
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    assert life.state.ending.leaving
    life.ignored(AgentJoined("n0", "i2", "b", 2), "n0", "continues in another job")
    asked = life.count(SubmitSuccessor)
    life.on(Notice(NoticeKind.PREEMPTION, 30.0))
    assert life.count(SubmitSuccessor) == asked, "one successor is enough"
    life.due("join")
    assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
    life.says("another job", "not ended yet")
    assert life.phase is Phase.PENDING
    life.cancel()
    assert life.phase is Phase.CANCELLED
    assert not life.state.ending.leaving
