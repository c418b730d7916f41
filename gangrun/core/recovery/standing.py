"""Where ranks stand, and for how long: hangs that show in seconds, also of scripts that report nothing.

Theory of operation. A thread in each Python rank says at which place (a stack) the main thread is, since when it has
not left its call, and how many collectives of each group it has issued. ``NodeStands`` (the agent's) learns how long
ranks stay at a place, and tells a ``Stand`` of each rank that stands for ``TELL_AFTER_S``; a rank that moves costs a
heartbeat two bytes. ``judge`` (the supervisor's) puts the stands of all ranks together:

- A rank is *excused* if it has issued more collectives of a group than another rank that stands: it waits for that one.
- The gang is *suspected* to hang if a rank is excused, or stands for longer than it usually may.
- It is *hung* if no live rank is within its limit. A rank that moves is within it, and so is one without a sampler.

How long a rank may stand depends on whether the place is *known*: left at least ``KNOWN_COUNT`` times, each time in
another step. Only the innermost place counts: an outer call may take long for the first time for good reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from gangrun.core.policy import HangPolicy
from gangrun.core.text import counted, listed, one_line

TELL_AFTER_S = 5.0
SUSPECT_S = 10.0
STOPPED_S = 10.0
FROZEN_S = 30.0
KNOWN_MIN_S, KNOWN_FACTOR = 30.0, 5.0
NEW_IDLE_S = 60.0
STEADY_COLLECTIVES_COUNT = 100
KNOWN_COUNT = 3
PLACES_MAX_COUNT = 4096
BEAT_GAP_S = 3.0  # the sampler looks each half second
LATE_S = 3.0  # if the agent itself came so much too late, the machine slept
RATE_WINDOW_S = 5.0
IDLE_CPU_RATE, IDLE_BYTES_PER_S = 0.05, 1e6
QUEUED_MAX_SHARE = 0.5
MARK_S = 5.0  # without collectives, visits so far apart count as of different steps
# Point-to-point operations count too on gloo, and stages of a pipeline make different numbers of them.
APART_MAX_COUNT = 500
MINORITY_MAX_SHARE = 1 / 3
# A frame that waits for other ranks: whoever stands in one waits for whoever does not.
WAITING_WORDS = (
    "distributed_c10d", "torch/distributed", "all_reduce", "allreduce", "all_gather", "barrier", "nccl", "gloo",
    "_engine_run_backward",  # gradients are reduced in it
)  # fmt: skip


class StandKind(IntEnum):
    """What keeps a rank from moving."""

    PLACE = 0  # it has not left one call
    CIRCLING = 1  # it executes Python at few places, and issues no collective
    HOLDS_GIL = 2  # the sampler does not run, the process does
    FROZEN = 3  # neither runs, and nobody stopped it by a signal
    STOPPED = 4  # state T


class Stand(NamedTuple):
    """A rank that stands; travels in heartbeats."""

    kind: int
    idle: bool
    stood_s: float
    longest_s: float  # that a rank of its node stayed at this place and left it; -1: the place is not known
    timeout_s: float  # that the script gives a collective; 0: not known
    key: int
    place: str
    counts: tuple[tuple[int, int], ...]  # of each group: its name's checksum, the collectives issued

    @property
    def waits(self) -> bool:
        """Does the place's name say that it waits for other ranks?"""
        lowered = self.place.lower()
        return any(word in lowered for word in WAITING_WORDS)


# ---- one node: what its ranks' samplers say --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """One rank's page and process at one moment; times are seconds of one clock, 0: never, or not so."""

    at: float  # of the sampler's newest look
    has_exact: bool
    key: int
    exact_since: float
    sampled_since: float
    circling_since: float
    counted_at: float
    timeout_s: float
    counts: tuple[tuple[int, int], ...]
    place: str
    state: str  # letter of /proc
    cpu_s: float  # of it and its children
    io_bytes: int
    told_count: int  # of what it reports or prints
    looks: tuple[int, int] = (0, 0)  # of its sampler so far, and those at which it waited for other ranks
    scheduled: tuple[float, float] = (0.0, 0.0)  # its main thread so far: seconds that it ran, and waited for a CPU


