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
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Limit, Rows, ShareOfPeers, one_version
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Finding,
    FindingEvidence,
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


TWICE = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")  # again ten minutes later: it is broken


def _since_first_s(now: Reading, place: str, counter: str) -> float:
    first = now.facts.number(place, f"{counter} first grew")
    return 0.0 if first is None else now.at - first


def _bound(
    counter: str, limit: Limit, tells: str, per_s: float = 1.0, cause: CauseClass = CauseClass.HARDWARE, **more: Any
) -> Bound:
    """A warning: of any growth if the limit is 0, else of its rate."""
    measure = BoundMeasure.GROWTH if limit == 0 or counter == CARRIER else BoundMeasure.RATE
    return Bound(counter, limit, WARN, counter, tells, measure, per_s=per_s, needs=Needs.NONE, cause=cause, **more)


def _elsewhere(counter: str, limit: Limit, tells: str) -> Bound:
    """What a peer that dies leaves at all others, or a full fabric, is no sign against this port."""
    return _bound(counter, limit, tells, cause=CauseClass.ELSEWHERE)


def _again(counter: str) -> Bound:
    def again(now: Reading, place: str) -> bool:
        return _since_first_s(now, place, counter) >= AGAIN_AFTER_S

    return Bound(counter, 0, FAIL, counter, "It also grew ten minutes ago or earlier: the link is broken",
                 BoundMeasure.GROWTH, where=again)  # fmt: skip


BAD_CABLE, LOOK_AT_BOTH = "The cable or plug may be bad", "A connection died. Look at both ends"
BOUNDS = (
    *(_again(counter) for counter in TWICE),
    _bound("link_error_recovery", "link_recovery_per_min", "The link stalled for a short time", 60.0),
    _bound(SYMBOLS, "symbol_errors_per_s", BAD_CABLE),
    Bound(SYMBOLS, "symbol_errors_per_hour", WARN, SYMBOLS, BAD_CABLE, BoundMeasure.RATE, per_s=HOUR_S, least_s=HOUR_S,
          window=True),  # more than the standard's share of wrong bits makes: too few to be seen in seconds
    _bound("port_rcv_errors", "receive_errors_per_s", "Damaged packets came in"),
    _bound("local_link_integrity_errors", 0, "The link is close to its error limit"),
    _bound("excessive_buffer_overrun_errors", 0, "Flow control was violated"),
    _elsewhere("port_xmit_discards", "discards_per_s", "This is congestion, rarely this node"),
    _elsewhere("rnr_nak_retry_err", 0, "A receiver was slow, which is often the program's doing"),
    _elsewhere("req_rnr_retries_exceeded", 0, LOOK_AT_BOTH),
    _elsewhere("req_transport_retries_exceeded", 0, LOOK_AT_BOTH),
    _elsewhere("local_ack_timeout_err", "ack_timeouts_per_s", "A peer did not answer"),
    _elsewhere("roce_slow_restart", "receive_errors_per_s", "RoCE slows down"),
    _bound(CARRIER, CARRIER_CHANGES_MAX, "The network interface loses its link again and again"),
)  # fmt: skip
COUNTERS = tuple(dict.fromkeys((DOWNED, *(bound.reading for bound in BOUNDS))))
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

BESIDE_PEERS, PEERS_MIN_COUNT = 10.0, 3


def _beside(counter: str, usual_per_s: float, tells: str) -> Bound:
    """Worth a word is ten times the median of the ports, and ten times what is nothing to speak of."""
    return _elsewhere(counter, ShareOfPeers(BESIDE_PEERS, least_count=PEERS_MIN_COUNT, usual_min=usual_per_s), tells)


