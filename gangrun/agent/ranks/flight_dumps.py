"""Dumps of torch's flight recorder, as two writers leave them; nothing in them is run.

A rank's sampler writes JSON when a hang is suspected (``node/sampler.py``). NCCL's own watchdog writes a pickle when a
collective times out, to the prefix of ``environment.DUMP_PREFIXES`` and the number of the rank. Whatever else lies
there counts as nothing: a prefix of the user's may bear the file of an earlier attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gangrun.agent.ranks.environment import DUMP_PREFIXES
from gangrun.checkpoint.formats.dcp_metadata import Pairs, PickleRefused, read
from gangrun.core.evidence import Collective
from gangrun.core.recovery import flight_recorder
from gangrun.node import processes

DUMP_MAX_BYTES = 64 << 20
WATCHDOG_WITHIN_S = 2.0
CLOCKS_DIFFER_S = 5.0  # a file server's and this node's
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


@dataclass(frozen=True, slots=True)
class WatchdogDump:
    """The file that NCCL's watchdog writes in a rank that was started at ``since_s`` of the wall clock."""

    path: Path
    since_s: float

    @staticmethod
    def of(environment: Mapping[str, str], rank: int) -> WatchdogDump | None:
        """Of a rank that is started now; None: nobody says where it writes."""
        prefix = next((environment[name] for name in DUMP_PREFIXES if environment.get(name)), "")
        return WatchdogDump(Path(f"{prefix}{rank}"), processes.wall_s()) if prefix else None

    def collectives(self) -> tuple[Collective, ...]:
        """The newest of each group; () if the file was not written, which is usual, or its storage does not answer
        soon: the end of a rank is told only after this, and a run is stopped by it.
        """
        found: list[tuple[Collective, ...]] = []
        reader = threading.Thread(target=lambda: found.append(self._read()), name="flight recorder", daemon=True)
        reader.start()
        reader.join(WATCHDOG_WITHIN_S)
        return found[0] if found else ()

    def _read(self) -> tuple[Collective, ...]:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime < self.since_s - CLOCKS_DIFFER_S:
                    return ()
                data = file.read(DUMP_MAX_BYTES + 1)
            told = read(data, (), (JIT_PICKLE_VERSION,)) if len(data) <= DUMP_MAX_BYTES else None
        except (OSError, PickleRefused):
            return ()
        entries = told.field("entries") if isinstance(told, Pairs) else None
        return flight_recorder.newest([_plain(one) for one in entries]) if isinstance(entries, list) else ()


def _plain(entry: object) -> object:
    """One entry as JSON would have it."""
    return {key: value for key, value in entry.pairs if isinstance(key, str)} if isinstance(entry, Pairs) else entry
