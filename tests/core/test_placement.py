"""Which slot holds which ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.evidence import NodeFinding
from gangrun.core.model import Exclusion, Node, NodeHealth, Placement, Roster, RunState, Seat, Shape, Slot
from gangrun.core.nodes import placement
from gangrun.core.nodes.placement import NotEnough, place
from gangrun.core.nodes.placement import how_restarted as how
from gangrun.core.nodes.standing import USABLE, NodeStanding, StandingKind, Use, are_many, standing_of, use_of
from gangrun.core.nodeset import NAMED_MAX_COUNT
from gangrun.core.policy import Policy

SHAPE = Shape(nodes_count=3, nodes_min_count=2, slots_per_node=2, ranks_per_slot=1)
OUT = Exclusion("XID 79", 0.0, 100.0)


def roster(*names: str) -> dict[str, Node]:
    return {name: Node(name, "i", "b", 2) for name in names}


def chosen(result: Placement | NotEnough) -> tuple[str, ...]:
    assert isinstance(result, Placement)
    return result.nodes


def test_natural_order_and_contiguous_ranks() -> None:
    result = place(roster("n10", "n9", "n1"), {}, SHAPE)
    assert isinstance(result, Placement)
    assert result.nodes == ("n1", "n9", "n10") and result.world_size == 6
    assert result.seats[2] == Seat(Slot("n9", 0), 2, 1)
    assert placement.ranks_of_node(result, "n9") == range(2, 4) and not placement.ranks_of_node(result, "n8")


def test_slurm_shape_one_slot_with_many_ranks() -> None:
    result = place(roster("a", "b"), {}, Shape(2, 2, 1, 8))
    assert isinstance(result, Placement)
    assert result.seats == (Seat(Slot("a", 0), 0, 8), Seat(Slot("b", 0), 8, 8))


def test_each_way_of_being_unusable() -> None:
    nodes = roster("n1", "n2", "n3", "n4", "n5", "n6", "n7")
    nodes["n2"] = replace(nodes["n2"], lost=True)
    nodes["n3"] = replace(nodes["n3"], silent_since=4.0)
    nodes["n4"] = replace(nodes["n4"], checked=False, check_reason="GPU 3\nis lost")
    nodes["n5"] = replace(nodes["n5"], slots_count=1)
    nodes["n7"] = replace(nodes["n7"], silent_since=9.0)
    result = place(nodes, {"n6": OUT}, replace(SHAPE, nodes_count=9))
    assert result == NotEnough(
        1,
        2,
        "1 node usable, 2 needed: n2 lost; n[3,7] silent; n4 failed its check (GPU 3 is lost);"
        " n5 has only 1 slot of the 2 needed; n6 excluded (XID 79); 2 nodes not here",
    )


def test_more_nodes_than_a_person_reads_are_counted() -> None:
    nodes = roster(*(f"n{i}" for i in range(2 * NAMED_MAX_COUNT + 3)))
    nodes |= {name: replace(node, lost=True) for name, node in nodes.items() if name != "n5"}
    result = place(nodes, {}, SHAPE)
    assert isinstance(result, NotEnough)
    assert result.why == f"1 node usable, 2 needed: {2 * NAMED_MAX_COUNT + 2} nodes lost"


def test_not_yet_checked_counts_as_usable() -> None:
    nodes = roster("n1", "n2", "n3")
    nodes["n1"] = replace(nodes["n1"], checked=True)
    assert chosen(place(nodes, {}, SHAPE)) == ("n1", "n2", "n3")


def test_in_place_then_swap_then_shrink() -> None:
    nodes = roster("n1", "n2", "n3", "n4")
    first = place(nodes, {}, SHAPE)
    assert isinstance(first, Placement)
    nodes["n0"] = Node("n0", "i", "b", 2)
    same = place(nodes, {}, SHAPE, first)
    assert isinstance(same, Placement) and same == first and how(first, same) == "restarting in place"
    swapped = place(nodes, {"n2": OUT}, SHAPE, first)
    assert isinstance(swapped, Placement) and how(first, swapped) == "restarting on n[0-1,3]"
    assert swapped.nodes == ("n1", "n0", "n3"), "who stays keeps its ranks"
    small = place(nodes, {"n2": OUT, "n0": OUT, "n4": OUT}, SHAPE, first)
    assert isinstance(small, Placement) and how(first, small) == "restarting smaller, on n[1,3]"
    assert small.nodes == ("n1", "n3")
    assert chosen(place(nodes, {}, SHAPE, small)) == ("n0", "n1", "n3"), "whole again: roster order"
    assert how(None, small) == "restarting in place"
    assert how(small, first) == "restarting larger, on n[1-3]"


def test_can_do_without() -> None:
    state = RunState("r", SHAPE, roster=Roster(roster("n1", "n2", "n3")))
    assert placement.can_do_without(state, ("n1",), 0.0)
    one_is_out = replace(state, health=NodeHealth(excluded={"n2": OUT}))
    assert not placement.can_do_without(one_is_out, ("n1",), 0.0)


ILL = NodeFinding("n1", "gpu_lost", True, "gpu 3 is lost")


@pytest.mark.parametrize(
    ("marks", "kind", "why", "use"),
    [
        ({}, StandingKind.USABLE, "", Use.AS_ANY),
        ({"checked": True}, StandingKind.USABLE, "", Use.AS_ANY),
        ({"poor": "XID 94"}, StandingKind.SUSPECT, "XID 94", Use.LAST),
        ({"poor": "XID 94", "due": "XID 64"}, StandingKind.TO_BE_REPLACED, "XID 64", Use.UNTIL_A_BETTER_ONE),
        ({"slots_count": 1, "due": "x"}, StandingKind.TOO_SMALL, "has only 1 slot of the 2 needed", Use.NOT),
        ({"trial": "attempt 0: signal", "slots_count": 1}, StandingKind.UNDER_TEST, "under test (attempt 0", Use.TEST),
        (
            {"checked": False, "check_reason": "a", "trial": "x"},
            StandingKind.BROKEN,
            "failed its check (a)",
            Use.NOT,
        ),
        ({"silent_since": 4.0, "checked": False}, StandingKind.AWAY, "silent", Use.WAIT),
        ({"silent_since": 4.0, "lost": True}, StandingKind.AWAY, "lost", Use.WAIT),
    ],
)
def test_the_weightiest_mark_of_a_node_says_what_is_to_be_done_of_it(
    marks: dict[str, Any], kind: StandingKind, why: str, use: Use
) -> None:
    node = replace(roster("n1")["n1"], found=ILL if marks.get("checked") is False else None, **marks)
    stands = standing_of(node, {}, SHAPE)
    assert (stands.kind, use_of(stands), stands.finding) == (kind, use, node.found)
    assert why in stands.why and bool(stands.why) is bool(why)
    assert stands.usable is (use in USABLE)
    out = standing_of(node, {"n1": OUT}, SHAPE)
    assert out == NodeStanding(StandingKind.EXCLUDED, "excluded (XID 79)", node.found, 100.0)
    assert use_of(out) is Use.NOT, "an exclusion outweighs all else"


@pytest.mark.parametrize(
    ("count", "nodes_count", "many"), [(2, 2, False), (3, 3, True), (3, 14, True), (3, 15, False), (4, 15, True)]
)
def test_many_are_three_at_least_and_more_than_a_fifth(count: int, nodes_count: int, many: bool) -> None:
    assert are_many(count, nodes_count, Policy()) is many


names = st.lists(st.integers(0, 30).map(lambda number: f"n{number}"), unique=True, max_size=12)


@given(names, names, st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_ranks_are_covered_once_whatever_comes(
    present: list[str], out: list[str], count: int, slots: int, ranks: int
) -> None:
    shape = Shape(count, max(1, count - 2), slots, ranks)
    nodes = {name: Node(name, "i", "b", slots) for name in present}
    before: Placement | None = None
    for excluded in ({}, dict.fromkeys(out, OUT)):
        result = place(nodes, excluded, shape, before)
        assert result == place(dict(reversed(nodes.items())), excluded, shape, before), (
            "the order of the dict is no input"
        )
        usable = set(present) - set(excluded)
        if isinstance(result, NotEnough):
            assert result.have == len(usable) < shape.nodes_min_count
            continue
        assert set(result.nodes) <= usable and len(result.nodes) == min(count, len(usable))
        held = [rank for seat in result.seats for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count)]
        assert held == list(range(result.world_size))
        assert len({seat.slot for seat in result.seats}) == len(result.seats)
        if before is not None:
            kept = [name for name in before.nodes if name in usable]
            assert set(kept[: len(result.nodes)]) <= set(result.nodes)
        before = result
