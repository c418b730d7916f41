"""What a port counts by itself: lost links, wrong symbols, damaged packets. See ``ib_ports``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gangrun.health.framework.check import CauseClass, Finding, Needs, Outcome, Reading, Severity, Value
from gangrun.health.framework.growth import FIRST_LOOK, Growth, growth, in_window, span, with_windows
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.network.ports import CARRIER, finding, in_use

HOUR_S, DAY_S = 3600.0, 24 * 3600.0
DOWNED, SYMBOLS = "link_downed", "symbol_error"
AGAIN_AFTER_S, FORGOTTEN_AFTER_S = 600.0, HOUR_S  # what comes within the first of them is one story
CARRIER_CHANGES_MAX = 2  # between two looks: a link that was lost and came back


@dataclass(frozen=True, slots=True)
class _Bound:
    """How fast a counter may grow, and what it tells beyond that; ``twice``: again ten minutes later it is broken.

    ``whose``: what a peer that dies leaves at all others, or a full fabric, is no sign against this port.
    """

    counter: str
    too_much: Callable[[Growth, HealthPolicy], bool]
    tells: str
    twice: bool = False
    whose: CauseClass = CauseClass.HARDWARE


def _any(grown: Growth, policy: HealthPolicy) -> bool:
    del policy
    return grown.count > 0


BOUNDS = (
    _Bound("link_error_recovery", lambda g, p: g.per_s * 60 > p.link_recovery_per_min, "short stalls"),
    _Bound(SYMBOLS, lambda g, p: g.per_s > p.symbol_errors_per_s, "a bad cable or plug"),
    _Bound("port_rcv_errors", lambda g, p: g.per_s > p.receive_errors_per_s, "damaged packets came in"),
    _Bound("local_link_integrity_errors", _any, "the link is close to its error limit", twice=True),
    _Bound("excessive_buffer_overrun_errors", _any, "flow control was violated", twice=True),
    *(
        _Bound(counter, too_much, tells, whose=CauseClass.ELSEWHERE)
        for counter, too_much, tells in (
            ("port_xmit_discards", lambda g, p: g.per_s > p.discards_per_s, "congestion, rarely this node"),
            ("rnr_nak_retry_err", _any, "a receiver was slow; often the program's"),
            ("req_rnr_retries_exceeded", _any, "a connection died: look at both ends"),
            ("req_transport_retries_exceeded", _any, "a connection died: look at both ends"),
            ("local_ack_timeout_err", lambda g, p: g.per_s > p.ack_timeouts_per_s, "a peer did not answer"),
            ("roce_slow_restart", lambda g, p: g.per_s > p.receive_errors_per_s, "RoCE slows down"),
        )
    ),
    _Bound(CARRIER, lambda g, p: g.count > CARRIER_CHANGES_MAX, "its interface loses its link again and again"),
)
TWICE = tuple(bound.counter for bound in BOUNDS if bound.twice)
COUNTERS = (DOWNED, *(bound.counter for bound in BOUNDS))
WINDOWS_S = {DOWNED: HOUR_S, SYMBOLS: HOUR_S}
STORIES = "link_downed stories"
KEPT = frozenset(
    {
        "link_error_recovery",
        "port_rcv_errors",
        STORIES,
        *(name for counter in WINDOWS_S for name in (counter, f"{counter} then", f"{counter} since")),
        *(name for counter in (DOWNED, *TWICE) for name in (counter, f"{counter} first grew", f"{counter} last grew")),
    }
)  # not what ranks that are killed leave at their peers


def with_history(now: Reading, before: Reading | None) -> Reading:
    """With what rare things were an hour ago at most, and when those that must not come again and again first came."""
    values: dict[str, Mapping[str, Value]] = dict(now.facts.values)
    for place in now.facts.values:
        more: dict[str, Value] = _downed(now, before, place)
        for counter in TWICE:
            more |= _times(now, before, place, counter)
        values[place] = {**values[place], **more}
    return with_windows(replace(now, facts=replace(now.facts, values=values)), before, WINDOWS_S)


def _downed(now: Reading, before: Reading | None, place: str) -> dict[str, Value]:
    """How often the link was lost within a day, where all that a switch's restart does to it is once."""
    times = _times(now, before, place, DOWNED)
    if before is None or not times:
        return times
    last, known = before.facts.number(place, f"{DOWNED} last grew"), before.facts.number(place, STORIES)
    if last is None or known is None or times[f"{DOWNED} first grew"] == now.at:
        return {**times, STORIES: 1}
    again = times[f"{DOWNED} last grew"] == now.at and now.at - last >= AGAIN_AFTER_S
    return {**times, STORIES: known + again}


