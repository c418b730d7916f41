"""Ranks send each other the bytes that their nodes lack, each once for a node, and all of them learn what failed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gangrun.training.memory import loading  # noqa: E402
from gangrun.training.memory.loading import ByteRange as Range  # noqa: E402
from gangrun.training.memory.loading import Transfer, merged, transfers_of  # noqa: E402
from gangrun.training.state import CheckpointError  # noqa: E402
from tests.training.harness import run_program  # noqa: E402

A, B, C, METADATA = (random.Random(size).randbytes(size) for size in (5000, 3000, 10, 2500))
FILES = {"x": {"a": A, "b": B, ".metadata": METADATA}, "y": {"b": B, "c": C}, "z": {"c": C}, "none": {}}


def shared(folder: Path, *cases: tuple[list[str], list[Any]]) -> list[list[dict[str, Any]]]:
    for node, files in FILES.items():
        (folder / node).mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / node / name).write_bytes(data)
    return [json.loads(line) for line in run_program("sharing.py", folder, json.dumps(cases)).splitlines()]


def test_each_rank_reads_what_it_wants_wherever_it_is(tmp_path: Path) -> None:
    wanted = [
        [["a", 0, 5000], ["b", 100, 200], ["c", 0, 10]],
        [["c", 3, 7]],
        [["a", 1, 4999], ["a", 5, 3000]],
        [],
        [["a", 4000, 5000], ["b", 0, 3000]],
        [["a", 10, 20], ["c", 0, 1]],
    ]
    alone: list[list[Any]] = [[["a", 0, 5000], ["b", 0, 1]]]
    new: list[list[Any]] = [[["a", 0, 5000], ["c", 1, 2]], [["a", 0, 1]], [["a", 4999, 5000]], [["b", 0, 3000]]]
    (told, whole, sent) = shared(
        tmp_path,
        (["x", "x", "y", "y", "z", "z"], wanted),
        (["x"], alone),
        (["none", "y", "x", "none"], new),
    )
    data = {"a": A, "b": B, "c": C}
    for asked, found in zip(wanted + alone + new, told + whole + sent, strict=True):
        assert found["read"] == [data[name][begins:ends].hex() for name, begins, ends in asked]
        assert found["metadata"] == METADATA.hex(), "which nobody asks for"
    for node, files in FILES.items():
        assert sorted(os.listdir(tmp_path / node)) == sorted(files), "nothing is written beside them"


def test_what_a_rank_cannot_read_is_told_to_all(tmp_path: Path) -> None:
    nobody = [[["a", 0, 1]], [["nowhere", 0, 1]], []]
    too_short = [[], [["a", 4999, 5003]], []]
    for told in shared(tmp_path, (["x", "y", "z"], nobody), (["x", "y", "z"], too_short)):
        (why,) = {found["error"] for found in told}
        assert why in {
            "nowhere is in the memory of no node that has ranks",
            "the step cannot be loaded from the nodes' memory: rank 0: a ends before byte 5003",
        }


def test_a_rank_that_fails_before_it_asks_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Its script may go on, so nobody can wait for its end."""
    wanted: list[Any] = [[["a", 0, 1]], None, [["b", 0, 1]]]
    another = "the model is another one"
    for nodes, own in ((["x", "y", "z"], another), (["x", "none", "z"], another), (["x", "nowhere", "z"], "")):
        (told,) = shared(tmp_path, (nodes, wanted))
        others = {found["error"] for found in (told[0], told[2])}
        assert len(others) == 1 and "the step cannot be loaded from the nodes' memory: rank 1: " in others.pop()
        assert told[1]["error"] == own or (not own and "nowhere cannot be read: No such file" in told[1]["error"])


def test_the_same_bytes_are_asked_for_once() -> None:
    asked = [
        Range("b", 0, 4),
        Range("a", 5, 9),
        Range("a", 0, 3),
        Range("a", 2, 6),
        Range("b", 6, 7),
    ]
    assert merged(asked) == [Range("a", 0, 9), Range("b", 0, 4), Range("b", 6, 7)]


def test_a_node_takes_a_file_once_and_all_who_have_it_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PIECE_BYTES", 10)
    files = {"x": frozenset({"a"}), "y": frozenset({"a"}), "z": frozenset[str]()}
    asked = [[], [], [Range("a", 0, 25)], [Range("a", 0, 40)]]
    found = transfers_of(["x", "y", "z", "z"], files, asked)
    assert [one.piece for one in found] == [Range("a", at, at + 10) for at in range(0, 40, 10)]
    assert {one.taker for one in found} == {2} and {one.source for one in found} == {0, 1}


@pytest.mark.parametrize("seed", range(20))
def test_whoever_goes_in_this_order_gets_to_its_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has its next few transfers under way, and one is over once both of its ends have it."""
    monkeypatch.setattr(loading, "PIECE_BYTES", 7)
    rng = random.Random(seed)
    nodes = [f"n{rank // 2}" for rank in range(8)]
    files = {f"n{n}": frozenset(rng.sample("abcdefg", 3)) for n in range(4)}
    asked = [[Range(rng.choice("abcdefg"), 0, rng.randrange(1, 60)) for _ in range(rng.randrange(4))] for _ in nodes]
    held = {name for one in files.values() for name in one}
    asked = [[one for one in mine if one.file in held - files[node]] for mine, node in zip(asked, nodes, strict=True)]
    left = {rank: [t for t in transfers_of(nodes, files, asked) if rank in t[:2]] for rank in range(8)}
    while any(left.values()):
        ready = _under_way(left)
        assert ready, "they wait in a circle"
        for one in ready:
            left[one.source].remove(one)
            left[one.taker].remove(one)


def test_nodes_that_lack_nearly_everything_ask_different_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all nodes wait for the two that have the first file, then for those that have the second."""
    monkeypatch.setattr(loading, "PIECE_BYTES", 10)
    count = 16
    nodes = [f"n{n}" for n in range(count)]
    files = {name: frozenset({f"f{n:02}", f"f{(n - count // 2) % count:02}"}) for n, name in enumerate(nodes)}
    asked = [[Range(f"f{n:02}", 0, 10) for n in range(count) if f"f{n:02}" not in files[node]] for node in nodes]
    left = {rank: [t for t in transfers_of(nodes, files, asked) if rank in t[:2]] for rank in range(count)}
    rounds_count = 0
    while any(left.values()):
        busy: set[tuple[str, int]] = set()  # a rank sends one piece and takes one at a time
        for one in sorted(_under_way(left, loading.ON_THEIR_WAY_COUNT)):
            ends = {("sends", one.source), ("takes", one.taker)}
            if not busy & ends:
                busy |= ends
                left[one.source].remove(one)
                left[one.taker].remove(one)
        rounds_count += 1
    assert rounds_count <= 3 * (count - 2), "of pieces that each of them takes"


def _under_way(left: dict[int, list[Transfer]], count: int = 1) -> list[Transfer]:
    begun = [one for mine in left.values() for one in mine[:count]]
    return [one for one in set(begun) if begun.count(one) == 2]


def test_a_file_that_nobody_has_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="a is in the memory of no node that has ranks"):
        transfers_of(["x", "y"], {"x": frozenset(), "y": frozenset()}, [[Range("a", 0, 1)], []])
