"""The record of parity: what was written comes back, and what no encoder can have written is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gangrun.wire import protection
from gangrun.wire.code_layout import CodeLayout, ShardSum
from gangrun.wire.protection import Code, CodedFile, Protection, ProtectionRefused, Stripe, decode, encode, piece_name

LAYOUT = CodeLayout(data=(ShardSum(6, 1),), parity=(ShardSum(6, 1),))
CODE = Code(
    ((CodedFile("a", 2), CodedFile("b", 4)), (CodedFile("c", 6),)),
    (Stripe((1,), (piece_name(0, 0, 0),), LAYOUT), Stripe((0,), (piece_name(0, 1, 0),), LAYOUT)),
)
RECORD = Protection(step=7, nonce="ab" * 8, losses_count=1, codes=(CODE,))


def changed(**values: Any) -> Protection:
    return msgspec.structs.replace(RECORD, **values)


def of_code(**values: Any) -> Protection:
    return changed(codes=(msgspec.structs.replace(CODE, **values),))


def of_stripe(**values: Any) -> Protection:
    return of_code(stripes=(msgspec.structs.replace(CODE.stripes[0], **values), CODE.stripes[1]))


def test_it_comes_back_as_it_was() -> None:
    assert decode(encode(RECORD)) == RECORD


def test_a_member_has_its_pieces_in_the_order_of_stripes() -> None:
    two = CodeLayout(data=(ShardSum(5, 1), ShardSum(3, 2)), parity=(ShardSum(5, 3),))
    code = Code(
        ((CodedFile("a", 9),), (CodedFile("b", 5),), (CodedFile("c", 10),)),
        (Stripe((0, 1), ("parity.0.0.0",), two), Stripe((2, 0), ("parity.0.1.0",), msgspec.structs.replace(
            two, data=(ShardSum(5, 1), ShardSum(4, 2)))), Stripe((2, 1), ("parity.0.2.0",), msgspec.structs.replace(
            two, data=(ShardSum(5, 1), ShardSum(2, 2))))),
    )  # fmt: skip
    assert [code.piece(stripe, 0) for stripe in range(3)] == [(0, 5), (5, 4), (9, 0)]
    assert [code.piece(stripe, 1) for stripe in range(3)] == [(0, 3), (3, 0), (3, 2)]
    assert [code.piece(stripe, 2) for stripe in range(3)] == [(0, 0), (0, 5), (5, 5)]
    assert decode(encode(changed(codes=(code,)))).codes == (code,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "cannot be understood"),
        (b"\xff", "cannot be understood"),
        (b"[" * 100_000, "cannot be understood"),
        (encode(changed(schema=2)), "newer than this gangrun's 1"),
        (encode(of_code(members=((CodedFile("../a", 6),), CODE.members[1]))), "names no file of a checkpoint"),
        (encode(of_code(members=((CodedFile("x/a", 6),), CODE.members[1]))), "names no file of a checkpoint"),
        (encode(of_code(members=((CodedFile("parity.0", 6),), CODE.members[1]))), "names no file of a checkpoint"),
        (encode(of_code(members=((CodedFile("a", -6),), CODE.members[1]))), "names no file of a checkpoint"),
        (encode(of_code(members=((CodedFile("a", 5),), CODE.members[1]))), "6 bytes of member 0 were coded"),
        (encode(of_code(members=(*CODE.members, (CodedFile("d", 1),)))), "0 bytes of member 2 were coded"),
        (encode(of_stripe(layout=CodeLayout(data=(), parity=()))), "a code of 0 data and 0 parity"),
        (encode(of_stripe(members=())), "other shards than were coded"),
        (encode(of_stripe(parity=("parity.a", "parity.b"))), "other shards than were coded"),
        (encode(of_stripe(members=(2,))), "members that are none"),
        (
            encode(of_stripe(members=(1, 1), layout=CodeLayout(data=(ShardSum(3, 1),) * 2, parity=(ShardSum(3, 1),)))),
            "members that are none",
        ),
        (encode(of_stripe(parity=("a",))), "files that are no parity"),
        (encode(of_stripe(parity=("parity./../x",))), "files that are no parity"),
        (encode(of_stripe(parity=("parity./x",))), "files that are no parity"),
    ],
)
def test_what_nothing_may_be_rebuilt_by_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtectionRefused, match=why):
        decode(data)


def test_one_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "RECORD_MAX_BYTES", 100)
    with pytest.raises(ProtectionRefused, match="longer than 100 bytes"):
        decode(encode(RECORD))


def test_every_torn_end_is_refused_and_no_flipped_bit_does_worse_than_another_record() -> None:
    data = encode(RECORD)
    for at in range(len(data)):
        with pytest.raises(ProtectionRefused):
            decode(data[:at])
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            assert isinstance(decode(bytes(flipped)), Protection)
        except ProtectionRefused:
            continue
