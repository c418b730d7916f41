"""How long each recovery took, part by part, and what it cost: from the journal's own times, nothing else.

A recovery begins with the failure, not with the first record of it, and lasts until the first new step. An attempt that
fails before its first step belongs to the same recovery. Where no rank ever tells a step, it lasts until all ranks run.

Events are read as the journal has them: a look at a run need not load every event that there is.

How it works: each record may open the next part. ``marks`` are (when, part) in milliseconds of the run clock, in order;
a part lasts until the next mark. So parts are never negative and always sum to the whole, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from gangrun.core.model import TERMINAL, After, Phase, Rung
from gangrun.core.nodeset import NodesetError, unfold
from gangrun.core.text import known_step
from gangrun.wire.record import Record, RecordError, whole_placement


class Part(Enum):
    """What a run was doing between a failure and its next step, in the order in which it mostly happens."""

    NOTICED = "noticed"  # from the failure to the first record of it
    DECIDED = "decided"  # from there until all ranks are told to stop
    STOPPED = "stopped"  # until the last rank was seen to end
    FENCED = "fenced"  # until the ranks of nodes that do not answer can do no harm any more
    WAITED = "waited"  # for a node, for the next job, for a service, or for a back-off
    CHECKED = "checked"  # of nodes, and of devices that are suspected
    CHOSEN = "chosen"  # of the checkpoint, which all nodes verify
    STARTED = "started"  # until all ranks run
    FIRST_STEP = "first_step"  # until a rank told its first step


class Recovery(msgspec.Struct, frozen=True):
    """One recovery. Moments are of the run clock, spans in whole milliseconds."""

    attempt: int  # that failed
    next_attempt: int | None  # the one that trains on; None: none does, or not yet
    began_ms: int
    ended_ms: int | None  # None: it is not over yet
    until_ms: int  # when it ended; else the newest record
    spans_ms: tuple[tuple[int, int, Part], ...]  # from when to when each part, one after the other without a gap
    rung: Rung | None  # None: not known yet
    lost_steps_count: int | None  # steps that have to be trained again; None: not known
    lost_gpu_s: float | None  # of all ranks of the failed attempt: the recovery itself, and the steps trained again

    @property
    def parts_ms(self) -> dict[Part, int]:
        """What each part took in all; of those that took time."""
        found = {part: sum(end - start for start, end, this in self.spans_ms if this is part) for part in Part}
        return {part: took for part, took in found.items() if took}

    @property
    def whole_ms(self) -> int:
        """From the failure to the first new step, or so far."""
        return self.until_ms - self.began_ms


def recoveries_of(records: Iterable[Record]) -> tuple[Recovery, ...]:
    """All recoveries in these records of one run, oldest first; the last may not be over.

    ``records`` reach back to the failure at least: what is older than the first one is not known.
    """
    reader = RecoveryReader()
    for record in records:
        reader.read(record)
    return tuple(reader.told())


class _Try(msgspec.Struct):
    """One attempt, as far as this page needs it."""

    number: int = -1
    job: str = ""
    nodes: tuple[str, ...] = ()  # in rank order
    world_size: int = 0
    resume_step: int | None = None  # of the checkpoint it was told to load; None: it was told none, or one without
    began_ms: int = 0  # all ranks ran
    first_ms: int | None = None
    first_step: int = -1
    top_step: int = -1


class _Signs(msgspec.Struct):
    """What was noticed of the current attempt, (since when, when noticed)."""

    silent: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    stalled: tuple[int, int] | None = None

    def oldest(self, now: int) -> tuple[int, int]:
        """When the failure happened and when it was noticed, as far as anything tells."""
        signs = [*self.silent.values(), *([self.stalled] if self.stalled is not None else [])]
        return min((since for since, _ in signs), default=now), min((seen for _, seen in signs), default=now)


class _Open(msgspec.Struct):
    """A recovery on its way."""

    failed: _Try
    marks: list[tuple[int, Part]]
    exit_ms: int = 0  # when the newest rank was seen to end
    ranks_run: tuple[int, _Try] | None = None  # when all ranks ran again, and in which attempt


_PARTS = {
    Phase.STOPPING: Part.STOPPED, Phase.WAITING: Part.WAITED, Phase.PENDING: Part.WAITED, Phase.CHECKING: Part.CHECKED,
    Phase.STARTING: Part.CHOSEN, Phase.RUNNING: Part.FIRST_STEP,
}  # fmt: skip
# What follows a stop that nothing went wrong for.
_WANTED = frozenset({After.SUCCEED.value, After.CANCEL.value, After.TIME_UP.value})


class RecoveryReader:
    """Goes through the records once; ``told`` may be asked at any time."""

    def __init__(self) -> None:
        self._done: list[tuple[_Open, int, Rung, _Try | None]] = []  # with when it ended, how and in which attempt
        self._open: _Open | None = None
        self._now = _Try()
        self._signs = _Signs()
        self._job = ""
        self._at = 0
        self._phase = ""
        self._tells_steps = False

    def read(self, record: Record) -> None:
        """The next record."""
        if record.outcome != "applied":
            return
        self._at = max(self._at, _ms(record.at))
        match record.kind, record.event:
            case "TermTaken", {"job": str(job)}:
                self._job = job
            case "NodeSilent", {"node": str(node), "since": float(since)} if node in self._now.nodes:
                self._signs.silent[node] = _ms(since), self._at
            case "NodeHeard", {"node": str(node)}:
                self._signs.silent.pop(node, None)
            case "ProgressStalled", {"stalled_s": float(stalled_s)}:
                self._signs.stalled = self._at - _ms(stalled_s), self._at
            case (("FirstStepSeen" | "ProgressMarked"), {"step": int(step)}):
                self._signs.stalled = None
                self._stepped(step)
            case "RankExited", {"exit": dict(died)}:
                steps = [died.get("step", -1), died.get("log_step", -1)]
                self._now.top_step = max([self._now.top_step, *(step for step in steps if isinstance(step, int))])
            case _:
                pass
        if self._open is not None:
            self._go_on(self._open, record)
        elif _fails(record):
            self._begin(record)
        self._attempt_of(record)
        self._phase = record.phase

    def told(self) -> Iterable[Recovery]:
        """What was found."""
        for done, ended, rung, after in self._done:
            yield _recovery(done, ended, ended, rung, after)
        one = self._open
        if one is None:
            return
        if one.ranks_run is not None and not self._tells_steps and self._phase == Phase.RUNNING.value:
            ended, after = one.ranks_run
            yield _recovery(one, ended, ended, _rung(one.failed, after), after)
        else:
            yield _recovery(one, None, self._at, None, None)

    # ---- attempts ----

    def _stepped(self, step: int) -> None:
        self._tells_steps = True
        now = self._now
        now.top_step = max(now.top_step, step)
        if now.first_ms is None:
            now.first_ms, now.first_step = self._at, step

    def _attempt_of(self, record: Record) -> None:
        for act in record.actions:
            match act.kind, act.args:
                case "StartGang", {"attempt": int(number), "placement": dict(placement)}:
                    self._now = _started(number, self._job, placement, act.args.get("resume"), self._at)
                    self._signs = _Signs()
                case _:
                    pass
        if record.kind == "GangStarted":
            self._now.began_ms = self._at

    # ---- a recovery ----

    def _begin(self, record: Record) -> None:
        failed, noticed = self._signs.oldest(self._at)
        if record.kind == "RankExited":
            failed = min(failed, _fell_ms(record.event.get("exit"), self._at))
        failed = min(max(failed, self._now.began_ms), self._at)
        marks = [(failed, Part.NOTICED), (max(failed, noticed), Part.DECIDED), (self._at, _part(record))]
        self._open = _Open(self._now, marks, self._at)

    def _go_on(self, one: _Open, record: Record) -> None:
        match record.kind, record.event:
            case "RankExited", {"exit": dict(died)}:
                one.exit_ms = self._at
                if self._phase == Phase.STOPPING.value:
                    self._failed_before(one, died)
            case "GangStopped", {"presumed": [_, *_]} if self._phase == Phase.STOPPING.value:
                one.marks.append((max(one.exit_ms, one.marks[-1][0]), Part.FENCED))
            case (("FirstStepSeen" | "ProgressMarked"), _) if record.phase == Phase.RUNNING.value:
                self._over(one, self._at, _rung(one.failed, self._now), self._now)
                return
            case "GangStarted", _:
                one.ranks_run = self._at, self._now
            case _:
                pass
        if record.phase in _ENDS:
            went_well = record.phase == Phase.SUCCEEDED.value and one.ranks_run is not None
            self._over(one, self._at, _rung(one.failed, self._now) if went_well else Rung.END, None)
        elif record.kind == "ResumeChosen" and record.phase == Phase.STARTING.value:
            one.marks.append((self._at, Part.STARTED))
        elif record.phase != self._phase:
            one.marks.append((self._at, _part(record)))

    def _failed_before(self, one: _Open, died: Mapping[str, Any]) -> None:
        """A rank that failed of itself before those that were seen earlier: destructors may take their time."""
        fell, (failed, part) = max(_fell_ms(died, self._at), self._now.began_ms), one.marks[0]
        error = died.get("error")
        own = not died.get("by_us") and isinstance(error, dict) and not error.get("collective")
        if own and fell < failed and one.failed is self._now:
            one.marks[0] = fell, part

    def _over(self, one: _Open, ended: int, rung: Rung, after: _Try | None) -> None:
        self._done.append((one, ended, rung, after))
        self._open = None


_ENDS = frozenset(phase.value for phase in TERMINAL)


def _fails(record: Record) -> bool:
    """Do ranks end with this record, and nobody wanted it?"""
    if record.was not in (Phase.RUNNING.value, Phase.STARTING.value) or record.phase in _ENDS:
        return False
    if record.was == Phase.STARTING.value and record.phase != Phase.STOPPING.value:
        return False  # no rank was launched
    return record.phase not in (Phase.RUNNING.value, Phase.STARTING.value) and record.patch.get("after") not in _WANTED


def _part(record: Record) -> Part:
    return _PARTS.get(Phase(record.phase), Part.WAITED)


def _started(number: int, job: str, placement: dict[str, Any], resume: object, at: int) -> _Try:
    nodes, world_size = placed_nodes(placement)
    step = resume.get("step") if isinstance(resume, dict) else None
    known = known_step(step) if isinstance(step, int) else -1
    return _Try(number, job, nodes, world_size, known if known >= 0 else None, at)


def placed_nodes(placement: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """The nodes of a recorded placement in rank order, and how many ranks they hold."""
    match placement:
        case {"nodes": str(text), "slots": int(slots_count), "ranks": int(ranks_count)}:
            nodes = _unfolded(text)
            return nodes, len(nodes) * slots_count * ranks_count
        case _:
            whole = whole_placement(placement)
            return tuple(dict.fromkeys(seat["slot"]["node"] for seat in whole["seats"])), whole["world_size"]


@lru_cache(maxsize=512)
def _unfolded(text: str) -> tuple[str, ...]:
    """A report reads the same placements several times, each of thousands of nodes."""
    try:
        return tuple(unfold(text))
    except NodesetError as error:
        raise RecordError(f"placement: {error}") from error


def _rung(failed: _Try, after: _Try) -> Rung:
    if failed.job != after.job:
        return Rung.REQUEUE
    if failed.world_size != after.world_size:
        return Rung.SHRINK if after.world_size < failed.world_size else Rung.GROW
    if set(failed.nodes) != set(after.nodes):
        return Rung.SWAP
    return Rung.RESTART if failed.nodes == after.nodes else Rung.MOVE


def _recovery(one: _Open, ended: int | None, until: int, rung: Rung | None, after: _Try | None) -> Recovery:
    began = one.marks[0][0]
    pairs = pairwise([*one.marks, (until, Part.FIRST_STEP)])
    spans = ((min(start, until), min(end, until), part) for (start, part), (end, _) in pairs)
    steps = None if after is None else _lost_steps(one.failed, after)
    return Recovery(
        one.failed.number, None if after is None else after.number, began, ended, until,
        tuple(span for span in spans if span[1] > span[0]), rung, steps, _lost_gpu_s(one, until, steps),
    )  # fmt: skip


def _lost_steps(failed: _Try, after: _Try) -> int | None:
    """The checkpoint tells where the next attempt began; else its first step does."""
    begins = after.first_step - 1 if after.resume_step is None else after.resume_step
    known = failed.top_step >= 0 and (after.resume_step is not None or after.first_step >= 0)
    return max(0, failed.top_step - max(0, begins)) if known else None


def _lost_gpu_s(one: _Open, until: int, steps: int | None) -> float | None:
    failed, began = one.failed, one.marks[0][0]
    if not failed.world_size:
        return None
    again_s = 0.0
    if steps and failed.first_ms is not None and failed.top_step > failed.first_step:
        again_s = (began - failed.first_ms) / 1000 / (failed.top_step - failed.first_step) * steps
    return failed.world_size * ((until - began) / 1000 + max(0.0, again_s))


def _fell_ms(died: object, seen: int) -> int:
    """When a rank failed: when its error was written, if that is known."""
    if not isinstance(died, dict):
        return seen
    at = died.get("written_at") or died.get("at")
    return _ms(at) if isinstance(at, int | float) and at > 0 else seen


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
