"""The body of a simulated agent around the real brain: what it hears and when it wakes.

While nothing happens to a node it is *parked*: its beats and their acks are known to get through, so none is sent;
``unpark`` accounts for them before anything else touches the node. What its beats would say of ranks that do not step,
the supervisor is given all the same.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Protocol

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.decide import AgentBrain, AgentConfig
from gangrun.agent.brain.effects import Effect
from gangrun.core.events import StacksTaken
from gangrun.core.evidence import ErrorReport, NodeFinding, RankStack
from gangrun.core.model import BrokenSlot, Met
from gangrun.core.recovery.error_rules import marked
from gangrun.sim.body.gang import SimRank, exit_of
from gangrun.sim.body.memory import MANIFEST, SimKept, holdings, key_of
from gangrun.sim.body.surroundings import Line, SupervisorBody, Surroundings
from gangrun.sim.engine.clock import NodeClock, Scheduled, Timeline
from gangrun.sim.engine.disk import Mount
from gangrun.sim.engine.process import SimProcess
from gangrun.wire.messages import (
    Ack,
    AskSave,
    BetweenAgents,
    CheckNode,
    Command,
    Dial,
    FromAgent,
    Launch,
    MemoryAnswer,
    PeerAddress,
    Prepare,
    RankSample,
    Recover,
    SaveAnswer,
    Stacks,
    Stop,
    ToAgent,
    VerifyShare,
)

# What moves no timer of the brain.
OUTCOMES = (facts.NodePrepared, facts.RanksLaunched, facts.RankEnded, facts.Checked, StacksTaken)
COMMANDS = (Prepare, Launch, CheckNode, Stacks)

PREPARE_S, LAUNCH_S, STOP_S, STACKS_S, CHECK_S, TESTS_S, BRING_S, READ_S = 0.02, 0.1, 0.3, 0.2, 0.05, 20.0, 0.4, 0.6
SAVE_S = 0.5
FIRST_LOOK_S = 5.0  # of a new health watch, if nobody asks for one


class Warden(Protocol):
    """The warden of the agent's node, as the agent sees it."""

    def lease_written(self, deadline: float) -> None:
        """The agent wrote into the shared memory."""

    def spawn_supervisor(self, term_min: int, promises: tuple[str, ...], promised_at: float) -> None:
        """The agent asks for a supervisor."""

    def goodbye(self, code: int) -> None:
        """The agent is done."""


class Host(Protocol):
    """The agent's node, as the agent sees it."""

    world: Surroundings
    timeline: Timeline
    index: int
    name: str
    boot_id: str
    job: str
    serves: str
    refill: int
    founder: bool
    mount: Mount
    clock: NodeClock
    ranks: list[SimRank]

    @property
    def warden(self) -> Warden:
        """Its warden."""

    @property
    def kept(self) -> SimKept:
        """The memory that its keeper holds."""

    def keeps_talking(self) -> bool:
        """Is there something new in each heartbeat?"""

    def launch(self, command: Launch, agent: SimAgent) -> bool:
        """Fork the ranks of one attempt, all or none."""

    def kill_rank(self, rank: SimRank, signal: int) -> None:
        """One signal that ends it, when the kernel lets it."""


