"""Which samples this rank trains on next, and whether they are still what they were.

``GlobalBatchSampler``: a function of one number, the samples consumed by all.

    epoch, place = divmod(consumed, dataset_size)

The order of an epoch follows from its number and the seed. A global batch takes the next ``global_batch`` samples, over
the end of an epoch into the next if need be, and every rank takes its share of them: so each sample comes once per
epoch, the batch has one size for ever, and another number of ranks changes nothing but the shares. The
Checkpointer calls ``trained`` after each step and saves the number with the weights.

``DataStreams``: the state of a loader such as torchdata's ``StatefulDataLoader`` belongs to one part of the data, and
cannot be cut in two. So the data are cut into a number of *streams* that never changes, each with a loader of its own,
and ranks share the streams: with fewer ranks some serve several. A step takes one batch of each stream, whatever rank
serves it. So the global batch keeps its size, and each stream goes on where it stood. At a save all states come to
rank 0, which saves them with the weights.

``DataChecksums`` (``--data-checksums``): rank 0 reads up to ``SAMPLES_COUNT`` samples, spread evenly over the dataset,
as an attempt begins to train, and their checksums are saved with the position. A resumed attempt reads the same samples
again, and tells which differ. A sample whose reading depends on chance, such as an image that is cropped anew each
time, is told by reading it twice, and left out. Chance goes on as if nothing had been read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import torch
import torch.distributed as dist

from gangrun.core.evidence import DataChange
from gangrun.training import step as progress
from gangrun.training.environment import compares_data, skipped_batches
from gangrun.training.ranks import RankGroup
from gangrun.training.state import random_numbers, restore_random

_SCHEMA = 1
Batch_co = TypeVar("Batch_co", covariant=True)


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
            digest = blake2b(f"{self.seed}:{epoch}".encode(), digest_size=7).digest()
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


# ---- loaders with a state of their own ---------------------------------------------------------------------------


class StreamLoader(Protocol[Batch_co]):
    """What serves one stream: ``torchdata.stateful_dataloader.StatefulDataLoader``, or whatever has these methods."""

    def __iter__(self) -> Iterator[Batch_co]:
        """The rest of an epoch after ``load_state_dict``, else a whole one."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, after the batch that it gave last."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


