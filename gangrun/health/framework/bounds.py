"""Checks as data: a reading, a limit, and what it means when the reading is beyond it.

A check's ``judge`` is ``Rows``: bounds, the limit in words, and what to show of all places. Each ``Bound`` is measured
at every place that the check is about, compared with its limit (a number, a bound of the policy, a share of another
value of the place, or of what its peers have), and told in a sentence that is made here, in ``_sentence``, for every
check. A check that needs more than this has a function.

A value's unit is the end of its reading's name (``words_of``): ``temperature_c``, ``free_bytes``, ``used_share``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gangrun.core.nodeset import fold
from gangrun.health.framework.check import (
    CauseClass,
    CheckLook,
    CheckOutcome,
    Finding,
    FindingEvidence,
    Growth,
    HealthPolicy,
    Needs,
    Reading,
    Severity,
    Sticky,
    Value,
    comparable,
    growth,
    in_window,
    span,
)  # fmt: skip
from gangrun.health.framework.readings import UUID

ONE_OF_EACH = "one of each kind"
NOT_MEASURED = "this GPU does not measure it"  # as ``adapters.nvml`` says it
PER = {1.0: "per second", 60.0: "per minute", 3600.0: "per hour"}
UNITS: Mapping[str, Callable[[float], str]] = {
    "c": lambda value: f"{value:.0f} °C",
    "bytes": lambda value: f"{value / 1e9:.1f} GB" if value >= 1e8 else f"{value / 1e6:.0f} MB",
    "s": lambda value: span(value) if value >= 0.1 else f"{value * 1000:.0f} ms",
    "share": lambda value: f"{value * 100:.0f} %",
    "percent": lambda value: f"{value:.0f} %",
    "w": lambda value: f"{value:.0f} W",
    "mhz": lambda value: f"{value:.0f} MHz",
    "mbps": lambda value: f"{value:.0f} MB/s",
    "rate": lambda value: f"{value:g} Gb/s",
    "ber": lambda value: f"{value:.0e}",
}


class BoundMeasure(Enum):
    """What of a reading is compared with its limit."""

    VALUE = "the value"
    FLAG = "the value, which stands for a yes or no: its sentence has no figures"
    WORD = "that there is a word, and not the good one"
    GROWTH = "by how much it grew"
    RATE = "its growth in a unit of time"
    SHARE_OF_TIME = "the share of the time that its growth, in nanoseconds, is"


COUNTED = (BoundMeasure.GROWTH, BoundMeasure.RATE, BoundMeasure.SHARE_OF_TIME)


class Breaks(Enum):
    """On which side of the limit a value is bad."""

    ABOVE = "above it"
    AT_LEAST = "at it, or above"
    BELOW = "below it"
    EQUAL = "at it"
    OTHER = "anything but it"


@dataclass(frozen=True, slots=True)
class ShareOf:
    """A limit: a share of another value of the same place."""

    reading: str
    share: float | str = 1.0


@dataclass(frozen=True, slots=True)
class ShareOfPeers:
    """A limit: a share of the median among at least so many places of one kind, or of the most that one of them has."""

    share: float | str = 1.0
    kind: str = ""  # places of which this value is the same are peers
    least_count: int = 3
    most: bool = False
    usual_min: float = 0.0  # less than this is nothing to compare with


Limit = float | str | ShareOf | ShareOfPeers | Callable[[CheckLook, str], float]


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit of one reading. ``limit`` is a number, the name of a bound of ``HealthPolicy``, or a share.

    ``says`` is what was measured, in words; ``means`` is a sentence with what follows from it. Both are formatted with
    the values of the place; a ``means`` of which one was not measured is left out.
    """

    reading: str
    limit: Limit
    severity: Severity
    says: str
    means: str | Callable[[CheckLook, str], str] = ""
    measure: BoundMeasure = BoundMeasure.VALUE
    breaks: Breaks = Breaks.ABOVE
    per_s: float = 1.0  # of a rate: the unit of time
    least_s: float = 0.0  # of a rate: a shorter time counts as this one
    window: bool = False  # of growth: since the counter's window began, not since the look before
    twice: bool = False  # the look before must have found it, too
    where: Callable[[Reading, str], bool] | None = None  # the places at which it counts
    needs: Needs | None = None
    cause: CauseClass | None = None
    sticky: Sticky | None = None
    good: Value | None = None  # what it should be

    def limits(self, look: CheckLook, values: Mapping[str, float]) -> dict[str, tuple[float, float | None]]:
        """The limit at each place at which there is one, and what it is a share of."""
        limit = self.limit
        if isinstance(limit, ShareOf):
            base = {place: look.number(place, limit.reading) for place in values}
            usual = {p: one for p, one in base.items() if one or (one == 0 and self.breaks is Breaks.OTHER)}
            return {p: (number_of(limit.share, look.policy) * one, one) for p, one in usual.items()}
        if isinstance(limit, ShareOfPeers):
            return _limits_of_peers(limit, look, values)
        if callable(limit):
            return {place: (limit(look, place), None) for place in values}
        return dict.fromkeys(values, (number_of(limit, look.policy), None))

    def is_beyond(self, value: float, limit: float) -> bool:
        """Is this value on the bad side of the limit?"""
        match self.breaks:
            case Breaks.ABOVE:
                return value > limit
            case Breaks.AT_LEAST:
                return value >= limit
            case Breaks.BELOW:
                return value < limit
            case Breaks.EQUAL:
                return value == limit
            case Breaks.OTHER:
                return value != limit

    def of(self, grown: Growth) -> float:
        """What of the growth is compared."""
        if self.measure is BoundMeasure.SHARE_OF_TIME:
            return min(1.0, grown.count / 1e9 / grown.over_s)
        return grown.count * self.per_s / max(grown.over_s, self.least_s) if self.is_rate else grown.count

    @property
    def is_rate(self) -> bool:
        """Is it growth in a unit of time?"""
        return self.measure is BoundMeasure.RATE

    def words(self, value: float) -> str:
        """A value or limit of this bound, with its unit."""
        if self.measure is BoundMeasure.SHARE_OF_TIME:
            return UNITS["share"](value)
        return words_of("" if self.measure in COUNTED else self.reading, value)


