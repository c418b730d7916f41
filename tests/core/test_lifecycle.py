"""A run from its first node to its end, and what waits, leaves or is filtered on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import (
    CheckNodes,
    ChooseResume,
    EndJob,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
)
from gangrun.core.events import (
    ActDone,
    ActFailed,
    ActUnknown,
    AgentJoined,
    AgentRejoined,
    AttemptSealed,
    CancelRequested,
    DeadlinePassed,
    Event,
    FindingRaised,
    FirstStepSeen,
    GangStarted,
    GangStartFailed,
    GangStopped,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    NoneValid,
    Notice,
    NoticeKind,
    ProgressMarked,
    RankExited,
    RankFinished,
    Stamped,
    TermTaken,
)
from gangrun.core.evidence import DriverReport, NodeFinding, RankExit
from gangrun.core.machine.lifecycle import TABLE, Refusal, step
from gangrun.core.model import (
    After,
    CheckpointRef,
    Deadline,
    Ending,
    Exclusion,
    Failure,
    Level,
    Origin,
    Outcome,
    Phase,
    RunState,
    Shape,
    StartStage,
    Timers,
)
from gangrun.core.nodeset import NAMED_MAX_COUNT
from gangrun.core.policy import Policy
from gangrun.health.gpu.xid_table import XidClass, row_of
from tests.core.life import Life, at, fatal, saved

# ---- the table, and whole lives --------------------------------------------------------------------------------------


def test_every_phase_lists_or_refuses_every_event() -> None:
    kinds = set(Event.__args__)
    for phase in Phase:
        assert set(TABLE[phase]) == kinds, (phase, kinds ^ set(TABLE[phase]))
    assert any(isinstance(entry, Refusal) for entry in TABLE[Phase.PENDING].values())


def test_a_clean_run_goes_through_the_phases_and_ends_its_job() -> None:
    life = Life().running()
    assert isinstance(life.asked[0], CheckNodes)
    assert life.last(SealAttempts) and life.last(ChooseResume)
    start = life.last(StartGang)
    assert start.placement.world_size == 4
    life.on(FirstStepSeen(0, 0))
    for rank in range(4):
        life.on(RankFinished(0, rank, life.names[rank // 2], life.now))
    assert life.state.phase is Phase.STOPPING
    life.on(GangStopped(0))
    assert life.state.phase is Phase.SUCCEEDED
    assert life.last(EndJob) == EndJob(Phase.SUCCEEDED, 0, life.state.reason)
    assert life.state.attempts[-1].outcome == "succeeded"
    assert not life.state.timers.deadlines


def test_a_killed_rank_restarts_in_place_and_blames_nobody() -> None:
    life = Life().running()
    life.exit(1, code=None, signal=9)
    assert life.state.phase is Phase.STOPPING
    assert isinstance(life.last(StopGang), StopGang)
    life.on(GangStopped(0))
    assert life.state.phase is Phase.STARTING
    assert life.state.attempt.number == 1
    life.again(CheckpointRef(7, "/c/step-7", Level.VERIFIED))
    start = life.last(StartGang)
    assert start.attempt == 1
    assert start.placement.nodes == ("n0", "n1")
    assert start.resume is not None
    assert start.resume.step == 7
    life.on(GangStarted(1))
    assert life.state.phase is Phase.RUNNING
    assert not life.state.health.excluded


def test_a_lost_node_without_a_spare_is_waited_for_then_ends_the_run() -> None:
    life = Life().running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    assert life.state.phase is Phase.WAITING
    life.due("nodes")
    assert life.state.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.NODE


def test_a_lost_node_that_comes_back_ends_the_wait() -> None:
    life = Life().running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    assert life.state.phase is Phase.STARTING


@pytest.mark.parametrize(
    ("boot", "after_s", "cause"),
    [("b-n1", 10.0, "agent died"), ("another boot", 10.0, "node silent"), ("b-n1", 31.0, "node silent")],
)
def test_a_node_whose_agent_comes_back_within_its_lease_was_never_away(boot: str, after_s: float, cause: str) -> None:
    life = Life(3, policy=Policy(can_requeue=True)).running()
    life.on(NodeLost("n1", life.now, "no other node reaches it"))
    life.on(AgentRejoined("n1", "i2", boot, 2, "its warden was killed"), after_s=after_s)
    life.says("the agent on n1 was restarted: its warden was killed; its ranks died with it")
    life.stopped()
    assert life.state.attempts[0].outcome == cause
    assert list(life.state.health.excluded) == ([] if cause == "agent died" else ["n1"])


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    life = Life()
    life.state = replace(life.state, shape=Shape(2, 2, 2, 1))
    life.running()
    life.on(AgentJoined("n2", "i", "b", 2))
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    assert "n1" in life.state.health.excluded
    life.on(NodeChecked("n2", True))
    life.again()
    start = life.last(StartGang)
    assert start.placement.nodes == ("n0", "n2")


def test_with_a_scheduler_too_few_nodes_ask_for_the_next_job() -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    life.on(GangStopped(0, presumed=(("n1", "law 1"),)))
    submit = life.last(SubmitSuccessor)
    assert submit.exclude == ("n1",)
    life.on(ActDone((1, 9), "SubmitSuccessor"))
    assert life.state.phase is Phase.PENDING
    assert life.state.seq == 1
    assert life.last(EndJob).phase is Phase.PENDING


def test_a_cancel_ends_cancelled_from_every_phase() -> None:
    for stop_at in range(5):
        life = Life()
        if stop_at == 1:
            life.on(AgentJoined("n0", "i", "b", 2))
        elif stop_at == 2:
            for name in life.names:
                life.on(AgentJoined(name, "i", "b", 2))
        elif stop_at == 3:
            life.launching()
        elif stop_at == 4:
            life.running()
        life.on(CancelRequested("someone"))
        if life.state.phase is Phase.STOPPING:
            life.on(GangStopped(life.state.attempt.number))
        assert life.state.phase is Phase.CANCELLED, stop_at
        end = life.last(EndJob)
        assert end.exit_code == 130
        life.on(GangStarted(0))
        assert life.state.phase is Phase.CANCELLED


def test_a_cancel_at_once_gives_ranks_no_grace_and_no_time_to_save() -> None:
    life = Life().running()
    life.on(CancelRequested("someone", now=True))
    stop = life.last(StopGang)
    assert (stop.grace_s, stop.checkpoint_first) == (0.0, False)
    life.says("cancelled by someone; killing all ranks")
    life = Life().stopping()
    assert life.last(StopGang).grace_s > 0
    life.on(CancelRequested("someone", now=True))
    assert life.last(StopGang).grace_s == 0
    life.stopped()
    assert life.phase is Phase.CANCELLED


def test_none_valid_never_starts_from_zero() -> None:
    life = Life()
    life.checked()
    life.on(AttemptSealed(0))
    life.on(NoneValid(0, "3 checkpoints were committed and none is valid"))
    assert life.state.phase is Phase.FAILED
    assert life.state.ending.failure is Failure.STORAGE
    assert not [action for action in life.asked if isinstance(action, StartGang)]


def test_a_taken_port_is_nobodys_fault_and_free() -> None:
    life = Life().launching()
    life.on(GangStartFailed(0, "n0", "port 29501 is taken", retry_free=True))
    assert life.state.underway.after is After.AGAIN
    life.on(GangStopped(0))
    assert life.state.phase is Phase.STARTING
    assert life.state.budget.total_count == 0


def test_a_rank_says_in_dying_how_far_it_got() -> None:
    life = Life().running()
    life.on(ProgressMarked(0, 4))
    died = RankExit(1, "n0", None, 9, False, False, None, life.now, step=15)
    life.on(RankExited(0, died))
    assert life.state.attempt.step == 15
    assert life.state.checkpoints.observed_step == 15
    life.on(RankFinished(0, 2, "n1", life.now, step=14))
    assert life.state.attempt.step == 15


# ---- what never reaches the table ------------------------------------------------------------------------------------


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


# ---- a job whose successor is in the queue ---------------------------------------------------------------------------


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


# ---- hardware that breaks under ranks: is a save worth waiting for ---------------------------------------------------


def broken(check: str = "xid", number: int | None = None) -> NodeFinding:
    report = None if number is None else DriverReport("GPU-1", number)
    return NodeFinding("n1", check, True, f"{check} {number} on gpu 1", report=report)


@pytest.mark.parametrize(
    ("found", "saves"),
    [
        (broken("gpu_sram"), True),
        (broken("xid"), True),
        (broken("xid", 64), True),
        (broken("xid", 79), False),
        (broken("xid", 119), False),
        (broken("gpu_lost"), False),
    ],
    ids=lambda one: f"{one.sentence}" if isinstance(one, NodeFinding) else "",
)
def test_a_save_is_asked_for_where_it_may_succeed(found: NodeFinding, saves: bool) -> None:
    life = Life(2).running()
    life.on(FindingRaised(found))
    assert life.phase is Phase.STOPPING
    assert life.last(StopGang).checkpoint_first is life.state.underway.saving is saves
    at_once = "all ranks stop at once, because ranks on this node cannot save"
    life.says(found.sentence, "the ranks save first" if saves else at_once)


def test_every_number_that_takes_a_gpu_away_is_a_hard_one() -> None:
    from gangrun.core.machine.node_events import LOST_XIDS

    assert {row_of(number).kind for number in LOST_XIDS} == {XidClass.HARD}


# ---- a checkpoint that is first met when the next attempt chooses ----------------------------------------------------


def test_a_run_that_saves_between_its_deaths_is_never_out_of_restarts() -> None:
    life = Life(1, 2, policy=Policy(restarts_max_count=1)).running()
    for done in range(1, 8):
        life.exit(1, code=None, signal=9)
        life.stopped()
        assert life.phase is Phase.STARTING, life.reason  # at once: no back-off either
        life.again(saved(10 * done))
        assert life.state.budget.used == {}
        assert life.state.budget.mark == 10 * done
        life.on(GangStarted(life.state.attempt.number))
    assert life.state.budget.total_count == 7


def test_the_same_checkpoint_once_more_is_no_progress() -> None:
    life = Life(1, 2, policy=Policy(restarts_max_count=1)).running(saved(10))
    life.exit(1, code=None, signal=9)
    life.stopped()
    life.again(saved(10))
    life.on(GangStarted(life.state.attempt.number))
    life.exit(1, code=None, signal=9)
    life.stopped()
    assert life.phase is Phase.FAILED
    life.says("since step 10")


# ---- every wait has an end -------------------------------------------------------------------------------------------


SCHEDULER = Policy(can_requeue=True)
SUBMIT = "SubmitSuccessor"


# ---- WAITING -----------------------------------------------------------------------------------------------------


def test_the_pause_before_a_second_try_has_an_end() -> None:
    life = Life().running()
    for _ in range(2):
        life.exit(0, code=None, signal=9)
        life.stopped()
        if life.phase is Phase.STARTING:
            life.again()
            life.on(GangStarted(life.state.attempt.number))
    assert life.phase is Phase.WAITING
    life.says("rank 0 on n0", "restarting in place in")
    life.on(NodeSilent("n1", life.now - 6))
    life.on(NodeHeard("n1"))
    life.join("s0")
    assert life.phase is Phase.WAITING, "a pause is a pause"
    life.due("backoff")
    assert life.phase is Phase.CHECKING
    assert life.actions == (CheckNodes(("s0",)),)


def test_a_wait_for_nodes_ends_when_enough_are_back() -> None:
    life = Life(3)
    life.names = ["n0", "n1", "n2"]
    life.running()
    life.on(NodeLost("n1", 90.0, "lost"))
    life.on(NodeLost("n2", 90.0, "lost"))
    life.stopped()
    assert life.phase is Phase.WAITING
    life.says("n[1-2]", "waiting up to")
    life.on(NodeHeard("n1"))
    life.says("n1 sends heartbeats again", "2 nodes usable, 3 needed")
    life.on(NodeHeard("n2"))
    assert life.phase is Phase.STARTING


def test_of_thousands_that_come_back_each_is_told_in_a_short_sentence() -> None:
    """Naming all others in the sentence of each took more time than they had until they counted as silent again."""
    life = Life(2 * NAMED_MAX_COUNT).running()
    away = life.names[::2]
    for name in away:
        life.on(NodeLost(name, 90.0, "lost"))
    life.stopped()
    assert life.phase is Phase.WAITING
    for name in away[:-1]:
        life.on(NodeHeard(name))
    life.says(f"{away[-2]} sends heartbeats again", f"{len(life.names) - 1} of {len(life.names)} nodes")
    assert len(life.reason) < 100
    life.on(NodeHeard(away[-1]))
    assert life.phase is Phase.STARTING


def test_nodes_are_waited_for_once() -> None:
    """A node that never answers its checks beside one that is gone must not turn in a circle for ever."""
    life = Life(2).running()
    life.on(AgentRejoined("n0", "i2", "another boot", 2))
    life.on(NodeLost("n1", 90.0, "lost"))
    life.stopped()
    assert life.phase is Phase.WAITING
    life.due("nodes")
    assert life.phase is Phase.CHECKING
    life.due("check")
    assert life.phase is Phase.FAILED, life.reason
    life.says("n1 lost")
    assert life.state.ending.failure is Failure.NODE


def test_a_node_that_flaps_is_not_waited_for_for_ever_either() -> None:
    life = Life(2).waiting()
    life.on(NodeHeard("n1"))
    assert life.phase is Phase.STARTING
    life.on(NodeLost("n1", life.now, "lost again"))
    life.again()
    assert life.phase is Phase.FAILED
    assert life.count(StartGang) == 1


def test_after_a_launch_nodes_may_be_waited_for_again() -> None:
    life = Life(2).waiting()
    life.on(NodeHeard("n1"))
    life.again()
    life.on(GangStarted(1))
    life.on(NodeLost("n1", life.now, "lost again"))
    life.stopped()
    assert life.phase is Phase.WAITING


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_while_waiting(kind: NoticeKind) -> None:
    life = Life().waiting()
    life.on(Notice(kind, 30.0))
    ends = {
        NoticeKind.CANCEL: Phase.CANCELLED,
        NoticeKind.UNKNOWN: Phase.CANCELLED,
        NoticeKind.REQUEUE: Phase.PENDING,
    }
    assert life.phase is ends.get(kind, Phase.FAILED)


def test_a_bad_node_is_not_waited_for() -> None:
    life = Life().waiting()
    life.on(FindingRaised(fatal("n1")))
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    assert life.phase is Phase.CHECKING, "a new agent is asked anew"
    life.on(NodeChecked("n1", False, "GPU 0 is missing"))
    assert life.phase is Phase.FAILED
    life.says("GPU 0 is missing")


# ---- WAITING: the next job ---------------------------------------------------------------------------------------


def test_refused_jobs_are_asked_for_with_growing_pauses_and_then_no_more() -> None:
    life = Life(policy=SCHEDULER).submitting()
    pauses: list[float] = []
    while True:
        life.on(ActFailed((1, 9), SUBMIT, "sbatch: error: QOSMaxSubmitJobPerUserLimit"))
        if life.phase is Phase.FAILED:
            break
        life.says("QOSMaxSubmitJobPerUserLimit", "asking again in")
        pauses.append(life.state.timers.deadlines["submit"].at - life.now)
        life.due("submit")
        assert life.last(SubmitSuccessor).seq == 1
    assert pauses == sorted(pauses)
    assert pauses[-1] <= life.policy.waiting_max_s < sum(pauses)
    life.says("QOSMaxSubmitJobPerUserLimit", f"{len(pauses) + 1} times")
    assert life.state.ending.failure is Failure.SCHEDULER
    assert not life.state.underway.submitting


def test_a_job_that_may_be_in_the_queue_is_looked_for_again_but_not_for_ever() -> None:
    life = Life(policy=SCHEDULER).submitting()
    while life.phase is Phase.WAITING:
        life.on(ActUnknown((1, 9), SUBMIT, "sbatch timed out"))
        life.says("not known whether", "sbatch timed out")
        if life.phase is Phase.WAITING:
            assert life.state.timers.deadlines["submit"].at - life.now >= 30.0
            life.due("submit")
    assert life.state.ending.failure is Failure.SCHEDULER


def test_a_scheduler_that_never_answers_ends_the_wait() -> None:
    life = Life(policy=SCHEDULER).submitting()
    asked = 0
    while life.phase is Phase.WAITING:
        asked += 1
        life.due("submit")
    life.says("did not answer", f"{asked} times")
    assert asked < 20


def test_what_others_acts_became_is_not_for_whoever_waits_for_a_job() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.refused(ActDone((1, 3), "SealAttempts"), "SealAttempts")
    life.refused(ActFailed((1, 3), "SealAttempts", "late"), "SealAttempts")
    life.refused(ActUnknown((1, 3), "SealAttempts", "late"), "SealAttempts")
    life = Life().waiting()
    life.refused(ActDone((1, 3), SUBMIT), SUBMIT)
    life.refused(ActFailed((1, 3), SUBMIT, "late"), SUBMIT)
    life.refused(ActUnknown((1, 3), SUBMIT, "late"), SUBMIT)


def test_the_next_job_does_without_the_excluded_as_long_as_they_are() -> None:
    life = Life(3, policy=SCHEDULER).running()
    old, new = Exclusion("old", 0.0, life.now - 1), Exclusion("new", 0.0, life.now + 1e5)
    life.state = replace(life.state, health=replace(life.state.health, excluded={"n7": old, "n8": new}))
    life.on(Notice(NoticeKind.PREEMPTION, 30.0))
    life.stopped()
    assert life.last(SubmitSuccessor).exclude == ("n8",)
    life.says("without n8")
    life.due("submit")
    assert life.last(SubmitSuccessor).exclude == ("n8",)


@pytest.mark.parametrize("kind", [kind for kind in NoticeKind if kind is not NoticeKind.CANCEL])
def test_a_notice_while_the_next_job_is_asked_for_asks_no_second_time(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(Notice(kind, 30.0))
    life.says(kind.value)
    assert life.count(SubmitSuccessor) == 1
    life.on(ActDone((1, 9), SUBMIT))
    assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 1, True)
    life.on(Notice(kind, 30.0))
    assert life.state.ending.leaving
    life.on(Notice(NoticeKind.CANCEL, 30.0))
    assert life.phase is Phase.CANCELLED


def test_a_scheduler_that_gives_this_very_job_back_keeps_its_place() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(ActDone((1, 9), SUBMIT, same_job=True))
    life.says("comes back by itself")
    assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
    assert (life.phase, life.state.seq, life.state.ending.leaving, life.state.underway.submitting) == (
        Phase.PENDING,
        0,
        True,
        False,
    )


def test_the_next_job_is_in_the_queue_so_this_one_ends() -> None:
    life = Life(policy=SCHEDULER).submitting()
    life.on(ActDone((1, 9), SUBMIT))
    assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
    assert (life.phase, life.state.seq, life.state.roster.nodes) == (Phase.PENDING, 1, {})
    life.ignored(ActDone((1, 9), SUBMIT))
    life.ignored(AgentJoined("n0", "i", "b", 2))


def test_smaller_is_an_answer_where_the_user_allows_it() -> None:
    life = Life(3, at_least=2, policy=SCHEDULER).running()
    life.on(NodeLost("n1", 90.0, "lost"))
    life.stopped()
    life.says("restarting smaller, on n[0,2]")
    assert life.state.underway.stage is StartStage.SEALING
