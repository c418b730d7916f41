"""What a term leaves on disk: its claim (``terms/N.json``) and the lines of its journal.

A term's first record is a snapshot of the whole state; each later one holds the event, the decision as it was taken,
and the patch that the decision made, so that a reader never has to decide again. A line is one JSON object whose last
member is the CRC-32 of all before it. What events and actions a record may name is in ``kinds``: who only asks what
the state is need not know them.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress, islice
from operator import is_, is_not
from typing import Any

import msgspec

from gangrun.core.model import (
    Attempt,
    Ending,
    Fence,
    NodeHealth,
    Roster,
    RunState,
    SavedProgress,
    Timers,
    Underway,
)

SCHEMA = 2
_CRC = b',"crc":"'


class RecordError(ValueError):
    """A line that cannot be used; the message says what is wrong with it."""


class TornRecord(RecordError):
    """The line is cut off or its checksum does not hold."""


class NewerSchema(RecordError):
    """A newer gangrun wrote this; this one must not guess."""


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action of a decision; ``n`` is its ticket, 0 where it needs none."""

    kind: str
    args: dict[str, Any] = {}
    n: int = 0


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen, what was concluded, what was done, and what changed."""

    v: int
    term: int
    n: int  # counts records within the term, from 0
    at: float  # run clock
    wall: float  # wall clock, for people
    kind: str  # event class, or "Snapshot"
    event: dict[str, Any] = {}
    origin: dict[str, Any] | None = None
    outcome: str = "applied"
    was: str = ""  # phase before
    phase: str = ""  # phase after
    reason: str = ""
    actions: tuple[Act, ...] = ()
    patch: dict[str, Any] = {}


class Inherited(msgspec.Struct, frozen=True):
    """What a term's snapshot carries of all terms before it, so that nobody has to read their files again."""

    ticketed_attempt: int  # highest attempt that a ticket names, whose record may be lost
    started_attempt: int  # the same of tickets to start one: its ranks may live
    lost: tuple[str, ...] | None  # nodes that a supervisor ever counted as lost; None: some records were not readable


@dataclass(frozen=True, slots=True)
class History:
    """What earlier terms left since the newest snapshot that carries all before it, and what could not be read."""

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    ticketed_attempt: int = -1  # as in ``Inherited``, over all terms
    started_attempt: int = -1

    def lost(self) -> tuple[str, ...] | None:
        """As in ``Inherited``, over all terms."""
        carried = inherited(self.records)
        before = () if carried is None else carried.lost
        if self.notes or before is None:
            return None
        since = {str(record.event.get("node")) for record in self.records if record.kind == "NodeLost"}
        return tuple(sorted(since.union(before)))


def inherited(records: Sequence[Record]) -> Inherited | None:
    """What the snapshot at their beginning carries; None where there is no snapshot, or an older gangrun wrote it."""
    if not records or records[0].kind != "Snapshot":
        return None
    try:
        return msgspec.convert(records[0].event, Inherited)
    except msgspec.ValidationError:
        return None


def encode(record: Record) -> bytes:
    """The record as one line, newline included."""
    body = msgspec.json.encode(record)[:-1]
    return b'%s%s%08x"}\n' % (body, _CRC, zlib.crc32(body))


def decode(line: bytes) -> Record:
    """Read one line; ``TornRecord`` or ``NewerSchema`` where it may not be used."""
    line = line.rstrip(b"\n")
    cut = line.rfind(_CRC)
    if cut < 0 or not line.endswith(b'"}'):
        raise TornRecord("cut off: no checksum at its end")
    body = line[:cut]
    if b"%08x" % zlib.crc32(body) != line[cut + len(_CRC) : -2]:
        raise TornRecord("its checksum does not hold")
    try:
        raw = msgspec.json.decode(body + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TornRecord(f"not JSON: {error}") from error
    version = raw.get("v") if isinstance(raw, dict) else None
    if not isinstance(version, int):
        raise TornRecord("no schema version")
    if version > SCHEMA:
        raise NewerSchema(f"schema {version} is newer than this gangrun's {SCHEMA}: upgrade gangrun to read it")
    try:
        return msgspec.convert(raw, Record)
    except msgspec.ValidationError as error:
        raise TornRecord(f"wrong shape: {error}") from error


def builtins(value: object) -> Any:
    """A core value as plain JSON types, none of which could make the journal unreadable."""
    return _storable(msgspec.to_builtins(value, str_keys=True))


def _storable(plain: Any) -> Any:
    """JSON has no infinity, and UTF-8 no lone surrogates (file names may): the nearest that can be kept."""
    if isinstance(plain, str):  # most frequent first: every value of every record comes by here
        return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_storable(key): _storable(entry) for key, entry in plain.items()}
    if isinstance(plain, list | tuple):
        return [_storable(entry) for entry in plain]
    if isinstance(plain, float) and not math.isfinite(plain):
        return 0.0 if math.isnan(plain) else math.copysign(sys.float_info.max, plain)
    return plain


# msgspec works a class out when it converts to it first, and publishes what it has before it is whole: a second thread
# that converts meanwhile dies of SIGSEGV (0.22). States are read by several threads, so it is done here, by one.
_WORKED_OUT = msgspec.json.Decoder(RunState)

