"""InfiniBand and RoCE ports: there, up, as fast as they should be, and what they count.

A port that is down now, and was never seen up, is not in use and is passed over, unless the policy names its device.
Down ports get a grace while a gang runs: flaps heal within seconds, and killing ranks for one costs more. Two families
read them, as each counter costs the firmware a question: ``infiniband`` every few seconds, what a port counts by itself
(lost links, wrong symbols, damaged packets); ``ib_peers`` seldom, what says something only beside other ports. A full
fabric, a slow receiver or a burst of work raises those everywhere: one port far above the others of its node is worth a
word. It may just be the busiest, as the one that carries storage, so none of this counts against its node.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from gangrun.health.framework.bounds import Bound, BoundMeasure, one_version
from gangrun.health.framework.check import (
    FAIL,
    FIRST_LOOK,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Finding,
    FindingEvidence,
    Growth,
    Needs,
    NodeFacts,
    Reading,
    Scope,
    Sticky,
    Value,
    comparable,
    growth,
    in_window,
    span,
    with_windows,
)  # fmt: skip
from gangrun.health.framework.readings import folders_in, number_in, text_of
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings

NAME, PEERS_NAME = "infiniband", "ib_peers"
DEVICES = "sys/class/infiniband"
ACTIVE, LINK_UP, INITIALISING = 4, 5, 2
PORTS_MAX_COUNT = 128
UP_AT, WATCHED = "last seen up", "watched since"
CARRIER = "carrier_changes"  # of the network interface: what RoCE has for link_downed
ETHERNET = "Ethernet"
NO_PORT = "no InfiniBand or RoCE device here"
HOUR_S, DAY_S = 3600.0, 24 * 3600.0
DOWNED, SYMBOLS, WAITS = "link_downed", "symbol_error", "port_xmit_wait"
STORIES = "link_downed stories"
AGAIN_AFTER_S, FORGOTTEN_AFTER_S = 600.0, HOUR_S  # what comes within the first of them is one story
CARRIER_CHANGES_MAX = 2  # between two looks: a link that was lost and came back
WINDOWS_S = {DOWNED: HOUR_S, SYMBOLS: HOUR_S}


def _bound(
    counter: str, limit: float | str, tells: str, measure: BoundMeasure = BoundMeasure.PER_S, per: float = 1.0,
    cause: CauseClass = CauseClass.HARDWARE,
) -> Bound:  # fmt: skip
    return Bound(counter, limit, WARN, tells, measure, per=per, needs=Needs.NONE, cause=cause)


def _elsewhere(counter: str, limit: float | str, tells: str, measure: BoundMeasure = BoundMeasure.PER_S) -> Bound:
    """What a peer that dies leaves at all others, or a full fabric, is no sign against this port."""
    return _bound(counter, limit, tells, measure, cause=CauseClass.ELSEWHERE)


BOUNDS = (
    _bound("link_error_recovery", "link_recovery_per_min", "short stalls", per=60),
    _bound(SYMBOLS, "symbol_errors_per_s", "a bad cable or plug"),
    _bound("port_rcv_errors", "receive_errors_per_s", "damaged packets came in"),
    _bound("local_link_integrity_errors", 0, "the link is close to its error limit", BoundMeasure.GROWTH),
    _bound("excessive_buffer_overrun_errors", 0, "flow control was violated", BoundMeasure.GROWTH),
    _elsewhere("port_xmit_discards", "discards_per_s", "congestion, rarely this node"),
    _elsewhere("rnr_nak_retry_err", 0, "a receiver was slow; often the program's", BoundMeasure.GROWTH),
    _elsewhere("req_rnr_retries_exceeded", 0, "a connection died: look at both ends", BoundMeasure.GROWTH),
    _elsewhere("req_transport_retries_exceeded", 0, "a connection died: look at both ends", BoundMeasure.GROWTH),
    _elsewhere("local_ack_timeout_err", "ack_timeouts_per_s", "a peer did not answer"),
    _elsewhere("roce_slow_restart", "receive_errors_per_s", "RoCE slows down"),
    _bound(CARRIER, CARRIER_CHANGES_MAX, "its interface loses its link again and again", BoundMeasure.GROWTH),
)
TWICE = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")  # again ten minutes later: it is broken
COUNTERS = (DOWNED, *(bound.reading for bound in BOUNDS))
KEPT = frozenset(
    {
        UP_AT,
        "link_error_recovery",
        "port_rcv_errors",
        STORIES,
        *(name for counter in WINDOWS_S for name in (counter, f"{counter} then", f"{counter} since")),
        *(name for counter in (DOWNED, *TWICE) for name in (counter, f"{counter} first grew", f"{counter} last grew")),
    }
)  # not what ranks that are killed leave at their peers

# (counter, how many a second are nothing to speak of, what it tells): worth a word is what exceeds ten times as many,
# and ten times the median of the ports
BESIDE_PEERS, USUAL_WAITS_PER_S, PEERS_MIN_COUNT = 10.0, 1e6, 3
BESIDE = (
    ("port_rcv_remote_physical_errors", 1.0, "packets that were damaged before: the other end, or beyond"),
    ("port_rcv_switch_relay_errors", 1.0, "packets that could not be passed on"),
    ("port_rcv_constraint_errors", 1.0, "packets refused on arrival: partitions or keys of the fabric"),
    ("port_xmit_constraint_errors", 1.0, "packets refused on leaving: partitions or keys of the fabric"),
    ("VL15_dropped", 1.0, "management packets dropped: the subnet manager asks too much at once"),
    ("packet_seq_err", 10.0, "packets lost on the way"),
    ("out_of_sequence", 10.0, "packets overtaken or lost on the way"),
    ("implied_nak_seq_err", 10.0, "packets lost on the way"),
    ("out_of_buffer", 10.0, "the receiver had no buffer ready"),
    ("np_cnp_sent", 1000.0, "senders told to slow down"),
    ("rp_cnp_handled", 1000.0, "told to slow down"),
)
PEER_COUNTERS = (WAITS, *(counter for counter, _, _ in BESIDE))


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(around: HealthSurroundings) -> NodeFacts:
    """Every port, and its own counters."""
    return read_ports(around, COUNTERS)


def read_peers(around: HealthSurroundings) -> NodeFacts:
    """Every port, and the counters that are compared."""
    return read_ports(around, PEER_COUNTERS)


def read_ports(around: HealthSurroundings, counters: tuple[str, ...]) -> NodeFacts:
    """Every port's states, rate and these counters; ports as ``mlx5_0 port 1``."""
    values: dict[str, dict[str, Value]] = {}
    missing: dict[str, dict[str, str]] = {}
    for device in folders_in(around.root / DEVICES):
        for port in folders_in(device / "ports")[:PORTS_MAX_COUNT]:
            place = f"{device.name} port {port.name}"
            values[place], missing[place] = _port(port, counters)
            values[place]["device"] = device.name
            for value, file in (("firmware", "fw_ver"), ("board", "board_id")):
                if words := text_of(device / file):
                    values[place][value] = words
    return NodeFacts(values, missing) if values else NodeFacts(absent=NO_PORT)


