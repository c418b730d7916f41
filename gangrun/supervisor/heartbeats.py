"""What the agents' heartbeats prove: who lives, who leads, who is lost.

Heartbeats never reach ``step``; they are judged here and at deadlines. ``Heartbeats`` is the table: one row per agent.
``Leadership`` says whether this supervisor may ack and act just now (law 3). ``Silence`` follows a node from a missing
heartbeat to its loss.

Each row has three instants, each a safe bound for one law: ``arrived_at`` (no beat was sent later: law 1),
``sent_after`` (the newest was surely sent after it: law 3), and ``heard`` (silence is counted from it). They differ
only if beats lie in a queue: old ones, delivered late, say nothing about now.

Leadership (law 3): a supervisor acks and acts only while more than half of the roster beat to it within the leader
lease D. And (law 5) only if it was lately seen not to be sealed: the next holder counts from the seal on how long ranks
may live by its acks. While it hears all of the roster no node of its job has taken its term, but the next job may have:
then a look that is not quite so new is enough, or the scheduler's word that this very stay of the job runs. The newest
word of this supervisor that the agent had when it sent the beat (the echoed ``stamp``) counts, not the beat's arrival:
a beat that lay in a queue while its agent promised itself to another supervisor proves nothing. The majority must hold
in the roster as it is and in the one on disk, which a successor would count.

Silence: once a heartbeat is missed, other agents are asked whether they reach the node: its agent, or at least its
host, whose kernel answers however busy the processes are. If neither answers, the node is a suspect after S, and lost
once all who were asked have said so: it is gone. If its host answers, the node is slow, stopped, or cut off from us
alone: it is a suspect only after three times S, and *lost* if no agent reaches its agent then, or the gang it belongs
to has halted too. In any case it is lost when its lease is over. The judge must not be the one that is cut off: with
less than half of the roster in hearing no node is lost until a majority on the other side would long have taken the
term.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from gangrun.core.events import Event, NodeHeard, NodeLost, NodeSilent
from gangrun.core.model import Inventory, Node, Origin, RankAlive, RunState
from gangrun.core.policy import Timing
from gangrun.core.protocol import lease
from gangrun.core.protocol.lease import leader_lease_ends_at, proof_lasts_s, unconfirmed_lasts_s
from gangrun.wire.messages import AgentEvent, Beat, Hello, PeerAddress, Probe, ProbeResult, RankSample

NEVER = float("inf")
CLOCKS_KEPT_COUNT = 60  # beats; of a host that was paused the clock is right again after so many
LATE_BEATS = 3.0  # a beat that echoes an older word of ours than this many beats lay in a queue


class Greeting(Enum):
    """What a ``Hello`` means."""

    KNOWN = "known"  # the same incarnation, over a new connection
    NEW = "new"  # a first or a restarted agent
    GONE = "gone"  # said by an incarnation that was replaced: delivered late


@dataclass(slots=True)
class Row:
    """One agent's line: how it introduced itself last, and its newest beat."""

    hello: Hello
    arrived_at: float
    welcomed_at: float
    node: str = field(init=False)
    incarnation: str = field(init=False)  # which agent of its node it is
    sent_after: float = -NEVER
    seq: int = -1
    empty: bool = True
    attempt: int = -1
    samples: dict[int, RankSample] = field(default_factory=dict)  # by rank: the newest of each
    readings: tuple[RankSample, ...] = ()  # those that came with the newest beat
    is_brief: bool = False  # they are not all, and the others are as they were
    standbys: tuple[int, int] = (0, 0)  # how many wait there, and their memory in bytes
    clocks_apart: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT_COUNT))
    named: tuple[PeerAddress, ...] = ()  # the candidates that the newest ack with any told it, and that ack's stamp
    named_stamp: float = -NEVER
    knows_named: bool = False  # it has echoed that stamp, so it has them

    def __post_init__(self) -> None:
        self.node, self.incarnation = self.hello.node, self.hello.incarnation

    def take(self, readings: tuple[RankSample, ...], *, is_brief: bool = False) -> None:
        """What a beat tells of the ranks. A brief one names no rank that was not named before."""
        if not is_brief:
            self.samples = {one.rank: one for one in readings}
        else:
            samples = self.samples
            for one in readings:
                if one.rank in samples:
                    samples[one.rank] = one
                else:
                    readings = tuple([known for known in readings if known.rank in samples])
        self.readings, self.is_brief = readings, is_brief

    def to_name(self, candidates: tuple[PeerAddress, ...], echo: float, stamp: float) -> tuple[PeerAddress, ...]:
        """What an ack with this stamp tells of the candidates; () if the agent has these: each name costs some bytes
        for each heartbeat. ``echo``: the newest stamp that it had.
        """
        if self.named is not candidates:
            self.knows_named = False
        elif echo == self.named_stamp != self.welcomed_at:  # else it may be a welcome's
            self.knows_named = True
        if self.knows_named:
            return ()
        self.named, self.named_stamp = candidates, stamp
        return candidates

    def on_run_clock(self, boottime: float) -> float:
        """A time of its host as one of ours, to within the quickest way of its last beats; 0.0 is no time."""
        return boottime + min(self.clocks_apart, default=0.0) if boottime else 0.0

    def origin(self, seq: int) -> Origin:
        """Who says this agent's event ``seq``."""
        said = self.hello
        return Origin(said.job, said.node, said.boot_id, said.incarnation, seq)

    def inventory(self) -> Inventory:
        """What the agent holds, as it said when it connected."""
        alive = tuple(RankAlive(rank.rank, rank.pid, rank.start_ticks) for rank in self.hello.ranks)
        return Inventory(self.node, self.attempt, alive)


