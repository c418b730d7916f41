"""How GPUs run: heat, throttling, PCIe, fabric. The reading: ``gpu``."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from gangrun.health.framework import counters, firmware
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
from gangrun.health.framework.growth import FIRST_LOOK, all_growths, comparable, span, with_windows
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family
from gangrun.health.gpu import memory, nvlink, peers, presence, slowed, wear
from gangrun.health.gpu.presence import each, finding, gpus, why_not
from gangrun.health.gpu.use import of_job

THROTTLES = (  # (counter of nanoseconds, words)
    ("throttled_heat_ns", "slowed down by its own heat guard"),
    ("throttled_software_heat_ns", "slowed down for heat by the driver"),
    ("power_brake_ns", "slowed down by the power brake: power supply or rack"),
)
FABRIC_DONE, FABRIC_NONE, FABRIC_IN_PROGRESS = 3, 0, 2
SUMMARY_BAD, SUMMARY_NONE = (2, 3), 0
FABRIC_TRUE = 1
FABRIC_MASK = (  # (shift of two bits, words, is it broken while it lasts)
    (0, "its bandwidth is degraded", True),
    (4, "a route is unhealthy", True),
    (2, "a route is being recovered", False),
    (6, "it recovers from an access that timed out", False),
)
HOT_FOR_S = 300.0
HOT_SINCE = "no margin since"


def judge_temperature(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Degrees left before a GPU slows itself down, and each beside its peers."""
    del before
    middle = median([v for p in gpus(now) if (v := now.facts.number(p, "temperature_c")) is not None] or [0.0])

    def bad(place: str, heat: float) -> Finding | None:
        margin, slowdown = now.facts.number(place, "margin_c"), now.facts.number(place, "slowdown_c")
        if margin is None and slowdown is not None:
            margin = slowdown - heat
        needs, sticky = Needs.ADMIN, Sticky.NO
        since = now.facts.number(place, HOT_SINCE)
        if since is not None and now.at - since >= HOT_FOR_S:
            sentence = f"{place} is at {heat:.0f} °C, and has been too hot not to slow down for {span(now.at - since)}"
            return finding(
                "gpu_temperature", place, Severity.FAIL, sentence, Evidence(heat), needs, sticky=Sticky.CLEAN
            )
        if margin is not None and margin < policy.margin_warn_c:
            sentence = f"{place} is at {heat:.0f} °C, {margin:.0f} °C before it slows down: look at its cooling"
            return finding("gpu_temperature", place, Severity.WARN, sentence, Evidence(heat), needs, sticky=sticky)
        if heat - middle > policy.above_peers_c and len(gpus(now)) > 2:
            sentence = f"{place} is at {heat:.0f} °C while GPUs beside it are at {middle:.0f} °C: look at its cooling"
            return finding("gpu_temperature", place, Severity.WARN, sentence, Evidence(heat), needs, sticky=sticky)
        hot = now.facts.number(place, "memory_temperature_c")
        most = now.facts.number(place, "memory_most_c") or policy.memory_temperature_c
        if hot is not None and hot >= min(most, policy.memory_temperature_c):
            sentence = f"the memory of {place} is at {hot:.0f} °C: it may slow down without any other sign"
            return finding("gpu_temperature", place, Severity.WARN, sentence, Evidence(hot), needs, sticky=sticky)
        return None

    limit = f">= {policy.margin_warn_c:g} °C margin"
    return each(now, "temperature_c", limit, lambda all_of: f"{max(all_of):.0f} °C at most", bad)


def _with_heat(now: Reading, before: Reading | None) -> Reading:
    """Carry on since when each look found a GPU so hot that it must slow down."""
    values = dict(now.facts.values)
    for place in gpus(now):
        margin = now.facts.number(place, "margin_c")
        if margin is not None and margin <= 0:
            same = before is not None and comparable(now, before)
            since = before.facts.number(place, HOT_SINCE) if before is not None and same else None
            values[place] = {**values[place], HOT_SINCE: now.at if since is None else since}
    return replace(now, facts=replace(now.facts, values=values))