def _port(port: Path, counters: tuple[str, ...]) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    missing: dict[str, str] = {}
    for name in ("state", "phys_state", "rate", "link_layer"):
        text = text_of(port / name)
        number = None if name == "link_layer" else _leading_number(text)
        if text and (number is not None or name == "link_layer"):
            values[f"{name} words"] = text
            values[name] = text if number is None else number
        else:
            missing[name] = f"{name} cannot be read"
    for counter in counters:
        number = _count(port, counter, values.get("link_layer"))
        if number is None:
            missing[counter] = "this device does not count it"
        else:
            values[counter] = number
    return values, missing


def _count(port: Path, counter: str, layer: Value | None) -> int | None:
    if counter == CARRIER:
        return _carrier_changes(port) if layer == ETHERNET else None
    number = number_in(port / "counters" / counter)
    return number_in(port / "hw_counters" / counter) if number is None else number


def _carrier_changes(port: Path) -> int | None:
    """Of all interfaces of this port; if they do not say which port they have, of the device's."""
    interfaces = folders_in(port.parent.parent / "device" / "net")
    own = [one for one in interfaces if (at := number_in(one / "dev_port")) is None or str(at + 1) == port.name]
    counts = [count for one in own if (count := number_in(one / CARRIER)) is not None]
    return sum(counts) if counts else None


def _leading_number(text: str) -> float | None:
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)", text)
    return float(match[1]) if match else None


# ---- what is remembered ----------------------------------------------------------------------------------------------


def remember(now: Reading, before: Reading | None) -> Reading:
    """When each port was last seen up, what rare things were an hour ago at most, and when those that must not come
    again and again first came.
    """
    now = seen_up(now, before)
    more = {place: _downed(now, before, place) for place in now.facts.values}
    for place, names in more.items():
        for counter in TWICE:
            names.update(_times(now, before, place, counter))
    return with_windows(now.with_more(more), before, WINDOWS_S)


