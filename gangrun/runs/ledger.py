"""Where the time of a run went: each millisecond of the run, and of each of its nodes, is in exactly one class.

How it works: between two records nothing changes, so the records cut the run into segments, each with what the run did,
who was there and where the ranks were placed. ``recoveries`` divides what lies between a failure and the next step;
its spans replace the classes of the segments there. What an attempt trained in vain is the end of what it trained: the
share that the next one has to do again. Nothing is rounded after the first step, so sums are exact.

A node counts from the beginning of its job to the end. Between jobs, and before the first, as many nodes wait in the
queue as the run wants. After the run has ended nothing counts until it is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from gangrun.core.model import TERMINAL, AttemptRecord, Phase, RunState
from gangrun.core.nodeset import natural_sort
from gangrun.core.text import is_save_time, known_step
from gangrun.planning.accounts import TimeUse
from gangrun.runs.recoveries import Part, placed_nodes, recoveries_of
from gangrun.runs.saves import read_saves
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import redone_share, went_on_from
from gangrun.wire.record import Record

_OF_PART = {
    Part.NOTICED: TimeUse.NOTICING,
    Part.DECIDED: TimeUse.NOTICING,
    Part.STOPPED: TimeUse.STOPPING,
    Part.FENCED: TimeUse.FENCING,
    Part.WAITED: TimeUse.WAITING,
    Part.CHECKED: TimeUse.PREFLIGHT,
    Part.CHOSEN: TimeUse.LOADING,
    Part.STARTED: TimeUse.START_UP,
    Part.FIRST_STEP: TimeUse.COMPILE,
}
_OF_PHASE = {
    Phase.PENDING: TimeUse.START_UP,
    Phase.CHECKING: TimeUse.PREFLIGHT,
    Phase.STARTING: TimeUse.LOADING,
    Phase.RUNNING: TimeUse.COMPILE,
    Phase.STOPPING: TimeUse.STOPPING,
    Phase.WAITING: TimeUse.WAITING,
}
_UNPLACED = frozenset({Phase.PENDING.value, Phase.CHECKING.value, Phase.WAITING.value})
_ENDS = frozenset(phase.value for phase in TERMINAL)
TRAINING = frozenset({TimeUse.USEFUL.value, TimeUse.SAVING.value, TimeUse.LOST.value})


@dataclass(frozen=True, slots=True)
class Situation:
    """What holds until the next record."""

    use: TimeUse | None = TimeUse.QUEUE  # None: the run has ended
    job: str = ""  # "": none holds nodes
    attempt: int = -1
    placed: frozenset[str] | None = None  # None: no ranks are placed
    ranks_count: int = 0  # of the newest attempt, which its stop does not change
    joined: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TimeSegment:
    """A stretch of the run in which nothing changed."""

    began_ms: int
    ended_ms: int
    at: Situation


@dataclass(frozen=True, slots=True)
class Ledger:
    """Milliseconds by class: of the run as a whole, of each node, and of the nodes that it waited for in the queue."""

    began_ms: int
    until_ms: int
    run_ms: dict[TimeUse, int]
    nodes_ms: dict[str, dict[TimeUse, int]]
    queued_node_ms: int

    @property
    def whole_ms(self) -> int:
        """All of the run's time, without that between its end and a resume."""
        return sum(self.run_ms.values())

    @property
    def useful_share(self) -> float | None:
        """ETTR: useful training over all of the run's time, queue included; None: no time has passed."""
        return self.run_ms.get(TimeUse.USEFUL, 0) / self.whole_ms if self.whole_ms else None

    @property
    def node_ms(self) -> dict[TimeUse, int]:
        """Over all nodes, with those that were waited for in the queue."""
        found = {use: sum(times.get(use, 0) for times in self.nodes_ms.values()) for use in TimeUse}
        found[TimeUse.QUEUE] += self.queued_node_ms
        return found


