"""Events on their way to the journal.

An event gets its seq (within this incarnation) when it is told, rides on every beat until the supervisor acks it as
journalled, and only then is forgotten. Bounds, so that a stalled journal cannot grow an agent:

- of events about ranks there are at most a few per rank and attempt, and ``full`` refuses the next attempt
  (back-pressure: a run whose journal stands still starts nothing anyway);
- findings beyond ``FINDINGS_MAX`` are dropped, counted, and the count is said with the next one that fits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import msgspec

from gangrun.core.events import Event, FindingRaised
from gangrun.wire.messages import AgentEvent

PER_BEAT_MAX = 64
FINDINGS_MAX = 64
LAUNCH_MAX = 1024  # more than this not journalled: no launch


class Outbox:
    """A queue with a memory of what the journal has."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.journalled_seq = 0
        self.findings_dropped_count = 0
        self._findings_count = 0
        self._events: deque[AgentEvent] = deque()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        """Too much waits for the journal: start nothing that could add to it."""
        return len(self._events) > LAUNCH_MAX

    def tell(self, event: Event) -> bool:
        """Queue a core event; False where it was dropped (only ever a finding)."""
        if isinstance(event, FindingRaised):
            if self._findings_count >= FINDINGS_MAX:
                self.findings_dropped_count += 1
                return False
            event = self._with_dropped(event)
            self._findings_count += 1
        self.last_seq += 1
        data: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
        self._events.append(AgentEvent(self.last_seq, type(event).__name__, data))
        return True

    def _with_dropped(self, event: FindingRaised) -> FindingRaised:
        if not self.findings_dropped_count:
            return event
        sentence = f"{event.finding.sentence} ({self.findings_dropped_count} findings before it were dropped)"
        self.findings_dropped_count = 0
        return FindingRaised(replace(event.finding, sentence=sentence))

    def journalled(self, seq: int) -> None:
        """Forget every event up to ``seq``; a number never given is not believed."""
        if seq > self.last_seq:
            return
        self.journalled_seq = max(self.journalled_seq, seq)
        while self._events and self._events[0].seq <= seq:
            if self._events.popleft().kind == FindingRaised.__name__:
                self._findings_count -= 1

    def page(self) -> tuple[AgentEvent, ...]:
        """The oldest events, as many as one beat may carry."""
        if not self._events:
            return ()
        return tuple(self._events[i] for i in range(min(PER_BEAT_MAX, len(self._events))))
