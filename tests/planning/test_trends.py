"""Which counters got worse over a week: what is a trend, and what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.health.catalogue import FAMILIES, GPU_COUNTERS, LINK_COUNTERS
from gangrun.planning.trends import DAY_S, KINDS, CounterSeries, CounterTrend, worsening

NOW = 2_000 * DAY_S
DAILY = [NOW - day * DAY_S for day in (6, 5, 4, 3, 2, 1, 0)]


def series(counts: Sequence[int], name: str = "ecc_corrected", at: Sequence[float] = DAILY) -> CounterSeries:
    return CounterSeries("GPU-1", "gpu 3", name, list(zip(at, counts, strict=True)))


def trend(counts: Sequence[int], name: str = "ecc_corrected", at: Sequence[float] = DAILY) -> CounterTrend | None:
    return next(iter(worsening([series(counts, name, at)], NOW)), None)


def test_a_counter_that_rises_day_after_day_is_told_with_its_numbers() -> None:
    found = trend([12, 40, 100, 300, 700, 1500, 4310])
    assert found == CounterTrend("GPU-1", "gpu 3", "ecc_corrected", 4298, DAILY[0], DAILY[-1], 6, 2810)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([50_000] * 7, "a large number that stands still"),
        ([0, 0, 0, 0, 0, 9000, 9000], "one bad hour"),
        ([0, 5, 10, 15, 20, 25, 30], "what is usual"),
        ([0, 2000, 3000, 3300, 3400, 3420, 3430], "it gets better"),
        ([4000, 3000, 2000, 1000, 500, 100, 0], "falls are no rises"),
    ],
)
def test_what_is_no_trend(counts: list[int], why: str) -> None:
    assert trend(counts) is None, why


def test_a_reset_is_neither_an_improvement_nor_a_rise() -> None:
    assert trend([100, 200, 300, 0, 100, 200, 300]) == trend([100, 200, 300, 300, 400, 500, 600])
    assert trend([9000, 0, 9000, 0, 9000, 0, 9000]) is not None, "it rose three times"
    assert trend([100, 200, 250, 9, 9, 9, 9]) is None, "after the reboot it is quiet"
    assert trend([9_000_000, 0, 5, 10, 15, 20, 25]) is None


def test_readings_must_be_enough_on_enough_days_within_the_week() -> None:
    hours = [NOW - 3600 * hour for hour in (6, 5, 4, 3, 2, 1, 0)]
    steep = [0, 1000, 2000, 3000, 4000, 5000, 6000]
    assert trend(steep, at=hours) is None, "one day"
    assert trend(steep[:3], at=[NOW - 6 * DAY_S, NOW - 3 * DAY_S, NOW]) is None, "three readings"
    assert trend(steep, at=[at - 30 * DAY_S for at in DAILY]) is None, "a month ago"
    assert trend(steep, at=[at + 30 * DAY_S for at in DAILY]) is None, "a clock that ran ahead"
    two_days = [NOW - DAY_S * part for part in (1.9, 1.6, 1.2, 0.9, 0.6, 0.3, 0)]
    assert trend(steep, at=two_days) is None, "less than three days"
    gap = [NOW - DAY_S * part for part in (6.5, 6.4, 6.3, 0.4, 0.3, 0.2, 0.1)]
    assert trend(steep, at=gap) is None, "it rose on two days only"
    assert trend(list(reversed(steep)), at=list(reversed(DAILY))) is not None, "in whatever order"


def test_what_is_rare_needs_fewer_days_and_an_unknown_counter_is_none() -> None:
    assert trend([0, 0, 1, 1, 1, 2, 2], "remapped_uncorrected") is not None
    assert trend([0, 0, 0, 0, 0, 2, 2], "remapped_uncorrected") is None, "one day"
    assert trend([0, 0, 1, 1, 2, 2, 3], "link_downed") is not None
    assert trend([0, 0, 1, 1, 1, 2, 2], "link_downed") is None
    assert trend([0, 1000, 2000, 3000, 4000, 5000, 6000], "temperature_c") is None


def test_the_most_striking_comes_first() -> None:
    slow, fast = series([0, 50, 100, 150, 200, 250, 300]), series([0, 9, 18, 27, 36, 45, 54], "link_downed")
    assert [one.name for one in worsening([slow, fast], NOW)] == ["link_downed", "ecc_corrected"]


@given(st.lists(st.integers(0, 10_000), min_size=7, max_size=7), st.integers(0, 10_000))
def test_where_a_counter_began_does_not_matter(counts: list[int], more: int) -> None:
    found, moved = trend(counts), trend([count + more for count in counts])
    assert found == moved
    assert found is None or 0 <= found.last_day_rise <= found.rise


def test_every_kind_is_a_reading_of_some_check() -> None:
    read = {name for family in FAMILIES for name in family.counters} | {*GPU_COUNTERS, *LINK_COUNTERS}
    wear = {"remapped_corrected", "remapped_uncorrected", "retired_pages"}
    assert KINDS.keys() - {"xids"} <= read | wear
    assert all(one.rise_min >= one.days_min_count - 1 > 0 and one.advice for one in KINDS.values())
