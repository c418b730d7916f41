"""The shapes of node health: what was read, what was found, what it means.

A ``Reading`` is plain enough to be kept as JSON: recorded ones are the tests' data, and the one of a few seconds
or attempts ago is the baseline for counters. ``Outcome`` is what a check's pure half says of it.
Three things are never mixed up: bad hardware (fail), poor hardware (warn), and a check that could not look (unknown).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gangrun.health.framework.policy import HealthPolicy

Value = int | float | str


class Scope(Enum):
    """What a finding is about, and so what would have to be replaced."""

    GPU = "gpu"
    LINK = "link"
    PORT = "port"
    NODE = "node"
    FS = "fs"


class Severity(Enum):
    """How bad; ``UNKNOWN`` says that nobody could look, and never counts against a node."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class CauseClass(Enum):
    """Whose it is, as far as one finding can tell."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    ELSEWHERE = "elsewhere"  # a peer's, the fabric's, its manager's or a program's: no sign against what counted it
    EITHER = "either"
    CONFIG = "config"


class Needs(Enum):
    """What cures it. All but the first two take an administrator: gangrun can only leave the node out and say so."""

    NONE = "none"
    RESTART = "restart"
    RESET = "reset"
    REBOOT = "reboot"
    RMA = "rma"
    ADMIN = "admin"


class Sticky(Enum):
    """How long a finding holds once the sign of it is gone."""

    NO = "while it is seen"
    BOOT = "until the node has booted anew"
    CLEAN = "until it was clean several times running"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What it was, what it is now, and the time between; ``old`` is None where only the state counts."""

    new: Value
    old: Value | None = None
    over_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with all that whoever repairs it must know."""

    check: str
    scope: Scope
    place: str  # "gpu 3", "mlx5_0 port 1", "/dev/shm"
    severity: Severity
    cause: CauseClass
    needs: Needs
    sticky: Sticky
    evidence: Evidence
    sentence: str
    beside: bool = False  # about a device that this job may not use
    devices_count: int = 1  # as several links of one GPU are one finding


@dataclass(frozen=True, slots=True)
class Facts:
    """What a family's edge brought back: values by place and name, and why the others are missing."""

    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    absent: str = ""  # why there is nothing to read at all ("no GPU here"): every check of the family is unknown

    def get(self, place: str, name: str) -> Value | None:
        """A value, or None."""
        return self.values.get(place, {}).get(name)

    def number(self, place: str, name: str) -> float | None:
        """A value that is a number, or None: whatever else stands there is no measurement."""
        value = self.get(place, name)
        return None if value is None or isinstance(value, str) or math.isnan(value) else value

    def places_with(self, name: str) -> tuple[str, ...]:
        """Where ``name`` was measured, in the order in which it was read."""
        return tuple(place for place, values in self.values.items() if name in values)

    def why_missing(self, name: str) -> str:
        """In one place's words, why ``name`` was measured nowhere."""
        return next((names[name] for names in self.missing.values() if name in names), "")


@dataclass(frozen=True, slots=True)
class Reading:
    """Facts with the moment they were taken at, and the boot in which counters count."""

    family: str
    at: float  # seconds of a clock that never goes back
    boot_id: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class Outcome:
    """A check's judgement: what to show, against which limit, and what is wrong. Not measured: ``unknown`` says why."""

    shown: str
    limit: str = ""
    findings: tuple[Finding, ...] = ()
    unknown: str = ""
    alike: Mapping[str, str] = field(default_factory=dict)  # what should be the same on every node, by what it is


Judge = Callable[[Reading, "Reading | None", HealthPolicy], Outcome]


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a node. ``judge`` is pure: this reading, the one before (or None), policy."""

    name: str
    family: str
    asks: str  # for people: what it looks at
    judge: Judge
    every_s: float = 60.0  # while a gang runs


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to on this node."""

    check: str
    family: str
    severity: Severity
    shown: str
    limit: str
    words: str  # one sentence: the worst finding's, or why it is unknown; "" where all is well
    findings: tuple[Finding, ...] = ()
    took_s: float = 0.0  # that what it judges, and others of its family with it, took to be read
    alike: Mapping[str, str] = field(default_factory=dict)


_ORDER = (Severity.OK, Severity.UNKNOWN, Severity.WARN, Severity.FAIL)


def worst(severities: list[Severity]) -> Severity:
    """The worst of several; not knowing is worse than well, and better than anything seen."""
    return max(severities, key=_ORDER.index, default=Severity.OK)


def verdict_of(check: Check, outcome: Outcome) -> Verdict:
    """The outcome of a check under one word."""
    if outcome.findings:
        top = worst([finding.severity for finding in outcome.findings])
        told = next(finding.sentence for finding in outcome.findings if finding.severity is top)
        more = len(outcome.findings) - 1
        words = f"{told} (and {more} more)" if more else told
        found = outcome.findings
        return Verdict(check.name, check.family, top, outcome.shown, outcome.limit, words, found, alike=outcome.alike)
    if outcome.unknown:
        return Verdict(check.name, check.family, Severity.UNKNOWN, outcome.shown or "-", outcome.limit, outcome.unknown)
    return Verdict(check.name, check.family, Severity.OK, outcome.shown, outcome.limit, "", alike=outcome.alike)


def unknown_verdict(check: Check, why: str) -> Verdict:
    """A check that could not look."""
    return Verdict(check.name, check.family, Severity.UNKNOWN, "-", "", why)
