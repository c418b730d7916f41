"""How far wall clocks are apart, by the round trips of beats: what a slow way may not make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.agent.brain.line import TRIPS_MAX_COUNT, TRIPS_MIN_COUNT, ClockSkew
from gangrun.core.evidence import NodeFinding
from gangrun.wire.messages import Ack

WALL = 1.7e9


def trip(skew: ClockSkew, ours_less_theirs: float, there_s: float, back_s: float, term: int = 1) -> NodeFinding | None:
    """One beat, sent at 100 s and acked as it came, when the supervisor's clock is at WALL; and the way back."""
    heard_at = 100.0 + there_s + back_s
    ack = Ack(term, 7, 100.0, 0, stamp=5.0, wall=WALL)
    return skew.heard(ack, heard_at, WALL + back_s + ours_less_theirs)


def told(skew: ClockSkew, *ours_less_theirs: float, **how: float) -> list[NodeFinding]:
    heard = [trip(skew, one, how.get("there_s", 0.01), how.get("back_s", 0.01)) for one in ours_less_theirs]
    return [one for one in heard if one is not None]


@pytest.mark.parametrize(
    ("apart", "words"), [(12.34, "12.3 s ahead of"), (-1.5, "1.5 s behind"), (0.9, ""), (-0.9, "")]
)
def test_a_skew_is_told_once_and_excludes_nobody(apart: float, words: str) -> None:
    skew = ClockSkew("n1")
    found = told(skew, *[apart] * 3 * TRIPS_MIN_COUNT)
    assert [(one.node, one.check, one.fatal, one.poor) for one in found] == [("n1", "clock_skew", False, False)] * bool(
        words
    )
    assert all(words in one.sentence for one in found)
    assert words in skew.words()
    assert bool(skew.words()) is bool(words)


def test_the_shortest_of_several_trips_is_believed() -> None:
    skew = ClockSkew("n1")
    assert skew.words() == ""
    trip(skew, 0.0, 0.0, 30.0)
    assert skew.words() == "", "15 s, give or take 15"
    assert told(skew, *[0.0] * TRIPS_MIN_COUNT) == []
    trip(skew, 3.0, 20.0, 0.0)
    assert skew.words() == "", "a slow trip says less than the quick ones before it"
    late = ClockSkew("n1")
    assert told(late, *[3.0] * (TRIPS_MIN_COUNT - 1)) == []
    assert "3.0 s ahead" in late.words(), "whoever asks is told what is known"
    assert len(told(late, 3.0)) == 1


def test_a_clock_that_was_set_right_is_believed_in_time() -> None:
    skew = ClockSkew("n1")
    told(skew, 60.0)
    assert skew.words()
    told(skew, *[0.0] * TRIPS_MAX_COUNT, there_s=0.02)
    assert skew.words() == ""


def test_another_supervisor_has_another_clock_and_an_older_one_says_nothing() -> None:
    skew = ClockSkew("n1", limit_s=30.0)
    for _ in range(TRIPS_MIN_COUNT):
        assert trip(skew, 29.0, 0.1, 0.1) is None
    assert trip(skew, 40.0, 5.0, 5.0, term=2) is None
    assert "40.0 s ahead" in skew.words(), "nothing of the last one's is left"
    assert skew.heard(Ack(3, 7, 100.0, 0), 100.1, WALL) is None, "it does not say its time"
    assert skew.heard(Ack(3, 7, 100.0, 0, wall=WALL), 99.0, WALL + 90.0) is None, "an answer before the question"
    assert skew.words() == ""


@given(
    st.floats(-20.0, 20.0),
    st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 60.0)), min_size=1, max_size=40),
)
def test_however_slow_either_way_a_clock_that_is_right_is_never_called_wrong(
    apart: float, trips: list[tuple[float, float]]
) -> None:
    skew = ClockSkew("n1")
    found = [trip(skew, apart, there_s, back_s) for there_s, back_s in trips]
    if abs(apart) <= 0.99:
        assert not any(found) and not skew.words()
    shortest = min(sum(one) for one in trips[-TRIPS_MAX_COUNT:])
    if abs(apart) - shortest > 1.01:
        assert skew.words()
