"""What only one who sees the whole world can swear to: the checker's second pair of eyes.

``checker`` holds records, tickets and gangs against each other; here is what lies between a supervisor and its agents:
who leads when the next one claims (law 3), which events agents have forgotten (I12), whether a stop is said at once
(protocol section 5), whether RUNNING is true (I14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.core.model import Phase
from gangrun.supervisor.leadership import roster_of
from gangrun.wire.record import Record

if TYPE_CHECKING:
    from gangrun.sim.body.agent import SimAgent
    from gangrun.sim.body.node import SimNode
    from gangrun.sim.body.supervisor import SimSupervisor
    from gangrun.sim.invariants.checker import Checker

Key = tuple[str, str, int]  # node, incarnation, seq of an event
PROMISES_ARE_FRESH_S = 2.0  # later some may have been taken back, as they may
STOP_SAID_WITHIN_S = 5.0


class Witness:
    """One per world."""

    def __init__(self, checker: Checker) -> None:
        """Nothing was seen yet."""
        self._checker = checker
        self._world = checker.world
        self._written: dict[Key, list[tuple[int, int]]] = {}  # where the journals have an event: (term, n)
        self._forgotten: set[Key] = set()
        self._stopping: dict[int, tuple[int, float]] = {}  # supervisor's pid -> (attempt, since)
        self._led_since: dict[int, float] = {}  # supervisor's pid -> since when it has led without a break
        self._said: set[tuple[int, int]] = set()  # (pid, attempt): a stop of it, or of a later one, was said

    def claimed(self, supervisor: SimSupervisor, term: int) -> None:
        """Law 3: whoever lost a majority of the agents it counts to this claim has stopped leading before it."""
        world = self._world
        roster = set(world.roster_of(supervisor.node.job))
        fresh = world.timeline.now <= supervisor.start_ticks / 100 + PROMISES_ARE_FRESH_S
        if not fresh or 2 * len(roster & set(supervisor.promises)) <= len(roster):
            return
        for other in world.supervisors:
            loop = other.loop
            if loop is None or other.term >= term or not other.awake or other.exit_code is not None:
                continue
            if world.clocks_stopped(other.node) or other.node.job != supervisor.node.job:
                continue
            counted = roster_of(loop.state)
            if 2 * len(counted & set(supervisor.promises)) <= len(counted):
                continue  # it had given most of these up as lost before: the seal ends its term, and law 5 the wait
            now = loop.run_clock.at(other.clock.now())
            if now < loop.law_one.until + other.policy.timing.takeover_after_s:
                continue  # it began to ack when its agents had just lost their patience with it
            if now < self._led_since.get(other.pid, now) + other.policy.timing.takeover_after_s:
                continue  # it had lost its majority and regained it from agents who were losing their patience
            if loop.leadership.holds(now):
                self._checker.broken("I1", f"term {other.term} still leads as term {term} is claimed with promises")

    def record(self, record: Record) -> None:
        """A record became durable."""
        if record.origin is not None:
            key = (str(record.origin["node"]), str(record.origin["incarnation"]), int(record.origin["seq"]))
            self._written.setdefault(key, []).append((record.term, record.n))
        if record.kind == "Snapshot":
            for forgotten in sorted(self._forgotten):
                self._must_count(forgotten, record.term)
        newest = record.term == max(self._world.disk.claims)
        if newest and record.phase == Phase.RUNNING.value and record.was != record.phase:
            self._all_were_born(record)

    def _all_were_born(self, record: Record) -> None:
        gang = next((gang for gang in reversed(self._world.gangs) if gang.members), None)
        missing = 0 if gang is None else gang.world_size - len(gang.members)
        if missing:
            self._checker.broken("I14", f"term {record.term} says RUNNING, and {missing} ranks were never started")

    def speaks(self, record: Record, nodes: Mapping[str, Any]) -> None:
        """An event counts: is its agent the one that the state knows on that node?"""
        origin = record.origin or {}
        node = nodes.get(str(origin.get("node", "")))
        if node is not None and node["incarnation"] != origin["incarnation"] and not self._checker.journal_damaged:
            what = f"{record.kind} of {origin['incarnation']} was applied, which {node['incarnation']} had replaced"
            self._checker.broken("I12", what)

    def orphans(self, node: SimNode, attempt: int) -> None:
        """Time proves nothing of a node whose warden slept, but the kernel kills what has lost its agent even there."""
        left = [rank for rank in node.ranks if rank.awake and rank.is_orphan and rank.of[1] <= attempt]
        if left and not any(rank.stuck for rank in left) and not node.kill_takes_s:
            self._checker.broken("I16", f"{left[0].name} lives without its agent")

    # ---- events -------------------------------------------------------------------------------------------------

    def forgot(self, agent: SimAgent, before_seq: int, seq: int) -> None:
        """An agent was told that its events up to ``seq`` are journalled, and drops them."""
        for number in range(before_seq + 1, seq + 1):
            key = (agent.node.name, agent.incarnation, number)
            self._forgotten.add(key)
            if key not in self._written:
                self._lost(key, "no journal has it")
            terms = [term for term in self._world.disk.lineage if term in self._world.disk.journals]
            self._must_count(key, max(terms, default=0))

    def _must_count(self, key: Key, term: int) -> None:
        """Is it in what this term was born from, or in what it wrote itself?"""
        counts = self._checker.born_from(term)
        if not any(at == term or n < counts.get(at, 0) for at, n in self._written[key]):
            self._lost(key, f"term {term} knows nothing of it")

    def _lost(self, key: Key, why: str) -> None:
        if not self._checker.journal_damaged:
            self._checker.broken("I12", f"{key[1]} was told that its event {key[2]} is journalled, and {why}")

    # ---- stops --------------------------------------------------------------------------------------------------

    def says_stop(self, supervisor: SimSupervisor, attempt: int) -> None:
        """A stop leaves a supervisor."""
        self._said.add((supervisor.pid, attempt))

    def _leads(self, supervisor: SimSupervisor) -> None:
        loop = supervisor.loop
        assert loop is not None
        now = loop.run_clock.at(supervisor.clock.now())
        if loop.leadership.holds(now):
            self._led_since.setdefault(supervisor.pid, now)
        else:
            self._led_since.pop(supervisor.pid, None)

    def turned(self, supervisor: SimSupervisor) -> None:
        """A loop turned: does it keep back a stop that it has decided?"""
        self._leads(supervisor)
        loop = supervisor.loop
        assert loop is not None
        if loop.state.phase is not Phase.STOPPING or loop.gathering is not None:
            self._stopping.pop(supervisor.pid, None)
            return
        now, attempt = self._world.timeline.now, loop.state.attempt
        named, since = self._stopping.setdefault(supervisor.pid, (attempt, now))
        if named != attempt:
            self._stopping[supervisor.pid] = attempt, now
        elif now > since + STOP_SAID_WITHIN_S and (supervisor.pid, attempt) not in self._said:
            rows = loop.beats.rows
            asked = [name for name in (loop.state.placement.nodes if loop.state.placement else ()) if name in rows]
            if asked and loop.leadership.holds(loop.run_clock.at(supervisor.clock.now())):
                what = f"attempt {attempt} is to be stopped for {now - since:.0f} s, and nobody is told"
                self._checker.broken("I14", what)
