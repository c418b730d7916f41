"""What happened in a run: its decisions for ``gangrun explain``, and who failed first for ``gangrun logs --errors``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gangrun.core.events import ResumeChosen
from gangrun.core.nodeset import NodesetError, fold
from gangrun.core.text import counted, step_words
from gangrun.display import event_words
from gangrun.display.status_page import PageFormat, excluded_lines, failure_words, recovery_lines
from gangrun.display.text import block, clean, log_line, phase_word, styled, wrapped
from gangrun.display.times import clock_words, date_words, span_words
from gangrun.runs.failures import AttemptFailure, SameEnd
from gangrun.runs.saves import SavesStatus
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.state import run_state
from gangrun.runs.status import SCHEMA, AttemptStatus, ExcludedNode, RecoveryStatus, recovery_statuses, status_of
from gangrun.runs.timeline import (
    SEQS_PER_TERM,
    JobStay,
    Meanwhile,
    TimelineEntry,
    job_stays,
    seq_of,
    timeline_of,
)
from gangrun.wire.kinds import action_of
from gangrun.wire.record import Act, Record, RecordError

LABEL_CHARS = 11


class SkippedCheckpoint(msgspec.Struct, frozen=True):
    """A newer checkpoint that the run did not resume from."""

    step: int
    why: str


class ExplainedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the journal in words."""

    at: float
    term: int
    record: int
    attempt: int
    event: str
    outcome: str
    was: str = msgspec.field(name="from")
    phase: str = msgspec.field(name="to")
    seen: str
    concluded: str
    done: tuple[str, ...] = ()
    tickets: tuple[int, ...] = ()  # of what was done; 0 if it needs none
    passed_over: tuple[SkippedCheckpoint, ...] = ()
    meanwhile: str
    matters: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``explain --json`` prints."""

    schema: int = SCHEMA
    run: str
    name: str
    state: str
    reason: str
    failure: str | None
    attempts: tuple[AttemptStatus, ...]
    abandoned: bool
    excluded: tuple[ExcludedNode, ...]
    saves: SavesStatus | None
    notes: tuple[str, ...]
    jobs: tuple[JobStay, ...]
    recoveries: tuple[RecoveryStatus, ...]
    story: tuple[ExplainedRecord, ...]


def explained(run: RunSnapshot, now: float, *, everything: bool = False) -> Explanation:
    """The run's decisions, without ``everything`` only those that matter."""
    status = status_of(run, now)
    jobs: tuple[JobStay, ...] = ()
    if run.spec.is_scheduled:  # a run on one box has one owner at a time, and a scheduler knows nothing of it
        jobs = tuple(job_stays(run, status.attempts))
    entries = [entry for entry in timeline_of(run.records) if everything or entry.matters]
    return Explanation(
        run=status.run, name=status.name, state=status.state, reason=status.reason, failure=status.failure,
        attempts=status.attempts, abandoned=status.abandoned, excluded=status.excluded, saves=status.saves,
        notes=status.notes, jobs=jobs, recoveries=recovery_statuses(run),
        story=tuple(_decision(entry) for entry in entries),
    )  # fmt: skip


def _decision(entry: TimelineEntry) -> ExplainedRecord:
    record, event = entry.record, entry.event
    passed_over = event.passed_over if isinstance(event, ResumeChosen) else ()
    return ExplainedRecord(
        at=record.wall,
        term=record.term,
        record=record.n,
        attempt=entry.attempt,
        event=record.kind,
        outcome=record.outcome,
        was=record.was,
        phase=record.phase,
        seen=_seen(entry),
        concluded=record.reason,
        done=tuple(_done(act) for act in record.actions),
        tickets=tuple(act.n for act in record.actions),
        passed_over=tuple(SkippedCheckpoint(step, why) for step, why in passed_over),
        meanwhile=_meanwhile(entry.meanwhile) if entry.meanwhile is not None else "",
        matters=entry.matters,
    )


def _seen(entry: TimelineEntry) -> str:
    record = entry.record
    if entry.event is not None:
        return event_words.seen(entry.event, record.at)
    if record.kind == "Snapshot":
        return f"supervisor #{record.term} read what was there"
    if record.kind == "Malformed":
        return f"an event from {record.event.get('node', 'an unknown node')} that cannot be decoded"
    return record.kind


