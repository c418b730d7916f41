"""What came of a drill, from the run's journal alone, and whether that is within the SLA.

Nothing here touches the world, and no log text is read: the same functions score real runs and simulated ones. A
conclusion is what the core decided: the outcome of the attempt that was struck, else what was seen without a restart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gangrun.core.events import ProgressStalled, StacksTaken
from gangrun.core.evidence import AlertKind, Hang
from gangrun.core.model import Cause, Phase, RunState
from gangrun.core.nodeset import natural_sort
from gangrun.core.recovery import blame_hang
from gangrun.launch.chaos.kinds import (
    BAD_LOSS,
    CANCELLED,
    DRAINED,
    KINDS,
    NEW_SUPERVISOR,
    NODE_FOUND,
    NOTHING,
    NOTICED,
    OTHER_ALERT,
    PASSED_OVER,
    SLOW_RANK,
    STORAGE_STALLED,
    SUSPECTED,
    DrillKind,
)
from gangrun.launch.chaos.plan import Drill, Sla, noticed_limit_s
from gangrun.runs.failures import exits_of, first_of
from gangrun.runs.recoveries import recoveries_of
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import WallTimes
from gangrun.wire.kinds import event_of
from gangrun.wire.record import Record, RecordError

_CAUSES = frozenset(cause.value for cause in Cause)
# What a record concludes if no attempt failed, the most telling first.
_QUIET = (
    PASSED_OVER, CANCELLED, DRAINED, NOTICED, STORAGE_STALLED, NEW_SUPERVISOR, BAD_LOSS, SLOW_RANK, NODE_FOUND,
    SUSPECTED, OTHER_ALERT,
)  # fmt: skip
_GOES_BACK = frozenset(
    {Cause.NUMERICAL.value, Cause.DATA.value, Cause.POISONED.value}
)  # newer checkpoints are left out
_LOUD = frozenset({"RankExited", "NodeLost", "ProgressStalled", "AgentRejoined", "NodeAbsent"})


@dataclass(frozen=True, slots=True)
class Struck:
    """What was done to whom, and when by the wall clock."""

    wall: float
    attempt: int
    node: str = ""
    rank: int = -1
    words: str = ""  # what was done, for people


@dataclass(frozen=True, slots=True)
class DrillConclusion:
    """What the run made of it, as of now. Times are of the wall clock; None: not yet, or never."""

    cause: str = NOTHING
    nodes: tuple[str, ...] = ()
    sentence: str = ""
    noticed: float | None = None
    recovered: float | None = None
    steps_lost_count: int | None = None
    attempts_count: int = 0  # that began since


@dataclass(slots=True)
class _Named:
    """Nodes that the journal names, by what names them."""

    excluded: dict[str, None] = field(default_factory=dict)
    found: dict[str, None] = field(default_factory=dict)
    silent: dict[str, None] = field(default_factory=dict)
    suspects: dict[str, None] = field(default_factory=dict)
    remarked: dict[str, None] = field(default_factory=dict)


def concluded(records: Sequence[Record], state: RunState, struck: Struck) -> DrillConclusion:
    """What the journal says by now; ``records`` reach back to the start of the attempt that was struck."""
    since = [record for record in records if record.wall >= struck.wall and record.outcome == "applied"]
    signs = [(record, found) for record in since if (found := _sign(record)) is not None]
    attempt = next((one for one in state.attempts if one.number == struck.attempt), None)
    cause = attempt.outcome if attempt is not None and attempt.ended is not None else NOTHING
    sentence = attempt.reason if attempt is not None and attempt.ended is not None else ""
    seen = {found: record.reason for record, found in reversed(signs) if found}
    beside = next((one for one in (PASSED_OVER, STORAGE_STALLED) if one in seen and cause not in _GOES_BACK), "")
    if beside:  # it says more than the death of the rank that showed it
        cause, sentence = beside, seen[beside]
    elif state.phase is Phase.CANCELLED:
        cause, sentence = CANCELLED, state.reason
    elif cause not in _CAUSES:
        cause = next((one for one in _QUIET if one in seen), NOTHING)
        sentence = seen.get(cause, "")
    walls = WallTimes.of(records)
    recovered, lost = _recovery(records, struck, walls)
    if recovered is None and cause not in _CAUSES and (quiet := _quietly_back(since, cause)) is not None:
        recovered, lost = quiet, 0
    began = sum(act.kind == "StartGang" for record in since for act in record.actions)
    noticed = min((record.wall for record, _ in signs), default=None)
    nodes = _nodes(records, since, struck.attempt, cause)
    return DrillConclusion(cause, nodes, sentence, noticed, recovered, lost, began)


def _sign(record: Record) -> str | None:
    """What this record tells of something that is wrong; "" if that is concluded later, None if it tells nothing."""
    match record.kind, record.event:
        case "RankExited", {"exit": {"by_us": True}}:
            return None
        case "ResumeChosen", {"passed_over": [_, *_]}:
            return PASSED_OVER
        case "AlertSeen", {"alert": {"kind": str(kind)}, **rest} if not rest.get("is_over"):
            return SLOW_RANK if kind == AlertKind.SLOW_RANK.value else OTHER_ALERT
        case "CancelRequested", _:
            return CANCELLED
        case "DrainRequested", _:
            return DRAINED
        case "Notice", _:
            return NOTICED
        case "StoreStalled", _:
            return STORAGE_STALLED
        case "TermTaken", _:
            return NEW_SUPERVISOR
        case "AnomalySeen", _:
            return BAD_LOSS
        case "FindingRaised", _:
            return NODE_FOUND
        case "NodeSilent", _:
            return SUSPECTED
        case _:
            return "" if record.kind in _LOUD else None


def _recovery(records: Sequence[Record], struck: Struck, walls: WallTimes) -> tuple[float | None, int | None]:
    """When the run stepped again after that attempt failed, and the steps that it trains again."""
    for one in recoveries_of(records):
        if one.attempt == struck.attempt and one.ended_ms is not None and one.next_attempt is not None:
            return walls.wall(one.ended_ms / 1000), one.lost_steps_count
    return None, None


def _quietly_back(since: Sequence[Record], cause: str) -> float | None:
    """When what was concluded without a restart was over, if the journal tells that."""
    over = {NEW_SUPERVISOR: "TermTaken", STORAGE_STALLED: "StoreBack", CANCELLED: "CancelRequested"}.get(cause)
    return next((record.wall for record in since if record.kind == over), None)


def _nodes(records: Sequence[Record], since: Iterable[Record], attempt: int, cause: str) -> tuple[str, ...]:
    """The nodes that the run names as the place of the failure, by the most trusted of what names any."""
    named = _Named()
    for record in since:
        _name(named, record)
    if cause == Cause.HANG.value:
        found = dict.fromkeys(_hung_nodes(records, attempt))
        named.found = found or named.found
    first = first_of(exits_of(records).get(attempt, ()))
    fell = {first.node: None} if first is not None and not first.by_us and cause in _CAUSES else {}
    for nodes in (named.excluded, named.found, named.silent, fell, named.suspects, named.remarked):
        if nodes:
            return tuple(natural_sort(nodes))
    return ()


def _name(named: _Named, record: Record) -> None:
    for name, value in _entries(record.patch, "excluded"):
        if value is not None:
            named.excluded[name] = None
    for name, value in _entries(record.patch, "suspicion"):
        if value is not None:
            named.suspects[name] = None
    match record.kind, record.event:
        case "FindingRaised", {"finding": {"node": str(node)}}:
            named.found[node] = None
        case (("NodeSilent" | "NodeLost" | "AgentRejoined"), {"node": str(node)}):
            named.silent[node] = None
        case "AlertSeen", {"alert": {"node": str(node), "kind": "slow rank"}} if node:
            named.remarked[node] = None
        case (("AnomalySeen" | "DrainRequested"), {"node": str(node)}):
            named.remarked[node] = None
        case _:
            pass


def _entries(patch: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    found = patch.get(name)
    if isinstance(found, dict):
        yield from found.items()


def _hung_nodes(records: Iterable[Record], attempt: int) -> Iterator[str]:
    """Where the ranks are that the stall of this attempt names."""
    hang: Hang | None = None
    for record in records:
        if record.kind not in ("ProgressStalled", "StacksTaken") or record.event.get("attempt") != attempt:
            continue
        with contextlib.suppress(RecordError):
            match event_of(record.kind, record.event):
                case ProgressStalled() as seen:
                    hang = Hang(seen.stalled_s, seen.limit_s, seen.observations)
                case StacksTaken() as seen if hang is not None:
                    hang = Hang(hang.stalled_s, hang.limit_s, hang.observations, seen.stacks)
                case _:
                    pass
    if hang is not None:
        yield from (one.node for one in blame_hang.differing(hang))


# ---- against the SLA -------------------------------------------------------------------------------------------------


class SlaPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the SLA: its limit, what was measured, and whether it holds. None: nothing to measure."""

    name: str
    limit: str
    measured: str
    holds: bool | None


