"""``gangrun explain``: every decision, with what was seen, concluded and done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaims
from gangrun.cli.options import echo_json, json_option, look_now, run_argument, runs_dir_option
from gangrun.core.nodeset import fold
from gangrun.display.status_page import Look, excluded_lines
from gangrun.display.text import clean, phase_word, styled, wrapped
from gangrun.display.times import clock_words, date_words
from gangrun.runs.locate import find
from gangrun.runs.saves import failure_words
from gangrun.runs.snapshot import Reading, read
from gangrun.runs.status import SCHEMA, status_of
from gangrun.runs.timeline import Entry, tell

if TYPE_CHECKING:
    from gangrun.runs.job_history import JobTold

LABEL_CHARS = 11


@click.command("explain")
@run_argument
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Also what was ignored, refused or routine, with tickets."
)
@json_option
@runs_dir_option
def command(run: str | None, everything: bool, as_json: bool, runs_dir: str | None) -> int:
    """The story of a run: when, what was seen, what was concluded, what was done.

    The sentences under "concluded" are the supervisor's own, from the journal. Without --all only decisions that
    matter are told; what came in numbers is summed up under "meanwhile".
    """
    reading = read(find(run, runs_dir), story=True, slurm=True)
    entries = [entry for entry in tell(reading.records) if everything or entry.matters]
    look = look_now()
    status = status_of(reading, look.now)
    jobs = _jobs(reading, status)
    if as_json:
        echo_json(_as_json(status, entries, jobs))
    else:
        click.echo("\n".join(page(status, entries, look, everything=everything, jobs=jobs)))
    return 0


def _jobs(reading: Reading, status: dict[str, Any]) -> list[JobTold]:
    """A run on one box has an owner at a time, and Slurm knows nothing of it."""
    if reading.spec.world != "slurm":
        return []
    from gangrun.runs.job_history import tell_jobs

    claims = JobClaims(reading.paths, Disk()).all()
    return tell_jobs(reading.records, claims, status["attempts"], reading.queue)


def _as_json(status: dict[str, Any], entries: Iterable[Entry], jobs: list[JobTold]) -> dict[str, Any]:
    story = [
        {
            "at": entry.wall,
            "term": entry.term,
            "record": entry.n,
            "attempt": entry.attempt,
            "event": entry.event,
            "outcome": entry.outcome,
            "from": entry.was,
            "to": entry.phase,
            "seen": entry.seen,
            "concluded": entry.concluded,
            "done": list(entry.done),
            "tickets": list(entry.tickets),
            "passed_over": [{"step": step, "why": why} for step, why in entry.passed_over],
            "meanwhile": entry.meanwhile,
            "matters": entry.matters,
        }
        for entry in entries
    ]
    keys = ("run", "name", "state", "reason", "failure", "attempts", "abandoned", "excluded", "saves", "notes")
    told: list[dict[str, Any]] = []
    if jobs:
        from gangrun.runs.job_history import as_json

        told = as_json(jobs)
    return {"schema": SCHEMA, **{key: status[key] for key in keys}, "jobs": told, "story": story}


def page(
    status: dict[str, Any], entries: list[Entry], look: Look, *, everything: bool = False, jobs: Sequence[JobTold] = ()
) -> list[str]:
    """The whole story as lines."""
    lines = [f"{phase_word(status['state'], look.color)} · {clean(status['name'])}  {clean(status['run'])}"]
    lines += wrapped(clean(status["reason"]), look.columns, "  ")
    if jobs:
        from gangrun.runs.job_history import lines_of

        lines += lines_of(jobs, look)
        lines += ["", *excluded_lines(status, look)] if status["excluded"] else []
    if not entries:
        lines += ["", "  nothing was decided yet"]
    attempts = {one["number"]: one for one in status["attempts"]}
    told, day = -1, date_words(look.now, look.zone)
    for entry in entries:
        if (entry_day := date_words(entry.wall, look.zone)) != day:
            day = entry_day
            lines += ["", styled(day, "cyan", look.color)]
        if entry.attempt > told:
            told = entry.attempt
            lines += ["", styled(_heading(told, attempts.get(told), look), "bold", look.color)]
        lines += ["", *_entry(entry, look, everything=everything)]
    lines += _closing(status, look)
    return lines


def _heading(number: int, attempt: dict[str, Any] | None, look: Look) -> str:
    if attempt is None:
        return f"attempt {number}"
    origin = (
        f"from step {attempt['resumed_from_step']}" if attempt["resumed_from_step"] is not None else "from the start"
    )
    nodes = f" on {clean(fold(attempt['nodes']))}" if attempt["nodes"] else ""
    outcome = clean(attempt["outcome"])
    text = f"attempt {number}{nodes}, {origin}: {outcome} "
    return text + "─" * max(0, min(look.columns, 80) - len(text))


def _entry(entry: Entry, look: Look, *, everything: bool) -> list[str]:
    when = clock_words(entry.wall, entry.wall, look.zone)
    was, phase = clean(entry.was), clean(entry.phase)
    move = f"{was} → {phase_word(phase, look.color)}" if was != phase else phase
    number = styled(f"  record {entry.term}.{entry.n} {clean(entry.event)}", "dim", look.color) if everything else ""
    lines = _labelled("meanwhile", [entry.meanwhile] if entry.meanwhile else [], look, "dim")
    if not entry.event:
        return lines
    lines.append(f"{styled(when, 'cyan', look.color)}  {move}{number}")
    lines += _labelled("seen", [entry.seen], look)
    label = "concluded" if entry.outcome == "applied" else clean(entry.outcome)
    lines += _labelled(label, [entry.concluded], look)
    lines += _labelled("", [f"step {step} was passed over: {why}" for step, why in entry.passed_over], look)
    tickets = [f" (ticket {n})" if n and everything else "" for n in entry.tickets]
    lines += _labelled("done", [words + ticket for words, ticket in zip(entry.done, tickets, strict=True)], look)
    return lines


def _labelled(label: str, texts: Iterable[str], look: Look, style: str = "") -> list[str]:
    lines: list[str] = []
    for text in texts:
        first = f"  {label.ljust(LABEL_CHARS)}"
        lines += wrapped(clean(text), look.columns, first, " " * len(first))
        label = ""
    return [styled(line, style, look.color) for line in lines]


def _closing(status: dict[str, Any], look: Look) -> list[str]:
    lines = []
    if status["abandoned"]:
        words = f"nobody runs it any more; gangrun resume {clean(status['run'])} takes it up again"
        lines += ["", *wrapped(words, look.columns, "! ")]
    if words := failure_words(status["saves"], look.now):
        lines += ["", *wrapped(words, look.columns, "! ")]
    for note in status["notes"]:
        lines += ["", *wrapped(f"the journal could not be read in full: {clean(note)}", look.columns, "! ")]
    if status["failure"] == "script":
        lines += ["", f"gangrun logs --errors {clean(status['run'])} shows the tracebacks"]
    return lines
