"""What wears out, or slows a GPU down beside its peers. The reading: ``gpu``."""

from __future__ import annotations

from statistics import median

from gangrun.health.framework.check import Check, Evidence, Finding, Needs, Outcome, Reading, Severity, Sticky
from gangrun.health.framework.growth import FIRST_LOOK, growth
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import each, finding, gpus, why_not

REPLAYS_PER_LANE_MIN = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # by PCIe generation, as DCGM has them
NEWEST_GENERATION = 6
BUSY_PERCENT = 50.0
PEERS_MIN_COUNT = 3


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


CHECKS = (
    Check("gpu_spare_rows", "gpu", "memory banks have spare rows", judge_spare_rows, 300.0),
    Check("gpu_clocks", "gpu", "busy GPUs run alike", judge_clocks, 15.0),
    Check("gpu_pcie_replays", "gpu", "PCIe seldom sends again", judge_replays, 60.0),
)
