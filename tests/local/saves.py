"""Real DCP checkpoints, made once per session, and what can go wrong with them on a disk."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

PAYLOAD_NAME = "__0_0.distcp"


def write(root: Path, steps: tuple[int, ...]) -> None:
    """``step-N`` for each step, as torch's own saver leaves them."""
    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        for step in steps:
            weights = {"weight": torch.full((4000,), float(step)), "bias": torch.arange(7)}
            dcp.save({"model": weights, "step": step}, checkpoint_id=root / f"step-{step}")


def put(source: Path, directory: Path, *steps: int, name: str = "step-{}") -> None:
    """Copy some of them into a run's checkpoint directory."""
    for step in steps:
        shutil.copytree(source / f"step-{step}", directory / name.format(step))


def flip(save: Path) -> None:
    """One bit of a tensor's bytes is wrong."""
    path = save / PAYLOAD_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def truncate(save: Path) -> None:
    """The file ends too early."""
    path = save / PAYLOAD_NAME
    path.write_bytes(path.read_bytes()[:-100])


def lose_shard(save: Path) -> None:
    """A file that the metadata names is gone."""
    (save / PAYLOAD_NAME).unlink()


def tear_metadata(save: Path) -> None:
    """Half of the metadata was written."""
    path = save / ".metadata"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
