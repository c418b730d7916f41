"""How the reading of one checkpoint is dealt out among several readers.

Each works its own share out of the same list, so that nothing but the list has to be agreed on. Shares are runs of
neighbours, since storage likes to be read in order.
"""

from __future__ import annotations

from collections.abc import Sequence

PATIENCE_TIMES = 2.0  # of what the first reader took for its own share
PATIENCE_MIN_S = 10.0


def readers_max_count(total_bytes: int, share_bytes: int) -> int:
    """So many at most are worth asking: each reads at least a share. 0: it is not to be shared."""
    return max(1, total_bytes // share_bytes) if share_bytes else 1


def far_share(place: int, readers_count: int) -> int:
    """Which share the reader at this place takes: from half way round, so that it is not what this one wrote itself.

    That may still be in its own cache, which would prove nothing about what the storage has.
    """
    return (place + readers_count // 2) % readers_count


def patience_s(own_s: float) -> float:
    """How much longer the others are waited for by one who took so long for its own share."""
    return max(PATIENCE_MIN_S, PATIENCE_TIMES * own_s)


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
