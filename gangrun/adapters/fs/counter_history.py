"""What the counters of nodes showed over the last days: one small file a node, for all runs of a user.

Written every six hours by the process that watches a node for a run, and by ``gangrun health``. A counter's name stands
once, with a number for each reading: 100 kB at most for a node with eight GPUs. It is a hint for people: a file that is
torn, of a newer version or cannot be read counts as empty, and of two writers at once one may lose a reading.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.planning.trends import WEEK_S, CounterSeries

FOLDER = "counters"
SCHEMA = 1
EVERY_S = 6 * 3600.0
EVENTS_APART_S = 3600.0  # those of an hour are one reading: a storm must not push the others out
KEPT_S = WEEK_S + 86400.0
READINGS_MAX_COUNT = 48
FILE_MAX_BYTES = 1_000_000
EVENTS = "xids"  # counted here: the driver reports each once, and keeps no sum
Counter = tuple[str, str, str]  # device, what the node calls it, the counter's name


class _Series(msgspec.Struct, frozen=True, array_like=True):
    device: str
    place: str
    name: str
    counts: tuple[int | None, ...]  # None: it was not read


class _File(msgspec.Struct, frozen=True):
    v: int = SCHEMA
    at: tuple[float, ...] = ()  # wall-clock seconds of the readings
    series: tuple[_Series, ...] = ()
    event_at: float = 0.0  # of the newest reading that an event made


_DECODER = msgspec.json.Decoder(_File)


class CounterHistory:
    """``folder``: where the user's state lives."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder / FOLDER
        self._disk = disk or Disk()
        self._lock = threading.Lock()  # a look and an event may come at once

    def add(self, node: str, counted: Mapping[Counter, int], now: float) -> None:
        """What a look at the node read, unless one was added not long before. ``OSError`` if it cannot be written."""
        with self._lock:
            old = self._read(node)
            if counted and not (old.at and 0 <= now - old.at[-1] < EVERY_S):
                self._write(node, _with(old, counted, now))

    def add_event(self, node: str, device: str, place: str, now: float) -> None:
        """One more event of a device, such as an XID that is not the program's."""
        with self._lock:
            old = self._read(node)
            known = (one.counts for one in old.series if (one.device, one.name) == (device, EVENTS))
            counts = [count for count in next(known, ()) if count is not None]
            event = {(device, place, EVENTS): counts[-1] + 1 if counts else 1}
            if old.at and old.event_at == old.at[-1] and 0 <= now - old.event_at < EVENTS_APART_S:
                whole = (one for one in old.series if len(one.counts) == len(old.at))
                last = {(one.device, one.place, one.name): one.counts[-1] for one in whole}
                event = {key: count for key, count in last.items() if count is not None} | event
                old, now = _without_last(old), old.event_at
            self._write(node, msgspec.structs.replace(_with(old, event, now), event_at=now))

    def nodes(self) -> Mapping[str, tuple[CounterSeries, ...]]:
        """Every node that has readings, with what each counter showed."""
        try:
            names = sorted(path.stem for path in self._folder.glob("*.json") if not path.name.startswith("."))
        except OSError:
            return {}
        found = {node: self._series(node) for node in names}
        return {node: series for node, series in found.items() if series}

    def clear(self, nodes: Iterable[str]) -> None:
        """Forget these. ``OSError`` if a file stays."""
        for node in nodes:
            self._path(node).unlink(missing_ok=True)

    def _series(self, node: str) -> tuple[CounterSeries, ...]:
        file = self._read(node)
        return tuple(
            CounterSeries(
                one.device, one.place, one.name,
                [(at, count) for at, count in zip(file.at, one.counts, strict=False) if count is not None],
            )
            for one in file.series
        )  # fmt: skip

    def _path(self, node: str) -> Path:
        return self._folder / f"{node}.json"

    def _read(self, node: str) -> _File:
        try:
            file = _DECODER.decode(self._disk.read(self._path(node), limit=FILE_MAX_BYTES))
        except (OSError, msgspec.MsgspecError):
            return _File()
        return file if file.v == SCHEMA else _File()

    def _write(self, node: str, file: _File) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f".{node}.{os.getpid()}.tmp"
        self._disk.replace(self._path(node), msgspec.json.encode(file) + b"\n", part)


def _without_last(old: _File) -> _File:
    count = len(old.at) - 1
    series = tuple(msgspec.structs.replace(one, counts=one.counts[:count]) for one in old.series)
    return _File(SCHEMA, old.at[:count], series)


def _with(old: _File, counted: Mapping[Counter, int], now: float) -> _File:
    """One more reading; those that are too old, or of a clock that ran ahead, are left out."""
    kept = [k for k, at in enumerate(old.at) if now - KEPT_S <= at <= now][-(READINGS_MAX_COUNT - 1) :]
    now_by_key = {(device, name): (place, count) for (device, place, name), count in counted.items()}
    series = []
    for one in old.series:
        counts = tuple(one.counts[k] if k < len(one.counts) else None for k in kept)
        last = counts[-1] if one.name == EVENTS and counts else None  # no event: the sum stays
        place, count = now_by_key.pop((one.device, one.name), (one.place, last))
        series.append(_Series(one.device, place, one.name, (*counts, count)))
    for (device, name), (place, count) in now_by_key.items():
        before = 0 if name == EVENTS else None  # whoever looked would have heard of one
        series.append(_Series(device, place, name, (*(before for _ in kept), count)))
    known = tuple(one for one in series if any(count is not None for count in one.counts))
    return _File(SCHEMA, (*(old.at[k] for k in kept), now), known, old.event_at)