def _done(act: Act) -> str:
    try:
        return event_words.done(action_of(act.kind, act.args))
    except RecordError:
        return act.kind


def _meanwhile(seen: Meanwhile) -> str:
    told = []
    if seen.joined_count:
        told.append(f"{counted(seen.joined_count, 'agent')} connected")
    if seen.checked_count:
        told.append(f"{counted(seen.checked_count, 'check result')}")
    if seen.steps:
        told.append(f"step {max(seen.steps)} was reached")
    if seen.checkpoints:
        newest = step_words(max(seen.checkpoints))
        told.append(f"{counted(len(seen.checkpoints), 'checkpoint')} seen, newest of {newest}")
    if seen.exits:
        told.append(f"{event_words.ranks_words(seen.exits)} ended too")
    if seen.finished:
        told.append(f"{event_words.ranks_words(seen.finished)} finished")
    return ", ".join(told)


# ---- one line for each decision, as they come ----


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What ``events --json`` prints for each event, on one line."""

    schema: int = SCHEMA
    run: str
    seq: int  # grows; ``--since`` takes it
    time: float
    term: int
    record: int  # in its term, as ``explain --json`` has it
    attempt: int  # -1: before the first
    kind: str  # of the event; RunEnded: the run is over, and nothing follows
    phase: str  # after it
    was: str  # before it
    nodes: tuple[str, ...] = ()  # that the event is about
    ranks: tuple[int, ...] = ()
    seen: str
    reason: str
    done: tuple[str, ...] = ()
    exit_code: int | None = None  # of a run that has ended


def run_event(run: str, entry: TimelineEntry) -> RunEvent:
    """One entry of the timeline."""
    record = entry.record
    nodes, ranks = _about(record)
    return RunEvent(
        run=run, seq=seq_of(record), time=record.wall, term=record.term, record=record.n, attempt=entry.attempt,
        kind=record.kind, phase=record.phase, was=record.was, nodes=nodes, ranks=ranks, seen=_seen(entry),
        reason=record.reason, done=tuple(_done(act) for act in record.actions),
    )  # fmt: skip


def run_ended(run: RunSnapshot, seq: int, now: float) -> RunEvent:
    """The last line: how the run ended, or that no process runs it any more. Its number is the newest record's."""
    truth, state = run_state(run, now), run.state
    return RunEvent(
        run=run.spec.run, seq=max(seq, 0), time=run.last_sign() or now, term=0 if state is None else state.term,
        record=max(seq, 0) % SEQS_PER_TERM, attempt=-1 if state is None else state.attempt.number, kind="RunEnded",
        phase=truth.state, was=truth.state,
        seen="the run has ended" if truth.ended else "no process runs it any more",
        reason=truth.reason, exit_code=truth.exit_code,
    )  # fmt: skip


def event_line(event: RunEvent, look: PageFormat) -> str:
    """The same for people."""
    when = styled(clock_words(event.time, look.now, look.zone), "cyan", look.color)
    return f"{when}  {phase_word(event.phase, look.color)}  {clean(event.seen)}: {clean(event.reason)}"


