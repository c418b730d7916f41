"""How the reading of one checkpoint is dealt out among several readers (room: core).

Each works its own share out of the same list, so that nothing but the list has to be agreed on. Shares are runs of
neighbours, since storage likes to be read in order. Next: ``checkpoint/manifest_verify.py`` reads one,
``training/reading_together.py`` has all ranks read.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_of(sizes: Sequence[int], reader: int, readers_count: int) -> range:
    """Which of the pieces of these sizes (bytes) this reader reads: all shares together are all pieces, each once.

    No share is larger than its part of the whole by more than one piece.
    """
    total = sum(sizes)
    first = _cut(sizes, total * reader, readers_count)
    return range(first, _cut(sizes, total * (reader + 1), readers_count) if reader + 1 < readers_count else len(sizes))


def _cut(sizes: Sequence[int], wanted: int, readers_count: int) -> int:
    """The first piece that begins at or after ``wanted / readers_count`` bytes."""
    before = 0
    for number, size in enumerate(sizes):
        if before * readers_count >= wanted:
            return number
        before += size
    return len(sizes)
