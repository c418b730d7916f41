"""The ranks of one gang talking to each other about checkpoints, on a group of their own.

Never on the group that training uses: a save goes on in the background while training's collectives run, and two users
of one group wait for each other for ever. Small Python values only.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gangrun.training import environment

T = TypeVar("T")
WAIT_TOLD_S = 60.0
_STEP_BITS = 56
_NUMBERS_COUNT = 6  # in every meeting: whoever meets another one in another place must not send it another length
_IN_GLOO = re.compile(r"^\[[^]]*\] ")  # the place in its source


class RankGone(RuntimeError):
    """Another rank has ended or does not answer: nothing can be agreed on any more; the message has torch's words."""


class ScriptCall(IntEnum):
    """What the script called that made ranks meet."""

    MAKING = 0
    STEP = 1
    SAVE = 2
    CLOSE = 3

    def said(self, step: int) -> str:
        """In words."""
        told = {
            ScriptCall.MAKING: "(...)",
            ScriptCall.STEP: f".step({step})",
            ScriptCall.SAVE: f".save({step})",
            ScriptCall.CLOSE: ".close()",
        }
        return f"Checkpointer{told[self]}"


class RankGroup:
    """All ranks, or the one process there is where no process group was made. Makes a group of its own."""

    def __init__(self) -> None:
        self._group: Any = None
        self._call, self._step, self._met, self._waits_told = ScriptCall.MAKING, -1, False, False
        self.rank, self.world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            if self.world_size > 1:
                with self._waiting():
                    self._group = dist.new_group(backend="gloo")

    @property
    def group(self) -> Any:
        """Of all ranks; None where there is but one."""
        return self._group

    def called(self, call: ScriptCall, step: int) -> None:
        """What the script calls now; it is compared with the others' at the next ``largest``."""
        self._call, self._step = call, step

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest of each over all ranks, the same for all. Raises ``RankGone``, and ValueError where the ranks
        called different methods or are at different steps, which all of them learn.
        """
        if self._group is None:
            return numbers
        here = (self._call << _STEP_BITS) + self._step + 1
        tensor = torch.zeros(_NUMBERS_COUNT, dtype=torch.int64)
        tensor[: 2 + len(numbers)] = torch.tensor((here, -here, *numbers))
        with self._waiting():
            try:
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
            except RuntimeError as error:
                why = _IN_GLOO.sub("", str(error)).partition(". This is")[0]
                # the words in brackets tell a victim from a culprit
                raise RankGone(f"another rank is gone or does not answer (gloo: {why})") from None
        self._met = self._call is not ScriptCall.MAKING
        last, first, *found = tensor.tolist()
        self._demand_alike(here, last, -first)
        return tuple(found[: len(numbers)])

    def _demand_alike(self, here: int, last: int, first: int) -> None:
        if first == last or (self._call is ScriptCall.CLOSE and first >> _STEP_BITS == last >> _STEP_BITS):
            return
        other = first if here == last else last
        there = ScriptCall(other >> _STEP_BITS).said(other % (1 << _STEP_BITS) - 1)
        raise ValueError(
            f"rank {self.rank} is in {self._call.said(self._step)} and another rank in {there}: all ranks must call "
            "step(), save() and close() alike, in the same order and for the same steps"
        )

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Tell it, once, when the others do not come for long, unless the ranks have met in a call of the script
        before: then all of them do call. Under gangrun the hang watch tells more, and takes output for a sign of life.
        """
        if self._met or environment.run_id():
            yield
            return
        timer = threading.Timer(WAIT_TOLD_S, self._tell_waiting)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be had, and what is waited for needs none
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell_waiting(self) -> None:
        if not self._waits_told:
            self._waits_told = True
            warnings.warn(
                f"rank {self.rank} has waited {WAIT_TOLD_S:.0f} s for other ranks in {self._call.said(self._step)}: "
                "another rank is slow or stuck, or does not call it, as all ranks have to",
                stacklevel=2,
            )

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
