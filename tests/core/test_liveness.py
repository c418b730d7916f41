"""Silence, judged from a table."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.policy import Timing
from gangrun.core.protocol.lease import NEVER, Liveness, judge_silence

TIMING = Timing()


def test_an_empty_table_never_wakes_anybody() -> None:
    assert judge_silence({}, (), 9.0, TIMING) == Liveness((), (), NEVER)


def test_silent_from_the_very_instant() -> None:
    heard = {"n1": 10.0, "n2": 12.0}
    assert judge_silence(heard, (), 14.999, TIMING) == Liveness((), (), 15.0)
    assert judge_silence(heard, (), 15.0, TIMING) == Liveness((("n1", 10.0),), (), 17.0)
    assert judge_silence(heard, {"n1"}, 15.0, TIMING) == Liveness((), (), 17.0), "told once"
    assert judge_silence(heard, {"n1"}, 17.5, TIMING) == Liveness((("n2", 12.0),), (), NEVER)


def test_heard_again() -> None:
    heard = {"n10": 16.0, "n9": 16.5, "n1": 3.0}
    assert judge_silence(heard, ["n9", "n10", "gone"], 17.0, TIMING) == Liveness((("n1", 3.0),), ("n9", "n10"), 21.0)


def test_longest_silent_first_then_natural_order() -> None:
    heard = {"n10": 1.0, "n2": 1.0, "n1": 2.0}
    assert [name for name, _ in judge_silence(heard, (), 99.0, TIMING).newly_silent] == ["n2", "n10", "n1"]


@given(st.dictionaries(st.integers(0, 20).map(lambda n: f"n{n}"), st.floats(0, 1e6)), st.floats(0, 1e6))
def test_waking_at_next_at_finds_a_change(heard: dict[str, float], now: float) -> None:
    silent: set[str] = set()
    first = judge_silence(heard, silent, now, TIMING)
    silent.update(name for name, _ in first.newly_silent)
    assert judge_silence(heard, silent, now, TIMING).newly_silent == ()
    if first.next_at < NEVER:
        assert first.next_at > now
        assert judge_silence(heard, silent, first.next_at, TIMING).newly_silent, "or the loop would spin"


def test_ten_thousand_nodes_are_cheap() -> None:
    """Against going through them once, on the same machine at the same time: a bound that no load moves much."""
    heard = {f"n{index}": 100.0 + index / 10_000 for index in range(10_000)}

    def best_s(work: Callable[[], object]) -> float:
        took = []
        for _ in range(30):
            start = time.thread_time()
            work()
            took.append(time.thread_time() - start)
        return min(took)

    once_s = best_s(lambda: [name for name, at in heard.items() if at + 1.0 > 103.0])
    assert best_s(lambda: judge_silence(heard, set(), 103.0, TIMING)) < 20 * once_s
    assert best_s(lambda: judge_silence(heard, {"n1"}, 103.0, TIMING)) < 100 * once_s  # rare: a node is silent
