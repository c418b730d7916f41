"""Checks as data: a value, a limit, and what it means when the value is beyond it.

``levels`` judges values by what they are, ``counters`` by how they grew. At each place the first bound of a level check
that is broken is told, of a counter check every one. ``far_below`` and ``most_common`` are for checks that compare
devices with each other. A check that needs more than this has a function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median

from gangrun.health.framework.check import (
    CauseClass,
    CheckLook,
    CheckOutcome,
    Finding,
    FindingEvidence,
    Growth,
    HealthPolicy,
    Needs,
    Severity,
    Sticky,
    Value,
    span,
)  # fmt: skip

ONE_OF_EACH = "one of each kind"
Limit = str | Callable[[HealthPolicy], str]


class BoundMeasure(Enum):
    """What of a value is compared with its limit."""

    VALUE = "the value"
    GROWTH = "by how much it grew"
    PER_S = "its growth in a second"
    PER_MIN = "its growth in a minute, of a look that took a minute at least"
    SHARE_OF_TIME = "the share of the time that its growth, in nanoseconds, is"


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit. It is broken by a value above it, at it too if ``reached``, or below it if ``below``.

    ``limit`` is a number or the name of a bound of ``HealthPolicy``. ``sentence`` is formatted with place, value and
    limit; of a counter old, new, words, over, count, and all values of the place by their names.
    """

    reading: str
    limit: float | str
    severity: Severity
    sentence: str | Callable[[CheckLook, str, float], str]
    measure: BoundMeasure = BoundMeasure.VALUE
    reached: bool = False
    below: bool = False
    per: float = 1.0  # how many of the limit's units are one of the measure's: 60 for a limit per minute
    needs: Needs | None = None
    cause: CauseClass | None = None
    sticky: Sticky | None = None
    good: Value | None = None  # of a value: what it should be, as the finding's evidence has it

    def of(self, grown: Growth) -> float:
        """What of the growth is compared."""
        match self.measure:
            case BoundMeasure.GROWTH | BoundMeasure.VALUE:
                return grown.count
            case BoundMeasure.PER_S:
                return grown.per_s * self.per
            case BoundMeasure.PER_MIN:
                return grown.per_min
            case BoundMeasure.SHARE_OF_TIME:
                return min(1.0, grown.count / 1e9 / grown.over_s)

    def is_broken(self, value: float, policy: HealthPolicy) -> bool:
        """Is this value beyond the limit?"""
        limit = self.limit_of(policy)
        return value < limit if self.below else value > limit or (self.reached and value == limit)

    def limit_of(self, policy: HealthPolicy) -> float:
        """The limit as a number."""
        return float(getattr(policy, self.limit)) if isinstance(self.limit, str) else self.limit

    def finding(self, look: CheckLook, place: str, value: float, grown: Growth | None = None) -> Finding:
        """What it means that the place is beyond the limit."""
        if isinstance(self.sentence, str):
            words: dict[str, object] = {
                **look.facts.values[place],
                "place": place,
                "value": value,
                "limit": self.limit_of(look.policy),
            }
            if grown is not None:
                counted = {"old": grown.old, "new": grown.new, "count": grown.count, "words": grown.words}
                words |= {**counted, "over": span(grown.over_s), "counter": self.reading}
            sentence = self.sentence.format(**words)
        else:
            sentence = self.sentence(look, place, value)
        evidence = grown.evidence if grown is not None else FindingEvidence(value, self.good)
        return look.found(
            self.severity, place, sentence, evidence, needs=self.needs, cause=self.cause, sticky=self.sticky
        )


def levels(
    *bounds: Bound, limit: Limit, shown: str | Callable[[list[float]], str], of: str = ""
) -> Callable[[CheckLook], CheckOutcome]:
    """Judge values of each place. ``of``: the value that is shown, and without which a place is not judged."""
    primary = of or bounds[0].reading

    def judge(look: CheckLook) -> CheckOutcome:
        return each(look, primary, limit_words(limit, look), shown, lambda place, _: broken(look, place, bounds))

    return judge


def each(
    look: CheckLook,
    name: str,
    limit: str,
    shown: str | Callable[[list[float]], str],
    bad: Callable[[str, float], Finding | None],
) -> CheckOutcome:
    """One value of each place: what to show of all, and the finding of each that is bad."""
    values = look.numbers(name)
    if not values:
        return look.unknown(limit, name)
    found = tuple(one for place, value in values.items() if (one := bad(place, value)) is not None)
    all_of = list(values.values())
    sums = {"total": sum(all_of), "most": max(all_of), "least": min(all_of), "count": len(all_of), "bad": len(found)}
    silent_count = len(look.check.about.places(look, "")) - len(values)
    more = f" ({silent_count} not measured)" if silent_count > 0 else ""
    return CheckOutcome((shown(all_of) if callable(shown) else shown.format(**sums)) + more, limit, found)


def broken(look: CheckLook, place: str, bounds: Iterable[Bound]) -> Finding | None:
    """The first of these bounds that a value of this place breaks."""
    for bound in bounds:
        value = look.number(place, bound.reading)
        if value is not None and bound.is_broken(value, look.policy):
            return bound.finding(look, place, value)
    return None


def counters(
    *bounds: Bound,
    limit: Limit,
    shown: str = "{bad} of {compared} counters",
    group: Callable[[CheckLook, Bound, Mapping[str, Growth]], list[Finding]] | None = None,
) -> Callable[[CheckLook], CheckOutcome]:
    """Judge the growth of each counter at each place. ``group`` makes findings of the places that break one bound."""

    def judge(look: CheckLook) -> CheckOutcome:
        told, found, sums = limit_words(limit, look), list[Finding](), list[float]()
        bad_count, total, most = 0, 0.0, 0.0
        for bound in bounds:
            grown = look.grown(bound.reading)
            values = {place: bound.of(one) for place, one in grown.items()}
            bad = {p: g for p, g in grown.items() if g.count > 0 and bound.is_broken(values[p], look.policy)}
            found += (
                group(look, bound, bad) if group else [bound.finding(look, p, values[p], g) for p, g in bad.items()]
            )
            bad_count, most = bad_count + len(bad), max([most, *values.values()])
            sums += values.values()
            total += sum(one.count for one in grown.values()) if bound is bounds[0] else 0.0
        if not sums:
            return look.unknown(told, *(bound.reading for bound in bounds))
        words = shown.format(bad=bad_count, compared=len(sums), total=total, most=most, percent=most * 100)
        return CheckOutcome(words, told, tuple(found))

    return judge


def limit_words(limit: Limit, look: CheckLook) -> str:
    """The limit as it is shown."""
    return limit(look.policy) if callable(limit) else limit


def far_below(values: Mapping[str, float], share: float, peers_min_count: int) -> tuple[dict[str, float], float]:
    """Those far below the middle of enough others, and the middle; of fewer nothing can be said."""
    middle = median(values.values()) if len(values) >= peers_min_count else 0.0
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
            Severity.WARN, place, f"{place} has another {kind} ({version}) than those beside it ({usual[kind]})",
            version, usual[kind], Needs.ADMIN, CauseClass.CONFIG, Sticky.NO,
        )
        for kind, versions in kinds.items()
        for place, version in versions.items()
        if version != usual[kind]
    )  # fmt: skip
    return CheckOutcome(", ".join(dict.fromkeys(usual.values())), ONE_OF_EACH, found, alike=usual)
