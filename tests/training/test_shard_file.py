"""A rank's files: durable before the commit, few of them open at once, and one host copy where one is enough."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

import gangrun
from gangrun.checkpoint.formats.manifest import read_manifest
from gangrun.checkpoint.store import CheckpointRoom, Depth

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gangrun.training.save import (  # noqa: E402
    plan,
    shard_file,
)
from gangrun.training.save.shard_file import ShardFile, row_of  # noqa: E402


def opened(directory: Path) -> list[str]:
    """Shards that this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(one)
        except FileNotFoundError:
            continue
        if target.startswith(str(directory)) and ".distcp" in target:  # it may have been removed
            found.append(os.path.basename(target))
    return found


def test_all_files_are_durable_before_the_commit_and_few_are_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "GROUP_BYTES", 1)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(40)).requires_grad_(requires_grad=False)
    fsync, rename = os.fsync, os.rename
    synced: list[str] = []
    most = [0]
    undurable: list[set[str]] = []

    def watched_fsync(descriptor: int) -> None:
        most[0] = max(most[0], len(opened(tmp_path)))
        fsync(descriptor)
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def watched_rename(source: str, target: str) -> None:
        if os.path.basename(target) == "step-0":
            undurable.append(set(os.listdir(source)) - set(synced))
        rename(source, target)

    with gangrun.Checkpointer(tmp_path, model=model) as ckpt:
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "rename", watched_rename)
        ckpt.save(0, wait=True)
        assert len(read_manifest(str(tmp_path / "step-0")).files) > 40
        assert undurable == [set()]
        assert 0 < most[0] <= 16
        assert opened(tmp_path) == []
        monkeypatch.setattr(os, "fsync", fsync)
        ckpt.save(1, wait=True)
    again = [row for row in read_manifest(str(tmp_path / "step-1")).files if row.linked_from]
    assert again, "what was written one after the other is known again"
    assert all(one.valid for one in CheckpointRoom(str(tmp_path)).survey(Depth.ALL))


def test_a_save_that_fails_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GROUP_BYTES", 1)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(20)).requires_grad_(requires_grad=False)
    writev, calls = os.writev, iter(range(1000))

    def full(descriptor: int, buffers: list[memoryview]) -> int:
        if next(calls) == 12:
            raise OSError(28, "No space left on device")
        return writev(descriptor, buffers)

    with gangrun.Checkpointer(tmp_path, model=model) as ckpt:
        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(gangrun.CheckpointError, match="No space left"):
            ckpt.save(0, wait=True)
        assert opened(tmp_path) == []
        monkeypatch.setattr(os, "writev", writev)
        ckpt.save(0, wait=True)
    assert all(one.valid for one in CheckpointRoom(str(tmp_path)).survey(Depth.ALL))


def test_the_disk_begins_on_each_byte_once_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(shard_file, "_write_out", lambda _, at, count, flags: ranges.append((at, count)))
    data = os.urandom(20 * 1024 * 1024 + 5)
    shard = ShardFile(str(tmp_path), "one")
    shard.write_bytes(data)
    assert ranges, "long before it is closed"
    row = shard.written()
    assert shard.close() == row == row_of("one", data)
    assert [at for at, _ in ranges] == [sum(count for _, count in ranges[:n]) for n in range(len(ranges))]
    assert sum(count for _, count in ranges) == len(data)
    other = os.open(tmp_path / "one", os.O_RDONLY)
    shard.abort()
    assert os.fstat(other).st_size == len(data), "what was closed is not closed again: the number is another's by now"
    os.close(other)


def test_where_the_system_cannot_begin_early_fsync_does_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shard_file._found_write_out()
    assert real(-1, 0, 1, 2) == -1, "and an error of it is no error of the save"

    def absent(_: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert shard_file._found_write_out()(-1, 0, 1, 2) is None


def test_while_saves_do_not_overlap_there_is_one_copy_in_the_hosts_memory(
    tmp_path: Path, hold_fsync: threading.Event
) -> None:
    model = nn.Linear(300, 300)
    hold_fsync.set()
    with gangrun.Checkpointer(tmp_path, model=model) as ckpt:
        for step in range(3):
            ckpt.save(step, wait=True)
        assert copies(ckpt) == [False, True]
        hold_fsync.clear()
        ckpt.save(3)
        ckpt.save(4)
        hold_fsync.set()
        ckpt.save(5, wait=True)
        assert copies(ckpt) == [True, True]
    assert len(list(tmp_path.glob("step-*"))) == 6


def copies(ckpt: gangrun.Checkpointer) -> list[bool]:
    """Which of the two buffers take memory, while nothing is being saved."""
    both = [ckpt._saver.free_buffer() for _ in range(2)]
    for buffer in reversed(both):
        ckpt._saver.give_back(buffer)
    return sorted(buffer._memory.numel() > 0 for buffer in both)
