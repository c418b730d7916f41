"""InfiniBand and RoCE ports: are they there, up, and as fast as they should be.

Down ports get a grace while a gang runs: flaps heal within seconds, and killing ranks for one costs more. The reading:
``ib_ports``. Counters are judged in ``ib_errors``, those that only say something beside other ports in ``ib_peers``.
"""

from __future__ import annotations

from gangrun.health.framework import firmware
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
)
from gangrun.health.framework.growth import span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings
from gangrun.health.network import port_errors
from gangrun.health.network import ports as ib_ports
from gangrun.health.network.ports import ACTIVE, INITIALISING, LINK_UP, UP_AT, WATCHED, finding, in_use, is_up


def read(around: Surroundings) -> Facts:
    """Every port, and its own counters."""
    return ib_ports.read(around, port_errors.COUNTERS)


def remember(now: Reading, before: Reading | None) -> Reading:
    """When each port was last seen up, and what its counters were when their windows began."""
    return port_errors.with_history(ib_ports.seen_up(now, before), before)


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
    found = [one for place in ports if (one := _state(place, now, policy)) is not None]
    up_count = len(ports) - len(found)
    return Outcome(f"{up_count} of {len(ports)} up", "all ACTIVE", tuple(found))


def _state(place: str, now: Reading, policy: HealthPolicy) -> Finding | None:
    facts = now.facts
    state, physical = facts.number(place, "state"), facts.number(place, "phys_state")
    if state is None or is_up(facts, place):
        return None
    words = str(facts.get(place, "state words"))
    up_at = now.facts.number(place, UP_AT)
    evidence = Evidence(words) if up_at is None else Evidence(words, "ACTIVE", now.at - up_at)
    link = f"; its link is {facts.get(place, 'phys_state words')}" if physical != LINK_UP else ""
    if state == INITIALISING and physical == LINK_UP:
        sentence = f"{place} is up but waits for the subnet manager ({words}): a fabric matter, rarely the node's"
        return finding("ib_state", place, Severity.WARN, sentence, evidence)
    if up_at is None:
        return finding("ib_state", place, Severity.FAIL, f"{place} is {words}, not ACTIVE{link}", evidence)
    down = f"{place} is {words}, and was last seen ACTIVE {span(now.at - up_at)} ago{link}"
    if now.at - max(up_at, now.facts.number(place, WATCHED) or up_at) <= policy.port_grace_s:
        return finding("ib_state", place, Severity.WARN, f"{down}; flaps heal within seconds", evidence)
    return finding("ib_state", place, Severity.FAIL, down, evidence)


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
            found.append(finding("ib_rate", place, severity, sentence, Evidence(rate, bound)))
    return Outcome(shown, f">= {expected:g} Gb/s" if expected is not None else "= peers", tuple(found))


FAMILY = Family(
    "infiniband",
    5.0,
    read,
    (
        Check("ib_devices", "infiniband", "network devices that the job uses are there", judge_devices, 60.0),
        Check("ib_firmware", "infiniband", "devices of one kind have one firmware", firmware.judge_devices, 300.0),
        Check("ib_state", "infiniband", "ports are ACTIVE and linked", judge_state, 5.0),
        Check("ib_rate", "infiniband", "ports run at full rate", judge_rate, 60.0),
        Check("ib_flaps", "infiniband", "links did not go down", port_errors.judge_flaps, 5.0),
        Check("ib_errors", "infiniband", "error counters do not grow", port_errors.judge_errors, 5.0),
    ),
    remember,
    frozenset({UP_AT, *port_errors.KEPT}),
)
