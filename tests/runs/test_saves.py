"""``gangrun status`` and ``explain`` tell how a run's saves go, from the block that its checkpointer leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gangrun.runs.saves import SavedOnDisk, read_saves
from gangrun.wire.saves import SIZE_BYTES, SavesTold, encode
from gangrun.wire.spec import CheckpointSpec
from tests.command_line import Call
from tests.runs.builder import BEGAN, Builder
from tests.runs.stories import running

WELL = SavesTold(0, BEGAN, 312.0, "a save stalls training for 0.20 s", saved_step=40, saved_at=BEGAN, persist_s=2.0)
FAILED = SavesTold(
    0, BEGAN, 312.0, "as asked", failures_count=3, failed_step=60, failed_why="step 60 was not saved: full"
)


def news(story: Builder, told: SavesTold) -> Path:
    folder = Path(story.checkpoint_dir) / ".gangrun" / story.run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saves.json").write_bytes(encode(told))
    return folder / "saves.json"


def test_how_often_and_why_is_shown_and_a_failed_save_is_warned_of(runs: Path, tmp_path: Path, gangrun: Call) -> None:
    story = running(runs, checkpoint_dir=str(tmp_path / "ckpt"))
    assert gangrun("status", "--json").json["saves"] is None
    assert "saves " not in gangrun("status").out
    news(story, WELL)
    assert "a save stalls training for 0.20 s" in gangrun("status").out
    shown = gangrun("status", "--json").json["saves"]
    assert (shown["saved_step"], shown["persist_s"], shown["interval_s"], shown["failed"]) == (40, 2.0, 312.0, None)
    assert "save failed" not in gangrun("explain").out
    news(story, FAILED)
    for command in ("status", "explain"):
        said = " ".join(gangrun(command).out.split())
        assert "! the newest save failed" in said and "step 60 was not saved: full (3 saves in a row failed)" in said
        saves = gangrun(command, "--json").json["saves"]
        assert saves["failed"] == {"step": 60, "at": BEGAN, "why": "step 60 was not saved: full", "in_a_row": 3}
        assert (saves["saved_step"], saves["saved_at"]) == (None, None)


def test_a_checkpoint_directory_that_is_missing_or_empty_is_named(runs: Path, tmp_path: Path, gangrun: Call) -> None:
    folder = tmp_path / "saves"
    Builder(runs, checkpoint_dir=str(folder)).supervisor().up()
    assert f"checkpoint none: {folder} does not exist" in " ".join(gangrun("status").out.split())
    (folder / ".gangrun").mkdir(parents=True)
    assert gangrun("status", "--json").json["no_checkpoint"] == f"{folder} is empty"
    (folder / "step-3").mkdir()  # a save that is under way
    assert "none known" in gangrun("status").out
    folder.rename(tmp_path / "moved")
    folder.touch()
    assert "saves cannot be listed (Not a directory)" in gangrun("status", "--json").json["no_checkpoint"]


def test_the_newest_checkpoint_is_found_without_a_look_into_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 10, 11):
        (tmp_path / f"step-{step}").mkdir()
        if step != 11:  # which is unfinished
            (tmp_path / f"step-{step}" / ".metadata").touch()
    looked: list[str] = []
    listdir = os.listdir

    def listed(path: str) -> list[str]:
        looked.extend([os.path.basename(path)] if path.startswith(str(tmp_path)) else [])  # not those of an import
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    now = (tmp_path / "step-10").stat().st_mtime
    found = SavedOnDisk().newest(CheckpointSpec(str(tmp_path)), now - 1, now + 1)
    assert found is not None and found[0] == 10
    assert looked == ["step-11", "step-10"]


def test_of_a_directory_of_many_runs_each_name_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``status --all``: its cost grows with the runs and with the checkpoints, not with their product."""
    runs_count, steps_count, hour_s = 20, 5, 3600.0
    for number in range(runs_count * steps_count):
        path = tmp_path / f"step-{number}"
        path.mkdir()
        (path / ".metadata").touch()
        at = number // steps_count * hour_s + 60.0
        os.utime(path, (at, at))
    looked: list[str] = []
    for name in ("stat", "listdir", "scandir"):
        real = getattr(os, name)

        def counted(path: str, real: Any = real, **more: Any) -> Any:
            looked.extend([str(path)] if str(path).startswith(str(tmp_path)) else [])
            return real(path, **more)

        monkeypatch.setattr(os, name, counted)
    saved = SavedOnDisk()
    for run in range(runs_count):
        found = saved.newest(CheckpointSpec(str(tmp_path)), run * hour_s, run * hour_s + 100.0)
        assert found is not None and found[0] == (run + 1) * steps_count - 1
    assert len(looked) <= 1 + runs_count * steps_count + runs_count


def test_what_is_no_news_is_not_believed_nor_followed(tmp_path: Path) -> None:
    path = tmp_path / ".gangrun" / "r" / "saves.json"
    path.parent.mkdir(parents=True)
    assert read_saves("", "r") is None
    path.write_bytes(b"{" * SIZE_BYTES)
    assert read_saves(str(tmp_path), "r") is None
    path.unlink()
    (tmp_path / "secret").write_bytes(encode(WELL))
    path.symlink_to(tmp_path / "secret")
    assert read_saves(str(tmp_path), "r") is None
    path.unlink()
    path.mkdir()
    assert read_saves(str(tmp_path), "r") is None
    path.rmdir()
    os.mkfifo(path)
    assert read_saves(str(tmp_path), "r") is None