@dataclass(frozen=True, slots=True)
class BoundReading:
    """What a bound came to at one place. ``limit`` None: there is nothing to compare it with."""

    bound: Bound
    place: str
    value: Value
    is_broken: bool = False
    limit: float | None = None
    usual: float | None = None
    grown: Growth | None = None

    @property
    def number(self) -> float:
        """The value, if it is one."""
        return 0.0 if isinstance(self.value, str) else self.value


def measured(look: CheckLook, bound: Bound) -> list[BoundReading]:
    """The bound at every place that the check is about, and that has the reading."""
    name, places = bound.reading, look.check.about.places(look, bound.reading)
    if bound.where is not None:
        places = tuple(place for place in places if bound.where(look.now, place))
    if bound.measure is BoundMeasure.WORD:
        words = {place: str(look.facts.get(place, name) or "") for place in places}
        return [BoundReading(bound, place, word, word not in ("", bound.good), 0.0) for place, word in words.items()]
    grown: dict[str, Growth] = {}
    if bound.measure in COUNTED:
        for place in places:
            window = in_window(look.now, place, name) if bound.window else growth(look.now, look.before, place, name)
            if window is not None:
                grown[place] = window
        values = {place: bound.of(one) for place, one in grown.items()}
    else:
        values = {place: value for place in places if (value := look.number(place, name)) is not None}
    limits = bound.limits(look, values)
    beyond = {place for place, (limit, _) in limits.items() if bound.is_beyond(values[place], limit)}
    beyond &= _found_before(look, bound) if bound.twice else beyond
    beyond = {place for place in beyond if place not in grown or grown[place].count > 0}
    readings = []
    for place, value in values.items():
        limit, usual = limits.get(place, (None, None))
        readings.append(BoundReading(bound, place, value, place in beyond, limit, usual, grown.get(place)))
    return readings