def seen_up(now: Reading, before: Reading | None) -> Reading:
    """Carry on when each port was last seen up."""
    more: dict[str, dict[str, Value]] = {}
    for place in now.facts.values:
        up_at: float | None = None
        watched: float | None = None
        if is_up(now.facts, place):
            up_at = now.at
        elif before is not None and comparable(now, before):
            up_at = before.facts.number(place, UP_AT)
            unseen = before.facts.number(place, "state") is None  # a kept reading: since then nobody has looked
            watched = now.at if unseen else before.facts.number(place, WATCHED)
        if up_at is not None:
            more[place] = {UP_AT: up_at, **({} if watched is None else {WATCHED: watched})}
    return now.with_more(more)


def _downed(now: Reading, before: Reading | None, place: str) -> dict[str, Value]:
    """How often the link was lost within a day; all that a switch's restart does to it is once."""
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


# ---- for all checks of ports -----------------------------------------------------------------------------------------


def is_up(facts: NodeFacts, place: str) -> bool:
    """Both must say so; a device without a physical state, as some virtual ones are, is believed."""
    return facts.number(place, "state") == ACTIVE and facts.number(place, "phys_state") in (LINK_UP, None)


def in_use(look: CheckLook, name: str = "") -> tuple[str, ...]:
    """The ports that matter: of the devices that the policy names, or those that are or were active."""
    del name
    named = look.policy.ib_devices
    if named:
        return tuple(place for place in look.facts.values if look.facts.get(place, "device") in named)
    return look.facts.places_with(UP_AT)


PORT = CheckSubject(Scope.PORT, CauseClass.HARDWARE, Needs.ADMIN, Sticky.CLEAN, in_use)


# ---- what a port is by itself ----------------------------------------------------------------------------------------


def judge_devices(look: CheckLook) -> CheckOutcome:
    """Are the devices there that the job uses?"""
    here = tuple(dict.fromkeys(str(look.facts.get(place, "device")) for place in look.facts.values))
    shown = f"{len(here)}: {', '.join(here)}" if len(here) <= 4 else f"{len(here)} devices"
    named = look.policy.ib_devices
    found = tuple(
        look.found(FAIL, name, f"the network device {name} is not there, although the job uses it", "gone")
        for name in named
        if name not in here
    )
    return CheckOutcome(shown, f"= {len(named)} named" if named else "(none named)", found)


def judge_firmware(look: CheckLook) -> CheckOutcome:
    """Do network devices of one kind carry the same firmware?"""
    kinds: dict[str, dict[str, str]] = {}
    for place in in_use(look):
        device, version = str(look.facts.get(place, "device")), look.facts.get(place, "firmware")
        if version is not None:
            kind = look.facts.get(place, "board") or "network device"
            kinds.setdefault(f"{kind} firmware", {})[device] = str(version)
    return one_version(look, kinds, "no device in use says its firmware")


def judge_state(look: CheckLook) -> CheckOutcome:
    """Is every port that is used up?"""
    used = in_use(look)
    if not used:
        return CheckOutcome("no active port", unknown="no port is active, and no device is named as the job's")
    found = [one for place in used if (one := _state(look, place)) is not None]
    return CheckOutcome(f"{len(used) - len(found)} of {len(used)} up", "all ACTIVE", tuple(found))


def _state(look: CheckLook, place: str) -> Finding | None:
    facts, at = look.facts, look.now.at
    state, physical = facts.number(place, "state"), facts.number(place, "phys_state")
    if state is None or is_up(facts, place):
        return None
    words, up_at = str(facts.get(place, "state words")), facts.number(place, UP_AT)
    evidence = FindingEvidence(words) if up_at is None else FindingEvidence(words, "ACTIVE", at - up_at)
    link = f"; its link is {facts.get(place, 'phys_state words')}" if physical != LINK_UP else ""
    if state == INITIALISING and physical == LINK_UP:
        sentence = f"{place} is up but waits for the subnet manager ({words}): a fabric matter, rarely the node's"
        return look.found(WARN, place, sentence, evidence)
    if up_at is None:
        return look.found(FAIL, place, f"{place} is {words}, not ACTIVE{link}", evidence)
    down = f"{place} is {words}, and was last seen ACTIVE {span(at - up_at)} ago{link}"
    if at - max(up_at, facts.number(place, WATCHED) or up_at) <= look.policy.port_grace_s:
        return look.found(WARN, place, f"{down}; flaps heal within seconds", evidence)
    return look.found(FAIL, place, down, evidence)


