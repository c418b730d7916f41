"""The timeline of a run: its decisions record by record, as they come or all at once, and its jobs one after the other.

Which records matter to somebody who only wants to know what happened is decided here; their words are the display's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaims
from gangrun.adapters.fs.journal import JournalFollower
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.actions import EndJob, SubmitSuccessor
from gangrun.core.events import Event
from gangrun.core.nodeset import natural_sort
from gangrun.runs.job_queue import Queue, active_words, ended_words, waiting_words
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import AttemptStatus
from gangrun.wire.kinds import action_of, event_of
from gangrun.wire.record import Record, RecordError

# These matter even if the phase stays the same.
TELLING = frozenset(
    {
        "ActFailed", "ActUnknown", "AgentRejoined", "AlertSeen", "AnomalySeen", "CancelRequested", "DrainRequested",
        "FindingRaised", "FirstStepSeen", "GangStartFailed", "GangStopped", "NodeAbsent", "NodeHeard", "NodeLost",
        "NodeSilent", "NoneValid", "Notice", "ProgressStalled", "RankExited", "ResumeChosen", "ResumeRequested",
        "SaveAnswered", "SaveRequested", "SelfCheckFailed", "StacksTaken", "StepBrought", "StepsTimed", "StopTimedOut",
        "StoreBack", "StoreStalled", "TermTaken",
    }
)  # fmt: skip
OWN_PATCH = frozenset({"excluded", "failure", "suspicion"})  # a change of these is never passed over


@dataclass(slots=True)
class Meanwhile:
    """Records that come in numbers: they are counted, and told with the next record that matters."""

    steps: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    joined_count: int = 0
    checked_count: int = 0

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        """Count one more, if it is of a kind that is counted."""
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
                self.joined_count += 1
            case "NodeChecked", _:
                self.checked_count += 1
            case _:
                pass  # of another kind, or of another shape than any gangrun writes


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One record and what it means in the run's timeline."""

    record: Record
    event: Event | None  # of the record; None if this gangrun cannot read it
    attempt: int  # the newest one after the record; -1 before the first
    matters: bool = True
    meanwhile: Meanwhile | None = None  # since the last entry that matters


class TimelineReader:
    """Takes the records of a run one by one, in their order."""

    def __init__(self) -> None:
        self._attempt, self._meanwhile = -1, Meanwhile()

    def entry(self, record: Record) -> TimelineEntry:
        """The next record as an entry; if it does not matter, it is counted in the next one that does."""
        newest = record.patch.get("attempt", self._attempt)
        self._attempt = newest if isinstance(newest, int) else self._attempt
        matters, meanwhile = _matters(record), self._meanwhile
        if matters:
            self._meanwhile = Meanwhile()
        elif record.outcome == "applied":
            meanwhile.add(record.kind, record.event)
        return TimelineEntry(record, _event(record), self._attempt, matters, meanwhile if matters else None)

    def rest(self, last: Record) -> TimelineEntry | None:
        """What was counted after the newest entry that matters."""
        if self._meanwhile == Meanwhile():
            return None
        nothing = Record(last.v, last.term, last.n, last.at, last.wall, kind="", was=last.phase, phase=last.phase)
        return TimelineEntry(nothing, None, self._attempt, meanwhile=self._meanwhile)


def timeline_of(records: Iterable[Record]) -> list[TimelineEntry]:
    """Every record as an entry; those that do not matter are marked, and counted in the next one that does."""
    timeline = TimelineReader()
    entries = [timeline.entry(record) for record in records]
    rest = timeline.rest(entries[-1].record) if entries else None
    return entries if rest is None else [*entries, rest]


SEQS_PER_TERM = 1_000_000_000  # records of one term: a month of one per millisecond would not fill it


def seq_of(record: Record) -> int:
    """The number of a record in the whole run: it grows, never changes, and needs no count of what was before."""
    return record.term * SEQS_PER_TERM + record.n


class EventFeed:
    """The entries of one run, each once, as its supervisors write them: over all terms and jobs, read-only."""

    def __init__(self, paths: RunPaths, since: int = -1, *, everything: bool = False) -> None:
        self._paths, self._everything = paths, everything
        self.seq = since  # of the newest record that was given
        self._begin()

    def _begin(self) -> None:
        self._journal, self._timeline = JournalFollower(self._paths, Disk()), TimelineReader()

    def poll(self) -> list[TimelineEntry]:
        """What is new; after an ``OSError`` the next call gives it."""
        try:
            records = self._journal.poll()
        except OSError:
            self._begin()  # this one may have lost records
            raise
        found = [entry for record in records if seq_of((entry := self._timeline.entry(record)).record) > self.seq]
        self.seq = max((seq_of(entry.record) for entry in found), default=self.seq)
        return [entry for entry in found if self._everything or entry.matters]

    def notes(self) -> tuple[str, ...]:
        """What could not be read."""
        return self._journal.notes(final=True)


