"""The table of beats: one row per agent.

Beats never reach ``step``; they are judged here and at deadlines. Three instants per agent, each a safe bound for one
law: ``arrived_at`` (no beat was sent later: law 1), ``sent_after`` (the newest was surely sent after it: law 3), and
``heard`` (what silence is counted from). They differ only where beats lie in a queue: old ones, delivered late, say
nothing about now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from gangrun.core.model import Inventory, Origin, RankAlive
from gangrun.core.policy import Timing
from gangrun.wire.messages import AgentEvent, Beat, Hello, PeerAddress, Reading

LATE_BEATS = 3.0  # a beat that echoes an older word of ours than this many beats lay in a queue


class Greeting(Enum):
    """What a ``Hello`` means."""

    KNOWN = "known"  # the same incarnation, over a new connection
    NEW = "new"  # a first or a restarted agent
    GONE = "gone"  # said by an incarnation that was replaced: delivered late


@dataclass(slots=True)
class Row:
    """One agent's line."""

    node: str
    incarnation: str
    boot_id: str
    job: str
    job_restart: int
    slots_count: int
    peer: PeerAddress
    previous_died: str
    arrived_at: float
    sent_after: float
    welcomed_at: float
    seq: int = -1
    empty: bool = True
    attempt: int = -1
    ranks: tuple[RankAlive, ...] = ()
    launching: bool = False
    readings: tuple[Reading, ...] = field(default=())

    def origin(self, seq: int) -> Origin:
        """Who says this agent's event ``seq``."""
        return Origin(self.job, self.job_restart, self.node, self.boot_id, self.incarnation, seq)

    def inventory(self) -> Inventory:
        """What the agent holds, as it said when it connected."""
        return Inventory(self.node, self.attempt, self.ranks)


class Beats:
    """All rows, and when each node was last heard."""

    def __init__(self, timing: Timing) -> None:
        self.rows: dict[str, Row] = {}
        self.heard: dict[str, float] = {}
        self.dropped: Counter[str] = Counter()  # why messages were dropped, counted and not journalled
        self._late_s = LATE_BEATS * timing.beat_every_s
        self._replaced: set[tuple[str, str]] = set()

    def expect(self, node: str, since: float) -> None:
        """Somebody who should be there: silent if nothing comes."""
        self.heard.setdefault(node, since)

    def forget_all(self) -> None:
        """Another job: nobody of the old one is expected any more."""
        for node in [name for name in self.heard if name not in self.rows]:
            del self.heard[node]

    def excuse(self, now: float, suspects: Container[str]) -> None:
        """We were paused ourselves: what came meanwhile is still in the queue, so silence counts from now."""
        for node in self.heard:
            if node not in suspects:
                self.heard[node] = now

    def hello(self, said: Hello, now: float) -> Greeting:
        """A connection opens; its row begins anew where the incarnation is new."""
        if (said.node, said.incarnation) in self._replaced:
            self.dropped["hello of a replaced agent"] += 1
            return Greeting.GONE
        row = self.rows.get(said.node)
        known = row is not None and row.incarnation == said.incarnation
        if row is not None and not known:
            self._replaced.add((row.node, row.incarnation))
        if row is None or not known:
            row = Row(
                node=said.node,
                incarnation=said.incarnation,
                boot_id=said.boot_id,
                job=said.job,
                job_restart=said.job_restart,
                slots_count=said.slots_count,
                peer=said.peer,
                previous_died=said.previous_died,
                arrived_at=now,
                sent_after=float("-inf"),
                welcomed_at=now,
            )
            self.rows[said.node] = row
        row.arrived_at = row.welcomed_at = now
        row.peer = said.peer
        row.attempt = said.attempt
        row.launching = said.launching
        row.ranks = tuple(RankAlive(rank.rank, rank.pid, rank.start_ticks) for rank in said.ranks)
        row.empty = not (said.ranks or said.launching)
        self.heard[said.node] = now
        return Greeting.KNOWN if known else Greeting.NEW

    def beat(self, said: Beat, now: float) -> Row | None:
        """The row as it is after this beat; None where the beat is stale or nobody's."""
        row = self.rows.get(said.node)
        if row is None or row.incarnation != said.incarnation:
            self.dropped["beat of an unknown agent"] += 1
            return None
        if said.seq <= row.seq:
            self.dropped["beat said before"] += 1
            return None
        row.seq = said.seq
        row.attempt = said.attempt
        row.empty = said.empty
        row.readings = said.readings
        row.arrived_at = now
        sent_after = said.echo or now
        row.sent_after = max(row.sent_after, sent_after)
        heard = now if now - sent_after <= self._late_s else sent_after
        self.heard[said.node] = max(self.heard[said.node], heard)
        return row


def unheard_events(events: tuple[AgentEvent, ...], known_seq: int) -> list[AgentEvent]:
    """What follows ``known_seq`` without a gap: an agent repeats all that is not journalled, oldest first."""
    fresh: list[AgentEvent] = []
    expected = known_seq + 1
    for event in events:
        if event.seq == expected:
            fresh.append(event)
            expected += 1
        elif event.seq > expected:
            break
    return fresh
