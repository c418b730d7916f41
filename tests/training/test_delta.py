"""What did not change is linked and not written again: bytes decide, and all that is there is whole and loads."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import gangrun
from gangrun.checkpoint.formats.manifest import read_manifest
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.retention import Keep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.metadata import MetadataIndex  # noqa: E402

from gangrun.training.save import (  # noqa: E402
    delta,
    plan,
)
from gangrun.training.save.shard_file import ShardFile  # noqa: E402


def backbone() -> nn.Module:
    """Most of it wants no gradient: 1.2 MB of 1.3."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(600, 500), nn.ReLU(), nn.Linear(500, 20))
    model[0].requires_grad_(requires_grad=False)
    return model


def train(model: nn.Module) -> None:
    with torch.no_grad():
        for one in model.parameters():
            if one.requires_grad:
                one.add_(1)


def linked(root: Path, step: int) -> dict[str, str]:
    return {row.path: row.linked_from for row in read_manifest(str(root / f"step-{step}")).files if row.linked_from}


def written_bytes(root: Path, step: int) -> int:
    return sum(row.size for row in read_manifest(str(root / f"step-{step}")).files if not row.linked_from)


def holds(root: Path, step: int, model: nn.Module) -> bool:
    """By torch alone, and by every checksum of gangrun's."""
    state = {"model": {name: torch.zeros_like(one) for name, one in model.state_dict().items()}}
    dcp.load(state, checkpoint_id=root / f"step-{step}", no_dist=True)
    same = all(torch.equal(state["model"][name], one) for name, one in model.state_dict().items())
    return same and all(one.valid for one in CheckpointRoom(str(root)).survey(Depth.ALL))


