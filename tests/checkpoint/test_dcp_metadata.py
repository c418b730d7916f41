"""Descriptions that torch wrote and that no longer hold together: refused before a file is opened."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex

from gangrun.checkpoint.formats.dcp import screen, verify
from gangrun.core.model import Level

Copy = Callable[..., Path]


def _write_metadata(path: Path, metadata: object) -> None:
    (path / ".metadata").write_bytes(pickle.dumps(metadata, 4))


def weight(metadata: Any) -> Any:
    return metadata.state_dict_metadata["model.weight"]


def ends(metadata: Any, file: str = "") -> list[Any]:
    """Where pieces of data stand (in that file), in order."""
    places = (one for one in metadata.storage_data.values() if one.relative_path.startswith(file))
    return sorted(places, key=lambda one: one.offset)


def rename_chunk(metadata: Any) -> None:
    key = next(key for key in metadata.storage_data if key.fqn == "model.weight")
    metadata.storage_data[MetadataIndex("model.weight", [5, 5])] = metadata.storage_data.pop(key)


SPOILT: list[tuple[Callable[[Any], tuple[Any, str, Any] | None], str]] = [  # what gets which attribute or item
    (lambda m: (weight(m).chunks[0], "sizes", torch.Size([300, 499])), "covers 149700 of 150000 elements of model.w"),
    (lambda m: (weight(m).chunks[0], "offsets", torch.Size([1, 0])), "puts a chunk of model.weight outside the tensor"),
    (
        lambda m: (weight(m).chunks[0], "offsets", torch.Size([0])),
        "the chunks of model.weight inconsistently",
    ),
    (
        lambda m: (ends(m, "__0_0.distcp")[0], "length", ends(m, "__0_0.distcp")[0].length + 1),
        "overlap in __0_0.distcp",
    ),
    (lambda m: (ends(m)[-1], "length", ends(m)[-1].length + 10_000_000), "(truncated)"),
    (lambda m: (ends(m)[-1], "offset", -1), "impossible offset or length"),
    (lambda m: m.state_dict_metadata.pop("step") and None, "stores step, which it does not describe"),
    (rename_chunk, "that is none of its chunks"),
    (lambda m: (weight(m), "chunks", None), "lists no chunks of model.weight"),
    (lambda m: (weight(m), "size", None), "gives model.weight an impossible shape"),
    (lambda m: (ends(m)[0], "relative_path", None), "names no file for a piece of data"),
    (lambda m: (m, "storage_data", None), "does not say where the data is stored"),
    (lambda m: (m.storage_data, next(iter(m.storage_data)), 3), "does not say where the data is stored"),
    (lambda m: (m, "state_dict_metadata", [1]), "does not list what the checkpoint holds"),
    (lambda m: (m.state_dict_metadata, "model.weight", 3), "lists its content in an unknown way"),
    (lambda m: (weight(m), "properties", None), "gives no element type for a tensor"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILT)
def test_a_description_that_does_not_hold_together_is_refused(
    copy: Copy, spoil: Callable[[Any], tuple[Any, str, Any] | None], words: str
) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    if change := spoil(metadata):
        owner, name, value = change
        owner.__setitem__(name, value) if isinstance(owner, dict) else setattr(owner, name, value)
    _write_metadata(path, metadata)
    found = screen(str(path))
    assert found.level is None and words in found.why


def test_a_chunk_with_less_data_than_its_shape_is_refused(copy: Copy) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    stored = metadata.state_dict_metadata["model.weight"]
    stored.size = stored.chunks[0].sizes = torch.Size([300, 501])
    _write_metadata(path, metadata)
    assert screen(str(path)).level is Level.COMPLETE
    assert verify(str(path)).why.endswith("it holds 600000 bytes of data and must hold 601200")
