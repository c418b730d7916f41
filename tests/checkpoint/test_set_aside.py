"""Moving step directories out of the way, and the link to the one that stays."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from gangrun.checkpoint import set_aside as moving
from gangrun.checkpoint.commit import Staging, bears
from gangrun.checkpoint.scan import Identity, StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom, point_resume_link
from gangrun.core.checkpoints.resume import Candidate, ResumeRequest
from gangrun.wire.manifest import FileRow, Manifest
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
NONCES = ("0" * 31 + "1", "0" * 31 + "2")


def commit(directory: Path, attempt: int, step: int) -> Path:
    """A whole checkpoint of this attempt."""
    staging = Staging(str(directory), "run-1", 1 + attempt, attempt, f"{attempt:016x}")
    if not os.path.exists(staging.path):
        staging.open()
    path, data = Path(staging.begin(step, NONCES[attempt])), b"%d %d" % (attempt, step)
    (path / ".metadata").write_bytes(data)
    row = FileRow(".metadata", len(data), f"{zlib.crc32(data):08x}")
    staging.commit(str(path), str(directory / f"step-{step}"), Manifest(step=step, nonce=NONCES[attempt], files=(row,)))
    return directory / f"step-{step}"


def candidate(path: Path) -> Candidate:
    return Candidate(int(path.name.split("-")[1]), str(path), None, False, "damaged")


def aside(root: Path, path: Path, attempt: str) -> tuple[moving.Moved, ...]:
    judged = {str(path): Identity.of(str(path))} if path.exists() else {}
    return moving.set_aside(str(root), [candidate(path)], attempt, judged)


def test_a_taken_place_is_never_moved_into(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
    (first,) = aside(tmp_path, tmp_path / "step-1", "0")
    (second,) = aside(tmp_path, tmp_path / "step-2", "0")
    assert os.path.dirname(first.now_at) != os.path.dirname(second.now_at)
    (tmp_path / "step-1").mkdir()  # someone made it again: undoing must not put one inside the other
    subprocess.run(shlex.split(first.undo), check=False, capture_output=True)
    assert not (tmp_path / "step-1" / "step-1").exists() and os.path.isdir(first.now_at)


def test_the_undo_command_survives_hostile_names(tmp_path: Path) -> None:
    root = tmp_path / "a b'$(touch x)\n;"
    (root / "step-1").mkdir(parents=True)
    (moved,) = aside(root, root / "step-1", "0")
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
    assert len(aside(tmp_path, tmp_path / "step-1", "0")) == 1
    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(StorageUnreadable, match=r"cannot be moved out of the way \(Permission denied\)"):
        aside(tmp_path, tmp_path / "step-2", "1")
    assert (tmp_path / "step-2").is_dir()


def test_what_vanished_meanwhile_was_not_moved(tmp_path: Path) -> None:
    assert aside(tmp_path, tmp_path / "step-1", "0") == ()


@pytest.mark.parametrize(
    ("event", "name", "said"),
    [
        ("os.mkdir", "run-1-1", "gangrun leaves it in place and chooses a checkpoint again"),
        ("os.rename", "step-40", "gangrun had moved the newer save by mistake, has put it back"),
    ],
    ids=["before it looks again", "between its look and the rename"],
)
@pytest.mark.processes
def test_who_was_deposed_while_it_slept_does_not_move_a_newer_save_of_that_name(
    tmp_path: Path, event: str, name: str, said: str
) -> None:
    directory, stopped, go = tmp_path / "checkpoints", tmp_path / "stopped", tmp_path / "go"
    commit(directory, 0, 20)
    os.truncate(commit(directory, 0, 40) / ".metadata", 1)
    words = ["-m", "tests.checkpoint.late_mover", *map(str, (directory, "run-1-1", event, name, stopped, go))]
    late = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        until(stopped.exists, 20, "the first supervisor to come to its move")
        newer = CheckpointRoom(str(directory)).choose_and_set_aside(ResumeRequest(), "run-1-2")
        assert [move.step for move in newer.moved] == [40]
        commit(directory, 1, 40)
        go.touch()
        answer = late.communicate(timeout=60)[0]
    finally:
        late.kill()
    assert bears(str(directory / "step-40"), NONCES[1]), answer
    assert said in answer and "step-40" in answer


def test_what_cannot_go_back_is_told_with_the_command_that_brings_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, rename = commit(tmp_path, 0, 40), os.rename
    judged = {str(old): Identity.of(str(old))}

    def overtaken(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        shutil.rmtree(source)
        commit(tmp_path, 1, 40)
        rename(source, target)
        (tmp_path / "step-40" / "of a third").mkdir(parents=True)

    monkeypatch.setattr(os, "rename", overtaken)
    with pytest.raises(StorageUnreadable, match="a third one has taken its name") as trouble:
        moving.set_aside(str(tmp_path), [candidate(old)], "0", judged)
    assert (tmp_path / "step-40" / "of a third").is_dir()
    shutil.rmtree(tmp_path / "step-40")
    subprocess.run(shlex.split(str(trouble.value).partition("back: ")[2]), check=True)
    assert bears(str(tmp_path / "step-40"), NONCES[1])


def copying(source: str, target: str) -> None:
    """As a mount of an object store renames: all files of the new name are new ones, with the old times."""
    shutil.copytree(source, target)
    shutil.rmtree(source)


def test_what_gets_new_inodes_by_its_rename_is_moved_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, older = commit(tmp_path, 0, 40), commit(tmp_path, 0, 20)
    staging = Staging(str(tmp_path), "run-1", 1, 0, f"{0:016x}")
    monkeypatch.setattr(os, "rename", copying)
    (moved,) = aside(tmp_path, old, "0")
    staging.prune(str(older), Identity.of(str(older)))
    assert sorted(os.listdir(tmp_path)) == [".gangrun"] and bears(moved.now_at, NONCES[0])
    assert sorted(os.listdir(os.path.dirname(moved.now_at))) == ["moved.json", "step-40"]
    assert not os.listdir(os.path.join(staging.path, "trash"))


def test_a_rename_by_copies_that_broke_off_was_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = commit(tmp_path, 0, 40)

    def half(source: str, target: str) -> None:
        if source != str(old):
            return copying(source, target)
        shutil.copytree(source, target)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", half)
    with pytest.raises(StorageUnreadable, match=r"cannot be moved out of the way \(Input/output error\)"):
        aside(tmp_path, old, "0")
    assert bears(str(old), NONCES[0])


@pytest.mark.parametrize("by", ["inodes", "the marker"])
def test_another_save_goes_back_by_what_tells_it_from_the_judged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By inodes where a rename keeps them, though size and time are the same; by size and time where it does not."""
    old, rename = commit(tmp_path, 0, 40), os.rename
    judged = {str(old): Identity.of(str(old))}
    time_ns = os.stat(old / "gangrun.json").st_mtime_ns + (by == "the marker")

    def overtaken(source: str, target: str) -> None:
        shutil.copytree(source, tmp_path / "of another")
        os.utime(tmp_path / "of another" / "gangrun.json", ns=(time_ns, time_ns))
        shutil.rmtree(source)
        rename(tmp_path / "of another", source)
        monkeypatch.setattr(os, "rename", rename if by == "inodes" else copying)
        os.rename(source, target)

    monkeypatch.setattr(os, "rename", overtaken)
    with pytest.raises(StorageUnreadable, match="has put it back"):
        moving.set_aside(str(tmp_path), [candidate(old)], "0", judged)
    assert bears(str(old), NONCES[0])


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
