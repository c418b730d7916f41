"""The one thing that training waits for: its state copied into host memory that is used again.

Two buffers, so that one save may be written while the next is taken; each is as large as this rank's part of the state,
pinned where there is a GPU. A third save waits for the first to be written.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from gangrun.training.save.plan import PlannedFile, SavePlan, TensorPlace
from gangrun.training.save.shard_file import TensorPiece


@dataclass(slots=True)
class Snapshot:
    """One moment's state of this rank, as it will stand in the file."""

    plan: SavePlan
    pieces: list[TensorPiece]
    objects: list[bytes]

    def contents(self) -> Iterator[tuple[PlannedFile, list[TensorPiece], list[tuple[MetadataIndex, bytes]]]]:
        """Each file with its tensors and objects, which are all in the first one."""
        pieces = iter(self.pieces)
        objects = list(zip(self.plan.objects, self.objects, strict=True))
        for file in self.plan.files:
            yield file, [next(pieces) for _ in file.tensors], objects
            objects = []


class HostBuffer:
    """One of the two; ``take`` may be called again only once what was taken is written."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._plan: SavePlan | None = None
        self._views: list[torch.Tensor] = []
        self._pieces: list[TensorPiece] = []

    def take(self, plan: SavePlan, tensor_of: Callable[[Any], Any], objects_of: Callable[[Any], Any]) -> Snapshot:
        """Copy what ``tensor_of(index)`` gives for every place of the plan; objects are serialized at once."""
        if plan is not self._plan:
            self._shape_for(plan)
        on_gpu = False
        for place, view in zip(plan.tensors, self._views, strict=True):
            tensor = tensor_of(place.index).detach()
            on_gpu = on_gpu or tensor.is_cuda
            view.copy_(tensor, non_blocking=True)
        objects = [_serialized(objects_of(index)) for index in plan.objects]
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return Snapshot(plan, self._pieces, objects)

    def _shape_for(self, plan: SavePlan) -> None:
        if self._memory.numel() < plan.buffer_bytes:
            pinned = torch.cuda.is_available()
            self._memory = torch.empty(plan.buffer_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._views = [self._view(place) for place in plan.tensors]
        self._pieces = [
            TensorPiece(place.template, bytes_of(view)) for place, view in zip(plan.tensors, self._views, strict=True)
        ]
        self._plan = plan

    def _view(self, place: TensorPlace) -> torch.Tensor:
        end = place.buffer_at + place.template.data_bytes
        if not place.template.data_bytes:
            return torch.empty(place.shape, dtype=place.dtype)
        return self._memory[place.buffer_at : end].view(place.dtype).view(place.shape)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU; it is valid only as long as the tensor is."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")


def _serialized(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
