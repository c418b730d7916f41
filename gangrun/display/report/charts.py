"""The pictures of a report as SVG: all share one axis of time, so that what happened at one moment stands in one line.

Each picture has a title and a description for who cannot see it; what they show stands in tables too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import groupby

from gangrun.core.nodeset import NodesetError, fold
from gangrun.core.text import counted
from gangrun.display.report.markup import key_of, text
from gangrun.display.text import number_words
from gangrun.display.times import span_words
from gangrun.planning.accounts import TimeUse
from gangrun.runs.history import JobSpan, NodeRow
from gangrun.runs.status import AttemptStatus

WIDTH, LEFT, RIGHT = 1080, 150, 12
TICKS_MAX = 8
POINTS_MAX = 600  # of a curve
LABEL_CHARS = 22
DENSE_COUNT = 60  # marks of restarts; more are drawn at the bottom only
_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000,
    1728000, 4320000, 8640000, 31536000,
)  # fmt: skip
_WELL = frozenset({"succeeded", "running", "starting"})


@dataclass(frozen=True, slots=True)
class TimeScale:
    """From the run clock to places, and to what the wall's clock said."""

    began_ms: int
    until_ms: int
    offset_s: float  # of the wall's clock
    zone: tzinfo | None = None

    def x(self, at_ms: float) -> float:
        """Where a moment stands."""
        share = (at_ms - self.began_ms) / max(1, self.until_ms - self.began_ms)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, share)), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Round moments."""
        whole_s = max(0.001, (self.until_ms - self.began_ms) / 1000)
        step_s = next((step for step in _STEPS_S if whole_s / step <= TICKS_MAX), _STEPS_S[-1])
        began = self.began_ms / 1000 + self.offset_s
        local = datetime.fromtimestamp(began, tz=timezone.utc).astimezone(self.zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        tick = midnight + timedelta(seconds=math.ceil((local - midnight).total_seconds() / step_s) * step_s)
        day = None
        while (past_s := tick.timestamp() - began) <= whole_s:
            form = "%b %d" if step_s >= 86400 else "%H:%M:%S" if step_s < 60 else "%H:%M"
            dated = day != tick.date() and step_s < 86400 and whole_s > 43200
            words = tick.strftime("%b %d " + form if dated else form)
            day = tick.date()
            yield self.x(self.began_ms + 1000 * past_s), words
            tick += timedelta(seconds=step_s)


def _svg(name: str, height: float, title: str, desc: str, inner: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{text(title)}</title><desc id="{name}-d">{text(desc)}</desc>{inner}</svg>'
    )


def _time_axis(scale: TimeScale, top: float, bottom: float) -> str:
    lines = []
    for x, words in scale.ticks():
        anchor = "end" if x > WIDTH - 40 else "middle"
        lines.append(
            f'<path class="grid" d="M{x:g} {top:g}V{bottom:g}"/>'
            f'<text x="{x:g}" y="{bottom + 15:g}" text-anchor="{anchor}">{text(words)}</text>'
        )
    return "".join(lines)


def _label(y: float, words: str, *, small: bool = False) -> str:
    size = ' font-size="9"' if small else ""
    cut = words if len(words) <= LABEL_CHARS else words[: LABEL_CHARS - 1] + "…"
    return f'<text class="strong" x="{LEFT - 8}" y="{y:g}" text-anchor="end"{size}>{text(cut)}</text>'


def _restart_marks(scale: TimeScale, restarts: Sequence[int], top: float, bottom: float) -> str:
    if not restarts:
        return ""
    faint = 0.25 if len(restarts) > DENSE_COUNT else 0.6
    top = bottom - 6 if len(restarts) > DENSE_COUNT else top
    path = "".join(f"M{x:g} {top:g}V{bottom:g}" for x in dict.fromkeys(scale.x(at) for at in restarts))
    return f'<path class="mark" fill="none" opacity="{faint}" d="{path}"><title>restarts</title></path>'


def restarts_words(count: int) -> str:
    """What marks the restarts."""
    if count > DENSE_COUNT:
        return f" The marks at the bottom are {count} restarts."
    if count == 1:
        return " The broken line is a restart."
    return f" The broken lines are {count} restarts." if count else ""


# ---- attempts and jobs ----


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt on the run's clock."""

    told: AttemptStatus
    began_ms: int
    ended_ms: int


