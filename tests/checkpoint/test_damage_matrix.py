"""What storage, a crash or a second save into the same directory can do to a checkpoint, and what becomes of it, by
format: passed over for the one before it with a reason that names the file, or not to be seen, and then never called
more than it is. What ``torch.distributed.checkpoint.load`` makes of the same damage is often nothing at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import gangrun
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Chosen, ResumeRequest
from gangrun.core.model import Level
from tests.checkpoint.conftest import quiet, save
from tests.checkpoint.test_own_and_safetensors import tensors

torch = pytest.importorskip("torch")

SEEN, BLIND, NONE = "seen", "not to be seen", "there is no such thing"
Hurt = Callable[[Path, Path], object]


def own(root: Path) -> None:
    model = torch.nn.Linear(400, 300)
    with quiet():
        for step in (10, 20):
            torch.nn.init.normal_(model.weight)
            with gangrun.Checkpointer(root, model=model) as ckpt:
                ckpt.save(step, wait=True)


def plain(root: Path) -> None:
    for step in (10, 20):
        save(root / f"step-{step}", step)


def hugging_face(root: Path) -> None:
    for step in (10, 20):
        (root / f"step-{step}").mkdir(parents=True)
        for rank in range(3):
            path = root / f"step-{step}" / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
            tensors(path, {"w": ([400, 30], [400 * rank, 0]), f"only-{rank}": ([step], [0])})


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("kinds")
    own(root / "own")
    plain(root / "plain")
    hugging_face(root / "hugging face")
    return {path.name: path for path in root.iterdir()}


def shards(step: Path) -> list[Path]:
    return sorted(path for path in step.iterdir() if path.suffix in {".distcp", ".safetensors"})


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flipped(step: Path, _: Path) -> None:
    shard = shards(step)[0]
    at = shard.stat().st_size // 2
    overwrite(shard, at, bytes([shard.read_bytes()[at] ^ 1]))


def zeroed(step: Path, _: Path) -> None:
    shard = shards(step)[0]
    at = shard.stat().st_size // 2 // 4096 * 4096
    overwrite(shard, at, b"\xff" * 4096 if not any(shard.read_bytes()[at : at + 4096]) else bytes(4096))


def swapped(step: Path, other: Path) -> None:
    shutil.copyfile(shards(other)[0], shards(step)[0])


def cut(left: float) -> Hurt:
    def hurt(step: Path, _: Path) -> None:
        size = shards(step)[0].stat().st_size
        os.truncate(shards(step)[0], int(size * left) if left < 1 else size - 1)

    return hurt


def saved_over(step: Path, other: Path) -> None:
    """The first rank of a second save was cut off in the middle."""
    whole = shards(other)[0].read_bytes()
    shards(step)[0].write_bytes(whole[: len(whole) // 2])


def all_zeros(step: Path, _: Path) -> None:
    overwrite(shards(step)[0], 0, bytes(shards(step)[0].stat().st_size))


def metadata(change: Callable[[Path], object]) -> Hurt:
    return lambda step, _: change(step / ".metadata")


ROWS: list[tuple[str, Hurt, tuple[str, str, str]]] = [
    ("a byte flipped", flipped, (SEEN, SEEN, BLIND)),
    ("a block of 4 KiB that is other than it was", zeroed, (SEEN, SEEN, BLIND)),
    ("a shard of another step; a second save of which a rank wrote nothing", swapped, (SEEN, BLIND, BLIND)),
    ("a second save that was cut off", saved_over, (SEEN, SEEN, SEEN)),
    ("cut by a byte", cut(1), (SEEN, SEEN, SEEN)),
    ("cut to half", cut(0.5), (SEEN, SEEN, SEEN)),
    ("cut to nothing", cut(0.0), (SEEN, SEEN, SEEN)),
    ("as long as it was and all zeros", all_zeros, (SEEN, SEEN, SEEN)),
    ("the first shard gone", lambda step, _: shards(step)[0].unlink(), (SEEN, SEEN, SEEN)),
    ("one in the middle gone", lambda step, _: shards(step)[len(shards(step)) // 2].unlink(), (SEEN, SEEN, SEEN)),
    ("the last shard gone", lambda step, _: shards(step)[-1].unlink(), (SEEN, SEEN, BLIND)),
    ("no .metadata", metadata(Path.unlink), (SEEN, SEEN, NONE)),
    ("a torn .metadata", metadata(lambda path: os.truncate(path, 100)), (SEEN, SEEN, NONE)),
]
MATRIX = [
    pytest.param(kind, hurt, fate, id=f"{kind}: {what}")
    for what, hurt, fates in ROWS
    for kind, fate in zip(("own", "plain", "hugging face"), fates, strict=True)
    if fate is not NONE
]


@pytest.mark.parametrize(("kind", "hurt", "fate"), MATRIX)
def test_what_becomes_of_it(kinds: dict[str, Path], tmp_path: Path, kind: str, hurt: Hurt, fate: str) -> None:
    root = shutil.copytree(kinds[kind], tmp_path / "c")
    hurt(root / "step-20", root / "step-10")
    resume = CheckpointRoom(str(root)).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(resume.choice, Chosen)
    chosen = resume.choice.checkpoint
    if fate is BLIND:
        assert (chosen.step, resume.moved) == (20, ())
        assert chosen.level is (Level.COMPLETE if kind == "hugging face" else Level.VERIFIED)
        return
    assert chosen.step == 10, resume.choice.reason
    assert [move.step for move in resume.moved] == [20]
    why = resume.choice.passed_over[0].why
    assert any(name in why for name in ("distcp", ".metadata", "safetensors", "a shard of w", "unfinished")), why


@pytest.mark.parametrize("kind", ["own", "plain", "hugging face"])
def test_intact_ones_raise_no_alarm(kinds: dict[str, Path], tmp_path: Path, kind: str) -> None:
    root = shutil.copytree(kinds[kind], tmp_path / "c")
    for depth in (Depth.STRUCTURE, Depth.ALL, Depth.ALL):
        assert all(one.level for one in CheckpointRoom(str(root)).survey(depth))
    assert all(one.valid for one in CheckpointRoom(str(root)).survey(Depth.ALL))
    if kind != "hugging face":  # there every file counts, and what more ranks left overlaps
        (root / "step-20" / "__9_0.distcp").write_bytes(b"left by a save of more ranks")
    resume = CheckpointRoom(str(root)).choose_and_set_aside(ResumeRequest(), "run-1")
    assert isinstance(resume.choice, Chosen)
    assert (resume.choice.checkpoint.step, resume.moved) == (20, ())