@dataclass(frozen=True, slots=True)
class Rows:
    """The judge of a check that is data: of each place the first bound that is broken is told.

    ``shown`` is formatted with total, most, least, range, used (share of what the limit is a share of), count (of
    places), bad, good, compared (readings), and the values of the first place. Without a value of ``of``, if it is
    named, or else of any bound, the check is unknown.
    """

    bounds: tuple[Bound, ...]
    limit: str | Callable[[HealthPolicy], str]
    shown: str
    of: str = ""
    each: bool = False  # tell the first broken bound of each reading of a place
    joined: bool = False  # tell all that is wrong at a place in one finding
    whole: bool = False  # it is unknown if a single place did not say
    nobody: str = ""  # why nothing is judged, although it was measured
    never: str = ""  # why it is measured nowhere, if these devices have no such thing

    def __call__(self, look: CheckLook) -> CheckOutcome:
        """Judge."""
        limit = self.limit(look.policy) if callable(self.limit) else self.limit
        readings = [one for bound in self.bounds for one in measured(look, bound)]
        found = self._found(look, [one for one in readings if one.is_broken])
        values = list(look.numbers(self.of).items()) if self.of else [(one.place, one.number) for one in readings]
        comparable_count = sum(one.limit is not None for one in readings)
        if not values or (self.nobody and not comparable_count):
            return replace(self._unknown(look, limit, is_known=bool(values)), findings=tuple(found))
        why = look.facts.why_missing(self.of) if self.whole else ""
        return CheckOutcome(self._shown(look, readings, values), limit, tuple(found), why)

    def _unknown(self, look: CheckLook, limit: str, *, is_known: bool) -> CheckOutcome:
        names = [self.of] if self.of else [bound.reading for bound in self.bounds]
        if self.nobody and (is_known or (not self._counts and any(look.numbers(name) for name in names))):
            return CheckOutcome("-", limit, unknown=self.nobody)
        outcome = look.unknown(limit, *names)
        if not self._counts:
            outcome = replace(outcome, unknown=look.check.about.why_not(look, names[0]))
        return replace(outcome, unknown=self.never) if self.never and outcome.unknown == NOT_MEASURED else outcome

    @property
    def _counts(self) -> bool:
        return self.bounds[0].measure in COUNTED

    def _shown(self, look: CheckLook, readings: list[BoundReading], values: list[tuple[str, float]]) -> str:
        first, numbers, places = self.bounds[0], [value for _, value in values], {place for place, _ in values}
        total = sum(one.grown.count if one.grown else one.number for one in readings if one.bound is first)
        words = (lambda value: words_of(self.of, value)) if self.of else first.words
        least, most = words(min(numbers)), words(max(numbers))
        broken = {(one.place, one.bound.reading) for one in readings if one.is_broken}
        bad_count = len({place for place, _ in broken})
        sums = {
            "total": f"{total if self._counts or not self.of else sum(numbers):.0f}",
            "most": most,
            "least": least,
            "range": most if least == most else f"{least} to {most}",
            "used": UNITS["share"](max((one.number / one.usual for one in readings if one.usual), default=0.0)),
            "count": len(places),
            "bad": len(broken) if self._counts else bad_count,
            "good": len(places) - bad_count,
            "compared": len({(one.place, one.bound.reading) for one in readings if one.limit is not None}),
        }
        is_choice = self._counts or any(bound.where for bound in self.bounds)
        silent_count = 0 if is_choice else len(look.check.about.places(look, "")) - len(places)
        more = f" ({silent_count} not measured)" if silent_count > 0 else ""
        return self.shown.format_map(_Words({**words_at(look, values[0][0]), **sums})) + more

    def _found(self, look: CheckLook, broken: list[BoundReading]) -> list[Finding]:
        """What is told of the bounds that are broken, place by place."""
        told: dict[object, list[BoundReading]] = {}
        for one in broken:
            told.setdefault((one.place, one.bound.reading) if self.each else one.place, []).append(one)
        if self.joined:
            return [_finding_of_all(look, several) for several in told.values()]
        firsts = [several[0] for several in told.values()]
        whose = look.check.about.part_of
        if whose is None:
            order = list(look.facts.values)
            return [finding(look, one) for one in sorted(firsts, key=lambda one: order.index(one.place))]
        parts: dict[tuple[int, str], list[BoundReading]] = {}
        for one in firsts:
            parts.setdefault((self.bounds.index(one.bound), whose(one.place)), []).append(one)
        return [_finding_of_parts(look, device, several) for (_, device), several in parts.items()]


