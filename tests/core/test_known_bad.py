"""Nodes that earlier runs found broken: for how long, how many, and what a wrong clock may do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.nodes.history import (
    COUNTED_MAX,
    DAY_S,
    NODES_MAX_COUNT,
    WEEK_S,
    KnownBad,
    nodes_to_avoid,
    remembered_nodes,
    with_bad_node,
)


def test_each_time_it_counts_twice_as_long_and_a_week_at_most() -> None:
    known: dict[str, KnownBad] = {}
    lasts = []
    for run in range(5):
        known = dict(with_bad_node(known, "n1", "XID 79", f"r{run}", 1000.0 * run))
        lasts.append((known["n1"].until - known["n1"].at) / DAY_S)
    assert lasts == [1, 2, 4, 7, 7]


def test_the_same_run_finds_it_once() -> None:
    known = with_bad_node(with_bad_node({}, "n1", "XID 79", "r", 0.0), "n1", "gpu lost", "r", 60.0)
    assert known == {"n1": KnownBad("n1", "gpu lost", "r", 60.0, 1)}


@pytest.mark.parametrize(
    ("days", "counts", "is_remembered"),
    [(0.9, True, True), (1.1, False, True), (7.9, False, True), (8.1, False, False)],
)
def test_it_decays(days: float, counts: bool, is_remembered: bool) -> None:
    known, now = with_bad_node({}, "n1", "XID 79", "r", 0.0), days * DAY_S
    assert bool(nodes_to_avoid(known, now)) is counts
    assert bool(remembered_nodes(known, now)) is is_remembered
    assert with_bad_node(known, "n2", "x", "s", now).keys() == ({"n1", "n2"} if is_remembered else {"n2"})


def test_one_that_was_well_for_long_begins_anew() -> None:
    known = with_bad_node(with_bad_node({}, "n1", "XID 79", "r", 0.0), "n1", "XID 79", "s", 1.0)
    assert with_bad_node(known, "n1", "XID 79", "t", DAY_S)["n1"].times == 3
    assert with_bad_node(known, "n1", "XID 79", "t", 20 * DAY_S)["n1"].times == 1


def test_a_clock_that_ran_ahead_holds_no_node_for_ever() -> None:
    known = with_bad_node({}, "n1", "XID 79", "r", 1e12)
    assert nodes_to_avoid(known, 0.0)[0].until == DAY_S


def test_only_so_many_count_the_newest_first_and_the_file_does_not_grow() -> None:
    known: dict[str, KnownBad] = {}
    for k in range(NODES_MAX_COUNT + 50):
        known = dict(with_bad_node(known, f"n{k}", "x", "r", float(k)))
    assert len(known) == NODES_MAX_COUNT
    last = NODES_MAX_COUNT + 49
    assert [one.node for one in nodes_to_avoid(known, last)] == [f"n{last - k}" for k in range(COUNTED_MAX)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("rs"), st.floats(0, 100 * DAY_S)), max_size=20))
def test_nothing_counts_longer_than_a_week(told: list[tuple[str, str, float]]) -> None:
    known: dict[str, KnownBad] = {}
    for node, run, at in told:
        known = dict(with_bad_node(known, node, "x", run, at))
        assert all(one.until - one.at <= WEEK_S + 1 and one.times >= 1 for one in known.values())
    assert not nodes_to_avoid(known, 200 * DAY_S)
