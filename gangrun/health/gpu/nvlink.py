"""NVLinks: are they up, as fast as their like, and do they carry data whole. The reading: ``gpu``.

A GPU has up to 18 of them, and what breaks one breaks them all more often than not. NVLink errors of one GPU are
reported as one finding: its place is "gpu 3 links", and its sentence says which links they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from gangrun.core.nodeset import fold
from gangrun.health.framework.bounds import Bound, BoundMeasure, counters
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    Check,
    CheckLook,
    CheckOutcome,
    Finding,
    Growth,
    Needs,
    Scope,
    Sticky,
    span,
)  # fmt: skip
from gangrun.health.gpu.devices import GPU, gpus

_LINK = re.compile(r"(gpu \d+) link (\d+)")
_T = TypeVar("_T")
NO_LINKS, NO_NVLINK5 = "these GPUs have no NVLink", "these GPUs have no NVLink 5"


def _why_not(look: CheckLook, name: str) -> str:
    if not gpus(look):
        return GPU.why_not(look, name)
    if name in (NVLINK5[0].reading, RATES[0].reading):
        return NO_NVLINK5
    if name != NVLINK_ERRORS[0].reading:
        return NO_LINKS if name == "active" else GPU.why_not(look, name)
    if look.facts.places_with("recoveries"):
        return "these GPUs have NVLink 5, which counts link errors in other counters"
    has = any(_LINK.fullmatch(place) for place in look.facts.values)
    return look.facts.why_missing(name) or "not counted" if has else NO_LINKS


LINK = replace(GPU, scope=Scope.LINK, places=lambda look, name: look.facts.places_with(name), why_not=_why_not)


def _by_gpu(links: Mapping[str, _T]) -> dict[str, dict[str, _T]]:
    found: dict[str, dict[str, _T]] = {}
    for place, value in links.items():
        match = _LINK.fullmatch(place)
        found.setdefault(match[1] if match else place, {})[place] = value
    return found


def _numbers(links: Mapping[str, object]) -> str:
    """``0-3,17``."""
    return fold(link.rpartition(" ")[2] for link in links).strip("[]")


def _of_several(one: Finding, gpu: str, links: Mapping[str, object]) -> Finding:
    """The finding in a place of its own, if it is of several links: what they count is no sign that the GPU is poor."""
    return one if len(links) == 1 else replace(one, place=f"{gpu} links", devices_count=len(links))


def _which(gpu: str, links: Mapping[str, object], worst: str) -> tuple[str, str]:
    """The place as the sentence has it, and which links it is about."""
    return (worst, "") if len(links) == 1 else (gpu, f" at most, on {len(links)} links ({_numbers(links)})")


def judge_state(look: CheckLook) -> CheckOutcome:
    """Is every link of a GPU that has links up?"""
    links = look.numbers("active")
    if not links:
        return look.unknown("all up", "active")
    down = {place: active for place, active in links.items() if not active}
    shown = f"{len(links) - len(down)} of {len(links)} up"
    if len(down) == len(links):  # cards with a connector and no bridge
        return CheckOutcome(shown, "all up", unknown="no NVLink of this node is up: it may not be wired")
    here, found = _by_gpu(links), []
    for gpu, gone in _by_gpu(down).items():
        many = f"{len(gone)} of {len(here[gpu])} NVLinks of {gpu} are down ({_numbers(gone)})"
        place = next(iter(gone)) if len(gone) == 1 else gpu
        sentence = f"{place} is down" if len(gone) == 1 else many
        found.append(_of_several(look.found(FAIL, place, sentence, "down", "up"), gpu, gone))
    return CheckOutcome(shown, "all up", tuple(found))


def _grown(look: CheckLook, bound: Bound, bad: Mapping[str, Growth]) -> list[Finding]:
    """A finding for each GPU with links that count too much, made of the worst."""
    found = []
    for gpu, links in _by_gpu(bad).items():
        worst = max(links, key=lambda place: links[place].count)
        grown = links[worst]
        place, which = _which(gpu, links, worst)
        sentence = (
            f"{place}: {bound.sentence} went from {grown.old:.0f} to {grown.new:.0f} in {span(grown.over_s)}{which}"
        )
        one = look.found(bound.severity, place, sentence, grown.evidence, needs=bound.needs, sticky=bound.sticky)
        found.append(_of_several(one, gpu, links))
    return found


def _often(counter: str, words: str) -> Bound:
    """A warning each, as sources disagree whether these do harm."""
    limit, of, needs, sticky = "nvlink_errors_per_min", BoundMeasure.PER_MIN, Needs.NONE, Sticky.CLEAN
    return Bound(counter, limit, WARN, words, of, reached=True, needs=needs, sticky=sticky)


NVLINK_ERRORS = (
    _often("replay", "replays"),
    _often("recovery", "recoveries"),
    _often("crc", "checksum errors"),
    _often("crc_data", "checksum errors of data"),
    _often("ecc", "ECC errors of data"),
)
NVLINK5 = (
    Bound("recoveries_failed", 0, FAIL, "links that could not be brought back", BoundMeasure.GROWTH),
    _often("recoveries", "links that went down and came back"),
    _often("receive_errors", "errors of what was received"),
    _often("remote_errors", "packets that were damaged before"),
    _often("general_errors", "other errors of what was received"),
    _often("discards", "packets that could not be sent"),
    _often("malformed_packets", "malformed packets"),
    _often("buffer_overruns", "overruns of a buffer"),
    _often("integrity_errors", "errors of the link's integrity"),
    _often("symbol_errors", "symbols that could not be corrected"),
)
RATES = (
    Bound("effective_ber", "nvlink_effective_ber", WARN, "bits that were wrong after correction"),
    Bound("symbol_ber", "nvlink_symbol_ber", WARN, "symbols that were wrong"),
)
judge_errors = counters(*NVLINK_ERRORS, limit=lambda p: f"< {p.nvlink_errors_per_min:g}/min", group=_grown)
judge_nvlink5 = counters(*NVLINK5, limit=lambda p: f"0 failed, < {p.nvlink_errors_per_min:g}/min", group=_grown)


def judge_speed(look: CheckLook) -> CheckOutcome:
    """Does every link that is up run as fast as the fastest of its kind?"""
    limit = "= the fastest of its kind"
    up = {place: speed for place, speed in look.numbers("speed_mbps").items() if speed and look.number(place, "active")}
    speeds = _by_gpu(up)
    if not speeds:
        return CheckOutcome("-", limit, unknown=LINK.why_not(look, "speed_mbps"))
    best: dict[object, float] = {}
    for gpu, links in speeds.items():
        model = look.facts.get(gpu, "model")
        best[model] = max(best.get(model, 0.0), *links.values())
    found = []
    for gpu, links in speeds.items():
        full = best[look.facts.get(gpu, "model")]
        slow = {place: speed for place, speed in links.items() if speed < look.policy.nvlink_speed_share * full}
        if slow:
            alone, speed = len(slow) == 1, min(slow.values())
            place = next(iter(slow)) if alone else gpu
            whose = f"{place} runs" if alone else f"{len(slow)} of {len(links)} NVLinks of {gpu} run"
            which = "" if alone else f" ({_numbers(slow)})"
            beside = f"links beside {'it' if alone else 'them'} at {full:.0f}{which}: ranks wait for {gpu}"
            sentence = f"{whose} at {speed:.0f} MB/s, and {beside}"
            one = look.found(WARN, place, sentence, speed, full, Needs.ADMIN, sticky=Sticky.NO)
            found.append(_of_several(one, gpu, slow))
    told = sorted(set(up.values()), reverse=True)
    return CheckOutcome(", ".join(f"{speed:.0f}" for speed in told[:3]) + " MB/s", limit, tuple(found))


def judge_error_rates(look: CheckLook) -> CheckOutcome:
    """Do links of the fifth generation get more bits wrong than their error correction is made for?"""
    limit = f"<= {look.policy.nvlink_effective_ber:g} of the bits"
    rates = {bound: look.numbers(bound.reading) for bound in RATES}
    if not any(rates.values()):
        return look.unknown(limit, RATES[0].reading)
    found = []
    for bound, links in rates.items():
        most = bound.limit_of(look.policy)
        for gpu, bad in _by_gpu({p: rate for p, rate in links.items() if rate > most}).items():
            worst = max(bad, key=lambda place: bad[place])
            place, which = _which(gpu, bad, worst)
            share = f"the share of {bound.sentence} is {bad[worst]:.0e}{which}, and should be at most {most:.0e}"
            one = look.found(WARN, place, f"{place}: {share}", bad[worst], most, Needs.ADMIN, sticky=Sticky.CLEAN)
            found.append(_of_several(one, gpu, bad))
    return CheckOutcome(f"{max(rates[RATES[0]].values(), default=0.0):.0e} at most", limit, tuple(found))


CHECKS = (
    Check("nvlink_state", "gpu", "every NVLink is up", judge_state, 60.0, LINK),
    Check("nvlink_errors", "gpu", "NVLink errors do not grow", judge_errors, 60.0, LINK),
    Check("nvlink_speed", "gpu", "NVLinks run at full speed", judge_speed, 60.0, LINK),
    Check("nvlink5_errors", "gpu", "NVLink 5 loses nothing", judge_nvlink5, 60.0, LINK),
    Check("nvlink5_rates", "gpu", "NVLink 5 gets few bits wrong", judge_error_rates, 60.0, LINK),
)
