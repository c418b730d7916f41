"""What the supervisor tells people of the training: figures of the ranks, and how fast the steps come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from gangrun.core.events import AlertSeen, AnomalySeen, Event, SelfCheckFailed, StepsTimed
from gangrun.core.evidence import Alert, AlertKind, Anomaly, AnomalyKind, Divergence, SeenAlert, SelfChecks
from gangrun.core.model import Attempt, Phase, Race, Races, RunState, Shape, StepTime
from gangrun.core.policy import Policy, TrendPolicy
from gangrun.core.recovery.fill_rules import FillTrend
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.recovery.pace_rules import Pace
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.progress import (
    RATE_OVER_S,
    GangAlerts,
    GangAnomalies,
    GangFigures,
    GangProgress,
    Rate,
    gpu_figures,
)
from gangrun.wire.messages import Hello, PeerAddress, RankSample


def sample(rank: int, **what: float | None) -> RankSample:
    return RankSample(rank, -1, 2, 0, 0, 0.0, "R", **what)  # type: ignore[arg-type]


def rate(*points: tuple[float, int]) -> Rate:
    made = Rate()
    for now, count in points:
        made.add(count, now)
    return made


@pytest.mark.parametrize(
    ("points", "now", "per_s"),
    [
        ([(0.0, 0), (1.0, 2)], 1.0, None),  # two are too few
        ([(0.0, 0), (1.0, 2), (2.0, 4)], 2.0, 2.0),
        ([(0.0, 0), (1.0, 2), (2.0, 4)], 4.0, 2.0),  # the next step may be on its way
        ([(0.0, 0), (1.0, 2), (2.0, 4)], 18.0, 4 / 18),  # nothing has come for long
        ([(0.0, 0), (0.5, 0), (1.0, 2), (1.5, 1), (2.0, 4)], 2.0, 2.0),  # what does not grow says nothing
        ([(0.0, 0), (0.0, 2), (0.0, 4)], 0.0, None),  # all at one moment
        ([(0.0, 0), (300.0, 1), (600.0, 2), (900.0, 3)], 900.0, 1 / 300),  # slow steps
    ],
)
def test_a_rate_is_that_of_the_last_minute(points: list[tuple[float, int]], now: float, per_s: float | None) -> None:
    assert rate(*points).per_s(now) == per_s


def test_what_was_before_the_last_minute_is_forgotten() -> None:
    made = rate(*((float(k), k) for k in range(100)), *((100.0 + k, 100 + 5 * k) for k in range(int(RATE_OVER_S) + 5)))
    assert made.per_s(100.0 + RATE_OVER_S + 4) == pytest.approx(5.0)


def told(*beats: Sequence[RankSample], asked: int = 0) -> dict[str, object]:
    figures = GangFigures(asked)
    for k, readings in enumerate(beats):
        figures.observe(readings, 10 * k, float(k))
    return figures.live(float(len(beats)))


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([], {}),
        ([GpuUse(0)], {"count": 1, "slowed_count": 0}),
        (
            [GpuUse(0, 97, 60, 80, 1980, 64, 600, 700, 16, 5, 60), GpuUse(1, 50, 9, 10, 1980, 0, 500, 700, 16, 5, 71)],
            {
                "count": 2, "busy_percent": 73.5, "busy_min_percent": 50, "memory_used_bytes": 9 << 20,
                "memory_bytes": 10 << 20, "power_w": 1100, "temperature_c": 71, "slowed_count": 1,
            },
        ),
    ],
)  # fmt: skip
def test_gpus_are_summed_up_for_people(uses: list[GpuUse], told: dict[str, object]) -> None:
    assert gpu_figures(uses) == told


def test_a_slow_rank_is_told_with_the_readings_of_its_gpu() -> None:
    """The rank is found by its pace; that its GPU has narrow PCIe is read meanwhile."""
    alerts = GangAlerts(Policy(trends=TrendPolicy(window_s=20.0)), 0.0)
    state, events = RunState(run="r", shape=Shape(1, 1, 2, 1), job="j"), list[Event]()
    for now in range(1, 26):
        for rank, own in ((0, 0.5), (1, 0.95)):
            use = GpuUse(rank, 97, 60, 80, 1980, 0, 600, 700, 16 if rank == 0 else 8, 5, 60)
            pace = Pace(1000 * now, round(1000 * own * now), 10 * now)
            alerts.observe("n1", msgspec.structs.replace(sample(rank), pace=pace, gpu=use), float(now))
        events += alerts.take(state, float(now))
    (seen,) = events
    assert isinstance(seen, AlertSeen) and (seen.alert.rank, seen.alert.gpu) == (1, 1)
    assert seen.alert.signs == ("its PCIe link has 8 lanes, the others' 16",)


def test_nothing_is_told_of_what_nobody_knows() -> None:
    assert told([sample(0)]) == {}


def test_the_lowest_rank_that_tells_a_figure_is_believed() -> None:
    """Megatron's last rank prints the loss, and the others none."""
    assert told([sample(7, loss=2.0)], [sample(0)])["loss"] == 2.0
    assert told([sample(0, loss=1.0)], [sample(7, loss=2.0, grad_norm=0.5)]) == {"loss": 1.0, "grad_norm": 0.5}
    assert (
        told([sample(7, loss=2.0)], [sample(3, loss=1.0)], [sample(7, loss=2.0)], [sample(3, loss=0.5)])["loss"] == 0.5
    )


