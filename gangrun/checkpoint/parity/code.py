"""Rebuilds lost shards of a group from those that are left, piece by piece over open files.

What is rebuilt counts only when ``rebuild`` returns: by then every byte that was read and every byte that was written
had the CRC32 that the layout tells. A shard that is there but damaged counts as lost. Otherwise the spans that were to
be filled are left full of zeros. Memory: one piece for every shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.checkpoint.parity.field import Row, Sums, rebuild_rows, sums_for
from gangrun.wire.code_layout import CodeLayout, LayoutRefused, ShardSum, check

PIECE_BYTES = 128 * 1024  # ten of them stay in a core's own cache


@dataclass(frozen=True, slots=True)
class Span:
    """Parts of open files, one after the other: (descriptor, where it begins, bytes). The files keep their lengths."""

    parts: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(size for _, _, size in self.parts)

    def cut(self, at: int, size: int) -> Span:
        """``size`` bytes of it from ``at`` on."""
        found, begins = [], 0
        for descriptor, start, length in self.parts:
            low, high = max(at, begins), min(at + size, begins + length)
            if low < high:
                found.append((descriptor, start + low - begins, high - low))
            begins += length
        return Span(tuple(found))

    def read(self, into: memoryview, at: int) -> bool:
        """Read ``into`` full from ``at`` on; False if that many bytes cannot be had."""
        done = 0
        for descriptor, start, size in self.cut(at, len(into)).parts:
            end = done + size
            while done < end:
                try:  # not mapped: a mapping kills the process when the file shrinks underneath
                    got = os.preadv(descriptor, [into[done:end]], start + size - (end - done))
                except OSError:
                    return False
                if not got:
                    return False
                done += got
        return done == len(into)

    def write(self, data: memoryview, at: int) -> None:
        """Write these bytes from ``at`` on."""
        done = 0
        for descriptor, start, size in self.cut(at, len(data)).parts:
            end = done + size
            while done < end:
                done += os.pwrite(descriptor, data[done:end], start + size - (end - done))

    def clear(self) -> None:
        """Leave nothing there that could be taken for a shard."""
        for at in range(0, self.size, PIECE_BYTES):
            self.write(memoryview(bytes(min(PIECE_BYTES, self.size - at))), at)


class _Stream:
    """One shard on its way, a piece at a time. ``failed``: it could not be read to its end."""

    def __init__(self, span: Span, size: int) -> None:
        self._span, self._size = span, size
        self._at = self._crc = 0
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self.failed = False

    def sum(self) -> ShardSum:
        """What passed so far."""
        return ShardSum(self._at, self._crc)

    def read(self, count: int) -> memoryview:
        """The next bytes, and zeros after the shard's end or where it fails."""
        there = 0 if self.failed else min(count, self._size - self._at)
        if there and not self._span.read(self._piece[:there], self._at):
            self.failed, there = True, 0
        if there < count:
            self._piece[there:count] = bytes(count - there)
        self._crc = crc32(self._piece[:there], self._crc)
        self._at += there
        return self._piece[:count]

    def room(self, count: int) -> memoryview:
        """Where the next bytes are to be put; ``write`` follows."""
        return self._piece[:count]

    def write(self, count: int) -> None:
        """What was put into the room, without what lies after the shard's end."""
        filled = self._piece[: min(count, self._size - self._at)]
        self._crc = crc32(filled, self._crc)
        self._span.write(filled, self._at)
        self._at += len(filled)


Arithmetic = Callable[[Sequence[Row]], Sums]


class CannotRebuild(Exception):
    """The shards that are wanted cannot be had from those that are there; the message says why."""


class GivenUp(Exception):
    """By whoever is told of each piece. What was to be filled is thrown away with it, and left as it is."""


def rebuild(
    layout: CodeLayout,
    held: Mapping[int, Span],
    wanted: Mapping[int, Span],
    arithmetic: Arithmetic = sums_for,
    tick: Callable[[], None] = lambda: None,
) -> frozenset[int]:
    """Fill ``wanted`` (by the shard's number) from what is ``held`` (likewise). ``tick`` is called before each piece,
    and may raise ``GivenUp``.

    Returns which of the held shards are damaged or cannot be read, as far as that was seen; they were not used, and to
    mend them ask again with them wanted. Raises ``CannotRebuild`` or ``LayoutRefused``, and what was
    wanted is then all zeros.
    """
    check(layout)
    shards = layout.shards
    alien = sorted(number for number in {*held, *wanted} if not 0 <= number < len(shards))
    if alien:
        raise LayoutRefused(f"there is no shard {alien[0]} in a code of {len(shards)} shards")
    for number, span in wanted.items():
        if span.size != shards[number].size:
            raise ValueError(f"parts of {span.size} bytes for a shard of {shards[number].size}")
    order = sorted(wanted)
    offered = {number for number in held if number not in wanted}
    usable = {number for number in offered if held[number].size == shards[number].size}
    try:
        while order:
            plan = rebuild_rows(len(layout.data), usable, order)
            if plan is None:
                raise CannotRebuild(_too_few_words(layout, usable, offered - usable))
            inputs = {number: _Stream(held[number], shards[number].size) for number in plan[0]}
            outputs = {number: _Stream(wanted[number], shards[number].size) for number in order}
            _run(list(inputs.values()), list(outputs.values()), arithmetic(plan[1]), layout.span_bytes, tick)
            bad = {number for number, stream in inputs.items() if stream.failed or stream.sum() != shards[number]}
            if not bad:
                _demand_right(outputs, shards)
                break
            usable -= bad
    except GivenUp:
        raise
    except BaseException:
        for span in wanted.values():
            span.clear()
        raise
    return frozenset(offered - usable)


def _run(
    inputs: list[_Stream], outputs: list[_Stream], sums: Sums, span_bytes: int, tick: Callable[[], None] = lambda: None
) -> None:
    """All bytes of the inputs through the sums into the outputs."""
    for offset in range(0, span_bytes, PIECE_BYTES):
        tick()
        count = min(PIECE_BYTES, span_bytes - offset)
        sources = [stream.read(count) for stream in inputs]
        sums.fill([stream.room(count) for stream in outputs], sources)
        for stream in outputs:
            stream.write(count)


def _demand_right(outputs: Mapping[int, _Stream], shards: Sequence[ShardSum]) -> None:
    wrong = [number for number, stream in outputs.items() if stream.sum() != shards[number]]
    if wrong:
        raise CannotRebuild(
            f"shard {wrong[0]} was rebuilt from whole shards and its checksum is wrong all the same: "
            "the layout is not of these shards"
        )


def _too_few_words(layout: CodeLayout, usable: set[int], damaged: set[int]) -> str:
    total, parity = len(layout.shards), len(layout.parity)
    hurt = f" ({', '.join(map(str, sorted(damaged)))} there but damaged)" if damaged else ""
    return (
        f"{total - len(usable)} of {total} shards are lost{hurt}, and {parity} parity "
        f"{'shard gives' if parity == 1 else 'shards give'} back {parity} at most"
    )