def judge_throttled(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """The share of time in which a GPU was slowed down; what it is at this moment is chance."""
    limit = f"<= {policy.throttle_share * 100:g} % of the time"
    found, compared, most = [], False, 0.0
    for counter, words in THROTTLES:
        for place, grown in all_growths(now, before, counter, "uuid"):
            compared = True
            share = min(1.0, grown.count / 1e9 / grown.over_s)
            most = max(most, share)
            if share > policy.throttle_share:
                sentence = f"{place} was {words}, {share * 100:.0f} % of the last {span(grown.over_s)}"
                sticky = Sticky.CLEAN
                found.append(
                    finding("gpu_throttled", place, Severity.WARN, sentence, grown.evidence, Needs.ADMIN, sticky=sticky)
                )
    if not compared:
        known = any(now.facts.places_with(counter) for counter, _ in THROTTLES)
        return Outcome("-", limit, unknown=FIRST_LOOK if known else why_not(now, THROTTLES[0][0]))
    return Outcome(f"{most * 100:.0f} % at most", limit, tuple(found))


def judge_pcie(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Lanes of the bus; their speed drops when a GPU rests, so only their number is judged."""
    del before, policy

    def bad(place: str, width: float) -> Finding | None:
        full = now.facts.number(place, "pcie_width_max")
        if full is None or width >= full:
            return None
        sentence = f"{place} is connected by {width:.0f} PCIe lanes instead of {full:.0f}: copies to it are slow"
        return finding("gpu_pcie", place, Severity.FAIL, sentence, Evidence(width, full), Needs.REBOOT)

    return each(now, "pcie_width", "= its maximum", lambda all_of: f"x{min(all_of):.0f}", bad)


def judge_fabric(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """On machines with NVSwitch CUDA does not start before the fabric is up."""
    del before, policy

    def bad(place: str, state: float) -> Finding | None:
        status, summary = now.facts.number(place, "fabric_status") or 0, now.facts.number(place, "fabric_summary")
        mask = int(now.facts.number(place, "fabric_mask") or 0)
        wrong = [(words, broken) for shift, words, broken in FABRIC_MASK if mask >> shift & 3 == FABRIC_TRUE]
        joined, unwell = state == FABRIC_DONE and status == 0, summary in SUMMARY_BAD
        if state == FABRIC_NONE or (joined and not wrong and not unwell):
            return None
        if joined:
            severity = Severity.FAIL if unwell or any(broken for _, broken in wrong) else Severity.WARN
            what = " and ".join(words for words, _ in wrong) or f"it is not well (health {summary:.0f})"
            sentence, evidence = f"{place}: {what} in the NVLink fabric", Evidence(mask)
            return finding("gpu_fabric", place, severity, sentence, evidence, Needs.ADMIN, CauseClass.EITHER)
        if state == FABRIC_IN_PROGRESS:
            sentence = f"{place} is still being joined to the NVLink fabric; if that lasts minutes, CUDA will not start"
            return finding("gpu_fabric", place, Severity.WARN, sentence, Evidence(state), Needs.ADMIN, sticky=Sticky.NO)
        how = f"state {state:.0f}, status {status:.0f}, health {summary}"
        sentence = f"{place} is not part of the NVLink fabric ({how}): the Fabric Manager must be looked at"
        return finding("gpu_fabric", place, Severity.FAIL, sentence, Evidence(how), Needs.ADMIN, CauseClass.EITHER)

    outcome = each(now, "fabric_state", "joined, well", _joined, bad)
    unwell_count = len(outcome.findings)
    return replace(outcome, shown=f"{outcome.shown}, {unwell_count} unwell") if unwell_count else outcome


def _joined(all_of: list[float]) -> str:
    return f"{sum(state == FABRIC_DONE for state in all_of)} joined"


def remember(now: Reading, before: Reading | None) -> Reading:
    """What is judged over ten minutes: corrected errors, whether they grow worse, and what holds clocks down."""
    now = _with_heat(slowed.with_history(now, before), before)
    return memory.with_rates(with_windows(now, before, {"ecc_corrected": memory.ECC_WINDOW_S}), before)


_CHECKS = (
    *presence.CHECKS,
    *firmware.CHECKS,
    *memory.CHECKS,
    Check("gpu_temperature", "gpu", "GPUs are cool enough", judge_temperature, 15.0),
    Check("gpu_throttled", "gpu", "GPUs are not slowed down", judge_throttled, 60.0),
    Check("gpu_pcie", "gpu", "GPUs have all PCIe lanes", judge_pcie, 60.0),
    Check("gpu_fabric", "gpu", "GPUs have joined the NVLink fabric", judge_fabric, 60.0),
    *nvlink.CHECKS,
    *wear.CHECKS,
    *peers.CHECKS,
    *slowed.CHECKS,
)
FAMILY = Family(
    "gpu",
    presence.CHILD_WITHIN_S + 2.0,
    presence.read,
    tuple(map(of_job, _CHECKS)),
    remember,
    frozenset(
        {
            counters.UUID,
            "ecc_uncorrected_ever",
            "ecc_corrected",
            "ecc_corrected then",
            "ecc_corrected since",
            "pcie_replays",
            *(name for name, _ in nvlink.NVLINK_ERRORS),
            *(name for name, _, _ in nvlink.NVLINK5_COUNTERS),
        }
    ),
    counters.by_uuid,
)