def attempts_chart(scale: TimeScale, attempts: Sequence[AttemptSpan], jobs: Sequence[JobSpan], job_word: str) -> str:
    """Bars of jobs above bars of attempts."""
    height, top = 26, 6
    inner = _label(top + 17, job_word + "s")
    for one in jobs:
        inner += _bar(scale, one.began_ms, one.ended_ms, top, key_of(TimeUse.LOADING), one.job, f"{job_word} {one.job}")
    row = top + height + 8
    inner += _label(row + 17, "attempts")
    for k, span in enumerate(attempts):
        use = (TimeUse.START_UP, TimeUse.PREFLIGHT)[k % 2]
        lasted = span_words((span.ended_ms - span.began_ms) / 1000)
        words = f"attempt {span.told.number}: {span.told.outcome} after {lasted}"
        inner += _bar(scale, span.began_ms, span.ended_ms, row, key_of(use), str(span.told.number), words)
        if span.told.outcome not in _WELL:
            wide = min(3.0, (scale.x(span.ended_ms) - scale.x(span.began_ms)) / 3)
            x = scale.x(span.ended_ms) - wide
            inner += f'<rect class="{key_of(TimeUse.LOST)}" x="{x:.1f}" y="{row:g}" width="{wide:.1f}" height="26"/>'
    bottom = row + height + 6
    inner = _time_axis(scale, top - 4, bottom) + inner
    inner += _restart_marks(scale, [span.began_ms for span in attempts[1:]], top - 4, bottom)
    desc = f"{counted(len(attempts), 'attempt')} in {counted(len(jobs), job_word)}; the table of attempts has each."
    return _svg("attempts", bottom + 22, "Attempts and jobs over time", desc, inner)


def _bar(scale: TimeScale, began_ms: int, ended_ms: int, y: float, key: str, label: str, title: str) -> str:
    x = scale.x(began_ms)
    wide = max(1.0, scale.x(ended_ms) - x)
    told = ""
    if wide > 7 * len(label) + 6:
        told = f'<text class="on" x="{x + wide / 2:g}" y="{y + 17:g}" text-anchor="middle">{text(label)}</text>'
    shape = f'<rect class="{key}" x="{x:g}" y="{y:g}" width="{wide:.1f}" height="26" rx="2"/>'
    return f"<g>{shape}<title>{text(title)}</title>{told}</g>"


# ---- goodput ----


def goodput_chart(
    scale: TimeScale, edges: Sequence[int], uses: Sequence[Mapping[TimeUse, int]], restarts: Sequence[int]
) -> str:
    """What each piece of the time was spent on, as a band."""
    top, high = 8, 190
    paths: dict[TimeUse, list[str]] = {}
    for k, times in enumerate(uses):
        whole, y = edges[k + 1] - edges[k], float(top + high)
        x, wide = scale.x(edges[k]), scale.x(edges[k + 1]) - scale.x(edges[k])
        for use in TimeUse:
            if tall := times.get(use, 0) / max(1, whole) * high:
                y -= tall
                paths.setdefault(use, []).append(f"M{x:g} {y:.1f}h{wide:.1f}v{tall:.1f}h-{wide:.1f}z")
    inner = f'<rect class="free" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{high}"/>'
    for share in (0, 25, 50, 75, 100):
        y = top + high * (1 - share / 100)
        inner += f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{share} %</text>'
    for use, drawn in paths.items():
        inner += f'<path class="{key_of(use)}" d="{"".join(drawn)}"><title>{text(use.value)}</title></path>'
    inner = _time_axis(scale, top, top + high) + inner + _restart_marks(scale, restarts, top, top + high)
    whole = sum(sum(times.values()) for times in uses)
    useful = sum(times.get(TimeUse.USEFUL, 0) for times in uses)
    good = f"{useful / whole * 100:.1f} %" if whole else "none"
    desc = (
        f"A band of shares for each {_piece_words(edges)}; {good} of all the time was useful. The table has the sums."
    )
    return _svg("goodput", top + high + 22, "What the time was spent on", desc, inner)


def _piece_words(edges: Sequence[int]) -> str:
    return span_words((edges[1] - edges[0]) / 1000) if edges[1] - edges[0] >= 1000 else "piece of the time"


