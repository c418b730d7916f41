"""Readings as plain JSON values, there and back. What was written elsewhere is not trusted.

What is not a place with named numbers or words is dropped; a number that is none (NaN, infinite, beyond all counters)
too. So a judge only ever sees values of the three kinds.
"""

from __future__ import annotations

from typing import Any

from gangrun.health.framework.check import Facts, Reading, Value

WORD_MAX_CHARS = 300
NUMBER_MAX = 2.0**64
PLACES_MAX_COUNT = 4096


def facts_from(plain: object) -> Facts:
    """Facts out of parsed JSON; the worst that odd contents can do is that values are missing."""
    if not isinstance(plain, dict):
        return Facts(absent="the answer made no sense")
    absent = plain.get("absent")
    return Facts(
        {place: _values(names) for place, names in _places(plain.get("values"))},
        {place: _words(names) for place, names in _places(plain.get("missing"))},
        absent[:WORD_MAX_CHARS] if isinstance(absent, str) else "",
    )


def plain_facts(facts: Facts) -> dict[str, Any]:
    """The same as JSON values."""
    values = {place: dict(names) for place, names in facts.values.items()}
    return {"values": values, "missing": {p: dict(n) for p, n in facts.missing.items()}, "absent": facts.absent}


def reading_from(plain: object) -> Reading | None:
    """A reading that was kept, or None where this is none."""
    if not isinstance(plain, dict):
        return None
    family, at, boot = plain.get("family"), plain.get("at"), plain.get("boot_id")
    if (
        not isinstance(family, str)
        or not isinstance(boot, str)
        or not isinstance(at, (int, float))
        or not _is_number(at)
    ):
        return None
    return Reading(family, float(at), boot, facts_from(plain.get("facts")))


def plain_reading(reading: Reading) -> dict[str, Any]:
    """A reading as JSON values, to be kept."""
    return {
        "family": reading.family,
        "at": reading.at,
        "boot_id": reading.boot_id,
        "facts": plain_facts(reading.facts),
    }


def _places(plain: object) -> list[tuple[str, dict[Any, Any]]]:
    if not isinstance(plain, dict):
        return []
    named = [(p, n) for p, n in plain.items() if isinstance(p, str) and isinstance(n, dict)]
    return named[:PLACES_MAX_COUNT]


def _values(names: dict[Any, Any]) -> dict[str, Value]:
    kept: dict[str, Value] = {}
    for name, value in names.items():
        if isinstance(value, str):
            kept[str(name)] = value[:WORD_MAX_CHARS]
        elif _is_number(value):
            kept[str(name)] = value
    return kept


def _is_number(value: Any) -> bool:
    kind = isinstance(value, (int, float)) and not isinstance(value, bool)
    return kind and abs(value) <= NUMBER_MAX  # which neither NaN nor infinity is


def _words(names: dict[Any, Any]) -> dict[str, str]:
    return {str(name): str(why)[:WORD_MAX_CHARS] for name, why in names.items()}
