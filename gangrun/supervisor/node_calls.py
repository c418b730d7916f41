"""Things that are asked of many nodes at once: who was asked, who answered, what follows.

Each call turns per-node answers into one event for the core. ``StopCall`` is in ``stop_call``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from gangrun.core.actions import StartGang
from gangrun.core.events import Event, GangStarted, GangStartFailed, NodeChecked, StacksTaken
from gangrun.core.model import Placement, RankStack
from gangrun.core.policy import Policy
from gangrun.supervisor.command_retry import Switchboard
from gangrun.wire.messages import Check, CommandResult, Launch, Prepare, Stacks

NEVER = float("inf")
STACKS_SHARE = 0.8  # of the time the core waits: what came must be told before it gives up


class Call(Protocol):
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
        self, board: Switchboard, action: StartGang, addresses: Mapping[str, str], policy: Policy, now: float
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
        if not result.ok:
            return self._failed(node, result.why or "refused without a reason", bool(result.data.get("retry_free")))
        port = result.data.get("port")
        if isinstance(port, int) and not self._launching and node == self._nodes[0]:
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

    def __init__(self, board: Switchboard, attempt: int, nodes: tuple[str, ...], policy: Policy, now: float) -> None:
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
        try:
            self._stacks.extend(msgspec.convert(result.data.get("stacks", []), list[RankStack]))
        except msgspec.ValidationError:
            pass  # no evidence from there; the others' counts
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

    def __init__(self, board: Switchboard, nodes: tuple[str, ...], tests: str, now: float) -> None:
        self.deadline = NEVER
        self._open = {board.say(node, lambda act: Check(board.term, act, tests), now): node for node in nodes}
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
        return [NodeChecked(result.node, result.ok, result.why, str(result.data.get("tested", "")))]

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """No deadline here."""
        del now, silent, lost
        return []
