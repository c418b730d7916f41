"""Two runs must not save to one directory at once; whoever ended, died or waits is no hindrance."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.journal import Counter
from gangrun.entry import slurm_job as job_main
from gangrun.errors import UserError
from gangrun.launch import exclusive
from gangrun.launch.exclusive import (
    BEGINS_S,
    LASTS_S,
    LONG_OVER_S,
    SILENT_S,
    Time,
    give_way,
    refuse_company,
    refuse_lasting_company,
    words_of_company,
)
from gangrun.launch.local import own
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.slurm_stories import job, leaving, submitted
from tests.slurm_parts.pretend_tools import PretendTools

DEAD = 2**22 + 1  # no process can have this number
HOUR_S = 3600.0


class Passing:
    """Time that passes only while somebody waits, by a clock that may be wrong; ``happens`` meanwhile."""

    def __init__(self, wall: float, happens: Callable[[float], object] = lambda at: None) -> None:
        self.at, self.began, self.happens = 0.0, wall, happens
        self.time = Time(now=lambda: self.at, wall=lambda: self.began + self.at, wait=self.wait)

    def wait(self, seconds: float) -> None:
        self.at += seconds
        self.happens(self.at)


def entry(story: Builder) -> IndexEntry:
    return IndexEntry(story.run, story.name, str(story.paths.root), story.spec.created_wall)


def refused(story: Builder, directory: str) -> bool:
    """Would a new run that saves to ``directory`` be told to wait for the one of ``story``?"""
    mine = msgspec.structs.replace(story.spec, run="20261119-000000-other")
    mine = msgspec.structs.replace(mine, checkpoint=msgspec.structs.replace(mine.checkpoint, directory=directory))
    gone = IndexEntry("20261117-000000-gone", "gone", str(story.runs / "gone"), 0.0)
    said = ""
    try:
        refuse_company(mine, lambda: (entry(story), gone))
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
    refuse_company(story.spec, lambda: [entry(story)])  # it is itself


def test_no_run_is_too_old_and_no_index_too_long(runs: Path) -> None:
    story = begun(runs, "aaaaa").supervisor().up()
    elsewhere = Builder(runs, run="20261118-110640-ccccc", checkpoint_dir=str(runs / "elsewhere")).owned_by_us()
    mine = begun(runs, "bbbbb")
    with pytest.raises(UserError, match=story.run):
        refuse_company(mine.spec, lambda: [*[entry(elsewhere)] * 1000, entry(story)])


@pytest.mark.parametrize(
    "change",
    [lambda story: story.finished(), lambda story: story.owner(1, pid=DEAD, ticks=1)],
    ids=["ended", "killed"],
)
def test_whoever_is_over_is_no_hindrance(runs: Path, change: Callable[[Builder], Builder]) -> None:
    story = Builder(runs, checkpoint_dir=str(runs / "ckpt")).owner(pid=os.getpid()).supervisor().up()
    assert refused(story, str(runs / "ckpt"))
    change(story)
    assert not refused(story, str(runs / "ckpt"))


def begun(runs: Path, name: str) -> Builder:
    """A run that this very process owns, and that has no supervisor yet."""
    return Builder(runs, run=f"20261118-110640-{name}", checkpoint_dir=str(runs / "ckpt")).owned_by_us()


def far(runs: Path, name: str = "bbbbb") -> Builder:
    """A run that trains on a host which cannot be asked."""
    return begun(runs, name).owner(host="elsewhere").supervisor().up()


def alone(mine: Builder, other: Builder, passing: Passing) -> bool:
    try:
        refuse_lasting_company(mine.spec, lambda: [entry(other)], passing.time)
    except UserError as error:
        return other.run not in error.message
    return True


@pytest.mark.parametrize("ahead_s", [-26 * HOUR_S, -6 * HOUR_S, -HOUR_S, 0.0, HOUR_S, 6 * HOUR_S, 26 * HOUR_S])
def test_what_still_writes_lives_whatever_the_clocks_say(runs: Path, ahead_s: float) -> None:
    other, mine = far(runs), begun(runs, "aaaaa")
    counter = Counter(Disk(), other.paths, other.term)

    def happens(at: float) -> None:
        if at % 5 == 0:
            counter.write({}, other.now + at)

    passing = Passing(other.now + ahead_s, happens)
    assert not alone(mine, other, passing)
    assert LASTS_S <= passing.at <= LASTS_S + 5


@pytest.mark.parametrize(
    ("ahead_s", "writes_for_s", "within_s"),
    [
        (-HOUR_S, 0, SILENT_S),
        (0.0, 0, SILENT_S),
        (HOUR_S, 0, SILENT_S),
        (6 * HOUR_S, 0, SILENT_S),
        (-LONG_OVER_S - HOUR_S, 0, SILENT_S),  # a sign from the future says nothing about how old it is
        (0.0, 10, 10 + SILENT_S),  # killed while we looked
        (LONG_OVER_S + HOUR_S, 0, 0.0),
    ],
)
def test_what_was_killed_elsewhere_is_soon_no_hindrance(
    runs: Path, ahead_s: float, writes_for_s: float, within_s: float
) -> None:
    other, mine = far(runs), begun(runs, "aaaaa")
    counter = Counter(Disk(), other.paths, other.term)
    counter.write({}, other.now)

    def happens(at: float) -> None:
        if at <= writes_for_s:
            counter.write({}, other.now + at)

    passing = Passing(other.now + ahead_s, happens)
    assert alone(mine, other, passing)
    assert passing.at == within_s


def test_one_that_ends_while_it_is_looked_at_is_no_hindrance(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, mine = begun(runs, "bbbbb").supervisor().up(), begun(runs, "aaaaa")
    passing = Passing(other.now, lambda at: at == 7 and other.finished())
    assert alone(mine, other, passing)
    assert passing.at == 7
    assert capsys.readouterr().err.count("checking whether it is still alive") == 1
    other.owner(1, pid=os.getpid())  # it is taken up again
    assert not alone(mine, other, Passing(other.now))


def claimed(runs: Path, name: str) -> tuple[Builder, Passing]:
    """A job of a run that has its place, and no supervisor yet; it begins after 50 s."""
    other = submitted(runs, run=f"20261118-110640-{name}", checkpoint_dir=str(runs / "ckpt")).owner(host="n0")
    return other, Passing(other.paths.jobs.stat().st_mtime)


def test_a_job_is_seen_from_its_claim_on(runs: Path) -> None:
    other, passing = claimed(runs, "bbbbb")
    mine = begun(runs, "aaaaa")
    passing.happens = lambda at: at == 50 and other.supervisor().up()
    assert not alone(mine, other, passing)
    assert passing.at == 50


def test_a_claim_that_nothing_follows_is_no_hindrance_for_ever(runs: Path) -> None:
    other, passing = claimed(runs, "bbbbb")
    mine = begun(runs, "aaaaa")
    assert alone(mine, other, passing)
    assert passing.at == BEGINS_S
    later = Passing(passing.began + LONG_OVER_S + HOUR_S)
    assert alone(mine, other, later) and later.at == 0
    other.paths.setup_failed(0).write_text("nothing is started: somebody else saves there\n")
    told = Passing(passing.began)
    assert alone(mine, other, told) and told.at == 0


@pytest.mark.parametrize(("state", "within_s"), [("FAILED", 0), ("", 0), ("RUNNING", BEGINS_S)])
def test_a_claim_whose_job_slurm_knows_to_be_over_is_no_hindrance(
    runs: Path, tools: PretendTools, state: str, within_s: float
) -> None:
    """It was killed between its claim and its first record, and Slurm may have forgotten it."""
    other, passing = claimed(runs, "bbbbb")
    if state:
        job(tools, other, 12, state)
    mine = begun(runs, "aaaaa")
    assert alone(mine, other, passing)
    assert passing.at == within_s


def test_a_claim_whose_job_is_killed_while_it_is_looked_at_is_soon_no_hindrance(
    runs: Path, tools: PretendTools
) -> None:
    other, passing = claimed(runs, "bbbbb")
    job(tools, other, 12, "RUNNING")

    def happens(at: float) -> None:
        if at == 15:
            job(tools, other, 12, "FAILED")

    passing.happens = happens
    assert alone(begun(runs, "aaaaa"), other, passing)
    assert passing.at == 20
    assert len(tools.calls()) < 10, "Slurm is asked now and then"


def test_of_two_jobs_that_begin_at_once_one_looks_for_longer(runs: Path) -> None:
    other, passing = claimed(runs, "aaaaa")
    mine = begun(runs, "bbbbb")
    passing.happens = lambda at: at == BEGINS_S + 60 and other.supervisor().up()  # it has looked, and starts
    assert not alone(mine, other, passing)


def test_of_two_that_began_at_once_one_gives_way_and_the_other_waits_for_that(runs: Path) -> None:
    first, second = begun(runs, "aaaaa"), begun(runs, "bbbbb")

    def known() -> list[IndexEntry]:
        return [entry(first), entry(second)]

    at_once = Passing(first.now)
    with pytest.raises(UserError, match=first.run):
        give_way(second.spec, known, time=at_once.time)
    assert at_once.at == 0
    passing = Passing(first.now, lambda at: at == 3 and second.owner(pid=DEAD, ticks=1))
    give_way(first.spec, known, time=passing.time)
    assert passing.at == 3
    second.owned_by_us()
    with pytest.raises(UserError, match=second.run):
        give_way(first.spec, known, time=Passing(first.now).time)


def test_who_is_in_a_hurry_believes_the_first_sign_of_one_elsewhere(runs: Path) -> None:
    other, mine = far(runs, "aaaaa"), begun(runs, "bbbbb")
    passing = Passing(other.now)
    give_way(mine.spec, lambda: [entry(other)], time=passing.time)
    assert passing.at == SILENT_S, "it was killed"
    passing = Passing(other.now, lambda at: at == 4 and other.live())
    with pytest.raises(UserError, match=other.run):
        give_way(mine.spec, lambda: [entry(other)], time=passing.time)
    assert passing.at == 4


def test_one_that_cannot_be_read_is_left_aside(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, mine = far(runs), begun(runs, "aaaaa")
    other.paths.journal(other.term).write_bytes(b"no journal\n")
    passing = Passing(other.now)
    assert alone(mine, other, passing)
    assert passing.at == SILENT_S
    assert "is alive, so gangrun ignores that run" in capsys.readouterr().err


def test_who_gives_way_has_changed_nothing_yet(runs: Path) -> None:
    begun(runs, "aaaaa")
    mine = Builder(runs, run="20261118-110640-bbbbb", checkpoint_dir=str(runs / "ckpt"))
    called: list[int] = []
    with pytest.raises(UserError, match="aaaaa"):
        own(mine.spec, mine.paths, {}, ready=called.append)
    assert called == [] and mine.paths.spec.exists()


def test_what_hangs_or_is_not_known_holds_nobody(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, mine = begun(runs, "aaaaa"), begun(runs, "bbbbb")
    release = threading.Event()

    def hangs() -> list[IndexEntry]:
        release.wait(600)
        return [entry(other)]

    def no_home() -> list[IndexEntry]:
        raise RuntimeError("Could not determine home directory.")

    try:
        refuse_lasting_company(mine.spec, hangs, Time(answers_within_s=0.1))
    finally:
        release.set()
    assert "a file system does not answer" in capsys.readouterr().err
    refuse_lasting_company(mine.spec, no_home)
    assert "Could not determine home directory" in capsys.readouterr().err


def test_a_job_that_starts_nothing_leaves_its_story_to_status(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor of an old run, in whose directory somebody else saves by now."""
    other, old = begun(runs, "bbbbb"), leaving(runs, checkpoint_dir=str(runs / "ckpt"))
    monkeypatch.setattr(exclusive, "LASTS_S", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n0")
    job(tools, old, 12, "NODE_FAIL")
    job(tools, old, 13, "RUNNING", seq=1, nodes="n0")
    assert job_main.main(["--run-dir", str(old.paths.root), "--seq", "1"]) == 78
    job(tools, old, 13, "FAILED", "NonZeroExitCode", seq=1)
    found = gangrun("status", old.run, "--json").json
    assert (found["state"], found["exit_code"]) == ("FAILED", 1)
    assert found["reason"].startswith(f"nothing is started: run {other.run} (train) saves to {runs / 'ckpt'}")
    assert f"gangrun resume {old.run}" in found["reason"]
    assert gangrun("explain", old.run).code == 0
    said = gangrun("resume", old.run)
    assert said.code == 0 and f"run {other.run} (train) saves to" in said.err
    assert gangrun("status", old.run, "--json").json["state"] == "PENDING"


def test_in_an_allocation_of_ones_own_it_is_waited_too(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = begun(runs, "aaaaa")
    monkeypatch.setattr(exclusive, "LASTS_S", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n0")
    (tools.folder / "srun").symlink_to("/bin/false")
    (runs.parent / "train.py").touch()
    said = gangrun("run", "--json", "--nproc-per-node", "1", "--checkpoint-dir", str(runs / "ckpt"), "train.py")
    assert said.error["kind"] == "busy" and other.run in said.error["message"]
    assert [folder.name for folder in runs.iterdir()] == [other.run], "nothing is left"


def test_who_submits_beside_a_live_run_is_told(runs: Path, home: Path, gangrun: Call) -> None:
    other = begun(runs, "aaaaa").indexed(home / "state" / "gangrun" / "runs")
    (home / "train.py").touch()
    said = gangrun("submit", "--dry-run", "--checkpoint-dir", str(runs / "ckpt"), "train.py")
    assert said.code == 0
    assert f"run {other.run} (train) saves to {runs / 'ckpt'}, and has not ended" in said.err
    assert f"gangrun wait {other.run}" in said.err and "afterany" not in said.err
    assert words_of_company(begun(runs, "ccccc").spec, lambda: [entry(other)])[1] == other.run
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
