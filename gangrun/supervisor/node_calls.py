"""Commands to many nodes at once: who was asked, who answered, what follows.

``CommandRetry`` says each command again every beat until it is answered, and never trusts a queue. Each command has a
number that nothing else in this term has; agents know it by that, so saying it twice is harmless. A supervisor that may
not act says nothing (law 3).

A ``NodeCall`` turns the answers of several nodes into one event for the core: the core knows gangs, not nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gangrun.core.actions import CheckNodes, SaveGang, StartGang, StopGang
from gangrun.core.events import (
    Event,
    GangStarted,
    GangStartFailed,
    GangStopped,
    NodeChecked,
    SaveAnswered,
    StacksTaken,
    StopTimedOut,
)
from gangrun.core.evidence import RankStack
from gangrun.core.model import Placement, Savers
from gangrun.core.nodeset import fold_in_order
from gangrun.core.policy import Policy, Timing
from gangrun.core.protocol import lease
from gangrun.ports import VerifyAsked
from gangrun.wire.messages import (
    AskSave,
    CheckAnswer,
    CheckNode,
    CommandResult,
    Launch,
    MeetPeer,
    Prepare,
    SaveAnswer,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    StopAnswer,
    VerifyShare,
)

NEVER = float("inf")
UNSAID = float("-inf")
Act = tuple[int, int]  # (term, number), by which an agent knows a command
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

    def say(self, node: str, make: Callable[[Act], object], now: float) -> int:
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
LOOK_AGAIN_S = 1.0  # for nodes that fell silent meanwhile
ANSWERS_WITHIN_S = 2.0  # the scheduler, asked whether it took a node that was lost: such a node is not at fault
FRAGMENT = "by the fragment rule its ranks can neither step nor save, as the others are dead"
HOLD_WITHIN_S = 2.0  # a node that has not told its newest step by then is not waited for
JOBS_LOOK_S = 0.1  # whether that answer has come
ASK_AGAIN_S = 5.0  # a node that could not kill its ranks is asked anew


class NodeCall:
    """A question to several nodes: who has not answered, until when that is waited for, and what follows."""

    def __init__(self, board: CommandRetry, deadline: float = NEVER) -> None:
        """``deadline``: when ``tick`` is due."""
        self.over = False
        self.deadline = deadline
        self._board = board
        self._open: dict[int, str] = {}  # command without an answer -> its node

    def ask(self, node: str, make: Callable[[Act], object], now: float) -> int:
        """One more command; its number."""
        n = self._board.say(node, make, now)
        self._open[n] = node
        return n

    def waits_for(self, n: int) -> bool:
        """Is command ``n`` of this call, and open?"""
        return n in self._open

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node's answer to command ``n`` of this call."""
        return self._take(self._open.pop(n), result, now)

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """What follows from the answer of ``node``."""
        del node, result, now
        return []

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """The deadline is due; these nodes are silent, and those lost for this attempt."""
        del now, silent, lost
        return []

    def leave(self, nodes: Collection[str]) -> list[int]:
        """The answers of these nodes are waited for no more; the commands."""
        gone = [n for n, node in self._open.items() if node in nodes]
        self._board.withdraw(gone)
        for n in gone:
            del self._open[n]
        return gone

    def end(self) -> None:
        """No answer is waited for any more."""
        self.over = True
        self._board.withdraw(self._open)
        self._open = {}


def refusal_of(result: CommandResult) -> str:
    """Why the node refused, in words."""
    return result.why or "refused without a reason"


