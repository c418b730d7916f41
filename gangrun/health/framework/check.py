"""The shapes of node health: what was read, how it grew, what is too much, what was found.

A ``Reading`` is plain enough to be kept as JSON: recorded ones are the tests' data, and the one of a few seconds or
attempts ago is the baseline for counters. A check is pure: it sees a ``CheckLook`` and returns a ``CheckOutcome``. Most
checks are rows of ``bounds.Bound``; a check that needs code has a function. Three things are never mixed up: bad
hardware (fail), poor hardware (warn), and a check that could not look (unknown).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

Value = int | float | str
FIRST_LOOK = "counters are judged by how they grow, and this was the first look"


class Scope(Enum):
    """What a finding is about, and so what would have to be replaced."""

    GPU = "gpu"
    LINK = "link"
    PORT = "port"
    NODE = "node"
    FS = "fs"


class Severity(Enum):
    """How bad; ``UNKNOWN`` says that the check could not look, and never counts against a node."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


WARN, FAIL = Severity.WARN, Severity.FAIL


class CauseClass(Enum):
    """Whose fault it is, as far as one finding can tell."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    ELSEWHERE = "elsewhere"  # a peer's, the fabric's, its manager's or a program's: no sign against what counted it
    EITHER = "either"
    CONFIG = "config"


class Needs(Enum):
    """What cures it. All but the first two take an administrator: gangrun can only exclude the node and say so."""

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


# ---- what was read ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a family's edge brought back: values by place and name, and why the others are missing."""

    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    absent: str = ""  # why there is nothing to read at all ("no GPU here"): every check of the family is unknown

    def get(self, place: str, name: str) -> Value | None:
        """A value, or None."""
        return self.values.get(place, {}).get(name)

    def number(self, place: str, name: str) -> float | None:
        """A value that is a number, or None: any other value is no measurement."""
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
    facts: NodeFacts

    def with_more(self, more: Mapping[str, Mapping[str, Value]]) -> Reading:
        """The reading with these values added at their places."""
        values = dict(self.facts.values)
        for place, names in more.items():
            values[place] = {**values.get(place, {}), **names}
        return replace(self, facts=replace(self.facts, values=values))


# ---- how it grew -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindingEvidence:
    """The evidence: what it is now, what it was, and the time between; ``old`` is None if only the state counts."""

    new: Value
    old: Value | None = None
    over_s: float | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """One counter, then and now."""

    old: float
    new: float
    over_s: float

    @property
    def count(self) -> float:
        """By how much it grew."""
        return self.new - self.old

    @property
    def per_s(self) -> float:
        """How much in a second, on average."""
        return self.count / self.over_s

    @property
    def evidence(self) -> FindingEvidence:
        """What goes into a finding."""
        return FindingEvidence(self.new, self.old, self.over_s)

    @property
    def words(self) -> str:
        """``from 3 to 7 in 12 s``."""
        return f"from {self.old:.0f} to {self.new:.0f} in {span(self.over_s)}"


def comparable(now: Reading, before: Reading | None) -> bool:
    """Do both count in the same boot, the one after the other?"""
    return before is not None and now.boot_id == before.boot_id and now.at > before.at


def growth(now: Reading, before: Reading | None, place: str, name: str) -> Growth | None:
    """How a counter grew between two readings. Absolute counts say nothing: they may be years old.

    Another boot, another GPU in the place, a counter that went back or time that stood still: then there is no growth,
    and the newer reading is the new baseline.
    """
    if before is None or not comparable(now, before) or now.facts.get(place, "uuid") != before.facts.get(place, "uuid"):
        return None
    new, old = now.facts.number(place, name), before.facts.number(place, name)
    return None if new is None or old is None or new < old else Growth(old, new, now.at - before.at)


def with_windows(now: Reading, before: Reading | None, windows_s: Mapping[str, float]) -> Reading:
    """Carry on, beside each counter named, what it was when its window began: rare things need longer than a look.

    A window that is over begins anew with the reading before this one, so that nothing falls between two windows. What
    is judged spans at most the window; or the time in which nobody looked, if that was longer.
    """
    more: dict[str, dict[str, Value]] = {}
    for place in now.facts.values:
        for name, window_s in windows_s.items():
            new = now.facts.number(place, name)
            if new is None:
                continue
            base, since = new, now.at
            last = growth(now, before, place, name)
            if before is not None and last is not None:
                base, since = last.old, before.at
                old, at = before.facts.number(place, f"{name} then"), before.facts.number(place, f"{name} since")
                if old is not None and at is not None and old <= new and 0 <= now.at - at <= window_s:
                    base, since = old, at
            more.setdefault(place, {}).update({f"{name} then": base, f"{name} since": since})
    return now.with_more(more)


def in_window(now: Reading, place: str, name: str) -> Growth | None:
    """Growth since the counter's window began; None at its very beginning."""
    new, old = now.facts.number(place, name), now.facts.number(place, f"{name} then")
    since = now.facts.number(place, f"{name} since")
    if new is None or old is None or since is None or now.at <= since:
        return None
    return Growth(old, new, now.at - since)


