"""A run's report as one HTML file: how it stands, its time, its training, its nodes, its recoveries and the evidence.

The size is bounded whatever the run was: curves are thinned, nodes that were alike share a row, old evidence is left
out. The page says what it leaves out, and which command has it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from statistics import median

import msgspec

from gangrun.core.evidence import RankExit
from gangrun.core.text import counted
from gangrun.display import event_words
from gangrun.display.account_page import money_words, share_words
from gangrun.display.explain_page import ExplainedRecord, Explanation, explained
from gangrun.display.report import charts
from gangrun.display.report.charts import AttemptSpan, CurvePoint, TimeScale, nodes_words, restarts_words
from gangrun.display.report.markup import document, figure, folded, keys, pre, swatch, table, text
from gangrun.display.status_page import RUNG_WORDS, PageFormat, amount_words, exact_words
from gangrun.display.text import number_words
from gangrun.display.times import clock_words, date_words, span_words
from gangrun.planning.accounts import TimeUse
from gangrun.runs import history
from gangrun.runs.failures import exits_of, first_of, groups_of
from gangrun.runs.ledger import run_account
from gangrun.runs.recoveries import recoveries_of
from gangrun.runs.report import RunReport, node_failures
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import AttemptStatus, RecoveryStatus, Status, job_number, status_of
from gangrun.runs.times import WallTimes

GOODPUT_PIECES, NODE_PIECES = 160, 120
NODE_ROWS_MAX, BROKEN_ROWS_MAX = 60, 100
ATTEMPTS_MAX, RECOVERIES_MAX = 200, 500
EVIDENCE_CHARS_MAX, TRACEBACK_CHARS_MAX, ENTRIES_MAX = 800_000, 6_000, 40
GOES_ON = " The run went on: what it trained since the newest checkpoint counts as useful."
FEW_COUNT = 12  # samples; fewer make no curve to judge by
_STATE_KINDS = {"SUCCEEDED": "good", "RUNNING": "good", "FAILED": "bad"}


@dataclass(frozen=True, slots=True)
class _Facts:
    """All that the sections draw from."""

    reading: RunSnapshot
    report: RunReport
    status: Status
    story: Explanation
    look: PageFormat
    scale: TimeScale
    attempts: tuple[AttemptSpan, ...]

    @property
    def restarts(self) -> list[int]:
        """When attempts after the first began."""
        return [one.began_ms for one in self.attempts[1:]]


def html_page(reading: RunSnapshot, report: RunReport, look: PageFormat) -> str:
    """The whole file; the snapshot has all records."""
    state = reading.state
    assert state is not None
    account, status = run_account(reading), status_of(reading, look.now)
    offset_s = WallTimes.of(reading.records).wall(account.began_ms / 1000) - account.began_ms / 1000
    scale = TimeScale(account.began_ms, max(account.until_ms, account.began_ms + 1), offset_s, look.zone)
    spans = tuple(
        AttemptSpan(told, round(1000 * one.started), account.until_ms if one.ended is None else round(1000 * one.ended))
        for one, told in zip(state.attempts, status.attempts, strict=True)
    )
    facts = _Facts(reading, report, status, explained(reading, look.now), look, scale, spans)
    jobs = [history.JobSpan(job_number(one.job), one.began_ms, one.ended_ms) for one in history.job_spans(account)]
    sections = [_head(facts)]
    if spans:
        sections.append(_attempts(facts, jobs))
    edges = history.edges_ms(account, GOODPUT_PIECES)
    sections.append(_time(facts, edges, history.uses_over_time(account, edges)))
    sections.append(_training(facts))
    edges = history.edges_ms(account, NODE_PIECES)
    rows, rest = history.folded(history.node_rows(account, edges), NODE_ROWS_MAX)
    if rows:
        sections.append(_nodes(facts, edges, rows, rest))
    sections += [_recoveries(facts), _evidence(facts), _foot(facts)]
    return document(f"{status.name} ({status.run}): gangrun report", "\n".join(sections))


# ---- how it stands ----


def _head(facts: _Facts) -> str:
    status, report = facts.status, facts.report
    kind = _STATE_KINDS.get(status.state, "warn")
    lines = [
        f"<header><h1>{text(status.name)}</h1>",
        f'<p><span class="state {kind}">{text(status.state)}</span> <span class="dim">{text(status.run)}</span></p>',
        f'<p class="lead">{text(status.reason)}</p>' if status.reason else "",
        '<dl class="figures">',
    ]
    for name, value, more in _key_figures(facts):
        small = f"<small>{text(more)}</small>" if more else ""
        lines.append(f"<div><dt>{text(name)}</dt><dd>{text(value)}{small}</dd></div>")
    lines.append("</dl>")
    if not report.whole_s:
        lines.append("<p>No time has passed yet.</p>")
    return "\n".join([*lines, "</header>"])


def _key_figures(facts: _Facts) -> Iterator[tuple[str, str, str]]:
    status, report = facts.status, facts.report
    yield "useful time", "-" if report.ettr is None else share_words(report.ettr), f"of {span_words(report.whole_s)}"
    if (mfu := report.mfu) is not None:
        more = [f"{share_words(mfu.useful)} of useful time"] if mfu.useful is not None else []
        if report.window is not None and mfu.window is not None:
            more.append(f"{share_words(mfu.window)} of the last {span_words(report.window.seconds)}")
        yield "MFU", "-" if mfu.whole is None else share_words(mfu.whole), "; ".join(more)
    step = status.log_step if status.step is None else status.step
    if step is not None:
        of = "" if status.total_steps is None else f"of {status.total_steps:,}"
        yield "step", f"{step:,}", of
    if status.loss is not None:
        yield "loss", number_words(status.loss), "the newest"
    cost = "" if report.cost is None else money_words(report.cost)
    yield "GPU-hours", f"{report.gpu_h:,.0f}" if report.gpu_h >= 1000 else f"{report.gpu_h:.1f}", cost
    yield "nodes", str(len(report.nodes)), counted(status.world_size, "rank")
    failures = sum(report.failures.values())
    yield "failures", str(failures), ", ".join(f"{count} {cause}" for cause, count in report.failures.items())
    over = [one.whole_s for one in facts.story.recoveries if one.recovered is not None and one.rung != "end"]
    if over:
        yield "recovery", exact_words(median(over)), f"the median of {len(over)}; the longest {exact_words(max(over))}"


# ---- attempts ----


def _attempts(facts: _Facts, jobs: Sequence[history.JobSpan]) -> str:
    look, attempts = facts.look, facts.status.attempts
    shown = attempts[-ATTEMPTS_MAX:]
    rows = [
        (
            str(one.number), one.job, _when(one.started, look),
            span_words(_end(facts, one) - one.started), _origin(one),
            "-" if one.last_step is None else f"{one.last_step:,}", one.outcome, one.reason,
        )
        for one in shown
    ]  # fmt: skip
    older = len(attempts) - len(shown)
    caption = f"The newest {len(shown)} of {len(attempts)}; gangrun status --json has all." if older else ""
    head = ("attempt", "job", "began", "lasted", "from step", "to step", "outcome", "because")
    inner = figure(table(caption, head, rows, words=(1, 2, 6), long=(7,)), "table of attempts")
    inner = inner if len(rows) <= FEW_COUNT else folded("Each attempt", f"{len(rows)} of {len(attempts)}", inner)
    picture = charts.attempts_chart(facts.scale, facts.attempts, jobs, "job")
    told = "A red end: all ranks were stopped, and the next attempt began. The table tells why."
    return f"<section><h2>Attempts</h2>\n{figure(picture, 'attempts over time', told)}\n{inner}</section>"


def _end(facts: _Facts, one: AttemptStatus) -> float:
    return facts.scale.until_ms / 1000 + facts.scale.offset_s if one.ended is None else one.ended


def _origin(one: AttemptStatus) -> str:
    return "the start" if one.resumed_from_step is None else f"{one.resumed_from_step:,}"


def _when(wall: float, look: PageFormat) -> str:
    return f"{date_words(wall, look.zone)} {clock_words(wall, wall, look.zone)}"


# ---- where the time went ----


def _time(facts: _Facts, edges: Sequence[int], uses: Sequence[Mapping[TimeUse, int]]) -> str:
    report = facts.report
    by_name = {use.value: use for use in TimeUse}
    priced = report.cost is not None
    rows = [
        (
            swatch(by_name[one.use]), span_words(one.run_s), f"{one.run_s:,.3f}", _share(one.run_s, report.whole_s),
            f"{one.node_s:,.3f}", f"{one.gpu_h:,.2f}", *([money_words(one.cost or 0.0)] if priced else []),
        )
        for one in report.uses
    ]  # fmt: skip
    run_s, node_s = report.whole_s, sum(one.node_s for one in report.uses)
    foot = [
        "all", span_words(run_s), f"{run_s:,.3f}", _share(run_s, run_s), f"{node_s:,.3f}", f"{report.gpu_h:,.2f}",
        *([money_words(report.cost or 0.0)] if priced else []),
    ]  # fmt: skip
    head = ["the time went to", "of the run", "seconds", "share", "node-seconds", "GPU-hours", *(["cost"] * priced)]
    inner = table("", head, rows, inner=(0,), words=(0,), foot=foot)
    picture = charts.goodput_chart(facts.scale, edges, uses, facts.restarts)
    told = "Each column shows the shares of a piece of the time; the colours are those of the table."
    told += restarts_words(len(facts.restarts))
    return (
        f"<section><h2>Where the time went</h2>\n{figure(picture, 'use of the time', told)}\n"
        f"{figure(inner, 'table of the time by class')}</section>"
    )


def _share(part: float, whole: float) -> str:
    return share_words(part / whole) if whole else "-"


# ---- training ----


def _training(facts: _Facts) -> str:
    past = history.TrainingHistory().read(facts.reading.records)
    paces = [CurvePoint(one.at_ms, one.attempt, one.step_s) for one in past.paces()]
    losses = [
        CurvePoint(one.at_ms, one.attempt, one.loss)
        for one in past.samples
        if one.loss is not None and isfinite(one.loss)
    ]
    told = "<section><h2>Training</h2>\n"
    every = "The journal keeps a sample about every half a minute, and those at the end of each attempt."
    for name, title, unit, points in (("pace", "Time of a step", " s", paces), ("loss", "Loss", "", losses)):
        told += f"<h3>{title}</h3>\n"
        if len(points) < 2:
            what = "no value" if not points else f"one value, {number_words(points[0].value)}{unit}"
            newest = facts.status.loss if name == "loss" else None
            known = f" The newest known is {number_words(newest)}." if newest is not None and not points else ""
            told += f"<p>The journal holds {what}, which makes no curve.{text(known)} {every}</p>\n"
            continue
        few = f" Only {len(points)} values: short peaks are not seen." if len(points) < FEW_COUNT else ""
        mean = "Each value is the mean between two samples. " if name == "pace" else ""
        words = f"{mean}{every}{few}{restarts_words(len(facts.restarts))}"
        told += figure(charts.curve_chart(facts.scale, name, title, unit, points, facts.restarts), title, words) + "\n"
    return told + "</section>"


# ---- nodes ----


def _nodes(facts: _Facts, edges: Sequence[int], rows: Sequence[history.NodeRow], rest: history.NodeRow | None) -> str:
    picture = charts.heat_map(facts.scale, edges, rows, rest)
    seen = {use for row in [*rows, *([rest] if rest is not None else [])] for use in row.cells}
    told = "Nodes that were alike share a row. A cell shows what took longest, or that a node was unusable at all."
    if rest is not None:
        told += f" The last row holds the {counted(len(rest.nodes), 'node')} that were least unusable, by majority."
    why: dict[str, list[str]] = {}
    for node, reason in node_failures(facts.reading.records):
        why.setdefault(node, []).append(reason)
    bad = sorted(
        (one for one in facts.report.nodes if one.uses_s.get("unusable")), key=lambda one: -one.uses_s["unusable"]
    )
    inner = ""
    if bad:
        cells = [
            (
                one.node, span_words(one.uses_s["unusable"]), str(len(why.get(one.node, []))),
                "; ".join(dict.fromkeys(why.get(one.node, []))),
            )
            for one in bad[:BROKEN_ROWS_MAX]
        ]  # fmt: skip
        older = len(bad) - len(cells)
        caption = "Nodes that were lost or excluded" + (f": the worst {len(cells)} of {len(bad)}" if older > 0 else "")
        inner = table(caption, ("node", "for", "times", "because"), cells, words=(0,), long=(3,))
        inner = figure(inner, "table of nodes that were unusable")
    legend = keys(use for use in TimeUse if use in seen)
    return f"<section><h2>Nodes</h2>\n{figure(picture, 'nodes over time', told)}\n{legend}\n{inner}</section>"


# ---- recoveries ----


def _recoveries(facts: _Facts) -> str:
    found = facts.story.recoveries
    if not found:
        return "<section><h2>Recoveries</h2><p>None: nothing failed.</p></section>"
    shown, outcomes = found[-RECOVERIES_MAX:], {one.number: one.outcome for one in facts.status.attempts}
    spans = [msgspec.structs.asdict(one.parts) for one in shown]
    parts = [name for name in spans[0] if any(one[name] for one in spans)]
    where = _guilty(facts)
    rows = [
        (
            _between(one), _when(one.failed, facts.look), outcomes.get(one.attempt, "-"),
            where.get(one.attempt, "-"), "not over yet" if one.rung is None else RUNG_WORDS.get(one.rung, one.rung),
            f"{one.whole_s:.3f}", *(f"{times[name]:.3f}" if times[name] else "" for name in parts),
            "-" if one.lost_steps is None else f"{one.lost_steps:,}",
            "-" if one.lost_gpu_s is None else amount_words(one.lost_gpu_s),
        )
        for one, times in zip(shown, spans, strict=True)
    ]  # fmt: skip
    names = [name.removesuffix("_s").replace("_", " ") for name in parts]
    head = ("attempts", "failed", "cause", "node", "by", "seconds", *names, "steps lost", "GPU-s lost")
    whole = sum(one.whole_s for one in shown)
    foot = [
        "all", "", "", "", counted(len(shown), "recovery").replace("recoverys", "recoveries"), f"{whole:.3f}",
        *(f"{sum(times[name] for times in spans):.3f}" for name in parts),
        f"{sum(one.lost_steps or 0 for one in shown):,}", amount_words(sum(one.lost_gpu_s or 0.0 for one in shown)),
    ]  # fmt: skip
    older = len(found) - len(shown)
    told = "From a failure to the first new step. The parts are in seconds and sum to the whole."
    told += f" The newest {len(shown)} of {len(found)}; gangrun explain has all." if older else ""
    inner = table(told, head, rows, words=(1, 2, 3, 4), foot=foot)
    return f"<section><h2>Recoveries</h2>\n{figure(inner, 'table of recoveries')}</section>"


def _between(one: RecoveryStatus) -> str:
    if one.rung == "end":
        return f"{one.attempt} → end"
    return f"{one.attempt} → {'?' if one.next_attempt is None else one.next_attempt}"


def _guilty(facts: _Facts) -> dict[int, str]:
    """Of each attempt the nodes that were lost or excluded with its failure; else where a rank failed first."""
    exits = exits_of(facts.reading.records)
    found = {}
    records = facts.reading.records
    moments = list(accumulate((round(1000 * record.at) for record in records), max))
    for one in recoveries_of(records):
        during = records[bisect_left(moments, one.began_ms) : bisect_right(moments, one.until_ms)]
        nodes = list(dict.fromkeys(node for node, _ in node_failures(during)))
        first = first_of(exits.get(one.attempt, ()))
        if nodes:
            found[one.attempt] = nodes_words(nodes)
        elif first is not None:
            found[one.attempt] = f"{first.node} (rank {first.rank})"
    return found


# ---- evidence ----


def _evidence(facts: _Facts) -> str:
    """The newest attempts' decisions and tracebacks, as many as fit."""
    run, exits = facts.status.run, exits_of(facts.reading.records)
    by_attempt: dict[int, list[ExplainedRecord]] = {}
    for entry in facts.story.story:
        by_attempt.setdefault(entry.attempt, []).append(entry)
    outcomes = {one.number: one for one in facts.status.attempts}
    told_in: dict[str, int] = {}
    parts: list[str] = []
    left = EVIDENCE_CHARS_MAX
    for number in sorted(by_attempt, reverse=True):
        entries = by_attempt[number]
        inner = _story(entries, facts.look) + _tracebacks(exits.get(number, ()), number, told_in)
        one = outcomes.get(number)
        name = "Before the first attempt" if number < 0 else f"Attempt {number}" + (f": {one.outcome}" if one else "")
        part = folded(name, f"{counted(len(entries), 'decision')} from {_when(entries[0].at, facts.look)}", inner)
        if len(part) > left:
            break
        left -= len(part)
        parts.append(part)
    older = len(by_attempt) - len(parts)
    more = (
        f"<p>{counted(older, 'older attempt')} left out: gangrun explain {text(run)} shows them.</p>" if older else ""
    )
    intro = "<p>What was seen, what the supervisor concluded, and what was done. The newest attempt comes first.</p>"
    return f"<section><h2>Evidence</h2>\n{intro}\n{''.join(parts)}{more}</section>"


