"""Commands to many nodes at once: who was asked, who answered, what follows.

``CommandRetry`` says each command again every beat until it is answered, and never trusts a queue. Each command has a
number that nothing else in this term has; agents know it by that, so saying it twice is harmless. A supervisor that may
not act says nothing (law 3).

A ``NodeCall`` turns the answers of several nodes into one event for the core: the core knows gangs, not nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gangrun.core.actions import StartGang, StopGang
from gangrun.core.events import Event, GangStarted, GangStartFailed, GangStopped, NodeChecked, StacksTaken, StopTimedOut
from gangrun.core.machine.transitions import stop_bound_s
from gangrun.core.model import Placement, RankStack
from gangrun.core.policy import Policy, Timing
from gangrun.core.protocol import lease
from gangrun.ports import ReadingAsked
from gangrun.supervisor.opening import RunFacts
from gangrun.wire.messages import (
    CheckAnswer,
    CheckNode,
    CommandResult,
    Launch,
    Prepare,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    StopAnswer,
    VerifyShare,
)

NEVER = float("inf")
UNSAID = float("-inf")
EARLY_S = 0.01


@dataclass(slots=True)
class Order:
    """One command to one node, not yet answered."""

    node: str
    message: object
    said_at: float = UNSAID


class CommandRetry:
    """All open commands of a term."""

    def __init__(
        self,
        send: Callable[[str, object], None],
        term: int,
        number: Callable[[], int],
        may_act: Callable[[float], bool],
        timing: Timing,
    ) -> None:
        self.term = term
        self.next_at = NEVER
        self.final = False  # only farewells are left: nothing later contradicts them, so no majority is needed
        self._send = send
        self._number = number
        self._may_act = may_act
        self._again_s = timing.beat_every_s
        self._orders: dict[int, Order] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def say(self, node: str, make: Callable[[tuple[int, int]], object], now: float) -> int:
        """A new command; its number. ``make`` is given the act by which the agent knows it."""
        n = self._number()
        order = Order(node, make((self.term, n)))
        self._orders[n] = order
        if self.final or self._may_act(now):
            self._say(order, now)
        self.next_at = min(self.next_at, now + self._again_s)
        return n

    def _say(self, order: Order, now: float) -> None:
        order.said_at = now
        self._send(order.node, order.message)

    def answered(self, result: CommandResult) -> int | None:
        """The number of the command that this answers; None where nobody waits for it (any more)."""
        term, n = result.act
        order = self._orders.get(n)
        if term != self.term or order is None or order.node != result.node:
            return None
        del self._orders[n]
        return n

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for n in numbers:
            self._orders.pop(n, None)

    def tick(self, now: float) -> None:
        """Say again what is due."""
        if now < self.next_at:
            return
        self.next_at = now + self._again_s if self._orders else NEVER
        if not (self.final or self._may_act(now)):
            return
        for order in self._orders.values():
            if now - order.said_at >= self._again_s - EARLY_S:
                self._say(order, now)


STACKS_SHARE = 0.8  # of the time the core waits: what came must be told before it gives up


class NodeCall(Protocol):
    """A question to several nodes."""

    over: bool
    deadline: float

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node's answer to command ``n`` of this call."""

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """The deadline is due; these nodes are silent, and those lost for this attempt."""

    def numbers(self) -> Collection[int]:
        """The commands that are still open."""


class StartCall:
    """Start all ranks in two phases: every node proves its slate clean, then all launch."""

    def __init__(
        self, board: CommandRetry, action: StartGang, addresses: Mapping[str, str], policy: Policy, now: float
    ) -> None:
        self.over = False
        self.attempt = action.attempt
        self._board = board
        self._action = action
        self._nodes = action.placement.nodes
        self._addresses = addresses
        self._within_s = policy.start_within_s
        self._port = 0
        self._launching = False
        self._ranks: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.deadline = now + self._within_s
        self._open = {
            board.say(node, lambda act, first=i == 0: Prepare(board.term, act, self.attempt, first), now): node  # type: ignore[misc]
            for i, node in enumerate(self._nodes)
        }

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """Prepared, launched, or refused."""
        node = self._open.pop(n)
        port, retry_free = 0, False
        if isinstance(result.answer, StartAnswer):
            port, retry_free = result.answer.port, result.answer.retry_free
        if not result.ok:
            return self._failed(node, result.why or "refused without a reason", retry_free)
        if not self._launching and node == self._nodes[0]:
            self._port = port
        if self._open:
            return []
        if self._launching:
            self.over = True
            return [GangStarted(self.attempt)]
        if not self._port:
            return self._failed(self._nodes[0], "it named no port for the ranks to meet at", True)
        self._launch(now)
        return []

    def _failed(self, node: str, why: str, retry_free: bool = False) -> list[Event]:
        self.over = True
        return [GangStartFailed(self.attempt, node, why, retry_free)]

    def _launch(self, now: float) -> None:
        self._launching = True
        self._ranks = ranks_by_node(self._action.placement)
        self.deadline = now + self._within_s
        for i, node in enumerate(self._nodes):
            self._open[self._board.say(node, lambda act, i=i: self._command(act, i), now)] = node  # type: ignore[misc]

    def _command(self, act: tuple[int, int], node_rank: int) -> Launch:
        placement, resume = self._action.placement, self._action.resume
        ranks, slots = self._ranks[self._nodes[node_rank]]
        return Launch(
            term=self._board.term,
            act=act,
            attempt=self.attempt,
            world_size=placement.world_size,
            node_rank=node_rank,
            nodes_count=len(self._nodes),
            ranks=ranks,
            slots=slots,
            master_addr=self._addresses.get(self._nodes[0], self._nodes[0]),
            master_port=self._port,
            nodes=self._nodes,
            resume_path=resume.path if resume else "",
            resume_step=resume.step if resume else -1,
        )

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Who has not answered in time is named."""
        del silent, lost
        if now < self.deadline:
            return []
        node = min(self._open.values())
        what = "launch its ranks" if self._launching else "prove its slate clean"
        rest = f" (nor did {len(self._open) - 1} more)" if len(self._open) > 1 else ""
        return self._failed(node, f"it did not {what} within {self._within_s:g} s{rest}")


def ranks_by_node(placement: Placement) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each node's global ranks, ascending, and the slot of each; in one pass, since seats may be a hundred thousand."""
    pairs: dict[str, list[tuple[int, int]]] = {}
    for seat in placement.seats:
        here = pairs.setdefault(seat.slot.node, [])
        here.extend((rank, seat.slot.index) for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count))
    return {
        node: (tuple(rank for rank, _ in sorted(here)), tuple(slot for _, slot in sorted(here)))
        for node, here in pairs.items()
    }


