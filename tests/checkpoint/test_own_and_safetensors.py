"""The damage matrix on gangrun's own checkpoints and on safetensors; what is intact raises no alarm."""

from __future__ import annotations

import json
import os
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import gangrun
from gangrun.checkpoint.formats import manifest, safetensors
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Candidate, Chosen, Kind, ResumeRequest, parse_resume
from gangrun.core.model import Level
from gangrun.wire.manifest import Manifest, decode, encode

torch = pytest.importorskip("torch")

SHARD = "__0_0.distcp"
OUTSIDE = "../elsewhere"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """step-10 and step-20 of one run: alike to the byte count."""
    root = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    model = torch.nn.Linear(400, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gangrun.Checkpointer(root, model=model) as ckpt:
            for step in (10, 20):
                torch.nn.init.normal_(model.weight)
                ckpt.save(step, wait=True)
    return root


@pytest.fixture
def both(saved: Path, tmp_path: Path) -> Path:
    root = tmp_path / "c"
    shutil.copytree(saved, root)
    return root


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path) -> None:
    at = path.stat().st_size // 2
    write_at(path, at, bytes([path.read_bytes()[at] ^ 1]))


def resave(step: Path, **fields: object) -> None:
    """A manifest with a right digest and other content."""
    found = decode((step / "gangrun.json").read_bytes())
    values = {name: getattr(found, name) for name in Manifest.__struct_fields__} | fields
    (step / "gangrun.json").write_bytes(encode(Manifest(**values)))


def renamed(step: Path) -> None:
    shutil.rmtree(step)
    shutil.copytree(step.parent / "step-10", step)


def linked(step: Path) -> None:
    (step / SHARD).rename(step / "x")
    (step / SHARD).symlink_to("x")


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [  # beside what test_damage_matrix does to all formats
    ("a flipped bit", lambda s: flip(s / SHARD), "the checksum of its bytes from 0 on is wrong"),
    ("grown by a byte", lambda s: write_at(s / SHARD, (s / SHARD).stat().st_size, b"x"), "bytes long and must be"),
    ("a link for a shard", linked, "symbolic link"),
    ("a flipped bit in .metadata", lambda s: flip(s / ".metadata"), ".metadata is damaged"),
    ("no manifest", lambda s: (s / "gangrun.json").unlink(), "gangrun.json is missing, which was written with it"),
    ("a torn manifest", lambda s: os.truncate(s / "gangrun.json", 50), "torn or is no manifest"),
    ("a flipped bit in the manifest", lambda s: flip(s / "gangrun.json"), "gangrun.json"),
    ("another step's manifest", lambda s: shutil.copy(s.parent / "step-10" / "gangrun.json", s), "it is step 10"),
    ("another step's directory", renamed, "its manifest says that it is step 10"),
    ("a manifest without .metadata", lambda s: resave(s, files=decode((s / "gangrun.json").read_bytes()).files[:1]),
     "does not list .metadata"),
    ("a manifest that leads outside",
     lambda s: resave(s, files=(*decode((s / "gangrun.json").read_bytes()).files[1:],
                                type(decode((s / "gangrun.json").read_bytes()).files[0])(OUTSIDE, 0, ""))),
     "points outside"),
]  # fmt: skip


