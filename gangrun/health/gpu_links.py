"""What wears out, or slows a GPU down beside its peers (room: health; pure). The reading: ``gpu``."""

from __future__ import annotations

import re
from statistics import median

from gangrun.health.check import Check, Evidence, Finding, Needs, Outcome, Reading, Scope, Severity, Sticky
from gangrun.health.gpu import each, finding, gpus, why_not
from gangrun.health.growth import FIRST_LOOK, Growth, all_growths, growth
from gangrun.health.policy import HealthPolicy

REPLAYS_PER_LANE_MIN = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # by PCIe generation, as DCGM has them
NEWEST_GENERATION = 6
BUSY_PERCENT = 50.0
PEERS_MIN_COUNT = 3
NVLINK5_COUNTERS = (  # (counter, words, is one of them a fault)
    ("recoveries_failed", "links that could not be brought back", True),
    ("recoveries", "links that went down and came back", False),
    ("receive_errors", "errors of what was received", False),
    ("malformed_packets", "malformed packets", False),
    ("buffer_overruns", "overruns of a buffer", False),
    ("integrity_errors", "errors of the link's integrity", False),
    ("symbol_errors", "symbols that could not be corrected", False),
)
NO_NVLINK5 = "these GPUs have no NVLink 5"
NVLINK5_RATES = (("effective_ber", "bits that were wrong after correction"), ("symbol_ber", "symbols that were wrong"))