def judge_rate(look: CheckLook) -> CheckOutcome:
    """Does every port run at full rate? With none expected: at that of its fastest peer, of the same kind."""
    rates = {place: rate for place, rate in look.numbers("rate").items() if look.number(place, "state") == ACTIVE}
    if not rates:
        return CheckOutcome("-", unknown="no active port says its rate")
    best: dict[object, float] = {}
    for place, rate in rates.items():
        layer = look.facts.get(place, "link_layer")
        best[layer] = max(rate, best.get(layer, 0.0))
    expected, found = look.policy.ib_rate_gbps, []
    severity, whose = (FAIL, "expected") if expected is not None else (WARN, "of the fastest port here")
    for place, rate in rates.items():
        bound = expected if expected is not None else best[look.facts.get(place, "link_layer")]
        if rate < bound:
            words = look.facts.get(place, "rate words")
            sentence = f"{place} runs at {words} instead of the {bound:g} Gb/s {whose}: a degraded link or cable"
            found.append(look.found(severity, place, sentence, rate, bound))
    shown = ", ".join(f"{rate:g}" for rate in sorted(set(rates.values()), reverse=True)) + " Gb/s"
    return CheckOutcome(shown, f">= {expected:g} Gb/s" if expected is not None else "= peers", tuple(found))


# ---- what it counts by itself ----------------------------------------------------------------------------------------


def judge_flaps(look: CheckLook) -> CheckOutcome:
    """Did a link go down? Once is ridden out; again within the hour, or for the third time in a day, it is broken."""
    policy = look.policy
    grown = {place: one for place in in_use(look) if (one := in_window(look.now, place, DOWNED)) is not None}
    if not grown:
        return CheckOutcome("-", unknown=look.facts.why_missing(DOWNED) or FIRST_LOOK)
    found = []
    for place, one in grown.items():
        if one.count > 0:
            often = one.count >= policy.link_downed_per_hour * max(1.0, one.over_s / HOUR_S)
            stories = look.number(place, STORIES) or 0.0
            daily = stories >= policy.link_downed_per_day
            tells = "it is broken" if often or daily else "ranks can go on, another time would count"
            times = "once" if one.count == 1 else f"{one.count:.0f} times"
            more = f", and {stories:.0f} times within a day" if daily and not often else ""
            sentence = f"{place} lost its link {times} in {span(one.over_s)}{more}: {tells}"
            found.append(look.found(FAIL if often or daily else WARN, place, sentence, one.evidence))
    total, longest_s = sum(one.count for one in grown.values()), max(one.over_s for one in grown.values())
    return CheckOutcome(f"{total:.0f} in {span(longest_s)}", f"< {policy.link_downed_per_hour:g} in 1 h", tuple(found))


def judge_errors(look: CheckLook) -> CheckOutcome:
    """Do error counters grow faster than they may?"""
    compared_count, found = 0, []
    for place in in_use(look):
        told = set()
        for bound in BOUNDS:
            grown = growth(look.now, look.before, place, bound.reading)
            if grown is None:
                continue
            compared_count += 1
            if bound.is_broken(bound.of(grown), look.policy):
                found.append(_error(look, place, bound, grown))
                told.add(bound.reading)
        if SYMBOLS not in told and (one := _many_symbols(look, place)) is not None:
            found.append(one)
    if not compared_count:
        return CheckOutcome("-", unknown=FIRST_LOOK if in_use(look) else "no port is active")
    return CheckOutcome(f"{len(found)} of {compared_count} counters", "rates: see docs", tuple(found))


def _error(look: CheckLook, place: str, bound: Bound, grown: Growth) -> Finding:
    sentence = f"{place}: {bound.reading} went {grown.words} ({bound.sentence})"
    first = look.number(place, f"{bound.reading} first grew")
    if bound.reading in TWICE and first is not None and look.now.at - first >= AGAIN_AFTER_S:
        sentence = f"{sentence}, as it first did {span(look.now.at - first)} before: it is broken"
        return look.found(FAIL, place, sentence, grown.evidence)
    return look.found(WARN, place, sentence, grown.evidence, needs=bound.needs, cause=bound.cause)


