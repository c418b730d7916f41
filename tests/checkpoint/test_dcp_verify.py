"""The damage matrix: what torch's own load passes in silence, or dies of, is found here before any rank starts."""

from __future__ import annotations

import os
import random
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from gangrun.checkpoint.formats import dcp as dcp_verify
from gangrun.checkpoint.formats import torch_zip
from gangrun.checkpoint.formats.dcp import Judgement, screen, verify
from gangrun.checkpoint.formats.dcp_metadata import StoredPiece, parse_metadata
from gangrun.core.model import Level

Copy = Callable[..., Path]


def entries(path: Path) -> dict[str, StoredPiece]:
    return {e.fqn: e for e in parse_metadata((path / ".metadata").read_bytes()).entries}


def change(path: Path, offset: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(new)


def judged(path: Path) -> Judgement:
    return verify(str(path))


@pytest.mark.parametrize("name", ["step-10", "step-20", "step-40", "two_threads", "many_files"])
def test_intact_is_verified(written: Path, name: str) -> None:
    found = judged(written / name)
    assert (found.level, found.why, found.valid, found.unreadable) == (Level.VERIFIED, "", True, False)
    assert found.entry_count == len(parse_metadata((written / name / ".metadata").read_bytes()).entries)
    assert found.nonce and found.nonce == found.save_id
    shallow = screen(str(written / name))
    assert (shallow.level, shallow.valid) == (Level.COMPLETE, False)


def test_two_saves_of_one_step_have_different_nonces(written: Path) -> None:
    assert judged(written / "step-10").nonce != judged(written / "many_files").nonce


def test_one_flipped_byte_of_a_tensor(copy: Copy) -> None:
    path = copy("step-10")
    weight = entries(path)["model.weight"]
    change(path / weight.path, weight.offset + weight.length // 2, b"\xa5")
    found = judged(path)
    assert found.level is None and not found.unreadable
    assert found.why == f"model.weight in {weight.path} is damaged: checksum of 'archive/data/0' is wrong"
    assert screen(str(path)).level is Level.COMPLETE  # the structure cannot show it, and does not claim more


@pytest.mark.parametrize("left", [-1, 0.5, 0])
def test_truncation_shows_in_the_structure_already(copy: Copy, left: float) -> None:
    path = copy("step-10")
    shard = path / "__0_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1 if left < 0 else int(size * left))
    for found in (screen(str(path)), judged(path)):
        assert found.level is None
        assert found.why == f"__0_0.distcp is {shard.stat().st_size} bytes long and must be {size} (truncated)"


def test_a_member_turned_into_a_folder_would_load_as_nothing(copy: Copy) -> None:
    path = copy("step-10")
    weight = entries(path)["model.weight"]
    data = (path / weight.path).read_bytes()
    name_at = data.rindex(b"archive/data/0", weight.offset, weight.offset + weight.length)
    change(path / weight.path, name_at - 8, b"\x10")  # external attributes in the archive's directory
    assert judged(path).why.endswith("the directory of its archive calls a member a folder")


def test_numbers_beyond_4_gib_are_read_from_their_own_field() -> None:
    full = 0xFFFFFFFF
    extra = struct.pack("<2H2s", 0x4246, 2, b"ZZ") + struct.pack("<2H3Q", 1, 24, 2**33, 2**33, 2**34)
    assert torch_zip._full_numbers(extra, full, full, full) == [2**33, 2**33, 2**34]
    assert torch_zip._full_numbers(extra[:-8], 5, 5, 7) == [5, 5, 7]
    for short in (b"", struct.pack("<2HQ", 1, 8, 2**33)):
        with pytest.raises(torch_zip.Damaged):
            torch_zip._full_numbers(short, full, full, 0)


def test_a_stale_extra_shard_is_nobodys_business(copy: Copy) -> None:
    path = copy("step-10")
    shutil.copy(path / "__0_0.distcp", path / "__7_0.distcp")
    assert judged(path).level is Level.VERIFIED


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x00" * 3000])
def test_torn_metadata(copy: Copy, content: bytes) -> None:
    path = copy("step-10")
    (path / ".metadata").write_bytes(content)
    assert judged(path).level is None and ".metadata" in judged(path).why


def test_entries_that_were_never_written_are_missed(copy: Copy) -> None:
    """A writer thread of ``dcp.save`` that fails is swallowed, and ``.metadata`` committed without its entries."""
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    index = next(key for key in metadata.storage_data if key.fqn == "model.weight")
    del metadata.storage_data[index]
    _write_metadata(path, metadata)
    assert screen(str(path)).why.endswith("items were never stored, for example model.weight")


def test_written_without_checksums_is_complete_and_says_so(copy: Copy) -> None:
    path = copy("no_checksums")
    found = judged(path)
    total = found.entry_count
    assert (found.level, found.valid) == (Level.COMPLETE, True)
    assert found.why == f"{total} of {total} pieces cannot be checked: written without checksums"
    weight = entries(path)["model.weight"]
    change(path / weight.path, weight.offset + 60, b"\xff\xff\xff\xff")  # in its first header: structure still shows
    change(path / weight.path, weight.offset, b"\xff\xff")
    assert judged(path).level is None


def test_written_through_an_extension_is_complete_and_says_so(copy: Copy) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]
    _write_metadata(path, metadata)
    found = judged(path)
    assert (found.level, found.valid) == (Level.COMPLETE, True)
    assert "written through an extension" in found.why


def test_objects_in_a_form_of_their_own_cannot_be_checked_but_zeros_can(copy: Copy) -> None:
    path = copy("step-10")
    rng = entries(path)["step"]
    change(path / rng.path, rng.offset, b"my own format".ljust(rng.length, b"."))
    assert judged(path).why.endswith("cannot be checked: not written by torch.save")
    assert judged(path).valid
    change(path / rng.path, rng.offset, bytes(rng.length))
    assert judged(path).why == f"step in {rng.path} is damaged: it is all zeros"


def test_links_and_pipes_are_not_followed(copy: Copy, tmp_path: Path) -> None:
    path = copy("step-10")
    shard = path / "__0_0.distcp"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    assert judged(path).why == "__0_0.distcp is a symbolic link, which is not followed"
    shard.unlink()
    os.mkfifo(shard)
    assert judged(path).why == "__0_0.distcp is not a regular file"
    (path / ".metadata").unlink()
    (path / ".metadata").mkdir()
    assert judged(path).why == ".metadata is not a regular file"


@pytest.mark.parametrize(
    "target", ["../../x", "/etc/passwd", "a/../../x", ".", "", "a//b", "a\0b", "\udce4", "n" * 300]
)
def test_paths_out_of_the_directory_are_refused(copy: Copy, target: str) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = target
    _write_metadata(path, metadata)
    found = judged(path)
    assert found.level is None and not found.unreadable
    assert not found.why.endswith("is missing")


def test_folders_inside_are_followed_and_links_among_them_are_not(copy: Copy, tmp_path: Path) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = "inner/" + info.relative_path
    _write_metadata(path, metadata)
    (path / "inner").mkdir()
    (path / "__0_0.distcp").rename(path / "inner" / "__0_0.distcp")
    assert judged(path).level is Level.VERIFIED
    (path / "inner").rename(tmp_path / "outside")
    (path / "inner").symlink_to(tmp_path / "outside")
    assert judged(path).why == "inner is not a directory of its own (symbolic links are not followed)"


def test_unreadable_is_not_damaged(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy("step-10")

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    found = judged(path)
    assert (found.level, found.unreadable) == (None, True)
    assert found.why == "__0_0.distcp cannot be read (Input/output error)"
    monkeypatch.setattr(os, "lstat", fail)
    assert screen(str(path)).unreadable


def test_a_file_that_changes_while_it_is_read_is_not_verified(copy: Copy) -> None:
    path = copy("step-10")
    ticks = iter([True])

    def tick(_: int) -> None:
        if next(ticks, False):
            os.utime(path / "__0_0.distcp")

    assert verify(str(path), tick, threads_count=1).why == "it was written to while it was being read"


def test_progress_counts_every_byte_once(written: Path) -> None:
    read: list[int] = []
    found = verify(str(written / "step-40"), read.append, threads_count=1)
    assert 0.3 * found.data_bytes < sum(read) <= found.data_bytes


def test_the_other_checksum_library_agrees(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_zip, "crc32", zlib.crc32)
    path = copy("step-10")
    assert judged(path).level is Level.VERIFIED
    change(path / "__0_0.distcp", 200_000, b"\x01\x02\x03")
    assert judged(path).level is None


def test_small_batches_on_many_threads_give_the_same_verdict(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_verify, "_BATCH_BYTES", 1)
    path = copy("step-40")
    assert verify(str(path), threads_count=8).level is Level.VERIFIED
    before = [f"{e.fqn} in {e.path}" for e in entries(path).values() if e.tensor]
    for name in ("even", "plain"):
        entry = entries(path)[name]
        change(path / entry.path, entry.offset + entry.length // 2, b"\xa5\xa5\xa5")
    first = {verify(str(path), threads_count=8).why for _ in range(5)}
    assert len(first) == 1 and before


@pytest.mark.parametrize("seed", range(4))
def test_what_passes_after_any_flip_loads_as_it_was(copy: Copy, seed: int) -> None:
    """No harm gets through: flips in padding may pass, and then the tensors are the same bit for bit."""
    path = copy("many_files")
    chance = random.Random(seed)
    expected = _loaded(path)
    shards = sorted(path.glob("*.distcp"))
    passed = 0
    for _ in range(150):
        shard = chance.choice(shards)
        kept = shard.read_bytes()
        place = chance.randrange(len(kept))
        change(shard, place, bytes([kept[place] ^ (1 << chance.randrange(8))]))
        if judged(path).valid:
            passed += 1
            now = _loaded(path)
            assert now.keys() == expected.keys()
            assert all(torch.equal(now[key], expected[key]) for key in expected), (shard, place)
        shard.write_bytes(kept)
    assert passed < 150


def _loaded(path: Path) -> dict[str, torch.Tensor]:
    metadata = dcp.FileSystemReader(path).read_metadata()
    tensors = {k: v for k, v in metadata.state_dict_metadata.items() if hasattr(v, "size")}
    into = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in tensors.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(into, checkpoint_id=path)
    return {k: v.clone().view(torch.uint8) if v.dim() else v.reshape(1).view(torch.uint8) for k, v in into.items()}


def _write_metadata(path: Path, metadata: object) -> None:
    import pickle

    (path / ".metadata").write_bytes(pickle.dumps(metadata, 4))
