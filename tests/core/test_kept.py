"""Which step in the nodes' memory is whole, and whose it may be."""

from __future__ import annotations

import pytest

from gangrun.core.checkpoints.memory import (
    HeldCode,
    HeldStripe,
    Holding,
    Offered,
    WholeStep,
    holders,
    newest_whole,
    offered,
)
from gangrun.core.model import AttemptRecord, MemoryStep


def held(step: int, nonce: str, *files: str, of: int = 0) -> Holding:
    return Holding(step, nonce, files, of)


@pytest.mark.parametrize(
    ("nodes", "above", "expected"),
    [
        ({}, -1, None),
        ({"a": []}, -1, None),
        ({"a": [held(5, "x", "0", "m", of=2)]}, -1, WholeStep(5, "x", {"a": ("0", "m")})),
        ({"a": [held(5, "x", "0", "m", of=2)]}, 5, None),  # the disk has it
        ({"a": [held(5, "x", "0", "m", of=3)]}, -1, None),  # a shard is nowhere
        ({"a": [held(5, "x", "0")], "b": [held(5, "x", "1")]}, -1, None),  # nobody has the manifest: never whole
        (  # a node that had not yet heard of the manifest holds its shard all the same
            {"a": [held(4, "w", "0", "m", of=3), held(5, "x", "0", "m", of=3)], "b": [held(5, "x", "1")]},
            -1,
            WholeStep(5, "x", {"a": ("0", "m"), "b": ("1",)}),
        ),
        (  # half of the newer save: the older one is taken
            {"a": [held(4, "w", "0", "m", of=3), held(5, "x", "0")], "b": [held(4, "w", "1", "m", of=3)]},
            -1,
            WholeStep(4, "w", {"a": ("0", "m"), "b": ("1",)}),
        ),
        (  # two saves of one step are never mixed
            {"a": [held(5, "x", "0", "m", of=3)], "b": [held(5, "y", "1", "m", of=3)]},
            -1,
            None,
        ),
        (  # what two nodes hold is written by one of them
            {"a": [held(5, "x", "0", "1", "m", of=3)], "b": [held(5, "x", "0", "1", "m", of=3)]},
            -1,
            WholeStep(5, "x", {"a": ("0", "1", "m")}),
        ),
    ],
)
def test_the_newest_step_of_which_some_node_holds_every_file_is_taken(
    nodes: dict[str, list[Holding]], above: int, expected: WholeStep | None
) -> None:
    assert newest_whole(nodes, above) == expected


def test_only_the_newest_attempt_that_chose_where_to_begin_may_give_its_memory_back() -> None:
    base = MemoryStep(0, 7, "x")
    first = AttemptRecord(0, "j", ("a",), 0.0)
    from_memory, unplaced = AttemptRecord(1, "j", ("a",), 1.0, memory=base), AttemptRecord(2, "j", (), 2.0)
    assert offered([], 0) is None
    assert offered([unplaced], 3) is None
    assert offered([first, from_memory], 1) == Offered(0)
    assert offered([first, from_memory, unplaced], 3) == Offered(1, base), "and the step that it began from"


def test_a_node_holds_a_step_whole_if_it_has_every_file_of_it() -> None:
    part, whole = held(5, "x", "0", "m", of=3), held(5, "x", "0", "1", "m", of=3)
    step = WholeStep(5, "x", {})
    assert holders({"b": [whole], "a": [whole, held(4, "w", "0", "m", of=2)], "c": [part]}, step) == ("a", "b")
    assert holders({"a": [held(5, "x", "0", "1")], "b": [held(5, "y", "0", "m", of=2)]}, step) == ()


# Three nodes with a file each, of which one may be lost; b has two. Parity of a stripe lies where none of its data is.
CODE = HeldCode(
    (("0",), ("1", "1b"), ("2",)),
    (HeldStripe((1, 2), ("p0",)), HeldStripe((0, 2), ("p1",)), HeldStripe((0, 1), ("p2",))),
)
PARTS = {"a": (("0",), ("p0",)), "b": (("1", "1b"), ("p1",)), "c": (("2",), ("p2",))}


def coded(*nodes: str, code: HeldCode | None = CODE, lacking: tuple[str, ...] = ()) -> dict[str, list[Holding]]:
    """What these nodes say: the manifest is everywhere."""
    said = {}
    for node in nodes:
        files, pieces = (tuple(name for name in part if name not in lacking) for part in PARTS[node])
        said[node] = [Holding(5, "x", (*files, "m"), 5, pieces, () if code is None else (code,))]
    return said


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # nothing is lost: nothing is made again, and no parity is brought
        (coded("a", "b", "c"), WholeStep(5, "x", {"a": ("0", "m"), "b": ("1", "1b"), "c": ("2",)})),
        # one node is: its files are made again of parity, by one that has the record
        (coded("a", "c"), WholeStep(5, "x", {"a": ("0", "m", "p0"), "c": ("2", "p2")}, {"a": ("1", "1b")})),
        (coded("b", "c"), WholeStep(5, "x", {"b": ("1", "1b", "m", "p1"), "c": ("2", "p2")}, {"b": ("0",)})),
        # one file of two: only that one
        (
            coded("a", "b", "c", lacking=("1b",)),
            WholeStep(5, "x", {"a": ("0", "m", "p0"), "b": ("1",), "c": ("2", "p2")}, {"a": ("1b",)}),
        ),
        (coded("a"), None),  # two are lost
        (coded("a", "c", lacking=("p2",)), None),  # and a stripe has too little left
        (coded("a", "c", code=None), None),  # and nobody knows of parity
    ],
)
def test_what_no_node_holds_is_made_again_if_there_is_enough_parity(
    nodes: dict[str, list[Holding]], expected: WholeStep | None
) -> None:
    found = newest_whole(nodes, -1)
    assert found == expected
    assert found is None or found.rebuilt_count == sum(map(len, found.rebuild.values()))


def test_an_older_step_that_can_be_made_whole_is_better_than_a_newer_one_that_cannot() -> None:
    newer = {node: [Holding(8, "y", (node, "m"), 9), *held] for node, held in coded("a", "c").items()}
    found = newest_whole(newer, -1)
    assert found is not None and found.step == 5


def test_several_codes_are_worked_on_by_several_nodes() -> None:
    codes = tuple(
        HeldCode(((f"a{n}",), (f"b{n}",)), (HeldStripe((1,), (f"q{n}",)), HeldStripe((0,), (f"p{n}",))))
        for n in range(4)
    )
    pieces = tuple(f"p{n}" for n in range(4))
    nodes = {
        "b": [Holding(5, "x", ("b0", "b1", "b2", "b3", "m"), 9, pieces, codes)],
        "c": [Holding(5, "x", ("m",), 9, (), codes)],
    }
    found = newest_whole(nodes, -1)
    assert found is not None
    assert found.rebuild == {"b": ("a0", "a2"), "c": ("a1", "a3")}
    assert found.rebuilt_count == 4
