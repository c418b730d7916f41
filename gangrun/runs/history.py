"""How a run went over time, for pictures: its training in samples, and its time and nodes in equal pieces.

Samples are what the journal holds: the first step of an attempt, a mark every half a minute, and what ranks told at
their end. Times are milliseconds of the run clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from gangrun.core.nodeset import natural_sort
from gangrun.planning.accounts import TimeUse
from gangrun.runs.ledger import WITH_RUN, TimeAccount
from gangrun.wire.record import Record

APART_S = 5.0


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """How far an attempt had come."""

    at_ms: int
    attempt: int
    step: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class StepPace:
    """How long a step took on average between two samples of one attempt."""

    at_ms: int  # of the later one
    attempt: int
    step_s: float


@dataclass(slots=True)
class TrainingHistory:
    """Samples of all attempts, oldest first; ``read`` takes records as they come."""

    samples: list[TrainingSample] = field(default_factory=list)

    def read(self, records: Iterable[Record]) -> TrainingHistory:
        """More records, in order."""
        for record in records:
            if record.outcome != "applied":
                continue
            match record.kind, record.event:
                case (("FirstStepSeen" | "ProgressMarked" | "RankFinished"), {"attempt": int(attempt)}):
                    self._add(record, attempt, record.event)
                case "RankExited", {"attempt": int(attempt), "exit": dict(died)}:
                    self._add(record, attempt, died)
                case _:
                    pass
        return self

    def _add(self, record: Record, attempt: int, told: Mapping[str, Any]) -> None:
        step, loss = told.get("step"), told.get("loss")
        if not isinstance(step, int) or step < 0:
            return
        last = self.samples[-1] if self.samples else None
        if last is not None and last.attempt == attempt and step <= last.step:
            return  # thousands of ranks end at one step
        number = float(loss) if isinstance(loss, int | float) else None
        self.samples.append(TrainingSample(round(1000 * record.at), attempt, step, number))

    def paces(self) -> Iterator[StepPace]:
        """Between each two samples of one attempt that are far enough apart: heartbeats tell steps by the second."""
        for one, after in pairwise(self.samples):
            took_s = (after.at_ms - one.at_ms) / 1000
            if one.attempt == after.attempt and after.step > one.step and took_s >= APART_S:
                yield StepPace(after.at_ms, after.attempt, took_s / (after.step - one.step))


# ---- time in equal pieces ----


def edges_ms(account: TimeAccount, count: int) -> tuple[int, ...]:
    """The ends of ``count`` equal pieces; fewer if there are not as many milliseconds."""
    began, whole = account.began_ms, account.until_ms - account.began_ms
    count = max(1, min(count, whole))
    return tuple(began + whole * k // count for k in range(count + 1))


def uses_over_time(account: TimeAccount, edges: Sequence[int]) -> list[dict[TimeUse, int]]:
    """Of each piece, what the run spent its milliseconds on. A piece may be empty: the run had ended by then."""
    found: list[dict[TimeUse, int]] = [{} for _ in edges[1:]]
    for one in account.segments:
        for k in _pieces(one.began_ms, one.ended_ms, edges):
            for use, took in account.uses_of(one, edges[k], edges[k + 1]):
                found[k][use] = found[k].get(use, 0) + took
    return found


def _pieces(began_ms: int, ended_ms: int, edges: Sequence[int]) -> range:
    first = max(0, bisect_right(edges, began_ms) - 1)
    last = max(first, bisect_right(edges, ended_ms - 1) - 1)
    return range(first, min(last, len(edges) - 2) + 1)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Nodes that were alike, and what they did in each piece of the time; None: they were in no job."""

    nodes: tuple[str, ...]
    cells: tuple[TimeUse | None, ...]
    unusable_ms: int  # of one of them, on average


def node_rows(account: TimeAccount, edges: Sequence[int]) -> list[NodeRow]:
    """Every node in one row, by name. A cell holds what took longest, or that the node was unusable, however short."""
    run = [max(uses, key=lambda use: uses[use]) if uses else None for uses in uses_over_time(account, edges)]
    alike: dict[tuple[TimeUse | None, ...], list[tuple[str, int]]] = {}
    for node, stays in account.stays().items():
        cells: list[dict[TimeUse, int]] = [{} for _ in run]
        for began, ended, kind in stays:
            for k in _pieces(began, ended, edges):
                took = min(ended, edges[k + 1]) - max(began, edges[k])
                cells[k][kind] = cells[k].get(kind, 0) + took
        row = tuple(_cell(cell, use) for cell, use in zip(cells, run, strict=True))
        unusable_ms = sum(cell.get(TimeUse.UNUSABLE, 0) for cell in cells)
        alike.setdefault(row, []).append((node, unusable_ms))
    rows = [
        NodeRow(tuple(natural_sort(node for node, _ in same)), row, sum(ms for _, ms in same) // len(same))
        for row, same in alike.items()
    ]
    order = {node: k for k, node in enumerate(natural_sort(row.nodes[0] for row in rows))}
    return sorted(rows, key=lambda row: order[row.nodes[0]])


def _cell(times: Mapping[TimeUse, int], of_run: TimeUse | None) -> TimeUse | None:
    if not times:
        return None
    if TimeUse.UNUSABLE in times:
        return TimeUse.UNUSABLE
    longest = max(times, key=lambda use: times[use])
    return of_run if longest is WITH_RUN else longest


def folded(rows: Sequence[NodeRow], count: int) -> tuple[list[NodeRow], NodeRow | None]:
    """At most ``count`` rows: the largest, and the most broken ones. The rest as one row, by majority."""
    if len(rows) <= count:
        return list(rows), None
    largest = max(rows, key=lambda row: len(row.nodes))
    worst = sorted(rows, key=lambda row: (row is not largest, -row.unusable_ms))[:count]
    kept = {id(row) for row in worst}
    rest = [row for row in rows if id(row) not in kept]
    counts: list[Counter[TimeUse | None]] = [Counter() for _ in rows[0].cells]
    for row in rest:
        for k, use in enumerate(row.cells):
            counts[k][use] += len(row.nodes)
    nodes = tuple(node for row in rest for node in row.nodes)
    cells = tuple(count.most_common(1)[0][0] for count in counts)
    unusable_ms = sum(row.unusable_ms * len(row.nodes) for row in rest) // len(nodes)
    return [row for row in rows if id(row) in kept], NodeRow(nodes, cells, unusable_ms)


@dataclass(frozen=True, slots=True)
class JobSpan:
    """How long one job held nodes without a break."""

    job: str
    began_ms: int
    ended_ms: int


def job_spans(account: TimeAccount) -> list[JobSpan]:
    """In the order in which they held the run; the queue between them is none."""
    found = []
    for job, same in groupby(account.segments, key=lambda one: one.at.job):
        parts = list(same)
        if job:
            found.append(JobSpan(job, parts[0].began_ms, parts[-1].ended_ms))
    return found
