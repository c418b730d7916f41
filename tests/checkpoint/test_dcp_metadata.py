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


def _shrink(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].chunks[0].sizes = torch.Size([300, 499])


def _move(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].chunks[0].offsets = torch.Size([1, 0])


def _flatten(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].chunks[0].offsets = torch.Size([0])


def _overlap(metadata: Any) -> None:
    first = min(
        (i for i in metadata.storage_data.values() if i.relative_path == "__0_0.distcp"), key=lambda i: i.offset
    )
    first.length += 1


def _stretch(metadata: Any) -> None:
    max(metadata.storage_data.values(), key=lambda i: i.offset).length += 10_000_000


def _negative(metadata: Any) -> None:
    max(metadata.storage_data.values(), key=lambda i: i.offset).offset = -1


def _forget(metadata: Any) -> None:
    del metadata.state_dict_metadata["step"]


def _wrong_chunk(metadata: Any) -> None:
    key = next(key for key in metadata.storage_data if key.fqn == "model.weight")
    metadata.storage_data[MetadataIndex("model.weight", [5, 5])] = metadata.storage_data.pop(key)


def _no_chunks(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].chunks = None


def _no_shape(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].size = None


def _no_file(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).relative_path = None


def _no_places(metadata: Any) -> None:
    metadata.storage_data = None


def _no_place(metadata: Any) -> None:
    metadata.storage_data[next(iter(metadata.storage_data))] = 3


def _no_content(metadata: Any) -> None:
    metadata.state_dict_metadata = [1]


def _alien_content(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"] = 3


def _no_type(metadata: Any) -> None:
    metadata.state_dict_metadata["model.weight"].properties = None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_shrink, "covers 149700 of 150000 elements of model.weight"),
        (_move, "puts a chunk of model.weight outside the tensor"),
        (_flatten, "describes the chunks of model.weight inconsistently"),
        (_overlap, "overlap in __0_0.distcp"),
        (_stretch, "(truncated)"),
        (_negative, "impossible offset or length"),
        (_forget, "stores step, which it does not describe"),
        (_wrong_chunk, "that is none of its chunks"),
        (_no_chunks, "lists no chunks of model.weight"),
        (_no_shape, "gives model.weight an impossible shape"),
        (_no_file, "names no file for a piece of data"),
        (_no_places, "does not say where the data is stored"),
        (_no_place, "does not say where the data is stored"),
        (_no_content, "does not list what the checkpoint holds"),
        (_alien_content, "lists its content in an unknown way"),
        (_no_type, "gives no element type for a tensor"),
    ],
)
def test_a_description_that_does_not_hold_together_is_refused(
    copy: Copy, spoil: Callable[[Any], None], words: str
) -> None:
    path = copy("step-10")
    metadata = dcp.FileSystemReader(path).read_metadata()
    spoil(metadata)
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
