"""Is a rank slower than its peers, or the training slower than it was? Comparisons over a window of training.

Theory of operation. In a synchronous training all ranks make as many steps in a second: the fast ones wait for the slow
one. So step times say nothing of a rank, but the time for which it does *not* wait does. The sampler in each rank
counts its looks, and those in which the main thread waits for other ranks. ``RankPaces`` (the agent's) makes *own time*
of them, and tells a ``Pace`` of each rank every few seconds. ``PaceWatch`` (the supervisor's) cuts the window into
``SLICES_COUNT`` slices. A rank is slow in a slice if its share of own time is above the median of all others by
``slow_share``, and by ``Z_MAX`` times their spread. It is a *straggler* if it is slow in each slice of the window: an
evaluation on one rank, or a few slow batches, last no whole window. It is over after ``CALM_COUNT`` slices without. A
slice goes on until ranks have made a fifth of ``STEPS_MIN_COUNT`` steps: if steps take long, the window does too.

That share is what the others lose: if a rank works for 95 % of the time and the others for 70 %, steps could take 25 %
less. A rank that evaluates or saves, and says so, has no own time meanwhile.

The own past: steps per second in each slice against the median of all earlier slices of the attempt. Gaps, such as an
evaluation, are left out. While an alert is open nothing is learnt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gangrun.core.evidence import Alert, AlertKind
from gangrun.core.policy import TrendPolicy

NEVER = float("inf")
SLICES_COUNT = 5
CALM_COUNT = 3
STEPS_MIN_COUNT = 50  # in a window, which lasts until then; of a script that reports none, collectives
TOLD_PER_WINDOW, TELL_EVERY_MAX_S = 30.0, 10.0
PRESENT_MIN_SHARE = 0.5  # of a slice that a rank must have told of
Z_MAX = 4.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
PAST_MIN_COUNT = 2 * SLICES_COUNT
PAST_MAX_COUNT = 500
INTERVALS_MIN_COUNT = 3
GAP_FACTOR, GAP_MIN_S = 10.0, 5.0


class Pace(NamedTuple):
    """One rank, since its attempt began; travels in heartbeats."""

    at_ms: int  # of its agent's clock
    own_ms: int  # for which it did not wait for other ranks
    steps_count: int  # or collectives


# ---- one node --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Looks:
    at: float
    looks_count: int
    waits_count: int
    own_s: float = 0.0


class RankPaces:
    """The agent's: what its ranks' samplers count becomes time."""

    def __init__(self, policy: TrendPolicy) -> None:
        self._tell_every_s = tell_every_s(policy)
        self.begin()

    def begin(self) -> None:
        """Another attempt."""
        self._rows: dict[int, _Looks] = {}
        self._began_at: float | None = None
        self._tell_at = -NEVER

    def look(self, rank: int, counts: tuple[int, int], now: float, *, trains: bool) -> None:
        """The sampler's looks so far, and those in which the rank waited. ``trains``: it says nothing else."""
        looks, waits = counts
        row = self._rows.get(rank)
        if row is None or looks < row.looks_count:
            self._rows[rank] = _Looks(now, looks, waits)
            return
        fresh = looks - row.looks_count
        if fresh:  # else the main thread has let no other one run, and that time counts as what comes after it
            share = 1 - (waits - row.waits_count) / fresh
            row.own_s += share * (now - row.at) if trains else 0.0
            row.at, row.looks_count, row.waits_count = now, looks, waits

    def take(self, steps: Mapping[int, int], now: float) -> dict[int, Pace]:
        """What is to be told now, of ranks with these counts of steps; {} most of the time."""
        if now < self._tell_at or not self._rows:
            return {}
        self._tell_at = now + self._tell_every_s
        self._began_at = now if self._began_at is None else self._began_at
        return {
            rank: Pace(round(1000 * (row.at - self._began_at)), round(1000 * row.own_s), steps[rank])
            for rank, row in self._rows.items()
            if rank in steps
        }


def tell_every_s(policy: TrendPolicy) -> float:
    """How often agents tell of their ranks' pace; never if nobody wants to know."""
    return min(TELL_EVERY_MAX_S, policy.window_s / TOLD_PER_WINDOW) if policy.window_s else NEVER


# ---- all nodes -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rank:
    node: str
    newest: tuple[Pace, int]  # and the tokens that it has trained on; -1: it does not say
    base: tuple[Pace, int]  # as of the end of the last slice


class _Share(NamedTuple):
    own: float
    others: float  # the median of all others
    more_tokens: float


