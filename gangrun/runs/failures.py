"""Who failed first and how, from the journal's evidence.

The first failing rank comes first; then every distinct traceback once, with the ranks that had it. Victims, who only
noticed that a peer was gone, come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_ranks
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.events import RankExited
from gangrun.core.model import ErrorReport, Phase, RankExit
from gangrun.core.text import signal_name
from gangrun.runs.rank_output import Wanted
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import SCHEMA, RankStatus
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError

REPORT_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SameEnd:
    """Ranks that ended in the same way."""

    ranks: tuple[int, ...]
    exit: RankExit  # of the one that was seen first

    @property
    def victim(self) -> bool:
        """Does it tell only that others were gone first?"""
        return self.exit.by_us or (self.exit.error is not None and self.exit.error.collective)


def exits_of(records: Iterable[Record]) -> dict[int, list[RankExit]]:
    """Ends of ranks by attempt, in the order in which they were seen."""
    found: dict[int, list[RankExit]] = {}
    for record in records:
        if record.kind != "RankExited":
            continue
        try:
            event = event_of(record.kind, record.event)
        except RecordError:
            continue
        if isinstance(event, RankExited):
            known = found.setdefault(event.attempt, [])
            if all(other.rank != event.exit.rank for other in known):
                known.append(event.exit)
    return found


RANK_STATES = {"R": "running", "S": "waiting", "D": "stuck in the kernel", "T": "stopped", "t": "stopped by a tracer",
               "Z": "dead", "X": "dead"}  # fmt: skip


def rank_statuses(run: RunSnapshot) -> tuple[RankStatus, ...]:
    """Every rank of the newest attempt; the snapshot must have all records."""
    state = run.state
    if state is None or state.attempt.placement is None:
        return ()
    number = state.attempt.number
    noted = read_ranks(Disk(), run.paths)
    nodes = noted.nodes if noted is not None and noted.attempt == number else {}
    known = {rank: (pid, word, step) for rows in nodes.values() for rank, pid, word, step in rows}
    exits = {one.rank: one for one in exits_of(run.records).get(number, ())}
    is_live = state.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
    found = []
    for seat in state.attempt.placement.seats:
        for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count):
            pid, word, step = known.get(rank, (0, "", -1))
            if rank in exits:
                died = exits[rank]
                how = f"exit code {died.code}" if died.signal is None else f"killed by {signal_name(died.signal)}"
                word, step = f"ended ({how})", max(step, died.step)
            elif rank in state.attempt.finished:
                word = "ended (exit code 0)"
            else:
                word = (RANK_STATES.get(word, word) or "not known yet") if is_live else "ended"
            found.append(
                RankStatus(
                    rank=rank, node=seat.slot.node, pid=pid or None, state=word, step=step if step >= 0 else None
                )
            )
    return tuple(sorted(found, key=lambda one: one.rank))


def with_reports(paths: RunPaths, attempt: int, exits: Sequence[RankExit], disk: Disk) -> list[RankExit]:
    """The same, with the ranks' own reports where the journal has none."""
    return [one if one.error else replace(one, error=_report(paths, attempt, one.rank, disk)) for one in exits]


def _report(paths: RunPaths, attempt: int, rank: int, disk: Disk) -> ErrorReport | None:
    try:
        found: Any = msgspec.json.decode(disk.read(paths.error(attempt, rank), limit=REPORT_MAX_BYTES))
    except (OSError, msgspec.DecodeError):
        return None
    if not isinstance(found, dict):
        return None
    kind, message, signature, traceback = (
        str(found.get(name, "")) for name in ("type", "message", "signature", "traceback")
    )
    return ErrorReport(kind, message, signature, traceback, bool(found.get("collective")))


def first_of(exits: Sequence[RankExit]) -> RankExit | None:
    """The one that fell first of itself; if all are victims, the one that was seen first."""
    ordered = sorted(exits, key=lambda one: one.at)
    of_itself = [one for one in ordered if not one.by_us and not (one.error and one.error.collective)]
    return next(iter(of_itself or ordered), None)


def groups_of(exits: Sequence[RankExit]) -> list[SameEnd]:
    """Distinct ends, the first failing rank's first, victims' last."""
    first = first_of(exits)
    by_kind: dict[tuple[object, ...], list[RankExit]] = {}
    for one in sorted(exits, key=lambda one: (one is not first, one.at)):
        by_kind.setdefault(_key(one), []).append(one)
    groups = [SameEnd(tuple(sorted(one.rank for one in same)), _told(same)) for same in by_kind.values()]
    return sorted(groups, key=lambda group: (group.exit is not first, group.victim))


def _told(same: Sequence[RankExit]) -> RankExit:
    """The first of them, with the text of the first that has one: of thousands of ranks few keep theirs."""
    texts = (one.error for one in same if one.error is not None and one.error.traceback)
    return replace(same[0], error=next(texts, same[0].error))


def _key(one: RankExit) -> tuple[object, ...]:
    if one.error is None:
        return (one.code, one.signal, one.oom_kill, one.by_us)
    text = one.error.traceback or f"{one.error.kind}: {one.error.message}"
    return (one.error.kind, one.error.signature or text, one.error.collective)


class RankError(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reported before it ended."""

    kind: str = msgspec.field(name="type")
    message: str
    traceback: str


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that ended in the same way, as JSON."""

    ranks: tuple[int, ...]
    first_rank: int
    node: str
    exit_code: int | None
    signal: int | None
    oom_kill: bool
    stopped_by_us: bool
    victim: bool
    error: RankError | None


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """What ``logs --errors --json`` prints of one attempt."""

    schema: int = SCHEMA
    run: str
    attempts_with_failures: tuple[int, ...]
    attempt: int
    failures: tuple[RankFailure, ...]


def failures_of(run: str, attempts: Iterable[int], attempt: int, groups: Sequence[SameEnd]) -> Failures:
    """The failures of one attempt as JSON."""
    failures = tuple(_failure(group) for group in groups)
    return Failures(run=run, attempts_with_failures=tuple(sorted(attempts)), attempt=attempt, failures=failures)


def _failure(group: SameEnd) -> RankFailure:
    died, error = group.exit, group.exit.error
    return RankFailure(
        ranks=group.ranks, first_rank=died.rank, node=died.node, exit_code=died.code, signal=died.signal,
        oom_kill=died.oom_kill, stopped_by_us=died.by_us, victim=group.victim,
        error=None if error is None else RankError(kind=error.kind, message=error.message, traceback=error.traceback),
    )  # fmt: skip


def groups_in(reading: RunSnapshot, attempt: int | None, wanted: Wanted) -> tuple[list[int], int, list[SameEnd]]:
    """(attempts with failures, the attempt that was looked at, how its wanted ranks ended)."""
    by_attempt = exits_of(reading.records)
    number = attempt if attempt is not None else max(by_attempt, default=-1)
    exits = with_reports(reading.paths, number, by_attempt.get(number, []), Disk())
    chosen = [
        one for one in exits if (wanted.ranks is None or one.rank in wanted.ranks) and wanted.node in (None, one.node)
    ]
    groups = [replace(group, exit=_with_text(reading.paths, number, group.exit)) for group in groups_of(chosen)]
    return sorted(by_attempt), number, groups


def _with_text(paths: RunPaths, attempt: int, died: RankExit) -> RankExit:
    """The journal has the texts of the first ranks only; the others' are in their own reports."""
    if died.error is None or died.error.traceback:
        return died
    return replace(died, error=_report(paths, attempt, died.rank, Disk()) or died.error)
