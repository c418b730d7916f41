"""Which counters of a node got worse over the last week: arithmetic over readings of several days.

How it works: counters only count up. What one counted is the sum of its rises, from one reading to the next; a fall is
a reset (a reboot, a driver loaded anew, a port exchanged), which is neither an improvement nor a rise, and what was
counted just before and after it is not known. One bad hour is no trend, and neither is one bad look: so a counter is
worse only if it was read often enough and on enough days, rose on several of them, rose by more than what is usual, and
rose in the later half of the time about as fast as in the earlier one, or faster.

Nobody is excluded for a trend: it is told, and people decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
READINGS_MIN_COUNT = 4
DAYS_MIN_COUNT = 3  # with a reading
SPAN_MIN_S = 3 * DAY_S
STEADY_SHARE = 0.75  # of the earlier half's rise: less in the later half, and it gets better


@dataclass(frozen=True, slots=True)
class CounterKind:
    """A counter whose rise tells of wear, in words that follow a number. Less than the minimum is usual."""

    words: str
    rise_min: int
    days_min_count: int = 3  # on which it rose
    advice: str = ""


CABLE = "please look at the cable and the plugs at both ends, and at the port of the switch"
GPU_MEMORY = "please run dcgmi diag -r 3 on it, and have the GPU replaced if that fails or the number goes on to rise"
GPU_SLOT = "please look at the GPU's seat in its slot, and at the riser or the retimer"
MODULE = "please find the memory module (edac-util -v, ras-mc-ctl --error-count), and have it replaced"
NVLINK = "please reset the GPU, and look at the NVLink bridge or the baseboard if the number goes on to rise"
KINDS: Mapping[str, CounterKind] = {
    "ecc_corrected": CounterKind("corrected memory errors", 100, advice=GPU_MEMORY),
    "ecc_uncorrected_ever": CounterKind("uncorrectable memory errors", 2, 2, GPU_MEMORY),
    "remapped_corrected": CounterKind("memory rows remapped after corrected errors", 2, 2, GPU_MEMORY),
    "remapped_uncorrected": CounterKind("memory rows remapped after uncorrectable errors", 2, 2, GPU_MEMORY),
    "retired_pages": CounterKind("retired memory pages", 2, 2, GPU_MEMORY),
    "pcie_replays": CounterKind("PCIe replays", 100, advice=GPU_SLOT),
    "replay": CounterKind("NVLink replays", 100, advice=NVLINK),
    "recovery": CounterKind("NVLink recoveries", 10, advice=NVLINK),
    "recoveries": CounterKind("NVLinks that went down and came back", 10, advice=NVLINK),
    "crc": CounterKind("NVLink checksum errors", 100, advice=NVLINK),
    "symbol_errors": CounterKind("NVLink symbols that could not be corrected", 10, advice=NVLINK),
    "xids": CounterKind("XIDs of the driver that are not the program's", 3, advice=GPU_MEMORY),
    "link_downed": CounterKind("lost links", 3, advice=CABLE),
    "symbol_error": CounterKind("symbol errors", 100, advice=CABLE),
    "link_error_recovery": CounterKind("link recoveries", 10, advice=CABLE),
    "port_rcv_errors": CounterKind("damaged packets", 100, advice=CABLE),
    "local_link_integrity_errors": CounterKind("link integrity errors", 10, advice=CABLE),
    "ce_count": CounterKind("corrected errors of the host's memory", 100, advice=MODULE),
}


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """What one counter of one device showed, oldest first: (wall-clock seconds, count)."""

    device: str  # a GPU's UUID, a port: what stays the same over reboots
    place: str  # what the node calls it: ``gpu 3``
    name: str
    readings: Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class CounterTrend:
    """A counter that got worse. ``last_day_rise``: of the ``rise``, in the day before the newest reading."""

    device: str
    place: str
    name: str
    rise: int
    since: float
    until: float
    days_count: int  # with a rise
    last_day_rise: int


def worsening(series: Iterable[CounterSeries], now: float) -> tuple[CounterTrend, ...]:
    """Those of the last week that got worse, the most striking first; a clock that ran ahead is not believed."""
    found = [trend for one in series if (trend := _trend(one, now)) is not None]
    return tuple(sorted(found, key=lambda one: (-one.rise / KINDS[one.name].rise_min, one.place, one.name)))


def _trend(one: CounterSeries, now: float) -> CounterTrend | None:
    kind = KINDS.get(one.name)
    readings = sorted((at, count) for at, count in one.readings if now - WEEK_S <= at <= now)
    if kind is None or len(readings) < READINGS_MIN_COUNT:
        return None
    since, until = readings[0][0], readings[-1][0]
    if until - since < SPAN_MIN_S or len({at // DAY_S for at, _ in readings}) < DAYS_MIN_COUNT:
        return None
    rises = [(a, b, max(0, after - before)) for (a, before), (b, after) in pairwise(readings)]
    rise = sum(count for _, _, count in rises)
    days_count = len({ended // DAY_S for _, ended, count in rises if count})
    if rise < kind.rise_min or days_count < kind.days_min_count:
        return None
    early = _within(rises, since, (since + until) / 2)
    if rise - early < STEADY_SHARE * early:
        return None
    last = round(_within(rises, until - DAY_S, until))
    return CounterTrend(one.device, one.place, one.name, rise, since, until, days_count, last)


def _within(rises: Iterable[tuple[float, float, int]], since: float, until: float) -> float:
    """How much of the rises lies between two moments, if each is spread evenly over its own time."""
    total = 0.0
    for began, ended, count in rises:
        shared = min(ended, until) - max(began, since)
        if shared > 0:
            total += count * shared / (ended - began)
    return total