class Heartbeats:
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
            row = self.rows[said.node] = Row(said, now, now)
        row.hello = said
        row.arrived_at = row.welcomed_at = now
        row.attempt = said.attempt
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
        row.clocks_apart.append(now - said.boottime)
        row.take(said.readings, is_brief=said.is_brief and said.attempt == row.attempt)
        if not said.is_brief:
            row.standbys = said.standbys
        row.attempt = said.attempt
        row.empty = said.empty
        row.arrived_at = now
        sent_after = said.echo or now
        row.sent_after = max(row.sent_after, sent_after)
        heard = now if now - sent_after <= self._late_s else sent_after
        self.heard[row.node] = max(self.heard[row.node], heard)
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


COUNT_COST_S = 1e-5  # per agent: how much waiting between two counts keeps their cost small at 10,000 agents
COUNT_ALWAYS_MAX = 100


def count_again_at(now: float, agents_count: int) -> float:
    """When what goes through all agents may be done again; at once where they are few."""
    return now + COUNT_COST_S * agents_count if agents_count > COUNT_ALWAYS_MAX else -NEVER


Nodes = Mapping[str, Node]


def roster_of(nodes: Nodes) -> frozenset[str]:
    """The agents that count: joined, not lost, and not brought by a refill."""
    return frozenset([name for name, node in nodes.items() if node.counts])


