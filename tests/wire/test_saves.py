"""The block that tells of saves: always of one length, and nothing but itself is believed."""

from __future__ import annotations

from gangrun.wire.saves import SIZE_BYTES, SavesTold, decode, encode


def test_it_comes_back_and_never_changes_its_length() -> None:
    told = SavesTold(2, 1e9, 300.0, "every 300 s, as asked", saved_step=40, saved_at=1e9, persist_s=2.5)
    assert decode(encode(told)) == told and len(encode(told)) == SIZE_BYTES
    long = SavesTold(2, 1e9, 300.0, "x", failures_count=3, failed_step=41, failed_why='ü"\\' * 5000 + "\ud800")
    assert len(encode(long)) == SIZE_BYTES
    back = decode(encode(long))
    assert back is not None and back.failed_why.startswith('ü"\\ü') and back.failures_count == 3


def test_what_is_torn_alien_or_newer_is_nothing() -> None:
    block = encode(SavesTold(2, 1e9, 300.0, "x"))
    for data in (b"", block[:30], b"[]", b"\xff", encode(SavesTold(2, 1e9, 300.0, "x", schema=2)), b'{"attempt": "a"}'):
        assert decode(data) is None
