"""The record that shards are rebuilt by: what goes in comes out, and what no encoder writes is refused in words."""

from __future__ import annotations

import msgspec
import pytest

from gangrun.wire.code_layout import LAYOUT_MAX_BYTES, CodeLayout, LayoutRefused, ShardSum, check, decode, encode

A, B, P = ShardSum(7, 1), ShardSum(9, 0xFFFFFFFF), ShardSum(9, 3)
LAYOUT = CodeLayout(data=(A, B), parity=(P, P))


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(LAYOUT), **fields})


def test_what_is_written_is_read() -> None:
    assert decode(encode(LAYOUT)) == LAYOUT
    assert (LAYOUT.shards, LAYOUT.span_bytes) == ((A, B, P, P), 9)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be understood"),
        (b"\xff", "cannot be understood"),
        (b"[" * 60_000, "cannot be understood"),
        (b"{}", "cannot be understood"),
        (b" " * (LAYOUT_MAX_BYTES + 1), "longer than 65536"),
        (changed(data=[{"size": "7", "crc": 1}]), "cannot be understood"),
        (changed(schema=2), "newer than this gangrun's 1: upgrade"),
        (changed(scheme="reed\n" * 99), r"scheme is 'reed\\n"),
        (changed(data=[]), "0 data and 2 parity"),
        (changed(parity=[]), "2 data and 0 parity"),
        (changed(data=[{"size": 9, "crc": 0}] * 255), "256 together at most"),
        (changed(data=[{"size": -1, "crc": 0}] * 2), "shard 0 of the code layout has no size"),
        (changed(data=[{"size": 2**50 + 1, "crc": 0}] * 2), "no size or no CRC32"),
        (changed(parity=[{"size": 9, "crc": 2**32}]), "shard 2 of the code layout"),
        (changed(parity=[{"size": 9, "crc": -1}]), "shard 2 of the code layout"),
        (changed(parity=[{"size": 9, "crc": 0}, {"size": 8, "crc": 0}]), "parity shard 3 .* 8 bytes, .* 9"),
        (changed(parity=[{"size": 10, "crc": 0}]), "parity shard 2 .* 10 bytes"),
    ],
)
def test_what_no_encoder_writes_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(LayoutRefused, match=words):
        decode(data)


def test_every_torn_end_is_seen_and_no_flipped_bit_does_worse_than_another_layout() -> None:
    data = encode(LAYOUT)
    for at in range(len(data)):
        with pytest.raises(LayoutRefused):
            decode(data[:at])
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            check(decode(bytes(flipped)))
        except LayoutRefused:
            continue
