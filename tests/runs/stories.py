"""Runs that several tests look at: each a short life, told by the real core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangrun.core.events import CancelRequested, CheckpointSeen, ProgressMarked
from gangrun.core.model import CheckpointRef, Level
from tests.runs.builder import ERROR, VICTIM, Builder

STEP_20 = CheckpointRef(20, "/ckpt/step-20", Level.VERIFIED)
TORN = ((30, ".metadata ends early"),)


def running(runs: Path, **what: Any) -> Builder:
    """All ranks run; held by this test's process."""
    return Builder(runs, **what).supervisor().up().owned_by_us().live(step=12, loss=2.5)


def succeeded(runs: Path, **what: Any) -> Builder:
    """Ran to its end without trouble."""
    return Builder(runs, **what).supervisor().up().finished()


def cancelled(runs: Path, **what: Any) -> Builder:
    """Cancelled while it ran."""
    return Builder(runs, **what).supervisor().up().on(CancelRequested("eve")).stopped()


def restarted(runs: Path, **what: Any) -> Builder:
    """Rank 2 fell once; the run came back from step 20, past a torn step 30."""
    story = Builder(runs, **what).supervisor().up()
    story.on(CheckpointSeen(STEP_20), 60).on(ProgressMarked(0, 31), 30)
    return fall(story).again(STEP_20, TORN)


def failed(runs: Path, **what: Any) -> Builder:
    """The same exception twice at the same step: the script's fault."""
    story = restarted(runs, **what)
    story.on(ProgressMarked(1, 31), 30)
    return fall(story)


def fall(story: Builder) -> Builder:
    """Rank 2 raises, rank 0 is its victim, the others are stopped."""
    story.exit(2, error=ERROR).exit(0, error=VICTIM)
    return story.exit(1, signal=15, by_us=True).exit(3, signal=15, by_us=True).stopped()
