"""An agent's own end: when it leaves, with which code, and what a signal to it means.

It leaves once its ranks are gone, or after ``leave_within_s`` all the same. A signal alone ends nothing while a
supervisor is there to say what it means; a second one does.
"""

from __future__ import annotations

import signal
import zlib

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.effects import Effect
from gangrun.agent.brain.facts import AgentConfig, Counters
from gangrun.agent.brain.follow import REFUSALS_MAX, REFUSED, Follow
from gangrun.agent.brain.line import LeaseKeeper, Outbox, SampleReport
from gangrun.agent.brain.orders import Orders
from gangrun.core.events import (
    CancelRequested,
    Event,
    FindingRaised,
    Notice,
    NoticeKind,
    RankExited,
    RankFinished,
    StacksTaken,
)
from gangrun.wire.messages import (
    Ack,
    AskSave,
    Beat,
    BetweenAgents,
    CheckNode,
    Dial,
    Farewell,
    Hello,
    Launch,
    Ping,
    Pong,
    Prepare,
    Probe,
    ProbeResult,
    Promise,
    Recover,
    Rejected,
    Stacks,
    Stop,
    ToAgent,
    VerifyShare,
    Welcome,
)

NEVER = float("inf")


class Departure:
    """Asked for or not, begun or not, done or not."""

    def __init__(self, config: AgentConfig, lease: LeaseKeeper, orders: Orders) -> None:
        self.gone = False
        self._config, self._lease, self._orders = config, lease, orders
        self._leaving: tuple[int, str] | None = None
        self._leave_by = self._terminate_by = NEVER
        self._signals_count = 0

    @property
    def begun(self) -> bool:
        """It leaves: nothing is started here any more."""
        return self._leaving is not None

    @property
    def due(self) -> float:
        """When ``if_due`` has something to do."""
        return min(self._leave_by, self._terminate_by)

    def asked(self, fact: facts.TerminateAsked, now: float) -> tuple[list[Effect], Event | None]:
        """A signal came: what to do at once, or what to tell the supervisor."""
        self._signals_count += 1
        if self._signals_count > 1:
            return self.begin(128 + fact.signal, f"signal {fact.signal}, twice", now), None
        grace_s = self._config.notice_grace_s
        self._terminate_by = now + grace_s
        if fact.signal == signal.SIGINT:
            return [], CancelRequested(f"SIGINT on {self._config.node}")
        return [], Notice(NoticeKind.UNKNOWN, grace_s)

    def begin(self, code: int, reason: str, now: float) -> list[Effect]:
        """Stop the ranks, then leave."""
        if self._leaving is not None:
            return []
        self._leaving = (code, reason)
        self._terminate_by = NEVER
        self._leave_by = now + self._config.leave_within_s
        return self._orders.stop_all(self._lease.term_max, 0.0, reason) + self.if_due(now)

    def if_due(self, now: float) -> list[Effect]:
        """Leave, if the time has come."""
        if self._leaving is not None:
            if now < self._leave_by and not self._orders.empty:
                return []
            self.gone = True
            return [effects.Leave(*self._leaving)]
        if now < self._terminate_by:
            return []
        if self._lease.unacked_s(now) < self._config.timing.takeover_after_s:
            self._terminate_by = now + self._config.timing.takeover_after_s  # a supervisor is at it
            return []
        return self.begin(128 + signal.SIGTERM, "a signal, and no supervisor to say what it means", now)


JOURNAL_REFUSED = (
    f"the run's journal cannot be used, as {REFUSALS_MAX} supervisors in a row have said above: a person must look"
)

__all__ = ["AgentBrain", "AgentConfig"]


