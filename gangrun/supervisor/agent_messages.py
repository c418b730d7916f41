"""What agents say, turned into events and answers.

An ack renews a lease, so it is given only by a supervisor that leads; its ``journalled_seq`` covers only events whose
record is durable, so an agent never forgets what could still be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

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
from gangrun.core.machine.transitions import WHY
from gangrun.core.model import Phase
from gangrun.core.protocol.takeover import candidates
from gangrun.ports import AgentSaid, Radio
from gangrun.supervisor.heartbeats import Greeting, Row, roster_of, unheard_events
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

if TYPE_CHECKING:
    from gangrun.supervisor.loop import Loop

FROM_AGENTS = frozenset(
    kind.__name__ for kind in (RankExited, RankFinished, FindingRaised, FirstStepSeen, CancelRequested, Notice)
)
HOLDING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
ASK_WHY_EVERY_S = 5.0
FRESH_SHARE = 0.5  # of D: an agent whose newest word of ours is older is given a new one to echo


class AgentMessages:
    """Reads letters for one loop."""

    def __init__(self, loop: Loop, radio: Radio, wall: Callable[[], float]) -> None:
        self.later: list[Stamped] = []  # came before the term's first event
        self._loop = loop
        self._radio = radio
        self._wall = wall
        self._candidates: tuple[PeerAddress, ...] = ()
        self._roster_count = 1
        self._count_at = self._ask_why_at = float("-inf")
        timing = loop.policy.timing
        self._beat_every_s = timing.beat_every_s
        self._fresh_s = FRESH_SHARE * timing.leader_lease_s

    def open(self, letter: AgentSaid, now: float) -> None:
        """One message of one agent."""
        said = letter.message
        match said:
            case Beat():
                self._beat(said, now)
            case Hello():
                self._hello(said, letter.peer, now)
            case CommandResult():
                self._result(said, now)
            case ProbeResult():
                self._loop.silence.answered(said)
                self._loop.touch()
            case _:
                self._loop.beats.dropped["not an agent's message"] += 1

    # ---- joining ----

    def _hello(self, said: Hello, peer: bytes, now: float) -> None:
        loop = self._loop
        if said.term_max > loop.term:
            loop.leave(f"{said.node} knows of term {said.term_max}")
            return
        stranger = self._stranger(said)
        if stranger:
            loop.beats.dropped["hello of a stranger"] += 1
            if said.node not in loop.beats.rows:
                self._radio.bind_peer(said.node, peer)
                self._radio.send(said.node, Rejected(loop.term, stranger))
            return
        greeting = loop.beats.hello(said, now)
        if greeting is Greeting.GONE:
            return
        self._radio.bind_peer(said.node, peer)
        if greeting is Greeting.NEW:
            loop.leadership.forget(said.node)
        loop.law_one.dialled(said.node, now)
        loop.silence.watch(now)
        self._count_at = float("-inf")
        self._radio.send(said.node, Welcome(loop.term, said.node, stamp=now))
        if loop.gathering is None:
            loop.tell(self._joins(loop.beats.rows[said.node], now), now)
            loop.roll_call.dismiss(said.node, now)
        loop.touch()

    def _stranger(self, said: Hello) -> str:
        facts = self._loop.facts
        if said.job != facts.job:
            return f"this supervisor is of job {facts.job}, not {said.job}"
        if facts.addresses and said.node not in facts.addresses:
            return f"{said.node} is not a node of this job"
        return ""

    def _joins(self, row: Row, now: float) -> list[Event]:
        """What this agent's presence means to the core; nothing where it is known already."""
        loop = self._loop
        known = loop.state.nodes.get(row.node)
        if known is not None and known.incarnation == row.incarnation:
            return loop.silence.heard(row.node, now) if row.node in loop.silence.suspects else []
        loop.silence.joined(row.node)
        if known is None:
            return [AgentJoined(row.node, row.incarnation, row.boot_id, row.slots_count)]
        return [AgentRejoined(row.node, row.incarnation, row.boot_id, row.slots_count, row.previous_died)]

    def gathered(self, now: float) -> None:
        """The term's first events, if there is nobody left to wait for."""
        loop = self._loop
        gathering = loop.gathering
        if gathering is None or not gathering.over(now):
            return
        loop.gathering = None
        loop.tell(gathering.events(), now)
        loop.count_rosters()
        if loop.facts.alone:
            loop.silence.adopt(loop.state)
        for node in sorted(loop.beats.rows):
            loop.tell(self._joins(loop.beats.rows[node], now), now)
        if WHY in loop.state.deadlines:
            self.ask_why(now)  # the last supervisor's question died with it
        later, self.later = self.later, []
        for stamped in later:
            loop.decide(stamped, now)

    # ---- beats ----

    def _beat(self, said: Beat, now: float) -> None:
        loop = self._loop
        if said.term_max > loop.term:
            loop.leave(f"{said.node} knows of term {said.term_max}")
            return
        row = loop.beats.beat(said, now)
        if row is None:
            return
        loop.leadership.heard(row.node, row.sent_after)
        if loop.gathering is None:
            if row.node in loop.silence.suspects:
                loop.tell(loop.silence.heard(row.node, now), now)
            loop.progress.observe(row, now)
            if said.events:
                self._events(row, said.events, now)
            if loop.progress.first_step_due:
                loop.touch()
        if loop.exit_code is None:
            self._answer(row, said, now)

    def _answer(self, row: Row, said: Beat, now: float) -> None:
        loop = self._loop
        if not loop.leadership.holds(now):
            stale = now - row.sent_after > self._fresh_s
            if stale and now - row.welcomed_at >= self._beat_every_s:
                row.welcomed_at = now  # renews nothing; its echo tells that the next beat is a new one
                self._radio.send(row.node, Welcome(loop.term, row.node, stamp=now))
            return
        if now >= self._count_at:
            self._count(now)
        self._radio.send(
            row.node,
            Ack(
                loop.term,
                said.seq,
                said.boottime,
                self._journalled(row),
                self._candidates,
                self._roster_count,
                now,
                self._wall(),
            ),
        )
        if not row.empty and loop.gathering is None and self._is_over(row.attempt):
            loop.roll_call.chase(row, f"attempt {row.attempt} is over", now)
            loop.touch()

    def _is_over(self, attempt: int) -> bool:
        state = self._loop.state
        return attempt >= 0 and (attempt < state.attempt or state.phase not in HOLDING)

    def _journalled(self, row: Row) -> int:
        durable = self._loop.ledger.durable
        incarnation, seq = ("", 0) if durable is None else durable.marks.get(row.node, ("", 0))
        return seq if incarnation == row.incarnation else 0

    def _count(self, now: float) -> None:
        loop = self._loop
        self._count_at = now + self._beat_every_s
        # A successor reads the roster on disk: a loss that is not there yet must not make its majority smaller.
        durable = loop.ledger.durable
        self._roster_count = max(1, len(roster_of(loop.state)), 0 if durable is None else len(roster_of(durable)))
        rows = loop.beats.rows
        names = candidates({n: node for n, node in loop.state.nodes.items() if n in rows}, loop.facts.node)
        self._candidates = tuple(rows[name].peer for name in names)

    # ---- events ----

    def _events(self, row: Row, events: tuple[AgentEvent, ...], now: float) -> None:
        loop = self._loop
        incarnation, known = loop.state.marks.get(row.node, ("", 0))
        for event in unheard_events(events, known if incarnation == row.incarnation else 0):
            origin = row.origin(event.seq)
            try:
                if event.kind not in FROM_AGENTS:
                    raise RecordError(f"{event.kind!r} is not for agents to say")
                stamped = self._heard(Stamped(event_of(event.kind, event.data), origin), now)
            except RecordError as error:
                loop.malformed(row.node, row.incarnation, event, str(error), now)
                continue
            loop.decide(stamped, now)

    def _heard(self, stamped: Stamped, now: float) -> Stamped:
        """A signal does not say why: where a scheduler can be asked, it is."""
        event = stamped.event
        if not isinstance(event, Notice) or event.kind is not NoticeKind.UNKNOWN or self._loop.facts.asks_why is None:
            return stamped
        self.ask_why(now)
        return replace(stamped, event=replace(event, asking=True))

    def ask_why(self, now: float) -> None:
        """Once for all agents that say the same; again where they say it later."""
        asks_why = self._loop.facts.asks_why
        if asks_why is not None and now >= self._ask_why_at:
            self._ask_why_at = now + ASK_WHY_EVERY_S
            asks_why()

    # ---- answers ----

    def _result(self, said: CommandResult, now: float) -> None:
        loop = self._loop
        row = loop.beats.rows.get(said.node)
        if row is None or row.incarnation != said.incarnation:
            loop.beats.dropped["answer of an unknown agent"] += 1
            return
        loop.tell(loop.roll_call.result(said, now), now)
        loop.touch()
