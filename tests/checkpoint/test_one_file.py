"""One file of each kind: cut anywhere, changed anywhere, being written, and what no format can tell."""

from __future__ import annotations

import io
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gangrun.checkpoint.formats.dcp import Judgement
from gangrun.checkpoint.formats.one_file import judge_file
from gangrun.core.model import Level

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    weights = {"weight": torch.randn(40, 30, generator=generator), "bias": torch.randn(30, generator=generator)}
    return {"model": weights, "step": 120, "names": ["a", "b"]}


def judge(path: Path, content: bytes | str) -> Judgement:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return judge_file(str(path))


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if torch.is_tensor(one) else one == other


@pytest.fixture(scope="module")
def archive() -> bytes:
    file = io.BytesIO()
    torch.save(state(), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def tensors() -> bytes:
    return bytes(safetensors.save(state()["model"]))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """An index, two safetensors and one archive."""
    one, two = state()["model"]["weight"], state()["model"]["bias"]
    safetensors.save_file({"one": one}, tmp_path / "model-00001-of-00003.safetensors")
    safetensors.save_file({"two": two}, tmp_path / "model-00002-of-00003.safetensors")
    torch.save({"three": two}, tmp_path / "model-00003-of-00003.bin")
    names = {"one": "model-00001-of-00003.safetensors", "two": "model-00002-of-00003.safetensors"}
    index = {"metadata": {}, "weight_map": {**names, "three": "model-00003-of-00003.bin"}}
    (tmp_path / "model.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("name", ["latest.pt", "x.pth", "last.ckpt", "optimizer.bin", "random_states_0.pkl"])
def test_an_archive_is_verified_under_any_name(name: str, archive: bytes, tmp_path: Path) -> None:
    found = judge(tmp_path / name, archive)
    assert (found.level, found.why, found.valid, found.data_bytes) == (Level.VERIFIED, "", True, len(archive))
    assert [mark[0] for _, mark in found.marks] == [len(archive)]


def test_an_archive_cut_anywhere_is_torn(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    for length in {*range(64), *range(0, len(archive), 97), *range(len(archive) - 100, len(archive))}:
        found = judge(path, archive[:length])
        assert found.level is None and not found.unknown and not found.unreadable, length
        assert found.why.startswith("latest.pt ") and "torn" in found.why, found.why


def test_a_changed_byte_of_an_archive_is_found_or_changes_nothing(archive: bytes, tmp_path: Path) -> None:
    path, draw, missed = tmp_path / "latest.pt", random.Random(5), 0
    data_at = archive.index(state()["model"]["weight"].numpy().tobytes())
    places = [*draw.sample(range(len(archive)), 600), *range(data_at, data_at + 4800, 101)]
    for place in places:
        found = judge(path, archive[:place] + bytes([archive[place] ^ 1 << draw.randrange(8)]) + archive[place + 1 :])
        if found.level is None:
            assert not found.unknown and found.why.startswith("latest.pt (")
            continue
        assert not data_at <= place < data_at + 4800, "each byte of the data has a checksum"
        assert same(torch.load(path, weights_only=False), state()), place
        missed += 1
    assert missed, "padding and times: nobody reads them"
    for begin in (0, data_at, len(archive) // 2):
        zeros = archive[:begin] + bytes(len(archive) - begin)
        assert judge(path, zeros).level is None


def test_a_changed_byte_is_said_with_its_place(archive: bytes, tmp_path: Path) -> None:
    data_at = archive.index(state()["model"]["weight"].numpy().tobytes())
    found = judge(tmp_path / "latest.pt", archive[:data_at] + b"\xff" + archive[data_at + 1 :])
    expected = rf"latest\.pt \({len(archive)} bytes\) is torn or damaged: checksum of '\S+/data/0' is wrong"
    assert re.fullmatch(expected, found.why)


def test_what_has_no_checksum_is_complete_and_says_so(tensors: bytes, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), tmp_path / "plain.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    plain = judge_file(str(tmp_path / "plain.pt"))
    assert (plain.level, plain.why) == (Level.COMPLETE, "torch.save wrote it without checksums")
    whole = judge(tmp_path / "model.safetensors", tensors)
    assert (whole.level, whole.why, whole.valid) == (Level.COMPLETE, "safetensors carry no checksums", True)
    flipped = judge(tmp_path / "model.safetensors", tensors[:-9] + bytes([tensors[-9] ^ 1]) + tensors[-8:])
    assert flipped.level is Level.COMPLETE and flipped.why == whole.why, "no format shows it"


def test_safetensors_cut_anywhere_or_too_long_are_torn(tensors: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for content in [*(tensors[:length] for length in range(0, len(tensors), 31)), tensors[:-1], tensors + b"x"]:
        found = judge(path, content)
        assert found.level is None and not found.unknown and found.why.startswith("model.safetensors "), found.why
    assert judge(path, tensors[:-1]).why == (
        f"model.safetensors is {len(tensors) - 1} bytes long and must be {len(tensors)} (truncated)"
    )


def test_what_is_no_archive_cannot_be_judged_and_is_not_torn(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    (tmp_path / "plain.pkl").write_bytes(b"\x80\x04K\x01.")
    (tmp_path / "weights.pt").write_bytes(b"weights")
    told = {name: judge_file(str(tmp_path / name)) for name in sorted(os.listdir(tmp_path))}
    assert {name: found.why.partition(" cannot be judged: ")[2] for name, found in told.items()} == {
        "old.pt": "torch.save before 1.6 wrote it, as a pickle, which has no checksum and no length",
        "plain.pkl": "it is a pickle, which has no checksum and no length",
        "script.pt": "it is TorchScript, whose code is compressed",
        "weights.pt": "gangrun does not know its format",
    }
    assert all(found.unknown and found.level is None for found in told.values())
    zeros = judge(tmp_path / "old.pt", bytes(9000))
    assert (zeros.unknown, zeros.why) == (False, "old.pt is damaged: its first 4096 bytes are zeros")


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    whole = json.dumps({"global_step": 20, "log_history": []}, indent=2)
    assert judge(path, whole).level is Level.COMPLETE
    for length in range(len(whole)):
        found = judge(path, whole[:length])
        assert found.level is None and found.why.startswith("trainer_state.json ") and "torn" in found.why
    assert "line 2 column" in judge(path, whole[:10]).why
    assert judge(path, "[" * 100_000).level is None


def test_an_index_whose_shards_are_whole(sharded: Path) -> None:
    found = judge_file(str(sharded / "model.index.json"))
    assert (found.level, found.valid, found.entry_count) == (Level.COMPLETE, True, 4)


@pytest.mark.parametrize(
    ("name", "cut", "told"),
    [
        ("model-00001-of-00003.safetensors", -1, "(truncated)"),
        ("model-00002-of-00003.safetensors", 0, "is empty (torn)"),
        ("model-00003-of-00003.bin", -1, "model-00003-of-00003.bin ("),
        ("model.index.json", -5, "model.index.json is torn or is no index"),
        ("model-00002-of-00003.safetensors", None, "model-00002-of-00003.safetensors is missing"),
    ],
)
def test_an_index_names_the_shard_that_is_not_whole(sharded: Path, name: str, cut: int | None, told: str) -> None:
    if cut is None:
        (sharded / name).unlink()
    else:
        (sharded / name).write_bytes((sharded / name).read_bytes()[:cut])
    found = judge_file(str(sharded / "model.index.json"))
    assert found.level is None and told in found.why, found.why


def test_an_index_finds_its_tensors(sharded: Path) -> None:
    safetensors.save_file({"other": torch.zeros(2)}, sharded / "model-00001-of-00003.safetensors")
    assert judge_file(str(sharded / "model.index.json")).why == (
        "model-00001-of-00003.safetensors does not hold one, which model.index.json finds in it"
    )
    assert "outside" in judge(sharded / "model.index.json", '{"weight_map": {"a": "../x.bin"}}').why


def test_a_file_that_changes_while_it_is_read(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    path.write_bytes(archive)

    def rewritten(_: int) -> None:
        os.utime(path, ns=(1, 1))

    found = judge_file(str(path), rewritten)
    assert (found.level, found.why) == (None, "latest.pt was written to while it was being read")


def test_what_is_no_file(archive: bytes, tmp_path: Path) -> None:
    assert judge_file(str(tmp_path / "none.pt")).why == "none.pt is missing"
    (tmp_path / "real.pt").write_bytes(archive)
    (tmp_path / "link.pt").symlink_to("real.pt")
    assert judge_file(str(tmp_path / "link.pt")).why == "link.pt is a symbolic link, which is not followed"
    os.mkfifo(tmp_path / "pipe.pt")
    assert judge_file(str(tmp_path / "pipe.pt")).why == "pipe.pt is not a regular file"