# ---- findings --------------------------------------------------------------------------------------------------------


class _Words(dict[str, object]):
    def __missing__(self, name: str) -> str:
        return "?"


def finding(look: CheckLook, one: BoundReading, place: str = "", which: str = "") -> Finding:
    """What it means that a place is beyond a limit. ``which``: of several parts of a device, those it is about."""
    bound = one.bound
    if one.grown is not None:
        evidence = one.grown.evidence
    elif bound.twice and look.before is not None:
        was = look.before.facts.get(one.place, bound.reading)
        evidence = FindingEvidence(one.value, was, look.now.at - look.before.at)
    else:
        evidence = FindingEvidence(one.value, bound.good if one.usual is None else one.usual)
    sentence = _sentence(look, one, place or one.place, which)
    return look.found(
        bound.severity, one.place, sentence, evidence, needs=bound.needs, cause=bound.cause, sticky=bound.sticky
    )


def _sentence(look: CheckLook, one: BoundReading, place: str, which: str) -> str:
    """``gpu 3: temperature is 96 °C (limit 95 °C). Look at its cooling``: where, what, how much, what follows."""
    bound = one.bound
    words = words_at(look, one.place)
    where = "" if place == "node" else f"{place}: "
    sentence = where + bound.says.format_map(_Words(words)) + _figures(look, one, which)
    means = bound.means(look, one.place) if callable(bound.means) else bound.means
    try:
        means = means.format_map(words)
    except KeyError:
        means = ""
    return f"{sentence}. {means}" if means else sentence


def _figures(look: CheckLook, one: BoundReading, which: str) -> str:
    """What was measured, and the limit."""
    bound, number, limit = one.bound, one.number, _limit_words(one)
    is_beside = isinstance(bound.limit, ShareOfPeers) and one.usual is not None
    match bound.measure:
        case BoundMeasure.FLAG:
            return which
        case BoundMeasure.WORD:
            return f": {one.value}{which}"
        case BoundMeasure.SHARE_OF_TIME:
            over_s = one.grown.over_s if one.grown else 0.0
            return f" for {bound.words(number)} of the last {span(over_s)}{which}{limit}"
        case BoundMeasure.GROWTH | BoundMeasure.RATE:
            words = one.grown.words if one.grown else ""
            return f" rose {words}{which}" + (", far more than its peers" if is_beside else limit)
        case BoundMeasure.VALUE:
            more = f", and {bound.words(one.usual or 0.0)} on its peers" if is_beside else ""
            if bound.twice and look.before is not None:
                was = look.before.facts.number(one.place, bound.reading) or 0.0
                more = f", and was {bound.words(was)} {span(look.now.at - look.before.at)} ago"
            return f" is {bound.words(number)}{which}{more}{limit}"


def _limit_words(one: BoundReading) -> str:
    bound = one.bound
    if bound.measure is BoundMeasure.GROWTH and one.limit == 0:
        return " and should not rise at all"
    limit = bound.words(one.limit or 0.0) + (f" {PER[bound.per_s]}" if bound.is_rate else "")
    sides = {Breaks.AT_LEAST: ": below", Breaks.BELOW: ": at least"}
    return f" (limit{sides.get(bound.breaks, '')} {limit})"


def _finding_of_all(look: CheckLook, several: list[BoundReading]) -> Finding:
    """One finding for all that is wrong at a place."""
    first = several[0]
    wrong = "; ".join(one.bound.says for one in several)
    whole = finding(look, replace(first, bound=replace(first.bound, says=wrong)))
    return replace(whole, evidence=FindingEvidence(wrong))


