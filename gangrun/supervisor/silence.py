"""From silence to loss.

A silent node is a suspect after S: other agents are asked whether they reach it. It is *lost* when the gang it belongs
to has halted too, when nobody reaches it, or when its lease is over. Whoever judges must not be the one who is cut
off: with less than half of the roster in hearing nobody is lost until a majority on the other side would long have
taken the term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gangrun.core.events import Event, NodeHeard, NodeLost, NodeSilent
from gangrun.core.model import RunState
from gangrun.core.policy import Timing
from gangrun.core.protocol import lease
from gangrun.supervisor.heartbeats import Beats
from gangrun.supervisor.leadership import roster_of
from gangrun.wire.messages import PeerAddress, Probe, ProbeResult

NEVER = float("inf")
PROBERS_COUNT = 3
PROBE_WAIT_BEATS = 3.0


@dataclass(slots=True)
class Suspect:
    """A silent node and what others say of it."""

    since: float
    asked_at: float | None = None
    answers: dict[str, bool | None] = field(default_factory=dict)  # prober -> did it reach the node

    @property
    def reached(self) -> bool:
        """Somebody else reaches it: the way is broken, not the node."""
        return any(self.answers.values())

    def unreached(self, now: float, wait_s: float) -> bool:
        """Everybody who was asked says no, or nobody answered in time."""
        if self.asked_at is None or not self.answers or self.reached:
            return False
        return all(answer is False for answer in self.answers.values()) or now >= self.asked_at + wait_s


class Silence:
    """Suspects, and what becomes of them."""

    def __init__(self, beats: Beats, timing: Timing, term: int, send: Callable[[str, object], None]) -> None:
        self.suspects: dict[str, Suspect] = {}
        self.lost: set[str] = set()
        self._left: set[str] = set()
        self.next_at = NEVER
        self._beats = beats
        self._timing = timing
        self._term = term
        self._send = send
        self._probe_wait_s = PROBE_WAIT_BEATS * timing.beat_every_s

    @property
    def away(self) -> tuple[str, ...]:
        """All that are silent or lost, or were when the run left this job."""
        return tuple(sorted(self._left.union(self.suspects)))

    def adopt(self, state: RunState) -> None:
        """Suspects as the last term left them."""
        for name, node in state.nodes.items():
            if node.lost or node.silent_since is not None:
                self.suspects.setdefault(name, Suspect(node.silent_since or 0.0))
            if node.lost:
                self.lost.add(name)
        self.next_at = float("-inf")

    def clear(self) -> None:
        """The run leaves this job for another one, whose nodes are unsuspected."""
        self._left.update(self.suspects)
        self.suspects.clear()
        self.lost.clear()

    def watch(self, now: float) -> None:
        """There is one more agent to listen for."""
        self.next_at = min(self.next_at, now + self._timing.silence_after_s)

    def joined(self, node: str) -> None:
        """A new agent on the node: nothing is held against it, and joining says that it was heard."""
        self.suspects.pop(node, None)
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
        suspect = self.suspects.get(node)
        target = self._beats.rows.get(node)
        if suspect is None or target is None or suspect.asked_at is not None:
            return
        probers = self._probers(node, state)
        if not probers:
            return
        suspect.asked_at = now
        suspect.answers = dict.fromkeys(probers)
        self._ask(suspect, target.peer)

    def _ask(self, suspect: Suspect, peer: PeerAddress) -> None:
        for prober, answer in suspect.answers.items():
            if answer is None:
                self._send(prober, Probe(self._term, peer))

    def _probers(self, node: str, state: RunState) -> list[str]:
        names = sorted(n for n in state.nodes if n != node and n in self._beats.rows and n not in self.suspects)
        later = [name for name in names if name > node] + [name for name in names if name < node]
        return later[:PROBERS_COUNT]

    def answered(self, said: ProbeResult) -> None:
        """One prober's word."""
        suspect = self.suspects.get(said.target)
        if suspect is not None and said.node in suspect.answers:
            suspect.answers[said.node] = said.reached
            self.next_at = float("-inf")

    def tick(self, state: RunState, now: float, halted: bool | None) -> list[Event]:
        """Who fell silent, who is lost. ``halted``: has the gang stopped stepping (None: nobody knows)."""
        told: list[Event] = []
        seen = lease.judge_silence(self._beats.heard, self.suspects.keys(), now, self._timing)
        for node, since in seen.newly_silent:
            self.suspects[node] = Suspect(since)
            told.append(NodeSilent(node, since))
        for node in seen.newly_heard:
            told.extend(self.heard(node, now))
        self.next_at = seen.next_at
        open_ones = sorted(set(self.suspects) - self.lost)
        few = bool(open_ones) and self._hears_few(state, now)
        for node in open_ones:
            why = self._lost_why(node, state, now, halted, few)
            if why:
                self.lost.add(node)
                told.append(NodeLost(node, self.suspects[node].since, why))
            else:
                self.next_at = min(self.next_at, now + self._timing.beat_every_s)
        return told

    def _hears_few(self, state: RunState, now: float) -> bool:
        """Is less than half of the roster in hearing, so that we may be the ones who are cut off?

        Whoever was lost only lately counts too, or the others would be lost one by one, each time with a majority of
        those that are left.
        """
        recently = now - self._timing.counter_still_s
        lately = now - self._timing.leader_lease_s  # sooner than silence shows: a cut takes many at once
        alive, suspects, heard = roster_of(state), self.suspects, self._beats.heard
        counted = [n for n in state.nodes if n in alive or (n in suspects and suspects[n].since > recently)]
        return 2 * sum(heard.get(name, lately) > lately for name in counted) < len(counted)

    def _lost_why(self, node: str, state: RunState, now: float, halted: bool | None, few: bool) -> str:
        suspect = self.suspects[node]
        silent_s = now - suspect.since
        if few and silent_s < self._timing.counter_still_s:
            return ""
        if now >= lease.presumed_empty_at(suspect.since, self._timing):
            return f"silent for {silent_s:.0f} s, its lease is over"
        in_gang = state.placement is not None and node in state.placement.nodes
        if in_gang and halted:
            return f"silent for {silent_s:.0f} s, and the gang makes no steps any more"
        if halted is not False and suspect.unreached(now, self._probe_wait_s):
            return f"silent for {silent_s:.0f} s, and no other node reaches it ({', '.join(suspect.answers)})"
        return ""
