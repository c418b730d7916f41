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
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import chain, compress, islice
from operator import eq, is_, is_not
from typing import Any

import msgspec

from gangrun.core.evidence import Evidence, Hang
from gangrun.core.model import (
    Attempt,
    Ending,
    Fence,
    NodeHealth,
    Origin,
    Placement,
    Races,
    Roster,
    RunState,
    SavedProgress,
    Timers,
    TrainingTime,
    Underway,
)
from gangrun.core.nodeset import NodesetError, fold_in_order, unfold
from gangrun.core.versions import Ranks, Table

# of 4: every seat of a placement; of 3: ranks that ended with 0 as numbers only; of 2: lists whole, and an event's
# origin in patches too
SCHEMA = 5
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
    quiet_s: float | None = None  # from the newest record to the reader's claim, as the file system stamps both

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


def sparse(value: object) -> Any:
    """A core value as plain JSON types, without the fields that are as by default: there are thousands of them."""
    if not is_dataclass(value):
        if isinstance(value, tuple):
            return [sparse(item) for item in value]
        return builtins(value)
    pairs = ((f, getattr(value, f.name)) for f in fields(value))
    return {f.name: sparse(held) for f, held in pairs if f.default is MISSING or held != f.default}


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
    "race": {"open": "race", "back": "race_back", "followed": "race_followed", "world_size": "race_world_size"},
}
_GROUPS: dict[str, dict[str, str]] = {
    group: {f.name: _RENAMED.get(group, {}).get(f.name, f.name) for f in fields(kind)}
    for group, kind in {
        "underway": Underway,
        "timers": Timers,
        "attempt": Attempt,
        "roster": Roster,
        "health": NodeHealth,
        "race": Races,
        "fence": Fence,
        "checkpoints": SavedProgress,
        "ending": Ending,
        "training": TrainingTime,
    }.items()
}
_UNGROUPED = tuple(f.name for f in fields(RunState) if f.name not in _GROUPS)
_MAPPINGS = (
    "nodes", "absent", "suspicion", "suspected_at", "excluded", "reports", "deadlines", "marks", "silent+", "shown+",
)  # fmt: skip
_GROWING = frozenset({"attempts", "exits", "findings", "agents_died"})
_AS_EVENT = "event"  # one more item: the one that is in the record's event
_IMPLIED_SINCE = 3  # the schema since which a record's origin and time are not in its patch again


def diff(old: RunState, new: RunState) -> dict[str, Any]:
    """What changed, field by field; mappings entry by entry, with None for an entry that went.

    Of what grows only what is new: ``NAME+`` has it, else ``NAME`` has the whole value.
    """
    patch: dict[str, Any] = {}
    for name, before, after in _changed(old, new):
        if name in _MAPPINGS:
            entries = _entries(before, after)
            if entries:
                patch[name] = entries
        elif before != after:
            patch |= _news(name, before, after)
    return patch


