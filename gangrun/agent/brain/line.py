"""The line to the supervisor: which term this agent follows, its lease, events, clock and samples of ranks.

The rules of the lease, each of which closes a hole that was seen (``docs/protocol.md``):

- ``term_max`` never falls; nothing of a lower term is believed.
- The lease ends at (send time of the newest acked beat) + ``fence_after_s``. The send time is this agent's own note of
  it, never the echo, so no ack can extend the lease past what was really sent; an ack of a beat that was sent to
  another term is not an ack. Seeing a newer term makes it dial; it never renews.
- While a promise is held nothing is said to, or believed from, a term up to the promised one: the old supervisor must
  lose its majority of beats, or a node that it still acks would live longer than law 1 thinks.
- A heartbeat makes its supervisor lead for D from the newest word that it echoes, be that word an ack or not
  (``proves_until``). No promise counts before that.

An event gets its seq (within this incarnation) when it is told, rides on every beat until the supervisor acks it as
journalled, and only then is forgotten. Bounds, so that a stalled journal cannot grow an agent:

- of events about ranks there are at most a few per rank and attempt, and ``full`` refuses the next attempt
  (back-pressure: a run whose journal stands still starts nothing anyway);
- findings beyond ``FINDINGS_MAX`` are dropped, counted, and the count is said with the next one that fits.

Each ack echoes when its beat was sent and says the supervisor's wall time: the midpoint of the round trip is off by
half of it at most. So the shortest of the last trips says most, and what is within its error is no skew. Nothing
depends on wall clocks but what people read, so a skew is told, once, and excludes nobody.

Samples of ranks. To read a sample of each rank is most of what a heartbeat costs the supervisor, and most samples
tell only that a rank steps on. So a heartbeat is *whole* only now and then; all others are *brief*: they carry the
samples that tell something new, and the supervisor keeps the rest as it was. A heartbeat is whole

- for a supervisor that has not said how often it wants one (an older version does not): each of them;
- as the first on a connection, of an attempt, and after a rank has started or ended;
- when the time that the supervisor has said is over;
- as long as the supervisor asks for it: the gang makes no progress, so it looks at all ranks for signs of a hang.

A brief one carries

- rank 0, which people look at;
- of the ranks that tell of progress from look to look, the farthest: the steps of the gang are known as soon as ever;
- each other rank of which the supervisor does not know all, at once: told later, in a whole heartbeat, it would be
  taken for progress that is made then;
- each rank that stands, is stopped, or tells of its pace, its GPU or what it will run out of;
- each rank whose phase, process, anomalies or checks are others than the supervisor knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from gangrun.core.events import Event, FindingRaised
from gangrun.core.evidence import NodeFinding
from gangrun.core.policy import Timing
from gangrun.core.protocol.lease import lease_deadline
from gangrun.core.recovery.hang import tells
from gangrun.wire.messages import Ack, AgentEvent, Dial, RankSample

NEVER = float("inf")
SENT_MAX = 64  # send times kept: more than the beats of one lease
REDIAL_BEATS_MAX = 8
READING_TAKEOVERS = 4  # so often ``takeover_after_s`` may a new term read before it acks


class LeaseKeeper:
    """The line to the newest term, and the lease it renews."""

    def __init__(self, timing: Timing, now: float) -> None:
        self.timing = timing
        self.term_max = 0
        self.line: Dial | None = None
        self.welcomed = False
        self.promised_term = 0  # > 0 while a promise is held
        self.seq = 0
        self.acked_seq = 0
        self.deadline = 0.0
        self.echo = 0.0  # newest word of this term's supervisor, by its own clock
        self.proves_until = 0.0  # until then a heartbeat that echoed a word may make its supervisor lead
        self.acked_at = now  # when the newest good ack came; at first, when this agent began to wait for one
        self.redial_at = NEVER
        self._redial_beats = 2
        self._dialled_at = now  # the newest term, first
        self._sent: dict[int, float] = {}

    def follows(self, term: int) -> bool:
        """Is this the term whose word counts here and now."""
        return self.line is not None and term == self.line.term >= self.term_max and term > self.promised_term

    @property
    def talks(self) -> bool:
        """May anything be said on the line."""
        return self.line is not None and self.follows(self.line.term)

    def see(self, term: int) -> bool:
        """Note that ``term`` exists; True if it is news."""
        if term <= self.term_max:
            return False
        self.term_max = term
        return True

    def unacked_s(self, now: float) -> float:
        """How long no supervisor has acked this agent."""
        return max(0.0, now - self.acked_at)

    def patient_until(self, until: float) -> None:
        """Neither look for another supervisor nor dial again before that."""
        self.acked_at = max(self.acked_at, until - self.timing.takeover_after_s)
        self.redial_at = max(self.redial_at, until)

    def patient_while_reading(self, now: float) -> None:
        """The newest term is there and reads. Not for ever: another must have time to follow it before leases end."""
        longest = self._dialled_at + READING_TAKEOVERS * self.timing.takeover_after_s
        self.patient_until(min(now + self.timing.takeover_after_s, longest))

    def live(self, now: float) -> bool:
        """May a rank live now."""
        return now < self.deadline

    def wants(self, dial: Dial) -> bool:
        """Is this a line worth dialling: a newer term, or the newest one where there is no line to it."""
        return dial.term >= self.term_max and (self.line is None or dial.term > self.line.term)

    def dialled(self, dial: Dial, now: float) -> None:
        """A new socket is being opened to ``dial``."""
        if self.line is None or self.line.term != dial.term:
            self._sent.clear()
            self.echo = 0.0
            self._redial_beats = 2
            self.promised_term = 0
            self._dialled_at = now
            self.acked_at = now  # it has as long to ack as any other, or we would promise it away before its first word
        self.see(dial.term)
        self.line = dial
        self.welcomed = False
        self._redial_after(now)

    def redialled(self, now: float) -> None:
        """The same term, a new socket: the last one gave no ack for too long. Each time it waits longer."""
        self.welcomed = False
        self._redial_beats = min(2 * self._redial_beats, REDIAL_BEATS_MAX)
        self._redial_after(now)

    def _redial_after(self, now: float) -> None:
        # half a beat more than the beats themselves, so that the last one's ack has time to come
        self.redial_at = now + (self._redial_beats + 0.5) * self.timing.beat_every_s

    def heard(self, stamp: float, now: float) -> None:
        """The term followed said something at ``stamp`` on its clock: beats sent from now on prove it."""
        if stamp > self.echo:
            self.echo = stamp
            self.proves_until = now + self.timing.leader_lease_s * (1 + self.timing.drift)

    def stamp(self, now: float) -> int:
        """Count a beat that is sent now; its seq."""
        self.seq += 1
        self._sent[self.seq] = now
        if len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]
        return self.seq

    def skip(self, count: int) -> None:
        """Count beats that only a simulator knows of."""
        self.seq += count

    def acked(self, ack: Ack, now: float) -> float | None:
        """Believe an ack or not: the new end of the lease, or None where it changes nothing.

        Callers check ``follows`` first; an ack of an older or unknown beat changes nothing.
        """
        sent_at = self._sent.get(ack.seq)
        if sent_at is None:  # never sent, of another term, or older than one that was acked
            return None
        self.acked_seq = ack.seq
        for seq in [s for s in self._sent if s <= ack.seq]:
            del self._sent[seq]
        return self.renewed(sent_at, now)

    def renewed(self, sent_at: float, now: float) -> float | None:
        """A beat sent at ``sent_at`` was acked by the term followed."""
        self.acked_at = max(self.acked_at, now)
        self._redial_beats = 2
        self._redial_after(now)
        deadline = lease_deadline(sent_at, self.timing)
        if deadline <= self.deadline:
            return None
        self.deadline = deadline
        return deadline


PER_BEAT_MAX = 64
FINDINGS_MAX = 64
LAUNCH_MAX = 1024  # more than this not journalled: no launch


class Outbox:
    """A queue with a memory of what the journal has."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.journalled_seq = 0
        self.findings_dropped_count = 0
        self._findings_count = 0
        self._events: deque[AgentEvent] = deque()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        """Too much waits for the journal: start nothing that could add to it."""
        return len(self._events) > LAUNCH_MAX

    def tell(self, event: Event) -> bool:
        """Queue a core event; False where it was dropped (only ever a finding)."""
        if isinstance(event, FindingRaised):
            if self._findings_count >= FINDINGS_MAX:
                self.findings_dropped_count += 1
                return False
            event = self._with_dropped(event)
            self._findings_count += 1
        self.last_seq += 1
        data: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
        self._events.append(AgentEvent(self.last_seq, type(event).__name__, data))
        return True

    def _with_dropped(self, event: FindingRaised) -> FindingRaised:
        if not self.findings_dropped_count:
            return event
        sentence = f"{event.finding.sentence} ({self.findings_dropped_count} findings before it were dropped)"
        self.findings_dropped_count = 0
        return FindingRaised(replace(event.finding, sentence=sentence))

    def journalled(self, seq: int) -> None:
        """Forget every event up to ``seq``; a number never given is not believed."""
        if seq > self.last_seq:
            return
        self.journalled_seq = max(self.journalled_seq, seq)
        while self._events and self._events[0].seq <= seq:
            if self._events.popleft().kind == FindingRaised.__name__:
                self._findings_count -= 1

    def page(self) -> tuple[AgentEvent, ...]:
        """The oldest events, as many as one beat may carry."""
        if not self._events:
            return ()
        return tuple(self._events[i] for i in range(min(PER_BEAT_MAX, len(self._events))))


