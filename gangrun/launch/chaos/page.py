"""A rehearsal for people: as a table, as a page for a browser, and the list of kinds. Values in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from gangrun.core.text import counted
from gangrun.display.report.markup import document, figure, folded, table, text
from gangrun.display.status_page import PageFormat
from gangrun.display.text import clean, styled, wrapped
from gangrun.display.text import table as plain_table
from gangrun.display.times import clock_words, date_words
from gangrun.launch.chaos.kinds import KINDS, OWN_RUN_WORDS, DrillPlace
from gangrun.launch.chaos.plan import Drill
from gangrun.launch.chaos.score import DrillScore, Rehearsal, Struck

_HEAD = ("drill", "fault", "concluded", "node", "noticed", "recovery", "lost", "SLA")


def rehearsal_page(found: Rehearsal, look: PageFormat) -> list[str]:
    """What ``gangrun chaos`` prints at its end."""
    rows = [
        (str(one.number), one.kind, one.concluded, _node(one), _span(one.noticed_s), _span(one.recovery_s),
         "-" if one.steps_lost is None else str(one.steps_lost), "holds" if one.holds else "MISSED")
        for one in found.drills
    ]  # fmt: skip
    first, *rest = plain_table(_HEAD, rows, look.columns, "")
    lines = [styled(first, "dim", look.color), *rest, ""]
    for one in found.drills:
        for point in one.points:
            if point.holds is False:
                words = f"drill {one.number}, {one.kind}: {point.name} is {point.measured}, must be {point.limit}"
                lines += [styled(line, "red", look.color) for line in wrapped(clean(words), look.columns, "  ! ")]
        if not one.holds and one.sentence:
            lines += wrapped(clean(f"the run concluded: {one.sentence}"), look.columns, "    ")
    return [*lines, verdict(found)]


def strike_line(number: int, drill: Drill, struck: Struck) -> str:
    """What is said when a drill strikes."""
    return f"drill {number}, {drill.kind.value}: {struck.words}"


def verdict(found: Rehearsal) -> str:
    """The last line."""
    missed = sum(not one.holds for one in found.drills)
    whole = f"seed {found.seed}, {counted(len(found.drills), 'drill')}"
    return f"the SLA holds ({whole})" if found.holds else f"the SLA was missed by {missed} of {whole}"


def kinds_page(look: PageFormat) -> list[str]:
    """What ``gangrun chaos --list`` prints: each kind, what it does, where, and what it should lead to."""
    lines: list[str] = []
    for place in DrillPlace:
        rows = [(kind, row) for kind, row in KINDS.items() if row.place is place]
        lines += ["", styled(_place_words(place), "bold", look.color)]
        for kind, row in rows:
            lines.append(f"  {styled(kind.value, 'cyan', look.color)}")
            lines += wrapped(f"{row.does}.", look.columns, "      ")
            lines += wrapped(f"leads to: {row.leads_to}", look.columns, "      ")
            if place is not DrillPlace.ANYWHERE:
                lines += wrapped(f"not elsewhere: {row.refusal}", look.columns, "      ")
    return [*lines[1:], "", *wrapped(OWN_RUN_WORDS, look.columns)]


def _place_words(place: DrillPlace) -> str:
    match place:
        case DrillPlace.ANYWHERE:
            return "on a run of yours, and with --local"
        case DrillPlace.LOCAL:
            return "with --local only"
        case DrillPlace.SCHEDULED:
            return f"on {place.value} only"


def rehearsal_html(found: Rehearsal, look: PageFormat) -> str:
    """One file for a browser."""
    kind, state = ("good", "SLA HOLDS") if found.holds else ("bad", "SLA MISSED")
    when = f"{date_words(look.now, look.zone)} {clock_words(look.now, look.now, look.zone)}"
    rows = [
        (str(one.number), one.kind, one.done, one.concluded, _node(one), _span(one.noticed_s), _span(one.recovery_s),
         "-" if one.steps_lost is None else str(one.steps_lost), _state(one.holds))
        for one in found.drills
    ]  # fmt: skip
    head = ("drill", "fault", "what was done", "concluded", "node", "noticed", "recovery", "steps lost", "SLA")
    drills = table("Each drill: one fault, and what the run made of it", head, rows,
                   inner=(8,), words=(1, 3, 4, 8), long=(2,))  # fmt: skip
    parts = [
        f"<header><h1>{text('Rehearsal of failures')}</h1>",
        f'<p><span class="state {kind}">{state}</span> <span class="dim">{text(when)}</span></p>',
        f'<p class="lead">{text(verdict(found))}</p></header>',
        f"<h2>Drills</h2>{figure(drills, 'table of drills')}",
        "<h2>Service level</h2>",
        *_points(found),
        "<footer>times are seconds from the strike, by the journal of the run</footer>",
    ]
    return document("gangrun chaos: rehearsal of failures", "\n".join(parts))


def _points(found: Rehearsal) -> Iterator[str]:
    for one in found.drills:
        rows = [(point.name, point.limit, point.measured, _state(point.holds)) for point in one.points]
        inner = table("", ("point", "must be", "was", ""), rows, inner=(3,), words=(1, 2, 3))
        said = f"<p>{text(one.sentence)}</p>" if one.sentence else ""
        told = "holds" if one.holds else "missed: " + ", ".join(_missed(one))
        yield folded(f"drill {one.number}: {one.kind}", told, said + inner)


def _missed(one: DrillScore) -> Iterator[str]:
    yield from (point.name for point in one.points if point.holds is False)


def _state(holds: bool | None) -> str:
    if holds is None:
        return '<span class="dim">not counted</span>'
    return '<span class="good">holds</span>' if holds else '<span class="bad">missed</span>'


def _node(one: DrillScore) -> str:
    return ", ".join(one.nodes) or "-"


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
