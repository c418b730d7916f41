"""Ranks that are told to save and stop: ending with 0 is no success, and a save that is there ends the wait."""

from __future__ import annotations

import pytest

from gangrun.core.actions import StopGang
from gangrun.core.events import (
    CancelRequested,
    CheckpointSeen,
    Event,
    FindingRaised,
    Notice,
    NoticeKind,
    ProgressMarked,
    RankExited,
    TermTaken,
)
from gangrun.core.model import Phase, RankExit
from gangrun.core.policy import Policy
from tests.core.life import Life, fatal, saved

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
