"""The light world of ``gangrun simulate``: it agrees with the formula, counts each millisecond, and repeats itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest

from gangrun.core.model import Rung
from gangrun.planning.accounts import TimeUse, share_of_cycles
from gangrun.planning.cadence import cadence, optimum_s, useful_share
from gangrun.sim.failure_tables import (
    DAY_S,
    LLAMA3,
    MS,
    TABLES,
    FailureCause,
    FailureKind,
    FailureTable,
    RecoverySeconds,
    Strike,
    strikes_of,
)
from gangrun.sim.forecast import Ground, LightWorld, Tally, Way, compared

AT_ONCE = RecoverySeconds(*[0.0] * 11)
HOUR_S = 3600.0


def table(*causes: FailureCause, recovery: RecoverySeconds = AT_ONCE, wait_s: float = 0.0) -> FailureTable:
    return FailureTable("played", "a test", causes, queue_wait_s=wait_s, free_nodes_share=1.0, recovery=recovery)


def ground(played: FailureTable, nodes: int = 4, span_s: float = 10 * DAY_S, stall_s: float = 1.0) -> Ground:
    return Ground(played, nodes, 8, span_s, stall_s, 0.0, 3)


def told(strikes: list[Strike], spares: int = 0, recovery: RecoverySeconds = AT_ONCE, span_s: float = DAY_S) -> Tally:
    """What became of a day in which exactly these failures came: four nodes, a save each hour, no stall."""
    played = table(FailureCause("any", FailureKind.RANK, 1.0), recovery=recovery)
    world = LightWorld(ground(played, span_s=span_s, stall_s=0.0), Way("played", spares, HOUR_S), 12, "seed")
    return world.run(strikes, round(span_s * MS))


def strike(at_s: float, node: int, kind: FailureKind, lasts_s: float = DAY_S, nodes: int = 1) -> Strike:
    return Strike(round(at_s * MS), node, FailureCause(kind.value, kind, 1.0, nodes_count=nodes), round(lasts_s * MS))


# Mean time between failures in hours, seconds of a save's pause, seconds until the ranks step again
REFERENCE = (
    (48, 1, 300), (48, 30, 300), (48, 120, 300), (24, 300, 600), (6, 300, 600), (2.78, 1, 300), (2.78, 30, 300),
    (1.8, 30, 300), (14 / 60, 5, 120), (0.25, 300, 600),
)  # fmt: skip


def replayed(failures_s: Sequence[float], span_s: float, interval_s: float, stall_s: float, recovery_s: float) -> float:
    """The useful share, counted by hand: what was saved before each failure, and all that was trained at the end."""
    useful_s = began_s = 0.0
    for at_s in (*failures_s, span_s):
        trained_s = at_s - began_s - recovery_s
        if trained_s >= 0:
            rounds_count, rest_s = divmod(trained_s, interval_s + stall_s)
            useful_s += rounds_count * interval_s + (min(interval_s, rest_s) if at_s == span_s else 0.0)
        began_s = at_s
    return useful_s / span_s


@pytest.mark.parametrize(("mtbf_h", "stall_s", "recovery_s"), REFERENCE)
@pytest.mark.parametrize("hourly", [False, True])
def test_the_real_decisions_cost_what_a_count_by_hand_and_the_formula_say(
    mtbf_h: float, stall_s: float, recovery_s: float, hourly: bool
) -> None:
    """The same failures for both; the formula needs more of them, or it agrees by chance only."""
    mtbf_s, nodes, count = mtbf_h * HOUR_S, 2, 200
    interval_s = HOUR_S if hourly else optimum_s(stall_s, mtbf_s)
    drawn = random.Random(1)
    many = list(accumulate(drawn.expovariate(1 / mtbf_s) for _ in range(60_000)))
    by_hand = replayed(many, many[-1] + 1.0, interval_s, stall_s, recovery_s)
    assert by_hand == pytest.approx(useful_share(interval_s, stall_s, recovery_s, mtbf_s), abs=0.004)
    played = table(
        FailureCause("bug", FailureKind.RANK, 1000 * DAY_S / mtbf_s / nodes),
        recovery=replace(AT_ONCE, first_step=recovery_s),
    )
    span_s = count * mtbf_s
    strikes = strikes_of(played, nodes, round(span_s * MS), "s")
    assert len(strikes) > 0.9 * count
    world = LightWorld(ground(played, nodes, span_s, stall_s), Way("played", 0, interval_s), nodes, "s")
    useful = world.run(strikes, round(span_s * MS)).uses[TimeUse.USEFUL] / MS / span_s
    by_hand = replayed([one.at_ms / MS for one in strikes], span_s, interval_s, stall_s, recovery_s)
    pauses = (
        mtbf_s <= 2 * interval_s or mtbf_s < HOUR_S
    )  # before each save comes a failure: gangrun pauses between tries
    assert (by_hand - 0.05 < useful < by_hand) if pauses else (useful == pytest.approx(by_hand, abs=0.0002))


@pytest.mark.parametrize("name", list(TABLES))
def test_every_millisecond_is_in_one_class_and_the_same_seed_gives_the_same(name: str) -> None:
    played = TABLES[name]
    where = Ground(played, 96, 8, 40 * DAY_S, 0.5, 20.0, 7)
    interval_s = cadence(0.5, 20.0, played.mtbf_s(96)).interval_s
    ways = [Way("spares", 2, interval_s), Way("none", 0, interval_s), Way("hand", 0, HOUR_S, by_hand=True)]
    found = compared(where, ways, 2)
    for one in found:
        assert one.whole_s == 2 * 40 * DAY_S, "not a millisecond more or less"
        assert sum(one.shares.values()) == pytest.approx(1.0, abs=1e-12)
        assert 0.5 < one.useful.share < 1
        assert one.useful.share == pytest.approx(one.shares[TimeUse.USEFUL.value], abs=1e-9), "cycles have all of it"
    assert compared(where, ways, 2) == found
    assert compared(replace(where, seed=8), ways, 2) != found
    assert found[0].useful.share > found[2].useful.share, "a person is slower"


def test_what_the_paper_counted_comes_out_of_the_table() -> None:
    assert LLAMA3.per_day(2048) * 54 == pytest.approx(419)
    counts = [len(strikes_of(LLAMA3, 2048, round(54 * DAY_S * MS), str(seed))) for seed in range(20)]
    assert sum(counts) / 20 == pytest.approx(419, abs=5 * (419 / 20) ** 0.5)


def test_lemons_fail_more_often_and_the_mean_stays() -> None:
    played = replace(LLAMA3, lemon_share=0.05, lemon_factor=50.0)
    strikes = strikes_of(played, 200, round(2000 * DAY_S * MS), "lemons")
    assert len(strikes) == pytest.approx(played.per_day(200) * 2000, rel=0.1)
    of_ten = sorted((sum(one.node == node for one in strikes) for node in range(200)), reverse=True)[:10]
    assert sum(of_ten) / len(strikes) == pytest.approx(0.05 * 50 / (0.05 * 50 + 0.95), abs=0.05)


def test_each_kind_of_failure_goes_its_own_way_through_the_real_decisions() -> None:
    took = RecoverySeconds(notice_node=2.0, notice_device=1.0, notice_rank=0.5, notice_hang=30.0, stop=3.0)
    half = 12.5 * HOUR_S + 10  # half an hour after a save, and the start-up
    restarted = told([strike(half, 1, FailureKind.RANK)], recovery=took)
    assert restarted.rungs == {Rung.RESTART: 1}
    assert restarted.uses[TimeUse.LOST] == pytest.approx(1800 * MS, abs=20 * MS)
    assert restarted.uses[TimeUse.NOTICING] == 500
    assert told([strike(half, 1, FailureKind.HANG)], recovery=took).uses[TimeUse.NOTICING] == 31_000, "and stacks"
    swapped = told([strike(half, 1, FailureKind.NODE)], spares=1, recovery=took)
    assert swapped.rungs == {Rung.SWAP: 1}
    assert swapped.excluded == {"n00001"}
    assert swapped.uses[TimeUse.NOTICING] == 2000
    assert swapped.uses[TimeUse.STOPPING] == 3000
    assert told([strike(half, 1, FailureKind.DEVICE)], recovery=took).rungs == {Rung.REQUEUE: 1}
    saved = told([strike(half, 1, FailureKind.WEAK)], spares=1, recovery=took)
    assert saved.rungs == {Rung.SWAP: 1}
    assert saved.uses[TimeUse.LOST] == 0, "the ranks save before they are stopped"


def test_one_switch_takes_all_of_its_nodes_and_another_job_goes_on_without_them() -> None:
    found = told([strike(HOUR_S, 5, FailureKind.OUTAGE, 600.0, nodes=4)])
    assert found.rungs == {}, "nobody trains behind that switch"
    found = told([strike(HOUR_S, 1, FailureKind.OUTAGE, 600.0, nodes=2)], spares=1)
    assert found.rungs == {Rung.REQUEUE: 1}
    assert found.causes == {"outage": 1}


def test_training_waits_for_storage_and_loses_nothing() -> None:
    found = told([strike(HOUR_S, 0, FailureKind.STORAGE, 600.0)])
    assert (found.uses[TimeUse.WAITING], found.uses[TimeUse.LOST], found.attempts_count) == (600 * MS, 0, 1)
    both = told([strike(HOUR_S, 0, FailureKind.STORAGE, 600.0), strike(HOUR_S + 60, 1, FailureKind.RANK)])
    assert both.uses[TimeUse.LOADING] == 540 * MS, "nothing can be sealed before it is back"


def test_a_node_that_is_repaired_is_in_a_later_job_again() -> None:
    hits = [strike(k * 2 * DAY_S + HOUR_S, k % 12, FailureKind.NODE, HOUR_S) for k in range(1, 40)]
    found = told(hits, span_s=90 * DAY_S)
    assert found.rungs.keys() == {Rung.REQUEUE}
    assert found.uses[TimeUse.QUEUE] < HOUR_S * MS, "twelve nodes of which one is away are enough for ever"


def test_a_run_that_the_core_gives_up_is_resumed_by_a_person() -> None:
    again = [strike(HOUR_S + 5 * k, k % 4, FailureKind.RANK) for k in range(60)]
    found = told(again, recovery=replace(AT_ONCE, first_step=60.0))
    assert found.rungs == {Rung.END: 1}, "each came before the first step"
    assert found.uses[TimeUse.QUEUE] >= 1800 * MS


def test_how_sure_a_share_is() -> None:
    alike = share_of_cycles([(9.0, 10.0)] * 20)
    assert (alike.share, alike.low, alike.high) == (0.9, 0.9, 0.9)
    apart = share_of_cycles([(9.0, 10.0), (5.0, 10.0)] * 10)
    assert apart.share == 0.7
    assert apart.low is not None
    assert apart.low == pytest.approx(0.7 - 1.96 * 0.2 / 20**0.5 * (20 / 19) ** 0.5)
    assert share_of_cycles([(9.0, 10.0)] * 9).low is None
    assert share_of_cycles([]).share == 0
