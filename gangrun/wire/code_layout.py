"""How shards were coded against loss: what is needed to rebuild one, whatever library coded them.

k data shards of unequal lengths and m parity shards as long as the longest of them, numbered 0 to k-1 and k to k+m-1.
``scheme`` names the arithmetic once for all: each byte of a parity shard is a sum over GF(256) (x8+x4+x3+x2+1) of the
bytes at its place in the data shards, a shorter one being zeros after its end. The coefficient of data shard j in the
i-th parity shard is (k xor j) / ((k+i) xor j), i from 0: a Cauchy matrix, scaled until its first row is ones, so that
one parity shard is plain XOR.
"""

from __future__ import annotations

import msgspec

SCHEMA = 1
SCHEME = "gf256-11d-cauchy-unit"
SHARDS_MAX_COUNT = 256  # as many as the field has elements
SHARD_MAX_BYTES = 2**50

_CRC_MAX = 0xFFFFFFFF


class LayoutRefused(ValueError):
    """Not a layout that anything may be rebuilt by; the message says why."""


class ShardSum(msgspec.Struct, frozen=True):
    """One shard as it was when it was coded: its bytes, and the CRC32 of all of them."""

    size: int
    crc: int


class CodeLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One group of shards that were coded together."""

    schema: int = SCHEMA
    scheme: str = SCHEME
    data: tuple[ShardSum, ...]
    parity: tuple[ShardSum, ...]

    @property
    def shards(self) -> tuple[ShardSum, ...]:
        """All of them by number: data, then parity."""
        return self.data + self.parity

    @property
    def span_bytes(self) -> int:
        """The longest data shard, which is how long each parity shard is."""
        return max(shard.size for shard in self.data)


def check(layout: CodeLayout) -> None:
    """Refuse what no encoder can have written, wherever the layout came from."""
    if layout.schema > SCHEMA:
        raise LayoutRefused(
            f"the code layout has schema {layout.schema}, newer than this gangrun's {SCHEMA}: upgrade gangrun"
        )
    if layout.scheme != SCHEME:
        raise LayoutRefused(f"the code layout's scheme is {layout.scheme[:50]!a}, and this gangrun knows {SCHEME}")
    if not layout.data or not layout.parity or len(layout.shards) > SHARDS_MAX_COUNT:
        raise LayoutRefused(
            f"a code of {len(layout.data)} data and {len(layout.parity)} parity shards: it needs one of each at least "
            f"and {SHARDS_MAX_COUNT} together at most"
        )
    for number, shard in enumerate(layout.shards):
        if not 0 <= shard.size <= SHARD_MAX_BYTES or not 0 <= shard.crc <= _CRC_MAX:
            raise LayoutRefused(f"shard {number} of the code layout has no size or no CRC32 that can be")
    for number, shard in enumerate(layout.parity, len(layout.data)):
        if shard.size != layout.span_bytes:
            raise LayoutRefused(
                f"parity shard {number} of the code layout has {shard.size} bytes, and the longest data shard "
                f"{layout.span_bytes}: they must be the same"
            )