class StacksCall:
    """Dump every rank's stack; what has come by the deadline counts."""

    def __init__(self, board: CommandRetry, attempt: int, nodes: tuple[str, ...], policy: Policy, now: float) -> None:
        self.over = False
        self.attempt = attempt
        self.deadline = now + STACKS_SHARE * policy.stacks_within_s
        self._stacks: list[RankStack] = []
        self._open = {board.say(node, lambda act: Stacks(board.term, act, attempt), now) for node in nodes}

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node's stacks, or none."""
        del now
        self._open.discard(n)
        if isinstance(result.answer, StacksAnswer):
            self._stacks.extend(result.answer.stacks)
        return [] if self._open else self._taken()

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Time is up."""
        del silent, lost
        return self._taken() if now >= self.deadline else []

    def _taken(self) -> list[Event]:
        self.over = True
        return [StacksTaken(self.attempt, tuple(sorted(self._stacks, key=lambda stack: stack.rank)))]


class CheckCall:
    """Preflight; each node's answer is an event of its own, and the core keeps the deadline."""

    def __init__(self, board: CommandRetry, nodes: tuple[str, ...], tests: str, now: float) -> None:
        self.deadline = NEVER
        self._open = {board.say(node, lambda act: CheckNode(board.term, act, tests), now): node for node in nodes}
        self.over = not self._open

    def joined(self, other: CheckCall) -> CheckCall:
        """Both questions as one."""
        self._open |= other._open
        self.over = not self._open
        return self

    def left_by(self, nodes: Collection[str]) -> Collection[int]:
        """These nodes' answers are waited for no more, as ranks start there; the others may still be at it."""
        gone = [n for n, node in self._open.items() if node in nodes]
        for n in gone:
            del self._open[n]
        self.over = not self._open
        return gone

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node proved itself, or did not."""
        del now
        self._open.pop(n, None)
        self.over = not self._open
        tested = result.answer.tested if isinstance(result.answer, CheckAnswer) else ""
        return [NodeChecked(result.node, result.ok, result.why, tested)]

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """No deadline here."""
        del now, silent, lost
        return []


LOOK_AGAIN_S = 1.0  # for nodes that fell silent meanwhile
FRAGMENT = "fragment: what it holds can neither step nor save"
ASK_AGAIN_S = 5.0  # a node that could not kill its ranks is asked anew


class StopCall:
    """One attempt on its way down."""

    def __init__(
        self,
        board: CommandRetry,
        facts: RunFacts,
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
        leftovers = result.answer.leftovers if isinstance(result.answer, StopAnswer) else ()
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


class VerifyCall:
    """Ask all at once; in the end ``done(unread)``: which shares were not found whole, and why. No event follows."""

    def __init__(
        self,
        board: CommandRetry,
        asked: ReadingAsked,
        shares: Mapping[str, int],
        readers_count: int,
        done: Callable[[Mapping[int, str]], None],
        now: float,
    ) -> None:
        """``shares``: of nodes; what they leave of so many is this host's."""
        self.over = False
        self.number = asked.number
        self.deadline = self._until = NEVER
        self._board, self._done = board, done
        self._unread: dict[int, str] = {}
        self._open: dict[int, tuple[int, str]] = {}
        for node, share in shares.items():

            def command(act: tuple[int, int], share: int = share) -> VerifyShare:
                return VerifyShare(board.term, act, asked.directory, asked.nonce, share, readers_count)

            self._open[board.say(node, command, now)] = (share, node)

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def wait_until(self, until: float) -> None:
        """This host has read its share: the others are given so long."""
        self.deadline = self._until = until

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node has read its share, or could not, or found damage."""
        del now
        share, node = self._open.pop(n)
        if not result.ok:
            self._unread[share] = f"{node}: {result.why or 'refused without a reason'}"
        return self._end_if_all_answered()

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Who is lost will not answer; in the end nobody is waited for."""
        del silent
        for n, (share, node) in list(self._open.items()):
            if node in lost or now >= self._until:
                self._unread[share] = f"{node}: {'lost' if node in lost else 'no answer'}"
                del self._open[n]
                self._board.withdraw([n])
        self.deadline = self._until
        return self._end_if_all_answered()

    def _end_if_all_answered(self) -> list[Event]:
        if not self._open:
            self.over = True
            self._done(self._unread)
        return []
