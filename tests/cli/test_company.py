"""Two runs must not save to one directory at once; whoever ended, died or waits is no hindrance."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gangrun.adapters.fs.index import IndexEntry
from gangrun.cli import company
from gangrun.cli.company import SIGN_WITHIN_S, give_way, refuse_company, refuse_lasting_company, words_of_company
from gangrun.cli.errors import UserError
from tests.cli.conftest import Call
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


def begun(runs: Path, name: str) -> Builder:
    """A run that this very process owns, and that has no supervisor yet."""
    return Builder(runs, run=f"20261118-110640-{name}", checkpoint_dir=str(runs / "ckpt")).owned_by_us()


def entry(story: Builder) -> IndexEntry:
    return IndexEntry(story.run, story.name, str(story.paths.root), story.spec.created_wall)


def test_of_two_that_began_at_once_one_gives_way_and_the_other_waits_for_that(runs: Path) -> None:
    first, second = begun(runs, "aaaaa"), begun(runs, "bbbbb")
    known = [entry(first), entry(second)]
    with pytest.raises(UserError, match=first.run):
        give_way(second.spec, lambda: known, within_s=600.0)
    asked: list[int] = []

    def goes_away() -> list[IndexEntry]:
        asked.append(1)
        return known if len(asked) < 3 else known[:1]

    give_way(first.spec, goes_away, within_s=600.0)
    assert len(asked) == 3
    with pytest.raises(UserError, match=second.run):
        give_way(first.spec, lambda: known, within_s=0.0)


def test_one_that_is_taken_up_again_is_seen_before_it_says_a_word(runs: Path) -> None:
    other, mine = begun(runs, "aaaaa").supervisor().up().finished(), begun(runs, "bbbbb")
    assert words_of_company(mine.spec, [entry(other)], other.now) == ""
    other.owner(1, pid=os.getpid())
    assert other.run in words_of_company(mine.spec, [entry(other)], other.now + 600.0)


def test_a_job_that_begins_beside_a_live_run_waits_a_little_and_starts_nothing(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, mine = begun(runs, "bbbbb"), begun(runs, "aaaaa")
    asked: list[int] = []

    def dies() -> list[IndexEntry]:
        asked.append(1)
        return [entry(other)] if len(asked) < 3 else []

    refuse_lasting_company(mine.spec, dies)
    assert len(asked) == 3
    monkeypatch.setattr(company, "SIGN_WITHIN_S", 0.0)
    with pytest.raises(UserError, match=other.run):
        refuse_lasting_company(mine.spec, lambda: [entry(other)])


def test_who_submits_beside_a_live_run_is_told(runs: Path, home: Path, gangrun: Call) -> None:
    other = begun(runs, "aaaaa").indexed(home / "state" / "gangrun" / "runs")
    (home / "train.py").touch()
    said = gangrun("submit", "--dry-run", "--checkpoint-dir", str(runs / "ckpt"), "train.py")
    assert said.code == 0
    assert f"run {other.run} (train) saves to {runs / 'ckpt'}, and has not ended" in said.err
    assert "saves to" not in gangrun("submit", "--dry-run", "--checkpoint-dir", str(home), "train.py").err


def test_two_that_are_started_in_the_same_moment_do_not_run_at_once(home: Path) -> None:
    script = home / "train.py"
    script.write_text(
        "import os, pathlib, time\nalone = pathlib.Path('alone')\nalone.mkdir()\ntime.sleep(0.5)\nalone.rmdir()\n"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "gangrun", "run", "--max-restarts", "0", "--checkpoint-dir", "ckpt", str(script)]
    both = [subprocess.Popen(command, cwd=home, env=here, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [one.communicate(timeout=300)[1] for one in both]
    codes = sorted(one.returncode for one in both)
    assert codes in ([0, 2], [0, 0]), told  # both, if the one ended while the other waited
    assert len(list((home / "gangrun_runs").iterdir())) == codes.count(0), "who gave way leaves nothing"
    assert all("saves to" in words for one, words in zip(both, told, strict=True) if one.returncode)


def test_a_run_that_waits_in_a_queue_is_no_hindrance(runs: Path) -> None:
    story = Builder(runs, checkpoint_dir=str(runs / "ckpt"), world="slurm")
    assert not refused(story, str(runs / "ckpt"))
