"""Readings at the edge: small files of /sys and /proc, JSON there and back, and what is kept for the next process.

What was written elsewhere is not trusted. What is not a place with named numbers or words is dropped; so is a number
that is none (NaN, infinite, beyond all counters). A judge only ever sees values of the three kinds. Kept between
processes are only hardware's own counts and what is needed to compare them: counts that depend on a program's work
(congestion, processes that wait) would accuse a node of what others did there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangrun.health.framework.check import NodeFacts, Reading, Value

TEXT_MAX_BYTES = 4096
NUMBER_MAX_DIGITS = 20
WORD_MAX_CHARS = 300
NUMBER_MAX = 2.0**64
PLACES_MAX_COUNT = 4096
UUID = "uuid"
_OF_GPU = re.compile(r"(gpu \d+)( link \d+)?")


# ---- small files -----------------------------------------------------------------------------------------------------


def text_of(path: Path, max_bytes: int = TEXT_MAX_BYTES) -> str:
    """The text of a file without its last newline; "" if it cannot be read. A FIFO is not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts, left = [], max_bytes
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def number_in(path: Path) -> int | None:
    """The whole number that a file holds, or None."""
    text = text_of(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= NUMBER_MAX_DIGITS else None


def boot_id(root: Path) -> str:
    """Which boot counters belong to; "" if the kernel does not say."""
    return text_of(root / "proc/sys/kernel/random/boot_id")


def folders_in(path: Path) -> list[Path]:
    """What a folder holds, by name; nothing if it cannot be listed."""
    try:
        return sorted(path.iterdir(), key=lambda one: one.name)
    except OSError:
        return []


# ---- JSON ------------------------------------------------------------------------------------------------------------


def facts_from(plain: object) -> NodeFacts:
    """Facts out of parsed JSON; the worst that odd contents can do is that values are missing."""
    if not isinstance(plain, dict):
        return NodeFacts(absent="the answer made no sense")
    absent = plain.get("absent")
    return NodeFacts(
        {place: _values(names) for place, names in _places(plain.get("values"))},
        {place: {str(n): str(why)[:WORD_MAX_CHARS] for n, why in names.items()}
         for place, names in _places(plain.get("missing"))},
        absent[:WORD_MAX_CHARS] if isinstance(absent, str) else "",
    )  # fmt: skip


def plain_facts(facts: NodeFacts) -> dict[str, Any]:
    """The same as JSON values."""
    values = {place: dict(names) for place, names in facts.values.items()}
    return {"values": values, "missing": {p: dict(n) for p, n in facts.missing.items()}, "absent": facts.absent}


def reading_from(plain: object) -> Reading | None:
    """A reading that was kept, or None if this is none."""
    if not isinstance(plain, dict):
        return None
    family, at, boot = plain.get("family"), plain.get("at"), plain.get("boot_id")
    if not isinstance(family, str) or not isinstance(boot, str) or not isinstance(at, (int, float)):
        return None
    return Reading(family, float(at), boot, facts_from(plain.get("facts"))) if _is_number(at) else None


def plain_reading(reading: Reading) -> dict[str, Any]:
    """A reading as JSON values, to be kept."""
    facts = plain_facts(reading.facts)
    return {"family": reading.family, "at": reading.at, "boot_id": reading.boot_id, "facts": facts}


def _places(plain: object) -> list[tuple[str, dict[Any, Any]]]:
    if not isinstance(plain, dict):
        return []
    return [(p, n) for p, n in plain.items() if isinstance(p, str) and isinstance(n, dict)][:PLACES_MAX_COUNT]


def _values(names: dict[Any, Any]) -> dict[str, Value]:
    known = {str(name): value for name, value in names.items() if isinstance(value, str) or _is_number(value)}
    return {name: value[:WORD_MAX_CHARS] if isinstance(value, str) else value for name, value in known.items()}


def _is_number(value: Any) -> bool:
    kind = isinstance(value, (int, float)) and not isinstance(value, bool)
    return kind and abs(value) <= NUMBER_MAX  # which neither NaN nor infinity is


# ---- kept for the next process ---------------------------------------------------------------------------------------


def only(reading: Reading, names: frozenset[str]) -> Reading:
    """The reading with nothing but these values."""
    kept = {place: {n: v for n, v in values.items() if n in names} for place, values in reading.facts.values.items()}
    return replace(reading, facts=NodeFacts({place: values for place, values in kept.items() if values}))


def by_uuid(before: Reading, now: Reading) -> Reading:
    """``before`` with GPUs and their links under the numbers that they have now; GPUs that are not here are dropped."""
    here = {uuid: place for place in now.facts.values if (uuid := now.facts.get(place, UUID)) is not None}
    moved: dict[str, str | None] = {
        place: here.get(uuid) for place in before.facts.values if (uuid := before.facts.get(place, UUID)) is not None
    }
    if all(old == new for old, new in moved.items()):
        return before
    values: dict[str, Mapping[str, Value]] = {}
    for place, names in before.facts.values.items():
        match = _OF_GPU.fullmatch(place)
        gpu = match[1] if match else ""
        if gpu not in moved:
            values[place] = names
        elif (new := moved[gpu]) is not None and match is not None:
            values[f"{new}{match[2] or ''}"] = names
    return replace(before, facts=replace(before.facts, values=values))


# ---- kept over days --------------------------------------------------------------------------------------------------


def wear_counters(readings: Iterable[Reading], names: Collection[str]) -> dict[tuple[str, str, str], int]:
    """(device, what the node calls it, counter) -> count, of the counters in ``names``.

    A GPU is known by its UUID, and its links with it, as its number may be another after a reboot.
    """
    found: dict[tuple[str, str, str], int] = {}
    for one in readings:
        for place, values in one.facts.values.items():
            gpu = _OF_GPU.fullmatch(place)
            uuid = one.facts.get(gpu[1], UUID) if gpu is not None else None
            device = f"{uuid}{gpu[2] or ''}" if gpu is not None and uuid is not None else place
            for name in values.keys() & names:
                if (count := one.facts.number(place, name)) is not None:
                    found[device, place, name] = int(count)
    return found
