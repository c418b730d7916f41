"""Which ranks the others wait for, and whether the training is slower than it was: tables, with a clock in the hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy
from gangrun.core.recovery.pace_rules import NEVER, SLICES_COUNT, Pace, PaceWatch, RankPaces, tell_every_s

POLICY = TrendPolicy(window_s=100.0)
SLICE_S = POLICY.window_s / SLICES_COUNT


class Gang:
    """Ranks that tell their pace every 2 s, and a watch that is asked each second."""

    def __init__(self, ranks: int, policy: TrendPolicy = POLICY) -> None:
        self.now = 1000.0
        self.watch = PaceWatch(policy, self.now)
        self.own_s = [0.0] * ranks
        self.steps = 0.0
        self.tokens = [-1] * ranks

    def train(
        self,
        for_s: float,
        own: Callable[[int], float],
        steps_per_s: float = 5.0,
        tokens: Callable[[int], int] | None = None,
        silent: Sequence[int] = (),
    ) -> list[tuple[Alert, bool]]:
        """``own``: the share of the time for which a rank does not wait."""
        told = []
        for _ in range(round(for_s)):
            self.now += 1.0
            self.steps += steps_per_s
            for rank in range(len(self.own_s)):
                self.own_s[rank] += own(rank)
                if tokens is not None:
                    self.tokens[rank] = max(0, self.tokens[rank]) + tokens(rank)
                if self.now % 2 == 0 and rank not in silent:
                    pace = Pace(round(1000 * self.now), round(1000 * self.own_s[rank]), int(self.steps))
                    self.watch.observe(f"n{rank // 4}", rank, pace, self.tokens[rank])
            if int(self.steps) > int(self.steps - steps_per_s):
                self.watch.advanced(int(self.steps), self.now)
            told += self.watch.take(self.now)
        return told


def slow(*ranks: int, own: float = 0.95, others: float = 0.7) -> Callable[[int], float]:
    return lambda rank: own if rank in ranks else others


@pytest.mark.parametrize(
    ("ranks", "own", "named"),
    [
        (2, slow(1), [1]),
        (3, slow(0), [0]),
        (3, lambda rank: (0.5, 0.72, 0.85)[rank], [2]),
        (8, slow(5), [5]),
        (64, slow(17), [17]),
        (8, slow(5, own=0.80), []),  # under 15 % of the time
        (8, slow(5, own=0.86), [5]),
        (8, lambda rank: 0.95, []),
        (8, lambda rank: 0.5 + 0.06 * rank, []),  # stages that differ by design
        (8, slow(0, 1, 2, 3), []),  # half of all: nobody knows who is the exception
        (4, slow(2, own=0.9, others=0.0), [2]),
        (1, slow(0), []),
    ],
)
def test_the_rank_that_waits_least_is_the_one_that_the_others_wait_for(
    ranks: int, own: Callable[[int], float], named: list[int]
) -> None:
    told = Gang(ranks).train(300, own)
    assert [(one.rank, over) for one, over in told] == [(rank, False) for rank in named]


def test_it_is_told_with_how_much_slower_it_is_and_what_the_others_lose() -> None:
    gang = Gang(8)
    assert gang.train(POLICY.window_s - 1, slow(5)) == []
    ((alert, over),) = gang.train(SLICE_S + 1, slow(5))
    assert (alert.kind, alert.node, alert.rank, alert.over_s, over) == (AlertKind.SLOW_RANK, "n1", 5, 100.0, False)
    assert (alert.share, alert.lost_share) == (pytest.approx(0.95 / 0.7 - 1, 0.01), pytest.approx(0.25, 0.01))
    assert (alert.others_count, alert.more_tokens_share) == (0, 0.0)
    assert gang.train(500, slow(5)) == [], "once, not at each look"
    assert gang.train(3 * SLICE_S - 1, slow()) == []
    assert gang.train(SLICE_S + 1, slow()) == [(alert, True)]


def test_several_that_are_slow_at_once_are_one_alert_that_names_the_slowest() -> None:
    gang = Gang(16)
    own = {3: 0.9, 9: 0.95}
    ((alert, _),) = gang.train(130, lambda rank: own.get(rank, 0.6))
    assert (alert.rank, alert.others_count) == (9, 1)
    assert (gang.watch.stragglers, gang.watch.slower) == ({3: alert, 9: alert}, None)
    assert gang.train(200, slow(3)) == [], "the other one is slow as before"
    assert gang.train(100, slow()) == [(alert, True)]


def test_chance_evaluations_and_a_pause_are_no_alert() -> None:
    """A rank drawn anew for each second is slow; then rank 0 works alone for most of a slice."""
    rng = random.Random(1)
    gang, drawn = Gang(8), [0]

    def own(rank: int) -> float:
        if rank == 0:
            drawn[0] = rng.randrange(8)
        return 0.99 if rank == drawn[0] else 0.1

    assert gang.train(1000, own) == []
    assert gang.train(SLICE_S * 3, slow(0)) == []
    assert gang.train(SLICE_S * 2, slow()) == []
    assert gang.train(SLICE_S * 3, slow(0)) == []


@pytest.mark.parametrize("step_s", [2.5, 10.0, 30.0, 70.0])
def test_if_steps_take_long_the_window_lasts_until_there_are_fifty(step_s: float) -> None:
    gang = Gang(4)
    assert gang.train(49 * step_s, slow(1), steps_per_s=1 / step_s) == []
    ((alert, over),) = gang.train(12 * step_s + 5 * SLICE_S, slow(1), steps_per_s=1 / step_s)
    assert (alert.rank, over) == (1, False)
    assert 49 * step_s <= alert.over_s <= 60 * step_s + 5 * SLICE_S
    assert alert.over_s % SLICE_S == 0
    assert (alert.share, alert.lost_share) == (pytest.approx(0.95 / 0.7 - 1, 0.02), pytest.approx(0.25, 0.02))
    assert gang.train(52 * step_s + 5 * SLICE_S, slow(), steps_per_s=1 / step_s) == [(alert, True)]
    assert Gang(4).train(200 * step_s, slow(), steps_per_s=1 / step_s) == []


def test_the_wait_for_the_first_step_is_no_part_of_the_window() -> None:
    """All ranks compile for long; then steps take long too."""
    gang = Gang(4)
    assert gang.train(1000, slow(0, 1, 2, 3), steps_per_s=0.0) == []
    ((alert, _),) = gang.train(600, slow(1), steps_per_s=0.1)
    assert alert.lost_share == pytest.approx(0.25, 0.02)


def test_a_rank_that_ends_in_a_long_slice_is_slow_no_more() -> None:
    gang = Gang(4)
    ((alert, _),) = gang.train(600, slow(1), steps_per_s=0.1)
    assert gang.train(450, slow(1), steps_per_s=0.1, silent=[1]) == [(alert, True)]


def test_ranks_that_make_no_steps_or_tell_nothing_say_nothing() -> None:
    assert Gang(4).train(600, slow(1), steps_per_s=0.0) == []
    assert Gang(4).train(300, slow(1), silent=[1, 2, 3]) == []
    ((alert, _),) = Gang(4).train(300, slow(1), silent=[2])
    assert alert.rank == 1


def test_a_slow_rank_that_has_ended_is_slow_no_more() -> None:
    gang = Gang(4)
    ((alert, _),) = gang.train(140, slow(1))
    assert gang.train(140, slow(1), silent=[1]) == [(alert, True)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_more_tokens_than_the_others_are_told(ranks: int) -> None:
    ((alert, _),) = Gang(ranks).train(140, slow(1), tokens=lambda rank: 1300 if rank == 1 else 1000)
    assert alert.more_tokens_share == pytest.approx(0.3, 0.01)


def test_nobody_is_asked_with_a_window_of_zero() -> None:
    off = TrendPolicy(window_s=0.0)
    assert PaceWatch(off, 0.0).due_at == NEVER == tell_every_s(off)
    assert tell_every_s(TrendPolicy()) == 10.0


# ---- the own past ----------------------------------------------------------------------------------------------------


def rate(per_s: float) -> dict[str, object]:
    return {"own": slow(), "steps_per_s": per_s}


def test_fewer_steps_than_before_are_told_and_so_is_that_they_are_back() -> None:
    gang = Gang(2)
    assert gang.train(400, **rate(10)) == []  # type: ignore[arg-type]
    assert gang.train(80, **rate(8)) == []  # type: ignore[arg-type]
    ((alert, over),) = gang.train(40, **rate(8))  # type: ignore[arg-type]
    assert (alert.kind, alert.node, alert.rank, over) == (AlertKind.SLOWER, "", -1, False)
    assert (alert.share, *alert.rates) == pytest.approx((0.2, 10.0, 8.0), 0.01)
    assert gang.train(1000, **rate(8)) == [], "what is slow does not become usual"  # type: ignore[arg-type]
    assert gang.train(100, **rate(10)) == [(alert, True)]  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [9.5, 10.0, 20.0])
def test_a_little_slower_or_faster_is_no_alert(after: float) -> None:
    gang = Gang(2)
    assert gang.train(400, **rate(10)) + gang.train(400, **rate(after)) == []  # type: ignore[arg-type]


def test_a_pace_that_always_varied_so_much_is_no_alert() -> None:
    gang, told = Gang(2), []
    for k in range(60):
        told += gang.train(SLICE_S, **rate(10 if k % 2 else 5))  # type: ignore[arg-type]
    assert told + gang.train(120, **rate(5)) == []  # type: ignore[arg-type]


def test_gaps_without_a_step_are_no_slower_steps() -> None:
    """An evaluation takes most of each slice."""
    gang, told = Gang(2), []
    told += gang.train(400, **rate(10))  # type: ignore[arg-type]
    for _ in range(20):
        told += gang.train(6, **rate(10))  # type: ignore[arg-type]
        gang.now += 14.0
        told += gang.watch.take(gang.now)
    assert told == []


def test_a_gang_that_makes_no_steps_is_not_compared() -> None:
    gang = Gang(2)
    gang.train(400, **rate(10))  # type: ignore[arg-type]
    for _ in range(400):
        gang.now += 1.0
        assert gang.watch.take(gang.now) == []


# ---- another supervisor ----------------------------------------------------------------------------------------------


def test_what_an_earlier_supervisor_told_is_over_when_it_is_over() -> None:
    ((slow_rank, _),) = Gang(4).train(140, slow(1))
    first = Gang(4)
    ((slower, _),) = [*first.train(400, **rate(10)), *first.train(140, **rate(5))]  # type: ignore[arg-type]
    gang = Gang(4)
    gang.watch.adopt([slow_rank, slower, Alert(AlertKind.MEMORY)])
    assert gang.train(300, slow(1), steps_per_s=5.0) == []
    assert gang.train(300, slow(), steps_per_s=10.0) == [(slow_rank, True), (slower, True)]


# ---- one node --------------------------------------------------------------------------------------------------------


def test_looks_become_time_and_are_told_now_and_then() -> None:
    paces = RankPaces(POLICY)
    assert paces.take({}, 0.0) == {}
    for now in range(101):
        looks = 2 * now
        paces.look(0, (looks, looks // 2), float(now), trains=True)  # waits for half of the time
        paces.look(1, (looks, 0), float(now), trains=now <= 40)  # evaluates from 40 s on
        paces.look(2, (60 if 30 <= now < 90 else looks, 0), float(now), trains=True)  # holds the GIL for 60 s
    assert paces.take({0: 7, 1: 8, 2: 9}, 100.0) == {
        0: Pace(0, 50_000, 7),
        1: Pace(0, 40_000, 8),
        2: Pace(0, 100_000, 9),
    }
    assert paces.take({0: 7}, 101.0) == {}
    paces.look(0, (204, 100), 104.0, trains=True)
    assert paces.take({0: 9}, 104.0) == {0: Pace(4_000, 54_000, 9)}, "of a rank that has ended nothing is told"
    paces.look(0, (1, 0), 105.0, trains=True)  # another process
    assert paces.take({0: 9}, 110.0) == {0: Pace(5_000, 0, 9)}
    paces.begin()
    assert paces.take({0: 9}, 200.0) == {}
