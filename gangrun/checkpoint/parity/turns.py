"""Who codes with whom, and whose parity lies where: rotating, as RAID 6 does it with disks.

A group of g nodes that may lose m has g stripes. Stripe number s has its parity on the m nodes from the s-th on, round
the group, and a piece of each of the g - m others. So a node's data are cut into g - m pieces, one for each stripe of
which it holds no parity; no node holds two shards of one stripe; and m lost nodes take m shards of each stripe at most,
which is what its code gives back. Each node holds m parity shards, each as long as a piece: m / (g - m) of its data.

Groups are dealt out like cards, since neighbours tend to share a switch and a power supply. All ranks work this out
alike from the same numbers; who rebuilds reads the record (``wire/protection.py``) instead. Next:
``training/memory/parity.py``.
"""

from __future__ import annotations

PAGE_BYTES = 4096


def groups(nodes_count: int, data_count: int, parity_count: int) -> tuple[tuple[int, ...], ...]:
    """Nodes by number, each in one group: of ``data_count`` + ``parity_count`` at least, while there are so many."""
    count = max(1, nodes_count // (data_count + parity_count))
    return tuple(tuple(range(first, nodes_count, count)) for first in range(count))


def bearable(group_size: int, parity_count: int) -> int:
    """How many nodes of such a group may be lost: all but one at most."""
    return min(parity_count, group_size - 1)


def parity_members(group_size: int, parity_count: int, stripe: int) -> tuple[int, ...]:
    """Who holds the parity of this stripe, by place in the group: the first shard of it, the second, ..."""
    return tuple((stripe + shard) % group_size for shard in range(parity_count))


def data_members(group_size: int, parity_count: int, stripe: int) -> tuple[int, ...]:
    """Of whom this stripe holds a piece."""
    parity = parity_members(group_size, parity_count, stripe)
    return tuple(member for member in range(group_size) if member not in parity)


def piece(total_bytes: int, group_size: int, parity_count: int, member: int, stripe: int) -> tuple[int, int]:
    """Where the piece of this member's ``total_bytes`` that belongs to the stripe begins, and its length, perhaps 0."""
    own = [s for s in range(group_size) if member not in parity_members(group_size, parity_count, s)]
    length = -(-total_bytes // len(own))
    length = -(-length // PAGE_BYTES) * PAGE_BYTES
    begins = min(own.index(stripe) * length, total_bytes)
    return begins, min(length, total_bytes - begins)
