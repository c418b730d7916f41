"""What grows towards a limit, and what only fills up: tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy
from gangrun.core.recovery.fill_rules import (
    NEVER,
    FillAlerts,
    FillTrend,
    NodeFill,
    NodeUse,
    Series,
    look_every_s,
)

GB = 1_000_000_000
POLICY = TrendPolicy(window_s=600.0, full_within_s=3600.0)


def per_s(used: Callable[[float], float], for_s: int = 600, noise: float = 1e6) -> float:
    series = Series(600.0, noise)
    for now in range(0, for_s + 1, 5):
        series.add(used(now), float(now))
    return series.per_s()


RNG = random.Random(3)


@pytest.mark.parametrize(
    ("used", "slope"),
    [
        (lambda now: 5e9 + 2e6 * now, 2e6),
        (lambda now: 5e9 + 2e6 * now + RNG.uniform(-1e8, 1e8), 2e6),
        (lambda now: 5e9 + 2e6 * now + (4e9 if now % 200 < 30 else 0), 2e6),  # and a copy for each save
        (lambda now: 5e9, 0.0),
        (lambda now: 5e9 - 2e6 * now, 0.0),
        (lambda now: 5e9 + RNG.uniform(-1e9, 1e9), 0.0),
        (lambda now: 5e9 + 1e9 * (1 - math.exp(-now / 60)), 0.0),  # a cache that fills up
        (lambda now: 5e9 + (1e9 if now > 300 else 0), 0.0),  # one jump
        (lambda now: 5e9 + (3e9 if now % 100 < 50 else 0), 0.0),
        (lambda now: 5e9 + 1e3 * now, 0.0),  # less than the noise
    ],
)
def test_a_slope_is_that_of_lasting_growth(used: Callable[[float], float], slope: float) -> None:
    assert per_s(used) == pytest.approx(slope, rel=0.2)


def test_less_than_a_window_tells_nothing() -> None:
    assert per_s(lambda now: 2e6 * now, for_s=500) == 0.0
    series = Series(600.0, 1.0)
    series.add(1.0, 0.0)
    series.add(1e9, 600.0)
    assert series.per_s() == 0.0, "two points are no trend"


def grown(
    use: Callable[[float], NodeUse], policy: TrendPolicy = POLICY, for_s: int = 700
) -> dict[int, tuple[FillTrend, ...]]:
    growth = NodeFill(policy)
    found: dict[int, tuple[FillTrend, ...]] = {}
    for now in range(0, for_s, 5):
        found = growth.look(use(float(now)), float(now))
    return found


def leak(per_rank_s: tuple[int, ...], left: int = 48 * GB) -> Callable[[float], NodeUse]:
    def use(now: float) -> NodeUse:
        memory = {rank: 10 * GB + int(slope * now) for rank, slope in enumerate(per_rank_s)}
        return NodeUse(memory, left if left < 0 else left - int(sum(per_rank_s) * now))

    return use


@pytest.mark.parametrize(
    ("per_rank_s", "left", "named"),
    [
        ((0, 20_000_000, 0), 48 * GB, {1: (AlertKind.MEMORY, 20e6, 0)}),
        ((20_000_000, 19_000_000, 5_000_000), 48 * GB, {0: (AlertKind.MEMORY, 20e6, 1)}),
        ((0, 5_000_000), 48 * GB, {}),  # full in two hours and a half
        ((0, 20_000_000), -1, {}),  # nobody knows of a limit
        ((0, 0), GB, {}),
        ((), GB, {}),
    ],
)
def test_a_node_that_will_be_full_is_told_with_the_rank_that_grows_most(
    per_rank_s: tuple[int, ...], left: int, named: dict[int, tuple[AlertKind, float, int]]
) -> None:
    found = grown(leak(per_rank_s, left))
    told = {rank: [(AlertKind(g.kind), round(g.per_s, -5), g.others_count) for g in one] for rank, one in found.items()}
    assert told == {rank: [one] for rank, one in named.items()}


def test_how_long_is_left_counts_from_now() -> None:
    ((trend,),) = grown(leak((0, 20_000_000)), for_s=651).values()
    assert trend.in_s == pytest.approx((48 * GB - 20e6 * 650) / 20e6, 0.02)


def test_open_files_and_shared_memory_count_against_their_own_limits() -> None:
    def use(now: float) -> NodeUse:
        files = {3: (100 + int(now / 5), 512), 4: (100, 512)}
        return NodeUse({3: GB, 4: GB}, 48 * GB, files, int(2e6 * now), 4 * GB - int(2e6 * now))

    ((files, shared),) = grown(use).values()
    assert (files.kind, files.limit, round(files.per_s, 2)) == ("open files", 512, 0.2)
    assert files.used == 100 + 690 // 5
    assert (shared.kind, round(shared.per_s, -5)) == ("shared memory", 2e6)
    near = lambda now: NodeUse({0: GB}, 48 * GB, {0: (int(now / 5), 10**9)}, int(2e6 * now))  # noqa: E731
    assert grown(near) == {}, "far from the limit, or none is known"


@pytest.mark.parametrize(
    ("per_s", "limit", "told"),
    [
        ((0.0, 0.2, 0.0), 1000, {1: ("threads", 0.2, 0)}),
        ((0.2, 0.15, 0.0), 1000, {0: ("threads", 0.2, 1)}),
        ((0.0, 0.2, 0.0), 10_000, {}),  # far from the limit
        ((0.0, 0.2, 0.0), 0, {}),  # none is known
        ((0.0, 0.01, 0.0), 400, {}),  # 7 in a window: a pool that varies
        ((0.0, 0.0, 0.0), 400, {}),
    ],
)
def test_threads_of_all_ranks_count_against_one_limit(
    per_s: tuple[float, ...], limit: int, told: dict[int, tuple[str, float, int]]
) -> None:
    def use(now: float) -> NodeUse:
        threads = {rank: 100 + int(slope * now) for rank, slope in enumerate(per_s)}
        return NodeUse(
            dict.fromkeys(threads, GB),
            -1,
            threads=threads,
            threads_used=sum(threads.values()) + 20,
            threads_limit=limit,
        )

    found = grown(use)
    assert {
        rank: [(one.kind, round(one.per_s, 2), one.others_count) for one in trends] for rank, trends in found.items()
    } == {rank: [one] for rank, one in told.items()}
    for (one,) in found.values():
        assert one.limit == limit and one.in_s == pytest.approx((limit - one.used) / sum(per_s), rel=0.1)


@pytest.mark.parametrize(
    ("used", "per_s"),
    [
        (lambda now: 20 * GB + int(20e6 * now), 20e6),  # a leak: a segment of 200 MB every ten seconds
        (lambda now: 20 * GB + 5 * GB * min(10, int(now // 30)), 0),  # a cache that fills up in five minutes
        (lambda now: 70 * GB, 0),
        (lambda now: 20 * GB + 15 * GB * (int(now > 230) + int(now > 430)), 0),  # two new maxima
        (lambda now: 60 * GB + (5 * GB if now % 100 < 50 else 0), 0),
    ],
)
def test_memory_of_a_gpu_that_rises_all_the_time_is_told_and_a_cache_of_its_allocator_is_not(
    used: Callable[[float], int], per_s: float
) -> None:
    def use(now: float) -> NodeUse:  # GPUs are read at each second look
        gpu = {3: (used(now), 80 * GB), 4: (GB, 80 * GB)} if now % 10 == 0 else {}
        return NodeUse({3: GB, 4: GB}, 48 * GB, gpu=gpu)

    growth, found = NodeFill(POLICY), dict[int, tuple[FillTrend, ...]]()
    for now in range(0, 1300, 5):
        found = growth.look(use(float(now)), float(now))
        assert per_s or found == {}, now
    assert [(rank, one.kind, one.per_s) for rank, told in found.items() for one in told] == (
        [(3, "GPU memory", pytest.approx(per_s, rel=0.05))] if per_s else []
    )
    if per_s:
        assert (found[3][0].used, found[3][0].limit) == (used(1290), 80 * GB)
        assert found[3][0].in_s == pytest.approx((80 * GB - used(1290)) / per_s, rel=0.05)


def test_the_alert_on_gpu_memory_names_the_gpu() -> None:
    alerts, trend = FillAlerts(POLICY), FillTrend("GPU memory", 2400.0, 20e6, 0, 60 * GB, 80 * GB)
    alerts.observe("n1", 3, [trend, FillTrend("open files", 9.0, 1.0)], 0.0, gpu=1)
    assert [(one.kind, one.rank, one.gpu) for one, _ in alerts.take(0.0)] == [
        (AlertKind.GPU_MEMORY, 3, 1),
        (AlertKind.FILES, 3, -1),
    ]


def test_each_attempt_begins_anew_and_zero_turns_it_off() -> None:
    growth = NodeFill(POLICY)
    for now in range(0, 700, 5):
        growth.look(leak((20_000_000,))(float(now)), float(now))
    growth.begin()
    assert growth.look(leak((20_000_000,))(700.0), 700.0) == {}
    assert (growth.look_every_s, look_every_s(TrendPolicy(window_s=20.0))) == (5.0, 1.0)
    for off in (TrendPolicy(window_s=0.0), TrendPolicy(full_within_s=0.0)):
        assert NodeFill(off).look_every_s == NEVER


# ---- all nodes -------------------------------------------------------------------------------------------------------

MEMORY = FillTrend("memory", 2400.0, 20e6, 1)


def test_one_event_when_it_begins_and_one_when_no_heartbeat_has_told_of_it_for_a_window() -> None:
    alerts = FillAlerts(POLICY)
    assert (alerts.due_at, alerts.take(0.0)) == (NEVER, [])
    alerts.observe("n3", 5, [MEMORY], 10.0)
    assert alerts.due_at == -NEVER
    begun = Alert(AlertKind.MEMORY, "n3", 5, others_count=1, in_s=2400.0, per_s=20e6)
    assert alerts.take(10.0) == [(begun, False)]
    for now in range(11, 300):
        alerts.observe("n3", 5 + now % 2, [MEMORY._replace(in_s=2400.0 - now)], float(now))
        assert alerts.take(float(now)) == []
    assert alerts.due_at == 299.0 + 600.0
    assert alerts.take(898.0) == []
    assert alerts.take(899.0) == [(begun, True)]
    assert alerts.take(2000.0) == []


def test_it_is_told_again_once_half_of_the_time_that_was_left_is_gone() -> None:
    alerts = FillAlerts(POLICY)
    alerts.observe("n3", 5, [MEMORY], 0.0)
    alerts.take(0.0)
    alerts.observe("n3", 5, [MEMORY._replace(in_s=1200.0)], 100.0)
    assert [alert.in_s for alert, _ in alerts.take(100.0)] == []
    alerts.observe("n3", 5, [MEMORY._replace(in_s=1100.0)], 100.0)
    assert [(alert.in_s, over) for alert, over in alerts.take(100.0)] == [(1100.0, False)]
    alerts.observe("n3", 5, [MEMORY._replace(in_s=1000.0)], 200.0)
    assert alerts.take(200.0) == []


def test_shared_memory_is_the_nodes_and_what_a_newer_agent_tells_is_passed_over() -> None:
    alerts = FillAlerts(POLICY)
    alerts.observe("n3", 5, [FillTrend("shared memory", 60.0, 1e6), FillTrend("of a later release", 1.0, 1.0)], 10.0)
    ((alert, over),) = alerts.take(10.0)
    assert (alert.kind, alert.node, alert.rank, over) == (AlertKind.SHARED_MEMORY, "n3", -1, False)


def test_what_an_earlier_supervisor_told_is_not_told_again() -> None:
    alerts = FillAlerts(POLICY)
    known = Alert(AlertKind.MEMORY, "n3", 5, in_s=2400.0, per_s=20e6)
    alerts.adopt([known, Alert(AlertKind.SLOWER)], 0.0)
    alerts.observe("n3", 5, [MEMORY], 10.0)
    assert alerts.take(10.0) == []
    assert alerts.take(610.0) == [(known, True)]
