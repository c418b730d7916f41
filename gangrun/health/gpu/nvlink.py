"""NVLinks: are they up, as fast as their like, and do they carry data whole. The reading: ``gpu``.

A GPU has up to 18 of them, and what befalls one befalls them all more often than not: several links of one GPU with the
same trouble are one finding, whose place is "gpu 3 links" and which says which they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from gangrun.core.nodeset import fold
from gangrun.health.framework.check import Check, Evidence, Finding, Needs, Outcome, Reading, Scope, Severity, Sticky
from gangrun.health.framework.growth import FIRST_LOOK, Growth, all_growths, span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import finding, gpus, why_not

_LINK = re.compile(r"(gpu \d+) link (\d+)")
_T = TypeVar("_T")
NVLINK_ERRORS = (
    ("replay", "replays"),
    ("recovery", "recoveries"),
    ("crc", "checksum errors"),
    ("crc_data", "checksum errors of data"),
    ("ecc", "ECC errors of data"),
)
NVLINK5_COUNTERS = (  # (counter, words, is one of them a fault)
    ("recoveries_failed", "links that could not be brought back", True),
    ("recoveries", "links that went down and came back", False),
    ("receive_errors", "errors of what was received", False),
    ("remote_errors", "packets that were damaged before", False),
    ("general_errors", "other errors of what was received", False),
    ("discards", "packets that could not be sent", False),
    ("malformed_packets", "malformed packets", False),
    ("buffer_overruns", "overruns of a buffer", False),
    ("integrity_errors", "errors of the link's integrity", False),
    ("symbol_errors", "symbols that could not be corrected", False),
)
NO_NVLINK5 = "these GPUs have no NVLink 5"
NVLINK5_RATES = (("effective_ber", "bits that were wrong after correction"), ("symbol_ber", "symbols that were wrong"))


def _by_gpu(links: Mapping[str, _T]) -> dict[str, dict[str, _T]]:
    found: dict[str, dict[str, _T]] = {}
    for place, value in links.items():
        match = _LINK.fullmatch(place)
        found.setdefault(match[1] if match else place, {})[place] = value
    return found


def _numbers(links: Iterable[str]) -> str:
    """``0-3,17``."""
    return fold(link.rpartition(" ")[2] for link in links).strip("[]")


def _each(bad: Mapping[str, _T], one: Callable[[str, str, _T], Finding], key: Callable[[_T], float]) -> list[Finding]:
    """A finding for each GPU with bad links, made of the worst: ``one(place, which, value)``."""
    found = []
    for gpu, links in _by_gpu(bad).items():
        worst = max(links, key=lambda place: key(links[place]))
        alone = len(links) == 1
        which = "" if alone else f" at most, on {len(links)} links ({_numbers(links)})"
        told = one(worst if alone else gpu, which, links[worst])
        found.append(told if alone else _of_several(told, gpu, len(links)))
    return found


def _of_several(one: Finding, gpu: str, count: int) -> Finding:
    """In a place of its own: what links count is no sign that the GPU itself is poor."""
    return replace(one, place=f"{gpu} links", devices_count=count)


def judge_state(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is every link of a GPU that has links up?"""
    del before, policy
    links = {p: v for p in now.facts.places_with("active") if (v := now.facts.number(p, "active")) is not None}
    if not links:
        return Outcome("-", "all up", unknown="these GPUs have no NVLink" if gpus(now) else why_not(now, "active"))
    down = {place: active for place, active in links.items() if not active}
    shown = f"{len(links) - len(down)} of {len(links)} up"
    if len(down) == len(links):  # cards with a connector and no bridge
        return Outcome(shown, "all up", unknown="no NVLink of this node is up: it may not be wired")
    here, found = _by_gpu(links), []
    for gpu, gone in _by_gpu(down).items():
        alone = len(gone) == 1
        place = next(iter(gone)) if alone else gpu
        many = f"{len(gone)} of {len(here[gpu])} NVLinks of {gpu} are down ({_numbers(gone)})"
        sentence = f"{place} is down" if alone else many
        one = finding("nvlink_state", place, Severity.FAIL, sentence, Evidence("down", "up"), scope=Scope.LINK)
        found.append(one if alone else _of_several(one, gpu, len(gone)))
    return Outcome(shown, "all up", tuple(found))


