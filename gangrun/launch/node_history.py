"""What a user's runs know of broken nodes: told by supervisors, heeded by submit. Shown by ``nodes``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import click
import msgspec

from gangrun.adapters.fs.counter_history import CounterHistory
from gangrun.adapters.fs.known_bad import KnownBadFile
from gangrun.config import environment
from gangrun.core.evidence import Reported
from gangrun.core.model import RunState
from gangrun.core.nodes import history, quarantine
from gangrun.core.nodes.history import nodes_to_avoid
from gangrun.core.nodeset import NodesetError, fold, natural_sort, unfold
from gangrun.core.text import one_line
from gangrun.display.text import clean, wrapped
from gangrun.errors import UserError
from gangrun.planning.trends import KINDS, CounterTrend, worsening
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import wall_now

READ_WITHIN_S = 2.0
WORSE_SHOWN_COUNT = 10
HOUR_S = 3600.0


class OtherRuns:
    """What one run hears of other runs and lets them know; the file is only touched in threads, as a home directory may
    stand still.
    """

    def __init__(self, run: str, wall: Callable[[], float], say: Callable[[str], None]) -> None:
        self._run, self._wall, self._say = run, wall, say
        self._file = KnownBadFile(environment.state_home())
        self._reports: tuple[Reported, ...] = ()
        self._read = threading.Event()
        threading.Thread(target=self._look, name="known-reports", daemon=True).start()

    def _look(self) -> None:
        self._reports = self._file.reports()
        self._read.set()

    def added(self, state: RunState, now: float) -> RunState:
        """The state with what drivers reported under other runs."""
        if not self._read.wait(READ_WITHIN_S):
            self._say(f"what your other runs know about GPUs could not be read within {READ_WITHIN_S:g} s")
        return (
            replace(
                state, health=replace(state.health, reports=history.joined(state.health.reports, self._reports, now))
            )
            if self._reports
            else state
        )

    def note(self, before: RunState, after: RunState) -> None:
        """``supervisor.facts.Facts.note_nodes``."""
        if before.health.excluded is after.health.excluded and before.health.reports is after.health.reports:
            return
        broken = quarantine.newly_broken(before.health.excluded, after.health.excluded)
        back = quarantine.taken_back(before.health.excluded, after.health.excluded)
        new = history.news(before.health.reports, after.health.reports)
        if not (broken or back or new):
            return

        def write() -> None:
            try:
                self._file.note(
                    {node: one_line(reason) for node, reason in broken.items()}, back, new, self._run, self._wall()
                )
            except OSError as error:
                self._say(f"broken nodes cannot be recorded for your other runs: {error}")

        threading.Thread(target=write, name="known-bad", daemon=True).start()


def reminder(well: Iterable[str]) -> str:
    """Which of these nodes, on which nothing failed now, the user's runs do without all the same; or ""."""
    seen = frozenset(well)
    out = [one for one in nodes_to_avoid(KnownBadFile(environment.state_home()).read(), wall_now()) if one.node in seen]
    if not out:
        return ""
    names = clean(fold(one.node for one in out))
    why = f"{clean(out[0].node)}: {clean(out[0].reason)}"
    return f"your runs still exclude {names} ({why}); after a repair, run gangrun nodes clear {names}"


def heeded(exclude: str, nodelist: str) -> str:
    """``--exclude`` with the nodes that earlier runs found broken, but for those that the user asks for by name."""
    known = nodes_to_avoid(KnownBadFile(environment.state_home()).read(), wall_now())
    try:
        named = {*unfold(exclude), *unfold(nodelist)}
    except NodesetError:
        return exclude  # the scheduler says what is wrong with it
    out = [one for one in known if one.node not in named]
    if not out:
        return exclude
    names = fold(one.node for one in out)
    why = f"{out[0].node}: {clean(out[0].reason)}"
    words = f"excluding {clean(names)}, which earlier runs found broken ({why}); gangrun nodes lists and clears them"
    click.echo(f"gangrun: {words}", err=True)
    return ",".join(filter(None, (exclude, names)))


class KnownNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose hardware failed under a run of this user; ``left_out``: new runs do without it until ``until``."""

    node: str
    reason: str
    run: str
    at: float
    times: int
    until: float
    left_out: bool


class ReportedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose driver reported a fault in the last day."""

    node: str
    gpu: str
    xid: int
    at: float
    times: int