@dataclass(slots=True)
class _Place:
    visits_count: int = 0
    longest_s: float = 0.0
    mark: float = -1.0


@dataclass(slots=True)
class _Row:
    key: int
    since: float
    stood_s: float
    state: str
    state_since: float
    told_count: int
    told_at: float
    window: tuple[float, float, int]  # when, CPU, bytes
    idle: bool = False  # until a window has shown it
    mark: float = -1.0  # when the stay began
    queue: tuple[float, float] = (0.0, 0.0)  # since when it stands, and how long it had waited for a CPU by then
    scheduled: tuple[float, float] = (0.0, 0.0)
    scheduled_at: float = 0.0  # when that was last another one, or the rank did not want to run


@dataclass(slots=True)
class NodeStands:
    """The agent's: one row for each rank of the attempt, and the places learnt over attempts."""

    _places: dict[int, _Place] = field(default_factory=dict)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _looked_at: float = 0.0
    _every_s: float = 0.0
    _not_before: float = 0.0

    def begin(self) -> None:
        """Another attempt."""
        self._rows.clear()
        self._looked_at = self._every_s = 0.0

    def look(self, looks: Mapping[int, Look], now: float) -> dict[int, Stand]:
        """The stands of those ranks that stand, of all ranks that have a sampler."""
        if self._looked_at:
            every_s = now - self._looked_at
            if self._every_s and every_s > self._every_s + LATE_S:
                self._not_before = now
            self._every_s = every_s
        self._looked_at = now
        told = {rank: self._look(rank, look, now) for rank, look in looks.items()}
        return {rank: stand for rank, stand in told.items() if stand is not None}

    def _look(self, rank: int, look: Look, now: float) -> Stand | None:
        row = self._rows.get(rank)
        if row is None:
            row = self._rows[rank] = _Row(
                look.key, now, 0.0, look.state, now, look.told_count, 0.0, (now, look.cpu_s, look.io_bytes)
            )
        self._activity(row, look, now)
        kind, held_since = _stands(look, row, now)
        moved_at = 0.0 if kind is StandKind.STOPPED else look.counted_at
        stood_s = _without_queue(row, look, max(held_since, moved_at, self._not_before), now)
        if kind is StandKind.PLACE:
            self._learn(row, look, held_since, stood_s, now)
        elif kind is StandKind.CIRCLING:
            self._learn(row, look, now, 0.0, now)
        if stood_s < TELL_AFTER_S:
            return None
        known = self._places.get(look.key)
        is_known = kind is StandKind.PLACE and known is not None and known.visits_count >= KNOWN_COUNT
        longest_s = known.longest_s if is_known and known is not None else -1.0
        place = look.place if kind in (StandKind.PLACE, StandKind.CIRCLING) else ""  # else it is an old look's
        return Stand(kind, row.idle, stood_s, longest_s, look.timeout_s, look.key, place, look.counts)

    def _activity(self, row: _Row, look: Look, now: float) -> None:
        if look.state != row.state:
            row.state, row.state_since = look.state, now
        if look.told_count != row.told_count:
            row.told_count, row.told_at = look.told_count, now
        began_at, cpu_s, io_bytes = row.window
        over_s = now - began_at
        if over_s >= RATE_WINDOW_S:
            busy = look.cpu_s - cpu_s, look.io_bytes - io_bytes  # below 0: a child of it ended, so it did something
            row.idle = 0 <= busy[0] < IDLE_CPU_RATE * over_s and 0 <= busy[1] < IDLE_BYTES_PER_S * over_s
            row.window = now, look.cpu_s, look.io_bytes

    def _learn(self, row: _Row, look: Look, held_since: float, stood_s: float, now: float) -> None:
        """If the last stay has ended, its length is one that this script survives."""
        mark = float(sum(count for _, count in look.counts)) if look.counts else now // MARK_S
        if look.key == row.key and (held_since <= row.since or mark == row.mark):
            row.since, row.stood_s = held_since, max(row.stood_s, stood_s)
            return
        place = self._places.pop(row.key, None) or _Place()
        if row.mark != place.mark:
            place.visits_count, place.mark = place.visits_count + 1, row.mark
        place.longest_s = max(place.longest_s, row.stood_s)
        self._places[row.key] = place  # the newest last
        if len(self._places) > PLACES_MAX_COUNT:
            del self._places[next(iter(self._places))]
        row.key, row.since, row.stood_s, row.mark = look.key, held_since, stood_s, mark


