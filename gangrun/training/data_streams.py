"""Loaders with a state of their own, such as torchdata's ``StatefulDataLoader``, on any number of ranks.

The state of such a loader belongs to one part of the data, and cannot be cut in two. So the data are cut into a number
of *streams* that never changes, each with a loader of its own, and ranks share the streams: with fewer ranks some serve
several. A step takes one batch of each stream, whatever rank serves it. So the global batch keeps its size, and each
stream goes on where it stood. At a save all states come to rank 0, which saves them with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from gangrun.training.ranks import RankGroup

_SCHEMA = 1
Batch_co = TypeVar("Batch_co", covariant=True)


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