class DrillScore(msgspec.Struct, frozen=True, kw_only=True):
    """One drill: what was done, what the run concluded, and each point of its SLA. Times are seconds."""

    number: int
    kind: str
    run: str
    node: str
    rank: int | None
    done: str
    expected: tuple[str, ...]
    concluded: str
    nodes: tuple[str, ...]
    sentence: str
    noticed_s: float | None
    recovery_s: float | None
    steps_lost: int | None
    orphans: int | None
    leaked_allocations: int | None
    points: tuple[SlaPoint, ...]
    holds: bool


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What ``gangrun chaos --json`` prints."""

    schema: int = SCHEMA
    seed: int
    holds: bool
    drills: tuple[DrillScore, ...]


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What there is of a drilled run that should not be; None: it cannot be counted here."""

    orphans_count: int | None = None
    allocations_count: int | None = None


def scored(number: int, run: str, drill: Drill, struck: Struck, found: DrillConclusion, left: LeftBehind) -> DrillScore:
    """The drill against its SLA."""
    points = tuple(_points(drill.kind, drill.sla, struck, found, left))
    return DrillScore(
        number=number, kind=drill.kind.value, run=run, node=struck.node, rank=struck.rank if struck.rank >= 0 else None,
        done=struck.words, expected=tuple(sorted(KINDS[drill.kind].conclusions)), concluded=found.cause,
        nodes=found.nodes, sentence=found.sentence, noticed_s=_since(struck, found.noticed),
        recovery_s=_since(struck, found.recovered), steps_lost=found.steps_lost_count, orphans=left.orphans_count,
        leaked_allocations=left.allocations_count, points=points, holds=all(one.holds is not False for one in points),
    )  # fmt: skip