# A state has groups, the journal has none: group -> its fields -> the names under which the journal has them.
_RENAMED = {
    "attempt": {"number": "attempt", "step": "attempt_step"},
    "fence": {"until": "fence_until", "nodes": "fence_nodes"},
    "checkpoints": {"newest": "checkpoint"},
}
_GROUPS: dict[str, dict[str, str]] = {
    group: {f.name: _RENAMED.get(group, {}).get(f.name, f.name) for f in fields(kind)}
    for group, kind in {
        "underway": Underway,
        "timers": Timers,
        "attempt": Attempt,
        "roster": Roster,
        "health": NodeHealth,
        "fence": Fence,
        "checkpoints": SavedProgress,
        "ending": Ending,
    }.items()
}
_UNGROUPED = tuple(f.name for f in fields(RunState) if f.name not in _GROUPS)
_MAPPINGS = ("nodes", "absent", "suspicion", "suspected_at", "excluded", "reports", "deadlines", "marks")


def diff(old: RunState, new: RunState) -> dict[str, Any]:
    """What changed, field by field; mappings entry by entry, with None for an entry that went."""
    patch: dict[str, Any] = {}
    for name, before, after in _changed(old, new):
        if name in _MAPPINGS:
            entries = _entries(before, after)
            if entries:
                patch[name] = entries
        elif before != after:
            patch[name] = builtins(after)
    return patch


def snapshot(state: RunState) -> dict[str, Any]:
    """The whole state as plain JSON types, as a snapshot holds it."""
    flat = {name: getattr(state, name) for name in _UNGROUPED}
    for group, names in _GROUPS.items():
        flat |= {stored: getattr(getattr(state, group), name) for name, stored in names.items()}
    return builtins(flat)  # type: ignore[no-any-return]


def _changed(old: RunState, new: RunState) -> Iterator[tuple[str, Any, Any]]:
    """The journal's name, the old and the new value of each field that was replaced."""
    pairs = [(old, new, {name: name for name in _UNGROUPED})]
    pairs += [(getattr(old, group), getattr(new, group), names) for group, names in _GROUPS.items()]
    for before, after, names in pairs:
        if before is not after:
            for name, stored in names.items():
                was, is_now = getattr(before, name), getattr(after, name)
                if was is not is_now:
                    yield stored, was, is_now


def _entries(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that differ, None for one that went.

    Asked by identity first, and in C: with thousands of nodes nearly all entries are the very same objects.
    """
    gone: list[str] = []
    if len(old) <= len(new) and all(map(is_, old, new)):  # the same keys, and maybe more behind them
        changed = [*compress(new, map(is_not, old.values(), new.values())), *islice(new, len(old), None)]
    else:
        changed = [key for key, value in new.items() if old.get(key) is not value]
        gone = [key for key in old if key not in new]
    return {key: builtins(new[key]) for key in changed if old.get(key) != new[key]} | dict.fromkeys(gone)


def apply(state: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The plain state after ``patch``; neither argument changes. ``RecordError`` where the patch is none."""
    result = dict(state)
    for name, value in patch.items():
        if name in _MAPPINGS:
            if not isinstance(value, Mapping):
                raise RecordError(f"patch: {name} must be entries, not {type(value).__name__}")
            merged = {**result.get(name, {}), **value}
            result[name] = {key: entry for key, entry in merged.items() if entry is not None}
        else:
            result[name] = value
    return result


def state_of(plain: Mapping[str, Any]) -> RunState:
    """A whole state from plain JSON types; ``RecordError`` where it does not fit."""
    state = {name: plain[name] for name in _UNGROUPED if name in plain}
    for group, names in _GROUPS.items():
        state[group] = {name: plain[stored] for name, stored in names.items() if stored in plain}
    try:
        return msgspec.convert(state, RunState)
    except msgspec.ValidationError as error:
        raise RecordError(f"snapshot: {error}") from error


def replay(records: Iterable[Record]) -> RunState | None:
    """The state after these records, which may span terms; None before the first snapshot."""
    plain: dict[str, Any] | None = None
    for record in records:
        if record.kind == "Snapshot":
            plain = dict(record.patch)
        elif plain is not None and record.patch:
            plain = apply(plain, record.patch)
    return None if plain is None else state_of(plain)


# ---- the claim to a term ---------------------------------------------------------------------------------------------


class ClaimError(ValueError):
    """A claim file that cannot be read as one."""


class Claim(msgspec.Struct, frozen=True):
    """Who holds ``term``, and where agents reach it. ``server_key`` is the public CURVE key of this term."""

    term: int
    run: str
    job: str
    node: str
    pid: int
    start_ticks: int
    endpoint: str
    server_key: str
    claimed_wall: float
    v: int = 1


def encode_claim(claim: Claim) -> bytes:
    """As JSON."""
    return msgspec.json.encode(claim) + b"\n"


def decode_claim(data: bytes) -> Claim:
    """Read a claim; ``ClaimError`` says why it is none."""
    try:
        return msgspec.json.decode(data, type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClaimError(f"not a claim: {error}") from error