def test_bytes_written_are_bytes_changed_and_a_prune_takes_nothing_from_the_newer(tmp_path: Path) -> None:
    model = backbone()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    with gangrun.Checkpointer(tmp_path, model=model, optimizer=optimizer, keep=4) as ckpt:
        for step in range(3):
            train(model)
            ckpt.save(step, wait=True)
    assert written_bytes(tmp_path, 0) > 1_300_000 > 200_000 > written_bytes(tmp_path, 2)
    assert linked(tmp_path, 2) == {"__0_1.distcp": "step-1/__0_1.distcp"} and not linked(tmp_path, 0)
    files = [(tmp_path / f"step-{step}" / "__0_1.distcp").stat() for step in range(3)]
    assert len({one.st_ino for one in files}) == 1 and files[0].st_nlink == 3
    shutil.rmtree(tmp_path / "step-0")
    shutil.rmtree(tmp_path / "step-1")
    assert holds(tmp_path, 2, model)
    again = nn.Sequential(nn.Linear(600, 500), nn.ReLU(), nn.Linear(500, 20))
    again[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW([one for one in again.parameters() if one.requires_grad])
    with gangrun.Checkpointer(tmp_path, model=again, optimizer=optimizer) as ckpt:
        assert ckpt.resume() == 3
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_what_is_frozen_by_its_flag_and_changes_is_written(tmp_path: Path) -> None:
    model = backbone()
    with gangrun.Checkpointer(tmp_path, model=model) as ckpt:
        ckpt.save(0, wait=True)
        model[0].weight.data.view(-1)[77] += 1e-3  # one element, and no version of a tensor counts it
        ckpt.save(1, wait=True)
        assert not linked(tmp_path, 1) and holds(tmp_path, 1, model)
        ckpt.save(2, wait=True)
    assert linked(tmp_path, 2) and holds(tmp_path, 2, model)


def test_what_only_happens_to_stay_as_it_is_is_found_and_what_changes_again_is_written(tmp_path: Path) -> None:
    model = nn.ModuleList(nn.Linear(600, 500) for _ in range(3))
    with gangrun.Checkpointer(tmp_path, model=model, full_every=50) as ckpt:
        for step in range(6):
            with torch.no_grad():
                model[1].weight.add_(1)
                if step == 5:
                    model[0].bias.add_(1)
                    model[2].weight[3, 4] = 0
            ckpt.save(step, wait=True)
    assert [bool(linked(tmp_path, step)) for step in range(5)] == [False, False, False, True, True]
    assert written_bytes(tmp_path, 4) < 1_300_000 < 3_600_000 < written_bytes(tmp_path, 5)
    assert holds(tmp_path, 5, model)


def test_no_file_is_in_more_checkpoints_than_asked(tmp_path: Path) -> None:
    model = backbone()
    with gangrun.Checkpointer(tmp_path, model=model, full_every=3) as ckpt:
        for step in range(8):
            train(model)
            ckpt.save(step, wait=True)
    inodes = Counter((tmp_path / f"step-{step}" / "__0_1.distcp").stat().st_ino for step in range(8))
    assert list(inodes.values()) == [3, 3, 2]
    assert [delta.full_every(Keep(keep), None) for keep in (0, 2, 5, 50)] == [10, 1, 4, 10]
    with gangrun.Checkpointer(tmp_path / "whole", model=model, full_every=1) as ckpt:
        ckpt.save(0, wait=True)
    assert [path.name for path in (tmp_path / "whole" / "step-0").glob("*.distcp")] == ["__0_0.distcp"]
    with pytest.raises(ValueError, match="1 or more, not 0"):
        gangrun.Checkpointer(tmp_path, model=model, full_every=0)


def refuse(code: int) -> Callable[..., None]:
    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return link


def test_where_links_fail_it_is_written_and_tried_again_only_where_that_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real = backbone(), os.link

    def save(step: int) -> None:
        train(model)
        ckpt.save(step, wait=True)

    with gangrun.Checkpointer(tmp_path, model=model, full_every=50) as ckpt:
        save(0)
        monkeypatch.setattr(os, "link", refuse(errno.EMLINK))
        save(1)
        monkeypatch.setattr(os, "link", real)
        save(2)
        (tmp_path / "step-2" / "__0_1.distcp").unlink()
        save(3)
        os.utime(tmp_path / "step-3" / "__0_1.distcp", ns=(0, 0))  # whoever was there may have written
        save(4)
        monkeypatch.setattr(os, "link", refuse(errno.EXDEV))
        save(5)
        monkeypatch.setattr(os, "link", real)
        save(6)
    assert [step for step in range(7) if linked(tmp_path, step)] == [2]
    shutil.rmtree(tmp_path / "step-2")  # whose file was taken away
    assert holds(tmp_path, 6, model)


def test_after_a_save_that_failed_the_commit_before_is_linked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real = backbone(), ShardFile.close

    def full(self: ShardFile) -> None:
        real(self)
        raise OSError(errno.ENOSPC, "No space left on device")

    with gangrun.Checkpointer(tmp_path, model=model) as ckpt:
        ckpt.save(0, wait=True)
        monkeypatch.setattr(ShardFile, "close", full)
        with pytest.raises(gangrun.CheckpointError, match="No space left"):
            ckpt.save(1, wait=True)
        monkeypatch.setattr(ShardFile, "close", real)
        ckpt.save(2, wait=True)
    assert linked(tmp_path, 2) == {"__0_1.distcp": "step-0/__0_1.distcp"} and holds(tmp_path, 2, model)


def test_damage_to_a_shared_file_is_told_of_all_and_the_one_with_a_file_of_its_own_is_taken(tmp_path: Path) -> None:
    model = backbone()
    with gangrun.Checkpointer(tmp_path, model=model, keep=3) as ckpt:
        for step in range(5):
            train(model)
            ckpt.save(step, wait=True)
    shared = tmp_path / "step-3" / "__0_1.distcp"
    data = bytearray(shared.read_bytes())
    data[len(data) // 2] ^= 1
    shared.write_bytes(data)
    told = {one.step: one.why_not for one in CheckpointRoom(str(tmp_path)).survey(Depth.ALL)}
    assert sorted(told) == [2, 3, 4] and told[4] == "", "of those kept one shares nothing with the newest"
    assert told[3].endswith("the same file is in step-2 too") and told[2].endswith("the same file is in step-3 too")


def test_neighbours_share_a_file_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GROUP_BYTES", 20_000)
    sizes = [("a", 9_000), ("b", 9_000), ("c", 9_000), ("tiny", 50), ("huge", 99_000), ("d", 5_000)]
    packed = plan.packed([(MetadataIndex(name), size) for name, size in sizes])
    assert [[one.fqn for one in group] for group in packed] == [["a", "b"], ["c"], ["huge"], ["d"]]
    assert plan.packed([]) == ()
