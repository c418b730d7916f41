"""The jobs of a run, one after the other: when each was asked for and
without which nodes, where it ran, how it ended and why.

From the journal's records, the claims of the batch scripts and, where it was asked, from Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.core.actions import EndJob, SubmitSuccessor
from gangrun.core.nodeset import NodesetError, fold, natural_sort
from gangrun.display.queue_words import Queue, active_words, ended_words, waiting_words
from gangrun.display.status_page import Look
from gangrun.display.text import clean, styled, wrapped
from gangrun.display.times import clock_words, span_words
from gangrun.wire.kinds import action_of
from gangrun.wire.record import Record, RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTold:
    """One stay of one job; a job that was requeued or launched anew has several."""

    job: str
    seq: int | None
    restart: int = 0
    launch: int = 0
    asked: float | None = None  # when a supervisor asked for it; None: a person did
    without: tuple[str, ...] = ()  # the nodes that it was to do without
    began: float | None = None  # when its first supervisor did
    nodes: tuple[str, ...] = ()
    ended: float | None = None
    ended_as: str = ""  # the run's state as the job was ended, "PENDING": it goes on in another job
    reason: str = ""  # why it ended, or how it waits


def tell_jobs(
    records: Iterable[Record],
    claims: Iterable[JobClaim],
    attempts: Iterable[Mapping[str, Any]],
    queue: Queue | None,
) -> list[JobTold]:
    """In the order in which they held the run. ``attempts`` as a status has them."""
    asked, began, ended = _from_records(records)
    nodes: dict[str, set[str]] = {}
    for attempt in attempts:
        nodes.setdefault(attempt["job"], set()).update(attempt["nodes"])
    told = []
    for claim in claims:
        when, without = asked.get(claim.seq, (None, ()))
        over, as_what, why = ended.get(claim.token, (None, "", ""))
        told.append(
            JobTold(
                job=claim.job, seq=claim.seq, restart=claim.restart, launch=claim.launch, asked=when, without=without,
                began=began.get(claim.token), nodes=tuple(natural_sort(nodes.get(claim.job, ()))), ended=over,
                ended_as=as_what, reason=why,
            )
        )  # fmt: skip
    return _with_queue(told, asked, queue)


def _from_records(
    records: Iterable[Record],
) -> tuple[dict[int, tuple[float | None, tuple[str, ...]]], dict[str, float], dict[str, tuple[float | None, str, str]]]:
    """Who was asked for when, which stay began when, and how each was ended."""
    asked: dict[int, tuple[float | None, tuple[str, ...]]] = {}
    began: dict[str, float] = {}
    ended: dict[str, tuple[float | None, str, str]] = {}
    current = ""
    for record in records:
        if record.kind == "TermTaken" and isinstance(job := record.event.get("job"), str):
            current = job
            began.setdefault(job, record.wall)
        for act in record.actions:
            try:
                action = action_of(act.kind, act.args)
            except RecordError:
                continue
            if isinstance(action, SubmitSuccessor):
                asked.setdefault(action.seq, (record.wall, action.exclude))
            elif isinstance(action, EndJob):
                ended[current] = (record.wall, action.phase.value, action.reason)
    return asked, began, ended


def _with_queue(
    told: list[JobTold], asked: Mapping[int, tuple[float | None, tuple[str, ...]]], queue: Queue | None
) -> list[JobTold]:
    """With what Slurm says of the newest stay of each job, and the jobs that have claimed nothing yet."""
    if queue is None:
        return told
    newest = {one.job: k for k, one in enumerate(told)}
    holders = {one.seq: one.job for one in told}
    for job in queue.jobs:
        words = ended_words(job) if job.ended else active_words(job) if job.active else waiting_words(job)
        words = words.removeprefix(f"job {job.job} ")
        k = newest.get(job.job)
        if k is None:
            if job.seq is not None and job.seq in holders:
                held = f"place {job.seq} is held by job {holders[job.seq]}"
                words = f"it started nothing, as {held}" if job.ended else f"{words}; {held}"
            when, without = asked.get(-1 if job.seq is None else job.seq, (None, ()))
            ended = job.end_wall if job.ended else None
            told.append(
                JobTold(
                    job=job.job, seq=job.seq, asked=when, without=without, nodes=job.nodes, ended=ended, reason=words
                )
            )
        elif job.ended and not told[k].reason:
            told[k] = replace(told[k], ended=job.end_wall, reason=words)
        elif job.waits:
            told.append(replace(told[k], began=None, ended=None, ended_as="", nodes=(), reason=words))
    return sorted(told, key=lambda one: -1 if one.seq is None else one.seq)


def as_json(jobs: Iterable[JobTold]) -> list[dict[str, Any]]:
    """For ``explain --json``."""
    return [
        {
            "job": one.job, "seq": one.seq, "restart": one.restart, "launch": one.launch, "asked": one.asked,
            "without": list(one.without), "began": one.began, "nodes": list(one.nodes), "ended": one.ended,
            "ended_as": one.ended_as or None, "reason": one.reason,
        }
        for one in jobs
    ]  # fmt: skip


def lines_of(jobs: Sequence[JobTold], look: Look) -> list[str]:
    """A chapter of ``explain``."""
    if not jobs:
        return []
    labels = [_label(one) for one in jobs]
    chars = max(len(label) for label in labels) + 2
    lines = ["", styled("jobs", "bold", look.color)]
    for label, one in zip(labels, jobs, strict=True):
        lines += wrapped(clean(_words(one, look)), look.columns, f"  {label.ljust(chars)}", " " * (chars + 2))
    return lines


def _label(one: JobTold) -> str:
    again = f", start {one.restart + 1}" if one.restart else ""
    anew = f", launch {one.launch + 1}" if one.launch else ""
    return clean(f"job {one.job}{again}{anew}")


def _words(one: JobTold, look: Look) -> str:
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
        as_what = f" as {one.ended_as}" if one.ended_as not in ("", "PENDING") else ""
        said.append(f"ended{as_what} at {clock_words(one.ended, look.now, look.zone)}{after}")
    words = ", ".join(said)
    return f"{words}: {one.reason}" if words and one.reason else words or one.reason or "nobody of it took the run up"


def _folded(nodes: tuple[str, ...]) -> str:
    try:
        return fold(nodes)
    except NodesetError:
        return ", ".join(nodes)
