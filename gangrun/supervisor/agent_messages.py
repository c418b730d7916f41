"""What agents say, turned into events and answers.

An ack renews a lease, so it is given only by a supervisor that leads; its ``journalled_seq`` covers only events whose
record is durable, so an agent never forgets what could still be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    CancelRequested,
    Event,
    FindingRaised,
    FirstStepSeen,
    Notice,
    NoticeKind,
    RankExited,
    RankFinished,
    Stamped,
)
from gangrun.core.machine.running import abridged
from gangrun.core.machine.transitions import WHY
from gangrun.core.model import Phase, RunState
from gangrun.core.nodes import refilling
from gangrun.core.policy import Timing
from gangrun.core.protocol.takeover import candidates
from gangrun.ports import Radio
from gangrun.supervisor.gang_commands import GangCommands
from gangrun.supervisor.heartbeats import (
    Greeting,
    Heartbeats,
    Leadership,
    Row,
    Silence,
    count_again_at,
    roster_of,
    unheard_events,
)
from gangrun.supervisor.journal_queue import JournalQueue
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.progress import GangProgress
from gangrun.supervisor.takeover import TakeoverGather
from gangrun.wire.kinds import event_of
from gangrun.wire.messages import (
    Ack,
    AgentEvent,
    Beat,
    CommandResult,
    Hello,
    PeerAddress,
    ProbeResult,
    Rejected,
    Welcome,
)
from gangrun.wire.record import RecordError

FROM_AGENTS = frozenset(
    kind.__name__ for kind in (RankExited, RankFinished, FindingRaised, FirstStepSeen, CancelRequested, Notice)
)
HOLDING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
ASK_WHY_EVERY_S = 5.0
WHOLE_EVERY_S = 15.0  # between two heartbeats of an agent that tell of all its ranks
FRESH_SHARE = 0.5  # of D: an agent whose newest word of ours is older is given a new one to echo


class Supervisor(Protocol):
    """What agents' messages may do to the supervisor."""

    term: int
    state: RunState
    exit_code: int | None

    def decide(self, stamped: Stamped, now: float) -> None:
        """One event through the core, onto the journal."""

    def tell(self, events: list[Event], now: float) -> None:
        """Events of this supervisor's own tables."""

    def malformed(self, node: str, incarnation: str, event: AgentEvent, why: str, now: float) -> None:
        """An event that cannot be read."""

    def leave(self, why: str) -> None:
        """A newer term exists."""

    def touch(self) -> None:
        """A table changed: look anew at what is due."""


@dataclass(frozen=True, slots=True)
class AgentTables:
    """What is known of the agents."""

    beats: Heartbeats
    leadership: Leadership
    silence: Silence
    progress: GangProgress
    takeover: TakeoverGather
    commands: GangCommands
    journal: JournalQueue


