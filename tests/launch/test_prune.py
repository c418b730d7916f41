"""``gangrun prune``: only what is over, never checkpoints, nothing without being asked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gangrun.agent.ranks.environment import AttemptFiles
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import failed, running, succeeded

DAY_S = 86400.0


def ago(days: float) -> float:
    return time.time() - days * DAY_S


def test_old_ended_runs_go_and_the_rest_stays(runs: Path, gangrun: Call, home: Path) -> None:
    old = succeeded(runs, run="20261018-100000-aaaaa", now=ago(30)).indexed(home / "state" / "gangrun" / "runs")
    new = succeeded(runs, run="20261118-100000-bbbbb", now=ago(1))
    alive = running(runs, run="20261018-100000-ccccc", now=ago(40))
    lost = Builder(runs, run="20261018-100000-ddddd", now=ago(30)).supervisor().up().owner()
    recent = Builder(runs, run="20261118-100000-eeeee", now=ago(2)).supervisor().up().owner()
    far = Builder(runs, run="20261018-100000-fffff", now=ago(20)).supervisor().up().owner(host="another-host")
    assert gangrun("prune").code == 2  # nobody to ask
    dry = gangrun("prune", "--dry-run", "--json").json
    assert {one["run"] for one in dry["removed"]} == {old.run, lost.run}
    assert old.paths.root.exists()
    said = gangrun("prune", "-y")
    assert said.code == 0
    assert "removed 2 runs" in said.out
    assert not old.paths.root.exists()
    assert not lost.paths.root.exists()
    assert all(story.paths.root.exists() for story in (new, alive, recent, far))
    assert not list((home / "state" / "gangrun" / "runs").glob("*.json"))


def test_a_named_run_goes_however_new_but_not_while_it_lives(runs: Path, gangrun: Call) -> None:
    over = failed(runs, run="20261118-100000-aaaaa", name="over", now=ago(0))
    alive = running(runs, run="20261118-100000-bbbbb", name="alive", now=ago(0))
    said = gangrun("prune", "-y", "over", "alive")
    assert said.code == 3
    assert "it is running" in said.out
    assert not over.paths.root.exists()
    assert alive.paths.root.exists()
    assert gangrun("prune", "-y", "nothing-like-it").code == 5


def test_keep_and_older_than(runs: Path, gangrun: Call) -> None:
    for day in range(4):
        succeeded(runs, run=f"2026111{day}-100000-aaaaa", now=ago(10 - day))
    going = gangrun("prune", "--older-than", "1d", "--keep", "2", "--dry-run", "--json").json["removed"]
    assert [one["run"] for one in going] == ["20261111-100000-aaaaa", "20261110-100000-aaaaa"]
    assert gangrun("prune", "--older-than", "long", "-y").code == 2


def test_a_run_that_holds_checkpoints_or_cannot_be_read_stays(runs: Path, gangrun: Call) -> None:
    inside = runs / "20261018-100000-aaaaa" / "ckpt"
    holds = succeeded(runs, run="20261018-100000-aaaaa", name="holds", now=ago(30), checkpoint_dir=str(inside))
    broken = Builder(runs, run="20261018-100000-bbbbb", name="broken", now=ago(30)).supervisor()
    broken.paths.journal(1).write_bytes(b"garbage\n")
    kept = {one["run"]: one["why"] for one in gangrun("prune", "-y", "--json").json["kept"]}
    assert "checkpoints lie in its run directory" in kept[holds.run]
    assert "cannot be read" in kept[broken.run]
    assert holds.paths.root.exists()


def test_checkpoints_elsewhere_are_not_touched(runs: Path, gangrun: Call, home: Path) -> None:
    ckpt = home / "ckpt" / "step-1"
    ckpt.mkdir(parents=True)
    story = succeeded(runs, now=ago(30), checkpoint_dir=str(home / "ckpt"))
    story.paths.resume.symlink_to(ckpt)
    assert gangrun("prune", "-y").code == 0
    assert not story.paths.root.exists()
    assert ckpt.is_dir()


def test_it_sweeps_what_killed_agents_left_in_memory(
    runs: Path, gangrun: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("GANGRUN_LOCAL_DIR", str(memory))
    AttemptFiles(memory, "20261018-100000-aaaaa", "n0", 0)._let_go()
    alive = AttemptFiles(memory, "20261018-100000-bbbbb", "n0", 0)
    assert gangrun("prune", "--dry-run").err == ""
    said = gangrun("prune", "-y")
    assert "20261018-100000-aaaaa" in said.err
    assert [path.name for path in memory.glob("gangrun-*/*")] == ["20261018-100000-bbbbb"]
    alive.remove()
