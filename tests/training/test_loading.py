"""Loading: what a storage makes of a checkpoint after it was proven is noticed as it arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gangrun

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.metadata import MetadataIndex  # noqa: E402

from gangrun.training.load import CheckpointReader  # noqa: E402
from gangrun.training.metadata_file import load_metadata  # noqa: E402
from gangrun.training.state import STATE_KEY, CheckpointError, Parts, tensors_of  # noqa: E402


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with gangrun.Checkpointer(tmp_path / "c", **parts(1)) as ckpt:
        ckpt.save(3, wait=True)
    return tmp_path / "c" / "step-3"


def parts(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 600))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def state_of(given: dict[str, Any]) -> dict[str, Any]:
    return tensors_of(Parts(given["model"], (given["optimizer"],)))


def test_what_rots_after_it_was_proven_is_refused_as_it_is_read(saved: Path) -> None:
    wanted = parts(1)["model"][1].weight.detach().numpy().tobytes()
    shard = next(one for one in saved.glob("*.distcp") if wanted in one.read_bytes())
    content = bytearray(shard.read_bytes())
    content[content.index(wanted) + len(wanted) // 2] ^= 0x04
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'model.1.weight' in .*step-3.* its checksum is wrong.* do not train"):
        CheckpointReader(str(saved)).fill(state_of(parts(2)))


def test_a_shard_that_went_away_after_it_was_proven_is_told_in_words(saved: Path) -> None:
    for shard in saved.glob("*.distcp"):
        shard.unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded: No such file or directory"):
        CheckpointReader(str(saved)).fill(state_of(parts(2)))


def test_small_state_that_rotted_is_noticed_before_a_tensor_is_read(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may catch it and begin anew with the weights that it made."""
    info = load_metadata((saved / ".metadata").read_bytes()).storage_data[MetadataIndex(STATE_KEY)]
    shard = saved / info.relative_path
    content = bytearray(shard.read_bytes())
    content[info.offset : info.offset + info.length] = bytes(info.length)
    shard.write_bytes(content)
    monkeypatch.setenv("GANGRUN_RESUME", str(saved))
    given, untouched = parts(2), parts(2)["model"].state_dict()
    with gangrun.Checkpointer(tmp_path / "c", **given) as ckpt, pytest.raises(Exception, match="load failed"):
        ckpt.resume()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in given["model"].state_dict().items())


def test_what_is_whole_comes_back_into_a_tensor_whose_rows_are_apart(saved: Path) -> None:
    model = parts(2)["model"]
    model[1].weight = nn.Parameter(model[1].weight.detach().t().contiguous().t())
    assert not model[1].weight.is_contiguous()
    CheckpointReader(str(saved)).fill(
        state_of({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    )
    expected = parts(1)["model"].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