def test_a_loss_that_is_no_number_is_a_word_in_json() -> None:
    found = told([sample(0, loss=math.nan, grad_norm=math.inf)], [sample(0, loss=math.nan, grad_norm=-math.inf)])
    assert found == {"loss": "NaN", "grad_norm": "-Infinity"}
    assert told([sample(0, loss=math.nan)], [sample(0, loss=2.0)])["loss"] == 2.0


def test_the_end_that_the_user_names_counts_more_than_the_printed_one() -> None:
    assert told([sample(0, total_steps=100), sample(1, total_steps=200)])["total_steps"] == 200
    assert told([sample(0, total_steps=100)], asked=500)["total_steps"] == 500


def test_tokens_have_a_rate_too() -> None:
    found = told(*([sample(0, tokens_count=1000 * k)] for k in range(1, 5)))
    assert (found["tokens"], found["tokens_per_s"], found["steps_per_s"]) == (4000, 1000.0, 10.0)


def nan(since: int, step: int, lasting: bool = False) -> Anomaly:
    return Anomaly(AnomalyKind.NOT_FINITE, since, step, 1 + step - since, "loss", "NaN", lasting=lasting)


def test_what_thousands_of_ranks_see_is_one_event_with_the_first_of_them() -> None:
    seen = GangAnomalies(3, settle_s=1.5)
    for rank in range(4000):
        seen.observe(f"n{rank // 8}", rank, nan(100 if rank == 17 else 101, 105), 10.0)
    assert seen.take(11.4) == []
    assert seen.take(11.5) == [AnomalySeen(3, 17, "n2", nan(100, 105), 4000)]
    for rank in range(4000):
        seen.observe(f"n{rank // 8}", rank, nan(100 if rank == 17 else 101, 150), 12.0)
    assert seen.take(1000.0) == []


def test_that_it_lasts_and_that_it_came_again_is_told_once_each() -> None:
    seen = GangAnomalies(0, settle_s=1.0)
    seen.observe("n0", 0, nan(5, 5), 0.0)
    assert [one.anomaly.lasting for one in seen.take(1.0)] == [False]  # type: ignore[union-attr]
    seen.observe("n1", 1, nan(5, 9, lasting=True), 2.0)
    assert seen.take(3.0) == [AnomalySeen(0, 0, "n0", nan(5, 5, lasting=True), 2)]
    seen.observe("n0", 0, nan(500, 500), 4.0)
    seen.observe("n1", 1, nan(5, 9, lasting=True), 4.5)  # has not come there yet
    assert seen.take(9.0) == [AnomalySeen(0, 0, "n0", nan(500, 500), 1)]
    assert seen.take(99.0) == []


