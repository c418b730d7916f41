"""An agent's own end: when it leaves, with which code, and what a signal to it means.

It leaves once its ranks are gone, or after ``leave_within_s`` all the same. A signal alone ends nothing while a
supervisor is there to say what it means; a second one does.
"""

from __future__ import annotations

import signal

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.effects import Effect
from gangrun.agent.brain.identity import AgentConfig
from gangrun.agent.brain.lease_keeping import Lease
from gangrun.agent.brain.orders import Orders
from gangrun.core.events import CancelRequested, Event, Notice, NoticeKind

NEVER = float("inf")


class Departure:
    """Asked for or not, begun or not, done or not."""

    def __init__(self, config: AgentConfig, lease: Lease, orders: Orders) -> None:
        self.gone = False
        self._config, self._lease, self._orders = config, lease, orders
        self._leaving: tuple[int, str] | None = None
        self._leave_by = self._terminate_by = NEVER
        self._signals_count = 0

    @property
    def begun(self) -> bool:
        """It leaves: nothing is started here any more."""
        return self._leaving is not None

    @property
    def due(self) -> float:
        """When ``if_due`` has something to do."""
        return min(self._leave_by, self._terminate_by)

    def asked(self, fact: facts.TerminateAsked, now: float) -> tuple[list[Effect], Event | None]:
        """A signal came: what to do at once, or what to tell the supervisor."""
        self._signals_count += 1
        if self._signals_count > 1:
            return self.begin(128 + fact.signal, f"signal {fact.signal}, twice", now), None
        grace_s = self._config.notice_grace_s
        self._terminate_by = now + grace_s
        if fact.signal == signal.SIGINT:
            return [], CancelRequested(f"SIGINT on {self._config.node}")
        return [], Notice(NoticeKind.UNKNOWN, grace_s)

    def begin(self, code: int, reason: str, now: float) -> list[Effect]:
        """Stop the ranks, then leave."""
        if self._leaving is not None:
            return []
        self._leaving = (code, reason)
        self._terminate_by = NEVER
        self._leave_by = now + self._config.leave_within_s
        return self._orders.stop_all(self._lease.term_max, 0.0, reason) + self.if_due(now)

    def if_due(self, now: float) -> list[Effect]:
        """Leave, if the time has come."""
        if self._leaving is not None:
            if now < self._leave_by and not self._orders.empty:
                return []
            self.gone = True
            return [effects.Leave(*self._leaving)]
        if now < self._terminate_by:
            return []
        if self._lease.unacked_s(now) < self._config.timing.takeover_after_s:
            self._terminate_by = now + self._config.timing.takeover_after_s  # a supervisor is at it
            return []
        return self.begin(128 + signal.SIGTERM, "a signal, and no supervisor to say what it means", now)
