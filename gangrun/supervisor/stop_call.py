"""Stopping all ranks, and proving that none is left.

A node is accounted for when it answered that nothing is left, when law 1 says that it must be empty by now, or when
the fragment rule says that what it may still hold can neither step nor save. A beat that says "empty" is not enough:
the launch it has not seen yet may be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from gangrun.core.actions import StopGang
from gangrun.core.events import Event, GangStopped, StopTimedOut
from gangrun.core.machine.transitions import stop_bound_s
from gangrun.core.model import Placement
from gangrun.core.policy import Policy
from gangrun.core.protocol import lease
from gangrun.supervisor.command_retry import Switchboard
from gangrun.supervisor.facts import Facts
from gangrun.wire.messages import CommandResult, Stop

NEVER = float("inf")
LOOK_AGAIN_S = 1.0  # for nodes that fell silent meanwhile
FRAGMENT = "fragment: what it holds can neither step nor save"
ASK_AGAIN_S = 5.0  # a node that could not kill its ranks is asked anew


class StopCall:
    """One attempt on its way down."""

    def __init__(
        self,
        board: Switchboard,
        facts: Facts,
        policy: Policy,
        placement: Placement | None,
        empty_at: Callable[[str], float],
    ) -> None:
        """``empty_at``: from when on law 1 presumes a node empty; infinity where it cannot be said."""
        self.over = False
        self.deadline = NEVER
        self.attempt = -1
        self._board = board
        self._facts = facts
        self._policy = policy
        self._placement = placement
        self._empty_at = empty_at
        self._action: StopGang | None = None
        self._open: dict[int, str] = {}
        self._waiting: set[str] = set()
        self._answered: set[str] = set()
        self._presumed: dict[str, str] = {}
        self._leftovers: list[str] = []
        self._timed_out: set[str] = set()
        self._ask_again: dict[str, float] = {}

    def begin(self, action: StopGang, nodes: Iterable[str], now: float) -> None:
        """Ask, or ask again with other words: less grace, for instance."""
        self._board.withdraw(self._open)
        self._open.clear()
        self._action, self.attempt = action, action.attempt
        self._waiting |= set(nodes) - self._answered - self._presumed.keys()
        for node in sorted(self._waiting):
            self._ask(node, now)
        self.deadline = now

    def _ask(self, node: str, now: float) -> None:
        action, policy = self._action, self._policy
        assert action is not None
        saves_s = action.checkpoint_grace_s
        self._ask_again.pop(node, None)

        def command(act: tuple[int, int]) -> Stop:
            return Stop(
                term=self._board.term,
                act=act,
                attempt=action.attempt,
                grace_s=action.grace_s,
                checkpoint_first=action.checkpoint_first,
                checkpoint_grace_s=policy.checkpoint_grace_s if saves_s is None else saves_s,
                why=action.why,
            )

        self._open[self._board.say(node, command, now)] = node

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """Nothing is left there, or it cannot be killed."""
        node = self._open.pop(n)
        left = result.data.get("leftovers")
        leftovers = tuple(str(item) for item in left) if isinstance(left, list | tuple) else ()
        if result.ok:
            self._waiting.discard(node)
            self._answered.add(node)
            self._leftovers.extend(f"{node}: {item}" for item in leftovers)
            if not self._waiting:
                self.deadline = now
            return []
        self._ask_again[node] = now + ASK_AGAIN_S
        self.deadline = min(self.deadline, now + ASK_AGAIN_S)
        if node in self._timed_out:
            return []
        self._timed_out.add(node)
        return [StopTimedOut(self.attempt, node, leftovers or (result.why or "processes",))]

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Presume what may be presumed; the last node accounted for ends the call."""
        for node in [name for name, at in self._ask_again.items() if now >= at]:
            self._ask(node, now)
        for node in sorted(self._waiting):
            if node in silent and now >= self._empty_at(node):
                self._presume(node, "law 1: its lease is over")
        if self._waiting and self._waiting <= set(lost) and self._fragment(self._waiting):
            for node in sorted(self._waiting):
                self._presume(node, FRAGMENT)
        if not self._waiting:
            self.over = True
            self._board.withdraw(self._open)
            return [self._stopped(now)]
        quiet = [self._empty_at(node) for node in self._waiting if node in silent]
        self.deadline = min([now + LOOK_AGAIN_S, *quiet, *self._ask_again.values()])
        return []

    def _stopped(self, now: float) -> GangStopped:
        by_law_1 = {node: self._empty_at(node) for node, rule in self._presumed.items() if rule == FRAGMENT}
        fenced = tuple(sorted(node for node, at in by_law_1.items() if at > now))
        # Where it cannot be said, as long as any stop may take: the ranks there are of no lease that we know.
        unknown = now + stop_bound_s(self._policy, checkpoint_first=False)
        until = max((unknown if by_law_1[node] == NEVER else by_law_1[node] for node in fenced), default=0.0)
        presumed = tuple(sorted(self._presumed.items()))
        return GangStopped(self.attempt, presumed, tuple(self._leftovers), fenced, until)

    def _presume(self, node: str, rule: str) -> None:
        self._waiting.discard(node)
        self._presumed[node] = rule

    def _fragment(self, silent: Collection[str]) -> bool:
        """Sealed: the core seals all older staging before it starts the next attempt."""
        if self._placement is None:
            return False
        dead = {
            rank
            for seat in self._placement.seats
            if seat.slot.node in self._answered
            for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count)
        }
        return lease.fragment_allows(
            silent=silent,
            placement=self._placement,
            dead_ranks=dead,
            sealed=True,
            replica_ranks_count=self._facts.replica_ranks_count,
            saves_itself=self._facts.saves_itself,
        )
