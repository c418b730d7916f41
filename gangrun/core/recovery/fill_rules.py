"""Will a node run out of memory or threads, or a rank out of open files or GPU memory? Robust slopes, against what is
left.

What counts as memory is what the kernel cannot take back: no page of a file, so a data set that is mapped into memory
does not grow. A series *grows* if its slope (Theil-Sen: the median of the slopes between any two points) is positive,
and each third of the window lies above the one before it by no less than ``LEVEL_SHARE`` of the step before: what
fills up after a start and then levels off does not grow, and neither does what varies by more than it grows. Memory of
a GPU must rise in each fifth of the window too: a caching allocator grows by a few large steps, to each new maximum.
Growth is told if the limit would be reached within ``full_within_s``. The agent asks these rules every few seconds and
puts what they say into its heartbeats; ``FillAlerts`` (the supervisor's) makes events of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import NamedTuple

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy

NEVER = float("inf")
LOOKS_PER_WINDOW, LOOK_EVERY_MIN_S, LOOK_EVERY_MAX_S = 20.0, 1.0, 5.0
FULL_MIN_SHARE = 0.9  # of the window that must be known
POINTS_MIN_COUNT = 9
POINTS_MAX_COUNT = 40  # of which slopes are taken
LEVEL_SHARE = 0.5
SPREAD_FACTOR = 2.0  # growth in a window is more than what the series varies by anyway
JUDGED_PER_WINDOW = 20.0
NOISE_BYTES, NOISE_GPU_BYTES, NOISE_FILES, NOISE_THREADS = 32e6, 100e6, 16.0, 16.0  # less in a window is no growth
RISES_MIN_COUNT = 5
SOONER_SHARE = 0.5
OTHERS_MIN_SHARE = 0.5  # of what the named rank grows by


class FillTrend(NamedTuple):
    """What one rank, or a node, will run out of; travels in heartbeats."""

    kind: str  # of ``AlertKind``
    in_s: float
    per_s: float
    others_count: int = 0
    used: int = 0
    limit: int = 0


class Series:
    """What grew, over one window."""

    def __init__(self, window_s: float, noise: float, rises_min_count: int = 0) -> None:
        """``rises_min_count``: equal parts of the window, in each of which it must rise."""
        self._window_s, self._noise, self._rises_min_count = window_s, noise, rises_min_count
        self._points: deque[tuple[float, float]] = deque()

    def add(self, used: float, now: float) -> None:
        """So much is used now."""
        self._points.append((now, used))
        while now - self._points[0][0] > self._window_s:
            self._points.popleft()

    def per_s(self) -> float:
        """How fast it grows; 0.0: it does not, or nobody knows yet."""
        points = self._points
        if len(points) < POINTS_MIN_COUNT or points[-1][0] - points[0][0] < FULL_MIN_SHARE * self._window_s:
            return 0.0
        third = len(points) // 3
        used = [amount for _, amount in points]
        first, second, last = median(used[:third]), median(used[third:-third]), median(used[-third:])
        if last - first < self._noise or last - second < LEVEL_SHARE * (second - first) or second <= first:
            return 0.0
        if not self._rises(points):
            return 0.0
        every = -(-len(points) // POINTS_MAX_COUNT)
        some = list(points)[::every]
        slope = median((b - a) / (t - s) for (s, a), (t, b) in combinations(some, 2))
        rest = [amount - slope * (at - points[0][0]) for at, amount in some]
        middle = median(rest)
        spread = median(abs(amount - middle) for amount in rest)
        return slope if slope * (points[-1][0] - points[0][0]) > SPREAD_FACTOR * spread else 0.0

    def _rises(self, points: Sequence[tuple[float, float]]) -> bool:
        """Is it at a new maximum in each part?"""
        count, (began_at, most), risen = self._rises_min_count, points[0], set[int]()
        span_s = points[-1][0] - began_at
        for at, used in points if count else ():
            if used > most:
                most = used
                risen.add(min(count - 1, int(count * (at - began_at) / span_s)))
        return len(risen) == count


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What one look at a node and its ranks has found; memory in bytes."""

    memory: Mapping[int, int]  # of each rank that trains, with the processes below it
    memory_left: int  # until the node's or the job's limit; -1: not known
    files: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # open in each rank's process, and its limit
    shared_used: int = 0  # of /dev/shm
    shared_left: int = -1
    gpu: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # used of each rank's GPU, and its memory
    threads: Mapping[int, int] = field(default_factory=dict)  # of each rank, with the processes below it
    threads_used: int = 0  # all that the nearest limit counts
    threads_limit: int = 0  # 0: not known