# ---- curves ----


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value of an attempt."""

    at_ms: int
    attempt: int
    value: float


def curve_chart(
    scale: TimeScale, name: str, title: str, unit: str, points: Sequence[CurvePoint], restarts: Sequence[int]
) -> str:
    """A line for each attempt."""
    top, high = 10, 130
    low, most = _bounds([one.value for one in points])

    def y(value: float) -> float:
        return round(top + high * (1 - (min(most, max(low, value)) - low) / (most - low)), 1)

    inner = ""
    for k in range(5):
        value = low + (most - low) * k / 4
        inner += f'<path class="grid" d="M{LEFT} {y(value):g}H{WIDTH - RIGHT}"/>'
        inner += (
            f'<text x="{LEFT - 8}" y="{y(value) + 4:g}" text-anchor="end">{text(number_words(value, 3))}{unit}</text>'
        )
    inner = _time_axis(scale, top, top + high) + inner + _restart_marks(scale, restarts, top, top + high)
    dots = len(points) <= 80
    for _, same in groupby(_thinned(points), key=lambda one: one.attempt):
        places = [(scale.x(one.at_ms), y(one.value)) for one in same]
        inner += f'<polyline class="curve" points="{" ".join(f"{px:g},{py:g}" for px, py in places)}"/>'
        if dots or len(places) == 1:
            inner += "".join(f'<circle class="dot" cx="{px:g}" cy="{py:g}" r="2.4"/>' for px, py in places)
    values = [one.value for one in points]
    desc = (
        f"{counted(len(points), 'value')} from {number_words(min(values))}{unit} to {number_words(max(values))}{unit}, "
        f"the last {number_words(values[-1])}{unit}.{restarts_words(len(restarts))}"
    )
    return _svg(name, top + high + 22, title, desc, inner)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Without the extreme hundredth at the top: one slow step must not make all others a flat line."""
    ordered = sorted(values)
    low, most = ordered[0], ordered[-1]
    if len(ordered) >= 50 and ordered[len(ordered) * 99 // 100] * 4 < most and low >= 0:
        most = ordered[len(ordered) * 99 // 100] * 1.5
    if 0 <= low < most / 2:
        low = 0.0
    if most - low <= 0.02 * max(abs(low), abs(most)):  # all alike: a flat line in the middle
        wide = 0.1 * max(abs(low), abs(most)) or 1.0
        low, most = low - wide, most + wide
    return low, most


def _thinned(points: Sequence[CurvePoint]) -> Iterator[CurvePoint]:
    """Some hundreds, or four of each attempt: of so many in a row the first, the lowest, the highest and the last."""
    size = math.ceil(4 * len(points) / POINTS_MAX)
    if size <= 4:
        yield from points
        return
    for _, run in groupby(points, key=lambda one: one.attempt):
        same = list(run)
        for k in range(0, len(same), size):
            part = same[k : k + size]
            ends = {0, part.index(min(part, key=_value)), part.index(max(part, key=_value)), len(part) - 1}
            yield from (part[j] for j in sorted(ends))


def _value(one: CurvePoint) -> float:
    return one.value


# ---- nodes ----


def heat_map(scale: TimeScale, edges: Sequence[int], rows: Sequence[NodeRow], rest: NodeRow | None) -> str:
    """A row for each set of nodes that were alike, a cell for each piece of the time."""
    tall, top = (15, 4) if len(rows) < 40 else (11, 4)
    inner, y = "", float(top)
    for row in [*rows, *([rest] if rest is not None else [])]:
        words = nodes_words(row.nodes)
        count = "" if len(row.nodes) == 1 else f" ({counted(len(row.nodes), 'node')})"
        name = words if len(words) <= LABEL_CHARS else counted(len(row.nodes), "node")
        name = name if row is not rest else counted(len(row.nodes), "other node")
        paths: dict[TimeUse, str] = {}
        k = 0
        for use, same in groupby(row.cells):
            x, size = scale.x(edges[k]), len(list(same))
            k += size
            if use is not None:
                wide = scale.x(edges[k]) - x
                paths[use] = paths.get(use, "") + f"M{x:g} {y:g}h{wide:.1f}v{tall - 2}h-{wide:.1f}z"
        drawn = "".join(f'<path class="{key_of(use)}" d="{path}"/>' for use, path in paths.items())
        label = _label(y + tall - 4, name, small=tall < 15)
        inner += f"<g><title>{text(_cut(words, 300) + count)}</title>{label}{drawn}</g>"
        y += tall
    shown = sum(len(row.nodes) for row in rows) + (len(rest.nodes) if rest else 0)
    bad = [row for row in rows if row.unusable_ms]
    desc = f"{counted(shown, 'node')} in {counted(len(rows) + (rest is not None), 'row')}; nodes in one row were alike."
    desc += f" {sum(len(row.nodes) for row in bad)} of them were unusable for a time; the table below names them."
    return _svg("nodes", y + 22, "Nodes over time", desc, _time_axis(scale, top, y) + inner)


def nodes_words(nodes: Iterable[str]) -> str:
    """Nodes as a nodeset; names that make none, with commas."""
    names = tuple(nodes)
    try:
        return fold(names)
    except NodesetError:
        return ", ".join(names)


def _cut(words: str, chars: int) -> str:
    return words if len(words) <= chars else words[: chars - 1] + "…"
