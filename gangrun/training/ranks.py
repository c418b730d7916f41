"""The ranks of one gang talking to each other about checkpoints, on a group of their own (room: training).

Never on the group that training uses: a save goes on in the background while training's collectives run, and two users
of one group wait for each other for ever. Small Python values only. Next: ``checkpointer``.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
_IN_GLOO = re.compile(r"^\[[^]]*\] ")  # the place in its source


class RankGone(RuntimeError):
    """Another rank has ended, so nothing can be agreed on any more; the message has torch's words."""


class Ranks:
    """All ranks, or the one process there is where no process group was made."""

    def __init__(self) -> None:
        self._group: Any = None
        self.rank, self.world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            if self.world_size > 1:
                self._group = dist.new_group(backend="gloo")

    @property
    def group(self) -> Any:
        """Of all ranks; None where there is but one."""
        return self._group

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest of each over all ranks, the same for all. Raises ``RankGone``."""
        if self._group is None:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64)
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            why = _IN_GLOO.sub("", str(error)).partition(". This is")[0]
            raise RankGone(f"another rank is gone ({why})") from None
        return tuple(tensor.tolist())

    def from_first(self, value: T) -> T:
        """Rank 0's value."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        return box[0]

    def to_first(self, value: T) -> list[T]:
        """Every rank's value, in order, on rank 0; empty elsewhere."""
        if self._group is None:
            return [value]
        box: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, box, dst=0, group=self._group)
        return box or []

    def each_its_own(self, values: list[T]) -> T:
        """Of the list that rank 0 has, each rank's own."""
        if self._group is None:
            return values[0]
        box: list[Any] = [None]
        dist.scatter_object_list(box, values if self.rank == 0 else None, src=0, group=self._group)
        found: T = box[0]
        return found
