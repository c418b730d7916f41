"""When no supervisor acks: find one, or help one to be born.

1. Unacked for almost ``takeover_after_s``: ask the candidates of the last ack (``Ping``). One that says it was acked
   lately proves that the supervisor lives and only the way to it is broken: no promise, dial on. One that follows a
   newer term adds a ``Dial``.
2. Otherwise promise to the first candidate, in the order of the ack, that answered. While a promise is held the agent
   neither beats to nor believes the old term (``line``). It is said, and counts, from the instant on at which none of
   the agent's heartbeats makes the old supervisor lead any more (law 3), and again every beat. It is held for
   2 x ``takeover_after_s`` from then on at most. Then the old supervisor gets another chance and the next candidate the
   next promise: two cut-off nodes must not be lost to a supervisor that lives.
3. A candidate with fresh promises of more than half of the roster asks its warden for a supervisor, one at a time;
   after one that failed it waits 1, 2, 4 .. 64 s, after one that ended the job and did not let us go 4, 8 .. 64 s.
   Failures are counted apart for those with promises and those that watch (``RequestedSupervisor``).
4. Where no majority can be had a candidate asks for a supervisor without promises: that one watches the holder's
   counter file for ``counter_still_s`` (or hears from the scheduler that the holder's node is down) before it claims,
   and is in no majority's way. It is asked for soon where too few of a small roster answer (two nodes, one gone), else
   when two candidates would have had their promises. An agent that knows nobody, as it was restarted, asks for one
   after ``counter_still_s``, all others after twice as long, spread over minutes where they are many: the candidates'
   rack may be lost. If the restarted agent sees that the newest term's holder was a process of its own node and is
   gone, it asks after 2.5 x ``takeover_after_s``: a majority that knows the holder has claimed by then, and agents
   that know nobody read ``terms/`` soon after.
   One that was asked for and claims nothing for so long has been stopped: where nobody else can, another is asked for.
   Last resort against a lost ``Dial``: read ``terms/`` again, at most once in 5, 10 .. 60 s.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from gangrun.agent.brain import effects
from gangrun.agent.brain.effects import Effect
from gangrun.agent.brain.line import LeaseKeeper
from gangrun.core.policy import Timing
from gangrun.core.protocol.takeover import backoff_s
from gangrun.wire.messages import Dial, PeerAddress, Ping, Pong, Promise

DEPOSED = 75  # exit code of a supervisor that lost its term
REFUSED = 78  # ... that cannot use the journal: a person must look
ENDED = 0  # ... that saw to the end of the job, and was gone before this agent heard of it
ENDED_FIRST = 2  # how many steps of the back-off are left out then
DEPOSED_MAX = 7  # in a row, over two minutes, with nobody of this job in sight: the run is not this job's
REFUSALS_MAX = 5  # in a row on one node: no other supervisor will fare better
NEVER = float("inf")


class RequestedSupervisor:
    """At most one that is on its way."""

    def __init__(self, timing: Timing) -> None:
        self.spawning = False
        self.term = 0  # which it is to claim at least
        self.refusals_count = self.deposed_count = self.watch_failures_count = 0
        self.not_before = self.watch_not_before = 0.0  # the latter for one without promises
        self._failures_count = self._ended_count = 0
        self._timing = timing
        self._watching = False  # it has no promises
        self._asked_at = NEVER

    def ask(self, term_min: int, promises: tuple[str, ...], now: float) -> list[Effect]:
        """One for this term or a later one, unless one is on its way, or it is too early."""
        if self.spawning and not (promises and self._watching):
            return []
        if now < (self.not_before if promises else self.watch_not_before):
            return []
        if self.spawning:  # only a term above the one that the watching one wants lets a warden start another beside it
            term_min = max(term_min, self.term + 1)
        self.spawning, self._watching = True, not promises
        self._asked_at, self.term = now, term_min
        return [effects.SpawnSupervisor(term_min, promises, now)]

    def is_stuck(self, now: float) -> bool:
        """Has it claimed nothing for longer than any file system may take?"""
        return self.spawning and now >= self._asked_at + self._timing.counter_still_s

    def answered(self) -> None:
        """A newer term is there."""
        self.spawning = False
        self.deposed_count = self._failures_count = 0

    def exited(self, code: int, term_min: int, now: float) -> None:
        """It, or one that served, is gone."""
        if term_min >= self.term:
            self.refused(now)
        self.refusals_count += code == REFUSED
        self.deposed_count += code == DEPOSED
        if code == ENDED:  # whatever acked us meanwhile: another will find the same
            self._ended_count += 1
            self.not_before = self.watch_not_before = now + backoff_s(self._ended_count + ENDED_FIRST)

    @property
    def unwanted(self) -> bool:
        """No supervisor of this job gets a term, and there is none."""
        return self.deposed_count >= DEPOSED_MAX

    @property
    def hopeless(self) -> bool:
        """No supervisor can go on from what the journal says."""
        return self.refusals_count >= REFUSALS_MAX

    def refused(self, now: float) -> None:
        """It never came to be; the next one waits longer."""
        if not self.spawning:
            return
        self.spawning = False
        if self._watching:
            self.watch_failures_count += 1
            self.watch_not_before = now + backoff_s(self.watch_failures_count)
        else:
            self._failures_count += 1
            self.not_before = now + backoff_s(self._failures_count)


PONG_WAIT_S = 0.5
FRESH_BEATS = 2.5
LIVES_BEATS = 1.25  # so lately a candidate was acked whose supervisor lives; T less a heartbeat is more than that
FIND_FIRST_S, FIND_MAX_S = 0.25, 1.0  # at start, until there is a claim
RESORT_FIRST_S, RESORT_MAX_S = 5.0, 60.0
SPREAD_NODES_COUNT = 16
WATCH_SOON_TAKEOVERS = 3  # late answers have come by then
WATCH_AFTER_TAKEOVERS = 4  # two candidates have had their promises by then, and a supervisor that need not watch
ENDED_AFTER_TAKEOVERS = 2.5
VARIES_SHARE = 0.5


@dataclass(slots=True)
class GivenPromise:
    """A promise that this agent gave."""

    candidate: PeerAddress
    since: float  # from then on it counts; nothing is said to the old term from before
    say_at: float  # next
    answered_at: float
    ends_at: float = NEVER  # it is being taken back: its word may be counted until then


class Follow:
    """Candidates, promises given and taken, and the supervisor asked for."""

    def __init__(
        self,
        me: PeerAddress,
        incarnation: str,
        timing: Timing,
        roster_count: int,
        founder: bool,
        *,
        guest: bool = False,
    ) -> None:
        """``guest``: brought by a refill. Its job may end at any time, so it has no voice in who is supervisor: it asks
        candidates for the newest term and follows it.
        """
        self.me = me
        self.incarnation = incarnation
        self.timing = timing
        self.founder = founder
        self.roster_count = roster_count
        self._filling_count = roster_count  # until all nodes were there once, a smaller roster is one being filled
        self.candidates: tuple[PeerAddress, ...] = (me,) if roster_count == 1 and not guest else ()
        self._guest = guest
        self.held: GivenPromise | None = None
        self._promises_count = 0  # in a row
        self.asked = RequestedSupervisor(timing)
        self._taken: dict[str, tuple[bytes, float]] = {}  # node -> (the way back, when)
        self._pongs: dict[str, float] = {}  # candidate -> how long it was unacked
        self._tried: set[str] = set()
        self._ask_at = 0.0
        self._choose_at = NEVER  # a question is open until then
        self._find_at = NEVER
        self._find_s = FIND_FIRST_S
        self._resort_at = 0.0
        self._resort_s = RESORT_FIRST_S
        self.ended_term = 0  # the newest whose holder is known to be gone
        self._lives_at = 0.0  # when another candidate proved that the supervisor does
        self._too_few = False  # all of the roster were asked, and those that answered are no majority
        # spreads the agents that know nobody, so that not all ask for a supervisor in the same second
        self._spread_s = zlib.crc32(incarnation.encode()) % 1000 / 100.0

    # ---- finding a term ----------------------------------------------------------------------------------------

    def find(self, now: float) -> list[Effect]:
        """Look for a claim: at start, after news of a term without an address, or for that of our own supervisor."""
        self._find_at = now + self._find_s
        self._find_s = min(2 * self._find_s, FIND_MAX_S) if not self.asked.spawning else FIND_FIRST_S
        return [effects.FindTerm()]

    def found_none(self, lease: LeaseKeeper, newest_term: int, now: float) -> list[Effect]:
        """No claim of this job yet: its founder has the first one made, all others look again."""
        if not self.founder or lease.line is not None:
            return []
        return self._spawn(max(lease.term_max, newest_term) + 1, (), now)

    def dialled(self, dial: Dial) -> list[Effect]:
        """A newer term is being dialled: those who promised themselves to us are led there too."""
        led: list[Effect] = [effects.ReplyPeer(route, dial) for route, _ in self._taken.values()]
        self._taken.clear()
        self._rest()
        self.asked.answered()
        self._find_at, self._find_s = NEVER, FIND_FIRST_S
        return led

    def name(self, candidates: tuple[PeerAddress, ...]) -> None:
        """A supervisor names who may follow it; (): the same as before."""
        if candidates:
            self.candidates = candidates

    def acked(self, roster_count: int) -> None:
        """A supervisor lives."""
        self.asked.refusals_count = 0
        if roster_count >= self._filling_count:
            self._filling_count = 0
        self.roster_count = max(1, roster_count, self._filling_count)
        self._rest()

    def _rest(self) -> None:
        self.held = None
        self.asked.watch_failures_count = 0
        self._too_few = False
        self._promises_count = 0
        self._pongs.clear()
        self._tried.clear()
        self._ask_at, self._choose_at = 0.0, NEVER
        self._resort_at, self._resort_s = 0.0, RESORT_FIRST_S

    # ---- what peers say ----------------------------------------------------------------------------------------

    def on_ping(self, ping: Ping, lease: LeaseKeeper, route: bytes, now: float) -> list[Effect]:
        """Answer; with the way to the newest term if the asker does not know it."""
        answers: list[Effect] = [self._pong(lease, route, now)]
        if lease.line is not None and lease.line.term > ping.term_max:
            answers.append(effects.ReplyPeer(route, lease.line))
        return answers

    def _pong(self, lease: LeaseKeeper, route: bytes, now: float) -> Effect:
        return effects.ReplyPeer(
            route, Pong(self.me.node, self.incarnation, lease.term_max, round(lease.unacked_s(now), 3))
        )

    def on_pong(self, pong: Pong, lease: LeaseKeeper, now: float) -> list[Effect]:
        """A candidate answers."""
        if self.held is not None:
            if pong.node == self.held.candidate.node:
                self.held.answered_at = max(self.held.answered_at, now)
            if self._is_candidate(pong.node):
                self._pongs[pong.node] = pong.unacked_s
                self._too_few = self._too_few and self._are_too_few()
            return []
        if self._choose_at == NEVER or not self._is_candidate(pong.node):
            return []
        self._pongs[pong.node] = pong.unacked_s
        return self._choose(lease, now) if self._all_answered() and self._is_tired(lease, now) else []

    def on_promise(self, promise: Promise, lease: LeaseKeeper, route: bytes, now: float) -> list[Effect]:
        """Another agent would follow whoever claims next; count it if its old term is not over already."""
        answers: list[Effect] = [self._pong(lease, route, now)]
        if lease.line is not None and lease.line.term > promise.term:
            return [*answers, effects.ReplyPeer(route, lease.line)]
        if promise.unacked_s < self.timing.takeover_after_s:
            return answers
        if lease.see(promise.term):
            answers += self.find(now)
        self._taken[promise.node] = (route, now)
        return answers + self._collect(lease, now)

    # ---- time --------------------------------------------------------------------------------------------------

    def tick(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        """Whatever is due."""
        done: list[Effect] = []
        if now >= self._find_at:
            done += self.find(now)
            if lease.line is not None and not self.asked.spawning:
                self._find_at, self._find_s = NEVER, FIND_FIRST_S
        if self.held is not None:
            return done + self._watch(lease, now) + self._keep(self.held, lease, now)
        if lease.line is None and self.asked.is_stuck(now):
            done += self._replace_stuck(lease, now)
        tired = self._is_tired(lease, now)
        if tired:
            done += self._last_resorts(lease, now)
        if now < self._asks_at(lease) or not self._can_ask(lease):
            return done
        if now >= self._choose_at:
            done += self._choose(lease, now) if tired else self._not_yet()
        elif self._choose_at == NEVER and now >= self._ask_at:
            done += self._ask(lease, now)
        return done

    def due(self, lease: LeaseKeeper) -> float:
        """When ``tick`` has something to do next."""
        due = self._find_at
        if self.held is not None:
            due = min(due, self._lonely_at(lease))
            if self.held.ends_at < NEVER:
                return min(due, self.held.ends_at)
            return min(due, self.held.say_at, self._held_until(self.held))
        asks_at = self._asks_at(lease)
        if due <= asks_at:
            return due
        first = min(self._choose_at, self._ask_at) if self._can_ask(lease) else NEVER
        if first > asks_at:  # else nothing else can be due sooner: so it is whenever all is well
            first = min(first, self._lonely_at(lease))
            if lease.line is not None:
                first = min(first, self._lost_at(lease))
        return min(due, max(first, asks_at))

    def _asks_at(self, lease: LeaseKeeper) -> float:
        """A moment early, so that answers are there once this agent may promise itself."""
        return lease.acked_at + self.timing.takeover_after_s - PONG_WAIT_S

    def _is_tired(self, lease: LeaseKeeper, now: float) -> bool:
        return now >= lease.acked_at + self.timing.takeover_after_s

    def _not_yet(self) -> list[Effect]:
        """The newest term asked for patience meanwhile."""
        self._choose_at = NEVER
        return []

    def _can_ask(self, lease: LeaseKeeper) -> bool:
        return lease.line is not None and bool(self.candidates)

    def _ask(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        self._ask_at = now + self.timing.beat_every_s
        self._choose_at = max(now + PONG_WAIT_S, lease.acked_at + self.timing.takeover_after_s)
        self._pongs = {self.me.node: lease.unacked_s(now)} if self._is_candidate(self.me.node) else {}
        if self._all_answered() and self._is_tired(lease, now):
            return self._choose(lease, now)
        ping = Ping(self.me.node, lease.term_max)
        return [effects.SendPeer(peer, ping) for peer in self.candidates if peer.node != self.me.node]

    def _choose(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        self._choose_at = NEVER
        lately_s = LIVES_BEATS * self.timing.beat_every_s
        if any(s <= lately_s for node, s in self._pongs.items() if node != self.me.node):
            self._lives_at = now
            return []
        if lease.line is None or self._guest:
            return []
        reached = [peer for peer in self.candidates if peer.node in self._pongs]
        self._too_few = self._are_too_few()
        if all(peer.node in self._tried for peer in reached):
            self._tried.clear()
        for peer in reached:
            if peer.node not in self._tried:
                counts_at = max(now, lease.proves_until)
                self.held = GivenPromise(peer, counts_at, counts_at, counts_at)
                self._promises_count += 1
                lease.promised_term = lease.line.term
                return self._keep(self.held, lease, now)
        return []

    def _promise(self, held: GivenPromise, lease: LeaseKeeper, now: float) -> list[Effect]:
        held.say_at = now + self.timing.beat_every_s
        if held.candidate.node == self.me.node:
            held.answered_at = now
            return self._collect(lease, now)
        unacked_s = round(lease.unacked_s(now), 3)
        promise = Promise(self.me.node, self.incarnation, lease.promised_term, unacked_s)
        return [effects.SendPeer(held.candidate, promise)]

    def _held_until(self, held: GivenPromise) -> float:
        """After the first a little less, and never twice the same: two agents that take turns would do so for ever."""
        share = zlib.crc32(f"{self.incarnation} {self._promises_count}".encode()) % 1000 / 1000.0
        shorter = VARIES_SHARE * share if self._promises_count > 1 else 0.0
        return held.since + (2 - shorter) * self.timing.takeover_after_s

    def _keep(self, held: GivenPromise, lease: LeaseKeeper, now: float) -> list[Effect]:
        """Say the promise again, or take it back: its time is over, or the candidate is gone."""
        silent = now - held.answered_at > 3 * self.timing.beat_every_s
        if held.ends_at == NEVER and (silent or now >= self._held_until(held)):
            # not one word to the old term while the last promise may still count, or both would have a majority
            held.ends_at = held.say_at + (FRESH_BEATS - 1) * self.timing.beat_every_s
        if held.ends_at < NEVER:
            if now < held.ends_at:
                return []
            self._tried.add(held.candidate.node)
            self.held = None
            lease.promised_term = 0
            self._ask_at = now if silent else now + FRESH_BEATS * self.timing.beat_every_s
            if lease.line is None:
                return []
            lease.redialled(now)
            return [effects.DialTerm(lease.line.term, lease.line.endpoint, lease.line.server_key)]
        if now >= held.say_at:
            return self._promise(held, lease, now)
        return []

    # ---- as a candidate ----------------------------------------------------------------------------------------

    def _collect(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        """More than half of the roster, each within the last beats: a promise said once long ago may be taken back."""
        oldest = now - FRESH_BEATS * self.timing.beat_every_s
        nodes = {node for node, (_, at) in self._taken.items() if at >= oldest}
        if self.held is not None and self.held.candidate.node == self.me.node and now >= self.held.since:
            nodes.add(self.me.node)
        if not self.roster_count or 2 * len(nodes) <= self.roster_count:
            return []
        return self._spawn(lease.term_max + 1, tuple(sorted(nodes)), now)

    def _spawn(self, term_min: int, promises: tuple[str, ...], now: float) -> list[Effect]:
        wanted = self.asked.ask(term_min, promises, now)
        if wanted:
            self._find_s = FIND_FIRST_S
            self._find_at = now + self._find_s  # its claim will say where it listens
        return wanted

    def _replace_stuck(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        """Alone, this agent is the majority whose word lets a warden start one beside it; else others do it."""
        self.asked.spawning = False
        promises = (self.me.node,) if self.roster_count == 1 else ()
        return self._spawn(max(lease.term_max, self.asked.term) + 1, promises, now)

    def supervisor_exited(self, code: int, term_min: int, now: float) -> list[Effect]:
        """The one asked for, or one that served, is gone. A deposed one means that a newer term is to be found."""
        self.asked.exited(code, term_min, now)
        return self.find(now) if code == DEPOSED else []

    # ---- last resorts ------------------------------------------------------------------------------------------

    def _lonely_at(self, lease: LeaseKeeper) -> float:
        if self.asked.spawning or self._guest:
            return NEVER
        since = lease.acked_at
        if self._is_candidate(self.me.node) and self.roster_count > 1:
            takeovers = WATCH_SOON_TAKEOVERS if self._too_few else WATCH_AFTER_TAKEOVERS
            since, after_s = max(since, self._lives_at), takeovers * self.timing.takeover_after_s
        elif self.ended_term == lease.term_max > 0:
            after_s = ENDED_AFTER_TAKEOVERS * self.timing.takeover_after_s
        elif self._is_candidate(self.me.node) or not self.candidates:
            after_s = self.timing.counter_still_s + self._spread_s
        else:
            spread_s = self._spread_s * max(1.0, self.roster_count / SPREAD_NODES_COUNT)
            after_s = 2 * self.timing.counter_still_s + spread_s
        return max(since + after_s, self.asked.not_before, self.asked.watch_not_before)

    def _lost_at(self, lease: LeaseKeeper) -> float:
        first = self.timing.takeover_after_s * (2 if self.candidates else 1)
        return max(lease.acked_at + first, self._resort_at)

    def _last_resorts(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        done = self._watch(lease, now)
        if lease.line is not None and now >= self._lost_at(lease):
            self._resort_at = now + self._resort_s
            self._resort_s = min(2 * self._resort_s, RESORT_MAX_S)
            done.append(effects.FindTerm())
        return done

    def _watch(self, lease: LeaseKeeper, now: float) -> list[Effect]:
        return self._spawn(lease.term_max + 1, (), now) if now >= self._lonely_at(lease) else []

    def _is_candidate(self, node: str) -> bool:
        return any(peer.node == node for peer in self.candidates)

    def _are_too_few(self) -> bool:
        return 2 * len(self._pongs) <= self.roster_count <= len(self.candidates)

    def _all_answered(self) -> bool:
        return all(peer.node in self._pongs for peer in self.candidates)
