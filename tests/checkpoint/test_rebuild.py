"""Lost files of a step are made again of pieces on disk, by the record and to the bit, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gangrun.checkpoint.memory_tier.rebuild import make_again
from gangrun.checkpoint.parity import turns
from gangrun.checkpoint.parity.code import CannotRebuild, GivenUp, encode
from gangrun.checkpoint.parity.places import Span, Stream, empty, size_of, taken
from gangrun.wire.protection import Code, File, Protection, Stripe, piece_name

SIZES = [(9000, 5), (40_000,), (0,), (), (12_289,), (4096, 0, 8192)]  # files of each node


@pytest.mark.parametrize(
    ("nodes", "data", "parity"), [(2, 1, 1), (4, 2, 2), (5, 8, 2), (7, 2, 1), (9, 2, 2), (11, 4, 1)]
)
def test_no_two_shards_of_a_stripe_lie_on_one_node_and_every_byte_is_in_one_stripe(
    nodes: int, data: int, parity: int
) -> None:
    groups = turns.groups(nodes, data, parity)
    assert sorted(node for group in groups for node in group) == list(range(nodes))
    for size in map(len, groups):
        assert min(nodes, data + parity) <= size < 2 * (data + parity)
        bearable = turns.bearable(size, parity)
        assert bearable == min(parity, size - 1)
        for stripe in range(size):
            holders = turns.parity_members(size, bearable, stripe)
            members = turns.data_members(size, bearable, stripe)
            assert sorted(holders + members) == list(range(size)), "each node once, or losing one would lose two"
        for member, total in enumerate([0, 1, 4096, 4097, 100_000, 8192, 12_288, 5, 6, 7][:size]):
            own = [stripe for stripe in range(size) if member in turns.data_members(size, bearable, stripe)]
            at = 0
            for stripe in own:
                begins, length = turns.piece(total, size, bearable, member, stripe)
                assert begins == at
                at += length
            assert at == total


def test_neighbours_are_in_different_groups() -> None:
    assert turns.groups(8, 2, 2) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert turns.groups(9, 2, 2) == ((0, 2, 4, 6, 8), (1, 3, 5, 7))


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
            members = turns.data_members(size, parity_count, stripe)
            pieces = []
            for member in members:
                begins, length = turns.piece(len(rows[member]), size, parity_count, member, stripe)
                pieces.append(rows[member][begins : begins + length])
            sums = [bytearray(max(map(len, pieces))) for _ in range(parity_count)]
            layout = encode([memoryview(one) for one in pieces], [memoryview(one) for one in sums])
            names = tuple(piece_name(0, stripe, shard) for shard in range(parity_count))
            for name, holder, data in zip(names, turns.parity_members(size, parity_count, stripe), sums, strict=True):
                self.parity[holder][name] = bytes(data)
            stripes.append(Stripe(members, names, layout))
        code = Code(
            tuple(tuple(File(name, len(data)) for name, data in one.items()) for one in self.files), tuple(stripes)
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
        assert make_again(step.record, missing, str(folder)) == sum(
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
        make_again(step.record, missing, str(folder))
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
    with pytest.raises(GivenUp, match="it was given up for something newer"):
        make_again(step.record, missing, str(folder), lambda: next(asked) == 0)
    assert sorted(folder.iterdir()) == before


def test_a_file_that_is_there_stays_as_it_is_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    step, folder = Step(SIZES, 1), tmp_path / "into"
    missing = step.without(folder, (0,))
    (folder / "__0_1.distcp").write_bytes(b"brought by another")
    assert make_again(step.record, ["__0_0.distcp"], str(folder)) == 9000
    assert (folder / "__0_1.distcp").read_bytes() == b"brought by another"
    with pytest.raises(CannotRebuild, match=r"nothing tells how '__9_0.distcp' was coded"):
        make_again(step.record, [*missing, "__9_0.distcp"], str(folder))


def test_parts_of_files_are_one_row_of_bytes(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb+") as one, (tmp_path / "b").open("wb+") as other:
        for file, data in ((one, b"0123456789"), (other, b"abcdefghij")):
            file.write(data)
            file.flush()
        row = Span(((one.fileno(), 2, 5), (other.fileno(), 0, 4)))

        def read(span: Span, count: int, at: int = 0) -> Any:
            room = bytearray(count)
            return bytes(room) if taken(span, memoryview(room), at) else None

        assert size_of(row) == 9 and read(row, 9) == b"23456abcd"
        assert read(row.cut(3, 4), 4) == b"56ab" and read(row, 2, 4) == b"6a"
        assert read(row, 10) is None and read(Span(((one.fileno(), 8, 5),)), 5) is None
        empty(row)
        assert one.seek(0) == 0 and one.read() == b"01" + bytes(5) + b"789" and other.seek(0) == 0
        assert other.read() == bytes(4) + b"efghij"
        with pytest.raises(ValueError, match="parts of 9 bytes for a shard of 8"):
            Stream(row, 8).begin()
