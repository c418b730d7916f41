"""Parity: whichever shards, or nodes, are lost, what comes back is the same bits, or nothing at all."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, combinations
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangrun.checkpoint.memory_tier.recover_from_memory import rebuild_files
from gangrun.checkpoint.parity import field
from gangrun.checkpoint.parity.code import PIECE_BYTES, Arithmetic, CannotRebuild, GivenUp, Span, rebuild
from gangrun.checkpoint.parity.field import Slow, coefficient, over, parity_rows, rebuild_rows, sums_for, times
from gangrun.training.memory import redundancy
from gangrun.wire.code_layout import CodeLayout, LayoutRefused, ShardSum
from gangrun.wire.protection import Code, CodedFile, Protection, Stripe, piece_name

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
    padded = [memoryview(bytearray(one.ljust(span, b"\0"))) for one in data]
    if span:
        arithmetic(parity_rows(len(data), parity_count)).fill([memoryview(one) for one in parity], padded)
    data_sums, parity_sums = (tuple(ShardSum(len(one), crc32(one)) for one in some) for some in (data, parity))
    return CodeLayout(data=data_sums, parity=parity_sums), [*data, *map(bytes, parity)]


def mended(
    layout: CodeLayout, left: dict[int, bytes], wanted: Sequence[int], arithmetic: Arithmetic = sums_for
) -> tuple[dict[int, bytes], frozenset[int]]:
    blank = [b"\xee" * layout.shards[number].size for number in wanted]
    with files(*left.values()) as held, files(*blank) as back:
        to_fill = dict(zip(wanted, back, strict=True))
        damaged = rebuild(layout, dict(zip(left, held, strict=True)), to_fill, arithmetic)
        return {number: content_of(one) for number, one in to_fill.items()}, damaged


def losses(count: int, most: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), lost) for lost in range(1, most + 1))


@contextmanager
def files(*contents: bytes) -> Iterator[list[Span]]:
    with ExitStack() as stack:
        spans = []
        for content in contents:
            descriptor = os.memfd_create("shard")
            stack.callback(os.close, descriptor)
            assert os.pwrite(descriptor, content, 0) == len(content)
            spans.append(Span(((descriptor, 0, len(content)),)))
        yield spans


def content_of(span: Span) -> bytes:
    return b"".join(os.pread(descriptor, size, start) for descriptor, start, size in span.parts)


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
        with files(*(b"x" * len(shards[n]) for n in lost)) as wanted, files(*shards) as held:
            left = {n: held[n] for n in range(5) if n not in lost}
            with pytest.raises(CannotRebuild, match="3 of 5 shards are lost, and 2 parity shards give back 2 at most"):
                rebuild(layout, left, dict(zip(lost, wanted, strict=True)))
            assert not any(b"".join(map(content_of, wanted)))


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
    words = r"2 of 4 shards are lost \(1 there but damaged\), and 1 parity shard gives"
    with files(b"\xee" * 900, hurt, *shards[2:]) as (wanted, *held):
        with pytest.raises(CannotRebuild, match=words):
            rebuild(layout, dict(enumerate(held, 1)), {0: wanted})
        assert not any(content_of(wanted))


@pytest.mark.parametrize("number", range(5))
def test_a_rebuild_that_the_layout_contradicts_is_never_handed_out(number: int) -> None:
    layout, shards = coded(some(6, (900, 800, 700)), 2)
    sums = list(layout.shards)
    sums[number] = ShardSum(sums[number].size, sums[number].crc ^ 1)
    lying = CodeLayout(data=tuple(sums[:3]), parity=tuple(sums[3:]))
    with files(b"x" * sums[number].size, *shards) as (wanted, *held):
        with pytest.raises(CannotRebuild, match=f"shard {number} was rebuilt from whole shards and its checksum is"):
            rebuild(lying, {n: one for n, one in enumerate(held) if n != number}, {number: wanted})
        assert not any(content_of(wanted))


def test_a_file_that_cannot_be_read_or_is_of_another_length_counts_as_lost() -> None:
    layout, shards = coded(some(9, (400, 300, 200)), 3)
    with files(shards[1], shards[2] + b"!", shards[3], shards[4], shards[5], b"x" * 400) as spans:
        first, longer, third, fourth, fifth, wanted = spans
        unreadable = os.open(f"/proc/self/fd/{first.parts[0][0]}", os.O_WRONLY)
        os.ftruncate(fourth.parts[0][0], 7)
        try:
            held = {1: Span(((unreadable, 0, 300),)), 2: longer, 3: third, 4: fourth}
            with pytest.raises(CannotRebuild, match=r"5 of 6 shards are lost \(1, 2, 4 there but damaged\)"):
                rebuild(layout, held, {0: wanted})
            assert not any(content_of(wanted))
            assert os.pwrite(fourth.parts[0][0], shards[4], 0) and rebuild(layout, {**held, 5: fifth}, {0: wanted}) == {
                1,
                2,
            }
            assert content_of(wanted) == shards[0]
        finally:
            os.close(unreadable)


def test_hostile_layouts_and_numbers_are_refused_before_anything_is_touched() -> None:
    layout, shards = coded(some(1, (50, 60)), 1)
    lying = msgspec.structs.replace(layout, parity=(ShardSum(2**49, 0),))
    with files(b"kept", shards[0], shards[2]) as (wanted, first, parity):
        held = {0: first, 2: parity}
        with pytest.raises(LayoutRefused, match="must be the same"):
            rebuild(lying, held, {1: wanted})
        for number in (-1, 3):
            with pytest.raises(LayoutRefused, match=f"no shard {number} in a code of 3"):
                rebuild(layout, held, {number: wanted})
        with pytest.raises(ValueError, match="parts of 4 bytes for a shard of 60"):
            rebuild(layout, held, {1: wanted})
        assert rebuild(layout, held, {}) == frozenset()
        assert content_of(wanted) == b"kept"


def test_memory_is_bounded_by_pieces_and_not_by_shards() -> None:
    size = 24 * PIECE_BYTES
    layout, _ = coded([bytes(size)] * 2, 1)
    with files(bytes(size), bytes(size), bytes(size)) as (one, other, parity):
        tracemalloc.start()
        try:
            rebuild(layout, {1: other, 2: parity}, {0: one})
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes < 8 * PIECE_BYTES


def test_isa_l_is_used_where_it_is_installed_and_believed_only_if_it_adds_up() -> None:
    assert field.found() is not None, "pyeclib of the test extra brings it"

    class Idle:
        """A library of the right name that computes nothing."""

        ec_init_tables = ec_encode_data = staticmethod(lambda *arguments: None)

    assert not field._agrees(Idle())  # type: ignore[arg-type]


SIZES = [(9000, 5), (40_000,), (0,), (), (12_289,), (4096, 0, 8192)]  # files of each node


@pytest.mark.parametrize(
    ("nodes", "data", "parity"), [(2, 1, 1), (4, 2, 2), (5, 8, 2), (7, 2, 1), (9, 2, 2), (11, 4, 1)]
)
def test_no_two_shards_of_a_stripe_lie_on_one_node_and_every_byte_is_in_one_stripe(
    nodes: int, data: int, parity: int
) -> None:
    groups = redundancy.node_groups(nodes, data, parity)
    assert sorted(node for group in groups for node in group) == list(range(nodes))
    for size in map(len, groups):
        assert min(nodes, data + parity) <= size < 2 * (data + parity)
        bearable = redundancy.bearable(size, parity)
        assert bearable == min(parity, size - 1)
        for stripe in range(size):
            holders = redundancy.parity_members(size, bearable, stripe)
            members = redundancy.data_members(size, bearable, stripe)
            assert sorted(holders + members) == list(range(size)), "each node once, or losing one would lose two"
        for member, total in enumerate([0, 1, 4096, 4097, 100_000, 8192, 12_288, 5, 6, 7][:size]):
            own = [stripe for stripe in range(size) if member in redundancy.data_members(size, bearable, stripe)]
            at = 0
            for stripe in own:
                begins, length = redundancy.piece_place(total, size, bearable, member, stripe)
                assert begins == at
                at += length
            assert at == total


def test_neighbours_are_in_different_groups() -> None:
    assert redundancy.node_groups(8, 2, 2) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert redundancy.node_groups(9, 2, 2) == ((0, 2, 4, 6, 8), (1, 3, 5, 7))


class Step:
    """Files and parity of a group of nodes, as they would be brought to the disk."""

    def __init__(self, sizes: list[tuple[int, ...]], parity_count: int) -> None:
        random = Random(7)
        self.files: list[dict[str, bytes]] = [
            {f"__{node}_{number}.distcp": random.randbytes(size) for number, size in enumerate(one)}
            for node, one in enumerate(sizes)
        ]
        self.parity: list[dict[str, bytes]] = [{} for _ in sizes]
        size = len(sizes)
        rows = [b"".join(one.values()) for one in self.files]
        stripes = []
        for stripe in range(size):
            members = redundancy.data_members(size, parity_count, stripe)
            pieces = []
            for member in members:
                begins, length = redundancy.piece_place(len(rows[member]), size, parity_count, member, stripe)
                pieces.append(rows[member][begins : begins + length])
            layout, coded_ = coded(pieces, parity_count)
            names = tuple(piece_name(0, stripe, shard) for shard in range(parity_count))
            for name, holder, data in zip(
                names, redundancy.parity_members(size, parity_count, stripe), coded_[len(pieces) :], strict=True
            ):
                self.parity[holder][name] = data
            stripes.append(Stripe(members, names, layout))
        code = Code(
            tuple(tuple(CodedFile(name, len(data)) for name, data in one.items()) for one in self.files), tuple(stripes)
        )
        self.record = Protection(step=5, nonce="ab" * 8, losses_count=parity_count, codes=(code,))

    def without(self, folder: Path, lost: tuple[int, ...]) -> list[str]:
        """Write what the others have; the names that are missing."""
        folder.mkdir()
        for node in set(range(len(self.files))).difference(lost):
            for name, data in {**self.files[node], **self.parity[node]}.items():
                (folder / name).write_bytes(data)
        return [name for node in lost for name in self.files[node]]


@pytest.mark.parametrize("parity_count", [1, 2, 3])
def test_whichever_nodes_are_lost_their_files_come_back(tmp_path: Path, parity_count: int) -> None:
    step = Step(SIZES, parity_count)
    for lost in combinations(range(len(SIZES)), parity_count):
        folder = tmp_path / "-".join(map(str, lost))
        missing = step.without(folder, lost)
        assert rebuild_files(step.record, missing, str(folder)) == sum(
            len(data) for node in lost for data in step.files[node].values()
        )
        for files in step.files:
            for name, data in files.items():
                assert (folder / name).read_bytes() == data, (lost, name)
        assert not list(folder.glob("*.partial"))


def cut(folder: Path) -> None:
    one = next(path for path in sorted(folder.glob("parity.*")) if path.stat().st_size)
    one.write_bytes(one.read_bytes()[:-1])


def flip(folder: Path) -> None:
    for path in folder.glob("parity.*"):
        data = bytearray(path.read_bytes())
        if data:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


def lose(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()


@pytest.mark.parametrize("damage", [cut, flip, lose])
def test_what_cannot_be_made_to_the_bit_is_not_there(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    step, folder = Step(SIZES, 1), tmp_path / "into"
    missing = step.without(folder, (0,))
    damage(folder)
    with pytest.raises(CannotRebuild):
        rebuild_files(step.record, missing, str(folder))
    assert not [name for name in missing if (folder / name).exists()]
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("pieces_count", [0, 1, 5, 9])
def test_what_nobody_waits_for_any_more_ends_at_the_next_piece_and_leaves_nothing(
    tmp_path: Path, pieces_count: int
) -> None:
    """Three stripes of two pieces of a row each, for either lost node, and files that were whole by then go too."""
    step, folder = Step([(9, 3 * 2**18), (2**19,), (2**20,), (2**18,)], 2), tmp_path / "into"
    missing = step.without(folder, (0, 2))
    before = sorted(folder.iterdir())
    asked = iter(range(pieces_count, -1, -1))
    with pytest.raises(GivenUp, match="gangrun stopped writing this step: a newer request replaced it"):
        rebuild_files(step.record, missing, str(folder), lambda: next(asked) == 0)
    assert sorted(folder.iterdir()) == before


def test_a_file_that_is_there_stays_as_it_is_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    step, folder = Step(SIZES, 1), tmp_path / "into"
    missing = step.without(folder, (0,))
    (folder / "__0_1.distcp").write_bytes(b"brought by another")
    assert rebuild_files(step.record, ["__0_0.distcp"], str(folder)) == 9000
    assert (folder / "__0_1.distcp").read_bytes() == b"brought by another"
    with pytest.raises(CannotRebuild, match=r"nothing tells how '__9_0.distcp' was coded"):
        rebuild_files(step.record, [*missing, "__9_0.distcp"], str(folder))


def test_parts_of_files_are_one_row_of_bytes(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb+") as one, (tmp_path / "b").open("wb+") as other:
        for file, data in ((one, b"0123456789"), (other, b"abcdefghij")):
            file.write(data)
            file.flush()
        row = Span(((one.fileno(), 2, 5), (other.fileno(), 0, 4)))

        def read(span: Span, count: int, at: int = 0) -> Any:
            room = bytearray(count)
            return bytes(room) if span.read(memoryview(room), at) else None

        assert row.size == 9 and read(row, 9) == b"23456abcd"
        assert read(row.cut(3, 4), 4) == b"56ab" and read(row, 2, 4) == b"6a"
        assert read(row, 10) is None and read(Span(((one.fileno(), 8, 5),)), 5) is None
        row.clear()
        assert one.seek(0) == 0 and one.read() == b"01" + bytes(5) + b"789" and other.seek(0) == 0
        assert other.read() == bytes(4) + b"efghij"
