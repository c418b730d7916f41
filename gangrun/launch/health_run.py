"""``gangrun health RUN``: a run's nodes, by what its journal holds and by what they say now.

The journal has what was found at each node and which are excluded; a run that holds nodes in Slurm has them asked too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gangrun.core.events import FindingRaised
from gangrun.core.nodes.quarantine import active
from gangrun.core.nodeset import natural_sort
from gangrun.display.health_fold import Said
from gangrun.errors import UserError
from gangrun.launch.health_nodes import ask
from gangrun.runs.locate import find
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError

if TYPE_CHECKING:
    from gangrun.adapters.slurm.commands import Tools
    from gangrun.cli.health import Here

KEPT_FOR_S = 24 * 3600.0  # an older finding says little of today


def look(token: str, here: Here, tools: Tools, now: float) -> tuple[str, list[Said], str]:
    """The run's name, its nodes, and a word about what could not be asked."""
    reading = read(find(token), timeline=True, slurm=True)
    nodes, note = recorded(reading, now), ""
    held = [job for job in (reading.queue.busy if reading.queue else ()) if job.nodes]
    if not held:
        note = "" if reading.ended else "no node of it could be asked now: this is what its journal holds"
        return reading.spec.run, nodes, "it has ended: this is what its journal holds" if reading.ended else note
    from gangrun.adapters.slurm.step import Where

    job = held[-1]
    try:
        said = {one.node: one for one in ask(Where(job.nodes, job.job), here, tools)}
    except UserError as error:
        return reading.spec.run, nodes, f"{error.message}: this is what its journal holds"
    return reading.spec.run, merged(nodes, said.values()), note


def recorded(reading: RunSnapshot, now: float) -> list[Said]:
    """Every node that the run knows, with what was found there."""
    wrong = dict(_found(reading.records, now - KEPT_FOR_S))
    state = reading.state
    names = {*reading.spec.nodes, *wrong}
    excluded: dict[str, str] = {}
    if state is not None:
        out = active(state.excluded, state.updated_at)
        names |= {*state.nodes, *state.expected, *out}
        excluded = {node: why.reason for node, why in out.items()}
    nodes = []
    for name in natural_sort(names):
        known = state.nodes.get(name) if state is not None else None
        checked = ("ok",) if known is not None and known.checked else ()
        silent = "" if checked or name in wrong or name in excluded else "the journal holds no check of it"
        nodes.append(Said(name, wrong.get(name, ()), checked, silent, excluded.get(name, "")))
    return nodes


def _found(records: Iterable[Record], since: float) -> Iterable[tuple[str, tuple[tuple[str, str, str], ...]]]:
    """Of each node the newest finding of each check."""
    found: dict[str, dict[str, tuple[str, str, str]]] = {}
    for record in records:
        if record.kind != FindingRaised.__name__ or record.wall < since:
            continue
        try:
            event = event_of(record.kind, record.event)
        except RecordError:
            continue
        if isinstance(event, FindingRaised):
            one = event.finding
            found.setdefault(one.node, {})[one.check] = ("fail" if one.fatal else "warn", one.check, one.sentence)
    return ((node, tuple(checks.values())) for node, checks in found.items())


def merged(nodes: list[Said], said: Iterable[Said]) -> list[Said]:
    """What nodes say now beside what was found: a check that speaks now has the word."""
    known = {one.node: one for one in nodes}
    for one in said:
        old = known.get(one.node, Said(one.node))
        if one.silent:
            known[one.node] = replace(old, silent=one.silent)
            continue
        now = {check for _, check, _ in one.wrong}
        earlier = tuple((v, c, f"earlier: {words}") for v, c, words in old.wrong if c not in now)
        known[one.node] = replace(one, wrong=one.wrong + earlier, excluded=old.excluded)
    return [known[name] for name in natural_sort(known)]
