"""InfiniBand and RoCE ports, read from sysfs as any user may (room: health; one family of checks).

A port that is down now, and was never seen up, is not in use and is passed over, unless the policy names its device.
Down ports get a grace while a gang runs: flaps heal within seconds, and killing ranks for one costs more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from gangrun.health.check import (
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
from gangrun.health.files import number_in, text_of
from gangrun.health.growth import FIRST_LOOK, Growth, comparable, growth, in_window, span, with_windows
from gangrun.health.policy import HealthPolicy
from gangrun.health.rounds import Family, Surroundings

DEVICES = "sys/class/infiniband"
ACTIVE, LINK_UP, INITIALISING = 4, 5, 2
PORTS_MAX_COUNT = 128
HOUR_S = 3600.0
SYMBOLS = "symbol_error"
UP_AT, WATCHED = "last seen up", "watched since"
WAITS = "port_xmit_wait"
WAITS_BESIDE_PEERS, WAITS_PER_S_MIN = 10.0, 1e6
PEERS_MIN_COUNT = 3
NO_PORT = "no InfiniBand or RoCE device here"


def read(around: Surroundings) -> Facts:
    """Every port's states, rate and counters; devices as ``mlx5_0 port 1``."""
    devices = around.root / DEVICES
    try:
        names = sorted(path.name for path in devices.iterdir())
    except OSError:
        return Facts(absent=NO_PORT)
    values: dict[str, dict[str, int | float | str]] = {}
    missing: dict[str, dict[str, str]] = {}
    for name in names:
        for port in _ports(devices / name)[:PORTS_MAX_COUNT]:
            place = f"{name} port {port.name}"
            values[place], missing[place] = _port(port)
            values[place]["device"] = name
            firmware = text_of(devices / name / "fw_ver")
            if firmware:
                values[place]["firmware"] = firmware
    return Facts(values, missing) if values else Facts(absent=NO_PORT)


def _ports(device: Path) -> list[Path]:
    try:
        return sorted((device / "ports").iterdir(), key=lambda path: path.name)
    except OSError:
        return []


def _port(port: Path) -> tuple[dict[str, int | float | str], dict[str, str]]:
    values: dict[str, int | float | str] = {}
    missing: dict[str, str] = {}
    for name in ("state", "phys_state", "rate", "link_layer"):
        text = text_of(port / name)
        number = None if name == "link_layer" else _leading_number(text)
        if text and (number is not None or name == "link_layer"):
            values[f"{name} words"] = text
            values[name] = text if number is None else number
        else:
            missing[name] = f"{name} cannot be read"
    for counter in ("link_downed", WAITS, *(bound.counter for bound in BOUNDS)):
        number = number_in(port / "counters" / counter)
        if number is None:
            number = number_in(port / "hw_counters" / counter)
        if number is None:
            missing[counter] = "this device does not count it"
        else:
            values[counter] = number
    return values, missing


def _leading_number(text: str) -> float | None:
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)", text)
    return float(match[1]) if match else None


# ---- judging ---------------------------------------------------------------------------------------------------------


def remember(now: Reading, before: Reading | None) -> Reading:
    """When each port was last seen up, and what its link's falls were an hour ago at most."""
    values: dict[str, Mapping[str, Value]] = dict(now.facts.values)
    for place in now.facts.values:
        up_at: float | None = None
        watched: float | None = None
        if _is_up(now.facts, place):
            up_at = now.at
        elif before is not None and comparable(now, before):
            up_at = before.facts.number(place, UP_AT)
            unseen = before.facts.number(place, "state") is None  # a kept reading: since then nobody has looked
            watched = now.at if unseen else before.facts.number(place, WATCHED)
        if up_at is not None:
            values[place] = {**values[place], UP_AT: up_at, **({} if watched is None else {WATCHED: watched})}
    seen = replace(now, facts=Facts(values, now.facts.missing, now.facts.absent))
    return with_windows(seen, before, {"link_downed": HOUR_S, SYMBOLS: HOUR_S})


