"""A GPU beside those of its kind, and its bus under load. The reading: ``gpu``.

What one look shows of work is chance, so what depends on work must show at two looks running.
"""

from __future__ import annotations

from statistics import median

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Finding,
    Needs,
    Outcome,
    Reading,
    Severity,
    Sticky,
)
from gangrun.health.framework.growth import comparable
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import each, finding, gpus, why_not

BUSY_PERCENT, IDLE_PERCENT = 50.0, 5.0
PEERS_MIN_COUNT = 3


def judge_power(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """May every GPU draw as much as the others of its model?"""
    del before
    limits: dict[object, list[float]] = {}
    for place in gpus(now):
        if (watts := now.facts.number(place, "power_limit_w")) is not None:
            limits.setdefault(now.facts.get(place, "model"), []).append(watts)

    def bad(place: str, watts: float) -> Finding | None:
        peers = limits[now.facts.get(place, "model")]
        usual = median(peers)
        if len(peers) < PEERS_MIN_COUNT or watts >= policy.power_limit_share * usual:
            return None
        sentence = (
            f"{place} may draw {watts:.0f} W while the GPUs beside it may draw {usual:.0f}: it slows all ranks down"
        )
        cause, sticky = CauseClass.EITHER, Sticky.NO
        return finding(
            "gpu_power", place, Severity.WARN, sentence, Evidence(watts, usual), Needs.ADMIN, cause, sticky=sticky
        )

    limit = f">= {policy.power_limit_share * 100:.0f} % of its peers"
    return each(now, "power_limit_w", limit, _watts, bad)


def _watts(all_of: list[float]) -> str:
    least, most = f"{min(all_of):.0f}", f"{max(all_of):.0f}"
    return f"{most} W" if least == most else f"{least} to {most} W"


def judge_pcie_speed(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does the bus of a busy GPU run at its full speed? At rest it is slow on purpose."""
    del policy
    limit = "= its maximum at work"
    busy = [place for place in gpus(now) if _is_busy(now, place) and _generations(now, place) is not None]
    if not busy:
        known = any(_generations(now, place) is not None for place in gpus(now))
        return Outcome("-", limit, unknown="no GPU is at work" if known else why_not(now, "pcie_generation"))
    found = []
    for place in busy:
        if before is None or not (_is_slow(now, place) and comparable(now, before) and _is_slow(before, place)):
            continue
        speed, full = _generations(now, place) or (0.0, 0.0)
        sentence = (
            f"{place} is at work and its PCIe runs at generation {speed:.0f} of {full:.0f}: copies to it are slow"
        )
        evidence = Evidence(speed, full, now.at - before.at)
        found.append(
            finding("gpu_pcie_speed", place, Severity.WARN, sentence, evidence, Needs.REBOOT, sticky=Sticky.NO)
        )
    return Outcome(f"{len(busy) - len(found)} of {len(busy)} at full speed", limit, tuple(found))


def judge_idle(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does a GPU that holds a program rest while others work? Who hangs or lags shows like this."""
    del policy
    limit = f">= {IDLE_PERCENT:g} % where others work"
    if not any(now.facts.number(place, "busy_percent") is not None for place in gpus(now)):
        return Outcome("-", limit, unknown=why_not(now, "busy_percent"))
    busy_count = sum(_is_busy(now, place) for place in gpus(now))
    if busy_count < PEERS_MIN_COUNT:
        return Outcome("-", limit, unknown=f"fewer than {PEERS_MIN_COUNT} GPUs are at work")
    found = tuple(
        finding(
            "gpu_idle",
            place,
            Severity.WARN,
            f"{place} does nothing while {busy_count} GPUs beside it work: its rank waits for something else, or hangs",
            Evidence(now.facts.number(place, "busy_percent") or 0.0, over_s=now.at - before.at),
            Needs.NONE,
            CauseClass.APPLICATION,
            Sticky.NO,
        )
        for place in gpus(now)
        if before is not None and _is_idle(now, place) and comparable(now, before) and _is_idle(before, place)
    )
    return Outcome(f"{busy_count} of {len(gpus(now))} at work", limit, found)


def _is_busy(reading: Reading, place: str) -> bool:
    return (reading.facts.number(place, "busy_percent") or 0.0) >= BUSY_PERCENT


def _is_idle(reading: Reading, place: str) -> bool:
    busy, held = reading.facts.number(place, "busy_percent"), reading.facts.number(place, "processes_count")
    return busy is not None and busy < IDLE_PERCENT and bool(held)


def _generations(reading: Reading, place: str) -> tuple[float, float] | None:
    speed, full = reading.facts.number(place, "pcie_generation"), reading.facts.number(place, "pcie_generation_max")
    return None if speed is None or full is None else (speed, full)


def _is_slow(reading: Reading, place: str) -> bool:
    both = _generations(reading, place)
    return _is_busy(reading, place) and both is not None and both[0] < both[1]


CHECKS = (
    Check("gpu_power", "gpu", "GPUs may draw equal power", judge_power, 300.0),
    Check("gpu_pcie_speed", "gpu", "busy GPUs have a fast bus", judge_pcie_speed, 60.0),
    Check("gpu_idle", "gpu", "no GPU rests while others work", judge_idle, 60.0),
)
