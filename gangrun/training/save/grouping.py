"""Which tensors are expected not to change, and which of them share a file.

An expectation, no more: it says what is worth comparing. Whether a file is linked is decided by its content each time
(``delta``). At first what wants no gradient is expected to be still; later what was seen to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch.distributed.checkpoint.metadata import MetadataIndex

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