def _news(name: str, old: Any, new: Any) -> dict[str, Any]:
    """The patch of one field that changed."""
    match old, new:
        case (Evidence(), Evidence()) | (Hang(), Hang()):
            pairs = ((f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(new))
            parts = [_news(*pair) for pair in pairs if pair[1] is not pair[2] and pair[1] != pair[2]]
            return {f"{name}+": {key: value for part in parts for key, value in part.items()}}
        case tuple(), tuple() if name in _GROWING:
            kept_count = _same_beginning(old, new)
            items = [sparse(item) for item in new[kept_count:]]
            return {f"{name}+": {"from": kept_count, "items": items}}
        case dict(), dict() if name in {"silent", "shown"}:
            return {f"{name}+": _entries(old, new)}
        case _, Placement():
            return {name: plain_placement(new)}
        case Ranks(), Ranks():
            came = new.since(old)
            return {f"{name}+": _plain_ranks(came)} if came else {name: _plain_ranks(new)}
        case _:
            pass
    return {name: builtins(new)}


def plain_placement(placement: Placement) -> dict[str, Any]:
    """The folded list of its nodes, if each has as many slots and each slot as many ranks; else every seat."""
    nodes, seats = placement.nodes, placement.seats
    lists = fold_in_order(nodes)
    if seats and lists is not None:
        slots_count, ranks_count = len(seats) // len(nodes), seats[0].ranks_count
        # Each seat by its values: thousands are compared while all else waits.
        values = ((seat.slot.node, seat.slot.index, seat.first_rank, seat.ranks_count) for seat in seats)
        places = enumerate((node, index) for node in nodes for index in range(slots_count))
        regular = ((*place, k * ranks_count, ranks_count) for k, place in places)
        counts = (placement.world_size, len(seats)) == (len(seats) * ranks_count, slots_count * len(nodes))
        if counts and all(map(eq, values, regular)):
            return {"nodes": ",".join(lists), "slots": slots_count, "ranks": ranks_count}
    return builtins(placement)  # type: ignore[no-any-return]


def whole_placement(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """With all its seats, from either form; ``RecordError`` if its nodes are no list of nodes."""
    match plain:
        case {"nodes": str(text), "slots": int(slots_count), "ranks": int(ranks_count)}:
            try:
                places = [{"node": node, "index": index} for node in unfold(text) for index in range(slots_count)]
            except NodesetError as error:
                raise RecordError(f"placement: {error}") from error
            seats = [
                {"slot": slot, "first_rank": k * ranks_count, "ranks_count": ranks_count}
                for k, slot in enumerate(places)
            ]
            return {"seats": seats, "world_size": len(seats) * ranks_count}
        case _:
            return plain


def _plain_ranks(ranks: Ranks) -> list[int | list[int]]:
    """Numbers, and ranges as pairs."""
    return [first if first == last else [first, last] for first, last in ranks.spans]


def _hook(kind: type, plain: Any) -> Any:
    """Ranks from numbers and pairs, in any order: that is how records add to them."""
    assert kind is Ranks
    return Ranks.of(chain.from_iterable((one,) if isinstance(one, int) else range(one[0], one[1] + 1) for one in plain))


def _same_beginning(old: tuple[Any, ...], new: tuple[Any, ...]) -> int:
    """How many items at the beginning are the same; asked by identity first, and in C."""
    if all(map(is_, old, new)):
        return min(len(old), len(new))
    return next(i for i, (was, is_now) in enumerate(zip(old, new, strict=False)) if was != is_now)


def change(old: RunState, new: RunState, record: Record) -> dict[str, Any]:
    """``diff`` without what the record of an agent's event says anyway: its number, its time and how its rank ended."""
    patch = diff(old, new)
    if record.origin is None:
        return patch
    if patch.get("marks") == _marked(record.origin):
        del patch["marks"]
    else:
        patch.setdefault("marks", {})
    if new.updated_at == record.at:
        patch.pop("updated_at", None)
    else:
        patch["updated_at"] = new.updated_at
    evidence = patch.get("evidence+", {})
    if evidence.get("exits+", {}).get("items") == [record.event.get("exit")]:
        evidence["exits+"] = _AS_EVENT
    return patch


def told_of(origin: Origin) -> dict[str, Any]:
    """What a record says of its event's origin; job and boot are those with which its agent joined."""
    return {"node": origin.node, "incarnation": origin.incarnation, "seq": origin.seq}


def _marked(origin: Mapping[str, Any]) -> dict[str, Any]:
    return {origin["node"]: [origin["incarnation"], origin["seq"]]}


def snapshot(state: RunState) -> dict[str, Any]:
    """The whole state as plain JSON types, as a snapshot holds it."""
    flat = {name: getattr(state, name) for name in _UNGROUPED}
    for group, names in _GROUPS.items():
        flat |= {stored: getattr(getattr(state, group), name) for name, stored in names.items()}
    flat |= {name: dict(held) for name, held in flat.items() if isinstance(held, Table)}
    flat |= {"finished": _plain_ranks(state.attempt.finished), "stopped": _plain_ranks(state.attempt.stopped)}
    if state.attempt.placement is not None:
        flat["placement"] = plain_placement(state.attempt.placement)
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
    known = old.changed_in(new) if isinstance(old, Table) else None
    if known is not None:
        return {key: builtins(new[key]) for key, was in known.items() if was != new[key]}
    gone: list[str] = []
    if len(old) <= len(new) and all(map(is_, old, new)):  # the same keys, and maybe more behind them
        changed = [*compress(new, map(is_not, old.values(), new.values())), *islice(new, len(old), None)]
    else:
        changed = [key for key, value in new.items() if old.get(key) is not value]
        gone = [key for key in old if key not in new]
    return {key: builtins(new[key]) for key in changed if old.get(key) != new[key]} | dict.fromkeys(gone)


def advance(plain: dict[str, Any] | None, records: Iterable[Record]) -> dict[str, Any] | None:
    """The plain state after these records, which may span terms; None before the first snapshot.

    Nothing that was given changes. ``RecordError`` where a patch is none.
    """
    owned: set[str] | None = None  # the fields that may be changed in place; None: not even which there are
    for record in records:
        patch = record.patch
        if record.kind == "Snapshot":
            plain, owned = patch, None
        if record.kind == "Snapshot" or plain is None or (not patch and record.origin is None):
            continue
        if owned is None:
            plain, owned = dict(plain), set()
        if record.origin is not None and record.v >= _IMPLIED_SINCE:
            patch = {"marks": _marked(record.origin), "updated_at": record.at, **patch}
        for name, value in patch.items():
            _put(plain, name, value, record, owned)
    return plain


def _put(plain: dict[str, Any], name: str, value: Any, record: Record, owned: set[str]) -> None:
    """One entry of a patch."""
    field = name.removesuffix("+")
    if field == name and name not in _MAPPINGS:
        plain[name] = value
        owned.discard(name)
        return
    if field not in owned:
        plain[field] = dict(plain.get(field, {})) if name in _MAPPINGS else _copied(plain.get(field))
        owned.add(field)
    _merge(plain, name, value, record)


def _merge(plain: dict[str, Any], name: str, value: Any, record: Record) -> None:
    there = plain.get(name.removesuffix("+"))
    match there, value:
        case dict(), dict() if name in _MAPPINGS:
            for key, entry in value.items():
                if entry is None:
                    there.pop(key, None)
                else:
                    there[key] = entry
        case dict(), dict():
            for part, news in value.items():
                if part.endswith("+"):
                    _merge(there, part, news, record)
                else:
                    there[part] = _copied(news)
        case list(), {"from": int(kept_count), "items": items}:
            there[kept_count:] = items
        case list(), "event":
            there.append(record.event.get("exit"))
        case list(), list():
            there.extend(value)
        case _:
            raise RecordError(f"patch: {name} does not fit what is there")


def _copied(value: Any) -> Any:
    """Deep enough for ``_merge``, which changes lists and mappings of parts."""
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, list) else value


def state_of(plain: Mapping[str, Any]) -> RunState:
    """A whole state from plain JSON types; ``RecordError`` where it does not fit."""
    state = {name: plain[name] for name in _UNGROUPED if name in plain}
    for group, names in _GROUPS.items():
        state[group] = {name: plain[stored] for name, stored in names.items() if stored in plain}
    if isinstance(placement := state["attempt"].get("placement"), Mapping):
        state["attempt"]["placement"] = whole_placement(placement)
    try:
        return msgspec.convert(state, RunState, dec_hook=_hook)
    except (msgspec.ValidationError, TypeError, LookupError) as error:
        raise RecordError(f"snapshot: {error}") from error


def replay(records: Iterable[Record]) -> RunState | None:
    """The state after these records, which may span terms; None before the first snapshot."""
    plain = advance(None, records)
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
