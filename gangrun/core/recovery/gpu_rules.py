"""What GPUs say of themselves while they train: which one slows down all the others, and which have little to do.

Theory of operation. With NCCL a rank that waits for another one looks from outside as one that works: collectives
return at once, and the GPU counts as busy in them. But GPUs tell how fast they may run. Each agent reads those of its
ranks every few seconds, and a ``GpuUse`` of each rank comes with a heartbeat. ``GpuWatch`` (the supervisor's) takes
means over the slices of ``pace_rules``. A GPU is *held back* in a slice if its clock at work, its power limit or its
PCIe link is below the median of all others of its kind. It is *slow* in that slice

- if it is held back, the training is slower than its own past, and it was not held back in the same way before; or
- if it is busy nearly all the time, and the others are not: they wait for it (``slow_share``, ``Z_MAX`` times their
  spread).

It is told if it is slow in each slice of the window, and is over after ``CALM_COUNT`` slices without.

Idle GPUs: one that is busy for less than half of the time for which it was busy before, in each slice of the window.
Its past is the median of all earlier slices of the attempt. While an alert is open nothing is learnt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy
from gangrun.core.recovery.pace_rules import (
    CALM_COUNT,
    MAD_TO_SIGMA,
    NEVER,
    PAST_MIN_COUNT,
    SHARE_MAX,
    SLICES_COUNT,
    SPREAD_RANKS_MIN_COUNT,
    Z_MAX,
    mad,
    median_without,
)

READS_PER_WINDOW, READ_EVERY_MIN_S, READ_EVERY_MAX_S = 20.0, 1.0, 10.0
SAMPLES_MIN_COUNT = 2  # in a slice
AT_WORK_PERCENT = 50  # at rest clocks and links say nothing
BUSY_PERCENT = 90.0
CLOCK_MIN_SHARE, POWER_LIMIT_MIN_SHARE = 0.9, 0.95
REASON_MIN_SHARE = 0.5  # of the looks at work that showed a reason for the clock
DROP_SHARE = 0.5
PAST_MAX_COUNT = 60
REASONS = (  # bits of NVML, the most telling first: the hardware's own bit comes with one of the two before it
    (0x80, "HW power brake"),
    (0x40, "HW thermal slowdown"),
    (0x08, "HW slowdown"),
    (0x20, "SW thermal slowdown"),
    (0x04, "power cap"),
)
SLOWED = 0x80 | 0x40 | 0x20 | 0x08


class GpuUse(NamedTuple):
    """One GPU at one moment; travels in heartbeats. -1: it does not say."""

    gpu: int  # its number, as NVML and nvidia-smi count
    busy_percent: int = -1
    memory_used_mib: int = -1
    memory_mib: int = -1
    clock_mhz: int = -1
    reasons: int = -1  # why its clock is not higher: bits
    power_w: int = -1
    power_limit_w: int = -1
    pcie_width: int = -1
    pcie_generation: int = -1
    temperature_c: int = -1

    @property
    def is_slowed(self) -> bool:
        """Do heat, the power brake or the hardware hold down its clock?"""
        return self.reasons > 0 and bool(self.reasons & SLOWED)


def read_every_s(policy: TrendPolicy) -> float:
    """How often agents read GPUs; people see them even if nobody judges them."""
    if not policy.window_s:
        return READ_EVERY_MAX_S
    return min(READ_EVERY_MAX_S, max(READ_EVERY_MIN_S, policy.window_s / READS_PER_WINDOW))


@dataclass(slots=True)
class _Sums:
    """One rank's GPU in the slice that runs."""

    count: int = 0
    busy: int = 0
    work_count: int = 0
    clock: int = 0
    width: int = 0  # the best at work
    generation: int = 0
    reasons: list[int] = field(default_factory=lambda: [0] * len(REASONS))

    def add(self, use: GpuUse) -> None:
        self.count += 1
        self.busy += use.busy_percent
        if use.busy_percent < AT_WORK_PERCENT:
            return
        self.work_count += 1
        self.clock += use.clock_mhz
        self.width, self.generation = max(self.width, use.pcie_width), max(self.generation, use.pcie_generation)
        if use.reasons > 0:
            for k, (bit, _) in enumerate(REASONS):
                self.reasons[k] += bool(use.reasons & bit)


