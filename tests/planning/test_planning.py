"""How often to save, and what failures cost: against published figures, brute force and each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.planning.cadence import (
    cadence,
    expected_mtbf_s,
    lambert_w0,
    mean_lost_s,
    observed_mtbf_s,
    optimum_s,
    useful_share,
)
from gangrun.planning.plan import (
    OPTIMIZER_NUMBERS,
    WEIGHTS_BYTES,
    Scenario,
    checkpoint_bytes,
    forecast,
    mtbf_at,
    no_failure,
    spares_needed,
    usual_stall_s,
    usual_write_bytes_per_s,
)

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
    assert useful_share(best_s, stall_s, restart_s, mtbf_s) == pytest.approx(at_best, abs=3e-4)
    assert useful_share(HOUR, stall_s, restart_s, mtbf_s) == pytest.approx(at_hour, abs=4e-4)
    for off in (0.98, 1.02):  # nothing beside it is better
        assert useful_share(best_s * off, stall_s, restart_s, mtbf_s) < useful_share(best_s, stall_s, restart_s, mtbf_s)


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


@given(st.floats(0.1, 600), st.floats(600, 30 * 24 * HOUR), st.floats(0, 1800))
def test_the_optimum_is_what_brute_force_finds(stall_s: float, mtbf_s: float, recovery_s: float) -> None:
    best_s = optimum_s(stall_s, mtbf_s)
    tried = [best_s * 2 ** (k / 400) for k in range(-1600, 1601)]
    found = max(tried, key=lambda at: useful_share(at, stall_s, recovery_s, mtbf_s))
    # near its top the share is flat to the last digit that a float has: compare what is reached, then the place
    top = useful_share(found, stall_s, recovery_s, mtbf_s)
    assert useful_share(best_s, stall_s, recovery_s, mtbf_s) >= top * (1 - 1e-9)
    assert best_s == pytest.approx(found, rel=5e-3)


def test_what_a_failure_costs_agrees_with_a_sum_over_its_moments() -> None:
    for interval_s, mtbf_s in ((HOUR, 48 * HOUR), (900, 48 * HOUR), (HOUR, 600.0), (1.0, 1e7)):
        parts = 20_000  # a failure comes somewhere in a round; the earlier moments are the likelier ones
        moments = [(k + 0.5) / parts * interval_s for k in range(parts)]
        weights = [math.exp(-at / mtbf_s) for at in moments]
        mean = math.fsum(at * w for at, w in zip(moments, weights, strict=True)) / math.fsum(weights)
        assert mean_lost_s(interval_s, mtbf_s) == pytest.approx(mean, rel=1e-3)
    assert mean_lost_s(1e9, 60) == 60  # it fails long before a save, so all that was done since is lost
    assert useful_share(1e9, 60, 0, 60) == 0


def test_more_nodes_fail_more_often() -> None:
    assert expected_mtbf_s(1) == expected_mtbf_s(0) == expected_mtbf_s(200) == 24 * HOUR
    assert expected_mtbf_s(2048) == pytest.approx(3.09 * HOUR, rel=0.01)  # Llama 3: 419 in 54 days


# ---- figures that are often quoted -----------------------------------------------------------------------------------


def scenario(**changed: object) -> Scenario:
    usual: dict[str, object] = {
        "gpus_count": 1024, "gpus_per_node": 8, "mtbf_s": 48 * HOUR, "train_s": 720 * HOUR, "state_bytes": 560e9,
        "stall_s": 1.0, "persist_s": 0.0, "noticing_s": 0.0, "restart_s": 300.0, "by_hand_s": 1800.0,
        "repair_s": 24 * HOUR, "node_wait_s": 1800.0, "gpu_hour_price": 3.0,
    }  # fmt: skip
    return Scenario(**(usual | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interval_s", "lost_min", "month_h", "share"), [(HOUR, 34.9, 8.72, 0.988), (900, 12.49, 3.12, 0.996)]
)
def test_a_failure_costs_34_9_minutes_with_hourly_saves_and_12_5_with_four(
    interval_s: float, lost_min: float, month_h: float, share: float
) -> None:
    """1,024 GPUs, a failure each 48 h, 5 minutes for the restart, saves that cost nothing."""
    lost_s = mean_lost_s(interval_s, 48 * HOUR) + 300
    assert lost_s / MINUTE == pytest.approx(lost_min, abs=0.05)
    assert 720 / 48 * lost_s / HOUR == pytest.approx(month_h, abs=0.01)
    assert useful_share(interval_s, 0, 300, 48 * HOUR) == pytest.approx(share, abs=5e-4)


def test_49_hours_at_1024_gpus_is_the_rate_of_llama_3() -> None:
    gpu_mtbf_s = 54 * 24 * HOUR * 16384 / 419
    assert gpu_mtbf_s / HOUR == pytest.approx(50_676, abs=10)
    assert mtbf_at(gpu_mtbf_s, 1024) / HOUR == pytest.approx(49, abs=0.6)
    assert mtbf_at(gpu_mtbf_s, 16384) / HOUR == pytest.approx(3.09, abs=0.01)


def test_195_hours_at_512_gpus_is_half_that_rate() -> None:
    assert mtbf_at(100_000 * HOUR, 512) / HOUR == pytest.approx(195, abs=0.5)
    assert mtbf_at(100_000 * HOUR, 2048) / HOUR == pytest.approx(49, abs=0.5)  # four times as many: not 1,024
    assert mtbf_at(54 * 24 * HOUR * 16384 / 419, 512) / HOUR == pytest.approx(99, abs=0.5)


def test_63_percent_of_days_see_a_failure_at_1000_gpus() -> None:
    """Each GPU fails on one day of a thousand."""
    assert 1 - no_failure(24 * HOUR, mtbf_at(1000 * 24 * HOUR, 1000)) == pytest.approx(0.632, abs=0.001)
    assert pytest.approx(0.632, abs=0.001) == 1 - 0.999**1000


def test_95_percent_at_one_node_failure_an_hour() -> None:
    found = forecast(scenario(mtbf_s=HOUR, noticing_s=5.0, restart_s=60.0, persist_s=5.0))
    assert 0.95 < found.policies[-1].useful_share < 0.96
    best_s = optimum_s(1.0, HOUR)
    assert useful_share(best_s, 1.0, 90, HOUR) > 0.95 > useful_share(best_s, 1.0, 105, HOUR)
    assert useful_share(best_s, 0.0, 600, HOUR) < 0.85  # with the 10 minutes after which a collective gives up


def test_560_gb_is_what_adamw_keeps_of_70_billion_parameters() -> None:
    assert 70e9 * OPTIMIZER_NUMBERS["adamw"] * 4 == 560e9  # the weights are not in it
    assert checkpoint_bytes(70e9, "adamw", "mixed") == 980e9
    assert checkpoint_bytes(40e9, "adamw", "mixed") == 560e9  # whole, of 40 billion


@pytest.mark.parametrize("optimizer", OPTIMIZER_NUMBERS)
@pytest.mark.parametrize("precision", WEIGHTS_BYTES)
def test_a_checkpoint_has_at_least_its_weights(optimizer: str, precision: str) -> None:
    assert WEIGHTS_BYTES[precision] <= checkpoint_bytes(1, optimizer, precision) <= WEIGHTS_BYTES[precision] + 8


def test_1024_gpus_at_3_dollars_cost_3072_an_hour() -> None:
    found = forecast(scenario())
    assert found.gpus_cost_per_h == 3072
    best = found.policies[-1]
    assert best.finish_s is not None and best.downtime_cost is not None and best.cost is not None
    extra = found.spares_count / 128
    assert best.cost == pytest.approx(best.finish_s / HOUR * 3072 * (1 + extra))
    assert best.downtime_cost == pytest.approx((best.finish_s / HOUR - 720) * 3072 * (1 + extra))


def by_sampling(nodes_count: int, spares_count: int, away: float) -> float:
    """P(no more than the spares are away), by plain multiplication."""
    count, term, total = nodes_count + spares_count, (1 - away) ** (nodes_count + spares_count), 0.0
    for k in range(spares_count + 1):
        total += term
        term *= (count - k) / (k + 1) * away / (1 - away)
    return total


@pytest.mark.parametrize("nodes_count", [1, 8, 128, 600])
@pytest.mark.parametrize("repair_s", [4 * HOUR, 24 * HOUR, 7 * 24 * HOUR])
def test_as_many_spares_as_the_binomial_distribution_asks_for(nodes_count: int, repair_s: float) -> None:
    node_mtbf_s = 6334 * HOUR
    away = repair_s / (node_mtbf_s + repair_s)
    found = spares_needed(nodes_count, node_mtbf_s, repair_s)
    assert by_sampling(nodes_count, found, away) >= 0.99
    assert found == 0 or by_sampling(nodes_count, found - 1, away) < 0.99


def test_5_to_10_percent_of_spares_are_for_few_nodes_or_long_repairs() -> None:
    week, node_mtbf_s = 7 * 24 * HOUR, 6334 * HOUR
    assert spares_needed(128, node_mtbf_s, week) / 128 == pytest.approx(0.07, abs=0.02)
    assert spares_needed(32, node_mtbf_s, 3 * 24 * HOUR) / 32 == pytest.approx(0.06, abs=0.01)
    assert spares_needed(128, node_mtbf_s, 24 * HOUR) / 128 < 0.03
    assert spares_needed(2048, node_mtbf_s, 24 * HOUR) / 2048 < 0.01
    assert spares_needed(5, 1.0, 0.0) == 0
    assert spares_needed(5, 1.0, 1e6) == 5  # no number would do


# ---- the whole forecast ----------------------------------------------------------------------------------------------


def test_each_policy_is_a_row_and_the_best_one_wins() -> None:
    found = forecast(scenario(interval_s=7200.0))
    names = [one.name for one in found.policies]
    assert names == [
        "by hand, every hour", "gangrun, every hour", "gangrun, every 15 min",
        "gangrun, --interval", "gangrun, best, no spares", "gangrun, best",
    ]  # fmt: skip
    by_name = dict(zip(names, found.policies, strict=True))
    best = by_name["gangrun, best"]
    assert best.useful_share == max(one.useful_share for one in found.policies) == pytest.approx(0.9949, abs=0.0005)
    assert by_name["gangrun, best, no spares"].recovery_s == pytest.approx(300 + 1800)
    assert 300 <= best.recovery_s < 300 + 0.02 * 1800  # with spares for 99 % of moments few failures wait for a node
    assert best.finish_s == pytest.approx(720 * HOUR / best.useful_share)
    assert best.failures_count == pytest.approx(720 / 48 / best.useful_share)
    assert found.failures_count == pytest.approx(15) and found.no_failure_run == pytest.approx(math.exp(-15))
    assert found.no_failure_day == pytest.approx(math.exp(-0.5))
    assert found.best.interval_s == pytest.approx(9.79 * MINUTE, rel=0.005)


def test_a_training_that_never_ends_has_no_cost() -> None:
    never = forecast(scenario(mtbf_s=10.0)).policies[0]
    assert (never.finish_s, never.failures_count, never.downtime_cost, never.cost) == (None, None, None, None)


def test_with_as_many_spares_as_were_asked_for() -> None:
    assert forecast(scenario()).spares_count == forecast(scenario()).spares_needed_count == 3
    none = forecast(scenario(spares_count=0))
    assert none.spares_count == 0 and none.spares_needed_count == 3
    assert "no spares" not in " ".join(one.name for one in none.policies)
    assert none.policies[-1].recovery_s == pytest.approx(2100)
    assert scenario(gpus_count=9).nodes_count == 2


def test_what_nobody_measured_grows_with_the_machine() -> None:
    assert usual_stall_s(560e9, 1024) == pytest.approx(0.1) and usual_stall_s(560e9, 8) == pytest.approx(7.0)
    assert usual_write_bytes_per_s(2) == 4e9 and usual_write_bytes_per_s(128) == 50e9
