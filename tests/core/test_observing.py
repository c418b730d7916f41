"""``--observe``: everything is seen, concluded and told; nothing that still trains is stopped."""

from __future__ import annotations

from gangrun.core.actions import StopGang, TakeStacks
from gangrun.core.events import FindingRaised, FirstStepSeen, ProgressStalled, StacksTaken
from gangrun.core.model import Failure, NodeFinding, Outcome, Phase, RankObservation, RankStack
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal, saved

OBSERVED = (RankObservation(0, "n0", "S", 5, 0.0), RankObservation(1, "n0", "T", 5, 0.0))


def watched(*, can_requeue: bool = False) -> Life:
    return Life(policy=Policy(observe=True, can_requeue=can_requeue)).running()


def stall(life: Life, stalled_s: float = 40.0) -> None:
    life.on(ProgressStalled(life.state.attempt.number, stalled_s, 30.0, OBSERVED))


def test_a_hang_is_told_with_what_would_follow_and_training_goes_on() -> None:
    life = watched()
    stall(life)
    assert life.last(TakeStacks).attempt == 0
    life.on(StacksTaken(0, (RankStack(1, "n0", "sleep (train.py:3)", ""),)))
    assert (life.phase, life.count(StopGang)) == (Phase.RUNNING, 0)
    life.says("hung", "40 s", "rank 1", "observing only, so training goes on", "restarting in place")
    assert life.state.reason == life.reason
    assert "stacks" not in life.state.timers.deadlines
    life.ignored(StacksTaken(0, ()), "nobody asked")
    life.mark(6)
    life.says("no hang")
    assert (life.state.reason, life.state.attempt.evidence.hang) == (life.reason, None)


def test_a_hang_that_lasts_is_looked_at_again_and_stacks_may_be_missing() -> None:
    life = watched()
    stall(life)
    stall(life)
    assert life.answer.outcome is Outcome.IGNORED
    life.due("stacks")
    life.says("40 s", "training goes on")
    stall(life, 80.0)
    life.due("stacks")
    life.says("80 s", "training goes on")
    assert (life.phase, life.count(StopGang), life.count(TakeStacks)) == (Phase.RUNNING, 0, 2)


def test_a_fatal_finding_is_told_once_and_excludes_nobody() -> None:
    life = watched(can_requeue=True)
    life.on(FindingRaised(fatal("n0")))
    life.says("n0", "observing only", "all ranks would be stopped")
    assert life.state.reason == life.reason
    life.on(FindingRaised(fatal("n0")))
    assert "observing" not in life.reason
    assert (life.phase, life.count(StopGang), dict(life.state.health.excluded)) == (Phase.RUNNING, 0, {})


def test_a_script_that_starts_over_is_told_and_let_be() -> None:
    life = Life(policy=Policy(observe=True)).running(saved(20))
    life.on(FirstStepSeen(0, 3))
    life.says("started over", "20", "observing only")
    assert (life.phase, life.count(StopGang)) == (Phase.RUNNING, 0)
    assert life.state.attempt.step == 3
    life.exit(0, code=1)
    life.stopped()
    life.says("exit code 1")


def test_a_rank_that_dies_ends_the_run_with_its_own_result() -> None:
    life = watched()
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("rank 0 on n0", "SIGKILL", "restarting in place", "observing only")
    assert life.state.attempts[0].outcome == "signal"


def test_nobody_is_excluded_for_what_a_rank_died_of() -> None:
    life = watched(can_requeue=True)
    life.on(FindingRaised(NodeFinding("n0", "gpu lost", True, "GPU 0 of n0 is lost")))
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.says("GPU 0 of n0", "observing only")
    assert (life.phase, life.state.ending.failure, dict(life.state.health.excluded)) == (Phase.FAILED, Failure.NODE, {})


def test_what_would_have_ended_the_run_anyway_ends_it_the_same() -> None:
    life = Life(policy=Policy(observe=True, restarts_max_count=0)).running()
    life.exit(0, code=None, signal=9)
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.BUDGET)
    assert "observing" not in life.reason