class PaceWatch:
    """One attempt's ranks and steps; says what changed."""

    def __init__(self, policy: TrendPolicy, now: float) -> None:
        self._policy = policy
        self._slice_s = policy.window_s / SLICES_COUNT
        self.due_at = now + self._slice_s if policy.window_s else NEVER
        self._ranks: dict[int, _Rank] = {}
        self._slices: deque[dict[int, _Share]] = deque(maxlen=SLICES_COUNT)
        self._lengths_s: deque[float] = deque(maxlen=SLICES_COUNT)  # of these slices
        self._length_s = 0.0  # of the one that goes on
        self._has_stepped = False  # what is before the first step, such as a compilation, is no part of a slice
        self._calm_counts: dict[int, int] = {}  # of ranks that were told of
        self._told: dict[int, Alert] = {}
        self._advanced: tuple[float, int] | None = None
        self._intervals: list[tuple[float, int]] = []
        self._rates: deque[float] = deque(maxlen=SLICES_COUNT)
        self._past: deque[float] = deque(maxlen=PAST_MAX_COUNT)
        self._slower: Alert | None = None

    def adopt(self, alerts: Iterable[Alert]) -> None:
        """What an earlier supervisor told in this attempt, and is not over."""
        for one in alerts:
            if one.kind is AlertKind.SLOW_RANK:
                self._told[one.rank], self._calm_counts[one.rank] = one, 0
            elif one.kind is AlertKind.SLOWER:
                self._slower = one
                self._past.extend([one.rates[0]] * PAST_MIN_COUNT)

    def observe(self, node: str, rank: int, pace: Pace, tokens_count: int) -> None:
        """One rank's newest."""
        newest = pace, tokens_count
        known = self._ranks.get(rank)
        if known is None:
            self._ranks[rank] = _Rank(node, newest, newest)
        else:
            known.newest = newest

    def advanced(self, step: int, now: float) -> None:
        """The gang was seen at a new step."""
        if self._advanced is not None:
            at, before = self._advanced
            self._intervals.append((now - at, step - before))
        self._advanced = now, step

    @property
    def slower(self) -> Alert | None:
        """The training is slower than its own past."""
        return self._slower

    @property
    def stragglers(self) -> Mapping[int, Alert]:
        """The ranks that were told of."""
        return self._told

    def take(self, now: float) -> list[tuple[Alert, bool]]:
        """At the end of a slice: what is new, and (True) what is over."""
        if now < self.due_at:
            return []
        self.due_at = now + self._slice_s
        changes = self._compared_with_peers()
        changes += self._compared_with_past()
        return changes

    # ---- peers ---------------------------------------------------------------------------------------------------

    def _compared_with_peers(self) -> list[tuple[Alert, bool]]:
        self._length_s += self._slice_s
        shares = self._slow()
        if shares is None:
            return []
        self._slices.append(shares)
        changes = self._over(shares)
        if len(self._slices) < SLICES_COUNT:
            return changes
        slow = [rank for rank in shares if all(rank in one for one in self._slices)]
        fresh = sorted((rank for rank in slow if rank not in self._told), key=lambda rank: -self._lost_share(rank))
        if not fresh:
            return changes
        worst = self._alert(fresh[0], len(fresh) - 1)
        self._told |= dict.fromkeys(fresh, worst)
        self._calm_counts |= dict.fromkeys(fresh, 0)
        return [*changes, (worst, False)]

    def _over(self, shares: Mapping[int, _Share]) -> list[tuple[Alert, bool]]:
        """One alert may be of several ranks: it is over with the last of them."""
        for rank in self._told:
            self._calm_counts[rank] = 0 if rank in shares else self._calm_counts[rank] + 1
        before = set(self._told.values())
        self._told = {rank: one for rank, one in self._told.items() if self._calm_counts[rank] < CALM_COUNT}
        return [(one, True) for one in before - set(self._told.values())]

    def _slow(self) -> dict[int, _Share] | None:
        """The ranks that were slow in the slice that ends. The next one begins. None: too few ranks trained, or it goes
        on because they made too few steps.
        """
        own, tokens, steps = {}, {}, []
        present_ms = PRESENT_MIN_SHARE * 1000 * self._length_s
        for rank, row in self._ranks.items():  # once in minutes, but of tens of thousands
            (pace, tokens_count), (base, base_tokens) = row.newest, row.base
            over_ms = pace.at_ms - base.at_ms
            if over_ms >= present_ms:
                own[rank] = (pace.own_ms - base.own_ms) / over_ms
                steps.append(pace.steps_count - base.steps_count)
                tokens[rank] = tokens_count - base_tokens if base_tokens >= 0 else 0
        steps_count = median(steps) if len(own) > 1 else 0
        self._has_stepped = self._has_stepped or steps_count > 0
        if len(own) > 1 and self._has_stepped and steps_count < STEPS_MIN_COUNT / SLICES_COUNT:
            return None
        for row in self._ranks.values():
            row.base = row.newest
        length_s, self._length_s = self._length_s, 0.0
        if steps_count == 0:
            return None
        self._lengths_s.append(length_s)
        in_order = sorted(own.values())
        least = in_order[(len(own) - 2) // 2] + self._policy.slow_share  # the median of all others is no lower
        over = {rank: share - median_without(in_order, share) for rank, share in own.items() if share >= least}
        if not over:
            return {}
        bound = self._policy.slow_share
        if len(own) >= SPREAD_RANKS_MIN_COUNT:
            bound = max(bound, Z_MAX * MAD_TO_SIGMA * mad(in_order))
        usual = sorted(tokens.values())
        more = {rank: (tokens[rank], median_without(usual, tokens[rank])) for rank, one in over.items() if one >= bound}
        return {
            rank: _Share(own[rank], own[rank] - over[rank], mine / others - 1 if others > 0 else 0.0)
            for rank, (mine, others) in more.items()
        }

    def _lost_share(self, rank: int) -> float:
        return sum(one[rank].own - one[rank].others for one in self._slices) / SLICES_COUNT

    def _alert(self, rank: int, others_count: int) -> Alert:
        own, others = (sum(column) for column in zip(*(one[rank][:2] for one in self._slices), strict=True))
        return Alert(
            AlertKind.SLOW_RANK,
            self._ranks[rank].node,
            rank,
            over_s=sum(self._lengths_s),
            share=own / others - 1 if others > 0 else SHARE_MAX,
            lost_share=self._lost_share(rank),
            others_count=others_count,
            more_tokens_share=median(one[rank].more_tokens for one in self._slices),
        )

    # ---- the own past --------------------------------------------------------------------------------------------

    def _compared_with_past(self) -> list[tuple[Alert, bool]]:
        rate = self._rate()
        if rate is None:
            return []
        oldest = self._rates[0] if len(self._rates) == SLICES_COUNT else None
        self._rates.append(rate)
        if oldest is not None and self._slower is None:
            self._past.append(oldest)
        if len(self._past) < PAST_MIN_COUNT:
            return []
        usual = median(self._past)
        bound = usual * (1 - self._policy.drop_share)
        if self._slower is not None:
            back = all(one > bound for one in list(self._rates)[-CALM_COUNT:])
            over, self._slower = self._slower, None if back else self._slower
            return [(over, True)] if back else []
        now = median(self._rates)
        if max(self._rates) > bound or usual - now < Z_MAX * MAD_TO_SIGMA * mad(sorted(self._past)):
            return []
        self._slower = Alert(AlertKind.SLOWER, over_s=self._policy.window_s, share=1 - now / usual, rates=(usual, now))
        return [(self._slower, False)]

    def _rate(self) -> float | None:
        """Steps per second of the slice that ends, without its gaps; None: too few."""
        intervals, self._intervals = self._intervals, []
        if len(intervals) < INTERVALS_MIN_COUNT:
            return None
        gap_s = max(GAP_MIN_S, GAP_FACTOR * median(seconds for seconds, _ in intervals))
        kept = [(seconds, steps) for seconds, steps in intervals if seconds <= gap_s]
        return sum(steps for _, steps in kept) / max(1e-9, sum(seconds for seconds, _ in kept))


SPREAD_RANKS_MIN_COUNT = 4  # of fewer the spread says nothing: the slow one makes it
SHARE_MAX = 9.99  # times slower is not to be told from others that do nothing but wait


def median_without(in_order: Sequence[float], one: float) -> float:
    """The median of all others; ``one`` is in the list."""
    low, high = (len(in_order) - 2) // 2, (len(in_order) - 1) // 2
    at = [k + (in_order[k] >= one) for k in (low, high)]
    return (in_order[at[0]] + in_order[at[1]]) / 2


def mad(in_order: Sequence[float]) -> float:
    """The median distance from the median."""
    middle = median(in_order)
    return median(abs(number - middle) for number in in_order)
