"""Moving step directories out of the way, and the link to the one that stays."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gangrun.checkpoint import set_aside as moving
from gangrun.checkpoint.scan import StorageUnreadable
from gangrun.checkpoint.store import point_resume_link
from gangrun.core.checkpoints.resume import Candidate


def candidate(path: Path) -> Candidate:
    return Candidate(int(path.name.split("-")[1]), str(path), None, False, "damaged")


def test_a_taken_place_is_never_moved_into(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
    (first,) = moving.set_aside(str(tmp_path), [candidate(tmp_path / "step-1")], "0")
    (second,) = moving.set_aside(str(tmp_path), [candidate(tmp_path / "step-2")], "0")
    assert os.path.dirname(first.now_at) != os.path.dirname(second.now_at)
    (tmp_path / "step-1").mkdir()  # someone made it again: undoing must not put one inside the other
    subprocess.run(shlex.split(first.undo), check=False, capture_output=True)
    assert not (tmp_path / "step-1" / "step-1").exists() and os.path.isdir(first.now_at)


def test_the_undo_command_survives_hostile_names(tmp_path: Path) -> None:
    root = tmp_path / "a b'$(touch x)\n;"
    (root / "step-1").mkdir(parents=True)
    (moved,) = moving.set_aside(str(root), [candidate(root / "step-1")], "0")
    subprocess.run(["sh", "-c", moved.undo], check=True, cwd=tmp_path)
    assert (root / "step-1").is_dir() and not (tmp_path / "x").exists()


def test_a_lost_reply_is_not_a_failure_and_a_real_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
    rename = os.rename

    def lost(source: str, target: str) -> None:
        rename(source, target)
        raise OSError(errno.ENOENT, "No such file or directory")

    def refused(source: str, target: str) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", lost)
    assert len(moving.set_aside(str(tmp_path), [candidate(tmp_path / "step-1")], "0")) == 1
    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(StorageUnreadable, match=r"cannot be moved out of the way \(Permission denied\)"):
        moving.set_aside(str(tmp_path), [candidate(tmp_path / "step-2")], "1")
    assert (tmp_path / "step-2").is_dir()


def test_what_vanished_meanwhile_was_not_moved(tmp_path: Path) -> None:
    assert moving.set_aside(str(tmp_path), [candidate(tmp_path / "step-1")], "0") == ()


def test_the_resume_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    point_resume_link(str(tmp_path), None)
    (tmp_path / f"resume.{os.getpid()}").touch()  # left by one that died
    for target in ("/c/step-1", "/c/step-2"):
        point_resume_link(str(tmp_path), target)
        assert os.readlink(tmp_path / "resume") == target
    assert os.listdir(tmp_path) == ["resume"]
    point_resume_link(str(tmp_path), None)
    assert os.listdir(tmp_path) == []
    (tmp_path / "resume").mkdir()
    with pytest.raises(OSError, match="resume"):
        point_resume_link(str(tmp_path), "/c/step-1")
    assert os.listdir(tmp_path) == ["resume"]
