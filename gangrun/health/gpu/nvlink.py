"""NVLinks: are they up, as fast as their like, and do they carry data whole. The reading: ``gpu``.

A GPU has up to 18 of them, and what breaks one breaks them all more often than not. NVLink errors of one GPU are
reported as one finding: its place is "gpu 3 links", and its sentence says which links they are.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Rows, ShareOfPeers
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    Check,
    CheckLook,
    CheckOutcome,
    Needs,
    Reading,
    Scope,
    Sticky,
)  # fmt: skip
from gangrun.health.gpu.devices import GPU, gpus

_LINK = re.compile(r"gpu \d+ link \d+")
NO_LINKS, NO_NVLINK5 = "these GPUs have no NVLink", "these GPUs have no NVLink 5"
NONE_UP = "no NVLink that is up says its speed"


def _why_not(look: CheckLook, name: str) -> str:
    if not gpus(look):
        return GPU.why_not(look, name)
    if name in (NVLINK5[0].reading, WRONG[0].reading):
        return NO_NVLINK5
    if name != NVLINK_ERRORS[0].reading:
        return NO_LINKS if name == "active" else GPU.why_not(look, name)
    if look.facts.places_with("recoveries"):
        return "these GPUs have NVLink 5, which counts link errors in other counters"
    has = any(_LINK.fullmatch(place) for place in look.facts.values)
    return look.facts.why_missing(name) or "not counted" if has else NO_LINKS


LINK = replace(GPU, scope=Scope.LINK, places=lambda look, name: look.facts.places_with(name), why_not=_why_not,
               part_of=lambda place: place.partition(" link ")[0])  # fmt: skip


def judge_state(look: CheckLook) -> CheckOutcome:
    """Is every link up? Cards with a connector and no bridge have none that is."""
    links = look.numbers("active")
    if links and not any(links.values()):
        none = f"0 of {len(links)} up"
        return CheckOutcome(none, "all up", unknown="no NVLink of this node is up: it may not be wired")
    return STATE(look)


def _often(counter: str, says: str) -> Bound:
    """A warning each, as sources disagree whether these do harm."""
    return Bound(counter, "nvlink_errors_per_min", WARN, says, "", BoundMeasure.RATE, Breaks.AT_LEAST, per_s=60.0,
                 least_s=60.0, needs=Needs.NONE, sticky=Sticky.CLEAN)  # fmt: skip


def _is_up(now: Reading, place: str) -> bool:
    return bool(now.facts.number(place, "active") and now.facts.number(place, "speed_mbps"))


DOWN = Bound("active", 0, FAIL, "NVLink is down", "", BoundMeasure.FLAG, Breaks.EQUAL, good=1)
STATE = Rows((DOWN,), "all up", "{good} of {count} up")
SPEED = Bound(
    "speed_mbps", ShareOfPeers("nvlink_speed_share", "model", 1, most=True), WARN, "link speed",
    "Ranks wait for this GPU", breaks=Breaks.BELOW, where=_is_up, needs=Needs.ADMIN, sticky=Sticky.NO,
)  # fmt: skip
NVLINK_ERRORS = (
    _often("replay", "replays"),
    _often("recovery", "recoveries"),
    _often("crc", "checksum errors"),
    _often("crc_data", "checksum errors of data"),
    _often("ecc", "ECC errors of data"),
)
NVLINK5 = (
    Bound("recoveries_failed", 0, FAIL, "links that could not be brought back", measure=BoundMeasure.GROWTH),
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
WRONG = (
    Bound("effective_ber", "nvlink_effective_ber", WARN, "share of bits that were wrong after correction",
          needs=Needs.ADMIN, sticky=Sticky.CLEAN),
    Bound("symbol_ber", "nvlink_symbol_ber", WARN, "share of symbols that were wrong", needs=Needs.ADMIN,
          sticky=Sticky.CLEAN),
)  # fmt: skip
COUNTERS_BAD = "{bad} of {compared} counters"
CHECKS = (
    Check("nvlink_state", "gpu", "every NVLink is up", judge_state, 60.0, LINK),
    Check("nvlink_errors", "gpu", "NVLink errors do not grow",
          Rows(NVLINK_ERRORS, lambda p: f"< {p.nvlink_errors_per_min:g}/min", COUNTERS_BAD, each=True), 60.0, LINK),
    Check("nvlink_speed", "gpu", "NVLinks run at full speed",
          Rows((SPEED,), "= the fastest of its kind", "{range}", nobody=NONE_UP), 60.0, LINK),
    Check("nvlink5_errors", "gpu", "NVLink 5 loses nothing",
          Rows(NVLINK5, lambda p: f"0 failed, < {p.nvlink_errors_per_min:g}/min", COUNTERS_BAD, each=True), 60.0, LINK),
    Check("nvlink5_rates", "gpu", "NVLink 5 gets few bits wrong",
          Rows(WRONG, lambda p: f"<= {p.nvlink_effective_ber:g} of the bits", "{most} at most", each=True), 60.0, LINK),
)  # fmt: skip
