"""The interval against published and simulated values, and what bounds it."""

from __future__ import annotations

import math

import pytest

from gangrun.core.checkpoints.cadence import cadence, efficiency, lambert_w0, observed_mtbf_s, optimum_s

HOUR, MINUTE = 3600.0, 60.0
# mean time between failures, stall, restart, exact optimum in minutes, efficiency there, efficiency at 60 minutes
TABLE = [
    (48 * HOUR, 1, 300, 9.79, 0.9949, 0.9876),
    (48 * HOUR, 30, 300, 53.33, 0.9798, 0.9797),
    (48 * HOUR, 120, 300, 106.00, 0.9615, 0.9557),
    (24 * HOUR, 300, 600, 116.69, 0.9126, 0.8962),
    (6 * HOUR, 300, 600, 56.71, 0.8194, 0.8192),
    (10000, 1, 300, 2.35, 0.9568, 0.8061),
    (10000, 30, 300, 12.58, 0.8973, 0.7984),
    (1.8 * HOUR, 30, 300, 10.06, 0.8658, 0.7063),
    (14 * MINUTE, 5, 120, 1.47, 0.7755, 0.0513),
    (15 * MINUTE, 300, 600, 9.17, 0.1997, 0.0273),
]


@pytest.mark.parametrize(("mtbf_s", "stall_s", "restart_s", "best_min", "at_best", "at_hour"), TABLE)
def test_the_optimum_is_exact(
    mtbf_s: float, stall_s: float, restart_s: float, best_min: float, at_best: float, at_hour: float
) -> None:
    best_s = optimum_s(stall_s, mtbf_s)
    assert best_s == pytest.approx(best_min * MINUTE, rel=0.005)
    assert efficiency(best_s, stall_s, mtbf_s, restart_s) == pytest.approx(at_best, abs=3e-4)
    assert efficiency(HOUR, stall_s, mtbf_s, restart_s) == pytest.approx(at_hour, abs=4e-4)
    for off in (0.98, 1.02):  # nothing beside it is better
        assert efficiency(best_s * off, stall_s, mtbf_s, restart_s) < efficiency(best_s, stall_s, mtbf_s, restart_s)


def test_lamberts_w_inverts_what_it_says_it_does() -> None:
    for i in range(1, 2000):
        w = -1 + i / 2000
        assert lambert_w0(w * math.exp(w)) == pytest.approx(w, rel=1e-6, abs=1e-9)
    assert lambert_w0(-1 / math.e) == pytest.approx(-1, abs=1e-7) and lambert_w0(0) == 0
    for outside in (0.1, -1, math.nan):
        with pytest.raises(ValueError, match="from -1/e to 0"):
            lambert_w0(outside)


def test_between_the_formulas_nothing_jumps() -> None:
    for ratio in (1e-10, 1e-9, 1.01e-9, 1e-7, 2e-5, 2.6e-5, 1e-4):
        exact = optimum_s(ratio, 1.0)
        daly = math.sqrt(2 * ratio) * (1 + math.sqrt(ratio / 2) / 3 + ratio / 18) - ratio
        assert exact == pytest.approx(daly, rel=1e-3)
    for stall_s, mtbf_s in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="positive"):
            optimum_s(stall_s, mtbf_s)


def test_the_interval_is_bounded_and_says_so() -> None:
    plain = cadence(30, 60, 48 * HOUR)
    assert plain.interval_s == pytest.approx(53.33 * MINUTE, rel=0.005) and "fails every 48.0 h" in plain.reason
    slow = cadence(0.1, 200, 2 * HOUR)
    assert slow.interval_s == 400 and "raised to 400 s: a save takes 200.0 s to write" in slow.reason
    rare = cadence(600, 60, 10000 * HOUR)
    assert rare.interval_s == 4 * HOUR and "lowered to the most" in rare.reason
    assert cadence(0, 0, HOUR).interval_s == 10


def test_failures_shorten_what_is_expected() -> None:
    assert observed_mtbf_s(0, 0) == 24 * HOUR
    assert observed_mtbf_s(24 * HOUR, 3) == 12 * HOUR
    assert observed_mtbf_s(-5, -1) == 24 * HOUR