class Leadership:
    """Who was heard when, and until when that makes a majority."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._heard: dict[str, float] = {}
        self._rosters: tuple[Nodes, ...] = ()
        self._until = -NEVER
        self._count_again_at = -NEVER
        self._proof_until = self._confirmed_until = -NEVER
        self._all_until = -NEVER
        self._all_again_at = -NEVER

    def heard(self, node: str, sent_after: float) -> None:
        """A beat of ``node`` that was surely sent after that instant."""
        if sent_after > self._heard.get(node, -NEVER):
            self._heard[node] = sent_after

    def forget(self, node: str) -> None:
        """A new incarnation promised nothing yet and proves nothing yet."""
        if self._heard.pop(node, None) is not None:
            self._until = self._all_until = -NEVER

    def rosters(self, *rosters: Nodes) -> None:
        """In each of these a majority is needed. An empty one needs none: there is nobody to mislead."""
        if len(rosters) == len(self._rosters) and all(a is b for a, b in zip(rosters, self._rosters, strict=True)):
            return
        self._rosters = rosters
        self._until = self._all_until = -NEVER

    def holds(self, now: float) -> bool:
        """Is there a majority now, and can nobody have taken this term without our notice?"""
        if not self._has_majority(now):
            return False
        return now <= self._proof_until or (now <= self._confirmed_until and self._hears_all(now))

    def _has_majority(self, now: float) -> bool:
        if now <= self._until:
            return True
        if now < self._count_again_at:
            return False
        self._count_again_at = count_again_at(now, len(self._heard))
        self._until = min((self._ends_at(roster) for roster in self._rosters), default=-NEVER)
        return now <= self._until

    def proven(self, at: float) -> None:
        """Nobody had sealed this term yet at that instant."""
        self._proof_until = max(self._proof_until, at + proof_lasts_s(self._timing))
        self.confirmed(at)

    def confirmed(self, at: float) -> None:
        """No other job can have begun before that instant: the scheduler said that this one runs."""
        self._confirmed_until = max(self._confirmed_until, at + unconfirmed_lasts_s(self._timing))

    def _hears_all(self, now: float) -> bool:
        if now <= self._all_until:
            return True
        if now < self._all_again_at:
            return False
        self._all_again_at = count_again_at(now, len(self._heard))
        counted = {name for roster in self._rosters for name, node in roster.items() if node.counts}
        oldest = min((self._heard.get(name, -NEVER) for name in counted), default=float("inf"))
        self._all_until = oldest + lease.all_heard_within_s(self._timing)
        return now <= self._all_until

    def _ends_at(self, nodes: Nodes) -> float:
        counted = [name for name, node in nodes.items() if node.counts]
        if not counted:
            return float("inf")
        heard = {name: self._heard[name] for name in counted if name in self._heard}
        ends = leader_lease_ends_at(heard, len(counted), self._timing)
        return -NEVER if ends is None else ends


PROBERS_COUNT = 3
PROBE_WAIT_BEATS = 3.0
STEPS_SHOW_BEATS = 3.0  # by then it is known whether all ranks step without the heartbeats of a node
ASK_AGAIN_BEATS = 2.0  # about a node that was seen to live


@dataclass(slots=True)
class Suspect:
    """A node whose heartbeats are missing, and what others say of it."""

    since: float
    asked_at: float | None = None
    answers: dict[str, ProbeResult | None] = field(default_factory=dict)  # by prober

    @property
    def reached(self) -> bool:
        """Another agent reaches its agent: the way is broken, not the node."""
        return any(answer is not None and answer.reached for answer in self.answers.values())

    @property
    def lives(self) -> bool:
        """Its host answers others at least."""
        return any(answer is not None and (answer.reached or answer.is_up) for answer in self.answers.values())

    @property
    def gone(self) -> bool:
        """Everybody who was asked has said that not even its host answers."""
        return bool(self.answers) and None not in self.answers.values() and not self.lives

    def unreached(self, now: float, wait_s: float) -> bool:
        """Everybody who was asked says no, or nobody answered in time."""
        if self.asked_at is None or not self.answers or self.reached:
            return False
        return None not in self.answers.values() or now >= self.asked_at + wait_s


class Silence:
    """Nodes that miss heartbeats, suspects, and what becomes of them."""

    def __init__(self, beats: Heartbeats, timing: Timing, term: int, send: Callable[[str, object], None]) -> None:
        self.suspects: dict[str, Suspect] = {}
        self.lost: set[str] = set()
        self._overdue: dict[str, Suspect] = {}  # not suspects yet
        self._left: set[str] = set()
        self._peers: dict[str, PeerAddress] = {}  # of nodes that others know, and that may never have come here
        self.next_at = NEVER
        self._looked_at = -NEVER
        self._able: list[str] | None = None  # agents that may be asked about others, in order; None: to be found again
        self._beats = beats
        self._timing = timing
        self._term = term
        self._send = send
        self._probe_wait_s = PROBE_WAIT_BEATS * timing.beat_every_s
        self._overdue_s, self._slow_s = lease.overdue_after_s(timing), lease.slow_after_s(timing)

    @property
    def away(self) -> tuple[str, ...]:
        """All that are silent or lost, or were when the run left this job."""
        return tuple(sorted(self._left.union(self.suspects)))

    def adopt(self, state: RunState) -> None:
        """Suspects as the last term left them."""
        self._able = None
        for name, node in state.roster.nodes.items():
            if node.away:
                self.suspects.setdefault(name, Suspect(node.silent_since or 0.0))
            if node.lost:
                self.lost.add(name)
        self.next_at = float("-inf")

    def clear(self) -> None:
        """The run leaves this job for another one, whose nodes are unsuspected."""
        self._left.update(self.suspects)
        self.suspects.clear()
        self._overdue.clear()
        self.lost.clear()
        self._able = None

    def watch(self, said: Hello, now: float) -> None:
        """There is one more agent to listen for, and it knows others."""
        self._able = None
        self._overdue.pop(said.node, None)
        self._peers.update((peer.node, peer) for peer in said.peers)
        self.next_at = min(self.next_at, now + self._overdue_s)

    def joined(self, node: str) -> None:
        """A new agent on the node: nothing is held against it, and joining says that it was heard."""
        if self.suspects.pop(node, None) is not None or self._overdue.pop(node, None) is not None:
            self._able = None
        self.lost.discard(node)
        self._left.discard(node)

    def heard(self, node: str, now: float) -> list[Event]:
        """A beat of a suspect: is it back, or did the beat lie in a queue?"""
        if now - self._beats.heard[node] >= self._timing.silence_after_s:
            return []
        self.joined(node)
        return [NodeHeard(node)]

    def probe(self, node: str, state: RunState, now: float) -> None:
        """Ask a few others whether they reach it; asking twice changes nothing."""
        suspect = self.suspects.get(node) or self._overdue.get(node)
        row = self._beats.rows.get(node)
        target = row.hello.peer if row is not None else self._peers.get(node)
        if suspect is None or target is None or suspect.asked_at is not None:
            return
        probers = self._probers(node, state)
        if not probers:
            return
        suspect.asked_at = now
        suspect.answers = dict.fromkeys(probers)
        for prober in probers:
            self._send(prober, Probe(self._term, target))

    def _probers(self, node: str, state: RunState) -> list[str]:
        """The next few in order, from the node on and around; sorted once for all that fall silent together."""
        if self._able is None:
            self._able = sorted(self._beats.rows.keys() - self.suspects.keys() - self._overdue.keys())
        able, at = self._able, bisect(self._able, node)
        around = (able[(at + i) % len(able)] for i in range(len(able)))
        return list(islice((name for name in around if name in state.roster.nodes), PROBERS_COUNT))

    def answered(self, said: ProbeResult) -> None:
        """One prober's word."""
        suspect = self.suspects.get(said.target) or self._overdue.get(said.target)
        if suspect is not None and said.node in suspect.answers:
            suspect.answers[said.node] = said
            # Each look goes through all rows, and of thousands of suspects each has some answers to come.
            many = len(self.suspects) + len(self._overdue) > COUNT_ALWAYS_MAX
            soon = self._looked_at + COUNT_COST_S * len(self._beats.rows) if many else -NEVER
            self.next_at = min(self.next_at, soon)

    def missing(self, state: RunState, now: float) -> None:
        """The term begins without some of its roster: others are asked about them at once."""
        absent = [name for name in self._beats.heard if name not in self._beats.rows and name not in self.suspects]
        self._miss([(name, self._beats.heard[name]) for name in absent], state, now)

    def tick(self, state: RunState, now: float, halted: bool | None, stepped_at: float | None) -> list[Event]:
        """Who misses heartbeats, fell silent, is lost. ``halted``: has the gang stopped stepping (None: nobody knows).
        ``stepped_at``: when its newest step was seen, if it reports steps.
        """
        self._looked_at = now
        told: list[Event] = []
        known = self.suspects.keys() | self._overdue.keys() if self._overdue else self.suspects.keys()
        seen = lease.judge_silence(self._beats.heard, known, now, self._overdue_s)
        for node in seen.newly_heard:
            if node in self._overdue and self._beats.heard[node] > self._overdue[node].since:
                del self._overdue[node]
                self._able = None
            if node in self.suspects:
                told.extend(self.heard(node, now))
        self.next_at = seen.next_at
        self._miss(seen.newly_silent, state, now)
        told.extend(self._fell_silent(state, now))
        open_ones = sorted(set(self.suspects) - self.lost)
        few = bool(open_ones) and self._hears_few(state, now)
        for node in open_ones:
            since = self.suspects[node].since
            why = self._lost_why(node, state, now, halted, steps=self._steps_on(since, stepped_at, now), few=few)
            if why:
                self.lost.add(node)
                told.append(NodeLost(node, since, why))
            else:
                shown_at = since + STEPS_SHOW_BEATS * self._timing.beat_every_s
                self.next_at = min(self.next_at, now + self._timing.beat_every_s, shown_at if shown_at > now else NEVER)
        return told

    def _steps_on(self, since: float, stepped_at: float | None, now: float) -> bool:
        """Does the gang step without the node's heartbeats, so that its ranks live, or may it? A step becomes known a
        heartbeat after it was made, and the node may have lived for one after its last.
        """
        if stepped_at is None:
            return False
        beat_s = self._timing.beat_every_s
        may_have = stepped_at > since + beat_s and now < since + STEPS_SHOW_BEATS * beat_s
        return may_have or stepped_at > since + 2 * beat_s

    def _miss(self, nodes: Iterable[tuple[str, float]], state: RunState, now: float) -> None:
        """These miss a heartbeat: who can be asked is found without any of them."""
        fresh = {node: Suspect(since) for node, since in nodes if node not in self._overdue}
        if fresh:
            self._overdue |= fresh
            self._able = None
        for node in fresh:
            self.probe(node, state, now)

    def _fell_silent(self, state: RunState, now: float) -> list[Event]:
        """Those for whose heartbeat it is too late now, as far as others do not say that the node lives."""
        told: list[Event] = []
        for node, missed in list(self._overdue.items()):
            missed.since = self._beats.heard.get(node, missed.since)
            again_s, before = ASK_AGAIN_BEATS * self._timing.beat_every_s, missed.answers
            if missed.lives and missed.asked_at is not None and now >= missed.asked_at + again_s:
                missed.asked_at = None  # what was seen then may be gone by now
                self.probe(node, state, now)
                missed.answers = {name: before.get(name) for name in missed.answers}
            due = missed.since + (self._slow_s if missed.lives else self._timing.silence_after_s)
            if now >= due:
                del self._overdue[node]
                self.suspects[node] = missed
                told.append(NodeSilent(node, missed.since))
            else:
                self.next_at = min(self.next_at, due, now + self._timing.beat_every_s)
        return told

    def _hears_few(self, state: RunState, now: float) -> bool:
        """Is less than half of the roster in hearing, so that we may be the ones who are cut off?

        Whoever was lost only lately counts too, or the others would be lost one by one, each time with a majority of
        those that are left.
        """
        recently = now - self._timing.counter_still_s
        lately = now - self._overdue_s  # sooner than silence shows: a cut takes many, and not all at one moment
        alive, suspects, heard = roster_of(state.roster.nodes), self.suspects, self._beats.heard
        lately_lost = {n for n, suspect in suspects.items() if suspect.since > recently}
        nodes = state.roster.nodes
        counted = [n for n in nodes if n in alive or (n in lately_lost and not nodes[n].refill)]
        return 2 * sum(heard.get(name, lately) > lately for name in counted) < len(counted)

    def _lost_why(self, node: str, state: RunState, now: float, halted: bool | None, *, steps: bool, few: bool) -> str:
        """Why a suspect is lost, "" if it is not. ``steps``: the gang does without the node's heartbeats."""
        suspect = self.suspects[node]
        silent_s = now - suspect.since
        if few and silent_s < self._timing.counter_still_s:
            return ""
        if now >= lease.presumed_empty_at(suspect.since, self._timing):
            return f"silent for {silent_s:.0f} s, its lease is over"
        asked = ", ".join(suspect.answers)
        if not steps and suspect.gone:
            return f"silent for {silent_s:.0f} s, and its host answers no other node ({asked})"
        if silent_s < self._slow_s:
            return ""
        in_gang = state.attempt.placement is not None and state.attempt.placement.holds(node)
        if in_gang and halted:
            return f"silent for {silent_s:.0f} s, and the gang makes no steps any more"
        if not steps and suspect.unreached(now, self._probe_wait_s):
            return f"silent for {silent_s:.0f} s, and no other node reaches it ({asked})"
        return ""