CHECK = "clock_skew"
TRIPS_MIN_COUNT, TRIPS_MAX_COUNT = 5, 30
LIMIT_S = 1.0


class ClockSkew:
    """Fed with acks; knows the skew, and says it when it is too much."""

    def __init__(self, node: str, limit_s: float = LIMIT_S) -> None:
        self._node, self._limit_s = node, limit_s
        self._term = 0
        self._trips: deque[tuple[float, float]] = deque(maxlen=TRIPS_MAX_COUNT)  # (how long, ours less theirs)
        self._told = False

    def heard(self, ack: Ack, now: float, wall: float) -> NodeFinding | None:
        """One ack at ``now``, by the clock that stamped its beat, and ``wall``, by the other: what is to be told."""
        if ack.term != self._term:
            self._term = ack.term
            self._trips.clear()  # another supervisor has another clock
        if ack.wall <= 0 or now < ack.boottime:
            return None
        trip_s = now - ack.boottime
        self._trips.append((trip_s, wall - trip_s / 2 - ack.wall))
        if self._told or len(self._trips) < TRIPS_MIN_COUNT or not (words := self.words()):
            return None
        self._told = True
        return NodeFinding(self._node, CHECK, False, words, needs="admin", place=self._node)

    def words(self) -> str:
        """What is wrong with this node's clock, as far as is known; "" where nothing is."""
        if not self._trips:
            return ""
        trip_s, skew_s = min(self._trips)
        if abs(skew_s) - trip_s / 2 <= self._limit_s:
            return ""
        how = "ahead of" if skew_s > 0 else "behind"
        return f"this node's clock is {abs(skew_s):.1f} s {how} the supervisor's: times in logs will not fit together"