def judge_replays(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How often does PCIe send again? A few are normal, and more the faster the bus is."""
    del policy
    limit = "as DCGM allows, by lanes and speed"
    grown = {p: g for p in gpus(now) if (g := growth(now, before, p, "pcie_replays", "uuid")) is not None}
    if not grown:
        known = any(now.facts.number(p, "pcie_replays") is not None for p in gpus(now))
        return Outcome("-", limit, unknown=FIRST_LOOK if known else why_not(now, "pcie_replays"))
    found, most = [], 0.0
    for place, one in grown.items():
        per_min = one.count / max(one.over_s / 60, 1.0)
        most = max(most, per_min)
        lanes = now.facts.number(place, "pcie_width") or 16.0
        generation = int(now.facts.number(place, "pcie_generation_max") or NEWEST_GENERATION)
        if per_min > lanes * REPLAYS_PER_LANE_MIN.get(generation, REPLAYS_PER_LANE_MIN[NEWEST_GENERATION]):
            sentence = f"{place}: PCIe sent again {one.count:.0f} times ({one.words}): a slot or riser may be bad"
            found.append(
                finding(
                    "gpu_pcie_replays", place, Severity.WARN, sentence, one.evidence, Needs.ADMIN, sticky=Sticky.CLEAN
                )
            )
    return Outcome(f"{most:.1f}/min at most", limit, tuple(found))


def judge_clocks(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does a busy GPU run slower than the busy ones beside it? At rest clocks say nothing."""
    del before
    limit = f">= {policy.clock_share * 100:.0f} % of its peers"
    busy = {
        place: clock
        for place in gpus(now)
        if (now.facts.number(place, "busy_percent") or 0.0) >= BUSY_PERCENT
        and (clock := now.facts.number(place, "sm_clock_mhz")) is not None
    }
    if len(busy) < PEERS_MIN_COUNT:
        known = any(now.facts.number(p, "sm_clock_mhz") is not None for p in gpus(now))
        rest = f"fewer than {PEERS_MIN_COUNT} GPUs are at work"
        return Outcome("-", limit, unknown=rest if known else why_not(now, "sm_clock_mhz"))
    middle = median(busy.values())
    found = tuple(
        finding(
            "gpu_clocks",
            place,
            Severity.WARN,
            f"{place} runs at {clock:.0f} MHz while the GPUs beside it run at {middle:.0f}: it slows all ranks down",
            Evidence(clock, middle),
            Needs.ADMIN,
            sticky=Sticky.NO,
        )
        for place, clock in busy.items()
        if clock < policy.clock_share * middle
    )
    return Outcome(f"{min(busy.values()):.0f} to {max(busy.values()):.0f} MHz", limit, found)


def judge_spare_rows(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How many banks of memory have hardly a spare row left?"""
    del before, policy

    def bad(place: str, count: float) -> Finding | None:
        if count == 0:
            return None
        sentence = f"{place} has {count:.0f} memory banks with few or no spare rows: the next faults cannot be mended"
        return finding("gpu_spare_rows", place, Severity.WARN, sentence, Evidence(count, 0), Needs.ADMIN)

    return each(now, "banks_exhausted", "0 banks", lambda all_of: f"{sum(all_of):.0f} banks", bad)


def judge_nvlink5(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do links of the fifth generation lose data, or go down and come back?"""
    limit = f"0 failed, < {policy.nvlink_errors_per_min:g}/min"
    found, compared_count, known = [], 0, False
    for counter, words, fatal in NVLINK5_COUNTERS:
        known = known or bool(now.facts.places_with(counter))
        for place, one in all_growths(now, before, counter):
            compared_count += 1
            if one.count > 0 and (fatal or one.count / max(one.over_s / 60, 1.0) >= policy.nvlink_errors_per_min):
                found.append(_link(place, words, one, fatal))
    if not compared_count:
        none = NO_NVLINK5 if gpus(now) else why_not(now, "recoveries")
        return Outcome("-", limit, unknown=FIRST_LOOK if known else none)
    return Outcome(f"{len(found)} of {compared_count} counters", limit, tuple(found))


def _link(place: str, words: str, grown: Growth, fatal: bool) -> Finding:
    severity, needs = (Severity.FAIL, Needs.RESET) if fatal else (Severity.WARN, Needs.NONE)
    sticky = Sticky.BOOT if fatal else Sticky.CLEAN
    sentence = f"{place}: {words} went {grown.words}"
    return finding("nvlink5_errors", place, severity, sentence, grown.evidence, needs, sticky=sticky, scope=Scope.LINK)


def judge_error_rates(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do links of the fifth generation get more bits wrong than their error correction is made for?"""
    del before
    bounds = {"effective_ber": policy.nvlink_effective_ber, "symbol_ber": policy.nvlink_symbol_ber}
    limit = f"<= {policy.nvlink_effective_ber:g} of the bits"
    found, worst, measured_count = [], 0.0, 0
    for name, words in NVLINK5_RATES:
        for place in now.facts.places_with(name):
            rate = now.facts.number(place, name)
            if rate is None:
                continue
            measured_count += 1
            worst = max(worst, rate if name == "effective_ber" else 0.0)
            if rate > bounds[name]:
                sentence = f"{place}: the share of {words} is {rate:.0e}, and should be at most {bounds[name]:.0e}"
                evidence, needs, sticky = Evidence(rate, bounds[name]), Needs.ADMIN, Sticky.CLEAN
                found.append(
                    finding(
                        "nvlink5_rates",
                        place,
                        Severity.WARN,
                        sentence,
                        evidence,
                        needs,
                        sticky=sticky,
                        scope=Scope.LINK,
                    )
                )
    if not measured_count:
        return Outcome("-", limit, unknown=NO_NVLINK5 if gpus(now) else why_not(now, "effective_ber"))
    return Outcome(f"{worst:.0e} at most", limit, tuple(found))


def judge_speed(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does every link that is up run as fast as the fastest of its kind?"""
    del before
    limit = "= the fastest of its kind"
    speeds: dict[str, dict[str, float]] = {}  # by GPU
    for place in now.facts.places_with("speed_mbps"):
        speed = now.facts.number(place, "speed_mbps")
        if speed and now.facts.number(place, "active") and (match := re.match(r"(gpu \d+) link \d+", place)):
            speeds.setdefault(match[1], {})[place] = speed
    if not speeds:
        return Outcome("-", limit, unknown=why_not(now, "speed_mbps"))
    best: dict[object, float] = {}
    for gpu, links in speeds.items():
        model = now.facts.get(gpu, "model")
        best[model] = max(best.get(model, 0.0), *links.values())
    found = []
    for gpu, links in speeds.items():
        full = best[now.facts.get(gpu, "model")]
        slow = {place: speed for place, speed in links.items() if speed < policy.nvlink_speed_share * full}
        if slow:
            which = ", ".join(place.removeprefix(f"{gpu} ") for place in slow)
            speed = min(slow.values())
            sentence = (
                f"{len(slow)} of {len(links)} NVLinks of {gpu} run at {speed:.0f} MB/s, and links beside them at "
                f"{full:.0f} ({which}): it slows all ranks down"
            )
            evidence = Evidence(speed, full)
            found.append(finding("nvlink_speed", gpu, Severity.WARN, sentence, evidence, Needs.ADMIN, sticky=Sticky.NO))
    told = sorted({speed for links in speeds.values() for speed in links.values()}, reverse=True)
    return Outcome(", ".join(f"{speed:.0f}" for speed in told[:3]) + " MB/s", limit, tuple(found))


CHECKS = (
    Check("gpu_spare_rows", "gpu", "memory banks have spare rows", judge_spare_rows, 300.0),
    Check("gpu_clocks", "gpu", "busy GPUs run alike", judge_clocks, 15.0),
    Check("nvlink_speed", "gpu", "NVLinks run at full speed", judge_speed, 60.0),
    Check("gpu_pcie_replays", "gpu", "PCIe seldom sends again", judge_replays, 60.0),
    Check("nvlink5_errors", "gpu", "NVLink 5 loses nothing", judge_nvlink5, 60.0),
    Check("nvlink5_rates", "gpu", "NVLink 5 gets few bits wrong", judge_error_rates, 60.0),
)
