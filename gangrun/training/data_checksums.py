"""Has the dataset changed since the checkpoint was saved that this attempt resumes from? (``--data-checksums``)

Rank 0 reads up to ``SAMPLES_COUNT`` samples, spread evenly over the dataset, as an attempt begins to train, and their
checksums are saved with the data's position. A resumed attempt reads the same samples again, and tells which differ. A
sample whose reading depends on chance, such as an image that is cropped anew each time, is told by reading it twice,
and left out. Chance goes on as if nothing had been read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
import torch

from gangrun.core.evidence import DataChange
from gangrun.training import step as progress
from gangrun.training.state import random_numbers, restore_random

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
