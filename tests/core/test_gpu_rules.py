"""Which GPU slows the training down, and which have little to do: played GPUs, on a clock in the hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy
from gangrun.core.recovery.gpu_rules import GpuUse, GpuWatch, read_every_s
from gangrun.core.recovery.pace_rules import NEVER

POLICY = TrendPolicy(window_s=100.0)
SLICE_S, EVERY_S = 20.0, 5.0
USUAL = GpuUse(0, 97, 60_000, 81_559, 1980, 0, 600, 700, 16, 5, 60)
HOT = USUAL._replace(clock_mhz=1200, reasons=0x40 | 0x08)
SLOWER = Alert(AlertKind.SLOWER, over_s=100.0, share=0.25, rates=(4.0, 3.0))
Change = tuple[Alert, bool]


class Gpus:
    """Ranks with a GPU each, read every five seconds."""

    def __init__(self, ranks: int, policy: TrendPolicy = POLICY) -> None:
        self.ranks, self.now = ranks, 0.0
        self.watch = GpuWatch(policy, 0.0)

    def train(
        self, for_s: float, use: Callable[[int], GpuUse] = lambda rank: USUAL, *, slower: Alert | None = None,
        told: tuple[int, ...] = (), trains: bool = True,
    ) -> list[Change]:  # fmt: skip
        changes: list[Change] = []
        for _ in range(round(for_s / EVERY_S)):
            self.now += EVERY_S
            for rank in range(self.ranks):
                gpu = use(rank)
                self.watch.observe(f"n{rank // 4}", rank, gpu._replace(gpu=rank % 4), trains=trains)
            changes += self.watch.take(self.now, slower, told)
        return changes


def only(slow: dict[int, GpuUse], usual: GpuUse = USUAL) -> Callable[[int], GpuUse]:
    return lambda rank: slow.get(rank, usual)


@pytest.mark.parametrize(
    ("held", "signs"),
    [
        (HOT, ("its clock is 1,200 MHz, the others' 1,980 (HW thermal slowdown)",)),
        (HOT._replace(reasons=0x80 | 0x08), ("its clock is 1,200 MHz, the others' 1,980 (HW power brake)",)),
        (HOT._replace(reasons=0x01), ("its clock is 1,200 MHz, the others' 1,980",)),
        (
            USUAL._replace(clock_mhz=1500, power_limit_w=450, reasons=0x04),
            ("its clock is 1,500 MHz, the others' 1,980 (power cap)", "its power limit is 450 W, the others' 700"),
        ),
        (USUAL._replace(pcie_width=8), ("its PCIe link has 8 lanes, the others' 16",)),
        (USUAL._replace(pcie_generation=3), ("its PCIe link is of generation 3, the others' of 5",)),
    ],
)
def test_a_gpu_that_is_held_back_while_the_training_is_slower_than_before_is_told_with_its_readings(
    held: GpuUse, signs: tuple[str, ...]
) -> None:
    gang = Gpus(16)
    assert gang.train(400) == []
    ((alert, over),) = gang.train(120, only({7: held}), slower=SLOWER)
    assert (alert.kind, alert.node, alert.rank, alert.gpu, alert.over_s) == (AlertKind.SLOW_GPU, "n1", 7, 3, 100.0)
    assert (alert.signs, alert.others_count, over) == (signs, 0, False)
    assert alert.share == pytest.approx(1 / 3)
    assert gang.train(1000, only({7: held}), slower=SLOWER) == [], "once, however long it lasts"
    assert gang.train(3 * SLICE_S - EVERY_S, slower=SLOWER) == []
    assert gang.train(SLICE_S, slower=SLOWER) == [(alert, True)]


def test_it_is_over_when_the_training_is_as_fast_as_before() -> None:
    gang = Gpus(8)
    gang.train(400)
    ((alert, _),) = gang.train(140, only({7: HOT}), slower=SLOWER)
    assert gang.train(3 * SLICE_S, only({7: HOT})) == [(alert, True)]


@pytest.mark.parametrize(
    "held",
    [
        USUAL._replace(clock_mhz=1800),  # 9 %
        USUAL._replace(busy_percent=49, clock_mhz=345, pcie_generation=1),  # at rest
        USUAL._replace(clock_mhz=-1, power_limit_w=-1, reasons=-1, pcie_width=-1, pcie_generation=-1),
        USUAL._replace(reasons=0x40),  # a reason alone costs nothing
        HOT._replace(memory_mib=40_000),  # another kind of GPU
    ],
)
def test_what_holds_no_gpu_back_is_no_cause(held: GpuUse) -> None:
    gang = Gpus(8)
    gang.train(400)
    assert gang.train(400, only({2: held}), slower=SLOWER) == []


def test_a_gpu_that_was_held_back_all_along_did_not_make_the_training_slower() -> None:
    gang = Gpus(8)
    assert gang.train(400, only({2: HOT})) == [], "the training is as fast as ever"
    assert gang.train(400, only({2: HOT}), slower=SLOWER) == []


def test_a_gpu_that_is_slow_now_and_then_is_not_told() -> None:
    gang = Gpus(8)
    gang.train(400)
    for _ in range(6):
        assert gang.train(3 * SLICE_S, only({2: HOT}), slower=SLOWER) == []
        assert gang.train(SLICE_S, slower=SLOWER) == []


def test_several_are_one_alert_that_names_the_slowest_and_stragglers_are_told_elsewhere() -> None:
    gang, worse = Gpus(16), {3: HOT, 9: HOT._replace(clock_mhz=900), 11: HOT}
    gang.train(400)
    ((alert, _),) = gang.train(140, only(worse), slower=SLOWER, told=(11,))
    assert (alert.rank, alert.others_count) == (9, 1)
    ((later, over),) = gang.train(SLICE_S, only(worse), slower=SLOWER)
    assert (later.rank, later.others_count, over) == (11, 0, False)


BUSY, WAITING = USUAL._replace(busy_percent=99), USUAL._replace(busy_percent=60)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_gpu_that_is_always_busy_while_the_others_wait_is_told_without_any_past(ranks: int) -> None:
    gang = Gpus(ranks)
    ((alert, _),) = gang.train(100, only({1: BUSY}, WAITING))
    assert (alert.rank, alert.signs) == (1, ("it is busy for 99 % of the time, the others for 60 %",))
    assert (alert.share, alert.lost_share) == (pytest.approx(99 / 60 - 1), pytest.approx(0.39))


@pytest.mark.parametrize(
    "use",
    [
        only({1: BUSY}, USUAL._replace(busy_percent=90)),  # less than 15 points
        only({1: USUAL._replace(busy_percent=80)}, WAITING),  # it waits too
        lambda rank: USUAL._replace(busy_percent=100 - 10 * rank),  # they always differ
        only({1: USUAL._replace(busy_percent=-1)}),
    ],
)
def test_loads_that_differ_by_chance_are_no_alert(use: Callable[[int], GpuUse]) -> None:
    assert Gpus(8).train(400, use) == []


def test_one_that_others_wait_for_and_that_does_all_alone_is_slower_by_the_most_that_is_told() -> None:
    ((alert, _),) = Gpus(2).train(100, only({0: BUSY}, USUAL._replace(busy_percent=0)))
    assert alert.share == 9.99


def test_what_a_rank_says_that_it_saves_or_evaluates_does_not_count() -> None:
    gang = Gpus(4)
    assert gang.train(400, only({1: BUSY}, WAITING), trains=False) == []


def test_gpus_that_are_hardly_busy_any_more_are_told_and_so_is_that_they_are_again() -> None:
    gang, idle = Gpus(8), USUAL._replace(busy_percent=30)
    assert gang.train(400) == []
    ((alert, over),) = gang.train(100, only({}, idle))
    assert (alert.kind, alert.rank, alert.gpu, alert.others_count, over) == (AlertKind.IDLE_GPU, 0, 0, 7, False)
    assert (alert.rates, alert.share) == ((0.97, 0.3), pytest.approx(1 - 30 / 97))
    assert alert.key == replace(alert, node="n9", rank=3).key
    assert gang.train(1000, only({}, idle)) == []
    assert gang.train(3 * SLICE_S - EVERY_S) == []
    assert gang.train(EVERY_S) == [(alert, True)]


@pytest.mark.parametrize(
    ("before", "after", "for_s"),
    [
        (97, 60, 400.0),
        (97, 30, 4 * SLICE_S),  # less than a window
        (40, 10, 400.0),  # they never had much to do
        (90, 46, 400.0),
    ],
)
def test_what_is_no_drop_of_their_load(before: int, after: int, for_s: float) -> None:
    gang = Gpus(4)
    gang.train(400, only({}, USUAL._replace(busy_percent=before)))
    assert gang.train(for_s, only({}, USUAL._replace(busy_percent=after))) == []


def test_what_an_earlier_supervisor_told_is_over_when_it_is_over() -> None:
    slow = Alert(AlertKind.SLOW_GPU, "n0", 2, 100.0, share=0.3, gpu=2)
    idle = Alert(AlertKind.IDLE_GPU, "n0", 0, 100.0, rates=(0.9, 0.3))
    gang = Gpus(4)
    gang.watch.adopt([slow, idle, SLOWER])
    assert gang.train(200, only({}, USUAL._replace(busy_percent=30))) == [(slow, True)]
    assert gang.train(3 * SLICE_S) == [(idle, True)]


def test_an_alert_on_a_rank_gets_its_gpu_and_what_is_wrong_with_it() -> None:
    gang, pace = Gpus(8), Alert(AlertKind.SLOW_RANK, "n1", 5, 100.0, share=0.3)
    assert gang.watch.explained(pace) == pace and gang.watch.number(5) == -1
    gang.train(EVERY_S, only({5: HOT}))
    assert gang.watch.explained(pace) == replace(pace, gpu=1), "no slice is over"
    gang.train(SLICE_S, only({5: HOT}))
    (sign,) = gang.watch.explained(pace).signs
    assert (gang.watch.number(5), sign) == (1, "its clock is 1,200 MHz, the others' 1,980 (HW thermal slowdown)")
    assert gang.watch.newest()[5] == HOT._replace(gpu=1)


def test_nothing_is_due_without_a_gpu_or_with_a_window_of_zero() -> None:
    assert Gpus(0).watch.due_at == NEVER
    off = Gpus(2, TrendPolicy(window_s=0.0))
    assert off.train(500, only({1: HOT}), slower=SLOWER) == []
    assert (off.watch.due_at, off.watch.newest()[1].clock_mhz) == (NEVER, 1200), "people see it all the same"
    assert [read_every_s(TrendPolicy(window_s=window_s)) for window_s in (0.0, 20.0, 100.0, 600.0)] == [10, 1, 5, 10]


@pytest.mark.parametrize(("reasons", "slowed"), [(-1, False), (0, False), (0x05, False), (0x20, True), (0x88, True)])
def test_what_slows_a_gpu_down_is_heat_a_brake_or_its_hardware(reasons: int, slowed: bool) -> None:
    assert USUAL._replace(reasons=reasons).is_slowed is slowed