def ledger_of(
    records: Sequence[Record], state: RunState, *, wanted_count: int, created_ms: int | None = None,
    until_ms: int | None = None, window_ms: int | None = None, stalled_ms: Mapping[int, int] | None = None,
) -> Ledger:  # fmt: skip
    """The ledger of all these records, which reach back to the run's beginning.

    ``window_ms``: only the last so much of it. ``created_ms``: when the run was submitted, on the run's clock.
    ``stalled_ms``: of attempts, how long their training stood still for saves, as far as that is known.
    """
    account = account_of(records, state, created_ms=created_ms, until_ms=until_ms, stalled_ms=stalled_ms)
    segments, end = account.segments, account.until_ms
    since = account.began_ms if window_ms is None else max(account.began_ms, end - window_ms)
    run: dict[TimeUse, int] = {}
    before = (
        {segments[0].began_ms: dict(run)} if segments else {}
    )  # what the run had spent at each segment's begin or end
    queued = 0
    for one in segments:
        before.setdefault(one.began_ms, dict(run))
        for this, part in account.uses_of(one, since, end):
            run[this] = run.get(this, 0) + part
            queued += 0 if one.at.job else part * wanted_count
        before[one.ended_ms] = dict(run)
    nodes: dict[str, dict[TimeUse, int]] = {}
    for node, stays in account.stays().items():
        times = nodes.setdefault(node, {})
        for began, ended, kind in stays:
            first, last = before[began], before[ended]
            for this, sum_ms in last.items():
                if part := sum_ms - first.get(this, 0):
                    of_node = this if kind is WITH_RUN else kind
                    times[of_node] = times.get(of_node, 0) + part
    return Ledger(since, end, run, {node: nodes[node] for node in natural_sort(nodes) if nodes[node]}, queued)


WITH_RUN = TimeUse.USEFUL  # of a node: it does whatever the run does
NodeStay = tuple[int, int, TimeUse]  # from when to when a node was what


@dataclass(frozen=True, slots=True)
class TimeAccount:
    """The run's time, cut wherever anything changes."""

    segments: tuple[TimeSegment, ...]
    members: Mapping[str, AbstractSet[str]]  # of each job, whenever they joined
    stall_shares: Mapping[int, float]  # of each attempt, the part of its training in which it stood still for a save

    @property
    def began_ms(self) -> int:
        """When the first second counts; 0 if none does."""
        return self.segments[0].began_ms if self.segments else 0

    @property
    def until_ms(self) -> int:
        """The end of the last second that counts."""
        return self.segments[-1].ended_ms if self.segments else 0

    def stays(self) -> dict[str, list[NodeStay]]:
        """Of each node, from when to when it was what; a stay begins and ends with a segment."""
        return _stays(self.segments, self.members)

    def gpu_ms(self, since_ms: int, until_ms: int, uses: Collection[TimeUse], wanted_count: int) -> int:
        """GPU time of all ranks between two moments, as far as it was spent on ``uses``. A GPU holds one rank.

        ``wanted_count``: ranks that the run wants, for the time before its first attempt.
        """
        return sum(
            part * (one.at.ranks_count or wanted_count)
            for one in self.segments
            for use, part in self.uses_of(one, since_ms, until_ms)
            if use in uses
        )

    def steps_since(self, since_ms: int, kept: Mapping[int, int]) -> float:
        """How many of the steps that each attempt kept it trained from that moment on; they are spread evenly."""
        whole: dict[int, int] = {}
        recent: dict[int, int] = {}
        for one in self.segments:
            if one.at.use is TimeUse.USEFUL:
                whole[one.at.attempt] = whole.get(one.at.attempt, 0) + one.ended_ms - one.began_ms
                part = max(0, one.ended_ms - max(one.began_ms, since_ms))
                recent[one.at.attempt] = recent.get(one.at.attempt, 0) + part
        return sum(kept.get(number, 0) * recent[number] / took for number, took in whole.items())

    def uses_of(self, one: TimeSegment, since_ms: int, until_ms: int) -> Iterator[tuple[TimeUse, int]]:
        """What a segment was spent on between two moments, in whole milliseconds that sum to what lies between."""
        took, use = min(one.ended_ms, until_ms) - max(one.began_ms, since_ms), one.at.use
        if took <= 0 or use is None:
            return
        stalled = round(took * self.stall_shares.get(one.at.attempt, 0.0)) if use is TimeUse.USEFUL else 0
        if took > stalled:
            yield use, took - stalled
        if stalled:
            yield TimeUse.SAVING, stalled