def _many_symbols(look: CheckLook, place: str) -> Finding | None:
    """More than the standard's share of wrong bits makes in an hour: too few to be seen in seconds."""
    grown = in_window(look.now, place, SYMBOLS)
    if grown is None or grown.count <= look.policy.symbol_errors_per_hour * max(1.0, grown.over_s / HOUR_S):
        return None
    sentence = f"{place}: {SYMBOLS} went {grown.words}, more than the standard allows in an hour (a bad cable or plug)"
    return look.found(WARN, place, sentence, grown.evidence)


# ---- beside the other ports ------------------------------------------------------------------------------------------

PEERS_LIMIT = f"<= {BESIDE_PEERS:g} times its peers"


def _far_above(look: CheckLook, counter: str, usual_per_s: float) -> tuple[dict[str, Growth], dict[str, float]]:
    """The growth at each port in use, and at those far above the others how many times the usual it is."""
    grown = look.grown(counter)
    if len(grown) < PEERS_MIN_COUNT:
        return {}, {}
    usual = max(median(one.per_s for one in grown.values()), usual_per_s)
    return grown, {p: one.per_s / usual for p, one in grown.items() if one.per_s > BESIDE_PEERS * usual}


def _too_few(look: CheckLook, *counters: str) -> CheckOutcome:
    known = look.before is None and any(look.numbers(one) for one in counters)
    why = FIRST_LOOK if known else f"fewer than {PEERS_MIN_COUNT} ports to compare"
    return CheckOutcome("-", PEERS_LIMIT, unknown=why)


def _beside(look: CheckLook, place: str, sentence: str, grown: Growth) -> Finding:
    return look.found(WARN, place, sentence, grown.evidence, needs=Needs.NONE, cause=CauseClass.ELSEWHERE)


def judge_congestion(look: CheckLook) -> CheckOutcome:
    """Does one port wait to send far longer than those beside it? Rarely its own fault, and told for that reason."""
    grown, above = _far_above(look, WAITS, USUAL_WAITS_PER_S)
    if not grown:
        return _too_few(look, WAITS)
    words = "times as long as ports beside it: congestion on its way"
    found = tuple(
        _beside(look, place, f"{place} waits to send {times:.0f} {words}", grown[place])
        for place, times in above.items()
    )
    return CheckOutcome(f"{max(one.per_s for one in grown.values()):.3g} ticks/s at most", PEERS_LIMIT, found)


def judge_peers(look: CheckLook) -> CheckOutcome:
    """Does one port count far more of what others count, too?"""
    found, compared_count = [], 0
    for counter, usual_per_s, tells in BESIDE:
        grown, above = _far_above(look, counter, usual_per_s)
        compared_count += len(grown)
        for place in above:
            sentence = f"{place}: {counter} went {grown[place].words}, far more than at ports beside it ({tells})"
            found.append(_beside(look, place, sentence, grown[place]))
    if not compared_count:
        return _too_few(look, *PEER_COUNTERS[1:])
    return CheckOutcome(f"{len(found)} of {compared_count} counters", PEERS_LIMIT, tuple(found))


GONE = CheckSubject(Scope.NODE, CauseClass.HARDWARE, Needs.REBOOT, Sticky.BOOT)
STATE = CheckSubject(Scope.PORT, CauseClass.HARDWARE, Needs.ADMIN, Sticky.NO, in_use)
FAMILY = CheckFamily(
    NAME,
    5.0,
    read,
    (
        Check("ib_devices", NAME, "network devices that the job uses are there", judge_devices, 60.0, GONE),
        Check("ib_firmware", NAME, "devices of one kind have one firmware", judge_firmware, 300.0, PORT),
        Check("ib_state", NAME, "ports are ACTIVE and linked", judge_state, 5.0, STATE),
        Check("ib_rate", NAME, "ports run at full rate", judge_rate, 60.0, PORT),
        Check("ib_flaps", NAME, "links did not go down", judge_flaps, 5.0, PORT),
        Check("ib_errors", NAME, "error counters do not grow", judge_errors, 5.0, PORT),
    ),
    remember,
    KEPT,
)
PEERS_FAMILY = CheckFamily(
    PEERS_NAME,
    5.0,
    read_peers,
    (
        Check("ib_congestion", PEERS_NAME, "no port waits longer than its peers", judge_congestion, 60.0, PORT),
        Check("ib_peers", PEERS_NAME, "no port stands out among its peers", judge_peers, 60.0, PORT),
    ),
    seen_up,
)