def span(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# ---- what is too much ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What is bad, and what a node is expected to have.

    Each bound names its unit; ``docs/health.md`` says where the figure comes from. An expectation that is None was not
    given: then a check compares what it sees with itself (GPUs with each other), or only shows it.
    """

    gpus_count: int | None = None
    gpus_used: tuple[str, ...] | None = None  # by number or UUID: others never fail it
    ib_devices: tuple[str, ...] = ()  # those the job uses; (): every one that is up or was up
    ib_rate_gbps: float | None = None

    margin_warn_c: float = 5.0
    above_peers_c: float = 12.0
    memory_temperature_c: float = 95.0
    leftover_bytes: float = 1e9
    ecc_corrected_per_hour: float = 1000.0
    ecc_growing_per_hour: float = 100.0  # if they come faster and faster
    power_limit_share: float = 0.9  # of what GPUs of its model beside it may draw
    remapped_rows_many: int = 10
    remapped_rows_max: int = 512
    retired_pages_max: int = 10
    sram_uncorrected_max: int = 4  # in a GPU's whole life
    throttle_share: float = 0.1  # of the time between two readings
    nvlink_errors_per_min: float = 1.0
    nvlink_speed_share: float = 0.99  # of the fastest link of GPUs of its model beside it
    nvlink_effective_ber: float = 1e-12  # bits wrong after correction, as DCGM has it
    nvlink_symbol_ber: float = 15e-238
    clock_share: float = 0.85  # of the busy GPUs beside it

    port_grace_s: float = 30.0
    link_downed_per_hour: float = 2.0
    link_downed_per_day: float = 3.0
    link_recovery_per_min: float = 5.0
    symbol_errors_per_s: float = 10.0
    symbol_errors_per_hour: float = 120.0  # a bit in 1e12, as InfiniBand has it
    receive_errors_per_s: float = 10.0
    discards_per_s: float = 100.0
    ack_timeouts_per_s: float = 1.0

    load_per_cpu: float = 2.0
    memory_available_share: float = 0.1
    shm_min_bytes: float = 1e9
    shm_free_share: float = 0.1
    disk_used_warn: float = 0.85
    disk_used_fail: float = 0.95
    inodes_free_min: int = 1000
    edac_corrected_per_min: float = 1.0
    waiting_processes_max: int = 5  # in uninterruptible sleep
    files_min: int = 65536
    room_used_warn: float = 0.8  # of the processes, and of the open files, that a node may have
    room_used_fail: float = 0.95
    probe_warn_s: float = 5.0
    probe_fail_s: float = 15.0
    names_within_s: float = 2.0
    clock_error_warn_s: float = 1.0
    pressure_share: float = 0.2  # of the last minute

    preflight_within_s: float = 5.0  # every check before ranks start; a site's own commands have their own time
    active_share: float = 0.8  # of the speed that was seen before
    active_share_cpu: float = 0.5  # a CPU works for others too

    def __post_init__(self) -> None:
        """Refuse bounds that nothing can pass, or everything."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise ValueError(f"{name} = {value}: a bound is 0 or more")
        if self.disk_used_fail < self.disk_used_warn:
            raise ValueError(f"disk_used_fail ({self.disk_used_fail}) is below disk_used_warn ({self.disk_used_warn})")


# ---- what was found --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with all that an administrator who repairs it must know."""

    check: str
    scope: Scope
    place: str  # "gpu 3", "mlx5_0 port 1", "/dev/shm"
    severity: Severity
    cause: CauseClass
    needs: Needs
    sticky: Sticky
    evidence: FindingEvidence
    sentence: str
    beside: bool = False  # about a device that this job may not use
    devices_count: int = 1  # as several links of one GPU are one finding


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check's judgement: what to show, against which limit, and what is wrong. Not measured: ``unknown`` says why."""

    shown: str
    limit: str = ""
    findings: tuple[Finding, ...] = ()
    unknown: str = ""
    alike: Mapping[str, str] = field(default_factory=dict)  # what should be the same on every node, by what it is


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """What checks are about: the places that count, and what is usual of a finding at one of them."""

    scope: Scope
    cause: CauseClass
    needs: Needs
    sticky: Sticky = Sticky.NO
    places: Callable[[CheckLook, str], tuple[str, ...]] = lambda look, name: look.facts.places_with(name)
    why_not: Callable[[CheckLook, str], str] = lambda look, name: look.facts.why_missing(name) or "it was not measured"
    beside: Callable[[CheckLook], frozenset[str]] = lambda look: frozenset()  # of devices that the job may not use
    scope_at: Callable[[str], Scope] | None = None  # of a place, if it is not the same for all
    part_of: Callable[[str], str] | None = None  # whose parts the places are: many parts of a device are one finding


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a node. ``judge`` is pure."""

    name: str
    family: str
    asks: str  # for people: what it looks at
    judge: Callable[[CheckLook], CheckOutcome]
    every_s: float = 60.0  # while a gang runs
    about: CheckSubject = CheckSubject(Scope.NODE, CauseClass.EITHER, Needs.ADMIN)
    proves: str | None = None  # of a test whose results are known to the bit: what it proves, after its reading


@dataclass(frozen=True, slots=True)
class CheckLook:
    """What a judge sees: the check, this reading, the reading before (or None), the bounds."""

    check: Check
    now: Reading
    before: Reading | None
    policy: HealthPolicy

    @property
    def facts(self) -> NodeFacts:
        """Of this reading."""
        return self.now.facts

    def number(self, place: str, name: str) -> float | None:
        """A number of this reading, or None."""
        return self.now.facts.number(place, name)

    def numbers(self, name: str) -> dict[str, float]:
        """The number at each place that the check is about and that has it."""
        places = self.check.about.places(self, name)
        return {place: value for place in places if (value := self.number(place, name)) is not None}

    def grown(self, name: str) -> dict[str, Growth]:
        """The growth at each place that the check is about and at which it can be compared."""
        places = self.check.about.places(self, name)
        return {place: one for place in places if (one := growth(self.now, self.before, place, name)) is not None}

    def unknown(self, limit: str, *names: str) -> CheckOutcome:
        """Nothing was measured, or there is nothing to compare it with yet. The first name tells why it is missing."""
        known = any(self.numbers(name) for name in names)
        return CheckOutcome("-", limit, unknown=FIRST_LOOK if known else self.check.about.why_not(self, names[0]))

    def found(
        self,
        severity: Severity,
        place: str,
        sentence: str,
        new: Value | FindingEvidence,
        old: Value | None = None,
        needs: Needs | None = None,
        cause: CauseClass | None = None,
        sticky: Sticky | None = None,
    ) -> Finding:
        """A finding of this check, with what is usual for what it is about."""
        about = self.check.about
        scope = about.scope_at(place) if about.scope_at else about.scope
        evidence = new if isinstance(new, FindingEvidence) else FindingEvidence(new, old)
        return Finding(
            self.check.name, scope, place, severity, cause or about.cause, needs or about.needs, sticky or about.sticky,
            evidence, sentence,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What a check came to on this node."""

    check: str
    family: str
    severity: Severity
    shown: str
    limit: str
    words: str  # one sentence: the worst finding's, or why it is unknown; "" if all is well
    findings: tuple[Finding, ...] = ()
    took_s: float = 0.0  # that what it judges, and others of its family with it, took to be read
    alike: Mapping[str, str] = field(default_factory=dict)


SEVERITIES = (Severity.OK, Severity.UNKNOWN, Severity.WARN, Severity.FAIL)  # from well to worst


def worst(severities: list[Severity]) -> Severity:
    """The worst of several; unknown is worse than well, and better than anything seen."""
    return max(severities, key=SEVERITIES.index, default=Severity.OK)


def verdict_of(check: Check, outcome: CheckOutcome) -> CheckVerdict:
    """The outcome of a check under one word."""
    severity, words = Severity.OK, ""
    if outcome.findings:
        severity = worst([finding.severity for finding in outcome.findings])
        words = next(finding.sentence for finding in outcome.findings if finding.severity is severity)
        more = len(outcome.findings) - 1
        words = f"{words} (and {more} more)" if more else words
    elif outcome.unknown:
        return replace(unknown_verdict(check, outcome.unknown), shown=outcome.shown or "-", limit=outcome.limit)
    found, alike = outcome.findings, outcome.alike
    return CheckVerdict(check.name, check.family, severity, outcome.shown, outcome.limit, words, found, alike=alike)


def unknown_verdict(check: Check, why: str) -> CheckVerdict:
    """A check that could not look."""
    return CheckVerdict(check.name, check.family, Severity.UNKNOWN, "-", "", why)


def as_warning(finding: Finding) -> Finding:
    """The finding, which is about a device that the job may not use."""
    severity = WARN if finding.severity is FAIL else finding.severity
    return replace(finding, severity=severity, beside=True, sentence=f"{finding.sentence} (not a GPU of this job)")


def judged(check: Check, now: Reading, before: Reading | None, policy: HealthPolicy) -> CheckVerdict:
    """One verdict. A judge that stumbles over odd values knows nothing, and must not take the others along."""
    look = CheckLook(check, now, before, policy)
    try:
        outcome = check.judge(look)
        others = check.about.beside(look)
    except Exception as error:  # noqa: BLE001 - a broken checker is not a broken node: whatever it was, unknown
        return unknown_verdict(check, f"could not be judged: {type(error).__name__}: {error}")
    found = tuple(
        as_warning(one) if any(f"{one.place} ".startswith(f"{place} ") for place in others) else one
        for one in outcome.findings
    )
    return verdict_of(check, replace(outcome, findings=found))