class _Means(NamedTuple):
    """The same once the slice is over; 0: not known."""

    busy: float
    clock: float
    power_limit: float
    width: float
    generation: float
    why: str


_LEAST = {"clock": CLOCK_MIN_SHARE, "power_limit": POWER_LIMIT_MIN_SHARE, "width": 1.0, "generation": 1.0}


@dataclass(slots=True)
class _Rank:
    node: str
    newest: GpuUse
    sums: _Sums = field(default_factory=_Sums)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SLICES_COUNT))  # busy percent of slices
    past: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_MAX_COUNT))
    held_counts: Counter[str] = field(default_factory=Counter)  # slices in which it was held back, by what


class _Slow(NamedTuple):
    """Why a GPU may count as slow in one slice."""

    held_by: tuple[str, ...]  # of ``_LEAST``
    busier: float  # than the others that wait for it, in percent; 0: they do not


class GpuWatch:
    """One attempt's GPUs; says what changed."""

    def __init__(self, policy: TrendPolicy, now: float) -> None:
        self._policy = policy
        self._slice_s = policy.window_s / SLICES_COUNT
        self._began_at = now
        self.due_at = NEVER  # until a GPU is known
        self._ranks: dict[int, _Rank] = {}
        self._means: dict[int, _Means] = {}  # of the newest slice
        self._in_order: dict[tuple[int, str], list[float]] = {}  # all its values, by kind of GPU and what is compared
        self._slices: deque[dict[int, _Slow]] = deque(maxlen=SLICES_COUNT)
        self._slices_count = 0
        self._told: dict[int, Alert] = {}
        self._calm_counts: dict[int, int] = {}
        self._idle: Alert | None = None
        self._idle_calm_count = 0

    def adopt(self, alerts: Iterable[Alert]) -> None:
        """What an earlier supervisor told in this attempt, and is not over."""
        for one in alerts:
            if one.kind is AlertKind.SLOW_GPU:
                self._told[one.rank], self._calm_counts[one.rank] = one, 0
            elif one.kind is AlertKind.IDLE_GPU:
                self._idle = one

    def observe(self, node: str, rank: int, use: GpuUse, *, trains: bool) -> None:
        """One rank's newest. ``trains``: it says nothing else."""
        row = self._ranks.get(rank)
        if row is None:
            row = self._ranks[rank] = _Rank(node, use)
            if self._idle is not None:
                row.past.extend([100 * self._idle.rates[0]] * PAST_MIN_COUNT)
            if self.due_at == NEVER and self._slice_s:
                self.due_at = self._began_at + self._slice_s
        row.newest = use
        if trains and use.busy_percent >= 0:
            row.sums.add(use)

    def newest(self) -> dict[int, GpuUse]:
        """Each rank's, as told last."""
        return {rank: row.newest for rank, row in self._ranks.items()}

    def number(self, rank: int) -> int:
        """That its node gives to the rank's GPU; -1: it has told of none."""
        row = self._ranks.get(rank)
        return -1 if row is None else row.newest.gpu

    def take(self, now: float, slower: Alert | None, stragglers: Container[int]) -> list[tuple[Alert, bool]]:
        """At the end of a slice: what is new, and (True) what is over. ``slower``: the training is slower than it was;
        ``stragglers``: ranks that are told of already.
        """
        if now < self.due_at:
            return []
        self.due_at = now + self._slice_s
        self._end_slice()
        if not self._means:
            return []
        self._slices_count += 1
        slow = self._slow(now_slower=slower is not None)
        self._slices.append(slow)
        holds = {rank for rank, one in slow.items() if one.busier or slower is not None}
        return [*self._over(holds), *self._slow_told(holds, slower, stragglers), *self._idle_told()]

    def explained(self, alert: Alert) -> Alert:
        """An alert on a rank, with its GPU and in what it falls behind the others."""
        row = self._ranks.get(alert.rank)
        return alert if row is None else replace(alert, gpu=row.newest.gpu, signs=self._signs(alert.rank))

    # ---- one slice -----------------------------------------------------------------------------------------------

    def _end_slice(self) -> None:
        """Once in minutes, but of tens of thousands of GPUs."""
        self._means, self._in_order = {}, {}
        for rank, row in self._ranks.items():
            sums, row.sums = row.sums, _Sums()
            if sums.count < SAMPLES_MIN_COUNT:
                continue
            means = self._means[rank] = _means(sums, row.newest)
            for name in _LEAST:
                if (value := getattr(means, name)) > 0:
                    self._in_order.setdefault((row.newest.memory_mib, name), []).append(value)
            if len(row.recent) == SLICES_COUNT and self._idle is None:
                row.past.append(row.recent[0])
            row.recent.append(means.busy)
        for values in self._in_order.values():
            values.sort()

    def _slow(self, *, now_slower: bool) -> dict[int, _Slow]:
        """The GPUs that were held back as they were not before, and those for which the others wait."""
        busy = sorted(one.busy for one in self._means.values())
        bound = 100 * self._policy.slow_share
        if len(busy) >= SPREAD_RANKS_MIN_COUNT:
            bound = max(bound, Z_MAX * MAD_TO_SIGMA * mad(busy))
        found = {}
        for rank, means in self._means.items():
            counts, held = self._ranks[rank].held_counts, self._held_by(rank)
            fresh = tuple(name for name in held if 2 * counts[name] < self._slices_count)
            counts.update(() if now_slower else held)
            busier = 0.0
            if means.busy >= BUSY_PERCENT and len(busy) > 1:
                busier = means.busy - median_without(busy, means.busy)
            if fresh or busier >= bound:
                found[rank] = _Slow(fresh, busier if busier >= bound else 0.0)
        return found

    def _held_by(self, rank: int) -> list[str]:
        return [
            name for name, least in _LEAST.items() if (both := self._beside(rank, name)) and both[0] < least * both[1]
        ]

    def _beside(self, rank: int, name: str) -> tuple[float, float] | None:
        """Its own value and the others' median; None if either is not known."""
        means = self._means.get(rank)
        value = 0.0 if means is None else getattr(means, name)
        values = self._in_order.get((self._ranks[rank].newest.memory_mib, name), ())
        return (value, median_without(values, value)) if value > 0 and len(values) > 1 else None

    # ---- slow ones -----------------------------------------------------------------------------------------------

    def _over(self, holds: Container[int]) -> list[tuple[Alert, bool]]:
        for rank in self._told:
            self._calm_counts[rank] = 0 if rank in holds else self._calm_counts[rank] + 1
        before = set(self._told.values())
        self._told = {rank: one for rank, one in self._told.items() if self._calm_counts[rank] < CALM_COUNT}
        return [(one, True) for one in before - set(self._told.values())]

    def _slow_told(
        self, holds: Iterable[int], slower: Alert | None, stragglers: Container[int]
    ) -> list[tuple[Alert, bool]]:
        if len(self._slices) < SLICES_COUNT:
            return []
        fresh = [rank for rank in holds if rank not in self._told and rank not in stragglers and self._lasts(rank)]
        if slower is None:
            fresh = [rank for rank in fresh if all(one[rank].busier for one in self._slices)]
        if not fresh:
            return []
        worst = min(fresh, key=self._order)
        alert = self._alert(worst, len(fresh) - 1, slower)
        self._told |= dict.fromkeys(fresh, alert)
        self._calm_counts |= dict.fromkeys(fresh, 0)
        return [(alert, False)]

    def _lasts(self, rank: int) -> bool:
        return all(rank in one for one in self._slices)

    def _order(self, rank: int) -> tuple[float, float, int]:
        """The slowest first."""
        own, usual = self._beside(rank, "clock") or (1.0, 1.0)
        return own / usual, -self._slices[-1][rank].busier, rank

    def _alert(self, rank: int, others_count: int, slower: Alert | None) -> Alert:
        row = self._ranks[rank]
        busier = sum(one[rank].busier for one in self._slices) / SLICES_COUNT
        own = sum(row.recent) / len(row.recent)
        share = own / (own - busier) - 1 if own > busier else SHARE_MAX
        if slower is not None:
            before, now = slower.rates
            share = max(share, before / now - 1 if now > 0 else SHARE_MAX)
        return Alert(
            AlertKind.SLOW_GPU,
            row.node,
            rank,
            over_s=self._policy.window_s,
            share=min(share, SHARE_MAX),
            lost_share=busier / 100,
            others_count=others_count,
            gpu=row.newest.gpu,
            signs=self._signs(rank),
        )

    def _signs(self, rank: int) -> tuple[str, ...]:
        """In what it falls behind the others, in words."""
        told = []
        for name in self._held_by(rank):
            own, usual = self._beside(rank, name) or (0.0, 0.0)
            told.append(_sign(name, own, usual, self._means[rank].why))
        slow = self._slices[-1].get(rank) if self._slices else None
        if slow is not None and slow.busier:
            busy = self._means[rank].busy
            told.append(f"it is busy for {busy:.0f} % of the time, the others for {busy - slow.busier:.0f} %")
        return tuple(told)

    # ---- idle ones -----------------------------------------------------------------------------------------------

    def _idle_told(self) -> list[tuple[Alert, bool]]:
        low = {}
        for rank in self._means:
            row = self._ranks[rank]
            at_most = row.recent[-1] if self._idle is not None else max(row.recent)
            if at_most <= 100 * DROP_SHARE and len(row.past) >= PAST_MIN_COUNT:
                usual = median(row.past)
                if usual >= AT_WORK_PERCENT and at_most <= DROP_SHARE * usual:
                    low[rank] = usual
        if self._idle is not None:
            self._idle_calm_count = 0 if low else self._idle_calm_count + 1
            over, self._idle = self._idle, self._idle if self._idle_calm_count < CALM_COUNT else None
            return [] if self._idle is not None else [(over, True)]
        if not low:
            return []
        rank, self._idle_calm_count = min(low), 0
        row = self._ranks[rank]
        rates = low[rank] / 100, median(row.recent) / 100
        self._idle = Alert(
            AlertKind.IDLE_GPU, row.node, rank, over_s=self._policy.window_s, share=1 - rates[1] / rates[0],
            others_count=len(low) - 1, rates=rates, gpu=row.newest.gpu,
        )  # fmt: skip
        return [(self._idle, False)]


def _means(sums: _Sums, newest: GpuUse) -> _Means:
    works = 2 * sums.work_count >= sums.count
    why = next(
        (words for (_, words), seen in zip(REASONS, sums.reasons, strict=True)
         if works and seen >= REASON_MIN_SHARE * sums.work_count), "",
    )  # fmt: skip
    clock = sums.clock / sums.work_count if works else 0.0
    return _Means(sums.busy / sums.count, clock, newest.power_limit_w, sums.width * works, sums.generation * works, why)


def _sign(name: str, own: float, usual: float, why: str) -> str:
    match name:
        case "clock":
            return f"its clock is {own:,.0f} MHz, the others' {usual:,.0f}{f' ({why})' if why else ''}"
        case "power_limit":
            return f"its power limit is {own:,.0f} W, the others' {usual:,.0f}"
        case "width":
            return f"its PCIe link has {own:.0f} lanes, the others' {usual:.0f}"
        case _:
            return f"its PCIe link is of generation {own:.0f}, the others' of {usual:.0f}"
