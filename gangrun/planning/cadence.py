"""How often a run should save, and how much of its time is then useful: Daly's complete model.

Saving costs a stall each time; not saving costs the work since the last save at each failure. With stall ``d`` and a
mean time ``M`` between failures of the whole job, training ``t = M * (1 + W0(-exp(-d/M - 1)))`` seconds between saves
wastes least; the time ``R`` that a recovery takes does not move it. The useful share of the time is
``t / (M * exp(R/M) * (exp((t + d)/M) - 1))``; failures may hit saves and recoveries too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

INTERVAL_MIN_S = 10.0
INTERVAL_MAX_S = 4 * 3600.0
MTBF_BEFORE_EVIDENCE_S = 24 * 3600.0  # of a run of few nodes: its own code fails more often than they do
NODE_MTBF_S = 54 * 86400.0 * 2048 / 419  # Llama 3 405B: 419 unexpected interruptions of 2,048 nodes in 54 days
STALL_GUESS_S = 1.0  # of a save, before one was measured
SAVES_SHARE_MAX = 0.5  # of the time between two saves, at most so much may be taken by writing one out

_ROUNDS_COUNT = 64
_SERIES_BELOW = 1e-4  # of 2(1 + e*x): nearer to the branch point the iteration would divide two vanishing numbers


@dataclass(frozen=True, slots=True)
class Cadence:
    """Seconds of training between two saves, and the sentence that says why."""

    interval_s: float
    reason: str


def lambert_w0(x: float) -> float:
    """The principal branch of Lambert's W for -1/e <= x <= 0: w * exp(w) = x with w in [-1, 0]."""
    if not -1 / math.e - 1e-15 <= x <= 0:
        raise ValueError(f"this part of Lambert's W is for numbers from -1/e to 0, not {x}")
    q = max(0.0, 2 * (1 + math.e * x))
    p = math.sqrt(q)
    w = -1 + p * (1 + p * (-1 / 3 + p * (11 / 72 - p * 43 / 540)))  # the series about -1/e
    if q < _SERIES_BELOW:
        return w
    for _ in range(_ROUNDS_COUNT):
        e = math.exp(w)
        off = w * e - x
        change = off / (e * (w + 1) - (w + 2) * off / (2 * w + 2))
        w -= change
        if abs(change) <= 1e-15 * (1 + abs(w)):
            break
    return w


def optimum_s(stall_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that waste least; ``stall_s`` per save, ``mtbf_s`` of the whole job."""
    if stall_s <= 0 or mtbf_s <= 0:
        raise ValueError("the stall time and the mean time between failures must be positive")
    ratio = stall_s / mtbf_s
    if ratio < 1e-9:  # exp(-ratio - 1) is no longer told apart from 1/e; Young's formula is exact there
        return math.sqrt(2 * stall_s * mtbf_s)
    return mtbf_s * (1 + lambert_w0(-math.exp(-ratio - 1)))


def useful_share(interval_s: float, stall_s: float, recovery_s: float, mtbf_s: float) -> float:
    """The share of the time that is training which is not lost again, with a save after every ``interval_s``."""
    per_round = (interval_s + stall_s) / mtbf_s
    if per_round + recovery_s / mtbf_s > 500:  # then no round is ever finished, and exp() would overflow
        return 0.0
    return interval_s / (mtbf_s * math.exp(recovery_s / mtbf_s) * math.expm1(per_round))


def mean_lost_s(interval_s: float, mtbf_s: float) -> float:
    """Seconds of training that a failure costs on average: those since the last save."""
    ratio = interval_s / mtbf_s
    if ratio < 1e-5:  # the exact form subtracts two nearly equal numbers
        return interval_s * (0.5 - ratio / 12)
    return mtbf_s - interval_s / math.expm1(ratio) if ratio < 500 else mtbf_s


def expected_mtbf_s(nodes_count: int) -> float:
    """Mean time between failures of a job of so many nodes, before any was seen."""
    return min(MTBF_BEFORE_EVIDENCE_S, NODE_MTBF_S / max(1, nodes_count))


def observed_mtbf_s(trained_s: float, failures_count: int, prior_s: float = MTBF_BEFORE_EVIDENCE_S) -> float:
    """What to expect after so many failures in so much training: the prior counts as one failure in its time."""
    return (prior_s + max(0.0, trained_s)) / (1 + max(0, failures_count))


def cadence(stall_s: float, persist_s: float, mtbf_s: float) -> Cadence:
    """The interval to keep: the optimum, bounded, and never shorter than writing a save out allows."""
    best_s = optimum_s(max(stall_s, 1e-3), mtbf_s)
    floor_s = max(INTERVAL_MIN_S, persist_s / SAVES_SHARE_MAX)
    interval_s = min(max(best_s, floor_s), max(INTERVAL_MAX_S, floor_s))
    bound = ""
    if interval_s > best_s:
        bound = f", raised to {interval_s:.0f} s: a save takes {persist_s:.1f} s to write"
    elif interval_s < best_s:
        bound = f", lowered to the most, {interval_s:.0f} s"
    reason = (
        f"a save stalls training for {stall_s:.2f} s and the job fails every {mtbf_s / 3600:.1f} h: "
        f"saving every {best_s:.0f} s wastes least{bound}"
    )
    return Cadence(interval_s, reason)