class StartCall(NodeCall):
    """Start all ranks: every node proves that nothing is left on it, then rank 0's node launches, then all others.

    A rank that asks for torch's store before rank 0 has opened it is refused, and asks again only after 0.25 to 0.75 s.
    If standbys are ready, rank 0's node answers once the store is open (``gang_part``).
    """

    def __init__(
        self, board: CommandRetry, action: StartGang, addresses: Mapping[str, str], policy: Policy, now: float,
        failures_count: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(board, now + policy.start_within_s)
        self._failures_count = failures_count
        self.attempt = action.attempt
        self._action = action
        self._nodes = action.placement.nodes
        self._addresses = addresses
        self._within_s = policy.start_within_s
        self._port = 0
        self._launching = False
        self._rest: list[tuple[str, Launch]] = []  # for later
        for node in self._nodes:
            first = node == self._nodes[0]
            self.ask(node, lambda act, first=first: Prepare(board.term, act, self.attempt, first), now)  # type: ignore[misc]

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """Prepared, launched, or refused."""
        answer = result.answer if isinstance(result.answer, StartAnswer) else StartAnswer()
        if not result.ok:
            return self._failed(node, refusal_of(result), answer.retry_free)
        if not self._launching and node == self._nodes[0]:
            self._port = answer.port
        rest, self._rest = self._rest, []
        for other, launch in rest:
            self._ask_to_launch(other, launch, now)
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
        self.end()
        return [GangStartFailed(self.attempt, node, why, retry_free)]

    def _launch(self, now: float) -> None:
        self._launching = True
        self.deadline = now + self._within_s
        placement, resume = self._action.placement, self._action.resume
        memory = resume.memory if resume else None
        by_node = ranks_by_node(placement)
        # Each node is told of all: 10,000 names are 70,000 bytes, for each of them; folded they are 20.
        listed = fold_in_order(self._nodes) or self._nodes
        for node_rank, node in enumerate(self._nodes):
            ranks, slots = by_node[node]
            launch = Launch(
                term=self._board.term,
                act=(0, 0),
                attempt=self.attempt,
                world_size=placement.world_size,
                node_rank=node_rank,
                nodes_count=len(self._nodes),
                ranks=ranks,
                slots=slots,
                master_addr=self._addresses.get(self._nodes[0], self._nodes[0]),
                master_port=self._port,
                nodes=listed,
                resume_path=resume.path if resume else "",
                resume_step=resume.step if resume else -1,
                failures_count=self._failures_count,
                skip_batches=self._action.skip_batches,
                resume_memory=memory,
                lacks_step=memory is not None and node in memory.lacking,
            )
            self._rest.append((node, launch))
        self._ask_to_launch(*self._rest.pop(0), now)

    def _ask_to_launch(self, node: str, launch: Launch, now: float) -> None:
        self.ask(node, lambda act: msgspec.structs.replace(launch, act=act), now)

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """A node that has not answered in time is named."""
        del silent, lost
        if now < self.deadline:
            return []
        what = "launch its ranks" if self._launching else "prove that nothing is left on it"
        rest = f" (nor did {len(self._open) - 1} more)" if len(self._open) > 1 else ""
        return self._failed(min(self._open.values()), f"it did not {what} within {self._within_s:g} s{rest}")


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


class StacksCall(NodeCall):
    """Dump every rank's stack; what has come by the deadline counts."""

    def __init__(self, board: CommandRetry, attempt: int, nodes: tuple[str, ...], policy: Policy, now: float) -> None:
        super().__init__(board, now + STACKS_SHARE * policy.stacks_within_s)
        self.attempt = attempt
        self._stacks: list[RankStack] = []
        for node in nodes:
            self.ask(node, lambda act: Stacks(board.term, act, attempt), now)

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """One node's stacks, or none."""
        del node, now
        if isinstance(result.answer, StacksAnswer):
            self._stacks.extend(result.answer.stacks)
        return [] if self._open else self._taken()

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Time is up."""
        del silent, lost
        return self._taken() if now >= self.deadline else []

    def _taken(self) -> list[Event]:
        self.end()
        return [StacksTaken(self.attempt, tuple(sorted(self._stacks, key=lambda stack: stack.rank)))]


class Held:
    """How several nodes agree on the step that all their ranks save, however fast these are and however late a word is.

    Each node has its ranks wait at the end of their next step, and tells the newest one that is done. No rank can be
    past the step after the newest of all, so that is the one to save. Then all ranks are told, and go on.
    """

    def __init__(self, nodes: Collection[str], now: float, step: int = -1) -> None:
        """``step``: what all ranks are to save, if that is known already."""
        self.waiting = set(nodes) if len(nodes) > 1 else set[str]()  # ranks of one node are told by its agent alone
        self.until = now + HOLD_WITHIN_S
        self._newest = max(step, 0) - 1

    def take(self, node: str, result: CommandResult) -> None:
        """One node has answered; one that refuses has no ranks that train."""
        self.waiting.discard(node)
        if isinstance(result.answer, SaveAnswer):
            self._newest = max(self._newest, result.answer.step)

    def is_over(self, now: float, gone: Collection[str]) -> bool:
        """Is no node waited for any more, though some have not answered?"""
        return bool(self.waiting) and (now >= self.until or self.waiting <= set(gone))

    @property
    def step(self) -> int:
        """What all ranks are to save; -1: no step is known, or each node knows by itself."""
        return self._newest + 1 if self._newest >= 0 else -1


class SaveCall(NodeCall):
    """Have all ranks save one step and train on; a node that is lost ends it without an answer of its own."""

    def __init__(self, board: CommandRetry, action: SaveGang, nodes: tuple[str, ...]) -> None:
        """Nothing is asked before ``begin``."""
        super().__init__(board)
        self._action, self._step, self._saved, self._why = action, -1, False, "no node answered"
        self._nodes, self._held, self.begun = nodes, Held((), NEVER), False

    def begin(self, now: float) -> None:
        """Ask."""
        self.begun, self._held = True, Held(self._nodes, now)
        self._ask_all(-1, now, hold=bool(self._held.waiting))

    @property
    def told_step(self) -> int:
        """What all ranks were told to save; -1: nothing yet, or their agent has chosen it."""
        return -1 if self._held.waiting else self._held.step

    def _ask_all(self, step: int, now: float, *, hold: bool = False) -> None:
        self.deadline = min(now + LOOK_AGAIN_S, self._held.until) if hold else now + LOOK_AGAIN_S
        for node in self._nodes:
            self.ask(node, lambda act: AskSave(self._board.term, act, self._action.attempt, step, hold), now)

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """The ranks of one node have saved, or did not: rank 0 alone may read requests."""
        if self._held.waiting:
            self._held.take(node, result)
            if not self._held.waiting:
                self._ask_all(self._held.step, now)
            return []
        if isinstance(result.answer, SaveAnswer):
            self._saved, self._step = True, max(self._step, result.answer.step)
        else:
            self._why = f"{node}: {refusal_of(result)}"
        return [] if self._open else self._answered()

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """A node that is lost will not answer."""
        self.deadline = now + LOOK_AGAIN_S
        if self._held.waiting:
            self.deadline = min(self.deadline, self._held.until)
            if self._held.is_over(now, {*silent, *lost}):
                self.leave(self._held.waiting)
                self._held.waiting = set()
                self._ask_all(self._held.step, now)
            return []
        return [] if not self.leave(lost) or self._open else self._answered()

    def _answered(self) -> list[Event]:
        self.end()
        attempt, key = self._action.attempt, self._action.key
        return [SaveAnswered(attempt, key, self._step) if self._saved else SaveAnswered(attempt, key, why=self._why)]


class CheckCall(NodeCall):
    """Preflight; each node's answer is an event of its own, and the core keeps the deadline. Never over."""

    def ask_all(self, action: CheckNodes, addresses: Mapping[str, str], now: float) -> None:
        """These nodes too."""
        for node in action.nodes:
            meetings = tuple(meetings_of(node, action.rounds, addresses, self._board.term))
            self.ask(node, lambda act, ms=meetings: CheckNode(self._board.term, act, action.tests, ms), now)  # type: ignore[misc]

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """One node proved itself, or did not."""
        del now
        answer = result.answer if isinstance(result.answer, CheckAnswer) else CheckAnswer("")
        return [NodeChecked(node, result.ok, result.why, answer.tested, answer.met, answer.broken)]


FIRST_PORT, PORTS_COUNT = 23_000, 5_000  # below those that kernels hand out by themselves


def meetings_of(
    node: str, rounds: tuple[tuple[tuple[str, str], ...], ...], addresses: Mapping[str, str], salt: int
) -> Iterator[MeetPeer]:
    """What one node is told of its pairs; each pair has a port of its own, as nodes may share a host."""
    pairs = [(number, pair) for number, one in enumerate(rounds) for pair in one]
    for index, (number, pair) in enumerate(pairs):
        if node in pair:
            partner = pair[1 - pair.index(node)]
            port = FIRST_PORT + (salt * 31 + index * 7) % PORTS_COUNT
            where, host = (addresses.get(name, name) for name in (partner, pair[0]))
            yield MeetPeer(partner, where, host, port, node == pair[0], number)


class StopCall(NodeCall):
    """Stop all ranks of one attempt, and prove that none is left.

    A node is accounted for when it answered that nothing is left, when law 1 says that it must be empty by now, or when
    the fragment rule says that what it may still hold can neither step nor save. A beat that says "empty" is not
    enough: the launch it has not seen yet may be under way.
    """

    def __init__(
        self,
        board: CommandRetry,
        policy: Policy,
        placement: Placement | None,
        savers: Savers,
        empty_at: Callable[[str], float],
        jobs_looked_at: Callable[[], float],
    ) -> None:
        """``empty_at``: from when on law 1 presumes a node empty; infinity if that cannot be said. ``jobs_looked_at``:
        when the scheduler was asked of this job whose answer came last.
        """
        super().__init__(board)
        self.attempt = -1
        self._policy = policy
        self._placement = placement
        self._savers = savers
        self._empty_at, self._jobs_looked_at = empty_at, jobs_looked_at
        self._action: StopGang | None = None
        self._held = Held((), NEVER)
        self._waiting: set[str] = set()
        self._answered: set[str] = set()
        self._presumed: dict[str, str] = {}
        self._leftovers: list[str] = []
        self._overdue: set[int] = set()  # ranks that were killed since their grace was over
        self._grace_s = 0.0
        self._saved_step = -1
        self._timed_out: set[str] = set()
        self._lost_at: dict[str, float] = {}
        self._ask_again: dict[str, float] = {}

    def begin(self, action: StopGang, nodes: Iterable[str], now: float, told_step: int = -1) -> None:
        """Ask, or ask again with other words: less grace, for instance. All nodes are told the same step to save.

        ``told_step``: what ranks were told to save before, and may be saving now.
        """
        if told_step >= 0:
            self._held = Held((), NEVER, told_step)
        self.leave(set(self._open.values()))
        self._action, self.attempt = action, action.attempt
        self._waiting |= set(nodes) - self._answered - self._presumed.keys()
        self.deadline = now
        if not action.checkpoint_first or self._held.step >= 0:
            self._held.waiting = set()
            self._ask_all(now)
            return
        self._held = Held(self._waiting, now)
        for node in sorted(self._held.waiting):
            self.ask(node, lambda act: AskSave(self._board.term, act, action.attempt, -1, hold=True), now)
        if not self._held.waiting:
            self._ask_all(now)

    def _ask_all(self, now: float) -> None:
        for node in sorted(self._waiting):
            self._ask_stop(node, now)

    def _ask_stop(self, node: str, now: float) -> None:
        action, policy = self._action, self._policy
        assert action is not None
        saves_s = action.checkpoint_grace_s
        self._ask_again.pop(node, None)

        def command(act: Act) -> Stop:
            return Stop(
                term=self._board.term,
                act=act,
                attempt=action.attempt,
                grace_s=action.grace_s,
                checkpoint_first=action.checkpoint_first,
                checkpoint_grace_s=policy.checkpoint_grace_s if saves_s is None else saves_s,
                why=action.why,
                settle_s=action.settle_s,
                save_step=self._held.step,
                peer_gone_grace_s=action.peer_gone_grace_s,
            )

        self.ask(node, command, now)

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """Nothing is left there, or it cannot be killed."""
        if self._held.waiting:
            self._held.take(node, result)
            if not self._held.waiting:
                self._ask_all(now)
            return []
        leftovers: tuple[str, ...] = ()
        if isinstance(result.answer, StopAnswer):
            leftovers = result.answer.leftovers
            self._overdue.update(result.answer.overdue)
            self._grace_s = max(self._grace_s, result.answer.grace_s)
            self._saved_step = max(self._saved_step, result.answer.saved_step)
        if result.ok:
            self._waiting.discard(node)
            self._answered.add(node)
            self._leftovers.extend(f"{node}: {item}" for item in leftovers)
            if len(self._waiting) <= len(self._lost_at):  # perhaps nobody else is waited for
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
        if self._held.is_over(now, {*silent, *lost}):
            self.leave(self._held.waiting)
            self._held.waiting = set()
            self._ask_all(now)
        for node in [name for name, at in self._ask_again.items() if now >= at]:
            self._ask_stop(node, now)
        for node in sorted(self._waiting):
            if node in silent and now >= self._empty_at(node):
                self._presume(node, "its lease has expired")
        for node in self._waiting.intersection(lost):
            self._lost_at.setdefault(node, now)
        lost_at = max(self._lost_at.values(), default=now)
        answers_s = ANSWERS_WITHIN_S if self._policy.can_requeue and self._jobs_looked_at() < lost_at else 0.0
        heard_at = lost_at + answers_s
        if self._waiting and self._waiting <= set(lost) and now >= heard_at and self._fragment(self._waiting):
            for node in sorted(self._waiting):
                self._presume(node, FRAGMENT)
        if not self._waiting:
            self.end()
            return [self._stopped()]
        quiet = [self._empty_at(node) for node in self._waiting if node in silent]
        due = [min(heard_at, now + JOBS_LOOK_S)] if heard_at > now else []
        held = [self._held.until] if self._held.waiting else []
        self.deadline = min([now + LOOK_AGAIN_S, *due, *quiet, *held, *self._ask_again.values()])
        return []

    def _stopped(self) -> GangStopped:
        presumed, overdue = tuple(sorted(self._presumed.items())), tuple(sorted(self._overdue))
        return GangStopped(self.attempt, presumed, tuple(self._leftovers), overdue, self._grace_s, self._saved_step)

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
            replica_ranks_count=self._policy.replica_ranks_count,
            savers=self._savers,
        )