def judge_errors(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Replays and recoveries: a warning each, as sources disagree whether they do harm."""
    limit = f"< {policy.nvlink_errors_per_min:g}/min"
    found, bad_count, compared_count, known = list[Finding](), 0, 0, False
    for counter, words in NVLINK_ERRORS:
        known = known or bool(now.facts.places_with(counter))
        grown = dict(all_growths(now, before, counter))
        bad = {place: one for place, one in grown.items() if _per_min(one) >= policy.nvlink_errors_per_min}
        compared_count, bad_count = compared_count + len(grown), bad_count + len(bad)
        found += _grown("nvlink_errors", words, bad, fatal=False)
    if not compared_count:
        return Outcome("-", limit, unknown=FIRST_LOOK if known else _why_no_links(now))
    return Outcome(f"{bad_count} of {compared_count} counters", limit, tuple(found))


def _per_min(grown: Growth) -> float:
    return grown.count / max(grown.over_s / 60, 1.0)


def _grown(check: str, words: str, bad: Mapping[str, Growth], *, fatal: bool) -> list[Finding]:
    severity, needs = (Severity.FAIL, Needs.RESET) if fatal else (Severity.WARN, Needs.NONE)
    sticky = Sticky.BOOT if fatal else Sticky.CLEAN

    def one(place: str, which: str, grown: Growth) -> Finding:
        sentence = f"{place}: {words} went from {grown.old:.0f} to {grown.new:.0f} in {span(grown.over_s)}{which}"
        return finding(check, place, severity, sentence, grown.evidence, needs, sticky=sticky, scope=Scope.LINK)

    return _each(bad, one, lambda grown: grown.count)


def _why_no_links(now: Reading) -> str:
    if not gpus(now):
        return why_not(now, "replay")
    has = any(re.fullmatch(r"gpu \d+ link \d+", place) for place in now.facts.values)
    if now.facts.places_with("recoveries"):
        return "these GPUs have NVLink 5, which counts in other ways"
    return now.facts.why_missing("replay") or "not counted" if has else "these GPUs have no NVLink"


def judge_speed(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does every link that is up run as fast as the fastest of its kind?"""
    del before
    limit = "= the fastest of its kind"
    up = [place for place in now.facts.places_with("speed_mbps") if now.facts.number(place, "active")]
    speeds = _by_gpu({place: speed for place in up if (speed := now.facts.number(place, "speed_mbps"))})
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
            alone, speed = len(slow) == 1, min(slow.values())
            place = next(iter(slow)) if alone else gpu
            whose = f"{place} runs" if alone else f"{len(slow)} of {len(links)} NVLinks of {gpu} run"
            which = "" if alone else f" ({_numbers(slow)})"
            beside = f"links beside {'it' if alone else 'them'} at {full:.0f}{which}: ranks wait for {gpu}"
            sentence = f"{whose} at {speed:.0f} MB/s, and {beside}"
            evidence, needs, sticky = Evidence(speed, full), Needs.ADMIN, Sticky.NO
            one = finding(
                "nvlink_speed", place, Severity.WARN, sentence, evidence, needs, sticky=sticky, scope=Scope.LINK
            )
            found.append(one if alone else _of_several(one, gpu, len(slow)))
    told = sorted({speed for links in speeds.values() for speed in links.values()}, reverse=True)
    return Outcome(", ".join(f"{speed:.0f}" for speed in told[:3]) + " MB/s", limit, tuple(found))


def judge_nvlink5(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do links of the fifth generation lose data, or go down and come back?"""
    limit = f"0 failed, < {policy.nvlink_errors_per_min:g}/min"
    found, bad_count, compared_count, known = list[Finding](), 0, 0, False
    for counter, words, fatal in NVLINK5_COUNTERS:
        known = known or bool(now.facts.places_with(counter))
        grown = dict(all_growths(now, before, counter))
        least = 0.0 if fatal else policy.nvlink_errors_per_min
        bad = {place: one for place, one in grown.items() if one.count > 0 and _per_min(one) >= least}
        compared_count, bad_count = compared_count + len(grown), bad_count + len(bad)
        found += _grown("nvlink5_errors", words, bad, fatal=fatal)
    if not compared_count:
        none = NO_NVLINK5 if gpus(now) else why_not(now, "recoveries")
        return Outcome("-", limit, unknown=FIRST_LOOK if known else none)
    return Outcome(f"{bad_count} of {compared_count} counters", limit, tuple(found))


def judge_error_rates(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do links of the fifth generation get more bits wrong than their error correction is made for?"""
    del before
    bounds = {"effective_ber": policy.nvlink_effective_ber, "symbol_ber": policy.nvlink_symbol_ber}
    limit = f"<= {policy.nvlink_effective_ber:g} of the bits"
    found, worst, measured_count = list[Finding](), 0.0, 0
    for name, words in NVLINK5_RATES:
        rates = {p: rate for p in now.facts.places_with(name) if (rate := now.facts.number(p, name)) is not None}
        measured_count += len(rates)
        if name == "effective_ber":
            worst = max(rates.values(), default=0.0)
        bad = {place: rate for place, rate in rates.items() if rate > bounds[name]}
        found += _too_many(bad, words, bounds[name])
    if not measured_count:
        return Outcome("-", limit, unknown=NO_NVLINK5 if gpus(now) else why_not(now, "effective_ber"))
    return Outcome(f"{worst:.0e} at most", limit, tuple(found))


def _too_many(bad: Mapping[str, float], words: str, bound: float) -> list[Finding]:
    def one(place: str, which: str, rate: float) -> Finding:
        sentence = f"{place}: the share of {words} is {rate:.0e}{which}, and should be at most {bound:.0e}"
        evidence, needs, sticky = Evidence(rate, bound), Needs.ADMIN, Sticky.CLEAN
        return finding(
            "nvlink5_rates", place, Severity.WARN, sentence, evidence, needs, sticky=sticky, scope=Scope.LINK
        )

    return _each(bad, one, lambda rate: rate)


CHECKS = (
    Check("nvlink_state", "gpu", "every NVLink is up", judge_state, 60.0),
    Check("nvlink_errors", "gpu", "NVLink errors do not grow", judge_errors, 60.0),
    Check("nvlink_speed", "gpu", "NVLinks run at full speed", judge_speed, 60.0),
    Check("nvlink5_errors", "gpu", "NVLink 5 loses nothing", judge_nvlink5, 60.0),
    Check("nvlink5_rates", "gpu", "NVLink 5 gets few bits wrong", judge_error_rates, 60.0),
)