class AgentMessages:
    """Reads what agents say, keeps the tables, and answers."""

    def __init__(
        self,
        supervisor: Supervisor,
        tables: AgentTables,
        facts: RunFacts,
        radio: Radio,
        timing: Timing,
        wall: Callable[[], float],
    ) -> None:
        self.later: list[Stamped] = []  # came before the term's first event
        self._supervisor = supervisor
        self._tables = tables
        self._facts = facts
        self._radio = radio
        self._wall = wall
        self._candidates: tuple[PeerAddress, ...] = ()
        self._roster_count = 1
        self._count_at = self._ask_why_at = float("-inf")
        self._beat_every_s = timing.beat_every_s
        self._fresh_s = FRESH_SHARE * timing.leader_lease_s

    def open(self, peer: bytes, said: object, now: float, came_at: float) -> None:
        """One message of one agent, which may have waited in our own queue since ``came_at``."""
        match said:
            case Beat():
                self._beat(said, now, came_at)
            case Hello():
                self._hello(said, peer, now)
            case CommandResult():
                self._result(said, now)
            case ProbeResult():
                self._tables.silence.answered(said)
                self._supervisor.touch()
            case _:
                self._tables.beats.dropped["not an agent's message"] += 1

    # ---- joining ----

    def _hello(self, said: Hello, peer: bytes, now: float) -> None:
        supervisor, tables = self._supervisor, self._tables
        if said.term_max > supervisor.term:
            supervisor.leave(f"{said.node} knows of term {said.term_max}")
            return
        stranger = self._stranger(said)
        if stranger:
            tables.beats.dropped["hello of a stranger"] += 1
            if said.node not in tables.beats.rows:
                self._radio.bind_peer(said.node, peer)
                self._radio.send(said.node, Rejected(supervisor.term, stranger))
            return
        greeting = tables.beats.hello(said, now)
        if greeting is Greeting.GONE:
            return
        self._radio.bind_peer(said.node, peer)
        if greeting is Greeting.NEW:
            tables.leadership.forget(said.node)
        tables.takeover.dialled(said.node, now)
        tables.silence.watch(said, now)
        self._count_at = min(self._count_at, count_again_at(now, len(tables.beats.rows)))
        self._radio.send(said.node, Welcome(supervisor.term, said.node, stamp=now, whole_every_s=WHOLE_EVERY_S))
        if not tables.takeover.gathering:
            supervisor.tell(self._joins(tables.beats.rows[said.node], now), now)
            tables.commands.dismiss(said.node, now)
        supervisor.touch()

    def _stranger(self, said: Hello) -> str:
        facts = self._facts
        if said.job != facts.job:
            return f"this supervisor is of job {facts.job}, not {said.job}"
        if said.refill:
            return refilling.unwanted(self._supervisor.state, said.refill, said.node, facts.expected)
        if facts.addresses and said.node not in facts.addresses:
            return f"{said.node} is not a node of this job"
        return ""

    def _joins(self, row: Row, now: float) -> list[Event]:
        """What this agent's presence means to the core; nothing where it is known already."""
        supervisor, tables = self._supervisor, self._tables
        known = supervisor.state.roster.nodes.get(row.node)
        if known is not None and known.incarnation == row.incarnation:
            return tables.silence.heard(row.node, now) if row.node in tables.silence.suspects else []
        tables.silence.joined(row.node)
        said = row.hello
        if known is None:
            return [AgentJoined(row.node, row.incarnation, said.boot_id, said.slots_count, said.addresses, said.refill)]
        return [
            AgentRejoined(
                row.node, row.incarnation, said.boot_id, said.slots_count, said.previous_died, said.addresses,
                said.refill,
            )
        ]  # fmt: skip

    def gathered(self, now: float) -> None:
        """The term has begun: whoever is there joins, and what came meanwhile is decided."""
        supervisor, tables = self._supervisor, self._tables
        if self._facts.alone:
            tables.silence.adopt(supervisor.state)
        for node in sorted(tables.beats.rows):
            supervisor.tell(self._joins(tables.beats.rows[node], now), now)
        if WHY in supervisor.state.timers.deadlines:
            self.ask_why(now)  # the last supervisor's question died with it
        later, self.later = self.later, []
        for stamped in later:
            supervisor.decide(stamped, now)

    # ---- beats ----

    def _beat(self, said: Beat, now: float, came_at: float) -> None:
        supervisor, tables = self._supervisor, self._tables
        if said.term_max > supervisor.term:
            supervisor.leave(f"{said.node} knows of term {said.term_max}")
            return
        row = tables.beats.beat(said, came_at)
        if row is None:
            return
        tables.leadership.heard(row.node, row.sent_after)
        if not tables.takeover.gathering:
            if row.node in tables.silence.suspects:
                supervisor.tell(tables.silence.heard(row.node, came_at), now)
            tables.progress.observe(row, now)
            if said.events:
                self._events(row, said.events, now)
            if tables.progress.first_step_due:
                supervisor.touch()
        if supervisor.exit_code is None:
            self._answer(row, said, now)

    def _answer(self, row: Row, said: Beat, now: float) -> None:
        supervisor, tables = self._supervisor, self._tables
        if not tables.leadership.holds(now):
            stale = now - row.sent_after > self._fresh_s
            if stale and now - row.welcomed_at >= self._beat_every_s:
                row.welcomed_at = now  # renews nothing; its echo tells that the next beat is a new one
                self._radio.send(row.node, Welcome(supervisor.term, row.node, stamp=now, whole_every_s=WHOLE_EVERY_S))
            return
        if now >= self._count_at:
            self._count(now)
        self._radio.send(
            row.node,
            Ack(
                supervisor.term,
                said.seq,
                said.boottime,
                self._journalled(row),
                row.to_name(self._candidates, said.echo, now),
                self._roster_count,
                now,
                self._wall(),
                tables.progress.asks_for_all(now),
            ),
        )
        if not row.empty and not tables.takeover.gathering and self._is_over(row.attempt):
            tables.commands.chase(row, now)
            supervisor.touch()

    def _is_over(self, attempt: int) -> bool:
        state = self._supervisor.state
        return attempt >= 0 and (attempt < state.attempt.number or state.phase not in HOLDING)

    def _journalled(self, row: Row) -> int:
        incarnation, seq = self._tables.journal.durable_marks.get(row.node, ("", 0))
        return seq if incarnation == row.incarnation else 0

    def _count(self, now: float) -> None:
        supervisor, tables = self._supervisor, self._tables
        self._count_at = now + self._beat_every_s
        # A successor reads the roster on disk: a loss that is not there yet must not make its majority smaller.
        counts = [
            len(roster_of(nodes)) for nodes in (supervisor.state.roster.nodes, tables.journal.durable_nodes or {})
        ]
        self._roster_count = max(1, *counts)
        rows = tables.beats.rows
        names = candidates(
            {n: node for n, node in supervisor.state.roster.nodes.items() if n in rows}, self._facts.node
        )
        found = tuple(rows[name].hello.peer for name in names)
        if found != self._candidates:  # a new object tells each row that they are others
            self._candidates = found

    # ---- events ----

    def _events(self, row: Row, events: tuple[AgentEvent, ...], now: float) -> None:
        supervisor = self._supervisor
        incarnation, known = supervisor.state.marks.get(row.node, ("", 0))
        for event in unheard_events(events, known if incarnation == row.incarnation else 0):
            origin = row.origin(event.seq)
            try:
                if event.kind not in FROM_AGENTS:
                    raise RecordError(f"{event.kind!r} is not for agents to say")
                stamped = self._heard(row, Stamped(event_of(event.kind, event.data), origin), now)
            except RecordError as error:
                supervisor.malformed(row.node, row.incarnation, event, str(error), now)
                continue
            supervisor.decide(stamped, now)

    def _heard(self, row: Row, stamped: Stamped, now: float) -> Stamped:
        """A signal does not say why: where a scheduler can be asked, it is. Of many ranks few keep their texts, and
        the order in which ranks of different nodes fell is told by one clock.
        """
        event = stamped.event
        if isinstance(event, RankExited):
            died = event.exit
            at, written_at = row.on_run_clock(died.at), row.on_run_clock(died.written_at)
            event = replace(event, exit=replace(died, at=at, written_at=written_at))
            return replace(stamped, event=abridged(self._supervisor.state, event))
        if not isinstance(event, Notice) or event.kind is not NoticeKind.UNKNOWN or self._facts.asks_why is None:
            return stamped
        if row.hello.refill:  # of another job: what becomes of it its watcher tells
            return stamped
        self.ask_why(now)
        return replace(stamped, event=replace(event, asking=True))

    def ask_why(self, now: float) -> None:
        """Once for all agents that say the same; again where they say it later."""
        asks_why = self._facts.asks_why
        if asks_why is not None and now >= self._ask_why_at:
            self._ask_why_at = now + ASK_WHY_EVERY_S
            asks_why()

    # ---- answers ----

    def _result(self, said: CommandResult, now: float) -> None:
        supervisor, tables = self._supervisor, self._tables
        row = tables.beats.rows.get(said.node)
        if row is None or row.incarnation != said.incarnation:
            tables.beats.dropped["answer of an unknown agent"] += 1
            return
        supervisor.tell(tables.commands.result(said, now), now)
        supervisor.touch()