def _matters(record: Record) -> bool:
    if record.outcome != "applied" or record.kind == "Snapshot":
        return False
    if record.was != record.phase or OWN_PATCH & record.patch.keys():
        return True
    if record.kind == "CheckpointSeen":  # while ranks train it comes every few minutes
        return record.phase == "STOPPING"
    if record.kind == "RankExited":
        return not _one_of_many(record.event)
    if record.kind == "NodeChecked":  # a suspect's answer matters, and so does a failure
        lost = any(isinstance(one, dict) and one.get("error") for one in record.event.get("met", ()))
        return lost or not record.event.get("ok", True) or "suspected_at" in record.patch
    if record.kind == "StepBrought":  # while ranks train it comes every few minutes
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


# ---- the jobs of a run ----


class JobStay(msgspec.Struct, frozen=True, kw_only=True):
    """One stay of one job in the run; a job that was requeued or launched anew has several."""

    job: str
    seq: int | None
    restart: int = 0
    launch: int = 0
    asked: float | None = None  # when a supervisor asked for it; None: a person did
    without: tuple[str, ...] = ()  # the nodes that it must do without
    began: float | None = None  # when its first supervisor did
    nodes: tuple[str, ...] = ()
    ended: float | None = None
    ended_as: str | None = None  # the run's state when the job was ended; PENDING: it goes on in another job
    reason: str = ""  # why it ended, or how it waits


@dataclass(slots=True)
class _JobActs:
    """What supervisors did about jobs."""

    asked: dict[int, tuple[float | None, tuple[str, ...]]] = field(default_factory=dict)  # by seq: when, without
    began: dict[str, float] = field(default_factory=dict)  # by the claim's token
    ended: dict[str, tuple[float | None, str | None, str]] = field(default_factory=dict)  # when, as what, why


def job_stays(run: RunSnapshot, attempts: Iterable[AttemptStatus]) -> list[JobStay]:
    """In the order in which they held the run: from the journal, the job claims and the scheduler, if asked."""
    acts = _acts_of(run.records)
    nodes: dict[str, set[str]] = {}
    for attempt in attempts:
        nodes.setdefault(attempt.job, set()).update(attempt.nodes)
    stays = []
    for claim in JobClaims(run.paths, Disk()).all():
        when, without = acts.asked.get(claim.seq, (None, ()))
        over, as_what, why = acts.ended.get(claim.token, (None, None, ""))
        stays.append(
            JobStay(
                job=claim.job, seq=claim.seq, restart=claim.restart, launch=claim.launch, asked=when, without=without,
                began=acts.began.get(claim.token), nodes=tuple(natural_sort(nodes.get(claim.job, ()))), ended=over,
                ended_as=as_what, reason=why,
            )
        )  # fmt: skip
    return stays if run.queue is None else _with_queue(stays, acts, run.queue)


def _acts_of(records: Iterable[Record]) -> _JobActs:
    acts, current = _JobActs(), ""
    for record in records:
        if record.kind == "TermTaken" and isinstance(job := record.event.get("job"), str):
            current = job
            acts.began.setdefault(job, record.wall)
        for act in record.actions:
            try:
                action = action_of(act.kind, act.args)
            except RecordError:
                continue
            if isinstance(action, SubmitSuccessor):
                acts.asked.setdefault(action.seq, (record.wall, action.exclude))
            elif isinstance(action, EndJob):
                acts.ended[current] = (record.wall, action.phase.value, action.reason)
    return acts


def _with_queue(stays: Sequence[JobStay], acts: _JobActs, queue: Queue) -> list[JobStay]:
    """With what the scheduler says of the newest stay of each job, and the jobs that have claimed nothing yet."""
    told = list(stays)
    newest = {one.job: k for k, one in enumerate(told)}
    holders = {one.seq: one.job for one in told}
    for job in queue.jobs:
        words = ended_words(job) if job.ended else active_words(job) if job.active else waiting_words(job)
        words = words.removeprefix(f"job {job.job} ")
        k = newest.get(job.job)
        if k is None:
            if job.seq is not None and job.seq in holders:
                held = f"place {job.seq} is held by job {holders[job.seq]}"
                words = f"it started nothing, because {held}" if job.ended else f"{words}; {held}"
            when, without = acts.asked.get(-1 if job.seq is None else job.seq, (None, ()))
            ended = job.end_wall if job.ended else None
            told.append(
                JobStay(
                    job=job.job, seq=job.seq, asked=when, without=without, nodes=job.nodes, ended=ended, reason=words
                )
            )
        elif job.ended and not told[k].reason:
            told[k] = msgspec.structs.replace(told[k], ended=job.end_wall, reason=words)
        elif job.waits:
            waiting = {"began": None, "ended": None, "ended_as": None, "nodes": (), "reason": words}
            told.append(msgspec.structs.replace(told[k], **waiting))
    return sorted(told, key=lambda one: -1 if one.seq is None else one.seq)