class WorseCounter(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of a device that got worse over the last week; ``sentence`` tells the administrator."""

    node: str
    device: str
    place: str
    counter: str
    rise: int
    since: float
    until: float
    days: int
    last_day_rise: int
    sentence: str


class KnownNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What ``nodes --json`` prints, newest first."""

    schema: int = SCHEMA
    nodes: tuple[KnownNode, ...]
    reports: tuple[ReportedGpu, ...]
    worse: tuple[WorseCounter, ...] = ()


class ClearedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What ``nodes clear --json`` prints."""

    schema: int = SCHEMA
    cleared: tuple[str, ...]


def known_nodes() -> KnownNodes:
    """Broken nodes, and faults that GPUs reported."""
    file, now = KnownBadFile(environment.state_home()), wall_now()
    known = history.remembered_nodes(file.read(), now)
    watched = history.remembered(history.keyed(file.reports()), now)
    out = {one.node for one in nodes_to_avoid(known, now)}
    nodes = [
        KnownNode(
            node=one.node, reason=one.reason, run=one.run, at=one.at, times=one.times, until=one.until,
            left_out=one.node in out,
        )
        for one in sorted(known.values(), key=lambda one: -one.at)
    ]  # fmt: skip
    reports = [
        ReportedGpu(node=one.node, gpu=one.gpu, xid=one.number, at=one.seen[-1][0], times=len(one.seen))
        for one in sorted(watched.values(), key=lambda one: -one.seen[-1][0])
    ]
    return KnownNodes(nodes=tuple(nodes), reports=tuple(reports), worse=tuple(_worse(now)))


def _worse(now: float) -> Iterable[WorseCounter]:
    """Of every node, the most striking first."""
    for node, series in CounterHistory(environment.state_home()).nodes().items():
        for one in worsening(series, now):
            yield WorseCounter(
                node=node, device=one.device, place=one.place, counter=one.name, rise=one.rise, since=one.since,
                until=one.until, days=one.days_count, last_day_rise=one.last_day_rise, sentence=_sentence(node, one),
            )  # fmt: skip


def _sentence(node: str, one: CounterTrend) -> str:
    """What an administrator needs, to be copied whole."""
    kind = KINDS[one.name]
    device = one.place if one.device == one.place else f"{one.place} ({one.device})"
    since, until = (f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}" for at in (one.since, one.until))
    return (
        f"On node {node}, {device} had {one.rise:,} more {kind.words} between {since} and {until}, on {one.days_count} "
        f"days, about {one.last_day_rise:,} of them in the last day; {kind.advice}."
    )


def worse_lines(known: KnownNodes, columns: int) -> list[str]:
    """The same as a paragraph for each device; [] if nothing got worse."""
    if not known.worse:
        return []
    names = clean(fold({one.node for one in known.worse}))
    head = f"getting worse over the last week, and still used: {names}. For the administrator, to copy:"
    lines = wrapped(head, columns, "", "  ")
    for one in known.worse[:WORSE_SHOWN_COUNT]:
        lines += ["", *wrapped(clean(one.sentence), columns, "  ", "  ")]
    left = len(known.worse) - WORSE_SHOWN_COUNT
    return lines + (["", f"  {left} more counters got worse: gangrun nodes --json has all"] if left > 0 else [])


def rows_of(known: KnownNodes) -> list[tuple[str, str, str, str, str]]:
    """The same as a table: node, state, count, last time, reason."""
    now = wall_now()

    def hours(seconds: float) -> str:
        return f"{max(0.0, seconds) / HOUR_S:.0f} h"

    nodes = [
        (
            clean(one.node), f"excluded for {hours(one.until - now)} more" if one.left_out else "used again",
            str(one.times), f"{hours(now - one.at)} ago", clean(one.reason),
        )
        for one in known.nodes
    ]  # fmt: skip
    return nodes + [
        (
            clean(one.node), "used", str(one.times), f"{hours(now - one.at)} ago",
            f"XID {one.xid} on {clean(one.gpu)}: the same fault again within a day counts more",
        )
        for one in known.reports
    ]  # fmt: skip


def clear(words: Sequence[str]) -> list[str]:
    """Forget these nodes, or ``all``; the names of those that were forgotten."""
    file = KnownBadFile(environment.state_home())
    counters = CounterHistory(environment.state_home())
    listed = {*file.read(), *(one.node for one in file.reports()), *(one.node for one in _worse(wall_now()))}
    try:
        named = natural_sort(listed) if list(words) == ["all"] else [name for word in words for name in unfold(word)]
    except ValueError as error:
        raise UserError("usage", f"{clean(' '.join(words))} names no nodes: {error}", "write n3, or n[3-5]") from error
    if strange := [name for name in named if name not in listed]:
        raise UserError("usage", f"{clean(fold(strange))} is not on the list", "gangrun nodes shows the list")
    try:
        file.clear(tuple(named))
        counters.clear(named)
    except OSError as error:
        raise UserError(
            "state", f"cannot write {file.path}: {error.strerror}", "see whether you may write there"
        ) from error
    return named