def _without_queue(row: _Row, look: Look, since: float, now: float) -> float:
    """How long it has stood. On a crowded node a call of a second may wait a minute for a CPU: such time does not
    count, up to half of all, so that a call which never returns is found before the others' collectives time out.
    """
    if look.state != "R" or look.scheduled != row.scheduled or not look.scheduled[0]:  # 0: the kernel counts nothing
        row.scheduled, row.scheduled_at = look.scheduled, now
    waited_s = look.scheduled[1] + now - row.scheduled_at  # the kernel counts a wait once it is over
    if since != row.queue[0]:
        row.queue = since, waited_s
    stood_s = max(0.0, now - since)
    queued_s = max(0.0, waited_s - row.queue[1])  # 0 if it cannot be read any more
    return stood_s - min(queued_s, QUEUED_MAX_SHARE * stood_s)


def _stands(look: Look, row: _Row, now: float) -> tuple[StandKind, float]:
    """How it stands, and since when; PLACE since now: it moves."""
    if look.state == "T":
        return StandKind.STOPPED, row.state_since
    if look.state == "t":  # a person with a debugger
        return StandKind.PLACE, now
    told_at = row.told_at
    if now - look.at > BEAT_GAP_S:
        return (StandKind.FROZEN if row.idle else StandKind.HOLDS_GIL), max(look.at, told_at)
    if look.exact_since:
        return StandKind.PLACE, max(look.exact_since, told_at)
    if look.has_exact:  # it executes Python
        if look.counts and look.circling_since:
            return StandKind.CIRCLING, max(look.circling_since, told_at)
        return StandKind.PLACE, now
    if look.counts or row.idle:  # without an exact sign
        return StandKind.PLACE, max(look.sampled_since, told_at)
    return StandKind.PLACE, now


# ---- all nodes -------------------------------------------------------------------------------------------------------


class SampledRank(Protocol):
    """What a rank's newest sample says of it; ``wire.messages.RankSample`` is such."""

    @property
    def rank(self) -> int: ...
    @property
    def is_sampled(self) -> bool: ...
    @property
    def stand(self) -> Stand | None: ...


@dataclass(frozen=True, slots=True)
class GangScene:
    """What counts besides the stands."""

    policy: HangPolicy
    is_steady: bool  # as far as steps and output tell
    some_ended: bool
    long_phase_s: float  # a rank says that it evaluates or saves, and may stand for so long in it; 0: none says so
    usual_limit_s: float  # how long without progress is too long for a gang without samplers
    counts_from_s: float  # so long ago time began to count


@dataclass(frozen=True, slots=True)
class GangStand:
    """``judge``'s answer: a suspicion, or a hang."""

    hung: bool
    stood_s: float  # of the one that has moved last
    limit_s: float  # the highest of those that wait for no other rank
    decided_s: float  # for which the rank with that limit has stood
    named: tuple[int, ...]  # ranks that the others wait for; () where nobody differs
    sign: str  # by what
    stands: Mapping[int, Stand]  # of all ranks that stand

    def place_of(self, rank: int) -> str:
        """Where it stands, in words; "" where it does not."""
        stand = self.stands.get(rank)
        return stand.place if stand is not None else ""


