"""Exclusions: reasons, caps and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.model import Exclusion
from gangrun.core.nodes import quarantine, standing
from gangrun.core.policy import Policy

POLICY = Policy()
DAY_S = POLICY.exclusion_s


@pytest.mark.parametrize(("nodes_count", "cap"), [(1, 2), (40, 2), (59, 2), (60, 3), (2048, 102)])
def test_cap_is_five_percent_or_two(nodes_count: int, cap: int) -> None:
    assert quarantine.cap_count(nodes_count, POLICY) == cap
    assert quarantine.cap_count(nodes_count, Policy(exclusions_per_hour_max_count=7)) == 7


def test_the_third_in_an_hour_stays() -> None:
    done = quarantine.exclude({}, ["n1", "n2", "n3", "n3"], "XID 79", 100.0, POLICY, 10)
    assert (done.taken, done.refused) == (("n1", "n2"), ("n3",))
    assert done.excluded == dict.fromkeys(("n1", "n2"), Exclusion("XID 79", 100.0, 100.0 + DAY_S))
    assert (
        done.sentence
        == "n[1-2] left out for 24 h; n3 stays although blamed: only 2 nodes may be left out within an hour"
    )
    later = quarantine.exclude(done.excluded, ["n3"], "XID 79", 100.0 + 3600.0, POLICY, 10)
    assert later.taken == ("n3",) and later.refused == () and later.sentence == "n3 left out for 24 h"


def test_blamed_again_is_longer_not_more() -> None:
    first = quarantine.exclude({}, ["n1"], "once", 0.0, POLICY, 10)
    again = quarantine.exclude(first.excluded, ["n1", "n2", "n3"], "twice", 50.0, POLICY, 10)
    assert again.excluded["n1"] == Exclusion("twice", 0.0, 50.0 + DAY_S)
    assert again.refused == ("n3",)
    nothing = quarantine.exclude(again.excluded, [], "", 50.0, POLICY, 10)
    assert nothing.excluded == again.excluded and nothing.sentence == ""


def test_an_exclusion_ends_at_its_until() -> None:
    table = {"n1": Exclusion("a", 0.0, 10.0), "n2": Exclusion("b", 0.0, 20.0)}
    assert set(standing.active(table, 9.9)) == {"n1", "n2"} and set(standing.active(table, 10.0)) == {"n2"}


@given(
    st.lists(st.tuples(st.floats(0, 3000), st.lists(st.integers(0, 40), max_size=4)), max_size=30), st.integers(1, 100)
)
def test_the_cap_holds_in_every_hour(blames: list[tuple[float, list[int]]], nodes_count: int) -> None:
    excluded: dict[str, Exclusion] = {}
    starts: list[float] = []
    now = 0.0
    for wait_s, numbers in blames:
        now += wait_s
        done = quarantine.exclude(excluded, [f"n{number}" for number in numbers], "x", now, POLICY, nodes_count)
        starts += [now] * len(set(done.excluded) - set(standing.active(excluded, now)))
        excluded = dict(done.excluded)
        assert sum(at > now - 3600.0 for at in starts) <= quarantine.cap_count(nodes_count, POLICY)


def test_who_was_just_left_out_since_something_broke_is_told_once() -> None:
    first = quarantine.exclude({}, ["n1", "n2"], "XID 79", 0.0, POLICY, 100, ["n2"])
    assert quarantine.newly_broken({}, first.excluded) == {"n2": "XID 79"}
    assert quarantine.newly_broken(first.excluded, first.excluded) == {}
    again = quarantine.exclude(first.excluded, ["n1"], "gpu lost", 9.0, POLICY, 100, ["n1"])
    assert quarantine.newly_broken(first.excluded, again.excluded) == {"n1": "gpu lost"}