class DataStreams(Generic[Batch_co]):
    """Batches of stateful loaders, whose positions outlive restarts on as many ranks, fewer or more.

        def make(stream, streams):
            part = torch.utils.data.Subset(dataset, range(stream, len(dataset), streams))
            return StatefulDataLoader(part, batch_size=8, shuffle=True, num_workers=2)

        data = gangrun.DataStreams(make, streams=16)
        with gangrun.Checkpointer(directory, model=model, optimizer=optimizer, data=data) as saver:
            for batches in data:  # of one step: one batch of each stream that this rank serves
                for batch in batches:
                    ...  # accumulate gradients

    All ranks make one, after their process group. Every stream must have as many batches as the others: ranks that
    run out of data sooner would hang the others.

    Args:
        make: Called as ``make(stream, streams)`` on the rank that serves the stream; returns its loader. The same
            ``num_workers`` in each attempt.
        streams: Number of streams, constant for the whole run. A multiple of all numbers of ranks that the run may have
            gives each rank as many.

    Raises:
        ValueError: There are more ranks than streams. Loading a state raises it if it has another number of streams.
    """

    def __init__(self, make: Callable[[int, int], StreamLoader[Batch_co]], streams: int) -> None:
        self._ranks = RankGroup()
        self.streams = streams
        if streams < self._ranks.world_size:
            raise ValueError(
                f"{streams} streams leave some of {self._ranks.world_size} ranks without data; give more streams, "
                "which must not change during a run"
            )
        self._loaders = {n: make(n, streams) for n in range(self._ranks.rank, streams, self._ranks.world_size)}

    @property
    def mine(self) -> tuple[int, ...]:
        """The streams that this rank serves."""
        return tuple(self._loaders)

    def __iter__(self) -> Iterator[list[Batch_co]]:
        """The rest of this epoch, a step at a time; again, for the next one."""
        return _in_step(self._loaders.values())

    def state_dict(self) -> dict[str, Any]:
        """Of all streams, on rank 0; elsewhere without them. All ranks call it."""
        told = self._ranks.to_first({n: loader.state_dict() for n, loader in self._loaders.items()})
        states = {n: state for states in told for n, state in states.items()}
        return {"schema": _SCHEMA, "streams": self.streams, "states": [states[n] for n in sorted(states)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where each stream stood."""
        if state["streams"] != self.streams:
            raise ValueError(
                f"the data's position was saved with {state['streams']} streams, and now there are {self.streams}: "
                "samples would come twice or never"
            )
        for n, loader in self._loaders.items():
            loader.load_state_dict(state["states"][n])


def _in_step(loaders: Iterable[StreamLoader[Batch_co]]) -> Iterator[list[Batch_co]]:
    """Nothing is fetched ahead here: a state is that of what was given. Ends when all have."""
    running = [iter(loader) for loader in loaders]
    while running:
        batches, going = [], []
        for one in running:
            try:
                batches.append(next(one))
                going.append(one)
            except StopIteration:
                continue
        running = going
        if batches:
            yield batches


# ---- what the samples are ----------------------------------------------------------------------------------------

SAMPLES_COUNT = 256
SHOWN_COUNT = 16
UNREADABLE = "unreadable"


def sample_checksum(sample: Any) -> str:
    """Of tensors, arrays, numbers, texts and bytes, and of lists and dictionaries of them; "" for anything else."""
    found = blake2b(digest_size=8)
    return found.hexdigest() if all(map(_added(found), _leaves(sample))) else ""


def _added(found: Any) -> Any:
    def add(one: Any) -> bool:
        if isinstance(one, torch.Tensor):
            one = one.detach().cpu().contiguous()
            found.update(f"{one.dtype} {tuple(one.shape)}".encode())
            found.update(one.view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(one, (bytes, bytearray)):
            found.update(b"bytes%d:" % len(one))
            found.update(one)
        elif one is None or isinstance(one, (bool, int, float, complex, str)):
            found.update(f"{type(one).__name__} {one!r};".encode("utf-8", "surrogatepass"))
        elif hasattr(one, "tobytes"):  # an array of NumPy, an image of Pillow
            found.update(f"{getattr(one, 'dtype', '')} {getattr(one, 'shape', getattr(one, 'size', ''))}".encode())
            found.update(one.tobytes())
        else:
            return False
        return True

    return add


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _leaves(one)
    elif isinstance(value, (list, tuple)):
        yield len(value)
        for one in value:
            yield from _leaves(one)
    else:
        yield value


@contextlib.contextmanager
def _same_chance() -> Iterator[None]:
    before = random_numbers()
    try:
        yield
    finally:
        restore_random(before, before, 0)


def _readable(sums: dict[int, str]) -> dict[int, str]:
    return {index: found for index, found in sums.items() if found != UNREADABLE}


class DataChecksums:
    """Rank 0's; ``dataset`` gives a sample for each index."""

    def __init__(self, dataset: Any, size: int) -> None:
        self._dataset, self._size = dataset, size
        self._sums: dict[int, str] | None = None

    def record(self) -> None:
        """Read the samples, unless they were compared or read before."""
        if self._sums is None:
            count = min(SAMPLES_COUNT, self._size)
            with _same_chance():
                self._sums = _readable(self._twice([number * self._size // count for number in range(count)]))

    def state(self) -> dict[str, Any]:
        """For the checkpoint: indices and checksums."""
        return {"samples": list(self._sums or ()), "checksums": list((self._sums or {}).values())}

    def compare(self, state: Mapping[str, Any]) -> None:
        """Read what was saved once more, and tell what differs."""
        known = dict(zip(state["samples"], state["checksums"], strict=True))
        with _same_chance():
            read = {index: self._read(index) for index in known}
            again = self._twice([index for index, found in read.items() if found != known[index]])
        changed = sorted(index for index, found in again.items() if found == read[index])
        self._sums = _readable({index: found for index, found in read.items() if found == known[index]} | again)
        if changed:
            found = DataChange(len(known), len(changed), tuple(changed[:SHOWN_COUNT]))
            progress.report_finding("data", msgspec.json.encode(found))

    def _twice(self, indices: list[int]) -> dict[int, str]:
        """Those that are the same both times."""
        both = {index: (self._read(index), self._read(index)) for index in indices}
        return {index: first for index, (first, second) in both.items() if first and first == second}

    def _read(self, index: int) -> str:
        try:
            return sample_checksum(self._dataset[index])
        except Exception:  # noqa: BLE001 - the dataset is the user's: training itself meets it, and says what it is
            return UNREADABLE
