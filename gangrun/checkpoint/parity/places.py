"""Where a shard's bytes are while it is coded: an open file, parts of several, or memory.

``Stream`` goes over one from its beginning to its end, a piece at a time, and knows the CRC32 of what passed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from gangrun.checkpoint.formats.torch_zip import crc32
from gangrun.wire.code_layout import ShardSum

PIECE_BYTES = 128 * 1024  # ten of them stay in a core's own cache


@dataclass(frozen=True, slots=True)
class Span:
    """Parts of open files, one after the other: (descriptor, where it begins, bytes)."""

    parts: tuple[tuple[int, int, int], ...]

    def cut(self, at: int, size: int) -> Span:
        """``size`` bytes of it from ``at`` on."""
        found, begins = [], 0
        for descriptor, start, length in self.parts:
            low, high = max(at, begins), min(at + size, begins + length)
            if low < high:
                found.append((descriptor, start + low - begins, high - low))
            begins += length
        return Span(tuple(found))


Place = (
    int | memoryview | Span
)  # a descriptor, the bytes themselves (read in place where they may be written to), parts


class _Medium(Protocol):
    def size(self) -> int: ...
    def resize(self, size: int) -> None: ...
    def take(self, into: memoryview, at: int) -> bool: ...
    def put(self, data: memoryview, at: int) -> None: ...
    def in_place(self, at: int, count: int) -> memoryview | None: ...


class _File:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def resize(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)  # pages that are there already are written again

    def take(self, into: memoryview, at: int) -> bool:
        done = 0
        while done < len(into):
            try:
                got = os.preadv(self._descriptor, [into[done:]], at + done)
            except OSError:
                return False
            if not got:
                return False
            done += got
        return True

    def put(self, data: memoryview, at: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], at + done)

    def in_place(self, at: int, count: int) -> None:
        """Not mapped: a mapping kills the process when the file shrinks underneath."""


class _Parts:
    """Files that have their length already; only their bytes change."""

    __slots__ = ("_size", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._size = sum(size for _, _, size in span.parts)

    def size(self) -> int:
        return self._size

    def resize(self, size: int) -> None:
        if size and size != self._size:
            raise ValueError(f"parts of {self._size} bytes for a shard of {size}")
        if not size:
            for at in range(0, self._size, PIECE_BYTES):
                self.put(memoryview(bytes(min(PIECE_BYTES, self._size - at))), at)

    def take(self, into: memoryview, at: int) -> bool:
        done = 0
        for descriptor, start, size in self._span.cut(at, len(into)).parts:
            if not _File(descriptor).take(into[done : done + size], start):
                return False
            done += size
        return done == len(into)

    def put(self, data: memoryview, at: int) -> None:
        done = 0
        for descriptor, start, size in self._span.cut(at, len(data)).parts:
            _File(descriptor).put(data[done : done + size], start)
            done += size

    def in_place(self, at: int, count: int) -> None:
        """Not mapped, as with one file."""


class _Memory:
    __slots__ = ("_bytes",)

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory.cast("B")

    def size(self) -> int:
        return len(self._bytes)

    def resize(self, size: int) -> None:
        if size and size != len(self._bytes):
            raise ValueError(f"memory of {len(self._bytes)} bytes for a shard of {size}")
        if not size:
            self._bytes[:] = bytes(len(self._bytes))

    def take(self, into: memoryview, at: int) -> bool:
        into[:] = self._bytes[at : at + len(into)]
        return True

    def put(self, data: memoryview, at: int) -> None:
        self._bytes[at : at + len(data)] = data

    def in_place(self, at: int, count: int) -> memoryview | None:
        return None if self._bytes.readonly else self._bytes[at : at + count]


def _medium(place: Place) -> _Medium:
    if isinstance(place, Span):
        return _Parts(place)
    return _File(place) if isinstance(place, int) else _Memory(place)


def taken(place: Place, into: memoryview, at: int) -> bool:
    """Read ``into`` full from ``at`` on; False where that many bytes cannot be had."""
    return _medium(place).take(into, at)


def size_of(place: Place) -> int:
    """How many bytes are there; OSError where nobody can tell."""
    return _medium(place).size()


def empty(place: Place) -> None:
    """Leave nothing there that could be taken for a shard: no bytes in a file, zeros in memory."""
    _medium(place).resize(0)


class Stream:
    """One shard on its way, a piece at a time. ``failed``: it could not be read to its end."""

    __slots__ = ("_at", "_blank", "_crc", "_medium", "_piece", "_size", "failed")

    def __init__(self, place: Place, size: int) -> None:
        self._medium, self._size = _medium(place), size
        self._at = self._crc = 0
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self._blank = True  # the piece is zeros
        self.failed = False

    def sum(self) -> ShardSum:
        """What passed so far."""
        return ShardSum(self._at, self._crc)

    def begin(self) -> None:
        """Make room for what will be written."""
        self._medium.resize(self._size)

    def read(self, count: int) -> memoryview:
        """The next bytes, and zeros after the shard's end or where it fails."""
        there = 0 if self.failed else min(count, self._size - self._at)
        view = self._medium.in_place(self._at, count) if there == count else None
        if view is None:
            view = self._piece[:count]
            if there:
                self._blank = False
                if not self._medium.take(view[:there], self._at):
                    self.failed, there = True, 0
            if there < count and not self._blank:
                self._piece[there:] = bytes(PIECE_BYTES - there)
                self._blank = not there
        self._crc = crc32(view[:there], self._crc)
        self._at += there
        return view

    def room(self, count: int) -> memoryview:
        """Where the next bytes are to be put; ``write`` follows."""
        view = self._medium.in_place(self._at, count) if self._size - self._at >= count else None
        return self._piece[:count] if view is None else view

    def write(self, filled: memoryview) -> None:
        """What was put into the room, without what lies after the shard's end."""
        there = min(len(filled), self._size - self._at)
        self._crc = crc32(filled[:there], self._crc)
        if filled.obj is self._piece.obj:
            self._medium.put(filled[:there], self._at)
        self._at += there
