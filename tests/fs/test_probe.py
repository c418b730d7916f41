"""The probe: says what a file system lacks, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.probe import nearest_folder, probe
from tests.faults.disk import PausableDisk
from tests.fs.bench import HandClock, NoLinkDisk, RealClock, as_uid, ground, uids


@pytest.mark.parametrize("uid", uids())
def test_an_ordinary_file_system_has_it_all(uid: int | None) -> None:
    def body() -> None:
        report = probe(base, RealClock(), "abc")
        assert report.usable
        assert (report.exclusive, report.link, report.rename_across) == (True, True, True)
        assert report.seal is (os.geteuid() != 0)
        assert report.as_root is (os.geteuid() == 0)
        assert bool(report.lacks) is report.as_root
        assert report.free_bytes > 0
        assert list(base.iterdir()) == []
        assert report.unsafe_for_saves == (), "what modes do not seal is renamed away"
        assert nearest_folder(base / "not" / "yet") == base

    with ground(uid) as base:
        as_uid(uid, body)


def test_what_lacks_is_said_with_what_it_means(tmp_path: Path) -> None:
    class Object(NoLinkDisk):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        def chmod(self, path: Path, mode: int) -> None:
            return

        def free_bytes(self, path: Path) -> int:
            return 1 << 20

    report = probe(tmp_path, RealClock(), "abc", Object())
    assert report.usable
    assert (report.link, report.rename_across, report.seal) == (False, False, False)
    text = "\n".join(report.words)
    assert "claims fall back to O_EXCL" in text
    assert "only checkpoints named in the journal will count" in text
    assert "sealed by removing" in text
    assert any("renamed to another parent" in word for word in report.unsafe_for_saves)
    assert "only 1 MiB are free" in text
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_lets_two_win_is_not_usable(tmp_path: Path) -> None:
    class Lax(Disk):
        def create(self, path: Path, mode: int = 0o600) -> int:
            return os.open(path, os.O_WRONLY | os.O_CREAT, mode)

        def link(self, source: Path, target: Path) -> None:
            return

    report = probe(tmp_path, RealClock(), "abc", Lax())
    assert (report.usable, report.exclusive, report.link) == (False, False, False)
    assert any("no run may live here (a file was created twice)" in word for word in report.lacks)


def test_read_only_full_and_lying_places(tmp_path: Path) -> None:
    disk = PausableDisk()
    disk.fail(errno.EROFS)
    report = probe(tmp_path, RealClock(), "abc", disk)
    assert (report.usable, report.lacks) == (False, (f"cannot write to {tmp_path}: Read-only file system",))

    class Full(Disk):
        def write(self, fd: int, data: bytes, path: Path) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    report = probe(tmp_path, RealClock(), "abc", Full())
    assert not report.usable
    assert f"cannot write to {tmp_path}: No space left on device" in report.lacks

    class Liar(Disk):
        def read(self, path: Path, offset: int = 0, limit: int = 1) -> bytes:
            return b""

    assert not probe(tmp_path, RealClock(), "abc", Liar()).usable
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_a_warning(tmp_path: Path) -> None:
    clock = HandClock()

    class Slow(Disk):
        def fsync(self, fd: int, path: Path) -> None:
            clock.wait(3.0)

    report = probe(tmp_path, clock, "abc", Slow())
    assert report.usable
    assert report.fsync_s == 3.0
    assert any("durably took 3.0 s" in word for word in report.warnings)
