"""The disk that can be stalled: which operations, and what its control line may say."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.faults.disk import RUN, Condition, ControlError, PausableDisk, parse, say


def test_control_lines() -> None:
    assert parse("") == parse("run\n") == RUN
    assert parse("stall") == parse("stall all") == Condition(stalled=True, looking_too=True)
    assert parse("stall write") == Condition(stalled=True)
    assert parse("fail EROFS") == Condition(error=errno.EROFS)
    assert parse("fail EIO all") == Condition(error=errno.EIO, looking_too=True)
    for wrong in ("halt", "fail", "fail 28", "fail errorcode", "stall never", "fail EIO some"):
        with pytest.raises(ControlError, match="is not one of"):
            parse(wrong)
    with pytest.raises(ControlError):
        say(Path("/nonexistent/control"), "halt")


def test_a_full_disk_still_reads_and_other_places_are_left_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    disk = PausableDisk(only_under=inside)
    disk.write_new(inside / "a", b"x")
    disk.fail(errno.ENOSPC)
    assert disk.read(inside / "a") == b"x"
    with pytest.raises(OSError, match="No space left"):
        disk.write_new(inside / "b", b"x")
    disk.write_new(outside, b"x")
    disk.fail(errno.EIO, looking_too=True)
    with pytest.raises(OSError, match="Input/output"):
        disk.read(inside / "a")
    disk.resume()
    disk.write_new(inside / "b", b"x")


def test_a_stall_of_writes_lets_readers_through(tmp_path: Path) -> None:
    disk = PausableDisk()
    disk.write_new(tmp_path / "a", b"x")
    disk.pause(looking_too=False)
    writer = threading.Thread(target=disk.mkdir, args=(tmp_path / "late",))
    writer.start()
    assert disk.read(tmp_path / "a") == b"x"
    assert not (tmp_path / "late").exists()
    disk.resume()
    writer.join(100.0)
    assert (tmp_path / "late").is_dir()