def judge(samples: Sequence[SampledRank], scene: GangScene) -> GangStand | None:
    """None: no rank stands for longer than it may, and none waits for another."""
    stands = _told_in_full({one.rank: one.stand for one in samples if one.stand is not None}, scene.counts_from_s)
    if not stands or scene.policy.timeout_s == 0:
        return None
    excused = _excused(stands)
    limits = _limits(stands, excused, scene)
    within = [rank for rank, stand in stands.items() if rank not in excused and stand.stood_s < limits[rank]]
    waits = any(stands[rank].stood_s >= SUSPECT_S for rank in excused)
    over = any(stand.stood_s >= _may_stand_s(stand, limits[rank]) for rank, stand in stands.items())
    if not waits and not over:
        return None
    stood_s = min(stand.stood_s for stand in stands.values())
    # If each is ahead of another one, none of them will ever move: no time heals that.
    crossed = len(excused) == len(stands)
    hung = len(stands) == len(samples) and not within and (not crossed or stood_s >= SUSPECT_S)
    decides = max((rank for rank in stands if rank not in excused), key=lambda rank: limits[rank], default=-1)
    limit_s, decided_s = (limits[decides], stands[decides].stood_s) if decides >= 0 else (SUSPECT_S, stood_s)
    named, sign = culprits(stands, [one.rank for one in samples if one.is_sampled and one.rank not in stands])
    return GangStand(hung, stood_s, limit_s, decided_s, named, sign, stands)


def without_repeated_places(stands: Mapping[int, Stand]) -> dict[int, Stand]:
    """One node's: of ranks at the same place only one says its name, for thousands may stand there."""
    named: set[int] = set()
    told = {}
    for rank, stand in stands.items():
        told[rank] = stand._replace(place="") if stand.key in named else stand
        if stand.place:
            named.add(stand.key)
    return told


def _told_in_full(stands: Mapping[int, Stand], from_s: float) -> dict[int, Stand]:
    """With the names of all places; no longer than time has counted."""
    names = {stand.key: stand.place for stand in stands.values() if stand.place}
    return {
        rank: stand._replace(stood_s=min(stand.stood_s, from_s), place=_place(stand, names))
        for rank, stand in stands.items()
    }


def _place(stand: Stand, names: Mapping[int, str]) -> str:
    return names.get(stand.key, "") if stand.kind in (StandKind.PLACE, StandKind.CIRCLING) else ""


def _excused(stands: Mapping[int, Stand]) -> frozenset[int]:
    """Those that are ahead of another one in a group of both."""
    least = _extremes(stands)
    return frozenset(
        rank
        for rank, stand in stands.items()
        if any(least[group][0] < count and least[group][1] - least[group][0] <= APART_MAX_COUNT
               for group, count in stand.counts)
    )  # fmt: skip


def _extremes(stands: Mapping[int, Stand]) -> dict[int, tuple[int, int]]:
    """Of each group the lowest and the highest count."""
    found: dict[int, tuple[int, int]] = {}
    for stand in stands.values():
        for group, count in stand.counts:
            low, high = found.get(group, (count, count))
            found[group] = min(low, count), max(high, count)
    return found


def _limits(stands: Mapping[int, Stand], excused: frozenset[int], scene: GangScene) -> dict[int, float]:
    """How long each may stand before all ranks are stopped for it."""
    policy = scene.policy
    longest: dict[int, float] = {}
    for stand in stands.values():
        longest[stand.key] = max(longest.get(stand.key, -1.0), stand.longest_s)
    steady = scene.is_steady or any(
        sum(count for _, count in stand.counts) >= STEADY_COLLECTIVES_COUNT for stand in stands.values()
    )
    stopped_count = sum(stand.kind == StandKind.STOPPED for stand in stands.values())
    some_stopped = 0 < stopped_count < len(stands)  # all: somebody paused the whole gang
    awaited = bool(excused) or any(stand.waits for stand in stands.values())

    def limit_s(stand: Stand) -> float:
        if some_stopped or (scene.some_ended and stand.waits):
            return STOPPED_S if policy.timeout_s is None else min(STOPPED_S, policy.timeout_s)
        if policy.timeout_s is not None:
            return policy.timeout_s
        known = stand.kind == StandKind.PLACE and longest[stand.key] >= 0
        if known:
            return max(KNOWN_MIN_S, KNOWN_FACTOR * longest[stand.key])
        if not steady or stopped_count:
            return max(scene.usual_limit_s, policy.startup_limit_s if not steady else 0.0)
        if stand.kind == StandKind.FROZEN:
            return FROZEN_S
        if not stand.counts:
            return max(scene.usual_limit_s, 0.0 if stand.idle else policy.steady_max_s)
        if scene.long_phase_s:
            return scene.long_phase_s if stand.idle else policy.steady_max_s
        if stand.idle:
            return NEW_IDLE_S
        return stand.timeout_s / 2 if awaited and stand.timeout_s else policy.steady_max_s

    return {rank: limit_s(stand) for rank, stand in stands.items()}


