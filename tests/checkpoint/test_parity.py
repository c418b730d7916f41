"""Parity: whichever shards are lost, what comes back is the same bits, or nothing at all."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, combinations
from random import Random
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangrun.checkpoint.parity import isa_l
from gangrun.checkpoint.parity.code import Arithmetic, CannotRebuild, encode, rebuild
from gangrun.checkpoint.parity.field import Slow, coefficient, over, parity_rows, rebuild_rows, times
from gangrun.checkpoint.parity.isa_l import sums_for
from gangrun.checkpoint.parity.places import PIECE_BYTES, Place
from gangrun.wire.code_layout import CodeLayout, LayoutRefused, ShardSum

BOTH_WAYS = pytest.mark.parametrize("arithmetic", [sums_for, Slow], ids=["ISA-L", "slow"])
GOLDEN = ["006cc92d", "a7f8b17b", "da030897", "74ad6a51"]
EDGES = (0, 1, 63, 64, 65, 1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 77)


def some(seed: int, sizes: Sequence[int]) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(size) for size in sizes]


def coded(
    data: Sequence[bytes], parity_count: int, arithmetic: Arithmetic = sums_for
) -> tuple[CodeLayout, list[bytes]]:
    span = max(map(len, data))
    parity = [bytearray(span) for _ in range(parity_count)]
    layout = encode([memoryview(bytearray(one)) for one in data], [memoryview(one) for one in parity], arithmetic)
    return layout, [*data, *map(bytes, parity)]


def mended(
    layout: CodeLayout, left: dict[int, bytes], wanted: Sequence[int], arithmetic: Arithmetic = sums_for
) -> tuple[dict[int, bytes], frozenset[int]]:
    memory = {number: bytearray(b"\xee" * layout.shards[number].size) for number in wanted}
    held = {number: memoryview(one) for number, one in left.items()}  # as it may not be written to, it is copied
    damaged = rebuild(layout, held, {number: memoryview(one) for number, one in memory.items()}, arithmetic)
    return {number: bytes(one) for number, one in memory.items()}, damaged


def losses(count: int, most: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), lost) for lost in range(1, most + 1))


@contextmanager
def files(*contents: bytes) -> Iterator[list[int]]:
    with ExitStack() as stack:
        descriptors = []
        for content in contents:
            descriptors.append(os.memfd_create("shard"))
            stack.callback(os.close, descriptors[-1])
            assert os.pwrite(descriptors[-1], content, 0) == len(content)
        yield descriptors


def content_of(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


@BOTH_WAYS
@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.sampled_from(EDGES), min_size=1, max_size=5),
    parity_count=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_every_loss_that_parity_can_bear_comes_back_bit_by_bit(
    arithmetic: Arithmetic, sizes: list[int], parity_count: int, seed: int
) -> None:
    layout, shards = coded(some(seed, sizes), parity_count, arithmetic)
    for lost in losses(len(shards), parity_count):
        left = {number: one for number, one in enumerate(shards) if number not in lost}
        back, damaged = mended(layout, left, lost, arithmetic)
        assert back == {number: shards[number] for number in lost}
        assert not damaged


def test_both_ways_give_the_same_bytes_and_these_for_ever() -> None:
    data = some(5, (1000, 1, 777, 64, 0))
    fast, slow = coded(data, 4), coded(data, 4, Slow)
    assert fast == slow
    assert [f"{shard.crc:08x}" for shard in fast[0].parity] == GOLDEN
    assert [shard.crc for shard in fast[0].data] == [crc32(one) for one in data]


def test_one_parity_shard_is_xor_with_zeros_after_the_end_of_a_short_one() -> None:
    data = some(3, (3 * PIECE_BYTES + 9, 300, PIECE_BYTES + 5))
    total = 0
    for one in data:
        total ^= int.from_bytes(one, "little")
    assert coded(data, 1)[1][3] == total.to_bytes(len(data[0]), "little")


def test_every_loss_of_a_wide_code_has_a_way_back() -> None:
    """The arithmetic alone, on shards of two bytes: all losses of 8+3, and some of as wide a code as there is."""
    random = Random(1)
    wide = [tuple(sorted(random.sample(range(256), 6))) for _ in range(5)]
    for data_count, parity_count, patterns in ((8, 3, list(losses(11, 3))), (250, 6, wide)):
        shards = [memoryview(bytearray(one)) for one in some(7, [2] * data_count)]
        parity = [memoryview(bytearray(2)) for _ in range(parity_count)]
        Slow(parity_rows(data_count, parity_count)).fill(parity, shards)
        shards += parity
        for lost in patterns:
            plan = rebuild_rows(data_count, set(range(len(shards))) - set(lost), lost)
            assert plan is not None
            back = [memoryview(bytearray(2)) for _ in lost]
            Slow(plan[1]).fill(back, [shards[number] for number in plan[0]])
            assert [bytes(one) for one in back] == [bytes(shards[number]) for number in lost]


def test_the_field_is_one() -> None:
    for a in range(256):
        assert times(a, 1) == over(a, 1) == a
        assert all(over(times(a, b), b) == a and times(a, b) == times(b, a) for b in range(1, 256))
    assert all(times(a, b ^ 77) == times(a, b) ^ times(a, 77) for a in (2, 29, 255) for b in range(256))
    assert all(coefficient(250, parity, data) for parity in range(6) for data in range(250))


def test_one_loss_too_many_is_said_and_leaves_nothing_behind() -> None:
    layout, shards = coded(some(2, (500, 400, 300)), 2)
    for lost in combinations(range(5), 3):
        with files(*(b"x" * 600 for _ in lost)) as wanted:
            left = {n: memoryview(shards[n]) for n in range(5) if n not in lost}
            with pytest.raises(CannotRebuild, match="3 of 5 shards are lost, and 2 parity shards give back 2 at most"):
                rebuild(layout, left, dict(zip(lost, wanted, strict=True)))
            assert [content_of(one) for one in wanted] == [b"", b"", b""]


@BOTH_WAYS
def test_a_damaged_shard_counts_as_lost_and_is_named(arithmetic: Arithmetic) -> None:
    layout, shards = coded(some(4, (PIECE_BYTES + 9, 70, PIECE_BYTES)), 2, arithmetic)
    for lost, hurt in [(lost, hurt) for lost in range(5) for hurt in range(5) if lost != hurt]:
        left = {n: one for n, one in enumerate(shards) if n != lost}
        flipped = bytearray(left[hurt])
        flipped[len(flipped) // 2] ^= 0x10
        back, damaged = mended(layout, {**left, hurt: bytes(flipped)}, [lost], arithmetic)
        assert back == {lost: shards[lost]}
        assert damaged <= {hurt}  # a parity shard that was not needed was not read
        assert damaged == {hurt} or hurt >= 3


def test_damage_beyond_what_parity_bears_gives_nothing_back() -> None:
    layout, shards = coded(some(4, (900, 800, 700)), 1)
    hurt = bytes([shards[1][0] ^ 1]) + shards[1][1:]
    memory = bytearray(b"\xee" * 900)
    with pytest.raises(
        CannotRebuild, match=r"2 of 4 shards are lost \(1 there but damaged\), and 1 parity shard gives"
    ):
        rebuild(layout, {n: memoryview(one) for n, one in ((1, hurt), (2, shards[2]), (3, shards[3]))},
                {0: memoryview(memory)})  # fmt: skip
    assert not any(memory)


@pytest.mark.parametrize("number", range(5))
def test_a_rebuild_that_the_layout_contradicts_is_never_handed_out(number: int) -> None:
    layout, shards = coded(some(6, (900, 800, 700)), 2)
    sums = list(layout.shards)
    sums[number] = ShardSum(sums[number].size, sums[number].crc ^ 1)
    lying = CodeLayout(data=tuple(sums[:3]), parity=tuple(sums[3:]))
    with files(b"x" * 2000) as (wanted,):
        with pytest.raises(CannotRebuild, match=f"shard {number} was rebuilt from whole shards and its checksum is"):
            rebuild(lying, {n: memoryview(one) for n, one in enumerate(shards) if n != number}, {number: wanted})
        assert content_of(wanted) == b""


def test_files_and_memory_are_the_same_to_it() -> None:
    data = some(8, (PIECE_BYTES + 5, 0, 17))
    layout, shards = coded(data, 2)
    with files(*data, b"longer than it will be" * PIECE_BYTES, b"") as places:
        assert encode(places[:3], places[3:]) == layout
        assert [content_of(one) for one in places] == shards
        with files(b"", b"y" * 99) as wanted:
            held: dict[int, Place] = {1: places[1], 3: places[3], 4: memoryview(bytearray(shards[4]))}
            assert rebuild(layout, held, {0: wanted[0], 2: wanted[1]}) == frozenset()
            assert [content_of(one) for one in wanted] == [data[0], data[2]]


def test_a_file_that_cannot_be_read_or_is_of_another_length_counts_as_lost() -> None:
    layout, shards = coded(some(9, (400, 300, 200)), 3)
    with files(shards[1], shards[2] + b"!", shards[3], b"") as (first, longer, third, wanted):
        unreadable = os.open(f"/proc/self/fd/{first}", os.O_WRONLY)
        closed = os.dup(third)
        os.close(closed)
        try:
            held: dict[int, Place] = {1: unreadable, 2: longer, 3: third, 4: closed, 5: memoryview(shards[5])}
            with pytest.raises(CannotRebuild, match=r"4 of 6 shards are lost \(1, 2, 4 there but damaged\)"):
                rebuild(layout, held, {0: wanted})
            assert rebuild(layout, {**held, 4: memoryview(shards[4])}, {0: wanted}) == {1, 2}
            assert content_of(wanted) == shards[0]
        finally:
            os.close(unreadable)


def test_a_data_shard_that_cannot_be_read_is_never_coded() -> None:
    with files(b"abc", b"old") as (data, parity):
        unreadable = os.open(f"/proc/self/fd/{data}", os.O_WRONLY)
        try:
            with pytest.raises(OSError, match="data shard 1 could not be read"):
                encode([data, unreadable], [parity])
            assert content_of(parity) == b""
        finally:
            os.close(unreadable)


def test_hostile_layouts_and_numbers_are_refused_before_anything_is_touched() -> None:
    layout, shards = coded(some(1, (50, 60)), 1)
    lying = msgspec.structs.replace(layout, parity=(ShardSum(2**49, 0),))
    with files(b"kept") as (wanted,):
        held = {0: memoryview(shards[0]), 2: memoryview(shards[2])}
        with pytest.raises(LayoutRefused, match="must be the same"):
            rebuild(lying, held, {1: wanted})
        for number in (-1, 3):
            with pytest.raises(LayoutRefused, match=f"no shard {number} in a code of 3"):
                rebuild(layout, held, {number: wanted})
        for data, parity in (([], [wanted]), ([wanted], []), ([wanted] * 250, [wanted] * 7)):
            with pytest.raises(LayoutRefused, match="one of each at least"):
                encode(data, parity)
        with pytest.raises(ValueError, match="memory of 3 bytes for a shard of 60"):
            rebuild(layout, held, {1: memoryview(bytearray(3))})
        assert rebuild(layout, held, {}) == frozenset()
        assert content_of(wanted) == b"kept"


def test_memory_is_bounded_by_pieces_and_not_by_shards() -> None:
    size = 24 * PIECE_BYTES
    with files(bytes(size), bytes(size), b"") as (one, other, parity):
        tracemalloc.start()
        try:
            layout = encode([one, other], [parity])
            rebuild(layout, {1: other, 2: parity}, {0: one})
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes < 8 * PIECE_BYTES


def test_isa_l_is_used_where_it_is_installed_and_believed_only_if_it_adds_up() -> None:
    assert isa_l.found() is not None, "pyeclib of the test extra brings it"

    class Idle:
        """A library of the right name that computes nothing."""

        ec_init_tables = ec_encode_data = staticmethod(lambda *arguments: None)

    assert not isa_l._agrees(Idle())  # type: ignore[arg-type]