CALM_STATES = frozenset({"R", "S"})


class SampleReport:
    """One agent's: what its ranks showed at the newest look, and what the supervisor knows of it."""

    def __init__(self) -> None:
        self.is_asked = False  # the supervisor wants all samples with each heartbeat
        self._every_s = 0.0
        self._whole_at = -NEVER
        self._attempt = -1
        self._newest: tuple[RankSample, ...] = ()
        self._news: tuple[RankSample, ...] = ()
        self._told: set[int] = set()  # ranks that told of progress between the two newest looks
        self._known: dict[int, RankSample] = {}  # by rank, as the supervisor was told

    def welcomed(self, every_s: float) -> None:
        """A supervisor takes this agent's heartbeats, and wants all samples so often; 0: with each of them."""
        self._every_s = every_s
        self.start_over()

    def start_over(self) -> None:
        """It may not know what it was told: the next heartbeat is whole."""
        self._whole_at = -NEVER

    def take(self, attempt: int, samples: tuple[RankSample, ...]) -> None:
        """The newest look at all live ranks."""
        before = {one.rank: one for one in self._newest}
        if attempt != self._attempt or {one.rank for one in samples} != before.keys():
            self._attempt, self._told = attempt, set()
            self.start_over()
        self._newest = samples
        self._news = () if self._whole_at == -NEVER else tuple(self._pick(before, samples))

    def _pick(self, before: dict[int, RankSample], samples: tuple[RankSample, ...]) -> Iterable[RankSample]:
        told = {one.rank for one in samples if tells(before[one.rank], one)}
        steady, self._told = told & self._told, told
        farthest = max((one for one in samples if one.rank in steady), key=_reach, default=None)
        for one in samples:
            known = self._known[one.rank]
            is_unknown = one.rank not in steady and _figures(known) != _figures(one)
            if one.rank == 0 or one is farthest or is_unknown or _matters(one) or _changed(known, one):
                yield one

    def page(self, attempt: int, now: float) -> tuple[tuple[RankSample, ...], bool]:
        """What rides on a heartbeat of ``attempt`` that is sent now, and whether that is brief."""
        if attempt != self._attempt:
            return (), False
        if self._every_s > 0 and not self.is_asked and now < self._whole_at:
            self._known.update((one.rank, one) for one in self._news)
            return self._news, True
        self._whole_at = now + self._every_s
        self._known = {one.rank: one for one in self._newest}
        return self._newest, False


def _reach(one: RankSample) -> tuple[int, int, bool, int]:
    return one.step, one.log_step, one.loss is not None, -one.rank


def _matters(one: RankSample) -> bool:
    """Does it say what the supervisor counts, or judges at once?"""
    return _is_amiss(one) or one.pace is not None or one.gpu is not None


def _is_amiss(one: RankSample) -> bool:
    return one.stand is not None or one.state not in CALM_STATES or bool(one.growths)


def _changed(known: RankSample, one: RankSample) -> bool:
    """Is the rank something else than the supervisor thinks?"""
    return (
        _is_amiss(known) != _is_amiss(one)
        or known.phase != one.phase
        or known.pid != one.pid
        or known.is_sampled != one.is_sampled
        or known.moves != one.moves
        or known.anomalies != one.anomalies
        or known.checks != one.checks
    )


def _figures(one: RankSample) -> RankSample:
    """Without what changes all the time, or is told once."""
    return msgspec.structs.replace(one, cpu_s=0.0, state="", pace=None, gpu=None)
