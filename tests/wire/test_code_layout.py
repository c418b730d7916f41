"""The record that shards are rebuilt by: what goes in comes out, and what no encoder writes is refused in words."""

from __future__ import annotations

import msgspec
import pytest

from gangrun.wire.code_layout import CodeLayout, LayoutRefused, ShardSum, check

A, B, P = ShardSum(7, 1), ShardSum(9, 0xFFFFFFFF), ShardSum(9, 3)
LAYOUT = CodeLayout(data=(A, B), parity=(P, P))


def changed(**fields: object) -> CodeLayout:
    return msgspec.convert({**msgspec.to_builtins(LAYOUT), **fields}, CodeLayout)


def test_what_an_encoder_writes_is_taken() -> None:
    check(LAYOUT)
    assert (LAYOUT.shards, LAYOUT.span_bytes) == ((A, B, P, P), 9)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
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
def test_what_no_encoder_writes_is_refused(layout: CodeLayout, words: str) -> None:
    with pytest.raises(LayoutRefused, match=words):
        check(layout)