def _stays(segments: Iterable[TimeSegment], members: Mapping[str, Iterable[str]]) -> dict[str, list[NodeStay]]:
    """Of each node, from when to when it was what: only nodes whose part changed are looked at."""
    stays: dict[str, list[NodeStay]] = {}
    since: dict[str, tuple[int, TimeUse]] = {}
    before: Situation | None = None
    ended = 0

    def close(node: str, at: int) -> None:
        if node in since:
            began, kind = since.pop(node)
            if at > began:
                stays.setdefault(node, []).append((began, at, kind))

    for one in segments:
        at = one.at
        if before is None or before.job != at.job or one.began_ms != ended:
            for node in list(since):
                close(node, ended)
            changed: Iterable[str] = members.get(at.job, ())
        else:
            changed = _changed(before, at, members.get(at.job, ()))
        for node in changed:
            kind = _node_use(node, at, WITH_RUN)
            if since.get(node, (0, None))[1] is not kind:
                close(node, one.began_ms)
                since[node] = one.began_ms, kind
        before, ended = at, one.ended_ms
    for node in list(since):
        close(node, ended)
    return stays


def _changed(before: Situation, at: Situation, members: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for old, new in ((before.joined, at.joined), (before.away, at.away), (before.excluded, at.excluded)):
        if old is not new:
            found |= old ^ new
    if before.placed is not at.placed and before.placed != at.placed:
        everyone = frozenset(members)
        found |= (everyone if before.placed is None else before.placed) ^ (everyone if at.placed is None else at.placed)
    return found & set(members)


def account_of(
    records: Sequence[Record], state: RunState, *, created_ms: int | None = None, until_ms: int | None = None,
    stalled_ms: Mapping[int, int] | None = None,
) -> TimeAccount:  # fmt: skip
    """All the time of a run; the arguments are those of ``ledger_of``."""
    reader = _Reader()
    reader.read(records, created_ms, until_ms)
    spans = [span for one in recoveries_of(records) for span in one.spans_ms]
    segments = _with_losses(list(_with_recoveries(reader.segments, spans)), state)
    return TimeAccount(tuple(segments), reader.members, _stall_shares(segments, stalled_ms or {}))


def _stall_shares(segments: Iterable[TimeSegment], stalled_ms: Mapping[int, int]) -> dict[int, float]:
    """Of each attempt, the share of its training in which it stood still for a save; spread evenly over it."""
    trained: dict[int, int] = {}
    for one in segments:
        if one.at.use in (TimeUse.USEFUL, TimeUse.LOST) and one.at.attempt in stalled_ms:
            trained[one.at.attempt] = trained.get(one.at.attempt, 0) + one.ended_ms - one.began_ms
    return {number: min(1.0, stalled_ms[number] / whole) for number, whole in trained.items()}


def _node_use(node: str, at: Situation, use: TimeUse) -> TimeUse:
    """What a node of the job was doing while the run spent its time on ``use``."""
    if node in at.away or node in at.excluded:
        return TimeUse.UNUSABLE
    if node not in at.joined:
        return TimeUse.START_UP
    return use if at.placed is None or node in at.placed else TimeUse.IDLE_SPARE


class _Reader:
    """Goes through the records once."""

    def __init__(self) -> None:
        self.segments: list[TimeSegment] = []
        self.members: dict[str, set[str]] = {}  # of each job, whenever they joined
        self._tells_steps = False
        self._comes_back: dict[str, int] = {}  # each job, with how many more of its supervisors are to come

    def read(self, records: Sequence[Record], created_ms: int | None, until_ms: int | None) -> None:
        """All of them."""
        self._tells_steps = any(record.kind == "FirstStepSeen" for record in records)
        for record in records:
            if isinstance(job := _taken(record), str):
                self._comes_back[job] = self._comes_back.get(job, 0) + 1
        if not records:
            return
        at, newest = Situation(), to_ms(records[0].at)
        if created_ms is not None and created_ms < newest:
            self._lasted(created_ms, newest, at)
        for record in records:
            now = max(newest, to_ms(record.at))
            left = record.kind == "TermTaken" and at.job not in ("", record.event.get("job"))
            self._lasted(newest, now, replace(at, use=TimeUse.QUEUE, job="") if left else at)  # nobody told of its end
            if record.outcome == "applied":
                at = self._after(at, record)
            newest = now
        if at.use is not None and until_ms is not None:
            self._lasted(newest, max(newest, until_ms), at)

    def _lasted(self, began_ms: int, ended_ms: int, at: Situation) -> None:
        if ended_ms <= began_ms or at.use is None:
            return
        last = self.segments[-1] if self.segments else None
        if last is not None and last.at == at and last.ended_ms == began_ms:
            self.segments[-1] = replace(last, ended_ms=ended_ms)
        else:
            self.segments.append(TimeSegment(began_ms, ended_ms, at))

    def _after(self, at: Situation, record: Record) -> Situation:
        at = self._roster(at, record)
        for act in record.actions:
            match act.kind, act.args:
                case "StartGang", {"attempt": int(number), "placement": dict(placement)}:
                    nodes, ranks_count = placed_nodes(placement)
                    at = replace(at, attempt=number, placed=frozenset(nodes), ranks_count=ranks_count)
                case "EndJob", _ if not self._comes_back.get(at.job):  # else that supervisor died before it ended it
                    use = None if record.phase in _ENDS else TimeUse.QUEUE
                    return replace(at, use=use, job="", placed=None, joined=frozenset(), away=frozenset())
                case _:
                    pass
        if not at.job:
            return at
        if record.phase in _ENDS:
            return replace(at, use=None, job="", placed=None, joined=frozenset(), away=frozenset())
        if record.phase in _UNPLACED:
            at = replace(at, placed=None)
        return replace(at, use=self._use(at, record))

    def _roster(self, at: Situation, record: Record) -> Situation:
        if isinstance(job := _taken(record), str):
            self._comes_back[job] -= 1
        match record.kind, record.event:
            case "TermTaken", {"job": str(job)} if job != at.job:
                at = Situation(job=job, attempt=at.attempt, excluded=at.excluded, ranks_count=at.ranks_count)
                self.members.setdefault(job, set())
            case (("AgentJoined" | "AgentRejoined"), {"node": str(node)}) if at.job:
                self.members[at.job].add(node)
                at = replace(at, joined=at.joined | {node}, away=at.away - {node})
            case "NodeHeard", {"node": str(node)}:
                at = replace(at, away=at.away - {node})
            case (("NodeLost" | "NodeAbsent"), {"node": str(node)}):
                at = replace(at, away=at.away | {node})
            case _:
                pass
        if isinstance(changed := record.patch.get("excluded"), dict):
            now = {node for node, why in changed.items() if why is not None}
            at = replace(at, excluded=(at.excluded - changed.keys()) | now)
        return at

    def _use(self, at: Situation, record: Record) -> TimeUse:
        use = _OF_PHASE.get(Phase(record.phase), TimeUse.WAITING)
        if use is TimeUse.LOADING and (at.placed is not None or record.kind == "ResumeChosen"):
            return TimeUse.START_UP  # the checkpoint is chosen
        if use is not TimeUse.COMPILE:
            return use
        stepped = record.kind in {"FirstStepSeen", "ProgressMarked"} or not self._tells_steps
        return TimeUse.USEFUL if stepped or at.use is TimeUse.USEFUL else TimeUse.COMPILE


def _with_recoveries(segments: Iterable[TimeSegment], spans: Sequence[tuple[int, int, Part]]) -> Iterator[TimeSegment]:
    """The segments, cut where parts of recoveries begin and end."""
    k = 0
    for one in segments:
        if not one.at.job:
            yield one
            continue
        while k < len(spans) and spans[k][1] <= one.began_ms:
            k += 1
        now, j = one.began_ms, k
        while j < len(spans) and spans[j][0] < one.ended_ms:
            start, end = max(now, spans[j][0]), min(one.ended_ms, spans[j][1])
            if start > now:
                yield TimeSegment(now, start, one.at)
            if end > start:
                yield TimeSegment(start, end, replace(one.at, use=_OF_PART[spans[j][2]]))
                now = end
            j += 1
        if now < one.ended_ms:
            yield TimeSegment(now, one.ended_ms, one.at)


def _with_losses(segments: list[TimeSegment], state: RunState) -> list[TimeSegment]:
    """The segments; of each attempt the end of its training is lost that had to be done again."""
    left_ms: dict[int, int] = {}  # of each attempt, how much is still to be marked as lost
    for number, share in _redone(state):
        trained = sum(
            one.ended_ms - one.began_ms for one in segments if one.at.use is TimeUse.USEFUL and one.at.attempt == number
        )
        left_ms[number] = round(share * trained)
    found: list[TimeSegment] = []
    for one in reversed(segments):
        left = left_ms.get(one.at.attempt, 0) if one.at.use is TimeUse.USEFUL else 0
        cut = max(one.began_ms, one.ended_ms - left)
        if cut < one.ended_ms:
            left_ms[one.at.attempt] = left - (one.ended_ms - cut)
            found.append(TimeSegment(cut, one.ended_ms, replace(one.at, use=TimeUse.LOST)))
        if cut > one.began_ms:
            found.append(TimeSegment(one.began_ms, cut, one.at))
    return found[::-1]


def _redone(state: RunState) -> Iterator[tuple[int, float]]:
    """Each attempt that has ended, with the share of its training that was in vain: the most that any later attempt
    had to do again, as an older checkpoint takes back what several attempts did.
    """
    later: list[int | None] = []  # the earliest that later attempts went on from: a step, and the time of a save
    if state.attempts and state.phase in TERMINAL - {Phase.SUCCEEDED}:  # what a resume would have to do again
        later = [None if state.checkpoints.newest is None else state.checkpoints.newest.step]
    for one in reversed(state.attempts):
        if later:
            yield one.number, max(redone_share(one, step) for step in later)
        if _tells_where_it_began(one):
            later = _earliest([*later, went_on_from(one)])


def _earliest(steps: Sequence[int | None]) -> list[int | None]:
    """Of steps and of times of saves the lowest; None is the beginning, before all of them."""
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return [None]
    kinds = [step for step in known if is_save_time(step)], [step for step in known if not is_save_time(step)]
    return [min(kind) for kind in kinds if kind]


def _tells_where_it_began(one: AttemptRecord) -> bool:
    """An attempt of a script that finds its checkpoint by itself tells it with its first step only."""
    return one.resumed_from_step is not None or max(one.first_told, one.last_step, one.last_told) >= 0


def steps_kept(state: RunState, newest_step: int) -> dict[int, int]:
    """Of each attempt, how many of its steps were kept: each step of the run counts once, in the last attempt that
    trained it. ``newest_step``: of the newest attempt.
    """
    if not state.attempts:
        return {}
    last, saved = state.attempts[-1], state.checkpoints.newest
    kept = max(_began_at(last), *map(known_step, (newest_step, last.last_step, last.last_told)))
    if state.phase in TERMINAL - {Phase.SUCCEEDED}:  # a resume would do the rest again
        if saved is not None and is_save_time(saved.step):
            kept -= round(redone_share(last, saved.step) * (kept - _began_at(last)))
        else:
            kept = min(kept, -1 if saved is None else saved.step)
    found: dict[int, int] = {}
    for one in reversed(state.attempts):
        found[one.number] = max(0, kept - _began_at(one)) if _tells_where_it_began(one) else 0
        if _tells_where_it_began(one):
            kept = min(kept, _began_at(one))
    return found


def _began_at(one: AttemptRecord) -> int:
    """The step whose state it began with; -1: none, or not known."""
    step = went_on_from(one)
    if step is not None and is_save_time(step):
        return max(-1, one.first_told - 1)
    return -1 if step is None else step


def _taken(record: Record) -> object:
    """The job whose supervisor begins with this record; None: none does."""
    return record.event.get("job") if record.kind == "TermTaken" and record.outcome == "applied" else None


def to_ms(seconds: float) -> int:
    """Whole milliseconds."""
    return round(1000 * seconds)


def run_account(reading: RunSnapshot) -> TimeAccount:
    """The time of one run, whose snapshot has all records."""
    assert reading.state is not None
    return account_of(
        reading.records, reading.state, created_ms=to_ms(reading.spec.created_wall), until_ms=until_ms(reading),
        stalled_ms=stalled_ms(reading),
    )  # fmt: skip


def until_ms(reading: RunSnapshot) -> int | None:
    """Until when time counts of a run that has not ended; None: it has, or nobody knows."""
    sign = reading.last_sign()
    return None if reading.ended or sign is None else to_ms(sign)


def stalled_ms(reading: RunSnapshot) -> dict[int, int]:
    """By attempt: for how long its ranks stood because they saved."""
    saves = read_saves(reading.spec.checkpoint.directory, reading.spec.run)
    return {} if saves is None else {number: to_ms(seconds) for number, seconds in saves.stalled}
