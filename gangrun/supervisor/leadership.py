"""Law 3: may this supervisor ack and act just now?

Only while more than half of the roster beat to it within the leader lease D. And (law 5) only while it hears all of
the roster, or was lately seen not to be sealed: whoever it does not hear may have taken its term, and counts from the
seal on how long ranks may live by its acks. What counts is not when a beat arrived
but the newest word of ours that the agent had when it sent it (the echoed ``stamp``): a beat that lay in a queue while
its agent promised itself to another supervisor proves nothing. The majority must hold in the roster as it is and in
the one that is on disk, which is the one a successor would count.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangrun.core.model import Node, RunState
from gangrun.core.policy import Timing
from gangrun.core.protocol.lease import leader_lease_ends_at, proof_lasts_s

NEVER = float("-inf")
COUNT_COST_S = 1e-5  # per agent: how much waiting between two counts keeps their cost small at 10,000 agents
COUNT_ALWAYS_MAX = 100

Nodes = Mapping[str, Node]


def roster_of(state: RunState) -> frozenset[str]:
    """The agents that count: joined and not lost."""
    return frozenset(name for name, node in state.nodes.items() if not node.lost)


class Leadership:
    """Who was heard when, and until when that makes a majority."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._heard: dict[str, float] = {}
        self._rosters: tuple[Nodes, ...] = ()
        self._until = NEVER
        self._count_again_at = NEVER
        self._proof_until = NEVER
        self._all_until = NEVER
        self._all_again_at = NEVER

    def heard(self, node: str, sent_after: float) -> None:
        """A beat of ``node`` that was surely sent after that instant."""
        if sent_after > self._heard.get(node, NEVER):
            self._heard[node] = sent_after

    def forget(self, node: str) -> None:
        """A new incarnation promised nothing yet and proves nothing yet."""
        if self._heard.pop(node, None) is not None:
            self._until = self._all_until = NEVER

    def rosters(self, *rosters: Nodes) -> None:
        """In each of these a majority is needed. An empty one needs none: there is nobody to mislead."""
        if len(rosters) == len(self._rosters) and all(a is b for a, b in zip(rosters, self._rosters, strict=True)):
            return
        self._rosters = rosters
        self._until = self._all_until = NEVER

    def holds(self, now: float) -> bool:
        """Is there a majority now, and can nobody have taken this term without our notice?"""
        return self._has_majority(now) and (now <= self._proof_until or self._hears_all(now))

    def _has_majority(self, now: float) -> bool:
        if now <= self._until:
            return True
        if now < self._count_again_at:
            return False
        many = len(self._heard) > COUNT_ALWAYS_MAX
        self._count_again_at = now + COUNT_COST_S * len(self._heard) if many else NEVER
        self._until = min((self._ends_at(roster) for roster in self._rosters), default=NEVER)
        return now <= self._until

    def proven(self, at: float) -> None:
        """Nobody had sealed this term yet at that instant."""
        self._proof_until = max(self._proof_until, at + proof_lasts_s(self._timing))

    def _hears_all(self, now: float) -> bool:
        if now <= self._all_until:
            return True
        if now < self._all_again_at:
            return False
        self._all_again_at = now + COUNT_COST_S * len(self._heard) if len(self._heard) > COUNT_ALWAYS_MAX else NEVER
        counted = {name for roster in self._rosters for name, node in roster.items() if not node.lost}
        oldest = min((self._heard.get(name, NEVER) for name in counted), default=float("inf"))
        self._all_until = oldest + self._timing.silence_after_s
        return now <= self._all_until

    def _ends_at(self, nodes: Nodes) -> float:
        counted = [name for name, node in nodes.items() if not node.lost]
        if not counted:
            return float("inf")
        heard = {name: self._heard[name] for name in counted if name in self._heard}
        ends = leader_lease_ends_at(heard, len(counted), self._timing)
        return NEVER if ends is None else ends
