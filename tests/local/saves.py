"""Real DCP checkpoints, made once per session, gangrun's own as far as proving goes, and what goes wrong on a disk."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from zlib import crc32

from gangrun.wire.manifest import CHUNK_BYTES, FileRow, Manifest, crcs_text, encode

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


def plain(directory: Path, step: int, tensors_count: int) -> Path:
    """``step-N`` by torch's own saver, each tensor in a file of its own: ``files_of`` gives them as they are read."""
    import torch
    import torch.distributed.checkpoint as dcp

    save = directory / f"step-{step}"
    weights = {f"w{i:02d}": torch.full((1000,), float(step + i)) for i in range(tensors_count)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(weights, storage_writer=dcp.FileSystemWriter(save, single_file_per_rank=False, sync_files=False))
    return save


def files_of(save: Path) -> list[str]:
    """The shards of a checkpoint, by name."""
    return sorted(path.name for path in save.glob("*.distcp"))


def own(directory: Path, step: int, shards_count: int) -> Path:
    """``step-N`` as gangrun proves it: its manifest holds for every byte. Its tensors are none, so nothing loads it."""
    save = directory / f"step-{step}"
    save.mkdir(parents=True)
    contents = {f"__{rank}_0.distcp": bytes([step % 256, rank]) * 3000 for rank in range(shards_count)}
    contents[".metadata"] = b"metadata"
    for name, data in contents.items():
        assert len(data) <= CHUNK_BYTES
        (save / name).write_bytes(data)
    rows = tuple(FileRow(name, len(data), crcs_text([crc32(data)])) for name, data in contents.items())
    manifest = Manifest(step=step, nonce=f"{step:016x}", world_size=shards_count, files=rows)
    (save / "gangrun.json").write_bytes(encode(manifest))
    return save


def put(source: Path, directory: Path, *steps: int, name: str = "step-{}") -> None:
    """Copy some of them into a run's checkpoint directory."""
    for step in steps:
        shutil.copytree(source / f"step-{step}", directory / name.format(step))


def flip(save: Path, name: str = PAYLOAD_NAME) -> None:
    """One bit of a tensor's bytes is wrong."""
    path = save / name
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
