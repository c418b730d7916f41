"""InfiniBand and RoCE ports: what sysfs says of them to any user, and which of them a job uses.

A port that is down now, and was never seen up, is not in use and is passed over, unless the policy names its device.
Which counters are read is the caller's word, as each costs the firmware a question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gangrun.health.framework.check import (
    CauseClass,
    Evidence,
    Facts,
    Finding,
    Needs,
    Reading,
    Scope,
    Severity,
    Sticky,
    Value,
)
from gangrun.health.framework.files import number_in, text_of
from gangrun.health.framework.growth import comparable
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Surroundings

DEVICES = "sys/class/infiniband"
ACTIVE, LINK_UP, INITIALISING = 4, 5, 2
PORTS_MAX_COUNT = 128
UP_AT, WATCHED = "last seen up", "watched since"
CARRIER = "carrier_changes"  # of the network interface: what RoCE has for link_downed
ETHERNET = "Ethernet"
NO_PORT = "no InfiniBand or RoCE device here"

Values = dict[str, int | float | str]


def read(around: Surroundings, counters: Iterable[str]) -> Facts:
    """Every port's states, rate and these counters; ports as ``mlx5_0 port 1``."""
    devices = around.root / DEVICES
    try:
        names = sorted(path.name for path in devices.iterdir())
    except OSError:
        return Facts(absent=NO_PORT)
    values: dict[str, Values] = {}
    missing: dict[str, dict[str, str]] = {}
    wanted = tuple(counters)
    for name in names:
        for port in _ports(devices / name)[:PORTS_MAX_COUNT]:
            place = f"{name} port {port.name}"
            values[place], missing[place] = _port(port, wanted)
            values[place]["device"] = name
            for value, file in (("firmware", "fw_ver"), ("board", "board_id")):
                if words := text_of(devices / name / file):
                    values[place][value] = words
    return Facts(values, missing) if values else Facts(absent=NO_PORT)


def _ports(device: Path) -> list[Path]:
    try:
        return sorted((device / "ports").iterdir(), key=lambda path: path.name)
    except OSError:
        return []


def _port(port: Path, counters: tuple[str, ...]) -> tuple[Values, dict[str, str]]:
    values: Values = {}
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
    """Of all interfaces of this port; where they do not say which port they have, of the device's."""
    try:
        interfaces = list((port.parent.parent / "device" / "net").iterdir())
    except OSError:
        return None
    own = [one for one in interfaces if (at := number_in(one / "dev_port")) is None or str(at + 1) == port.name]
    counts = [count for one in own if (count := number_in(one / CARRIER)) is not None]
    return sum(counts) if counts else None


def _leading_number(text: str) -> float | None:
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,6})?)", text)
    return float(match[1]) if match else None


# ---- for all checks of ports -----------------------------------------------------------------------------------------


def seen_up(now: Reading, before: Reading | None) -> Reading:
    """Carry on when each port was last seen up."""
    values: dict[str, Mapping[str, Value]] = dict(now.facts.values)
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
            values[place] = {**values[place], UP_AT: up_at, **({} if watched is None else {WATCHED: watched})}
    return replace(now, facts=replace(now.facts, values=values))


def is_up(facts: Facts, place: str) -> bool:
    """Both must say so; a device without a physical state, as some virtual ones are, is believed."""
    return facts.number(place, "state") == ACTIVE and facts.number(place, "phys_state") in (LINK_UP, None)


def in_use(now: Reading, policy: HealthPolicy) -> tuple[str, ...]:
    """The ports that matter: of the devices that the policy names, or those that are or were active."""
    facts = now.facts
    if policy.ib_devices:
        return tuple(place for place in facts.values if facts.get(place, "device") in policy.ib_devices)
    return facts.places_with(UP_AT)


def finding(
    check: str,
    place: str,
    severity: Severity,
    sentence: str,
    evidence: Evidence,
    needs: Needs = Needs.ADMIN,
    cause: CauseClass = CauseClass.HARDWARE,
) -> Finding:
    """A finding about a port, with what is usual for one."""
    sticky = Sticky.NO if check == "ib_state" else Sticky.CLEAN
    return Finding(check, Scope.PORT, place, severity, cause, needs, sticky, evidence, sentence)
