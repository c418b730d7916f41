"""Which samples this rank trains on next: a function of one number, the samples consumed by all.

    epoch, place = divmod(consumed, dataset_size)

The order of an epoch follows from its number and the seed. A global batch takes the next ``global_batch`` samples, over
the end of an epoch into the next if need be, and every rank takes its share of them: so each sample comes once per
epoch, the batch has one size for ever, and another number of ranks changes nothing but the shares. The
Checkpointer calls ``trained`` after each step and saves the number with the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist

from gangrun.training.data_checksums import DataChecksums
from gangrun.training.environment import compares_data, skipped_batches

_SCHEMA = 1


class GlobalBatchSampler:
    """A batch sampler for ``DataLoader(dataset, batch_sampler=sampler)``, or for torchdata's ``StatefulDataLoader``.

    Iterating gives the rest of the current epoch; iterating again gives the next one. Batches that a loader fetched
    ahead do not count: only ``trained`` moves the position. Every rank makes one with the same arguments.

    Args:
        dataset: The dataset, or its size in samples.
        global_batch: Samples per optimizer step over all ranks, constant for the whole run.
        micro_batch: Samples that the loader yields at once on this rank; default None: the rank's whole share of a
            global batch. Give less for gradient accumulation.
        shuffle: Whether each epoch has an order of its own; default True.
        seed: Of the orders; default 0.
        fingerprint: A text of yours that names the dataset's content; default "".
        rank: Number of this rank; default None: that of the default process group.
        world_size: Number of ranks; default None: that of the default process group.

    Raises:
        ValueError: A size that is impossible. Loading a state raises it too if the size, seed, global batch or
            fingerprint differs: samples would come twice or never.
    """

    def __init__(
        self,
        dataset: Sized | int,
        global_batch: int,
        *,
        micro_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        fingerprint: str = "",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
        self.dataset_size = dataset if isinstance(dataset, int) else len(dataset)
        self.global_batch, self.micro_batch = global_batch, micro_batch
        self.shuffle, self.seed, self.fingerprint = shuffle, seed, fingerprint
        self.consumed = 0
        if self.dataset_size < 1 or (micro_batch is not None and micro_batch < 1):
            raise ValueError("a dataset and a micro batch have at least one sample")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is none of {self.world_size} ranks")
        if global_batch < self.world_size:
            raise ValueError(
                f"a global batch of {global_batch} leaves some of {self.world_size} ranks without a sample"
            )
        self._skips, self._trained_count = skipped_batches(), 0  # of this attempt
        self._order: tuple[int, torch.Tensor] | None = None
        self._first_batch: Callable[[], None] | None = None
        looks = compares_data() and self.rank == 0 and hasattr(dataset, "__getitem__")
        self._content = DataChecksums(dataset, self.dataset_size) if looks else None

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to."""
        return self.consumed // self.dataset_size

    def trained(self, batches_count: int = 1) -> None:
        """So many global batches have been applied to the weights."""
        for _ in range(batches_count):
            self.consumed += (1 + self._left_out(self._trained_count)) * self.global_batch
            self._trained_count += 1

    def _left_out(self, number: int) -> int:
        """How many batches are left out right before the ``number``-th of this attempt."""
        return sum(count for after, count in self._skips if after == number)

    def at_first_batch(self, then: Callable[[], None]) -> None:
        """Call ``then`` once when the first batch is asked for, if that is in the middle of an epoch.

        A loader draws a random number whenever it is iterated. A run that was not interrupted drew it at the epoch's
        beginning, before the state that was saved: so chance is put back once more, after the loader has drawn.
        """
        self._first_batch = then

    def __iter__(self) -> Iterator[list[int]]:
        if self._content is not None:
            self._content.record()
        number = self._trained_count
        position = self.consumed + self._left_out(number) * self.global_batch
        then, self._first_batch = self._first_batch, None
        if then is not None and position % self.dataset_size >= self.global_batch:
            then()
        end = (position // self.dataset_size + 1) * self.dataset_size
        while position < end:
            mine = self.share(position)
            size = self.micro_batch or len(mine)
            for at in range(0, len(mine), size):
                yield mine[at : at + size]
            number += 1
            position += (1 + self._left_out(number)) * self.global_batch

    def __len__(self) -> int:
        """Batches that are left of this epoch on this rank."""
        left = self.dataset_size - self.consumed % self.dataset_size
        first, last = self._bounds()
        return -(-left // self.global_batch) * (-(-(last - first) // (self.micro_batch or last - first)))

    def share(self, position: int) -> list[int]:
        """This rank's part of the global batch that begins at ``position`` samples from the run's beginning."""
        first, last = self._bounds()
        return [self.index_at(position + i) for i in range(first, last)]

    def _bounds(self) -> tuple[int, int]:
        return (
            self.global_batch * self.rank // self.world_size,
            self.global_batch * (self.rank + 1) // self.world_size,
        )

    def index_at(self, position: int) -> int:
        """The dataset's index of the sample at this position of the run."""
        epoch, place = divmod(position, self.dataset_size)
        if not self.shuffle:
            return place
        if self._order is None or self._order[0] != epoch:
            digest = hashlib.blake2b(f"{self.seed}:{epoch}".encode(), digest_size=7).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
            self._order = (epoch, torch.randperm(self.dataset_size, generator=generator))
        return int(self._order[1][place])

    def state_dict(self) -> dict[str, Any]:
        """The global position; the same on all ranks."""
        content = {} if self._content is None else {"content": self._content.state()}
        return {
            **content,
            "schema": _SCHEMA,
            "consumed": self.consumed,
            "epoch": self.epoch,
            "dataset_size": self.dataset_size,
            "global_batch": self.global_batch,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position; ValueError if this sampler would not give the same samples from there on."""
        mine = self.state_dict()
        for name in ("dataset_size", "global_batch", "shuffle", "seed", "fingerprint"):
            if state[name] != mine[name]:
                raise ValueError(
                    f"the data's position was saved with {name} {state[name]!r}, and now it is {mine[name]!r}: "
                    "samples would come twice or never"
                )
        self.consumed = int(state["consumed"])
        if self._content is not None and "content" in state:
            self._content.compare(state["content"])