def _finding_of_parts(look: CheckLook, device: str, several: list[BoundReading]) -> Finding:
    """One finding for several parts of a device, made of the worst, in a place of its own: what many parts count is no
    sign that the device is poor.
    """
    below = several[0].bound.breaks is Breaks.BELOW
    worst = sorted(several, key=lambda one: one.number, reverse=not below)[0]
    if len(several) == 1:
        return finding(look, worst)
    parts = f"{look.check.about.scope.value}s"
    numbers = fold(one.place.rpartition(" ")[2] for one in several).strip("[]")
    what = "" if worst.bound.measure is BoundMeasure.FLAG else " at worst,"
    whole = finding(look, worst, device, f"{what} on {len(several)} {parts} ({numbers})")
    return replace(whole, place=f"{device} {parts}", devices_count=len(several))


def words_at(look: CheckLook, place: str) -> dict[str, object]:
    """The values of a place, with their units."""
    values = look.facts.values.get(place, {})
    return {name: value if isinstance(value, str) else words_of(name, value) for name, value in values.items()}


def words_of(name: str, value: float) -> str:
    """A value with the unit that its name ends in."""
    unit = UNITS.get(name.rpartition("_")[2])
    return unit(value) if unit else f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


# ---- what is compared ------------------------------------------------------------------------------------------------


def number_of(limit: float | str, policy: HealthPolicy) -> float:
    """A limit as a number; ``inf`` if the policy has none."""
    if not isinstance(limit, str):
        return limit
    value = getattr(policy, limit)
    return float("inf") if value is None else float(value)


def _limits_of_peers(
    limit: ShareOfPeers, look: CheckLook, values: Mapping[str, float]
) -> dict[str, tuple[float, float | None]]:
    kinds: dict[object, dict[str, float]] = {}
    for place, value in values.items():
        device = place.partition(" link ")[0]
        kinds.setdefault(look.facts.get(device, limit.kind), {})[place] = value
    share, found = number_of(limit.share, look.policy), dict[str, tuple[float, float | None]]()
    for peers in kinds.values():
        if len(peers) >= limit.least_count:
            usual = max(max(peers.values()) if limit.most else median(peers.values()), limit.usual_min)
            found |= dict.fromkeys(peers, (share * usual, usual))
    return found


def _found_before(look: CheckLook, bound: Bound) -> set[str]:
    """Where the look before found the same of the same device."""
    before = look.before
    if before is None or not comparable(look.now, before):
        return set()
    then = measured(CheckLook(look.check, before, None, look.policy), replace(bound, twice=False))
    found = {one.place for one in then if one.is_broken}
    return {place for place in found if before.facts.get(place, UUID) == look.facts.get(place, UUID)}


def median(values: Iterable[float]) -> float:
    """The middle value; between the two middle ones of an even number. (The standard library's loads 20 modules.)"""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def far_below(values: Mapping[str, float], share: float, peers_min_count: int) -> tuple[dict[str, float], float]:
    """Those far below the middle of enough others, and the middle; of fewer nothing can be said."""
    middle = median(values.values()) if values and len(values) >= peers_min_count else 0.0
    return {place: value for place, value in values.items() if value < share * middle}, middle


def most_common(versions: Iterable[str]) -> str:
    """What most have; of those that equally many have the last in order, which is the newest more often than not."""
    counts = Counter(versions)
    return max(counts, key=lambda version: (counts[version], version))


def one_version(look: CheckLook, kinds: Mapping[str, Mapping[str, str]], why_not: str) -> CheckOutcome:
    """Firmware of devices of one kind: one version, on this node and on all. A set-up's matter, never the node's fault.

    Args:
        look: What the check sees.
        kinds: The version at each place, by what it is.
        why_not: Why there is none.
    """
    if not kinds:
        return CheckOutcome("-", ONE_OF_EACH, unknown=why_not)
    usual = {kind: most_common(versions.values()) for kind, versions in kinds.items()}
    found = tuple(
        look.found(
            Severity.WARN, place, f"{place}: {kind} is {version}, and {usual[kind]} on the devices beside it",
            version, usual[kind], Needs.ADMIN, CauseClass.CONFIG, Sticky.NO,
        )
        for kind, versions in kinds.items()
        for place, version in versions.items()
        if version != usual[kind]
    )  # fmt: skip
    return CheckOutcome(", ".join(dict.fromkeys(usual.values())), ONE_OF_EACH, found, alike=usual)
