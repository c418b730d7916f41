"""Whatever bytes come: a message, or ``WireError``, and nothing else."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.wire import messages, record, spec
from gangrun.wire.messages import Beat, Envelope, Hello, Launch, RankSample, WireError, decode, encode
from tests.net.ends import RUN, beat, hello

GENUINE = [
    encode(RUN, hello()),
    encode(RUN, beat(3)),
    encode(RUN, Launch(1, (1, 2), 0, 8, 0, 2, (0, 1), (0, 1), "host", 2000, ("a", "b"))),
    encode(RUN, Beat("n", "i", 1, 1.0, 1, 0, False, (RankSample(0, 1, 1, 1, 1, 0.1, "R"),))),
]
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def judged(data: bytes) -> messages.Message | None:
    try:
        return decode(RUN, data)
    except WireError:
        return None


@given(st.binary(max_size=400))
def test_any_bytes(data):
    judged(data)


@given(st.sampled_from(GENUINE), st.integers(0, 10_000), st.integers(0, 255))
def test_one_byte_of_a_genuine_message_changed(data, where, value):
    where %= len(data)
    judged(data[:where] + bytes([value]) + data[where + 1 :])


@given(st.sampled_from(GENUINE), st.integers(0, 10_000), st.binary(max_size=9))
def test_cut_and_continued_otherwise(data, where, tail):
    judged(data[: where % len(data)] + tail)


@given(plain)
def test_any_value_in_place_of_an_envelope_or_a_body(value):
    assert judged(msgspec.msgpack.encode(value)) is None
    judged(msgspec.msgpack.encode(Envelope(1, RUN, msgspec.Raw(msgspec.msgpack.encode(value)))))


@given(st.sampled_from(["Hello", "Beat", "Ack", "Launch", "Dial", "Promise"]), st.dictionaries(st.text(), plain))
def test_a_known_name_over_any_fields(kind, fields):
    body = msgspec.Raw(msgspec.msgpack.encode({**fields, "type": kind}))
    judged(msgspec.msgpack.encode(Envelope(1, RUN, body)))


def test_what_is_genuine_is_read():
    assert isinstance(judged(GENUINE[0]), Hello)
    assert judged(encode("another run", hello())) is None
    newer = msgspec.msgpack.encode(Envelope(99, RUN, msgspec.Raw(msgspec.msgpack.encode(hello()))))
    assert judged(newer) is None


HOSTILE = [
    b"",
    b"\x80",
    b'{"term":1,"run":"\x80"}',
    b"[" * 100_000,
    b'{"schema":' + b"[" * 100_000,
    b'{"v":1,"x":"\x80"}',
]


@pytest.mark.parametrize("data", HOSTILE)
def test_files_with_hostile_bytes_are_refused_with_their_own_error(data):
    """Where msgspec itself lets a UnicodeDecodeError or a RecursionError through."""
    with pytest.raises(record.ClaimError):
        record.decode_claim(data)
    with pytest.raises(spec.SpecError):
        spec.decode(data)
    body = data.removesuffix(b"}")
    with pytest.raises(record.RecordError):
        record.decode(b'%s,"crc":"%08x"}' % (body, zlib.crc32(body)))


def test_nesting_without_end_is_no_message():
    deep = msgspec.Raw(b"\x91" * 100_000 + b"\x01")
    assert judged(msgspec.msgpack.encode(Envelope(1, RUN, deep))) is None