def _times(now: Reading, before: Reading | None, place: str, counter: str) -> dict[str, Value]:
    """When the counter first and last grew, of those times that are close enough together to be told as one."""
    grown = growth(now, before, place, counter)
    if before is None or grown is None:
        return {}
    names = f"{counter} first grew", f"{counter} last grew"
    first, last = (before.facts.number(place, name) for name in names)
    if first is None or last is None or _over(counter, now.at - first, now.at - last):
        first = last = None
    if grown.count > 0:
        first, last = (now.at if first is None else first), now.at
    return {} if first is None or last is None else dict(zip(names, (first, last), strict=True))


def _over(counter: str, since_first_s: float, since_last_s: float) -> bool:
    return since_first_s > DAY_S if counter == DOWNED else since_last_s > FORGOTTEN_AFTER_S


def judge_flaps(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did a link go down? Once is ridden out; again within the hour, or for the third time in a day, it is broken."""
    del before
    used = in_use(now, policy)
    compared = [(place, grown) for place in used if (grown := in_window(now, place, DOWNED)) is not None]
    if not compared:
        return Outcome("-", unknown=now.facts.why_missing(DOWNED) or FIRST_LOOK)
    found = []
    for place, grown in compared:
        if grown.count > 0:
            often = grown.count >= policy.link_downed_per_hour * max(1.0, grown.over_s / HOUR_S)
            daily = (now.facts.number(place, STORIES) or 0.0) >= policy.link_downed_per_day
            tells = "it is broken" if often or daily else "ranks can go on, another time would count"
            times = "once" if grown.count == 1 else f"{grown.count:.0f} times"
            more = f", and {now.facts.number(place, STORIES):.0f} times within a day" if daily and not often else ""
            sentence = f"{place} lost its link {times} in {span(grown.over_s)}{more}: {tells}"
            severity = Severity.FAIL if often or daily else Severity.WARN
            found.append(finding("ib_flaps", place, severity, sentence, grown.evidence))
    total, longest_s = sum(grown.count for _, grown in compared), max(grown.over_s for _, grown in compared)
    return Outcome(f"{total:.0f} in {span(longest_s)}", f"< {policy.link_downed_per_hour:g} in 1 h", tuple(found))


def judge_errors(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do error counters grow faster than they may?"""
    used = in_use(now, policy)
    compared_count, found = 0, []
    for place in used:
        told = set()
        for bound in BOUNDS:
            grown = growth(now, before, place, bound.counter)
            if grown is None:
                continue
            compared_count += 1
            if bound.too_much(grown, policy):
                found.append(_error(now, place, bound, grown))
                told.add(bound.counter)
        if SYMBOLS not in told and (one := _many_symbols(now, place, policy)) is not None:
            found.append(one)
    if not compared_count:
        return Outcome("-", unknown=FIRST_LOOK if used else "no port is active")
    return Outcome(f"{len(found)} of {compared_count} counters", "rates: see docs", tuple(found))


def _error(now: Reading, place: str, bound: _Bound, grown: Growth) -> Finding:
    sentence = f"{place}: {bound.counter} went {grown.words} ({bound.tells})"
    first = now.facts.number(place, f"{bound.counter} first grew")
    if bound.twice and first is not None and now.at - first >= AGAIN_AFTER_S:
        sentence = f"{sentence}, as it first did {span(now.at - first)} before: it is broken"
        return finding("ib_errors", place, Severity.FAIL, sentence, grown.evidence)
    return finding("ib_errors", place, Severity.WARN, sentence, grown.evidence, Needs.NONE, bound.whose)


def _many_symbols(now: Reading, place: str, policy: HealthPolicy) -> Finding | None:
    """More than the standard's share of wrong bits makes in an hour: too few to be seen in seconds."""
    grown = in_window(now, place, SYMBOLS)
    if grown is None or grown.count <= policy.symbol_errors_per_hour * max(1.0, grown.over_s / HOUR_S):
        return None
    sentence = f"{place}: {SYMBOLS} went {grown.words}, more than the standard allows in an hour (a bad cable or plug)"
    return finding("ib_errors", place, Severity.WARN, sentence, grown.evidence, Needs.ADMIN)