def _story(entries: Sequence[ExplainedRecord], look: PageFormat) -> str:
    shown = list(entries)
    left_out = ""
    if len(shown) > ENTRIES_MAX:
        half = ENTRIES_MAX // 2
        left_out = f'<li class="dim">{counted(len(shown) - ENTRIES_MAX, "decision")} left out</li>'
        shown = [*shown[:half], *shown[-half:]]
    items = [_entry(one, look) for one in shown]
    if left_out:
        items.insert(ENTRIES_MAX // 2, left_out)
    return f'<ol class="story">{"".join(items)}</ol>'


def _entry(one: ExplainedRecord, look: PageFormat) -> str:
    if not one.event:
        return f'<li class="dim">meanwhile: {text(one.meanwhile)}</li>'
    move = f"{one.was} → {one.phase}: " if one.was != one.phase else ""
    small = [f"seen: {one.seen}"] if one.seen else []
    small += [f"done: {words}" for words in one.done]
    small += [f"step {skipped.step} was passed over: {skipped.why}" for skipped in one.passed_over]
    small += [f"meanwhile: {one.meanwhile}"] if one.meanwhile else []
    lines = "".join(f"<small>{text(words)}</small>" for words in small)
    return f"<li><time>{text(_when(one.at, look))}</time> {text(move + one.concluded)}{lines}</li>"


def _tracebacks(exits: Iterable[RankExit], number: int, told_in: dict[str, int]) -> str:
    told = ""
    for group in groups_of(tuple(exits)):
        if group.victim:
            continue
        words = f"{event_words.ranks_words(group.ranks)} on {group.exit.node}: {event_words.exit_words(group.exit)}"
        told += f"<p>{text(words)}</p>"
        trace = group.exit.error.traceback if group.exit.error is not None else ""
        if trace and trace in told_in:
            told += f"<p>The same traceback as in attempt {told_in[trace]}.</p>"
        elif trace:
            told_in[trace] = number
            cut = "… (the beginning is left out)\n" if len(trace) > TRACEBACK_CHARS_MAX else ""
            told += pre(cut + trace[-TRACEBACK_CHARS_MAX:])
    return f"<h3>How ranks ended</h3>{told}" if told else ""


def _foot(facts: _Facts) -> str:
    look, status = facts.look, facts.status
    run, goes_on = text(status.run), "" if status.exit_code is not None else GOES_ON
    notes = "".join(f"<p>! {text(note)}</p>" for note in status.notes)
    return (
        f"<footer>{notes}<p>Made by gangrun report at {text(_when(look.now, look))} from the journal of {run}."
        f"{goes_on} The numbers: gangrun report --json {run}; every decision: gangrun explain {run}."
        f"</p></footer>"
    )
