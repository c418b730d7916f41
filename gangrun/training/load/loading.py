"""Reads a checkpoint that was proven whole into tensors that exist, shard by shard, whatever wrote it.

torch's own planner says which bytes belong where, so another number of ranks is no different from the same one. Each
rank reads alone: no collective is needed. Types are compared before a byte is read, as torch would convert them in
silence. What was proven before is compared once more as it arrives, where a whole shard is read: storage can rot
between a proof that was remembered and now.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.default_planner import set_element
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from gangrun.checkpoint.formats.dcp_metadata import MetadataRefused
from gangrun.checkpoint.formats.torch_zip import Damaged, Source, data_place
from gangrun.training.metadata_file import load_metadata
from gangrun.training.save.plan import OWN_PREFIX
from gangrun.training.save.snapshot import bytes_of
from gangrun.training.state import CheckpointError
from gangrun.wire.manifest import SAVE_ID_PREFIX, is_inside

_THREADS_COUNT = 4
_TURN_BYTES = 32 * 1024 * 1024  # worth a thread's turn

_Turn = list[tuple[ReadItem, Any]]  # what is wanted, and where it lies: neighbours in one file


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]  # torch has no types here
    """torch's, but what it reads back executes nothing."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], _inert(value.getvalue()))


class Reading:
    """One checkpoint directory, opened for reading. Raises ``CheckpointError`` where it cannot be used."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        try:
            with open(os.path.join(directory, ".metadata"), "rb") as file:
                self._metadata: Metadata = load_metadata(file.read())
        except (OSError, MetadataRefused) as error:
            raise CheckpointError(f"{directory} cannot be loaded: {error}") from None
        meta = self._metadata.storage_meta
        self._ours = bool(meta and (meta.save_id or "").startswith(SAVE_ID_PREFIX))
        self._chunks: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}

    def object_of(self, key: str) -> Any:
        """One of the small objects; None where the checkpoint has none of this name."""
        info = (self._metadata.storage_data or {}).get(MetadataIndex(key))
        if info is None:
            return None
        source = Source()
        with open(os.path.join(self.directory, _inside(info.relative_path)), "rb", buffering=0) as file:
            source.descriptor = file.fileno()
            return _inert(_bytes(source, info))

    def fill(self, state: dict[str, Any]) -> None:
        """Read into the tensors of this nested state, in place; what is no tensor is replaced."""
        planner = _Planner()
        planner.set_up_planner(state, self._metadata)
        self._demand_same(planner.state_dict)
        try:
            items = planner.finish_plan(planner.create_local_plan()).items
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{self.directory} does not fit this model and optimizer: {error}") from None
        with ThreadPoolExecutor(_THREADS_COUNT, thread_name_prefix="load") as pool:
            jobs = [pool.submit(self._read_turn, planner, path, turn) for path, turn in self._turns(items)]
            try:
                for job in jobs:
                    job.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _demand_same(self, wanted: dict[str, Any]) -> None:
        """Names and types, before any byte is read."""
        described = self._metadata.state_dict_metadata
        roots = {name.split(".", 1)[0] for name in wanted}
        unknown = [
            name
            for name in described
            if name not in wanted and not name.startswith(OWN_PREFIX) and name.split(".", 1)[0] in roots
        ]
        if unknown:
            raise CheckpointError(
                f"{self.directory} holds {len(unknown)} entries that this model and optimizer do not have, "
                f"{unknown[0]!r} for one"
            )
        for name, value in wanted.items():
            found = described.get(name)
            if isinstance(value, torch.Tensor) != isinstance(found, TensorStorageMetadata) and found is not None:
                raise CheckpointError(f"{name!r} is not in {self.directory} what it is in this model and optimizer")
            if isinstance(found, TensorStorageMetadata) and found.properties.dtype != value.dtype:
                raise CheckpointError(
                    f"{name!r} is {found.properties.dtype} in {self.directory} and {value.dtype} here; "
                    "torch would convert it without a word"
                )

    def _turns(self, items: list[ReadItem]) -> Iterator[tuple[str, _Turn]]:
        places = [(item, self._metadata.storage_data[item.storage_index]) for item in items]
        places.sort(key=lambda one: (one[1].relative_path, one[1].offset))
        for path, neighbours in groupby(places, key=lambda one: one[1].relative_path):
            turn: _Turn = []
            size = 0
            for item, info in neighbours:
                if turn and size + info.length > _TURN_BYTES:
                    yield path, turn
                    turn, size = [], 0
                turn.append((item, info))
                size += info.length
            yield path, turn

    def _read_turn(self, planner: DefaultLoadPlanner, path: str, turn: _Turn) -> None:
        source, name = Source(), ""
        try:
            with open(os.path.join(self.directory, _inside(path)), "rb", buffering=0) as file:
                source.descriptor = file.fileno()
                for item, info in turn:
                    name = item.storage_index.fqn
                    self._read(planner, source, item, info)
        except (Damaged, OSError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
            raise CheckpointError(
                f"{name!r} in {os.path.join(self.directory, path)} cannot be loaded: {why}. Model and optimizer are "
                "partly overwritten: do not train with them"
            ) from None

    def _read(self, planner: DefaultLoadPlanner, source: Source, item: ReadItem, info: Any) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(_bytes(source, info)))
            return
        target = planner.resolve_tensor(item).detach()
        if not self._ours or not self._straight(source, info, item, target):
            stored = torch.load(io.BytesIO(_bytes(source, info)), map_location="cpu", weights_only=True)
            target.copy_(narrow_tensor_by_index(stored, item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)

    def _straight(self, source: Source, info: Any, item: ReadItem, target: torch.Tensor) -> bool:
        """Read the wanted rows from the file into the tensor, with nothing in between; False if they are not rows."""
        sizes = self._sizes_of(item.storage_index)
        first, wanted = tuple(item.storage_offsets), tuple(item.lengths)
        if first[1:] != (0,) * len(first[1:]) or wanted[1:] != sizes[1:]:
            return False
        place = data_place(source, info.offset, info.length)
        if place is None:
            return False
        whole = target if not target.is_cuda and target.is_contiguous() else torch.empty(wanted, dtype=target.dtype)
        row_bytes = math.prod(sizes[1:]) * target.element_size()
        start, crc = place
        found = source.into(bytes_of(whole), start + (first[0] * row_bytes if first else 0))
        if wanted == sizes and found != crc:
            raise Damaged("its checksum is wrong, so it has changed since it was proven whole")
        if whole is not target:
            target.copy_(whole)
        return True

    def _sizes_of(self, index: MetadataIndex) -> tuple[int, ...]:
        known = self._chunks.get(index.fqn)
        if known is None:
            described = self._metadata.state_dict_metadata[index.fqn]
            known = self._chunks[index.fqn] = {tuple(c.offsets): tuple(c.sizes) for c in described.chunks}
        return known[tuple(index.offset or ())]


def _inside(path: str) -> str:
    if not is_inside(path):
        raise CheckpointError(f"the checkpoint's description points outside its directory: {path!r}")
    return path


def _bytes(source: Source, info: Any) -> bytearray:
    data = bytearray(info.length)
    source.into(memoryview(data), info.offset)
    return data


def _inert(data: bytes | bytearray) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
