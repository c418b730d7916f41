"""All ranks alive, and how they are stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import EndJob, ProbeNode, StartGang, StopGang, SubmitSuccessor, TakeStacks
from gangrun.core.events import (
    ActFailed,
    AgentRejoined,
    CancelRequested,
    CheckpointSeen,
    DeadlinePassed,
    Event,
    FindingRaised,
    GangStarted,
    GangStartFailed,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    StacksTaken,
    StopTimedOut,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.evidence import ErrorReport, Evidence, RankExit, RankObservation, RankStack
from gangrun.core.machine.running import abridged
from gangrun.core.model import After, Failure, Outcome, Phase
from gangrun.core.policy import Policy
from gangrun.core.recovery import error_rules
from tests.core.life import BUG, VICTIM, Life, fatal, saved, warning

# ---- all ranks alive -------------------------------------------------------------------------------------------------


SCHEDULER = Policy(can_requeue=True)
OBSERVED = tuple(RankObservation(rank, f"n{rank // 2}", "S", 7, 0.0) for rank in range(4))
STACKS = tuple(
    RankStack(rank, f"n{rank // 2}", "all_reduce" if rank else "load_batch", f"/s/rank-{rank}.txt") for rank in range(4)
)


def stall(life: Life) -> None:
    life.on(ProgressStalled(life.state.attempt.number, 130.0, 120.0, OBSERVED))


# ---- ranks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": 3}, "exit code 3"),
        ({"code": None, "signal": 9}, "signal 9"),
        ({"code": None, "signal": 9, "oom": True}, "its cgroup reached its memory limit"),
        ({"error": BUG}, "ValueError: bad batch"),
        ({"error": ErrorReport("KeyError", "", "s", "", False)}, "KeyError"),
        (
            {"error": ErrorReport("OSError", "line one\nline two", "s", "", False)},
            "OSError: line one)",
        ),
    ],
)
def test_a_rank_that_falls_stops_all_and_is_named(how: dict[str, object], words: str) -> None:
    life = Life().running()
    life.exit(2, **how)
    assert life.state.underway.after is After.JUDGE
    life.says("rank 2 on n1", words)
    stop = life.last(StopGang)
    assert (stop.attempt, stop.grace_s, stop.checkpoint_first, stop.peer_gone_grace_s) == (0, 10.0, False, 1.0)


@pytest.mark.parametrize(
    ("ago_s", "written_ago_s", "settles_s"),
    [(0.0, 0.0, 0.3), (0.1, 0.0, 0.2), (0.05, 0.1, 0.2), (5.0, 0.0, 0.0), (-1.0, 0.0, 0.3)],
)
def test_once_a_rank_fails_the_others_have_a_moment_to_report_their_own_error(
    ago_s: float, written_ago_s: float, settles_s: float
) -> None:
    life = Life().running()
    written_at = life.now - written_ago_s if written_ago_s else 0.0
    died = RankExit(2, "n1", 1, error=BUG, at=life.now - ago_s, written_at=written_at)
    life.on(RankExited(0, died), after_s=0.0)
    assert life.last(StopGang).settle_s == pytest.approx(settles_s)
    life.on(RankExited(0, RankExit(0, "n0", 1, error=BUG, at=life.now)))
    assert len(life.state.attempt.evidence.exits) == 2 and not life.actions


def test_nothing_settles_where_no_rank_failed_or_nobody_wants_it() -> None:
    life = Life().running()
    life.on(CancelRequested("someone"))
    assert (life.last(StopGang).settle_s, life.last(StopGang).peer_gone_grace_s) == (0.0, None)
    off = Life(policy=replace(Policy(), settle_s=0.0)).running()
    off.exit(2)
    assert off.last(StopGang).settle_s == 0.0


def test_the_last_rank_to_finish_ends_the_run_and_early_ones_are_mentioned() -> None:
    life = Life().running()
    life.mark(12)
    life.finish(0, 1)
    life.says("rank 1", "2 of 4")
    life.due("finish")
    life.says("rank 0, rank 1 ended with exit code 0, the first over 30 s ago")
    life.says("rank 2, rank 3 still run; they will hang if they need a rank that has ended")
    assert life.state.reason == life.reason
    assert life.phase is Phase.RUNNING
    life.finish(2, 3)
    life.says("all 4 ranks finished")
    alone = Life(1, 1).running()
    alone.finish(0)
    alone.says("the only rank finished")
    life.stopped()
    assert life.phase is Phase.SUCCEEDED
    life.says("at step 12")


def test_a_launch_is_acknowledged_once() -> None:
    life = Life().running()
    life.ignored(GangStarted(0), "all ranks are known to run")


# ---- nodes -------------------------------------------------------------------------------------------------------


def test_a_silent_node_is_a_suspect_whom_others_are_asked_about() -> None:
    life = Life().running()
    life.on(NodeSilent("n1", life.now - 5.9))
    assert life.actions == (ProbeNode("n1"),)
    assert life.phase is Phase.RUNNING
    life.says("n1", "6 s", "asking other nodes")
    assert life.state.reason == life.reason
    life.on(NodeHeard("n1"))
    assert life.state.reason == "n1 sends heartbeats again", "the suspicion must not stay what people read"
    assert life.state.roster.nodes["n1"].silent_since is None


def test_news_of_a_node_that_was_not_away_is_no_news() -> None:
    life = Life().running()
    before = life.state.reason
    life.on(NodeHeard("n1"))
    life.on(NodeHeard("x9"))
    life.ignored(NodeSilent("x9", 90.0), "x9", "not in this job")
    assert life.state.reason == before


def test_a_spare_that_comes_and_goes_is_nobodys_concern() -> None:
    life = Life().running()
    before = life.state.reason
    life.join("s0")
    life.on(NodeSilent("s0", life.now - 5))
    life.on(NodeHeard("s0"))
    life.on(NodeLost("s0", life.now, "its probes failed"))
    life.says("s0", "holds no ranks")
    life.on(AgentRejoined("s0", "i2", "b2", 2, "signal 9"))
    life.says("s0", "signal 9", "held no ranks")
    assert (life.phase, life.state.reason) == (Phase.RUNNING, before)


def test_where_there_is_one_node_nobody_can_be_asked() -> None:
    life = Life(1).running()
    life.on(NodeSilent("n0", life.now - 5))
    assert life.actions == ()
    life.says("n0", "5 s")


def test_a_lost_node_and_a_restarted_agent_stop_the_gang() -> None:
    life = Life().running()
    life.on(NodeLost("n1", life.now - 30, "its lease is over"))
    assert life.state.underway.after is After.JUDGE
    life.says("n1", "its lease is over")
    life = Life().running()
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    assert life.state.attempt.evidence.agents_died == ("n1",)
    life.says("n1", "its ranks died with it")
    life.stopped()
    assert life.phase is Phase.STARTING
    assert not life.state.health.excluded


# ---- findings ----------------------------------------------------------------------------------------------------


def test_a_warning_is_ridden_out_and_no_evidence_of_what_happens_later() -> None:
    life = Life().running()
    before = life.state
    for _ in range(100):
        life.on(FindingRaised(warning("n1")))
    life.says("n1", "flapped")
    assert life.state.attempt.evidence == before.attempt.evidence, "a month of warnings must not make the state grow"


def test_a_fatal_finding_saves_stops_and_swaps() -> None:
    life = Life().running()
    life.join("s0")
    life.on(FindingRaised(fatal("n1")))
    assert life.last(StopGang).checkpoint_first
    life.says("n1", "gpu lost")
    life.stopped()
    assert "n1" in life.state.health.excluded
    life.says("n1", "gpu lost", "checking s0")


def test_a_bad_spare_is_not_blamed_for_what_the_gang_does_and_not_taken_either() -> None:
    life = Life().running()
    life.join("s0")
    life.on(FindingRaised(fatal("s0")))
    assert life.phase is Phase.RUNNING
    life.says("s0", "holds no ranks")
    life.exit(2, error=BUG)
    life.stopped()
    assert "ValueError" in life.state.attempts[0].reason
    assert life.state.attempts[0].outcome == "rank error"
    life.again()
    assert life.started().placement.nodes == ("n0", "n1")


# ---- steps, checkpoints ------------------------------------------------------------------------------------------


def test_steps_that_no_attempt_had_reached_refill_the_budget_as_newer_checkpoints_do() -> None:
    life = Life().running()
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.again()
    life.on(GangStarted(1))
    assert life.state.budget.used
    life.first(0)
    life.mark(7)
    life.says("step 7")
    assert not life.state.budget.used
    life.save(5)
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.again(saved(5))
    life.on(GangStarted(2))
    life.mark(7)
    assert life.state.budget.used, "an attempt had reached that step"
    life.mark(90)
    assert not life.state.budget.used
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.again(saved(5))
    life.on(GangStarted(3))
    life.save(5)
    assert life.state.budget.used, "of the checkpoint that is known"
    life.save(8)
    life.says("step 8", "verified")
    assert not life.state.budget.used
    assert (life.state.checkpoints.best_step, life.state.checkpoints.observed_step, life.state.checkpoints.newest) == (
        8,
        90,
        saved(8),
    )
    life.ignored(CheckpointSeen(saved(8)), "step 8", "not newer")


def test_steps_never_go_back() -> None:
    life = Life().running()
    life.mark(9)
    life.mark(4)
    life.first(2)
    assert (life.state.attempt.step, life.state.checkpoints.observed_step) == (9, 9)


# ---- hangs -------------------------------------------------------------------------------------------------------


def test_a_hang_is_shown_looked_at_and_only_then_stopped() -> None:
    life = Life().running()
    stall(life)
    assert life.actions == (TakeStacks(0),)
    assert life.state.reason == life.reason
    life.says("130 s", "limit 120 s", "stacks")
    stall(life)
    assert life.answer.outcome is Outcome.IGNORED
    life.on(StacksTaken(0, STACKS))
    assert life.phase is Phase.STOPPING
    life.stopped()
    life.says("rank 0 on n0", "load_batch")
    assert life.state.attempts[0].outcome == "hang"


def test_stacks_that_do_not_come_are_not_waited_for() -> None:
    life = Life().running()
    life.ignored(StacksTaken(0, STACKS), "nobody asked")
    stall(life)
    life.due("stacks")
    assert life.phase is Phase.STOPPING
    life.says("hung", "130 s")


def test_a_step_while_stacks_are_taken_proves_that_it_was_no_hang() -> None:
    life = Life().running()
    life.mark(7)
    stall(life)
    life.mark(7)
    assert life.state.attempt.evidence.hang is not None, "the same step is no progress"
    timer = life.state.timers.deadlines["stacks"]
    life.mark(8)
    life.says("step 8 was reported", "the ranks do not hang")
    life.ignored(StacksTaken(0, STACKS), "nobody asked")
    life.ignored(DeadlinePassed("stacks", timer.generation), "already over")
    assert life.phase is Phase.RUNNING
    stall(life)
    assert life.actions == (TakeStacks(0),)


def test_a_stalled_disk_suspends_hang_verdicts() -> None:
    life = Life().running()
    life.on(StoreStalled(life.now - 5))
    life.says("5 s", "ranks train on")
    stall(life)
    assert life.answer.outcome is Outcome.IGNORED
    life.says("run directory")
    life.on(StoreBack(20.0))
    assert life.state.reason == life.reason
    stall(life)
    life.on(StoreStalled(life.now - 5))
    assert "stacks" not in life.state.timers.deadlines, "the ranks may wait for that very disk"
    life.ignored(StacksTaken(0, STACKS), "nobody asked")
    assert life.phase is Phase.RUNNING


# ---- ends asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_saves_first(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(kind, 45.0))
    assert life.last(StopGang).checkpoint_first
    life.stopped()
    if kind in {NoticeKind.CANCEL, NoticeKind.UNKNOWN}:
        life.says("cancelled by the scheduler" if kind is NoticeKind.CANCEL else "cancelled by a signal")
        assert life.phase is Phase.CANCELLED
    elif kind is NoticeKind.REQUEUE:
        life.says("requeued", "45 s", "comes back by itself")
        assert life.actions == (EndJob(Phase.PENDING, 0, life.reason),)
        assert (life.phase, life.state.seq, life.state.ending.leaving) == (Phase.PENDING, 0, True)
        assert life.state.attempts[-1].outcome == "requeued"
        life.on(TermTaken(1, "jr1", (), (), 0))
        assert (life.phase, life.state.ending.leaving, life.state.ending.gone_at) == (Phase.PENDING, False, None)
    else:
        life.says(kind.value, "45 s", "the next job")
        assert life.last(SubmitSuccessor).seq == 1


def test_the_time_limit_of_a_box_without_a_scheduler_ends_the_run() -> None:
    life = Life().running()
    life.on(Notice(NoticeKind.TIME_LIMIT, 60.0))
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCHEDULER)
    life.says("time limit", "no scheduler")


def test_observing_asks_for_no_other_job() -> None:
    life = Life(policy=Policy(can_requeue=True, observe=True)).running()
    life.on(Notice(NoticeKind.PREEMPTION, 60.0))
    life.stopped()
    assert life.phase is Phase.FAILED
    assert life.count(SubmitSuccessor) == 0
    life.says("preempted", "observing only")


def test_acts_that_nobody_waits_for_change_nothing() -> None:
    life = Life().running()
    life.ignored(ActFailed((1, 2), "SealAttempts", "late"), "ActFailed")


def test_a_rank_that_ends_before_the_others_twice_is_the_scripts_fault() -> None:
    life = Life().running()
    for attempt in (0, 1):
        life.finish(1)
        life.exit(0, error=VICTIM)
        life.stopped()
        assert life.state.attempts[attempt].reason.startswith("rank 1 ended with exit code 0 while others still")
        if attempt == 0:
            life.again()
            life.on(GangStarted(1))
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)


def test_victims_stop_the_gang_and_blame_nobody() -> None:
    life = Life().running()
    life.exit(0, error=VICTIM)
    life.says("rank 0", "DistBackendError")
    life.stopped()
    assert life.state.attempts[0].outcome == "collective error"
    assert not life.state.health.excluded
    assert life.state.attempt.evidence == Evidence()


# ---- STOPPING: evidence ------------------------------------------------------------------------------------------


def test_who_falls_later_is_counted_once_and_the_first_stays_the_story() -> None:
    life = Life().running()
    life.exit(2, error=BUG)
    life.exit(0, error=VICTIM)
    life.says("rank 0 on n0", "DistBackendError")
    life.exit(0, error=VICTIM)
    assert life.answer.outcome is Outcome.IGNORED
    life.says("rank 0", "already")
    life.stopped()
    assert "rank 2 on n1 raised ValueError" in life.state.attempts[0].reason


def test_finishing_while_being_stopped_is_no_success() -> None:
    life = Life().stopping()
    life.finish(0, 1, 2, 3)
    life.says("rank 3", "being stopped")
    life.stopped()
    assert life.phase is Phase.STARTING


def test_what_is_lost_or_found_or_restarted_meanwhile_is_evidence_only_if_it_held_ranks() -> None:
    life = Life().stopping()
    life.join("s0")
    before = life.state.attempt.evidence
    for event in (
        NodeLost("s0", 99.0, "its probes failed"),
        NodeHeard("s0"),
        AgentRejoined("s0", "i2", "b", 2),
        FindingRaised(fatal("s0")),
        FindingRaised(warning("n1")),
        FindingRaised(warning("s0")),
    ):
        life.on(event)
        assert life.state.attempt.evidence == before, event
    assert life.state.roster.nodes["s0"].checked is False
    told: list[tuple[Event, str]] = [
        (FindingRaised(fatal("n1")), "gpu lost"),
        (NodeLost("n1", 99.0, "its probes failed"), "its probes failed"),
        (AgentRejoined("n1", "i2", "b-n1", 2), "agent on n1"),
    ]
    for said, words in told:
        seen = life.state.attempt.evidence
        life.on(said)
        life.says(words)
        assert life.state.attempt.evidence != seen
    assert life.phase is Phase.STOPPING


def test_an_agent_of_a_spare_restarted_while_stopping_does_not_hide_the_bug() -> None:
    life = Life().running()
    life.join("s0")
    life.exit(2, error=BUG)
    life.on(AgentRejoined("s0", "i2", "b", 2))
    life.stopped()
    assert life.state.attempts[0].outcome == "rank error"


def test_stacks_that_come_after_a_rank_fell_are_kept() -> None:
    life = Life().running()
    life.on(ProgressStalled(0, 130.0, 120.0, ()))
    life.exit(1, error=VICTIM)
    stacks = (RankStack(0, "n0", "load_batch", ""),)
    life.on(StacksTaken(0, stacks))
    assert life.state.attempt.evidence.hang is not None
    assert life.state.attempt.evidence.hang.stacks == stacks
    life = Life().stopping()
    life.ignored(StacksTaken(0, stacks), "nobody asked")


def test_processes_that_the_kernel_holds_make_the_node_the_suspect() -> None:
    life = Life().stopping()
    life.on(StopTimedOut(0, "n1", ("python[123]",)))
    life.says("n1", "python[123]", "D state")
    assert life.state.reason == life.reason
    life.on(StopTimedOut(0, "n1", ("python[123]", "python[124]")))
    life.says("python[124]")
    assert len(life.state.attempt.evidence.findings) == 1
    life.stopped()
    assert "unkillable" in life.state.health.excluded["n1"].reason


def test_what_could_not_be_cleaned_away_is_said_whatever_follows() -> None:
    for begin in (Life().stopping(), Life(policy=SCHEDULER).stopping()):
        begin.stopped(leftovers=("/dev/shm/psm_x",))
        begin.says("left behind", "/dev/shm/psm_x")
        assert begin.state.reason == begin.reason
    life = Life(1, 1).running()
    life.finish(0)
    life.stopped(leftovers=("/dev/shm/psm_x",))
    assert life.phase is Phase.SUCCEEDED
    life.says("the only rank finished", "/dev/shm/psm_x")


# ---- STOPPING: how it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "ends"),
    [(After.JUDGE, Phase.FAILED), (After.CANCEL, Phase.CANCELLED), (After.SUCCEED, Phase.SUCCEEDED)],
)
def test_a_stop_that_nobody_can_prove_ends_the_run_and_fences_the_next(after: After, ends: Phase) -> None:
    life = Life(1, 1).running()
    if after is After.JUDGE:
        life.exit(0)
    elif after is After.CANCEL:
        life.cancel()
    else:
        life.finish(0)
    for turn in range(1, 4):
        life.due("stop")
        life.says(f"{turn} of 3", "attempt 0")
        assert life.actions == (StopGang(0, 0.0, False, life.reason),)
    life.due("stop")
    assert life.phase is ends
    life.says("gangrun cannot prove", "attempt 0")
    assert life.state.fence.until > life.now + life.policy.timing.fence_after_s
    assert life.state.ending.failure is (Failure.NODE if ends is Phase.FAILED else None)


def test_a_stop_that_nobody_can_prove_leaves_the_job_to_its_nodes_where_there_is_a_scheduler() -> None:
    life = Life(policy=SCHEDULER).stopping()
    life.on(StopTimedOut(0, "n1", ("python[7]",)))
    for _ in range(4):
        life.due("stop")
    life.says("gangrun cannot prove", "n1 excluded", "the next job of this run without n1")
    assert life.last(SubmitSuccessor).exclude == ("n1",)
    assert life.state.fence.nodes == ("n0", "n1")
    assert life.state.fence.until > life.now + life.policy.timing.fence_after_s
    life = Life(policy=SCHEDULER).stopping()
    for _ in range(4):
        life.due("stop")
    assert life.last(SubmitSuccessor).exclude == ()


def test_rounds_of_a_stop_are_not_counted_against_storage() -> None:
    life = Life().stopping()
    life.due("stop")
    life.due("stop")
    life.stopped()
    life.on(ActFailed((1, 4), "SealAttempts", "EIO"))
    life.says("trying again in 2 s")


def test_a_cancel_overrides_what_was_to_follow() -> None:
    life = Life().stopping()
    life.cancel("a person")
    life.says("a person")
    assert life.count(StopGang) == 1
    life.cancel("a person")
    assert life.last(StopGang).grace_s == 0.0
    life.stopped()
    assert life.phase is Phase.CANCELLED
    assert life.count(StartGang) == 1


def test_a_cancel_that_comes_after_all_have_finished_is_too_late() -> None:
    life = Life(1, 1).running()
    life.finish(0)
    life.cancel("a person")
    assert life.answer.outcome is Outcome.IGNORED
    life.says("a person", "finished already")
    life.on(Notice(NoticeKind.CANCEL, 10.0))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED


def test_the_notice_that_each_node_passes_on_takes_no_grace_away() -> None:
    life = Life(policy=SCHEDULER).running()
    for _ in range(3):
        life.on(Notice(NoticeKind.UNKNOWN, 30.0))
    life.on(Notice(NoticeKind.PREEMPTION, 30.0))
    assert life.count(StopGang) == 1
    life.stopped()
    assert life.phase is Phase.CANCELLED


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_notice_while_stopping(kind: NoticeKind) -> None:
    life = Life(policy=SCHEDULER).stopping()
    life.on(Notice(kind, 30.0))
    life.stopped()
    if kind is NoticeKind.CANCEL:
        life.says("cancelled by the scheduler")
    elif kind is NoticeKind.UNKNOWN:
        life.says("cancelled by a signal")
    elif kind is NoticeKind.REQUEUE:
        life.says(kind.value, "comes back by itself")
        assert life.state.ending.leaving
    else:
        life.says(kind.value, "the next job")
        assert life.state.underway.submitting


@pytest.mark.parametrize("again", [NoticeKind.PREEMPTION, NoticeKind.TIME_LIMIT, NoticeKind.UNKNOWN])
def test_a_notice_that_comes_twice_does_not_hide_what_was_said_of_it_first(again: NoticeKind) -> None:
    """Who looks from time to time and who is asked may both see the same."""
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 14.0))
    first = life.state.reason
    assert first.startswith("preempted: 14 s to save and stop")
    life.on(Notice(again, 14.0))
    assert life.state.reason == first
    life.stopped()
    life.says("preempted: 14 s to save and stop", "the next job")
    assert life.state.underway.submitting


def test_a_cancel_counts_though_the_nodes_go_anyway() -> None:
    life = Life(policy=SCHEDULER).running()
    life.on(Notice(NoticeKind.PREEMPTION, 14.0))
    life.on(Notice(NoticeKind.CANCEL, 14.0))
    life.stopped()
    assert life.phase is Phase.CANCELLED


def test_a_stalled_disk_does_not_hide_why_all_are_stopped() -> None:
    life = Life().launching()
    life.on(GangStartFailed(0, "n0", "port 29501 is taken", retry_free=True))
    life.on(StoreStalled(life.now - 5))
    life.on(StoreBack(6.0))
    life.stopped()
    life.says("port 29501")


# ---- ranks that are told to save and stop ----------------------------------------------------------------------------


ASKED: list[tuple[Event, Phase]] = [
    (CancelRequested("someone"), Phase.CANCELLED),
    (Notice(NoticeKind.CANCEL, 30.0), Phase.CANCELLED),
    (Notice(NoticeKind.UNKNOWN, 30.0), Phase.CANCELLED),
    (Notice(NoticeKind.PREEMPTION, 30.0), Phase.WAITING),
    (Notice(NoticeKind.REQUEUE, 30.0), Phase.PENDING),
    (Notice(NoticeKind.TIME_LIMIT, 30.0), Phase.WAITING),
]


@pytest.mark.parametrize("told", ["as finished", "as stopped by us"])
@pytest.mark.parametrize(("asked", "phase"), ASKED)
def test_ranks_that_end_with_zero_while_they_are_stopped(asked: Event, phase: Phase, told: str) -> None:
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(asked)
    assert life.last(StopGang).checkpoint_first
    for rank in range(4):
        if told == "as finished":
            life.finish(rank)
        else:
            life.on(RankExited(0, RankExit(rank, "n0", 0, None, False, True, None, life.now)))
    assert life.phase is Phase.STOPPING
    life.stopped()
    assert life.phase is phase


def test_ranks_that_an_agent_stopped_on_its_own_have_not_finished() -> None:
    """Its supervisor gone, an agent stops what it has; the next supervisor hears of it while it thinks all is well."""
    life = Life().running()
    for rank in range(4):
        life.on(RankExited(0, RankExit(rank, "n0", 0, None, False, True, None, life.now)))
    life.stopped()
    assert life.phase in {Phase.STARTING, Phase.CHECKING, Phase.WAITING}


# ---- the save that was asked for -------------------------------------------------------------------------------------

SAVES: list[Event] = [asked for asked, _ in ASKED] + [FindingRaised(fatal("n1"))]


@pytest.mark.parametrize("asked", SAVES)
def test_the_save_that_ranks_were_told_to_make_ends_the_wait_for_it(asked: Event) -> None:
    """A script that trains on after saving would cost the whole grace."""
    life = Life(policy=Policy(can_requeue=True)).running()
    life.on(asked)
    after = life.state.underway.after
    life.on(CheckpointSeen(saved(7), told=True))
    life.says("step 7", "told to save")
    stop = life.last(StopGang)
    assert (stop.checkpoint_first, stop.grace_s, life.count(StopGang)) == (False, 10.0, 2)
    assert (life.phase, life.state.underway.after, life.state.checkpoints.best_step) == (Phase.STOPPING, after, 7)
    life.on(CheckpointSeen(saved(8), told=True))
    assert (life.actions, life.state.checkpoints.best_step) == ((), 8), "said once"
    assert life.state.timers.deadlines["stop"].at < life.now + 120


@pytest.mark.parametrize(
    ("seen", "progress"), [(CheckpointSeen(saved(7)), -1), (CheckpointSeen(saved(7), told=True), 8)]
)
def test_a_save_from_before_the_word_does_not(seen: CheckpointSeen, progress: int) -> None:
    """One that was there, or was being written then: steps were made since that it does not hold."""
    life = Life().running()
    if progress >= 0:
        life.on(ProgressMarked(0, progress))
    life.on(CancelRequested("someone"))
    life.on(seen)
    assert (life.actions, life.state.underway.saving, life.state.checkpoints.best_step) == ((), True, 7)


def test_a_save_during_any_other_stop_is_only_noted() -> None:
    life = Life().running()
    life.exit(0)
    life.on(CheckpointSeen(saved(7), told=True))
    assert (life.actions, life.state.checkpoints.best_step) == ((), 7)
    life.ignored(CheckpointSeen(saved(6), told=True), "not newer")


@pytest.mark.parametrize("over", [False, True])
def test_whoever_takes_over_knows_whether_a_save_is_awaited(over: bool) -> None:
    life = Life().running()
    life.on(FindingRaised(fatal("n1")))
    if over:
        life.on(CheckpointSeen(saved(7), told=True))
    life.on(TermTaken(2, "j", (), (), 0))
    assert life.last(StopGang).checkpoint_first is not over


def test_who_is_hurried_or_asked_again_saves_no_more() -> None:
    for again in ("cancel", "deadline"):
        life = Life().running()
        life.on(CancelRequested("someone"))
        life.on(CancelRequested("someone")) if again == "cancel" else life.due("stop")
        assert (life.last(StopGang).grace_s, life.state.underway.saving) == (0.0, False)
        life.on(CheckpointSeen(saved(7), told=True))
        assert life.actions == ()


# ---- thousands of ranks that fall together ----


def fell(life: Life, rank: int, error: ErrorReport, at: float, attempt: int = 0) -> RankExited:
    """As the supervisor hands it on, with or without its text."""
    died = RankExited(attempt, RankExit(rank, life.names[rank // life.ranks], 1, error=error, at=at))
    return abridged(life.state, died)


def test_of_ranks_that_fall_together_the_first_have_their_texts_and_the_rest_are_counted():
    life = Life(nodes=2, ranks=40).running()
    for rank in range(60):
        life.on(fell(life, rank, VICTIM, 100.0 + rank))
    errors = [one.error for one in life.state.attempt.evidence.exits]
    assert [error for error in errors if error is not None and error.traceback] == [VICTIM] * 32
    assert errors[32:] == [replace(VICTIM, message="", traceback="")] * 28


def test_another_failure_than_those_that_are_told_keeps_the_first_line_of_its_message():
    life = Life(nodes=2, ranks=40).running()
    for rank in range(40):
        life.on(fell(life, rank, BUG, 100.0 + rank))
    other = ErrorReport("OSError", "disk\n" + 500 * "x", "elsewhere", "Traceback ...", False)
    died = fell(life, 70, other, 200.0).exit
    assert died.error is not None and not died.error.traceback
    assert died.error.message.startswith("disk") and len(died.error.message) == 200
    assert died.error.signature == "elsewhere"


def test_the_rank_that_fell_first_keeps_its_text_however_late_its_word_comes():
    life = Life(nodes=2, ranks=40).running()
    for rank in range(40):
        life.on(fell(life, rank, VICTIM, 100.0 + rank))
    life.on(fell(life, 70, BUG, 99.0))
    assert life.state.attempt.evidence.exits[-1].error == BUG
    late = fell(life, 71, BUG, 150.0).exit.error
    assert late == replace(BUG, message="", traceback="")


def test_ranks_without_python_have_their_last_lines_only_so_long_as_others_have_texts():
    life = Life(nodes=2, ranks=40).running()
    for rank in range(60):
        tail = (f"rank {rank}: NCCL WARN something", "Aborted (core dumped)")
        died = RankExit(rank, life.names[rank // life.ranks], signal=6, at=100.0 + rank, tail=tail, written_at=99.0)
        life.on(abridged(life.state, RankExited(0, died)))
    tails = [one.tail for one in life.state.attempt.evidence.exits]
    assert all(tails[:32]) and not any(tails[32:])
    assert {one.written_at for one in life.state.attempt.evidence.exits} == {99.0}, "the order stays whole"


def test_causes_of_an_error_are_texts_too():
    life = Life(nodes=2, ranks=40).running()
    caused = replace(BUG, chain=("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'",))
    for rank in range(40):
        life.on(fell(life, rank, caused, 100.0 + rank))
    errors = [one.error for one in life.state.attempt.evidence.exits]
    assert errors[0] == caused and errors[32] == replace(BUG, message="", traceback="")


def test_a_late_word_of_an_older_attempt_brings_no_text():
    life = Life().running()
    assert fell(life, 0, BUG, 100.0, attempt=7).exit.error == replace(BUG, traceback="")
    assert abridged(life.state, life.died(0)).exit == replace(life.died(0).exit, mark=error_rules.NO_RULE)
