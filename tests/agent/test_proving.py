"""This node's share of a checkpoint is read; damage in another's is not its matter; what nobody waits for ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path
from zlib import crc32

import pytest

from gangrun.agent.background_tasks import VerifyTask
from gangrun.agent.brain.facts import DiskTaskDone
from gangrun.checkpoint.formats import dcp
from gangrun.wire.manifest import CHUNK_BYTES, FileRow, Manifest, crcs_text, encode
from gangrun.wire.messages import VerifyShare
from tests.local import saves
from tests.waiting import until

ENDLESS_BYTES = 2**40  # of a file without blocks: nobody reads it to its end here


def share(save: Path, reader: int, nonce: str = f"{7:016x}") -> VerifyShare:
    return VerifyShare(1, (1, reader), str(save), nonce, reader, 3)


def answered(proving: VerifyTask, command: VerifyShare) -> DiskTaskDone:
    """From a thread of its own, as an errand is: its priority is lowered for good."""
    told: list[DiskTaskDone] = []
    thread = threading.Thread(target=lambda: told.append(proving.answer(command)))
    thread.start()
    thread.join(60)
    return told[0]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda save: (save / "gangrun.json").unlink(), "gangrun.json is missing"),
        (lambda save: (save / "gangrun.json").write_text("{}"), "is torn or is no manifest"),
        (lambda save: (save / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    ],
    ids=["no manifest", "a torn manifest", "no shard"],
)
def test_what_cannot_be_read_is_said_in_words(tmp_path: Path, spoil: object, why: str) -> None:
    save = saves.own(tmp_path, 7, 3)
    spoil(save)  # type: ignore[operator]
    told = answered(VerifyTask(), share(save, 0))
    assert not told.ok and why in told.why


def test_another_save_of_that_step_is_not_taken_for_it(tmp_path: Path) -> None:
    save = saves.own(tmp_path, 7, 3)
    asked = share(save, 1, "ab" * 8)
    assert answered(VerifyTask(), asked) == DiskTaskDone(asked, False, "another save is there")


def test_a_plain_checkpoint_is_told_by_how_its_files_look(tmp_path: Path) -> None:
    save = saves.plain(tmp_path, 7, 6)
    name = dcp.verification_of(str(save)).save
    proving = VerifyTask()
    assert all(answered(proving, share(save, reader, name)).ok for reader in range(3))
    copied = Path(shutil.copytree(save, tmp_path / "elsewhere"))  # other inodes, as some mounts number them
    assert answered(proving, share(copied, 1, name)).ok

    shards = saves.files_of(save)
    at = (copied / shards[5]).stat().st_mtime_ns
    saves.flip(copied, shards[5])
    os.utime(copied / shards[5], ns=(at, at))
    found = [answered(proving, share(copied, reader, name)) for reader in range(3)]
    assert [one.ok for one in found] == [True, True, False]
    assert f"in {shards[5]} is damaged: checksum of 'archive/data/0' is wrong" in found[2].why
    os.utime(copied / shards[0], ns=(at, at - 1))
    found = [answered(proving, share(copied, reader, name)) for reader in range(3)]
    assert {(one.ok, one.why) for one in found} == {(False, "another save is there")}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda save: (save / ".metadata").unlink(), ".metadata is missing"),
        (saves.tear_metadata, ".metadata refused: "),
        (lambda save: (save / saves.files_of(save)[0]).unlink(), "is missing"),
    ],
    ids=["no metadata", "torn metadata", "no shard"],
)
def test_of_a_plain_one_too_what_cannot_be_read_is_said_in_words(tmp_path: Path, spoil: object, why: str) -> None:
    save = saves.plain(tmp_path, 7, 3)
    asked = share(save, 0, dcp.verification_of(str(save)).save)
    spoil(save)  # type: ignore[operator]
    told = answered(VerifyTask(), asked)
    assert not told.ok and why in told.why


@pytest.mark.parametrize("by", ["the next question", "a start of ranks"])
def test_a_reading_that_nobody_waits_for_ends(tmp_path: Path, by: str) -> None:
    endless = saves.own(tmp_path / "endless", 7, 0)
    shard = endless / "__0_0.distcp"
    shard.touch()
    os.truncate(shard, ENDLESS_BYTES)
    row = FileRow(shard.name, ENDLESS_BYTES, crcs_text([crc32(bytes(CHUNK_BYTES))]) * (ENDLESS_BYTES // CHUNK_BYTES))
    (endless / "gangrun.json").write_bytes(encode(Manifest(step=7, nonce=f"{7:016x}", files=(row,))))
    proving, told = VerifyTask(), list[DiskTaskDone]()
    asked = VerifyShare(1, (1, 0), str(endless), f"{7:016x}", 0, 1)
    reading = threading.Thread(target=lambda: told.append(proving.answer(asked)), daemon=True)
    reading.start()
    until(lambda: str(shard) in opened_files(), 30.0, "the reading did not begin")
    if by == "a start of ranks":
        proving.give_up()
    else:
        assert answered(proving, share(saves.own(tmp_path, 7, 3), 1)).ok
    until(lambda: told, 30.0, "it is read still")
    assert told == [DiskTaskDone(asked, False, "it was given up for what was asked next")]


def opened_files() -> set[str]:
    """What this process has open now."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(descriptor))
    return found