class NodeFill:
    """The agent's: one series for each rank and thing, over one attempt."""

    def __init__(self, policy: TrendPolicy) -> None:
        self._policy = policy
        off = not policy.window_s or not policy.full_within_s
        self.look_every_s = NEVER if off else look_every_s(policy)
        self.begin()

    def begin(self) -> None:
        """Another attempt."""
        self._memory: dict[int, Series] = {}
        self._files: dict[int, Series] = {}
        self._threads: dict[int, Series] = {}
        self._gpu: dict[int, Series] = {}
        self._gpu_newest: dict[int, tuple[int, int]] = {}
        self._shared = Series(self._policy.window_s, NOISE_BYTES)
        self._judge_at = -NEVER
        self._found: dict[int, tuple[FillTrend, ...]] = {}

    def look(self, use: NodeUse, now: float) -> dict[int, tuple[FillTrend, ...]]:
        """What is to be told, by the rank that is named; a node's own by its lowest rank."""
        window_s = self._policy.window_s
        for rank, used in use.memory.items():
            self._memory.setdefault(rank, Series(window_s, NOISE_BYTES)).add(used, now)
        for rank, (count, _) in use.files.items():
            self._files.setdefault(rank, Series(window_s, NOISE_FILES)).add(count, now)
        for rank, count in use.threads.items():
            self._threads.setdefault(rank, Series(window_s, NOISE_THREADS)).add(count, now)
        for rank, (used, _) in use.gpu.items():
            self._gpu.setdefault(rank, Series(window_s, NOISE_GPU_BYTES, RISES_MIN_COUNT)).add(used, now)
        self._gpu_newest |= use.gpu  # they are read less often
        if use.memory:
            self._shared.add(use.shared_used, now)
        if now >= self._judge_at:
            self._judge_at = now + window_s / JUDGED_PER_WINDOW
            self._found = self._judged(use)
        return self._found

    def _judged(self, use: NodeUse) -> dict[int, tuple[FillTrend, ...]]:
        found: dict[int, list[FillTrend]] = {}
        for rank, trend in self._of_one_limit(AlertKind.MEMORY, self._memory, use.memory, use.memory_left):
            found[rank] = [trend]
        used, limit = use.threads_used, use.threads_limit
        left = max(0, limit - used) if limit else -1
        for rank, trend in self._of_one_limit(AlertKind.THREADS, self._threads, use.threads, left):
            found.setdefault(rank, []).append(trend._replace(used=used, limit=limit))
        for rank, (count, limit) in use.files.items():
            slope = self._files[rank].per_s()
            if slope > 0 and self._is_soon(in_s := max(0, limit - count) / slope):
                found.setdefault(rank, []).append(FillTrend(AlertKind.FILES.value, in_s, slope, 0, count, limit))
        for rank, (held, most) in self._gpu_newest.items():
            slope = self._gpu[rank].per_s()
            if slope > 0 and self._is_soon(in_s := max(0, most - held) / slope):
                trend = FillTrend(AlertKind.GPU_MEMORY.value, in_s, slope, 0, held, most)
                found.setdefault(rank, []).append(trend)
        slope = self._shared.per_s()
        if use.memory and slope > 0 and use.shared_left >= 0 and self._is_soon(in_s := use.shared_left / slope):
            found.setdefault(min(use.memory), []).append(FillTrend(AlertKind.SHARED_MEMORY.value, in_s, slope))
        return {rank: tuple(growths) for rank, growths in found.items()}

    def _of_one_limit(
        self, kind: AlertKind, series: Mapping[int, Series], now: Mapping[int, int], left: int
    ) -> list[tuple[int, FillTrend]]:
        """What all ranks of the node take from one limit, under the rank that grows most; ``left`` -1: not known."""
        slopes = {rank: series[rank].per_s() for rank in now}
        total, most = sum(slopes.values()), max(slopes, key=lambda rank: slopes[rank], default=-1)
        if total <= 0 or left < 0 or not self._is_soon(in_s := left / total):
            return []
        others = sum(slope >= OTHERS_MIN_SHARE * slopes[most] for slope in slopes.values()) - 1
        return [(most, FillTrend(kind.value, in_s, slopes[most], others))]

    def _is_soon(self, in_s: float) -> bool:
        return in_s <= self._policy.full_within_s


