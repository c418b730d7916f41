"""What of a reading goes on counting while nobody looks, and so is kept for whoever looks next.

Only hardware's own counts, and what is needed to compare them: what hangs on a program's work (congestion, processes
that wait) would accuse a node of what others did there. Boots are told apart by ``growth``, GPUs by their UUID, since
their numbers are the job's. Who keeps them: ``cli.health_kept``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gangrun.health.framework.check import Facts, Reading, Value

UUID = "uuid"
_OF_GPU = re.compile(r"(gpu \d+)( link \d+)?")


def only(reading: Reading, names: frozenset[str]) -> Reading:
    """The reading with nothing but these values."""
    kept = {place: {n: v for n, v in values.items() if n in names} for place, values in reading.facts.values.items()}
    return replace(reading, facts=Facts({place: values for place, values in kept.items() if values}))


def by_uuid(before: Reading, now: Reading) -> Reading:
    """``before`` with GPUs and their links under the numbers that they have now; those that are not here are gone."""
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
