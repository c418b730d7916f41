"""The body of a simulated agent around the real brain: what it hears and when it wakes.

While nothing happens to a node it is *parked*: its beats and their acks are known to get through, so none is sent;
``unpark`` accounts for them before anything else touches the node. What its beats would say of ranks that do not step,
the supervisor is given all the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gangrun.agent.brain import facts
from gangrun.agent.brain.decide import AgentBrain, AgentConfig
from gangrun.agent.brain.effects import Effect
from gangrun.core.model import ErrorReport, Finding
from gangrun.sim.body.effects import Deeds
from gangrun.sim.body.gang import SimRank, exit_of
from gangrun.sim.engine.clock import Entry
from gangrun.sim.engine.network import Line
from gangrun.sim.engine.process import SimProcess
from gangrun.wire.messages import (
    Ack,
    BetweenAgents,
    Check,
    Launch,
    PeerAddress,
    Prepare,
    Reading,
    Stacks,
    ToAgent,
)

if TYPE_CHECKING:
    from gangrun.sim.body.node import SimNode
    from gangrun.sim.body.supervisor import SimSupervisor
    from gangrun.sim.world import World

# What moves no timer of the brain.
OUTCOMES = (facts.SlatePrepared, facts.RanksLaunched, facts.RankEnded, facts.Checked, facts.StacksTaken)
COMMANDS = (Prepare, Launch, Check, Stacks)


class SimAgent(SimProcess):
    """One incarnation of a node's agent."""

    def __init__(self, node: SimNode, incarnation: str, previous_died: str) -> None:
        """Started by the warden just now."""
        super().__init__(node.timeline, f"agent {incarnation} on {node.name}", node.world.new_pid())
        self.node: SimNode = node
        self.world: World = node.world
        self.incarnation = incarnation
        world = node.world
        self.beat_every_s = world.setup.policy.timing.beat_every_s
        config = AgentConfig(
            node=node.name,
            incarnation=incarnation,
            boot_id=node.boot_id,
            job=node.job,
            job_restart=node.job_restart,
            slots_count=world.setup.shape.slots_per_node,
            peer=PeerAddress(node.name, f"peer:{incarnation}", "key"),
            timing=world.setup.policy.timing,
            roster_count=world.setup.job_nodes_count,
            founder=node.founder,
            previous_died=previous_died,
        )
        self.brain = AgentBrain(config, self.boot())
        self.line: Line | None = None
        self.parked = False
        self.deeds = Deeds(self)
        self._forgotten_seq = 0  # of its events, as told by acks
        self._active_seq = 0  # the newest beat when something last happened here
        self._wake: Entry | None = None
        self.perform(self.brain.start(self.boot()))

    def boot(self) -> float:
        """This host's CLOCK_BOOTTIME."""
        return self.node.clock.boot(self.timeline.now)

    # ---- time ---------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Sleep until the brain has something to do."""
        if self.parked or not self.alive:
            return
        when = self.node.clock.when(self.brain.next_wake())
        if self._wake is not None:
            if self._wake.action is not None and abs(self._wake.when - when) < 1e-9:
                return
            self._wake.cancel()
        self._wake = None if when == math.inf else self.timeline.at(when, self._tick)

    def _tick(self) -> None:
        self.when_awake(self._do_tick)

    def _do_tick(self) -> None:
        self._sample()
        self.perform(self.brain.tick(self.boot()))

    def _sample(self) -> None:
        """What the next beat says of the ranks here."""
        readings = self.readings()
        if readings:
            taken = facts.ReadingsTaken(self.brain.orders.attempt, readings)
            for effect in self.brain.local(taken, self.boot()):
                self.deeds.do(effect)

    def readings(self) -> tuple[Reading, ...]:
        """Of the ranks that are alive here."""
        orders = self.brain.orders
        if not orders.alive:
            return ()
        ranks = [rank for rank in self.node.ranks if rank.alive and rank.of[1] == orders.attempt]
        return tuple(rank.gang.reading(rank) for rank in ranks if rank.gang is not None)

    def is_held_up(self) -> bool:
        """Do its ranks live without stepping? Then each beat's readings count, and none may be left out."""
        return any(rank.gang is not None and not rank.gang.stepping and rank.alive for rank in self.node.ranks)

    # ---- parking ------------------------------------------------------------------------------------------------

    def _may_park(self) -> bool:
        brain = self.brain
        line = self.line
        if line is None or line.supervisor is None or not brain.lease.welcomed or not brain.lease.talks:
            return False
        if len(brain.outbox) or brain.orders.launching or brain.orders.stopping or self.node.keeps_talking():
            return False
        return line.supervisor.parked.would_hear(self)

    def still_willing(self, supervisor: SimSupervisor) -> bool:
        """Asked later: nothing has happened here since."""
        if not self.awake or self.parked or self.line is None or self.line.supervisor is not supervisor:
            return False
        return self.brain.lease.acked_seq > self._active_seq and self._may_park()

    def park(self) -> None:
        """From here on beats are known, not sent."""
        self.parked = True
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def newest_beat(self) -> tuple[float, int, float]:
        """While parked: when (this host's clock) the newest acked beat was sent, how many there were, how old it is."""
        first, now = self.brain.next_beat_at, self.node.clock.boot(self.timeline.now)
        since_s = now - 0.01 - first
        if since_s < 0.0:
            return -1.0, 0, 0.0
        every_s = self.beat_every_s
        count = int(since_s / every_s) + 1
        sent_at = first + (count - 1) * every_s
        return sent_at, count, now - sent_at

    def account(self) -> None:
        """While parked: what the beats so far have moved on, here and at the supervisor."""
        if not self.parked or not self.alive:
            return
        assert self.line is not None
        assert self.line.supervisor is not None
        sent_at, count, ago_s = self.newest_beat()
        if count:
            stamp = self.line.supervisor.parked.catch_up(self, count, ago_s)
            self.perform(self.brain.catch_up_acked(sent_at, self.boot(), count, stamp))

    def unpark(self) -> None:
        """Account for all beats so far; from here on they are sent."""
        if not self.parked:
            return
        assert self.line is not None
        assert self.line.supervisor is not None
        self.account()
        self.parked = False
        self.line.supervisor.parked.forget(self)
        if not self.alive:
            return
        self._active_seq = self.brain.lease.seq
        self._plan()

    def kill(self) -> None:
        """SIGKILL; what it had sent, it has sent."""
        self.unpark()
        super().kill()

    # ---- what comes in -----------------------------------------------------------------------------------------

    def hear(self, line: Line, message: ToAgent) -> None:
        """A supervisor's message arrives on a connection."""
        if self.alive and line is self.line:
            self.when_awake(lambda: self._hear(line, message))

    def _hear(self, line: Line, message: ToAgent) -> None:
        if line is not self.line:
            return
        self.unpark()
        lease = self.brain.lease
        if not isinstance(message, Ack):
            self.perform(self.brain.from_supervisor(message, self.boot()), timers=not isinstance(message, COMMANDS))
            self._active_seq = lease.seq
            return
        wake = self._wake  # an ack makes nothing due sooner
        for effect in self.brain.from_supervisor(message, self.boot()):
            self.deeds.do(effect)
        if self.brain.outbox.journalled_seq != self._forgotten_seq:
            self.world.checker.witness.forgot(self, self._forgotten_seq, self.brain.outbox.journalled_seq)
            self._forgotten_seq = self.brain.outbox.journalled_seq
        if lease.acked_seq > self._active_seq and self._may_park() and line.supervisor is not None:
            line.supervisor.parked.park_if_many(self)
        if not self.parked and (wake is None or wake.action is None):
            self._plan()

    def hear_peer(self, message: BetweenAgents, route: bytes) -> None:
        """Another agent's message arrives."""

        def hear() -> None:
            self.unpark()
            self.perform(self.brain.from_peer(message, self.boot(), route))

        self.when_awake(hear)

    def tell(self, fact: facts.Fact) -> None:
        """Something happened on this node."""

        def hear() -> None:
            self.unpark()
            self._active_seq = self.brain.lease.seq
            self.perform(self.brain.local(fact, self.boot()), timers=not isinstance(fact, OUTCOMES))

        self.when_awake(hear)

    def finds(self, *, fatal: bool) -> None:
        """A check on this node measured something."""
        sentence = "a GPU fell off the bus" if fatal else "a memory error was contained"
        needs = "" if fatal else "reset"
        found = Finding(self.node.name, "xid", fatal, sentence, self.boot(), not fatal, needs, until_boot=fatal)
        self.tell(facts.FindingMade(found))

    def rank_ended(self, rank: SimRank, code: int | None, signal: int | None, error: ErrorReport | None) -> None:
        """A pidfd became readable."""
        self.tell(facts.RankEnded(rank.of[1], exit_of(rank, code, signal, self.boot(), error)))

    # ---- what goes out ------------------------------------------------------------------------------------------

    def perform(self, wanted: list[Effect], *, timers: bool = True) -> None:
        """Do what the brain asks, in order. ``timers``: it may want to be woken sooner than it has said."""
        for effect in wanted:
            if self.alive:
                self.deeds.do(effect)
        if self.alive and (timers or self._wake is None or self._wake.action is None):
            self._plan()
