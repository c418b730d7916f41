"""The story of a run, record by record.

For each record: when, what was seen, what was concluded (the core's own sentence, verbatim), what was done. Which of
them matter to somebody who only wants to know what happened is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangrun.core.events import Event, ResumeChosen
from gangrun.display import event_words
from gangrun.wire.kinds import action_of, event_of
from gangrun.wire.record import Act, Record, RecordError

# These are told even where the phase stays the same.
TELLING = frozenset(
    {
        "ActFailed", "ActUnknown", "AgentRejoined", "CancelRequested", "FindingRaised", "FirstStepSeen",
        "GangStartFailed", "GangStopped", "NodeAbsent", "NodeHeard", "NodeLost", "NodeSilent", "NoneValid", "Notice",
        "ProgressStalled", "RankExited", "ResumeChosen", "ResumeRequested", "StacksTaken",
        "StepBrought", "StopTimedOut", "StoreBack", "StoreStalled", "TermTaken",
    }
)  # fmt: skip
# These come in numbers: between two told records they are counted.
COUNTED = frozenset({"AgentJoined", "CheckpointSeen", "NodeChecked", "ProgressMarked", "RankExited", "RankFinished"})
OWN_PATCH = frozenset({"excluded", "failure", "suspicion"})  # a change of these is never passed over


@dataclass(frozen=True, slots=True)
class Entry:
    """One record, told."""

    wall: float
    term: int
    n: int
    attempt: int  # the newest one once this had happened; -1 before the first
    event: str
    outcome: str
    was: str
    phase: str
    seen: str
    concluded: str
    done: tuple[str, ...] = ()
    tickets: tuple[int, ...] = ()  # of what was done; 0 where it needs none
    passed_over: tuple[tuple[int, str], ...] = ()
    matters: bool = True
    opens: bool = False  # its attempt begins here
    meanwhile: str = ""  # what came in numbers since the last entry that matters


@dataclass(slots=True)
class _Quiet:
    """What is not told one by one."""

    steps: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    joined: int = 0
    checked: int = 0

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        match kind, data:
            case "ProgressMarked", {"step": int(step)}:
                self.steps.append(step)
            case "CheckpointSeen", {"checkpoint": {"step": int(step)}}:
                self.checkpoints.append(step)
            case "RankExited", {"exit": {"rank": int(rank)}}:
                self.exits.append(rank)
            case "RankFinished", {"rank": int(rank)}:
                self.finished.append(rank)
            case "AgentJoined", _:
                self.joined += 1
            case "NodeChecked", _:
                self.checked += 1
            case _:
                pass  # of another shape than any gangrun writes

    def words(self) -> str:
        told = []
        if self.joined:
            told.append(f"{_many(self.joined, 'agent')} said hello")
        if self.checked:
            told.append(f"{_many(self.checked, 'answer')} of checks")
        if self.steps:
            told.append(f"step {max(self.steps)} was reached")
        if self.checkpoints:
            newest = f"newest of step {max(self.checkpoints)}"
            told.append(f"{_many(len(self.checkpoints), 'checkpoint')} seen, {newest}")
        if self.exits:
            told.append(f"{event_words.ranks_words(self.exits)} ended too")
        if self.finished:
            told.append(f"{event_words.ranks_words(self.finished)} finished")
        return ", ".join(told)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def tell(records: Iterable[Record]) -> list[Entry]:
    """Every record as an entry; those that do not matter are marked, and counted in the next one that does."""
    entries: list[Entry] = []
    attempt, quiet = -1, _Quiet()
    for record in records:
        newest = record.patch.get("attempt", attempt)
        opens = isinstance(newest, int) and newest > attempt and record.kind != "Snapshot"
        attempt = newest if isinstance(newest, int) else attempt
        matters = _matters(record)
        event = _event(record)
        if not matters and record.outcome == "applied" and record.kind in COUNTED:
            quiet.add(record.kind, record.event)
        entries.append(
            Entry(
                wall=record.wall,
                term=record.term,
                n=record.n,
                attempt=attempt,
                event=record.kind,
                outcome=record.outcome,
                was=record.was,
                phase=record.phase,
                seen=_seen(record, event),
                concluded=record.reason,
                done=tuple(_done(one) for one in record.actions),
                tickets=tuple(one.n for one in record.actions),
                passed_over=event.passed_over if isinstance(event, ResumeChosen) else (),
                matters=matters,
                opens=opens,
                meanwhile=quiet.words() if matters else "",
            )
        )
        if matters:
            quiet = _Quiet()
    if (rest := quiet.words()) and entries:
        entries.append(_closing(entries[-1], rest))
    return entries


def _closing(last: Entry, rest: str) -> Entry:
    """What came in numbers after the last entry that matters."""
    return Entry(
        last.wall, last.term, last.n, last.attempt, "", "applied", last.phase, last.phase, "", "", meanwhile=rest
    )


def _matters(record: Record) -> bool:
    if record.outcome != "applied" or record.kind == "Snapshot":
        return False
    if record.was != record.phase or OWN_PATCH & record.patch.keys():
        return True
    if record.kind == "RankExited":
        return not _one_of_many(record.event)
    if record.kind == "NodeChecked":  # a suspect's answer has a story, and so has a failure
        return not record.event.get("ok", True) or "suspected_at" in record.patch
    if record.kind == "StepBrought":  # while ranks train on it comes every few minutes
        return bool(record.event.get("why")) or record.phase != "RUNNING"
    return record.kind in TELLING


def _one_of_many(data: Mapping[str, Any]) -> bool:
    """A rank that fell because others did: stopped by us, or a victim's error."""
    died = data.get("exit")
    if not isinstance(died, dict):
        return False
    error = died.get("error")
    return bool(died.get("by_us")) or (isinstance(error, dict) and bool(error.get("collective")))


def _event(record: Record) -> Event | None:
    try:
        return event_of(record.kind, record.event)
    except RecordError:
        return None  # a snapshot, or of a kind that this gangrun does not know


def _seen(record: Record, event: Event | None) -> str:
    if event is not None:
        return event_words.seen(event, record.at)
    if record.kind == "Snapshot":
        return f"supervisor #{record.term} read what was there"
    if record.kind == "Malformed":
        return f"an event of {record.event.get('node', 'some node')} that nobody can read"
    return record.kind


def _done(one: Act) -> str:
    try:
        return event_words.done(action_of(one.kind, one.args))
    except RecordError:
        return one.kind
