"""Checkpoints that share files by hard links: a link is no change, and damage is told of all who hold it."""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from gangrun.checkpoint.formats import manifest
from gangrun.checkpoint.formats.manifest import also_in
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.wire.manifest import FileRow, Manifest, encode
from tests.waiting import until

STILL = "__0_1.distcp"


def made(root: Path, step: int, link_from: str = "") -> Path:
    path = root / f"step-{step}"
    path.mkdir(parents=True)
    rows = []
    for name, data in ((".metadata", b"%d" % step), ("__0_0.distcp", bytes([step]) * 5000), (STILL, b"still" * 999)):
        if name == STILL and link_from:
            os.link(root / link_from, path / name)
        else:
            (path / name).write_bytes(data)
        rows.append(FileRow(name, len(data), f"{zlib.crc32(data):08x}", link_from if name == STILL else ""))
    (path / "gangrun.json").write_bytes(encode(Manifest(step=step, nonce=f"{step:032x}", files=tuple(rows))))
    return path


@pytest.fixture
def three(tmp_path: Path) -> Path:
    made(tmp_path, 1)
    made(tmp_path, 2, f"step-1/{STILL}")
    made(tmp_path, 10, f"step-2/{STILL}")
    return tmp_path


def why(room: Path) -> dict[int, str]:
    return {one.step: one.why_not for one in CheckpointRoom(str(room)).survey(Depth.ALL) if not one.valid}


def test_what_was_proven_stays_proven_when_another_checkpoint_links_to_it_or_goes(three: Path) -> None:
    assert why(three) == {}
    known = (three / ".gangrun" / "verified.json").read_bytes()
    before = (three / "step-1" / STILL).stat().st_ctime_ns
    shutil.rmtree(three / "step-2")

    def linked_later() -> bool:
        (three / "another name").unlink(missing_ok=True)
        os.link(three / "step-1" / STILL, three / "another name")
        return (three / "step-1" / STILL).stat().st_ctime_ns > before

    until(linked_later, 20, "the clock of the file system to go on")
    found = CheckpointRoom(str(three)).survey(Depth.STRUCTURE)
    assert [(one.step, one.valid) for one in found] == [(10, True), (1, True)], "nothing was read for it"
    assert len((three / ".gangrun" / "verified.json").read_bytes()) < len(known), "what went is forgotten"


def test_a_link_made_while_it_is_read_is_no_change(three: Path) -> None:
    linked: list[int] = []

    def link(count: int) -> None:
        """Called by each thread that reads."""
        with suppress(FileExistsError):
            os.link(three / "step-10" / STILL, three / "another name")
        linked.append(count)

    assert manifest.verify(str(three / "step-10"), 10, link).valid and linked


@pytest.mark.parametrize("cut", [False, True])
def test_damage_is_told_of_all_that_hold_the_file(three: Path, *, cut: bool) -> None:
    shared = three / "step-2" / STILL
    if cut:
        os.truncate(shared, 100)
    else:
        data = bytearray(shared.read_bytes())
        data[77] ^= 2
        shared.write_bytes(data)
    told = why(three)
    assert sorted(told) == [1, 2, 10]
    assert told[10].startswith(STILL) and told[10].endswith("the same file is in step-1, step-2 too")
    assert told[1].endswith("the same file is in step-2, step-10 too")


def test_damage_of_a_file_of_ones_own_is_ones_own(three: Path) -> None:
    (three / "step-10" / "__0_0.distcp").write_bytes(b"?" * 5000)
    assert list(why(three)) == [10] and "too" not in why(three)[10]
    assert also_in(str(three / "step-10"), "no such file") == ()
    shutil.rmtree(three / "step-1")
    shutil.rmtree(three / "step-10")
    assert why(three) == {} and also_in(str(three / "step-2"), STILL) == ()
