"""Dumps of torch's flight recorder, as two writers leave them; nothing in them is run.

A rank's sampler writes JSON when a hang is suspected (``node/sampler.py``). NCCL's own watchdog writes a pickle when a
collective times out, to the prefix of ``environment.DUMP_PREFIXES`` and the number of the rank. Whatever else lies
there counts as nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gangrun.agent.ranks.environment import DUMP_PREFIXES
from gangrun.checkpoint.formats.dcp_metadata import Pairs, PickleRefused, read
from gangrun.core.evidence import Collective
from gangrun.core.recovery import flight_recorder

DUMP_MAX_BYTES = 64 << 20
WATCHDOG_WITHIN_S = 2.0
JIT_PICKLE_VERSION = 2  # what C++ code of torch writes


def written_by_sampler(path: Path) -> tuple[Collective, ...]:
    """The newest of each group, of all recorders of this rank."""
    try:
        told = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ()
    dumps = told if isinstance(told, list) else []
    entries = [one.get("entries") for one in dumps if isinstance(one, dict)]
    return flight_recorder.newest([row for rows in entries if isinstance(rows, list) for row in rows])


def watchdog_dump(environment: Mapping[str, str], rank: int) -> Path | None:
    """The file that NCCL's watchdog writes in this rank; None: nobody says where."""
    prefix = next((environment[name] for name in DUMP_PREFIXES if environment.get(name)), "")
    return Path(f"{prefix}{rank}") if prefix else None


def written_by_watchdog(path: Path) -> tuple[Collective, ...]:
    """The newest of each group; () if the file was not written, which is usual, or its storage does not answer soon:
    the end of a rank is told only after this, and a run is stopped by it.
    """
    found: list[tuple[Collective, ...]] = []
    reader = threading.Thread(target=lambda: found.append(_of_watchdog(path)), name="flight recorder", daemon=True)
    reader.start()
    reader.join(WATCHDOG_WITHIN_S)
    return found[0] if found else ()


def _of_watchdog(path: Path) -> tuple[Collective, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(DUMP_MAX_BYTES + 1)
        told = read(data, (), (JIT_PICKLE_VERSION,)) if len(data) <= DUMP_MAX_BYTES else None
    except (OSError, PickleRefused):
        return ()
    entries = told.field("entries") if isinstance(told, Pairs) else None
    return flight_recorder.newest([_plain(one) for one in entries]) if isinstance(entries, list) else ()


def _plain(entry: object) -> object:
    """One entry as JSON would have it."""
    return {key: value for key, value in entry.pairs if isinstance(key, str)} if isinstance(entry, Pairs) else entry