class AgentBrain:
    """One incarnation of one agent."""

    def __init__(self, config: AgentConfig, now: float) -> None:
        self.config = config
        self.lease = LeaseKeeper(config.timing, now)
        self.orders = Orders(config.node, config.incarnation)
        self.outbox = Outbox()
        self.follow = Follow(
            config.peer, config.incarnation, config.timing, config.roster_count, config.founder, guest=config.refill > 0
        )
        self.counters = Counters()
        self.departure = Departure(config, self.lease, self.orders)
        self._ticked_at = now
        self.next_beat_at = NEVER
        self._samples = SampleReport()
        self._standbys = (0, 0)
        self._probes: dict[str, tuple[float, bool]] = {}  # node -> until when it is waited for, does its host answer
        # beats of a big gang are spread over the period, always the same way for one incarnation
        self._beat_phase = zlib.crc32(config.incarnation.encode()) % 1000 / 1000.0

    # ---- what a simulator's invariants look at -----------------------------------------------------------------

    @property
    def term_max(self) -> int:
        """The highest term ever heard of."""
        return self.lease.term_max

    @property
    def lease_deadline(self) -> float:
        """Until when ranks may live here."""
        return self.lease.deadline

    @property
    def empty(self) -> bool:
        """As the next beat will say."""
        return self.orders.empty

    @property
    def probes(self) -> bool:
        """Is it waiting for the answer of a node that it was asked about?"""
        return bool(self._probes)

    @property
    def gone(self) -> bool:
        """Nothing is done or said any more."""
        return self.departure.gone

    # ---- inputs ------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """First call: look for the newest term."""
        return self.follow.find(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due at ``now``."""
        if self.gone:
            return []
        self._note_gap(now)
        done = self._with_hello(self.follow.tick(self.lease, now))
        if self.lease.line is not None and self.lease.talks:
            if now >= self.lease.redial_at:
                self.lease.redialled(now)
                done += self._dial_effects(self.lease.line)
            elif now >= self.next_beat_at:
                done.append(effects.SendSupervisor(self.beat(now) if self.lease.welcomed else self.hello()))
        while now >= self.next_beat_at:
            self.next_beat_at += self.config.timing.beat_every_s
        for node in [n for n, (until, _) in self._probes.items() if now >= until]:
            _, is_up = self._probes.pop(node)
            done += self._say(ProbeResult(self.config.node, node, False, is_up))
        return done + self.departure.if_due(now)

    def _note_gap(self, now: float) -> None:
        """After a pause of our own the acks lie in a socket that nobody has read yet: two beats to be heard again."""
        grace_s = 2.5 * self.config.timing.beat_every_s
        if now - self._ticked_at > grace_s and self.lease.line is not None:
            self.lease.patient_until(now + grace_s)
        self._ticked_at = now

    def from_supervisor(self, message: ToAgent, now: float) -> list[Effect]:
        """A message on the line dialled last. What is of a lower term, or while promised away, is not believed."""
        if self.gone:
            return []
        if isinstance(message, Rejected):
            return self._rejected(message, now)
        if not self.lease.follows(message.term):
            return self._not_followed(message.term, now)
        match message:
            case Welcome(reading=True):
                self.lease.patient_while_reading(now)
                return []
            case Welcome():
                if not self.lease.welcomed:  # else it is only a newer word to echo, from one that may be overloaded
                    self._samples.welcomed(message.whole_every_s)
                self.lease.welcomed = True
                self.lease.heard(message.stamp, now)
                return self._say(self.beat(now))
            case Ack():
                return self._acked(message, now)
            case Probe():
                self._probes[message.target.node] = now + self.config.timing.beat_every_s, False
                ping = Ping(self.config.node, self.lease.term_max)
                return [effects.SendPeer(message.target, ping), effects.Knock(message.target)]
            case Farewell():
                done = self.orders.take(message, self.outbox.full, now)
                return done + self.departure.begin(message.exit_code, message.reason, now)
            case Prepare() | Launch() | Stop() | Stacks() | AskSave() | CheckNode() | Recover() | VerifyShare():
                if self.departure.begun and isinstance(message, Prepare | Launch):
                    return []
                if isinstance(message, Prepare | Launch) and not self.lease.live(now):
                    return self._say(self.beat(now))  # first an ack, then ranks; the command is said again
                return self.orders.take(message, self.outbox.full, now)

    def from_peer(self, message: BetweenAgents, now: float, route: bytes = b"") -> list[Effect]:
        """A message of another agent, or of a new supervisor (``Dial``); ``route`` leads back to it."""
        if self.gone:
            return []
        match message:
            case Dial():
                return self._dial(message, now)
            case Ping():
                return self.follow.on_ping(message, self.lease, route, now)
            case Promise():
                return self.follow.on_promise(message, self.lease, route, now)
            case Pong():
                done: list[Effect] = []
                if self._probes.pop(message.node, None) is not None:
                    done = self._say(ProbeResult(self.config.node, message.node, True, True))
                return done + self.follow.on_pong(message, self.lease, now)

    def local(self, fact: facts.Fact, now: float) -> list[Effect]:
        """Something happened on this node."""
        if self.gone:
            return []
        match fact:
            case facts.TermFound():
                return self._term_found(fact, now)
            case facts.NodePrepared() | facts.RanksLaunched() | StacksTaken() | facts.Checked() | facts.DiskTaskDone():
                return self._told(self.orders.outcome(fact))
            case facts.RankEnded():
                return self._rank_ended(fact, now)
            case facts.RanksStopped():
                done = self._told(self.orders.on_stopped(fact))
                return done + self.departure.if_due(now)
            case facts.ReadingsTaken():
                return self._read(fact)
            case facts.StandbysKept():
                self._standbys = fact.count, fact.memory_bytes
                return []
            case facts.FindingReported():
                return self._tell(FindingRaised(fact.finding), now)
            case facts.HostAnswered():
                return self._host_answered(fact.node)
            case facts.SupervisorRefused():
                self.follow.asked.refused(now)
                return []
            case facts.SupervisorExited():
                done = self.follow.supervisor_exited(fact.code, fact.term, now)
                return done + (
                    self.departure.begin(REFUSED, JOURNAL_REFUSED, now) if self.follow.asked.hopeless else []
                )
            case facts.TerminateAsked():
                done, event = self.departure.asked(fact, now)
                return done if event is None else self._tell(event, now)

    def _host_answered(self, node: str) -> list[Effect]:
        """Said at once; its agent may still answer."""
        if node not in self._probes:
            return []
        self._probes[node] = self._probes[node][0], True
        return self._say(ProbeResult(self.config.node, node, False, True))

    # ---- beats -------------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Who I am, what I hold."""
        config, orders = self.config, self.orders
        return Hello(
            node=config.node,
            job=config.job,
            boot_id=config.boot_id,
            incarnation=config.incarnation,
            term_max=self.lease.term_max,
            slots_count=config.slots_count,
            attempt=orders.attempt,
            ranks=tuple(orders.alive.values()),
            peer=config.peer,
            launching=orders.launching,
            previous_died=config.previous_died,
            nofile_hard=config.nofile_hard,
            addresses=config.addresses,
            peers=self.follow.candidates,
            refill=config.refill,
        )

    def beat(self, now: float) -> Beat:
        """The next beat, as if sent now; its seq is used up."""
        readings, is_brief = self._samples.page(self.orders.attempt, now) if self.orders.alive else ((), False)
        return Beat(
            node=self.config.node,
            incarnation=self.config.incarnation,
            seq=self.lease.stamp(now),
            boottime=now,
            term_max=self.lease.term_max,
            attempt=self.orders.attempt,
            empty=self.orders.empty,
            readings=readings,
            events=self.outbox.page(),
            echo=self.lease.echo,
            is_brief=is_brief,
            standbys=(0, 0) if is_brief else self._standbys,
        )

    def catch_up_acked(self, sent_at: float, now: float, count: int = 1, stamp: float = 0.0) -> list[Effect]:
        """Account for ``count`` beats that were sent and acked unseen, the newest at ``sent_at`` (simulator only)."""
        if self.gone or not self.lease.talks:
            return []
        self._ticked_at = now
        self._samples.start_over()
        self.lease.skip(count)
        self.lease.heard(stamp, now)
        self.follow.acked(self.follow.roster_count)
        deadline = self.lease.renewed(sent_at, now)
        self.next_beat_at = sent_at + self.config.timing.beat_every_s
        return [] if deadline is None else [effects.WriteLease(deadline)]

    def next_wake(self, beats: bool = True) -> float:
        """When ``tick`` has something to do; ``beats=False`` leaves out beats and re-dials for want of acks."""
        if self.gone:
            return NEVER
        due = min(self.follow.due(self.lease), self.departure.due)
        if self._probes:
            due = min(due, *(until for until, _ in self._probes.values()))
        if beats and self.lease.talks:
            due = min(due, self.next_beat_at, self.lease.redial_at)
        return due

    # ---- the line ----------------------------------------------------------------------------------------------

    def _acked(self, ack: Ack, now: float) -> list[Effect]:
        self.lease.heard(ack.stamp, now)
        if not 0 < ack.stamp < self.lease.echo:  # an echo says that these are known, whatever else the ack is worth
            self.follow.name(ack.candidates)
        deadline = self.lease.acked(ack, now)
        if self.lease.acked_seq != ack.seq:
            self.counters.stale_acks += 1
            return []
        self._samples.is_asked = ack.asks_for_all
        self.outbox.journalled(ack.journalled_seq)
        self.follow.acked(ack.roster_count)
        return [] if deadline is None else [effects.WriteLease(deadline)]

    def _dial(self, dial: Dial, now: float) -> list[Effect]:
        if not self.lease.wants(dial):
            return []
        self.lease.dialled(dial, now)
        led = self.follow.dialled(dial)
        beat_every_s = self.config.timing.beat_every_s
        self.next_beat_at = now + beat_every_s * (0.5 + 0.5 * self._beat_phase)
        return self._dial_effects(dial) + led

    def _dial_effects(self, dial: Dial) -> list[Effect]:
        return self._with_hello([effects.DialTerm(dial.term, dial.endpoint, dial.server_key)])

    def _with_hello(self, done: list[Effect]) -> list[Effect]:
        """Whoever dials says hello first."""
        said: list[Effect] = []
        for effect in done:
            said.append(effect)
            if isinstance(effect, effects.DialTerm):
                said.append(effects.SendSupervisor(self.hello()))
        return said

    def _term_found(self, fact: facts.TermFound, now: float) -> list[Effect]:
        if fact.claim is None:
            return self.follow.found_none(self.lease, 0, now)
        if fact.job != self.config.job:
            # a job that is over; its number counts all the same
            self.lease.see(fact.claim.term)
            line = self.lease.line
            if self.follow.asked.unwanted if line is None else fact.claim.term > line.term:
                return self.departure.begin(0, f"the run went on in job {fact.job}", now)
            return self.follow.found_none(self.lease, fact.claim.term, now)
        if fact.holder_ended:
            self.follow.ended_term = fact.claim.term
        return self._dial(fact.claim, now)

    def _not_followed(self, term: int, now: float) -> list[Effect]:
        if term < self.lease.term_max:
            self.counters.lower_term += 1
        else:
            self.counters.not_followed += 1
        return self.follow.find(now) if self.lease.see(term) else []

    def _rejected(self, message: Rejected, now: float) -> list[Effect]:
        """A supervisor that does not want us: if it knows why, there is a newer term to be found."""
        self.lease.welcomed = False
        self.counters.not_followed += 1
        return self.follow.find(now) if self.lease.see(message.term) else []

    def _say(self, message: ProbeResult | Beat) -> list[Effect]:
        return [effects.SendSupervisor(message)] if self.lease.talks else []

    def _told(self, done: list[Effect]) -> list[Effect]:
        """Answers come from memory later where there is nobody to hear them now."""
        return done if self.lease.talks else [e for e in done if not isinstance(e, effects.SendSupervisor)]

    # ---- events ------------------------------------------------------------------------------------------------

    def _tell(self, event: Event, now: float) -> list[Effect]:
        """Queue an event and do not wait for the next beat to say it."""
        if not self.outbox.tell(event) or not self.lease.welcomed:
            return []
        return self._say(self.beat(now)) if self.lease.talks else []

    def _rank_ended(self, fact: facts.RankEnded, now: float) -> list[Effect]:
        ended = self.orders.on_ended(fact, self.lease.live(now))
        if ended is None:
            return []
        if ended.code == 0 and not ended.by_us:  # a script that is asked to stop may well end with 0: no success
            told = RankFinished(
                fact.attempt, ended.rank, ended.node, ended.at, ended.step, ended.log_reach, ended.log_step,
                ended.total_steps, ended.loss, ended.anomalies, ended.checks,
            )  # fmt: skip
            return self._tell(told, now)
        return self._tell(RankExited(fact.attempt, ended), now)

    def _read(self, fact: facts.ReadingsTaken) -> list[Effect]:
        if fact.attempt != self.orders.attempt:
            return []
        self._samples.take(fact.attempt, fact.readings)  # first steps and stalls are judged where all of them meet
        return []