def _is_up(facts: Facts, place: str) -> bool:
    """Both must say so; a device without a physical state, as some virtual ones are, is believed."""
    return facts.number(place, "state") == ACTIVE and facts.number(place, "phys_state") in (LINK_UP, None)


def in_use(now: Reading, policy: HealthPolicy) -> tuple[str, ...]:
    """The ports that matter: of the devices that the policy names, or those that are or were active."""
    facts = now.facts
    if policy.ib_devices:
        return tuple(place for place in facts.values if facts.get(place, "device") in policy.ib_devices)
    return facts.places_with(UP_AT)


def _finding(
    check: str, place: str, severity: Severity, sentence: str, evidence: Evidence, needs: Needs = Needs.ADMIN
) -> Finding:
    sticky = Sticky.NO if check == "ib_state" else Sticky.CLEAN
    return Finding(check, Scope.PORT, place, severity, CauseClass.HARDWARE, needs, sticky, evidence, sentence)


def judge_devices(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Are the devices there that the job uses?"""
    del before
    here = tuple(dict.fromkeys(str(now.facts.get(place, "device")) for place in now.facts.values))
    shown = f"{len(here)}: {', '.join(here)}" if len(here) <= 4 else f"{len(here)} devices"
    if not policy.ib_devices:
        return Outcome(shown, "(none named)")
    gone = [name for name in policy.ib_devices if name not in here]
    found = tuple(
        Finding(
            "ib_devices",
            Scope.NODE,
            name,
            Severity.FAIL,
            CauseClass.HARDWARE,
            Needs.REBOOT,
            Sticky.BOOT,
            Evidence("gone"),
            f"the network device {name} is not there, although the job uses it",
        )
        for name in gone
    )
    return Outcome(shown, f"= {len(policy.ib_devices)} named", found)


def judge_state(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is every port that is used up?"""
    del before
    ports = in_use(now, policy)
    if not ports:
        return Outcome("no active port", unknown="no port is active, and no device is named as the job's")
    found = [finding for place in ports if (finding := _state(place, now, policy)) is not None]
    up_count = len(ports) - len(found)
    return Outcome(f"{up_count} of {len(ports)} up", "all ACTIVE", tuple(found))


def _state(place: str, now: Reading, policy: HealthPolicy) -> Finding | None:
    facts = now.facts
    state, physical = facts.number(place, "state"), facts.number(place, "phys_state")
    if state is None or _is_up(facts, place):
        return None
    words = str(facts.get(place, "state words"))
    up_at = now.facts.number(place, UP_AT)
    evidence = Evidence(words) if up_at is None else Evidence(words, "ACTIVE", now.at - up_at)
    link = f"; its link is {facts.get(place, 'phys_state words')}" if physical != LINK_UP else ""
    if state == INITIALISING and physical == LINK_UP:
        sentence = f"{place} is up but waits for the subnet manager ({words}): a fabric matter, rarely the node's"
        return _finding("ib_state", place, Severity.WARN, sentence, evidence)
    if up_at is None:
        return _finding("ib_state", place, Severity.FAIL, f"{place} is {words}, not ACTIVE{link}", evidence)
    down = f"{place} is {words}, and was last seen ACTIVE {span(now.at - up_at)} ago{link}"
    if now.at - max(up_at, now.facts.number(place, WATCHED) or up_at) <= policy.port_grace_s:
        return _finding("ib_state", place, Severity.WARN, f"{down}; flaps heal within seconds", evidence)
    return _finding("ib_state", place, Severity.FAIL, down, evidence)


def judge_rate(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does every port run at full rate? With none expected: at that of its fastest peer, of the same kind."""
    del before
    rates = {
        place: rate
        for place in in_use(now, policy)
        if (rate := now.facts.number(place, "rate")) is not None and now.facts.number(place, "state") == ACTIVE
    }
    if not rates:
        return Outcome("-", unknown="no active port says its rate")
    best: dict[object, float] = {}
    for place, rate in rates.items():
        layer = now.facts.get(place, "link_layer")
        best[layer] = max(rate, best.get(layer, 0.0))
    shown = ", ".join(f"{rate:g}" for rate in sorted(set(rates.values()), reverse=True)) + " Gb/s"
    expected = policy.ib_rate_gbps
    found = []
    for place, rate in rates.items():
        bound = expected if expected is not None else best[now.facts.get(place, "link_layer")]
        if rate < bound:
            words = now.facts.get(place, "rate words")
            whose = "expected" if expected is not None else "of the fastest port here"
            sentence = f"{place} runs at {words} instead of the {bound:g} Gb/s {whose}: a degraded link or cable"
            severity = Severity.FAIL if expected is not None else Severity.WARN
            found.append(_finding("ib_rate", place, severity, sentence, Evidence(rate, bound)))
    return Outcome(shown, f">= {expected:g} Gb/s" if expected is not None else "= peers", tuple(found))


@dataclass(frozen=True, slots=True)
class _Bound:
    """How fast a counter may grow; beyond it, the severity and what it tells."""

    counter: str
    severity: Severity
    too_much: Callable[[Growth, HealthPolicy], bool]
    tells: str


def _any(grown: Growth, policy: HealthPolicy) -> bool:
    del policy
    return grown.count > 0


BOUNDS = (
    _Bound("link_error_recovery", Severity.WARN, lambda g, p: g.per_s * 60 > p.link_recovery_per_min, "short stalls"),
    _Bound("symbol_error", Severity.WARN, lambda g, p: g.per_s > p.symbol_errors_per_s, "a bad cable or plug"),
    _Bound("port_rcv_errors", Severity.WARN, lambda g, p: g.per_s > p.receive_errors_per_s, "damaged packets came in"),
    _Bound("local_link_integrity_errors", Severity.WARN, _any, "the link is close to its error limit"),
    _Bound("excessive_buffer_overrun_errors", Severity.WARN, _any, "flow control was violated"),
    _Bound(
        "port_xmit_discards", Severity.WARN, lambda g, p: g.per_s > p.discards_per_s, "congestion, rarely this node"
    ),
    _Bound("rnr_nak_retry_err", Severity.WARN, _any, "a receiver was slow; often the program's"),
    _Bound("req_rnr_retries_exceeded", Severity.WARN, _any, "a connection died: look at both ends"),
    _Bound("req_transport_retries_exceeded", Severity.WARN, _any, "a connection died: look at both ends"),
    _Bound(
        "local_ack_timeout_err", Severity.WARN, lambda g, p: g.per_s > p.ack_timeouts_per_s, "a peer did not answer"
    ),
    _Bound("roce_slow_restart", Severity.WARN, lambda g, p: g.per_s > p.receive_errors_per_s, "RoCE slows down"),
)


def judge_flaps(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Did a link go down? Once is ridden out; again within the hour it is broken."""
    del before
    used = in_use(now, policy)
    compared = [(place, grown) for place in used if (grown := in_window(now, place, "link_downed")) is not None]
    if not compared:
        return Outcome("-", unknown=now.facts.why_missing("link_downed") or FIRST_LOOK)
    found = []
    for place, grown in compared:
        if grown.count > 0:
            broken = grown.count >= policy.link_downed_per_hour * max(1.0, grown.over_s / HOUR_S)
            tells = "it is broken" if broken else "ranks can go on, another time would count"
            times = "once" if grown.count == 1 else f"{grown.count:.0f} times"
            sentence = f"{place} lost its link {times} in {span(grown.over_s)}: {tells}"
            severity = Severity.FAIL if broken else Severity.WARN
            found.append(_finding("ib_flaps", place, severity, sentence, grown.evidence))
    total, longest_s = sum(grown.count for _, grown in compared), max(grown.over_s for _, grown in compared)
    return Outcome(f"{total:.0f} in {span(longest_s)}", f"< {policy.link_downed_per_hour:g} in 1 h", tuple(found))


def judge_errors(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do error counters grow faster than they may?"""
    used = in_use(now, policy)
    compared_count, found = 0, []
    for place in used:
        for bound in BOUNDS:
            grown = growth(now, before, place, bound.counter)
            if grown is None:
                continue
            compared_count += 1
            if bound.too_much(grown, policy):
                sentence = f"{place}: {bound.counter} went {grown.words} ({bound.tells})"
                found.append(_finding("ib_errors", place, bound.severity, sentence, grown.evidence, Needs.NONE))
        if place not in {one.place for one in found} and (one := _many_symbols(now, place, policy)) is not None:
            found.append(one)
    if not compared_count:
        return Outcome("-", unknown=FIRST_LOOK if used else "no port is active")
    return Outcome(f"{len(found)} of {compared_count} counters", "rates: see docs", tuple(found))


def _many_symbols(now: Reading, place: str, policy: HealthPolicy) -> Finding | None:
    """More than the standard's share of wrong bits makes in an hour: too few to be seen in seconds."""
    grown = in_window(now, place, SYMBOLS)
    if grown is None or grown.count <= policy.symbol_errors_per_hour * max(1.0, grown.over_s / HOUR_S):
        return None
    sentence = f"{place}: {SYMBOLS} went {grown.words}, more than the standard allows in an hour (a bad cable or plug)"
    return _finding("ib_errors", place, Severity.WARN, sentence, grown.evidence, Needs.ADMIN)


def judge_congestion(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does one port wait to send far longer than those beside it? Rarely its own fault, and told for that reason."""
    used = in_use(now, policy)
    grown = {place: one for place in used if (one := growth(now, before, place, WAITS)) is not None}
    limit = f"<= {WAITS_BESIDE_PEERS:g} times its peers"
    if len(grown) < PEERS_MIN_COUNT:
        known = any(now.facts.number(place, WAITS) is not None for place in used)
        few = FIRST_LOOK if known and before is None else f"fewer than {PEERS_MIN_COUNT} ports to compare"
        return Outcome("-", limit, unknown=few)
    usual = max(median(one.per_s for one in grown.values()), WAITS_PER_S_MIN)
    found = tuple(
        _finding(
            "ib_congestion", place, Severity.WARN,
            f"{place} waits to send {one.per_s / usual:.0f} times as long as ports beside it: congestion on its way",
            one.evidence, Needs.NONE,
        )
        for place, one in grown.items()
        if one.per_s > WAITS_BESIDE_PEERS * usual
    )  # fmt: skip
    return Outcome(f"{max(one.per_s for one in grown.values()):.3g} ticks/s at most", limit, found)


FAMILY = Family(
    "infiniband",
    5.0,
    read,
    (
        Check("ib_devices", "infiniband", "network devices that the job uses are there", judge_devices, 60.0),
        Check("ib_state", "infiniband", "ports are ACTIVE and linked", judge_state, 5.0),
        Check("ib_rate", "infiniband", "ports run at full rate", judge_rate, 60.0),
        Check("ib_flaps", "infiniband", "links did not go down", judge_flaps, 5.0),
        Check("ib_errors", "infiniband", "error counters do not grow", judge_errors, 5.0),
        Check("ib_congestion", "infiniband", "no port waits longer than its peers", judge_congestion, 60.0),
    ),
    remember,
    frozenset(
        {
            UP_AT,
            "link_downed",
            "link_downed then",
            "link_downed since",
            "link_error_recovery",
            "symbol_error",
            "symbol_error then",
            "symbol_error since",
            "port_rcv_errors",
            "local_link_integrity_errors",
            "excessive_buffer_overrun_errors",
        }
    ),  # not what ranks that are killed leave at their peers
)
