"""Commands to agents: said again every beat until answered, never trusted to a queue.

Each command has a number that nothing else in this term has; agents know it by that, so saying it twice is harmless.
Nothing is said by a supervisor that may not act (law 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gangrun.core.policy import Timing
from gangrun.wire.messages import CommandResult

NEVER = float("inf")
UNSAID = float("-inf")
EARLY_S = 0.01


@dataclass(slots=True)
class Order:
    """One command to one node, not yet answered."""

    node: str
    message: object
    said_at: float = UNSAID


class Switchboard:
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