def _about(record: Record) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The nodes and ranks that an event names, and the nodes that it has excluded; not those of the whole run."""
    told = [record.event, *(one for one in map(record.event.get, ("exit", "finding")) if isinstance(one, dict))]
    excluded = record.patch.get("excluded")
    nodes = [node for one in told if isinstance(node := one.get("node"), str) and node]
    nodes += [node for node, why in (excluded if isinstance(excluded, dict) else {}).items() if why is not None]
    ranks = [rank for one in told if isinstance(rank := one.get("rank"), int) and rank >= 0]
    return tuple(dict.fromkeys(nodes)), tuple(dict.fromkeys(ranks))


# ---- the page ----


def page(told: Explanation, look: PageFormat, *, everything: bool = False) -> list[str]:
    """The whole story as lines."""
    lines = [f"{phase_word(told.state, look.color)} · {clean(told.name)}  {clean(told.run)}"]
    lines += wrapped(clean(told.reason), look.columns, "  ")
    if told.jobs:
        lines += _jobs(told.jobs, look)
        lines += ["", *excluded_lines(told.excluded, look)] if told.excluded else []
    if told.recoveries:
        lines += ["", styled("recoveries", "bold", look.color), *recovery_lines(told.recoveries, look)]
    if not told.story:
        lines += ["", "  no decision yet"]
    attempts = {one.number: one for one in told.attempts}
    newest, day = -1, date_words(look.now, look.zone)
    for entry in told.story:
        if (entry_day := date_words(entry.at, look.zone)) != day:
            day = entry_day
            lines += ["", styled(day, "cyan", look.color)]
        if entry.attempt > newest:
            newest = entry.attempt
            lines += ["", styled(_heading(newest, attempts.get(newest), look), "bold", look.color)]
        lines += ["", *_entry(entry, look, everything=everything)]
    return lines + _closing(told, look)


def _jobs(jobs: Sequence[JobStay], look: PageFormat) -> list[str]:
    labels = [_job_label(one) for one in jobs]
    chars = max(len(label) for label in labels) + 2
    lines = ["", styled("jobs", "bold", look.color)]
    for label, one in zip(labels, jobs, strict=True):
        lines += wrapped(clean(_job_words(one, look)), look.columns, f"  {label.ljust(chars)}", " " * (chars + 2))
    return lines


def _job_label(one: JobStay) -> str:
    again = f", start {one.restart + 1}" if one.restart else ""
    anew = f", launch {one.launch + 1}" if one.launch else ""
    return clean(f"job {one.job}{again}{anew}")


def _job_words(one: JobStay, look: PageFormat) -> str:
    said = []
    if one.asked is not None:
        said.append(f"asked for at {clock_words(one.asked, look.now, look.zone)}")
    if one.without:
        said.append(f"without {_folded(one.without)}")
    if one.began is not None:
        on = f" on {_folded(one.nodes)}" if one.nodes else ""
        said.append(f"began{on} at {clock_words(one.began, look.now, look.zone)}")
    if one.ended is not None:
        after = f" after {span_words(one.ended - one.began)}" if one.began is not None else ""
        as_what = f" as {one.ended_as}" if one.ended_as not in (None, "PENDING") else ""
        said.append(f"ended{as_what} at {clock_words(one.ended, look.now, look.zone)}{after}")
    words = ", ".join(said)
    return (
        f"{words}: {one.reason}"
        if words and one.reason
        else words or one.reason or "no process of this job took up the run"
    )


def _folded(nodes: Sequence[str]) -> str:
    try:
        return fold(nodes)
    except NodesetError:
        return ", ".join(nodes)


def _heading(number: int, attempt: AttemptStatus | None, look: PageFormat) -> str:
    if attempt is None:
        return f"attempt {number}"
    origin = ""  # whatever the script found
    if attempt.resumed_from_step is not None:
        origin = f", from step {attempt.resumed_from_step}"
    elif attempt.resumed_from_save is not None:
        origin = f", from {step_words(round(1000 * attempt.resumed_from_save))}"
    nodes = f" on {clean(fold(attempt.nodes))}" if attempt.nodes else ""
    text = f"attempt {number}{nodes}{origin}: {clean(attempt.outcome)} "
    return text + "─" * max(0, min(look.columns, 80) - len(text))


def _entry(entry: ExplainedRecord, look: PageFormat, *, everything: bool) -> list[str]:
    when = clock_words(entry.at, entry.at, look.zone)
    was, phase = clean(entry.was), clean(entry.phase)
    move = f"{was} → {phase_word(phase, look.color)}" if was != phase else phase
    number = f"  record {entry.term}.{entry.record} {clean(entry.event)}" if everything else ""
    lines = _labelled("meanwhile", [entry.meanwhile] if entry.meanwhile else [], look, "dim")
    if not entry.event:
        return lines
    lines.append(f"{styled(when, 'cyan', look.color)}  {move}{styled(number, 'dim', look.color and everything)}")
    lines += _labelled("seen", [entry.seen], look)
    label = "concluded" if entry.outcome == "applied" else clean(entry.outcome)
    lines += _labelled(label, [entry.concluded], look)
    lines += _labelled("", [f"{step_words(one.step)} was passed over: {one.why}" for one in entry.passed_over], look)
    tickets = [f" (ticket {n})" if n and everything else "" for n in entry.tickets]
    return lines + _labelled("done", [a + b for a, b in zip(entry.done, tickets, strict=True)], look)


def _labelled(label: str, texts: Iterable[str], look: PageFormat, style: str = "") -> list[str]:
    lines: list[str] = []
    for text in texts:
        first = f"  {label.ljust(LABEL_CHARS)}"
        lines += wrapped(clean(text), look.columns, first, " " * len(first))
        label = ""
    return [styled(line, style, look.color) for line in lines]


def _closing(told: Explanation, look: PageFormat) -> list[str]:
    run, warnings = clean(told.run), []
    if told.abandoned:
        warnings.append(f"no process runs it any more; gangrun resume {run} continues it")
    if words := failure_words(told.saves, look.now):
        warnings.append(words)
    warnings += [clean(note) for note in told.notes]
    lines = [line for words in warnings for line in ("", *wrapped(words, look.columns, "! "))]
    if told.failure == "script":
        lines += ["", f"gangrun logs --errors {run} shows the tracebacks"]
    return lines


# ---- who failed first ----


def failure_page(failure: AttemptFailure, tails: Mapping[int, Sequence[str]], *, color: bool) -> list[str]:
    """The verdict on this attempt, who hung or failed first, and how its other ranks ended.

    ``tails`` are the last lines of ranks that left no traceback.
    """
    others = [str(number) for number in failure.attempts if number != failure.number]
    if not failure.groups and not failure.hung:
        where = f" in attempt {failure.number}" if failure.number >= 0 else ""
        return [f"no rank failed{where}" + (f"; ranks failed in attempts {', '.join(others)}" if others else "")]
    told = [f"verdict on attempt {failure.number}: {clean(failure.verdict)}", ""] if failure.verdict else []
    told += culprit_lines(failure, tails, color=color)
    told += _hung_lines(failure) if failure.hung else []
    for group in failure.groups[_culprits_count(failure) :]:
        told += ["", styled(_group_head(group), "bold", color), *_traceback(group)]
    if others:
        which = "attempt" if len(others) == 1 else "attempts"
        told += ["", f"ranks failed in {which} {', '.join(others)} too: --attempt K shows them"]
    return told


def closing_lines(failure: AttemptFailure, tails: Mapping[int, Sequence[str]], *, color: bool) -> list[str]:
    """What ``gangrun run`` shows below a failed run: the culprit with its traceback, and the others in a line each."""
    rest = [_group_head(group) for group in failure.groups[_culprits_count(failure) :]]
    return [*culprit_lines(failure, tails, color=color), *_hung_lines(failure), *rest]


def _culprits_count(failure: AttemptFailure) -> int:
    """Groups that are the story themselves: the first, unless its ranks only fell because of us."""
    return int(bool(failure.groups) and not failure.groups[0].exit.by_us)


def culprit_lines(failure: AttemptFailure, tails: Mapping[int, Sequence[str]], *, color: bool) -> list[str]:
    """Who failed first and how; nothing if no rank fell of itself."""
    if not _culprits_count(failure):
        return []
    group, died = failure.groups[0], failure.groups[0].exit
    victim = " (a peer exited first)" if group.victim else ""
    where = f"rank {died.rank} on {clean(died.node)}"
    head = f"first to fail in attempt {failure.number}: {where}{victim}: {clean(event_words.exit_words(died))}"
    rest = [rank for rank in group.ranks if rank != died.rank]
    told = [styled(head, "red", color), *([f"the same: {event_words.ranks_words(rest)}"] if rest else [])]
    tail = died.tail or tails.get(died.rank, ())
    if died.error and died.error.traceback:
        told += _traceback(group)
    elif tail or died.rank in tails:
        told += ["", f"  rank {died.rank} left no traceback{'; its last lines:' if tail else ' and no output'}"]
        told += ["    " + log_line(line, color) for line in tail]
    return told


def _hung_lines(failure: AttemptFailure) -> list[str]:
    return [
        f"rank {one.rank} on {clean(one.node)} hung"
        + (f" in {clean(one.frame)}" if one.frame else "")
        + (f"; its stack: {clean(one.path)}" if one.path else "")
        for one in failure.hung
    ]


def _group_head(group: SameEnd) -> str:
    victims = " (a peer exited first)" if group.victim and not group.exit.by_us else ""
    return f"{event_words.ranks_words(group.ranks)}{victims}: {clean(event_words.exit_words(group.exit))}"


def _traceback(group: SameEnd) -> list[str]:
    error = group.exit.error
    if error is None or not error.traceback:
        return []
    return ["", *("    " + line for line in block(error.traceback.rstrip()).split("\n"))]
