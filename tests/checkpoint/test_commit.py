"""Commit and prune: one rename each, from and into staging that a later attempt can seal."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.checkpoint.commit import CommitRefused, Staging, bears, seal_staging
from gangrun.checkpoint.scan import Identity, StorageUnreadable
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
    one.prune(str(tmp_path / "step-3"), Identity.of(str(tmp_path / "step-3")))
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


NOBODY = 65534
PR_SET_SECUREBITS, NO_SETUID_FIXUP = 28, 1 << 2


@pytest.fixture(params=["root", "a user", "a user whom modes do not bind"])
def as_somebody(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of somebody's, and this thread is that somebody. The last one is as on a mount of an object store: who
    keeps root's capabilities is bound by no mode, and is not root.
    """
    who = NOBODY * (request.param != "root")
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, who, who)
    libc = ctypes.CDLL(None, use_errno=True)
    if "modes" in request.param:
        assert libc.prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.seteuid(who)
    try:
        yield folder
    finally:
        os.seteuid(0)
        assert libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) == 0
        shutil.rmtree(folder)


@pytest.mark.root
def test_after_a_seal_nothing_is_committed_pruned_replaced_or_begun(as_somebody: Path) -> None:
    directory, refused = as_somebody, pytest.raises(OSError, match=r"No such file|Permission denied")
    old = staging(directory, 0)
    old.commit(begun(old, 3), str(directory / "step-3"), manifest(3))
    late, same = begun(old, 4), begun(old, 5)
    for _ in range(2):  # another supervisor does it too
        seal_staging(str(directory), "run-1", 1)
    new = Staging(str(directory), "run-1", 2, 1, "1" * 16)
    os.mkdir(new.path)
    new.commit(begun(new, 5), str(directory / "step-5"), manifest(5, NONCE[::-1]))
    for act in (
        lambda: old.commit(late, str(directory / "step-4"), manifest(4)),
        lambda: old.commit(same, str(directory / "step-5"), manifest(5)),
        lambda: old.prune(str(directory / "step-3"), Identity.of(str(directory / "step-3"))),
        lambda: old.begin(6, NONCE),
    ):
        with refused:
            act()
    assert sorted(os.listdir(directory)) == [".gangrun", "step-3", "step-5"]
    assert bears(str(directory / "step-3"), NONCE) and bears(str(directory / "step-5"), NONCE[::-1])
    assert not (directory / ".gangrun" / "set-aside").exists(), "a sealed attempt does not begin to replace"
    newer = staging(directory, 2)
    assert os.listdir(directory / ".gangrun" / "run-1" / "2") == [os.path.basename(newer.path)], "nothing is left of it"


@pytest.mark.parametrize("fails", ["its folder", "the older save", "the new save", "a lost reply"])
def test_a_save_that_could_not_replace_the_older_one_is_abandoned_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    one, rename, makedirs = staging(tmp_path), os.rename, os.makedirs
    target = str(tmp_path / "step-3")
    one.commit(begun(one, 3), target, manifest(3))
    path = begun(one, 4)

    def full(folder: str, exist_ok: bool = False) -> None:
        if fails == "its folder":
            raise OSError(errno.ENOSPC, "No space left on device")
        makedirs(folder, exist_ok=exist_ok)

    def refused(source: str, to: str) -> None:
        older, new = source == target, source.endswith(".whole") and to == target
        if (older and fails == "the older save") or (new and fails == "the new save"):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, to)
        if fails == "a lost reply" and source == path:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(os, "makedirs", full)
        failing.setattr(os, "rename", refused)
        with pytest.raises(CommitRefused, match="No space left"):
            one.commit(path, target, manifest(3, NONCE[::-1]))
    assert bears(target, NONCE)
    one.abandon(path)
    assert os.listdir(one.path) == ["trash"] and not os.listdir(os.path.join(one.path, "trash"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_seal_that_cannot_be_tried_for_want_of_space_is_made_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old = staging(tmp_path)

    def full(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkdir", full)
    seal_staging(str(tmp_path), "run-1", 1)
    assert os.listdir(os.path.dirname(old.path)) == [os.path.basename(old.path) + ".sealed"]


def test_two_may_seal_by_another_name_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, mkdir = staging(tmp_path), os.mkdir

    def overtaken(path: str) -> None:
        os.chmod(os.path.dirname(path), 0o700)  # as where modes do not bind
        mkdir(path)
        os.rename(old.path, old.path + ".sealed")

    monkeypatch.setattr(os, "mkdir", overtaken)
    seal_staging(str(tmp_path), "run-1", 1)
    assert os.listdir(os.path.dirname(old.path)) == [os.path.basename(old.path) + ".sealed"]


def test_what_is_replaced_goes_back_if_the_new_save_cannot_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, real = staging(tmp_path), os.rename
    target = str(tmp_path / "step-3")
    one.commit(begun(one, 3), target, manifest(3))
    path = begun(one, 4)

    def sealed_meanwhile(source: str, to: str) -> None:
        if source.endswith(".whole"):
            raise PermissionError(errno.EACCES, "Permission denied")
        real(source, to)

    monkeypatch.setattr(os, "rename", sealed_meanwhile)
    with pytest.raises(CommitRefused, match="Permission denied"):
        one.commit(path, target, manifest(3, NONCE[::-1]))
    assert bears(target, NONCE)


def test_a_prune_spares_another_save_that_took_the_name(tmp_path: Path) -> None:
    one, path = staging(tmp_path), str(tmp_path / "step-3")
    one.commit(begun(one, 3), path, manifest(3))
    judged = Identity.of(path)
    one.commit(begun(one, 3), path, manifest(3, NONCE[::-1]))
    with pytest.raises(StorageUnreadable, match="was replaced by another save"):
        one.prune(path, judged)
    assert bears(path, NONCE[::-1])
