"""Who failed first and how, from the journal's evidence.

The first failing rank comes first; then every distinct traceback once, with the ranks that had it. Victims, who only
noticed that a peer was gone, come last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_ranks
from gangrun.core.events import ProgressMarked, ProgressStalled, RankExited, StacksTaken
from gangrun.core.evidence import Hang, RankExit, RankStack
from gangrun.core.model import Phase
from gangrun.core.recovery import blame_hang
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.text import signal_name
from gangrun.runs.rank_output import Wanted
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import SCHEMA, RankGpuStatus, RankStatus
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError


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


OUR_SIGNALS = frozenset({9, 15})  # with which ranks are stopped


def is_stopped(died: RankExit) -> bool:
    """Did it end by a signal of gangrun's, which says nothing of the rank?"""
    return died.by_us and died.signal in OUR_SIGNALS


def signal_words(died: RankExit) -> str:
    """Of a rank that ended by a signal."""
    name = signal_name(died.signal or 0)
    return f"stopped by gangrun with {name}" if is_stopped(died) else f"killed by {name}"


def _last_steps(records: Iterable[Record], attempt: int) -> dict[int, int]:
    """The step with which each rank of an attempt finished: the last heartbeat may have known an earlier one."""
    finished = [record.event or {} for record in records if record.kind == "RankFinished"]
    return {event["rank"]: event.get("step", -1) for event in finished if event.get("attempt") == attempt}


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
    gpus = noted.gpus if noted is not None and nodes else {}
    exits = {one.rank: one for one in exits_of(run.records).get(number, ())}
    last_steps = _last_steps(run.records, number)
    is_live = state.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
    found = []
    for seat in state.attempt.placement.seats:
        for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count):
            pid, word, step = known.get(rank, (0, "", -1))
            if rank in exits:
                died = exits[rank]
                how = f"exit code {died.code}" if died.signal is None else signal_words(died)
                word, step = f"ended ({how})", max(step, died.step)
            elif rank in state.attempt.finished:
                word, step = "ended (exit code 0)", max(step, last_steps.get(rank, -1))
            else:
                word = (RANK_STATES.get(word, word) or "not known yet") if is_live else "ended"
            found.append(
                RankStatus(
                    rank=rank,
                    node=seat.slot.node,
                    pid=pid or None,
                    state=word,
                    step=step if step >= 0 else None,
                    gpu=_gpu(gpus.get(rank)) if is_live else None,
                )
            )
    return tuple(sorted(found, key=lambda one: one.rank))


def _gpu(row: Sequence[int] | None) -> RankGpuStatus | None:
    if not row:
        return None
    try:
        use = GpuUse(*row)
    except TypeError:
        return None  # another version's
    known = {name: value if value >= 0 else None for name, value in use._asdict().items()}
    for name in ("memory_used", "memory"):
        mib = known.pop(f"{name}_mib")
        known[f"{name}_bytes"] = None if mib is None else mib << 20
    return RankGpuStatus(**{"clock_reasons": known.pop("reasons"), **known})  # type: ignore[arg-type]


def first_of(exits: Sequence[RankExit]) -> RankExit | None:
    """The one that fell first of itself; if all are victims, the one that was seen first."""
    ordered = sorted(exits, key=lambda one: (one.fell_at, one.rank))
    of_itself = [one for one in ordered if not one.by_us and not (one.error and one.error.collective)]
    return next(iter(of_itself or ordered), None)


def groups_of(exits: Sequence[RankExit], node: str | None = None) -> list[SameEnd]:
    """Distinct ends on ``node`` (None: on all), the first failing rank's first, victims' last."""
    exits = [one for one in exits if node in (None, one.node)]
    first = first_of(exits)
    by_kind: dict[tuple[object, ...], list[RankExit]] = {}
    for one in sorted(exits, key=lambda one: (one is not first, one.fell_at)):
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


class HungRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that a hang names: where it stands, and the file with its whole stack."""

    rank: int
    node: str
    frame: str
    stack: str


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """What ``logs --errors --json`` prints of one attempt."""

    schema: int = SCHEMA
    run: str
    attempts_with_failures: tuple[int, ...]
    attempt: int
    verdict: str
    hung: tuple[HungRank, ...]
    failures: tuple[RankFailure, ...]


def failures_of(run: str, failure: AttemptFailure) -> Failures:
    """The failure of one attempt as JSON."""
    hung = tuple(HungRank(rank=one.rank, node=one.node, frame=one.frame, stack=one.path) for one in failure.hung)
    return Failures(
        run=run, attempts_with_failures=failure.attempts, attempt=failure.number, verdict=failure.verdict, hung=hung,
        failures=tuple(_failure(group) for group in failure.groups),
    )  # fmt: skip


def _failure(group: SameEnd) -> RankFailure:
    died, error = group.exit, group.exit.error
    return RankFailure(
        ranks=group.ranks, first_rank=died.rank, node=died.node, exit_code=died.code, signal=died.signal,
        oom_kill=died.oom_kill, stopped_by_us=died.by_us, victim=group.victim,
        error=None if error is None else RankError(kind=error.kind, message=error.message, traceback=error.traceback),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """What is known of how one attempt failed: its verdict, who hung, and how its wanted ranks ended."""

    attempts: tuple[int, ...]  # that had failures
    number: int
    verdict: str  # the sentence that was concluded, "" while nothing is
    hung: tuple[RankStack, ...]  # the ranks that a stall names; without a stack their frame is empty
    groups: tuple[SameEnd, ...]


def failure_in(reading: RunSnapshot, attempt: int | None, wanted: Wanted) -> AttemptFailure:
    """The failure of ``attempt``, or of the newest attempt that had one."""
    by_attempt, hangs = exits_of(reading.records), _hangs_of(reading.records)
    failed = sorted({*by_attempt, *hangs})
    number = attempt if attempt is not None else max(failed, default=-1)
    exits = by_attempt.get(number, [])
    groups = groups_of([one for one in exits if wanted.ranks is None or one.rank in wanted.ranks], wanted.node)
    first = first_of(exits)
    fell = first is not None and not first.by_us
    hung = _named(hangs[number]) if number in hangs and not fell else ()
    closed = reading.state.attempts if reading.state is not None else ()
    verdict = next((one.reason for one in closed if one.number == number and one.ended is not None), "")
    return AttemptFailure(tuple(failed), number, verdict, hung, tuple(groups))


def _hangs_of(records: Iterable[Record]) -> dict[int, Hang]:
    """The stall of each attempt that ended in one."""
    found: dict[int, Hang] = {}
    for record in records:
        if record.outcome != "applied" or record.kind not in {"ProgressStalled", "StacksTaken", "ProgressMarked"}:
            continue
        with contextlib.suppress(RecordError):
            match event_of(record.kind, record.event):
                case ProgressStalled() as seen:
                    found[seen.attempt] = Hang(seen.stalled_s, seen.limit_s, seen.observations)
                case StacksTaken() as seen if seen.attempt in found:
                    found[seen.attempt] = replace(found[seen.attempt], stacks=seen.stacks)
                case ProgressMarked() as seen:
                    found.pop(seen.attempt, None)
                case _:
                    pass
    return found


def _named(hang: Hang) -> tuple[RankStack, ...]:
    """The stacks of the ranks that differ from the others, as blame sees it; of all ranks if none differs."""
    named = blame_hang.differing(hang)
    stacks = {stack.rank: stack for stack in hang.stacks}
    if not named:
        return hang.stacks
    return tuple(stacks.get(one.rank, RankStack(one.rank, one.node, "", "")) for one in named)