CONGESTION = _beside(WAITS, 1e6, "The port waits to send because of congestion on its way")
BESIDE = (
    _beside("port_rcv_remote_physical_errors", 1.0, "Packets that were damaged before: the other end, or beyond"),
    _beside("port_rcv_switch_relay_errors", 1.0, "Packets that could not be passed on"),
    _beside("port_rcv_constraint_errors", 1.0, "Packets refused on arrival: partitions or keys of the fabric"),
    _beside("port_xmit_constraint_errors", 1.0, "Packets refused on leaving: partitions or keys of the fabric"),
    _beside("VL15_dropped", 1.0, "Management packets dropped: the subnet manager asks too much at once"),
    _beside("packet_seq_err", 10.0, "Packets lost on the way"),
    _beside("out_of_sequence", 10.0, "Packets overtaken or lost on the way"),
    _beside("implied_nak_seq_err", 10.0, "Packets lost on the way"),
    _beside("out_of_buffer", 10.0, "The receiver had no buffer ready"),
    _beside("np_cnp_sent", 1000.0, "Senders told to slow down"),
    _beside("rp_cnp_handled", 1000.0, "Told to slow down"),
)
PEER_COUNTERS = (WAITS, *(bound.reading for bound in BESIDE))


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


def _why_not(look: CheckLook, name: str) -> str:
    return (look.facts.why_missing(name) or "no active port says") if in_use(look) else "no port is active"


PORT = CheckSubject(Scope.PORT, CauseClass.HARDWARE, Needs.ADMIN, Sticky.CLEAN, in_use, _why_not)


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


def _is_active(now: Reading, place: str) -> bool:
    return now.facts.number(place, "state") == ACTIVE


DEGRADED = "The link or cable is degraded"
RATE = Bound("rate", "ib_rate_gbps", FAIL, "rate", DEGRADED, breaks=Breaks.BELOW, where=_is_active)
RATE_OF_PEERS = replace(RATE, limit=ShareOfPeers(1.0, "link_layer", 1, most=True), severity=WARN)


def judge_rate(look: CheckLook) -> CheckOutcome:
    """Does every port run at full rate? With none expected: at that of its fastest peer, of the same kind."""
    expected = look.policy.ib_rate_gbps
    bound, limit = (RATE_OF_PEERS, "= peers") if expected is None else (RATE, f">= {expected:g} Gb/s")
    return Rows((bound,), limit, "{range}", nobody="no active port says its rate")(look)


# ---- what it counts --------------------------------------------------------------------------------------------------


def _went_down(now: Reading, place: str) -> bool:
    grown = in_window(now, place, DOWNED)
    return grown is not None and grown.count > 0


FLAPS = (  # once is ridden out; again within the hour, or for the third time in a day, it is broken
    Bound(DOWNED, "link_downed_per_hour", FAIL, "lost links", "The link is broken", BoundMeasure.RATE,
          Breaks.AT_LEAST, per_s=HOUR_S, least_s=HOUR_S, window=True),
    Bound(STORIES, "link_downed_per_day", FAIL, "number of times within a day that the link was lost",
          "The link is broken", breaks=Breaks.AT_LEAST, where=_went_down),
    Bound(DOWNED, 0, WARN, "lost links", "Ranks can go on; if it happens again, the link is broken",
          BoundMeasure.GROWTH, window=True),
)  # fmt: skip
PEERS_LIMIT = f"<= {BESIDE_PEERS:g} times its peers"
TOO_FEW = f"fewer than {PEERS_MIN_COUNT} ports to compare"
COUNTERS_BAD = "{bad} of {compared} counters"
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
        Check("ib_flaps", NAME, "links did not go down",
              Rows(FLAPS, lambda p: f"< {p.link_downed_per_hour:g} in 1 h", "{total} lost"), 5.0, PORT),
        Check("ib_errors", NAME, "error counters do not grow",
              Rows(BOUNDS, "rates: see docs", COUNTERS_BAD, each=True), 5.0, PORT),
    ),
    remember,
    KEPT,
)  # fmt: skip
PEERS_FAMILY = CheckFamily(
    PEERS_NAME,
    5.0,
    read_peers,
    (
        Check("ib_congestion", PEERS_NAME, "no port waits longer than its peers",
              Rows((CONGESTION,), PEERS_LIMIT, "{most} ticks/s at most", nobody=TOO_FEW), 60.0, PORT),
        Check("ib_peers", PEERS_NAME, "no port stands out among its peers",
              Rows(BESIDE, PEERS_LIMIT, COUNTERS_BAD, each=True, nobody=TOO_FEW), 60.0, PORT),
    ),
    seen_up,
)  # fmt: skip
