"""A script that is told to save and stop may well end with 0: that is no success, whatever was to follow."""

from __future__ import annotations

import pytest

from gangrun.core.actions import StopGang
from gangrun.core.events import CancelRequested, Event, Notice, NoticeKind, RankExited
from gangrun.core.model import Phase, RankExit
from gangrun.core.policy import Policy
from tests.core.life import Life

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
