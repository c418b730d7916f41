"""The first seconds of a term: who of the roster is still there, and what do they hold.

It ends when all of the roster have said hello, or some time before agents lose patience with it
(``takeover_after_s``), whichever comes first, with the events that the term begins with. A fresh run, and a new job,
expect nobody; a job that only ends has no roster, and waits for whoever is still there, to let him go.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangrun.core.events import Event, TermTaken
from gangrun.core.machine.transitions import is_unlaunched
from gangrun.core.model import TERMINAL, Inventory
from gangrun.core.policy import Timing
from gangrun.core.protocol import lease
from gangrun.supervisor.facts import Facts, Opening
from gangrun.supervisor.heartbeats import Row

GATHER_SHARE = 0.7  # the rest is for the first beat that may be acked, and its ack
ENDED_SHARE = 0.5
NEVER = float("inf")


class Gathering:
    """Waits for the roster's inventories, and knows when the last supervisor can have acked for the last time."""

    def __init__(self, facts: Facts, opening: Opening, timing: Timing, rows: Mapping[str, Row]) -> None:
        state = opening.state
        same_job = state.job == facts.job and not facts.alone
        self.roster = frozenset(state.nodes) if same_job else frozenset()
        # Agents are patient for ``takeover_after_s`` with a term that does not ack, and where most of the roster was
        # lost it cannot ack before this is over. An ended run must let them go sooner still.
        share = ENDED_SHARE if state.phase in TERMINAL or state.leaving else GATHER_SHARE
        self.until = opening.run_start + share * timing.takeover_after_s
        self.floor: float | None = None  # by then the last supervisor had acked for the last time
        if facts.alone:  # all tasks of the job have ended: some node no supervisor hears any more
            self.floor = opening.run_start + lease.last_ack_after_seal_s(timing)
        self._facts = facts
        self._opening = opening
        self._timing = timing
        self._rows = rows
        self._counted = frozenset(n for n in self.roster if not state.nodes[n].lost)
        self._lets_go = same_job and state.leaving  # no roster any more, but agents that do not know it yet
        self._dialled: set[str] = set()  # a promise may have been taken back since, a hello to this term not
        self._settle(opening.run_start)

    def _settle(self, now: float) -> None:
        """Without half of its roster the last supervisor has no majority left."""
        half = 2 * (len(self._counted) - len(self._dialled)) <= len(self._counted)
        if half and (self.floor is None or now < self.floor):
            self.floor = now

    def dialled(self, node: str, now: float) -> None:
        """An agent that says hello to this term does not listen to the last one any more.

        One alone is enough where the last supervisor counts it: whoever does not hear all acks only for so long after
        it was last seen that nobody sealed it (``leadership``), and we sealed it before we began.
        """
        if node in self._opening.witnesses and self.floor is None:
            unheard_at = now + self._timing.silence_after_s * (1 + self._timing.drift)
            self.floor = max(unheard_at, self._opening.run_start + lease.last_ack_after_seal_s(self._timing))
        self._dialled |= {node} & self._counted
        self._settle(now)

    def empty_at(self, node: str) -> float:
        """Law 1: from when on a node that says nothing holds no ranks; infinity where it cannot be said."""
        row = self._rows.get(node)
        if row is not None:
            return lease.presumed_empty_at(row.arrived_at, self._timing)
        return NEVER if self.floor is None else lease.presumed_empty_after_takeover(self.floor, self._timing)

    def over(self, now: float) -> bool:
        """Is there nobody left to wait for?"""
        return now >= self.until or self._all_here()

    def due(self) -> float:
        """When to look whether it is over."""
        return -NEVER if self._all_here() else self.until

    def _all_here(self) -> bool:
        return not self._lets_go and self._counted <= self._rows.keys()

    def events(self) -> list[Event]:
        """What the term begins with."""
        facts, state, rows = self._facts, self._opening.state, self._rows
        held: tuple[Inventory, ...] = tuple(rows[name].inventory() for name in sorted(rows))
        missing = tuple(sorted(self.roster - rows.keys()))
        started = max((self._opening.started_attempt, *(row.attempt for row in rows.values())))
        if started == state.attempt and is_unlaunched(state):
            started += 1  # the record of its start was lost: its ranks may live, so its number is used up
        highest = max(self._opening.highest_attempt, started)
        expected = facts.expected or tuple(facts.addresses)
        taken = TermTaken(self._opening.term, facts.job, held, missing, highest, expected, facts.alone, facts.seq)
        if facts.resumed is not None and state.phase in TERMINAL and state.job != facts.job:
            return [facts.resumed, taken]
        return [taken]