@pytest.mark.parametrize(("hurt", "words"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_named_and_the_one_before_is_taken(both: Path, hurt: Callable[[Path], object], words: str) -> None:
    hurt(both / "step-20")
    resume = CheckpointRoom(str(both)).choose_and_set_aside(ResumeRequest(), "1")
    assert isinstance(resume.choice, Chosen) and resume.choice.checkpoint.step == 10
    assert words in resume.choice.passed_over[0].why
    assert [move.step for move in resume.moved] == [20]


def test_intact_ones_raise_no_alarm_and_are_read_once(both: Path) -> None:
    (both / "step-20" / "notes of mine.txt").write_text("not the checkpoint's")
    found: list[Candidate] = []
    for depth in (Depth.STRUCTURE, Depth.ALL, Depth.STRUCTURE):
        found = CheckpointRoom(str(both)).survey(depth)
        assert [(one.step, one.kind) for one in found] == [(20, Kind.GANGRUN), (10, Kind.GANGRUN)]
        assert not [one.why_not for one in found if one.level is None]
    assert all(one.level is Level.VERIFIED and one.valid for one in found), "remembered"
    read: list[int] = []
    judged = manifest.verify(str(both / "step-20"), 20, read.append)
    assert sum(read) == judged.data_bytes > 400 * 300 * 4 and judged.nonce == judged.save_id


def test_a_commit_that_is_in_no_list_is_never_chosen_and_one_from_elsewhere_may_be(both: Path, tmp_path: Path) -> None:
    room = CheckpointRoom(str(both))
    commits = room.commits()
    assert [step for step, _ in commits] == [20, 10] and len({nonce for _, nonce in commits}) == 2
    chosen = room.choose_and_set_aside(ResumeRequest(), "1", sealed=frozenset(commits[1:])).choice
    assert isinstance(chosen, Chosen) and chosen.checkpoint.step == 10
    assert "a late write" in chosen.passed_over[0].why
    other = CheckpointRoom(str(tmp_path / "new"), run_directory=str(tmp_path / "run"))
    asked = parse_resume(str(both / "step-20"))
    assert isinstance(other.choose_and_set_aside(asked, "0", sealed=frozenset()).choice, Chosen)


# ---- safetensors


def tensors(path: Path, rows: dict[str, tuple[list[int], list[int]]], *, sharded: bool = True) -> None:
    """A file of float32 tensors: name -> (shape, offsets)."""
    header: dict[str, object] = {}
    info, at = {}, 0
    for name, (shape, offsets) in rows.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        info[name] = {"saved_offsets": offsets}
        at += size
    if sharded:
        header["__metadata__"] = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(info)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    step = tmp_path / "h" / "step-5"
    step.mkdir(parents=True)
    tensors(step / "model-00001-of-00002.safetensors", {"a": ([4, 3], [0, 0])}, sharded=False)
    tensors(step / "model-00002-of-00002.safetensors", {"b": ([7], [0])}, sharded=False)
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (step / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return step


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    step = tmp_path / "h" / "step-5"
    step.mkdir(parents=True)
    for rank in range(3):
        name = f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
        tensors(step / name, {"w": ([4, 3], [4 * rank, 0]), f"only-{rank}": ([2], [0])})
    return step


def test_whole_safetensors_are_complete_and_never_called_verified(indexed: Path) -> None:
    found = CheckpointRoom(str(indexed.parent)).survey(Depth.ALL)[0]
    assert (found.kind, found.level, found.valid) == (Kind.SAFETENSORS, Level.COMPLETE, True)
    assert found.why_not == "safetensors carry no checksums"


HURT: list[tuple[Callable[[Path], object], str]] = [
    (lambda s: (s / "model-00001-of-00002.safetensors").unlink(), "00001-of-00002.safetensors is missing"),
    (lambda s: (s / "model-00002-of-00002.safetensors").unlink(), "00002-of-00002.safetensors is missing"),
    (lambda s: os.truncate(s / "model-00002-of-00002.safetensors", 90), "(truncated)"),
    (lambda s: os.truncate(s / "model-00002-of-00002.safetensors", 20), "no readable header"),
    (lambda s: (s / "model-00002-of-00002.safetensors").write_bytes(b""), "no readable header"),
    (lambda s: write_at(s / "model-00001-of-00002.safetensors", 0, b"\xff" * 8), "no readable header"),
    (lambda s: (s / "model-00001-of-00002.safetensors").write_bytes(bytes(150)), "no readable header"),
    (lambda s: os.truncate(s / "model.safetensors.index.json", 10), "is torn or is no index"),
    (lambda s: (s / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}'), "points outside"),
    (lambda s: (s / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x"}}'), "x is missing"),
]


@pytest.mark.parametrize(("hurt", "words"), HURT)
def test_damaged_safetensors_are_named(indexed: Path, hurt: Callable[[Path], object], words: str) -> None:
    hurt(indexed)
    found = safetensors.verify(str(indexed))
    assert found.level is None and words in found.why


def test_shards_that_a_save_of_more_ranks_left_are_seen(sharded: Path) -> None:
    for rank in range(2):
        name = f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
        tensors(sharded / name, {"w": ([6, 3], [6 * rank, 0]), f"only-{rank}": ([2], [0])})
    found = safetensors.verify(str(sharded))
    assert (found.level, found.why) == (
        None,
        "the shards of w overlap: some are left over from a save with another number of ranks",
    )
    (sharded / "shard-00003-model-00001-of-00001.safetensors").unlink()
    assert safetensors.verify(str(sharded)).level is Level.COMPLETE


def test_the_same_tensors_in_files_of_two_kinds_are_no_damage(indexed: Path) -> None:
    tensors(indexed / "consolidated.safetensors", {"a": ([4, 3], [0, 0])}, sharded=False)
    assert safetensors.verify(str(indexed)).level is Level.COMPLETE