class SimAgent(SimProcess):
    """One incarnation of a node's agent."""

    def __init__(self, node: Host, incarnation: str, previous_died: str) -> None:
        """Started by the warden just now."""
        super().__init__(node.timeline, f"agent {incarnation} on {node.name}", node.world.new_pid())
        self.node = node
        self.world = node.world
        self.incarnation = incarnation
        world = node.world
        self.beat_every_s = world.setup.policy.timing.beat_every_s
        config = AgentConfig(
            node=node.name,
            incarnation=incarnation,
            boot_id=node.boot_id,
            job=node.serves or node.job,
            slots_count=world.setup.shape.slots_per_node + world.setup.spare_slots_count,
            peer=PeerAddress(node.name, f"peer:{incarnation}", "key"),
            timing=world.setup.policy.timing,
            roster_count=world.setup.job_nodes_count,
            founder=node.founder,
            previous_died=previous_died,
            refill=node.refill,
        )
        self.brain = AgentBrain(config, self.boot())
        self.line: Line | None = None
        self.parked = False
        self.deeds = Deeds(self)
        self._forgotten_seq = 0  # of its events, as told by acks
        self._active_seq = 0  # the newest beat when something last happened here
        self._wake: Scheduled | None = None
        self.perform(self.brain.start(self.boot()))
        if world.broken_slots.get(node.name):
            self.timeline.after(FIRST_LOOK_S, lambda: self.when_awake(self._look))

    def _look(self) -> None:
        """What broke while nobody looked is seen now."""
        for slot in sorted(self.world.broken_slots[self.node.name]):
            self.finds(fatal=True, slot=slot)

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

    def readings(self) -> tuple[RankSample, ...]:
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
        if (
            len(brain.outbox)
            or brain.orders.launching
            or brain.orders.stopping
            or brain.probes
            or self.node.keeps_talking()
        ):
            return False
        return bool(line.supervisor.parked.would_hear(self))

    def still_willing(self, supervisor: SupervisorBody) -> bool:
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
            self.world.checks.forgot(self, self._forgotten_seq, self.brain.outbox.journalled_seq)
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

    def finds(self, *, fatal: bool, slot: int = -1) -> None:
        """A check on this node measured something."""
        sentence = "a GPU fell off the bus" if fatal else "a memory error was contained"
        needs = "" if fatal else "reset"
        found = NodeFinding(
            self.node.name, "xid", fatal, sentence, self.boot(), not fatal, needs, f"gpu {slot}", fatal, slot=slot
        )
        self.tell(facts.FindingReported(found))

    def rank_ended(self, rank: SimRank, code: int | None, signal: int | None, error: ErrorReport | None) -> None:
        """A pidfd became readable. Whoever falls once the settle is over does so because of us, and of what it wrote
        only that counts which it wrote before.
        """
        remarks = self.world.rank_failures.remarks(self.node.name)
        died = exit_of(rank, code, signal, self.boot(), error, remarks)
        if self.world.rank_failures:
            died = replace(died, by_us=died.fell_at >= self.deeds.stopped_at(rank.of[1]))
            died = marked(died, remarks if died.by_us else None)
        self.tell(facts.RankEnded(rank.of[1], died))

    # ---- what goes out ------------------------------------------------------------------------------------------

    def perform(self, wanted: list[Effect], *, timers: bool = True) -> None:
        """Do what the brain asks, in order. ``timers``: it may want to be woken sooner than it has said."""
        for effect in wanted:
            if self.alive:
                self.deeds.do(effect)
        if self.alive and (timers or self._wake is None or self._wake.action is None):
            self._plan()


