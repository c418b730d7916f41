"""Pairs of nodes: whoever is bad is named, and never anybody who is not."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangrun.core.nodes.meetings import Conclusion, Meeting, Pair, conclusion, confirming, is_bad, rounds_of, typical

SHARE = 0.5
FAST = 1e9


def names(count: int) -> list[str]:
    return [f"n{k}" for k in range(count)]


def met(pair: Pair, bad: set[str], broken: bool, speed: float = FAST) -> Meeting:
    if not bad & set(pair):
        return Meeting(pair, speed, 1e-5)
    return Meeting(pair, error="no answer within 5 s") if broken else Meeting(pair, speed * SHARE * 0.2, 1e-3)


def story(nodes: list[str], bad: set[str], broken: bool, noise: float = 1.0) -> Conclusion:
    """All rounds, and those that confirm, of a network in which exactly these nodes are bad."""
    meetings = [
        met(pair, bad, broken, FAST * (noise if k % 2 else 1.0)) for r in rounds_of(nodes) for k, pair in enumerate(r)
    ]
    return conclusion(meetings, SHARE, [met(pair, bad, broken) for r in confirming(meetings, SHARE) for pair in r])


@given(st.integers(2, 40))
@example(3)
def test_a_round_uses_a_node_once_and_each_meets_two_others(count: int) -> None:
    rounds = rounds_of(names(count))
    assert len(rounds) == (1 if count == 2 else 2 + count % 2)
    for one in rounds:
        used = [node for pair in one for node in pair]
        assert len(used) == len(set(used))
    partners = {n: {a if b == n else b for r in rounds for a, b in r if n in (a, b)} for n in names(count)}
    assert all(len(found) == min(2, count - 1) for found in partners.values())


@given(st.integers(3, 40), st.data(), st.booleans(), st.floats(0.7, 1.4))
def test_a_single_bad_node_is_named_and_nobody_else(
    count: int, data: st.DataObject, broken: bool, noise: float
) -> None:
    bad = data.draw(st.sampled_from(names(count)))
    found = story(names(count), {bad}, broken, noise)
    assert [(one.node, one.broken) for one in found.named] == [(bad, broken)]
    assert bad in found.named[0].sentence


def test_meetings_that_confirm_do_not_change_what_is_usual() -> None:
    """Four slow ones of seven: their third meetings are slow as well, and would be the usual ones by number."""
    assert {one.node for one in story(names(7), {"n0", "n1", "n2", "n3"}, broken=False).named} == {
        "n0",
        "n1",
        "n2",
        "n3",
    }


@given(st.integers(2, 24), st.data(), st.booleans())
def test_of_many_bad_ones_never_a_healthy_one_is_named(count: int, data: st.DataObject, broken: bool) -> None:
    bad = data.draw(st.sets(st.sampled_from(names(count)), max_size=count))
    found = story(names(count), bad, broken)
    pairs = [pair for r in rounds_of(names(count)) for pair in r]
    good_count = sum(not bad & set(pair) for pair in pairs)
    assert {one.node for one in found.named} <= bad
    unconfirmed = conclusion([met(pair, bad, broken) for pair in pairs], SHARE)
    assert {one.node for one in unconfirmed.named} <= bad, "between two bad ones a healthy one has bad pairs only"
    if good_count > len(pairs) // 4 or (broken and good_count):  # else hardly anybody is faster than the slow ones
        assert {one.node for one in found.named} == bad


@pytest.mark.parametrize(
    ("count", "bad", "words"),
    [
        (1, set(), "nobody to meet"),
        (2, set(), "every node had a good pair"),
        (2, {"n0"}, "it is the two nodes or what lies between them; nobody is named"),
        (4, {"n0", "n1", "n2", "n3"}, "the network rather than a node; nobody is named"),
        (6, {"n1", "n4"}, "n1, n4"),
    ],
)
def test_what_is_concluded(count: int, bad: set[str], words: str) -> None:
    assert words in story(names(count), bad, broken=True).sentence


def test_what_is_slow_is_slow_beside_good_pairs() -> None:
    speeds = [Meeting(("a", "b"), speed) for speed in (10.0, 9.0, 8.0, 1.0, 1.0, 1.0)]
    assert typical(speeds) == 9.0
    assert [is_bad(one, 9.0, SHARE) for one in speeds] == [False] * 3 + [True] * 3
    assert typical([]) == 0.0
    assert not is_bad(Meeting(("a", "b"), 0.0), 0.0, SHARE)