class ChaseCall(NodeCall):
    """Ranks of an attempt that is over live on a node: they must go, whatever became of the rest."""

    def chase(self, node: str, attempt: int, grace_s: float, now: float) -> None:
        """Have them stopped, unless that was asked already."""
        if node not in self._open.values():
            why = f"attempt {attempt} is over"
            self.ask(node, lambda act: Stop(self._board.term, act, attempt, grace_s, False, 0.0, why), now)


class VerifyCall(NodeCall):
    """One checkpoint is read by several nodes before it is resumed from, each its share.

    A question like that for an inventory: it leaves no effect, so nothing is recorded, and a later supervisor just asks
    again. If a node finds damage, cannot read or is gone, this supervisor's host reads its share again, and that
    verdict alone counts: one sick node condemns no checkpoint. No event follows.
    """

    def __init__(
        self, board: CommandRetry, asked: VerifyAsked, shares: Mapping[str, int], readers_count: int, now: float
    ) -> None:
        """``shares``: of other nodes than this host."""
        super().__init__(board, now + LOOK_AGAIN_S)
        self._asked, self._shares = asked, shares
        for node, share in shares.items():

            def command(act: Act, share: int = share) -> VerifyShare:
                return VerifyShare(board.term, act, asked.directory, asked.nonce, share, readers_count)

            self.ask(node, command, now)

    def _take(self, node: str, result: CommandResult, now: float) -> list[Event]:
        """One node has read its share, or could not, or found damage."""
        del now
        self._asked.read(self._shares[node], "" if result.ok else f"{node}: {refusal_of(result)}")
        self.over = not self._open
        return []

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """A node that is lost will not answer; in the end none is waited for."""
        del silent
        for node in set(self._open.values()).intersection(lost):
            self.leave([node])
            self._asked.read(self._shares[node], f"{node}: lost")
        self.deadline = now + LOOK_AGAIN_S
        if self._asked.over() or not self._open:
            self.end()
        return []