def _may_stand_s(stand: Stand, limit_s: float) -> float:
    """How long before people are told."""
    if stand.kind == StandKind.STOPPED:
        return TELL_AFTER_S
    if stand.kind == StandKind.PLACE and stand.longest_s >= 0:
        return min(limit_s, max(SUSPECT_S, KNOWN_FACTOR * stand.longest_s))
    return limit_s


def culprits(stands: Mapping[int, Stand], moving: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """The ranks that the others wait for, and the sign that says so; nobody rather than a wrong one."""
    for kind, words in _BY_KIND.items():
        found = [rank for rank, stand in stands.items() if stand.kind == kind]
        if found and len(found) < len(stands) + len(moving):
            return _named(found, words)
    extremes, ahead = _extremes(stands), _excused(stands)
    behind = {
        rank: group
        for rank, stand in stands.items()
        for group, count in stand.counts
        if count < extremes[group][1] <= count + APART_MAX_COUNT and rank not in ahead
    }
    if behind and 2 * len(behind) <= len(stands):
        low, high = extremes[next(iter(behind.values()))]
        return _named(list(behind), f"issued {low} collectives where others issued {high}")
    odd = _minority({rank: stand.counts for rank, stand in stands.items()})
    if odd and all(any(count < extremes[group][1] for group, count in stands[rank].counts) for rank in odd):
        return _named(odd, "issued collectives in other groups than all others")
    if ahead and not moving:  # two that wait for each other, or a group in which nobody knows who is right
        return (), ""
    if moving:
        few = 2 * len(moving) <= len(stands) + len(moving)
        return _named(list(moving), "moves while the others stand") if few else ((), "")
    elsewhere = [rank for rank, stand in stands.items() if not stand.waits and stand.place]
    if elsewhere and 2 * len(elsewhere) <= len(stands):
        return _named(elsewhere, "does not wait for other ranks, as the others do")
    odd = _minority({rank: stand.key for rank, stand in stands.items()})
    return _named(odd, "stands elsewhere than all others") if odd else ((), "")


_BY_KIND = {
    StandKind.STOPPED: "is stopped (state T)",
    StandKind.FROZEN: "does not run at all, and no signal stopped it",
    StandKind.HOLDS_GIL: "is busy in a call that lets no other thread run Python",
}


def _named(ranks: Sequence[int], sign: str) -> tuple[tuple[int, ...], str]:
    return tuple(sorted(ranks)), sign


def _minority(signs: Mapping[int, object]) -> list[int]:
    """The few that differ from all others, which agree; none where nothing is that clear."""
    most, count = Counter(signs.values()).most_common(1)[0]
    odd = [rank for rank, sign in signs.items() if sign != most]
    return odd if count > 1 and len(odd) <= MINORITY_MAX_SHARE * len(signs) else []


def sentence(found: GangStand, nodes: Mapping[int, str]) -> str:
    """For people: who, where and since when. ``nodes``: of each rank of the gang."""
    stands = found.stands
    if not found.named:
        texts = dict.fromkeys(one_line(stand.place) for stand in stands.values() if stand.place)
        where = f" in {listed(list(texts)[:2])}" if texts else ""
        have = "has" if len(stands) == 1 else "have"
        return f"{len(stands)} of {counted(len(nodes), 'rank')} {have} not moved for {found.stood_s:.0f} s{where}"
    first = found.named[0]
    stand = stands.get(first)
    more = f" (and {counted(len(found.named) - 1, 'more rank')})" if len(found.named) > 1 else ""
    where = f" in {one_line(stand.place)}" if stand is not None and stand.place else ""
    stood = f"has stood{where} for {stand.stood_s:.0f} s and " if stand is not None else ""
    others = sum(rank not in found.named for rank in stands)
    waits = f"; {counted(others, 'rank')} {'waits' if others == 1 else 'wait'}" if others else ""
    return f"rank {first} on {nodes[first]}{more} {stood}{found.sign}{waits}"