def not_done(number: int, run: str, drill: Drill, why: str) -> DrillScore:
    """A drill that could not be done after others were: that is a miss, and says why."""
    point = SlaPoint(name="done", limit="done", measured=why, holds=False)
    return DrillScore(
        number=number, kind=drill.kind.value, run=run, node=drill.node, rank=drill.rank if drill.rank >= 0 else None,
        done="", expected=tuple(sorted(KINDS[drill.kind].conclusions)), concluded=NOTHING, nodes=(), sentence="",
        noticed_s=None, recovery_s=None, steps_lost=None, orphans=None, leaked_allocations=None, points=(point,),
        holds=False,
    )  # fmt: skip


def _since(struck: Struck, wall: float | None) -> float | None:
    return None if wall is None else round(max(0.0, wall - struck.wall), 3)


def _points(kind: DrillKind, sla: Sla, struck: Struck, found: DrillConclusion, left: LeftBehind) -> Iterator[SlaPoint]:
    row = KINDS[kind]
    wants_notice = NOTHING not in row.conclusions
    limit_s, noticed_s = noticed_limit_s(sla, kind), _since(struck, found.noticed)
    if wants_notice:
        yield _span("noticed", limit_s, noticed_s)
    if sla.right_cause:
        is_right = found.cause in row.conclusions and row.restarts >= (found.attempts_count > 0)
        again = "" if row.restarts or not found.attempts_count else ", and a restart"
        wanted = " or ".join(sorted(row.conclusions))
        yield SlaPoint(name="right cause", limit=wanted, measured=f"{found.cause}{again}", holds=is_right)
    if sla.right_node and row.names_node:
        told = ", ".join(found.nodes) or "none"
        yield SlaPoint(name="right node", limit=struck.node, measured=told, holds=found.nodes == (struck.node,))
    if sla.steps_lost_count is not None and row.restarts:
        lost = found.steps_lost_count
        measured = "not known" if lost is None else str(lost)
        tells_none = lost is None and found.recovered is not None  # a script that reports no steps
        holds = lost is not None and lost <= sla.steps_lost_count
        limit = f"<= {sla.steps_lost_count}"
        yield SlaPoint(name="steps lost", limit=limit, measured=measured, holds=None if tells_none else holds)
    if row.restarts or found.recovered is not None:
        yield _span("recovery", sla.recovery_s, _since(struck, found.recovered))
    for name, most, count in (
        ("orphans", sla.orphans_count, left.orphans_count),
        ("leaked allocations", sla.leaked_allocations_count, left.allocations_count),
    ):
        holds_count = None if count is None else count <= most
        told = "not counted" if count is None else str(count)
        yield SlaPoint(name=name, limit=f"<= {most}", measured=told, holds=holds_count)


def _span(name: str, limit_s: float, took_s: float | None) -> SlaPoint:
    told = "never" if took_s is None else f"{took_s:.1f} s"
    return SlaPoint(name=name, limit=f"<= {limit_s:g} s", measured=told, holds=took_s is not None and took_s <= limit_s)


def is_over(drill: Drill, found: DrillConclusion) -> bool:
    """Is there no more to wait for?"""
    row = KINDS[drill.kind]
    if row.restarts:  # a new supervisor may come before the restart
        return found.recovered is not None and found.attempts_count > 0
    return found.cause in row.conclusions and found.noticed is not None
