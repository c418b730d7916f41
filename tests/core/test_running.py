"""All ranks alive: what is ridden out, what stops the gang, and what people read meanwhile."""

from __future__ import annotations

import pytest

from gangrun.core.actions import EndJob, ProbeNode, StopGang, SubmitSuccessor, TakeStacks
from gangrun.core.events import (
    ActFailed,
    AgentRejoined,
    CheckpointSeen,
    DeadlinePassed,
    FindingRaised,
    GangStarted,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    ProgressStalled,
    StacksTaken,
    StoreBack,
    StoreStalled,
    TermTaken,
)
from gangrun.core.model import After, ErrorReport, Evidence, Failure, Outcome, Phase, RankObservation, RankStack
from gangrun.core.policy import Policy
from tests.core.life import BUG, VICTIM, Life, fatal, saved, warning

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
        ({"code": None, "signal": 9, "oom": True}, "killed for memory"),
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
    assert (stop.attempt, stop.grace_s, stop.checkpoint_first) == (0, life.policy.stop_grace_s, False)


def test_the_last_rank_to_finish_ends_the_run_and_early_ones_are_mentioned() -> None:
    life = Life().running()
    life.mark(12)
    life.finish(0, 1)
    life.says("rank 1", "2 of 4")
    life.due("finish")
    life.says("rank 0, rank 1 ended with exit code 0, the first over 30 s ago")
    life.says("rank 2, rank 3 still run; they hang if they wait for ranks that have ended")
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
    assert life.state.reason == "n1 is heard again", "the suspicion must not stay what people read"
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


def test_steps_refill_the_budget_only_while_no_checkpoint_is_known() -> None:
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
    life.mark(90)
    assert life.state.budget.used, "a checkpoint is known: steps alone are no progress any more"
    life.save(6)
    assert life.state.budget.used, "below the mark"
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
    life.says("step 8", "no hang")
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


def test_observing_restarts_nothing() -> None:
    life = Life(policy=Policy(observe=True)).running()
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert life.phase is Phase.FAILED
    life.says("rank 0 on n0", "SIGKILL", "observing only")


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