class Deeds:
    """The hands of one agent: what ``agent.loop`` does with sockets, processes and disks, in numbers."""

    def __init__(self, agent: SimAgent) -> None:
        """Its own."""
        self.agent = agent
        self.node = agent.node
        self.world = agent.world
        self.timeline = agent.timeline
        self._pending: list[Launch] = []  # not forked yet
        self._stops: dict[int, float] = {}  # attempt -> when SIGTERM is due to its ranks, by this node's clock

    def stopped_at(self, attempt: int) -> float:
        """From when on ranks of this attempt fall because of us."""
        return min((at for stopped, at in self._stops.items() if stopped >= attempt), default=math.inf)

    def do(self, effect: Effect) -> None:
        """One of them."""
        node = self.node
        match effect:
            case effects.SendSupervisor():
                self._send(effect.message)
            case effects.SendPeer():
                self.world.send_peer(self.agent, effect.peer.endpoint, effect.message)
            case effects.Knock():
                self.world.knock(self.agent, effect.peer)
            case effects.ReplyPeer():
                self.world.send_peer(self.agent, effect.route.decode(), effect.message)
            case effects.DialTerm():
                self.agent.line = Line(self.agent, self.world.supervisor_at(effect.endpoint))
            case effects.FindTerm():
                self.timeline.at(node.mount.ready_at(), self._found)
            case effects.WriteLease():
                node.warden.lease_written(effect.deadline)
            case effects.SpawnSupervisor():
                node.warden.spawn_supervisor(effect.term_min, effect.promises, effect.promised_at)
            case effects.Leave():
                node.warden.goodbye(effect.code)
            case command:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Prepare():
                self.world.checks.obeys(self.agent, command)
                self.timeline.after(PREPARE_S, lambda: self._prepared(command))
            case Launch():
                self.world.checks.obeys(self.agent, command)
                self._pending.append(command)
                self.timeline.after(LAUNCH_S, lambda: self.agent.when_awake(lambda: self._launch(command)))
            case Stop():
                self._stop(command)
            case Stacks():
                attempt = command.attempt
                stacks = tuple(
                    RankStack(rank.rank, self.node.name, "train.py:1 step", "")
                    for rank in self.node.ranks
                    if rank.alive
                )
                self.timeline.after(STACKS_S, lambda: self.agent.tell(StacksTaken(attempt, stacks)))
            case AskSave() if command.hold:
                self._hold(command)
            case AskSave():
                self.timeline.after(SAVE_S, lambda: self._saved(command))
            case CheckNode():
                self.timeline.after(TESTS_S if command.tests else CHECK_S, lambda: self._checked(command))
            case VerifyShare():
                self._read_share(command)
            case Recover():
                self._recover(command)

    def _hold(self, command: AskSave) -> None:
        gang = next((rank.gang for rank in self.node.ranks if rank.alive and rank.of[1] == command.attempt), None)
        saves = gang is not None and gang.script.saves_when_asked
        step = gang.hold(self.node.name) if gang is not None and saves else -1
        self.agent.tell(facts.DiskTaskDone(command, True, answer=SaveAnswer(step)))

    def _saved(self, command: AskSave) -> None:
        trains = any(rank.alive and rank.of[1] == command.attempt for rank in self.node.ranks)
        why, answer = ("", SaveAnswer(command.save_step)) if trains else ("a rank ended before it had saved", None)
        self.agent.tell(facts.DiskTaskDone(command, trains, why, answer))

    def _checked(self, command: CheckNode) -> None:
        tests, lost = command.tests, self.world.lost_pairs
        partners = [one.partner for one in command.meetings]
        met = tuple(Met(name, "timed out" if lost(self.node.name, name) else "") for name in partners)
        sick = self.node.name in self.world.sick
        if sick:
            self.agent.finds(fatal=True)
        slots = sorted(self.world.broken_slots.get(self.node.name, ()))
        broken = tuple(BrokenSlot(slot, f"gpu {slot}", "a GPU fell off the bus") for slot in slots)
        tested = "all came out right" if tests and not sick else ""
        why = "a GPU fell off the bus" if sick else ""
        self.agent.tell(facts.Checked(not sick, why, tested, tests, command.meetings, met, broken))

    def _recover(self, command: Recover) -> None:
        """What is in memory is known at once; what is written is there when the disk has it."""
        kept, names = self.node.kept, self.world.memory.names
        if not command.into:
            steps = tuple(holdings(kept, command, names))
            self.agent.tell(facts.DiskTaskDone(command, True, answer=MemoryAnswer(steps)))
            return

        def write() -> None:
            there = kept.steps.get((command.attempt, command.step, command.nonce), set())
            why = "" if there.issuperset(command.files) else "it is not kept any more"
            why = why or (os.strerror(self.node.mount.trouble()) if self.node.mount.trouble() else "")
            why = why or self.world.checkpoint_fs.bring(command.into, command.files)
            if command.pin:
                kept.let_go()
            self.agent.tell(facts.DiskTaskDone(command, not why, why))

        self.timeline.at(self.node.mount.ready_at() + BRING_S, lambda: self.agent.when_awake(write))

    def _read_share(self, command: VerifyShare) -> None:
        """Whole where what stands there is, and this node's mount shows it."""

        def read() -> None:
            why = self.world.checkpoint_fs.damage_of(command.directory, command.nonce)
            why = why or (os.strerror(self.node.mount.trouble()) if self.node.mount.trouble() else "")
            self.agent.tell(facts.DiskTaskDone(command, not why, why))

        self.timeline.at(self.node.mount.ready_at() + READ_S, lambda: self.agent.when_awake(read))

    def _send(self, message: FromAgent) -> None:
        line = self.agent.line
        if line is None or line.supervisor is None:
            return
        supervisor = line.supervisor
        self.world.network.send(self.node.index, supervisor.node.index, lambda: supervisor.hear(line, message))

    def _found(self) -> None:
        try:
            claims = self.node.mount.claims()
        except OSError:
            claims = {}
        if not claims:
            self.agent.tell(facts.TermFound(None))
            return
        claim = claims[max(claims)]
        ended = claim.node == self.node.name and not self.world.lives(claim.pid)
        self.agent.tell(facts.TermFound(Dial(claim.term, claim.endpoint, claim.server_key), claim.job, ended))

    def _prepared(self, command: Prepare) -> None:
        left = [rank.name for rank in self.node.ranks if rank.alive]
        port = self.world.new_port() if command.rank_zero else 0
        self.agent.tell(facts.NodePrepared(command.attempt, not left, ", ".join(left), port))

    def _launch(self, command: Launch) -> None:
        if command not in self._pending:
            self.agent.tell(facts.RanksLaunched(command.attempt, False, "stopped before they were up"))
        elif not self._has_step(command):
            why = "the step is not in this node's memory any more"
            self.agent.tell(facts.RanksLaunched(command.attempt, False, why, retry_free=True))
        elif self.node.launch(command, self.agent):
            ranks = tuple(rank.live() for rank in self.node.ranks if rank.alive and rank.of[1] == command.attempt)
            self.agent.tell(facts.RanksLaunched(command.attempt, True, ranks=ranks))
        else:
            self.agent.tell(
                facts.RanksLaunched(command.attempt, False, "the lease ended while ranks were being started")
            )

    def _has_step(self, command: Launch) -> bool:
        """Is what it begins from in this node's memory, if that is where it is?"""
        base = key_of(command.resume_memory)
        if base is None or command.lacks_step:
            return True
        files = self.node.kept.begins_from(command.attempt, base)
        is_shared = command.resume_memory is not None and command.resume_memory.is_shared
        return MANIFEST in files if is_shared else len(files) == self.world.memory.names[base[2]][1]

    def _stop(self, command: Stop) -> None:
        """SIGTERM, grace, SIGKILL; said again until none is left. What is not forked yet will not be."""
        self._pending = [launch for launch in self._pending if launch.attempt > command.attempt]

        def look() -> None:
            left = [r for r in self.node.ranks if r.alive and r.agent is self.agent and r.of[1] <= command.attempt]
            for rank in left:
                self.node.kill_rank(rank, 15)
            left = [rank for rank in left if rank.alive]
            if not left:
                self.agent.tell(facts.RanksStopped(command.attempt, True))
            elif self.timeline.now > began + command.grace_s + 10.0:
                names = tuple(rank.name for rank in left)
                self.agent.tell(facts.RanksStopped(command.attempt, False, names))
            else:
                self.timeline.after(0.5, lambda: self.agent.when_awake(look))

        began, due = self.timeline.now, self.agent.boot() + command.settle_s
        self._stops[command.attempt] = min(due, self._stops.get(command.attempt, math.inf))
        alive = [rank for rank in self.node.ranks if rank.alive]
        stops_s = command.settle_s + STOP_S if alive else 0.001
        gang = alive[0].gang if alive and command.checkpoint_first else None
        if gang is not None and gang.script.saves_when_asked:
            stops_s += command.checkpoint_grace_s
            self.timeline.after(command.settle_s, lambda: gang.ask(self.node.name, command.save_step))
        self.timeline.after(stops_s, lambda: self.agent.when_awake(look))
