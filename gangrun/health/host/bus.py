"""PCIe errors as the kernel counts them, and time in which the host stood still for want of something.

Errors of the bus: of GPUs, network and storage cards and the bridges above them (AER). Pressure: PSI, where the kernel
has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Facts,
    Finding,
    Needs,
    Outcome,
    Reading,
    Scope,
    Severity,
    Sticky,
    Value,
)
from gangrun.health.framework.files import text_of
from gangrun.health.framework.growth import FIRST_LOOK, all_growths
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings

NAME, NODE = "bus", "node"
CLASSES = ("0x01", "0x02", "0x03", "0x0604")  # storage, network, display, bridge to PCIe
COUNTERS = (("fatal", "TOTAL_ERR_FATAL"), ("nonfatal", "TOTAL_ERR_NONFATAL"))
DEVICES_MAX_COUNT = 512
AER_MAX_BYTES = 2048
_FULL = re.compile(r"^full avg10=\S+ avg60=(\d{1,3}(?:\.\d+)?)", re.MULTILINE)


def read(around: Surroundings) -> Facts:
    """A place for each device that counts its errors, and ``node`` for pressure."""
    values: dict[str, dict[str, Value]] = {NODE: {}}
    missing: dict[str, dict[str, str]] = {NODE: {}}
    for device in _devices(around.root / "sys/bus/pci/devices"):
        counts: dict[str, Value] = {}
        for name, total in COUNTERS:
            match = re.search(
                rf"^{total} (\d{{1,18}})$", text_of(device / f"aer_dev_{name}", AER_MAX_BYTES), re.MULTILINE
            )
            if match:
                counts[name] = int(match[1])
        if counts:
            values[f"pci {device.name}"] = counts
    if len(values) == 1:
        missing[NODE]["fatal"] = "the kernel counts no PCIe errors here, or users may not read them"
    for what in ("memory", "io"):
        match = _FULL.search(text_of(around.root / "proc/pressure" / what))
        if match:
            values[NODE][what] = float(match[1]) / 100
        else:
            missing[NODE][what] = "the kernel does not measure pressure (PSI)"
    return Facts(values, missing)


def _devices(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [one for one in found if text_of(one / "class").startswith(CLASSES)][:DEVICES_MAX_COUNT]


def judge_errors(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did the bus lose anything since the last look? What it mended itself is left to replays."""
    del policy
    limit = "0 new fatal or nonfatal"
    if not now.facts.places_with("fatal"):
        return Outcome("-", limit, unknown=now.facts.why_missing("fatal") or "no device counts them")
    grown = [(name, place, one) for name, _ in COUNTERS for place, one in all_growths(now, before, name)]
    if not grown:
        return Outcome("-", limit, unknown=FIRST_LOOK)
    found = []
    for name, place, one in grown:
        if one.count > 0:
            severity = Severity.FAIL if name == "fatal" else Severity.WARN
            sentence = f"{place}: {name} PCIe errors went {one.words}"
            cause, needs = CauseClass.HARDWARE, Needs.REBOOT if name == "fatal" else Needs.ADMIN
            found.append(
                Finding(
                    "host_pcie_errors", Scope.NODE, place, severity, cause, needs, Sticky.BOOT, one.evidence, sentence
                )
            )
    return Outcome(f"{len(found)} of {len(grown)} counters", limit, tuple(found))


def judge_pressure(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did everything stand still for want of memory or disks, for much of the last minute?"""
    del before
    limit = f"<= {policy.pressure_share * 100:.0f} % of a minute"
    shares = {what: share for what in ("memory", "io") if (share := now.facts.number(NODE, what)) is not None}
    if not shares:
        return Outcome("-", limit, unknown=now.facts.why_missing("memory") or "it was not measured")
    found = tuple(
        Finding(
            "host_pressure", Scope.NODE, NODE, Severity.WARN, CauseClass.EITHER, Needs.NONE, Sticky.NO, Evidence(share),
            f"all processes waited for {words} {share * 100:.0f} % of the last minute, which slows ranks down",
        )
        for what, words in (("memory", "memory"), ("io", "disks or file servers"))
        if (share := shares.get(what, 0.0)) > policy.pressure_share
    )  # fmt: skip
    shown = ", ".join(f"{what} {share * 100:.0f} %" for what, share in shares.items())
    return Outcome(shown, limit, found)


FAMILY = Family(
    NAME,
    5.0,
    read,
    (
        Check("host_pcie_errors", NAME, "the PCIe bus loses nothing", judge_errors, 60.0),
        Check("host_pressure", NAME, "the host does not stand still", judge_pressure, 60.0),
    ),
    counters=frozenset(name for name, _ in COUNTERS),
)