def test_what_the_first_supervisor_told_the_second_one_ends() -> None:
    """Neither is told again what the journal knows, and it does not stay open for ever."""
    trends = TrendPolicy(window_s=100.0)
    known = Alert(AlertKind.MEMORY, "n0", 1, in_s=600.0, per_s=1e7)
    state = RunState("r", Shape(1, 1, 2, 1), attempt=Attempt(3), alerts=(SeenAlert(3, known, 1.0, 1.0),))
    seen = GangAlerts(Policy(trends=trends), 0.0)
    assert seen.due_at == 20.0
    assert seen.take(state, 20.0) == []
    grows = sample(1)
    grows = msgspec.structs.replace(grows, growths=(FillTrend("memory", 600.0, 1e7),), pace=Pace(1, 1, 1))
    seen.observe("n0", grows, 30.0)
    assert seen.take(state, 40.0) == []
    assert seen.take(state, 130.0) == [AlertSeen(3, known, is_over=True)]


def test_what_a_rank_found_is_told_once_though_each_heartbeat_repeats_it() -> None:
    runs = RunState("r", Shape(1, 1, 2, 1), phase=Phase.RUNNING, attempt=Attempt(0, step=5))
    progress = GangProgress(Policy(), 0.0)
    progress.begin(0, 0.0, 0.0)
    hello = Hello("n0", "j", "b", "i", 1, 1, 0, (), PeerAddress("n0", "x", "k"))

    def told(checks: SelfChecks, now: float) -> list[object]:
        found = msgspec.structs.replace(sample(0), checks=checks)
        row = Row(hello, now, now, attempt=0)
        row.take((found, sample(1)))
        progress.observe(row, now)
        return [one for one in progress.tick(runs, now) if isinstance(one, SelfCheckFailed)]

    first, second = (SelfChecks(Divergence(step, 0, "w", 1, 3, 2, (1,))) for step in (10, 20))
    assert told(first, 1.0) == [SelfCheckFailed(0, 0, "n0", first)]
    assert told(first, 2.0) == []
    assert told(second, 3.0) == [SelfCheckFailed(0, 0, "n0", second)]
    progress.begin(1, 4.0, 4.0)
    assert progress.tick(runs, 5.0) == []


def test_the_time_of_a_step_is_known_of_a_run_that_races_and_told_once_if_it_is_waited_for() -> None:
    policy = Policy(race_stragglers=True, trends=TrendPolicy(window_s=100.0))
    hello = Hello("n0", "j", "b", "i", 1, 1, 0, (), PeerAddress("n0", "x", "k"))

    def stepping(progress: GangProgress, attempt: int, state: RunState) -> list[object]:
        progress.begin(attempt, 0.0, 0.0)
        told: list[object] = []
        for now in map(float, range(120)):
            stands = msgspec.structs.replace(sample(0), step=2 * int(now))
            row = Row(hello, now, now, attempt=attempt)
            row.take((stands,))
            progress.observe(row, now)
            if progress.next_at(state) <= now:
                told += [one for one in progress.tick(state, now) if isinstance(one, StepsTimed)]
        return told

    runs = RunState("r", Shape(1, 1, 1, 1), phase=Phase.RUNNING, attempt=Attempt(0))
    unasked = GangProgress(replace(policy, race_stragglers=False), 0.0)
    assert stepping(unasked, 0, runs) == []
    assert unasked.step_time is None
    progress = GangProgress(policy, 0.0)
    assert stepping(progress, 0, runs) == []
    before = StepTime(0.5, 200)
    assert progress.step_time == before
    race = Races(open=Race("n1", "n0", (0,), 0, before, 0.3))
    assert stepping(progress, 1, replace(runs, attempt=Attempt(1), race=race)) == [StepsTimed(1, 0.5, 200)]
    progress.end()
    assert progress.step_time is None
