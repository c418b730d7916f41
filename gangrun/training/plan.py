"""Which rank writes which tensor where, agreed once and kept for as long as the state keeps its shape (room: training).

torch's own planner decides: what is replicated is written by one rank, what is sharded by its owner. Because every
tensor archive has a size that is known beforehand, the place of each tensor in its file is part of the plan. Next:
``snapshot``, which fills the host's memory by it; ``saver``, which writes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from gangrun.training.ranks import Ranks
from gangrun.training.torch_archive import Template, Templates

OWN_PREFIX = "gangrun."  # keys of what is no user's tensor
ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor, or one shard of one: where it stands in the host's buffer and in the file."""

    index: MetadataIndex
    dtype: torch.dtype
    shape: tuple[int, ...]
    buffer_at: int
    file_at: int
    template: Template


@dataclass(frozen=True, slots=True)
class Plan:
    """This rank's part; ``metadata`` and ``all_places`` on rank 0 only: (rank, index, offset, length)."""

    file_name: str
    tensors: tuple[TensorPlace, ...]
    objects: tuple[MetadataIndex, ...]
    buffer_bytes: int
    metadata: Metadata | None = None
    all_places: tuple[tuple[str, MetadataIndex, int, int], ...] = ()


class Planning:
    """Makes plans, and makes one again only when the shape of any rank's state has changed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._templates = Templates()
        self._signature: object = None
        self._plan: Plan | None = None

    def of(self, state: dict[str, Any]) -> tuple[DefaultSavePlanner, Plan]:
        """The plan for this state, the same work on all ranks, and the planner that finds its values."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=self._ranks.rank == 0)
        signature = _signature(planner.state_dict)
        stale = self._plan is None or signature != self._signature
        if self._ranks.largest(int(stale))[0] or self._plan is None:
            self._plan = self._made(planner)
            self._signature = signature
        return planner, self._plan

    def _made(self, planner: DefaultSavePlanner) -> Plan:
        local_plans = self._ranks.to_first(planner.create_local_plan())
        metadata, parts, failed = None, [], ""
        if self._ranks.rank == 0:
            try:
                parts, metadata = planner.create_global_plan(local_plans)
            except ValueError as error:
                failed = str(error)
        failed = self._ranks.from_first(failed)
        if failed:
            raise ValueError(f"the ranks' states do not fit together: {failed}")
        mine = planner.finish_plan(self._ranks.each_its_own(parts))
        plan = self._laid_out(planner, mine.items)
        rows = [(plan.file_name, t.index, t.file_at, t.template.size) for t in plan.tensors]
        everyone = [row for rows_of_one in self._ranks.to_first(rows) for row in rows_of_one]
        return dataclasses.replace(plan, metadata=metadata, all_places=tuple(everyone))

    def _laid_out(self, planner: DefaultSavePlanner, items: Any) -> Plan:
        tensors, objects = [], []
        buffer_at = file_at = 0
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                objects.append(item.index)
                continue
            tensor = planner.lookup_object(item.index)
            template = self._templates.of(tensor.dtype, tuple(tensor.shape))
            place = TensorPlace(item.index, tensor.dtype, tuple(tensor.shape), buffer_at, file_at, template)
            tensors.append(place)
            buffer_at += -(-template.data_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            file_at += template.size
        return Plan(f"__{self._ranks.rank}_0.distcp", tuple(tensors), tuple(objects), buffer_at)


def _signature(flat: dict[str, Any]) -> tuple[object, ...]:
    return tuple((name, *_shape_of(value)) for name, value in flat.items())


def _shape_of(value: Any) -> tuple[object, ...]:
    if not isinstance(value, torch.Tensor):
        return ()
    spec = getattr(value, "placements", None)
    local = value.to_local() if spec is not None else value  # a DTensor
    return (value.dtype, tuple(value.shape), tuple(local.shape), spec)