def look_every_s(policy: TrendPolicy) -> float:
    """How often a node is looked at."""
    return min(LOOK_EVERY_MAX_S, max(LOOK_EVERY_MIN_S, policy.window_s / LOOKS_PER_WINDOW))


@dataclass(slots=True)
class _Told:
    alert: Alert
    full_at: float
    seen_at: float


class FillAlerts:
    """One attempt's, of all nodes: an alert is over once no heartbeat has told of it for a window. It is told again if
    less than half of the time is left that was told: growth that has just begun looks slower than it is.
    """

    def __init__(self, policy: TrendPolicy) -> None:
        self._window_s = policy.window_s
        self._open: dict[tuple[AlertKind, str, int], _Told] = {}
        self._fresh: list[Alert] = []

    def adopt(self, alerts: Iterable[Alert], now: float) -> None:
        """What an earlier supervisor told in this attempt, and is not over."""
        for one in alerts:
            if one.kind in FILL_KINDS:
                self._open[one.key] = _Told(one, now + one.in_s, now)

    def observe(self, node: str, rank: int, growths: Iterable[FillTrend], now: float, gpu: int = -1) -> None:
        """What a rank's newest heartbeat tells. ``gpu``: the number of its GPU, if it has told of it."""
        for one in growths:
            if one.kind not in FILL_WORDS:
                continue  # a newer agent's
            kind = AlertKind(one.kind)
            named = -1 if kind is AlertKind.SHARED_MEMORY else rank
            alert = Alert(
                kind, node, named, others_count=one.others_count, in_s=one.in_s, per_s=one.per_s, used=one.used,
                limit=one.limit, gpu=gpu if kind is AlertKind.GPU_MEMORY else -1,
            )  # fmt: skip
            known = self._open.get(alert.key)
            if known is None or alert.in_s < (known.full_at - now) * SOONER_SHARE:
                self._fresh.append(alert)
                self._open[alert.key] = _Told(alert, now + alert.in_s, now)
            else:
                known.seen_at = now

    @property
    def due_at(self) -> float:
        """When ``take`` has something."""
        if self._fresh:
            return -NEVER
        return min((one.seen_at + self._window_s for one in self._open.values()), default=NEVER)

    def take(self, now: float) -> list[tuple[Alert, bool]]:
        """What is new, and (True) what is over."""
        fresh, self._fresh = self._fresh, []
        over = [one.alert for one in self._open.values() if now >= one.seen_at + self._window_s]
        for alert in over:
            del self._open[alert.key]
        return [*((alert, False) for alert in fresh), *((alert, True) for alert in over)]


FILL_KINDS = frozenset(
    {AlertKind.MEMORY, AlertKind.SHARED_MEMORY, AlertKind.FILES, AlertKind.GPU_MEMORY, AlertKind.THREADS}
)
FILL_WORDS = frozenset(kind.value for kind in FILL_KINDS)
