"""Which rank writes which tensor where, agreed once and kept for as long as the state keeps its shape.

torch's own planner decides: what is replicated is written by one rank, what is sharded by its owner. Because every
tensor archive has a size that is known beforehand, the place of each tensor in its file is part of the plan. Each rank
has one file for what changes, and more for tensors that are expected not to change (``Grouping``). That is only an
expectation: ``delta`` compares the content each time before it links a file. At first parameters without a gradient are
expected to stay as they are, later those that were seen to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from gangrun.training.ranks import RankGroup
from gangrun.training.save.shard_file import Template, Templates
from gangrun.training.state import storage_of

Group = tuple[MetadataIndex, ...]
Groups = tuple[Group, ...]

GROUP_BYTES = 128 * 1024 * 1024  # one change writes this much again; one file more for each so many
LEAST_BYTES = 4096  # less is not worth a comparison: an archive's frame takes a quarter of it
_WORTH_BYTES = 1024 * 1024
_WORTH_PART = 20


def packed(tensors: Iterable[tuple[MetadataIndex, int]]) -> Groups:
    """Neighbours together, up to ``GROUP_BYTES`` a group; given as (index, bytes), in the order of the plan."""
    groups: list[Group] = []
    group: list[MetadataIndex] = []
    size = 0
    for index, count in tensors:
        if count < LEAST_BYTES:
            continue
        if group and size + count > GROUP_BYTES:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(index)
        size += count
    return (*groups, tuple(group)) if group else tuple(groups)


class Grouping:
    """The groups that the next plan is made by. ``groups`` None: nobody has looked yet.

    Written by the saver's thread and read by training's, one reference at a time. Planning anew makes training wait
    for all ranks, so what was seen is heeded after the 2nd, 4th, 8th ... save only, and only where it pays.
    """

    def __init__(self) -> None:
        self.groups: Groups | None = None
        self._saves_count = 0

    def seen(
        self,
        tensors: Collection[tuple[MetadataIndex, int]],
        written: Collection[MetadataIndex],
        still: Collection[MetadataIndex],
    ) -> None:
        """After a save of these (index, bytes): what was written, and what of it was as it had been the time before."""
        self._saves_count += 1
        if self._saves_count < 2 or self._saves_count & (self._saves_count - 1):
            return
        sizes = dict(tensors)
        in_vain = sum(sizes[index] for index in still if sizes[index] >= LEAST_BYTES)
        if in_vain < _WORTH_BYTES or in_vain * _WORTH_PART < sum(sizes[index] for index in written):
            return
        changed = set(written) - set(still)
        whole = tuple(group for group in self.groups or () if changed.isdisjoint(group))
        grouped = {index for group in whole for index in group}
        groups = (*whole, *packed((i, size) for i, size in tensors if i in still and i not in grouped))
        if groups != self.groups:
            self.groups = groups


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
class PlannedFile:
    """One file of this rank and what stands in it, in this order."""

    name: str
    tensors: tuple[TensorPlace, ...]


@dataclass(frozen=True, slots=True)
class SavePlan:
    """This rank's part. The first file takes what changes, objects too; each of the others may stay as it is.

    ``metadata`` and ``all_places`` on rank 0 only: (file, index, offset, length) of every rank's tensors.
    """

    files: tuple[PlannedFile, ...]
    objects: tuple[MetadataIndex, ...]
    buffer_bytes: int
    metadata: Metadata | None = None
    all_places: tuple[tuple[str, MetadataIndex, int, int], ...] = ()

    @property
    def tensors(self) -> tuple[TensorPlace, ...]:
        """Those of all files, one file after the other."""
        return tuple(chain.from_iterable(file.tensors for file in self.files))


class Planning:
    """Makes plans, and makes one again only when any rank's state changed its shape, or what of it is still.

    ``frozen`` tells the storages of parameters that want no gradient; None: all goes into one file.
    """

    def __init__(self, ranks: RankGroup, grouping: Grouping, frozen: Callable[[], Collection[int]] | None) -> None:
        self._ranks, self._grouping, self._frozen = ranks, grouping, frozen
        self._templates = Templates()
        self._signature: object = None
        self._plan: SavePlan | None = None
        self._groups: Groups | None = None

    def of(self, state: dict[str, Any]) -> tuple[DefaultSavePlanner, SavePlan]:
        """The plan for this state, the same work on all ranks, and the planner that finds its values."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=self._ranks.rank == 0)
        signature = _signature(planner.state_dict)
        stale = self._plan is None or signature != self._signature or self._groups is not self._grouping.groups
        if self._ranks.largest(int(stale))[0] or self._plan is None:
            self._plan = self._made(planner)
            self._signature = signature
        return planner, self._plan

    def _made(self, planner: DefaultSavePlanner) -> SavePlan:
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
        rows = [(file.name, t.index, t.file_at, t.template.size) for file in plan.files for t in file.tensors]
        everyone = [row for rows_of_one in self._ranks.to_first(rows) for row in rows_of_one]
        return dataclasses.replace(plan, metadata=metadata, all_places=tuple(everyone))

    def _laid_out(self, planner: DefaultSavePlanner, items: Any) -> SavePlan:
        tensors: dict[MetadataIndex, torch.Tensor] = {}
        objects = []
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                objects.append(item.index)
            else:
                tensors[item.index] = planner.lookup_object(item.index)
        grouped = [[index for index in group if index in tensors] for group in self._grouped(tensors)]
        taken = {index for group in grouped for index in group}
        contents = [[index for index in tensors if index not in taken], *(group for group in grouped if group)]
        files = []
        buffer_at = 0
        for number, content in enumerate(contents):
            places: list[TensorPlace] = []
            file_at = 0
            for index in content:
                dtype, shape = tensors[index].dtype, tuple(tensors[index].shape)
                template = self._templates.of(dtype, shape)
                places.append(TensorPlace(index, dtype, shape, buffer_at, file_at, template))
                buffer_at += -(-template.data_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                file_at += template.size
            files.append(PlannedFile(f"__{self._ranks.rank}_{number}.distcp", tuple(places)))
        return SavePlan(tuple(files), tuple(objects), buffer_at)

    def _grouped(self, tensors: dict[MetadataIndex, torch.Tensor]) -> Groups:
        groups = self._grouping.groups
        if groups is None:
            frozen = self._frozen() if self._frozen is not None else ()
            sized = [(i, t.numel() * t.element_size()) for i, t in tensors.items() if storage_of(t) in frozen]
            groups = self._grouping.groups = packed(sized)
        self._groups = groups
        return groups


def _signature(flat: dict[str, Any]) -> tuple[object, ...]:
    return tuple((name, *_shape_of(value)) for name, value in flat.items())


def _shape_of(value: Any) -> tuple[object, ...]:
    if not isinstance(value, torch.Tensor):
        return ()
    spec = getattr(value, "placements", None)
    local = value.to_local() if spec is not None else value  # a DTensor
    return (value.dtype, tuple(value.shape), tuple(local.shape), spec)
