"""The rules over what a rank reports of its loss and gradient norm, as tables."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from gangrun.core.evidence import Anomaly, AnomalyKind
from gangrun.core.recovery.loss_rules import (
    ALERT_COUNT,
    CALM_COUNT,
    FLAT_COUNT,
    KNOWN_MIN_COUNT,
    LASTING_COUNT,
    NORM_ALERT_COUNT,
    NORM_NOT_FINITE_COUNT,
    NOT_FINITE_LASTING_COUNT,
    LossWatch,
)

NAN, INF = math.nan, math.inf


def healthy(count: int, seed: int = 1) -> list[float]:
    """A loss that falls, with noise and a hard batch now and then."""
    chance = random.Random(seed)
    return [
        2.0 + 8.0 * math.exp(-step / 300) + chance.gauss(0.0, 0.1) + (3.0 if chance.random() < 0.01 else 0.0)
        for step in range(count)
    ]


def seen(losses: Iterable[float | None], norms: Iterable[float | None] | None = None) -> list[Anomaly]:
    watch, losses = LossWatch(), list(losses)
    for step, (loss, norm) in enumerate(zip(losses, norms or [None] * len(losses), strict=True)):
        watch.report(step, loss, norm)
    return list(watch.anomalies)


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_shows_nothing(seed: int) -> None:
    chance = random.Random(seed)
    norms = [chance.lognormvariate(0.0, 0.5) for _ in range(5000)]
    assert seen(healthy(5000, seed), norms) == []


@pytest.mark.parametrize(
    ("kind", "before", "bad", "alert_count", "lasting_count"),
    [
        (AnomalyKind.NOT_FINITE, [2.0, 1.9], NAN, 1, NOT_FINITE_LASTING_COUNT),
        (AnomalyKind.NOT_FINITE, [], -INF, 1, NOT_FINITE_LASTING_COUNT),
        (AnomalyKind.BLOW_UP, healthy(400), 40.0, ALERT_COUNT, LASTING_COUNT),
        (AnomalyKind.BLOW_UP, [2.0 + k % 2 / 1000 for k in range(100)], 2.5, ALERT_COUNT, LASTING_COUNT),
    ],
)
def test_each_rule_of_the_loss_alerts_and_lasts_from_its_bound_on(
    kind: AnomalyKind, before: list[float], bad: float, alert_count: int, lasting_count: int
) -> None:
    def after(count: int) -> list[Anomaly]:
        return seen([*before, *(bad + k / 10**6 for k in range(count))])

    assert after(alert_count - 1) == []
    (first,) = after(alert_count)
    assert (first.kind, first.since_step, first.count, first.lasting) == (kind, len(before), alert_count, False)
    assert not after(lasting_count - 1)[0].lasting
    assert after(lasting_count)[0].lasting
    assert after(lasting_count)[0].step == len(before) + lasting_count - 1


@pytest.mark.parametrize(
    ("before", "bad", "alert_count", "lasting_count", "kind"),
    [
        ([1.0] * 100, 10.5, NORM_ALERT_COUNT, LASTING_COUNT, AnomalyKind.GRADIENT),
        ([1.0] * 100, INF, NORM_NOT_FINITE_COUNT, NORM_NOT_FINITE_COUNT, AnomalyKind.NOT_FINITE),
    ],
)
def test_the_rules_of_the_gradient_norm(
    before: list[float], bad: float, alert_count: int, lasting_count: int, kind: AnomalyKind
) -> None:
    def after(count: int) -> list[Anomaly]:
        norms = [*before, *[bad] * count]
        return seen([None] * len(norms), norms)

    assert after(alert_count - 1) == []
    assert [(one.kind, one.since_step, one.what) for one in after(alert_count)] == [(kind, 100, "gradient norm")]
    assert after(lasting_count)[0].lasting


def test_steps_that_a_loss_scaler_leaves_out_are_no_anomaly() -> None:
    assert seen([None] * 60, [INF] * (NORM_NOT_FINITE_COUNT - 1) + [1.0] * (61 - NORM_NOT_FINITE_COUNT)) == []


@pytest.mark.parametrize("norms", [[0.0] * 300, [0.0] * 299 + [1.0], [9.0] * (KNOWN_MIN_COUNT - 1) + [900.0]])
def test_a_norm_is_compared_with_one_that_is_known(norms: list[float]) -> None:
    assert seen([None] * len(norms), norms) == []


def test_a_loss_that_is_the_same_to_the_last_bit_for_long_is_told_and_no_reason_to_act() -> None:
    assert seen([2.0] * FLAT_COUNT) == []
    (flat,) = seen([2.0] * 10 * FLAT_COUNT)
    assert (flat.kind, flat.value, flat.lasting) == (AnomalyKind.FLAT, "2", False)
    assert seen([2.0 + k % 2 / 10**9 for k in range(10 * FLAT_COUNT)]) == []


def test_a_single_bad_batch_is_no_blow_up_and_the_window_does_not_take_it_in() -> None:
    losses = healthy(400)
    for at in range(100, 400, 10):
        losses[at] = 1000.0
    assert seen(losses) == []
    assert seen([*losses, *[60.0 + k for k in range(ALERT_COUNT)]])[0].usual.startswith("median ")


def known(losses: Iterable[float]) -> LossWatch:
    watch = LossWatch()
    for step, loss in enumerate(losses):
        watch.report(step, loss, 1.0)
    return watch


def bad_from(watch: LossWatch, first_step: int, loss: float = 1e9, norm: float = 1e9) -> list[tuple[AnomalyKind, int]]:
    for step in range(first_step, first_step + 3):
        watch.report(step, 2.0, 1.0)
    for step in range(first_step + 3, first_step + 40):
        watch.report(step, loss, norm)
    return [(one.kind, one.since_step) for one in watch.anomalies]


def test_what_was_usual_up_to_the_resume_point_is_so_in_the_next_attempt() -> None:
    """Else a batch that blows the loss up again soon after a rollback is what is usual from then on."""
    before = known([*healthy(400), *[1e9] * 30])
    assert bad_from(LossWatch(before, 379), 380) == [(AnomalyKind.BLOW_UP, 383), (AnomalyKind.GRADIENT, 383)]
    assert bad_from(LossWatch(before, 379), 379) == [(AnomalyKind.BLOW_UP, 382), (AnomalyKind.GRADIENT, 382)]
    third = LossWatch(LossWatch(before, 379), 379)  # the second one reported nothing
    assert bad_from(third, 380) == [(AnomalyKind.BLOW_UP, 383), (AnomalyKind.GRADIENT, 383)]


def test_nothing_is_usual_far_before_where_it_was_known_or_if_the_script_begins_elsewhere() -> None:
    before = known(healthy(400))
    assert bad_from(LossWatch(before, 220), 221) == [], "20 reports of the window are from before step 221"
    assert bad_from(LossWatch(before, -1), 0) == []
    assert bad_from(LossWatch(before, 379), 0) == [], "the loss of a script that begins anew is high again"
    assert bad_from(LossWatch(None, 379), 380) == []


def test_nan_at_every_second_step_is_one_anomaly_and_nan_after_a_calm_another() -> None:
    (often,) = seen([NAN if step % 2 else 2.0 + step / 1000 for step in range(100)])
    assert (often.since_step, often.step, often.count, often.lasting) == (1, 99, 50, False)
    calm = [2.0 + step / 1000 for step in range(CALM_COUNT)]
    (later,) = seen([NAN, NAN, NAN, *calm, NAN])
    assert (later.since_step, later.count, later.lasting) == (CALM_COUNT + 3, 1, False)
    (same,) = seen([NAN, NAN, NAN, *calm[1:], NAN])
    assert (same.since_step, same.count, same.lasting) == (0, 4, True)


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, "Infinity"), (-INF, "-Infinity")])
def test_what_is_no_number_has_a_name(value: float, word: str) -> None:
    assert seen([value])[0].value == word
