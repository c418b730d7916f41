"""Commit and prune: one rename each, from and into staging that a later attempt can seal."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gangrun.checkpoint.commit import CommitRefused, Staging, bears, seal_staging
from gangrun.wire.manifest import FileRow, Manifest

NONCE = "00112233445566778899aabbccddeeff"


def staging(directory: Path, attempt: int = 0) -> Staging:
    made = Staging(str(directory), "run-1", 2, attempt, f"{attempt:016x}")
    made.open()
    return made


def manifest(step: int, nonce: str = NONCE) -> Manifest:
    return Manifest(step=step, nonce=nonce, files=(FileRow("data", 0, ""),))


def begun(one: Staging, step: int) -> str:
    path = one.begin(step, NONCE)
    Path(path, "data").touch()
    return path


def test_a_commit_appears_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    one = staging(tmp_path)
    one.commit(begun(one, 3), str(tmp_path / "step-3"), manifest(3))
    assert sorted(os.listdir(tmp_path / "step-3")) == ["data", "gangrun.json"]
    assert bears(str(tmp_path / "step-3"), NONCE) and not bears(str(tmp_path / "step-3"), NONCE[::-1])
    one.prune(str(tmp_path / "step-3"))
    one.abandon(begun(one, 4))
    one.abandon(str(tmp_path / "never was"))
    one.close()
    assert sorted(os.listdir(tmp_path)) == [".gangrun"] and not os.listdir(tmp_path / ".gangrun")


def test_a_lost_reply_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, real = staging(tmp_path), os.rename

    def lost(source: str, target: str) -> None:
        real(source, target)
        raise OSError(errno.EIO, "Input/output error")

    path = begun(one, 3)
    monkeypatch.setattr(os, "rename", lost)
    one.commit(path, str(tmp_path / "step-3"), manifest(3))
    assert bears(str(tmp_path / "step-3"), NONCE)


def test_the_same_step_that_came_from_memory_meanwhile_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, real = staging(tmp_path), os.rename
    target = str(tmp_path / "step-3")

    def overtaken(source: str, to: str) -> None:
        monkeypatch.setattr(os, "rename", real)
        Path(target, "of another").mkdir(parents=True)
        real(source, to)

    path = begun(one, 3)
    monkeypatch.setattr(os, "rename", overtaken)
    one.commit(path, target, manifest(3))
    assert bears(target, NONCE)
    assert list((tmp_path / ".gangrun" / "set-aside").glob("*/step-3.0/of another"))


def test_what_did_not_happen_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = staging(tmp_path)
    path = begun(one, 3)

    def refused(source: str, target: str) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(CommitRefused, match="step 3 could not be committed: Permission denied"):
        one.commit(path, str(tmp_path / "step-3"), manifest(3))
    assert not (tmp_path / "step-3").exists()


def test_after_a_seal_nothing_is_committed_pruned_or_begun(tmp_path: Path) -> None:
    old = staging(tmp_path, 0)
    old.commit(begun(old, 3), str(tmp_path / "step-3"), manifest(3))
    late = begun(old, 4)
    seal_staging(str(tmp_path), "run-1", 1)
    with pytest.raises(OSError, match=r"No such file|Permission denied"):
        old.commit(late, str(tmp_path / "step-4"), manifest(4))
    with pytest.raises(OSError, match=r"No such file|Permission denied"):
        old.prune(str(tmp_path / "step-3"))
    with pytest.raises(OSError, match=r"No such file|Permission denied"):
        old.begin(5, NONCE)
    assert sorted(os.listdir(tmp_path)) == [".gangrun", "step-3"]
    new = staging(tmp_path, 1)
    assert os.listdir(tmp_path / ".gangrun" / "run-1" / "2") == [os.path.basename(new.path)]
