"""Two runs must not save to one directory at once; whoever ended, died or waits is no hindrance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gangrun.adapters.fs.index import IndexEntry
from gangrun.cli.company import SIGN_WITHIN_S, refuse_company
from gangrun.cli.errors import UserError
from tests.cli.run_builder import Builder

DEAD = 2**22 + 1  # no process can have this number


def refused(story: Builder, directory: str, later_s: float = 1.0) -> bool:
    """Would a new run that saves to ``directory`` be told to wait for the one of ``story``?"""
    mine = msgspec.structs.replace(story.spec, run="20261119-000000-other")
    mine = msgspec.structs.replace(mine, checkpoint=msgspec.structs.replace(mine.checkpoint, directory=directory))
    gone = IndexEntry("20261117-000000-gone", "gone", str(story.runs / "gone"), 0.0)
    known = (IndexEntry(story.run, story.name, str(story.paths.root), story.spec.created_wall), gone)
    said = ""
    try:
        refuse_company(mine, known, story.now + later_s)
    except UserError as error:
        said = f"{error.message}; {error.hint}"
    assert not said or (story.run in said and "gangrun cancel" in said)
    return bool(said)


def test_a_run_that_trains_is_not_joined(runs: Path, home: Path) -> None:
    place = home / "ckpt"
    place.mkdir()
    (home / "by another name").symlink_to(place)
    story = Builder(runs, checkpoint_dir=str(place)).owner(pid=os.getpid()).supervisor().up()
    assert refused(story, str(place))
    assert refused(story, str(home / "by another name"))
    assert not refused(story, str(home / "elsewhere")) and not refused(story, "")
    refuse_company(story.spec, [IndexEntry(story.run, "train", str(story.paths.root), 0.0)], story.now)  # it is itself


@pytest.mark.parametrize(
    ("change", "later_s"),
    [
        (lambda story: story.finished(), 1.0),
        (lambda story: story.owner(1, pid=DEAD, ticks=1), 1.0),
        (lambda story: story.owner(1, pid=DEAD, ticks=1, host="elsewhere"), SIGN_WITHIN_S + 60.0),
    ],
    ids=["ended", "killed", "silent on another host"],
)
def test_whoever_is_over_is_no_hindrance(runs: Path, change: Callable[[Builder], Builder], later_s: float) -> None:
    story = Builder(runs, checkpoint_dir=str(runs / "ckpt")).owner(pid=os.getpid()).supervisor().up()
    assert refused(story, str(runs / "ckpt"))
    change(story)
    assert not refused(story, str(runs / "ckpt"), later_s)


def test_a_run_that_waits_in_a_queue_is_no_hindrance(runs: Path) -> None:
    story = Builder(runs, checkpoint_dir=str(runs / "ckpt"), world="slurm")
    assert not refused(story, str(runs / "ckpt"))
