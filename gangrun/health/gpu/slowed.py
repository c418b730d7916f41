"""What a GPU at work says holds its clocks down, and for how long. The reading: ``gpu``.

Each look shows a moment. Two running make a warning; most looks of ten minutes, while its clock is below that of the
GPUs at work beside it, make a node that slows all ranks down. That it draws all the power it may is no fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from gangrun.health.framework.check import Check, Evidence, Finding, Needs, Outcome, Reading, Severity, Sticky, Value
from gangrun.health.framework.growth import comparable, span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import finding, gpus, why_not

BUSY_PERCENT, PEERS_MIN_COUNT = 50.0, 3
WINDOW_S, WINDOW_LOOKS_MIN, WINDOW_SHARE = 600.0, 5, 0.6  # 0.6 a minute over ten, as gpud counts them
SOFTWARE_HEAT, HARDWARE = 0x20, 0x08 | 0x40 | 0x80
REASONS = (  # (bit, words), the most telling first: the hardware's own bit comes with one of the two before it
    (0x80, "by the power brake: power supply or rack"),
    (0x40, "by its own heat guard"),
    (0x08, "by its hardware, for heat, power or a brake"),
    (SOFTWARE_HEAT, "for heat by the driver"),
)
LOOKS, SLOWED, SINCE, SHARE = "clock looks", "clock slowed", "clock since", "clock share before"


def with_history(now: Reading, before: Reading | None) -> Reading:
    """Carry on how many looks at work there were, and how many found it slowed by its hardware: this ten minutes, and
    of the last ten minutes the share.
    """
    values: dict[str, Mapping[str, Value]] = dict(now.facts.values)
    for place in gpus(now):
        if now.facts.number(place, "clock_reasons") is None:
            continue
        looks, slowed, since, share = 0.0, 0.0, now.at, None
        if before is not None and comparable(now, before) and _same(now, before, place):
            looks, slowed = (before.facts.number(place, name) or 0.0 for name in (LOOKS, SLOWED))
            began, share = before.facts.number(place, SINCE), before.facts.number(place, SHARE)
            since = now.at if began is None else began
        if now.at - since > WINDOW_S:
            share = slowed / looks if looks >= WINDOW_LOOKS_MIN else None
            looks, slowed, since = 0.0, 0.0, now.at
        if _at_work(now, place):
            looks, slowed = looks + 1, slowed + bool(_bits(now, place) & HARDWARE)
        kept = {LOOKS: looks, SLOWED: slowed, SINCE: since}
        values[place] = {**values[place], **kept, **({SHARE: share} if share is not None else {})}
    return replace(now, facts=replace(now.facts, values=values))


def judge(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does the hardware, or the driver for heat, hold down the clocks of a GPU at work?"""
    limit = "none at work"
    busy = [
        place for place in gpus(now) if _at_work(now, place) and now.facts.number(place, "clock_reasons") is not None
    ]
    if not busy:
        known = any(now.facts.number(place, "clock_reasons") is not None for place in gpus(now))
        return Outcome("-", limit, unknown="no GPU is at work" if known else why_not(now, "clock_reasons"))
    found = tuple(one for place in busy if (one := _finding(now, before, place, busy, policy)) is not None)
    return Outcome(f"{len(found)} of {len(busy)} at work", limit, found)


def _finding(now: Reading, before: Reading | None, place: str, busy: list[str], policy: HealthPolicy) -> Finding | None:
    bits = _bits(now, place)
    words = next((words for bit, words in REASONS if bits & bit), "")
    if not words or before is None or not comparable(now, before) or not _same(now, before, place):
        return None
    if not (_at_work(before, place) and _bits(before, place) & (HARDWARE | SOFTWARE_HEAT)):
        return None
    also = sum(bool(_bits(now, other) & (HARDWARE | SOFTWARE_HEAT)) for other in busy) - 1
    company = f", as {also} more at work here" if also else ""
    share, clock, usual = now.facts.number(place, SHARE) or 0.0, now.facts.number(place, "sm_clock_mhz"), 0.0
    clocks = [mhz for other in busy if (mhz := now.facts.number(other, "sm_clock_mhz")) is not None]
    if len(clocks) >= PEERS_MIN_COUNT:
        usual = median(clocks)
    evidence = Evidence(bits, _bits(before, place), now.at - before.at)
    if bits & HARDWARE and share >= WINDOW_SHARE and clock is not None and clock < policy.clock_share * usual:
        sentence = (
            f"{place} is slowed down {words}, in {share * 100:.0f} % of all looks of {span(WINDOW_S)}: {clock:.0f} MHz"
            f" while the GPUs beside it run at {usual:.0f}{company}"
        )
        return finding("gpu_slowed", place, Severity.FAIL, sentence, evidence, Needs.ADMIN, sticky=Sticky.CLEAN)
    sentence = f"{place} is at work and slowed down {words}{company}"
    return finding("gpu_slowed", place, Severity.WARN, sentence, evidence, Needs.ADMIN, sticky=Sticky.CLEAN)


def _at_work(reading: Reading, place: str) -> bool:
    return (reading.facts.number(place, "busy_percent") or 0.0) >= BUSY_PERCENT


def _bits(reading: Reading, place: str) -> int:
    return int(reading.facts.number(place, "clock_reasons") or 0)


def _same(now: Reading, before: Reading, place: str) -> bool:
    return now.facts.get(place, "uuid") == before.facts.get(place, "uuid")


CHECKS = (Check("gpu_slowed", "gpu", "nothing holds down GPUs at work", judge, 15.0),)
