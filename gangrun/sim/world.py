"""A world made of numbers: nodes, disk, network, scheduler, and what goes wrong with them.

``World(setup, plan, seed).run()`` drives the real core, the real supervisor loop and the real agent brains through a
fault plan, under one virtual clock, and checks the invariants on the way. Same seed, same story, to the last record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gangrun.agent.brain import facts
from gangrun.core.events import ResumeRequested
from gangrun.core.model import Phase, RunState, Shape
from gangrun.core.policy import HangPolicy, Policy
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.body.checkpoints import CheckpointFs
from gangrun.sim.body.gang import Script, SimGang, SimRank, Watched
from gangrun.sim.body.memory import MemoryTier
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.scheduler import Scheduler
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.engine.clock import EPOCH_S, NodeClock, Timeline
from gangrun.sim.engine.disk import Disk, Mount
from gangrun.sim.engine.network import Network
from gangrun.sim.engine.process import Probe
from gangrun.sim.faults.injection import injure
from gangrun.sim.faults.kinds import MISSES_NO_MEMORY, FaultPlan
from gangrun.sim.invariants.checker import Checker
from gangrun.wire import record as wire_record
from gangrun.wire.messages import BetweenAgents, Launch

SETTLE_S = 900.0
STEADY_S = 5.0
IMPATIENT = HangPolicy(startup_limit_s=90.0, steady_min_s=45.0, steady_max_s=120.0)
SCANCEL_AFTER_S = 40.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated: the gang's shape, the policy, the script, how many nodes the cluster has."""

    shape: Shape = Shape(nodes_count=4, nodes_min_count=4, slots_per_node=1, ranks_per_slot=1)
    policy: Policy = Policy()
    script: Script = Script()
    pool_count: int = 0  # nodes of the cluster; 0: just those of one job
    replica_ranks_count: int = 1
    agents_begin_s: tuple[float, float] | None = None  # how long they import, from and to; None: at once
    label: str = ""  # how to say this setup on the command line
    spares_count: int = 0  # nodes that each job has besides, which hold no ranks
    reads_together: bool = False  # all nodes read a checkpoint before it is resumed from

    @property
    def job_nodes_count(self) -> int:
        """Nodes that each job asks for."""
        return self.shape.nodes_count + self.spares_count

    @staticmethod
    def of(nodes_count: int, *, ranks_per_node: int = 1, script: Script | None = None, requeue: bool = False) -> Setup:
        """A usual one."""
        shape = Shape(nodes_count, nodes_count, 1, ranks_per_node)
        pool_count = nodes_count + max(2, nodes_count // 16) if requeue else nodes_count
        label = f"--nodes {nodes_count}" + (" --requeue" if requeue else "")
        script = script or Script()
        policy = Policy(can_requeue=requeue, hang=IMPATIENT, keeps_memory=script.memory_every_count > 0)
        return Setup(shape, policy, script, pool_count, label=label)


@dataclass(slots=True)
class Outcome:
    """What came of a world."""

    seed: int
    state: RunState | None
    took_s: float
    events_count: int
    steps: int
    gangs: tuple[tuple[int, int, int], ...] = field(default=())  # (term, attempt, highest step) in order of birth
    notes: tuple[str, ...] = ()


class World:
    """Everything that is simulated, from the first job to the end of the run."""

    def __init__(
        self, setup: Setup, plan: FaultPlan | None = None, seed: int = 0, *, probe: Probe | None = None
    ) -> None:
        """Nothing runs yet. ``probe`` sees every boundary of every supervisor."""
        self.setup = setup
        self.plan = plan or FaultPlan()
        self.seed = seed
        self.run_id = f"sim-{seed}"
        self.rng = random.Random(f"world {seed}")
        self.timeline = Timeline()
        self.disk = Disk(self.timeline)
        self.checkpoint_fs = CheckpointFs(self.timeline, foreign=setup.script.foreign)
        self.memory = MemoryTier(self.timeline)
        self.network = Network(self.timeline, self.rng)
        self.network.on_change = self.unpark_all
        self.scheduler = Scheduler(self)
        self.checker = Checker(self)
        self.gangs: list[SimGang] = []
        self.supervisor_probe = probe
        self.upgraded = False
        self.sick: set[str] = set()  # nodes whose hardware is broken, until they are repaired, which nobody does
        self.resumed: dict[str, ResumeRequested] = {}  # job -> what a person asked of it
        self.supervisors: list[SimSupervisor] = []
        self._agents: dict[str, SimAgent] = {}
        self._gangs_at: dict[tuple[str, int], SimGang] = {}
        self._pids = 1000
        self._ports = 20000
        self.nodes = [self._node(i) for i in range(setup.pool_count or setup.job_nodes_count)]
        self._by_name = {node.name: node for node in self.nodes}
        self._watched = Watched(self.checker.stepping, self._gang_changed, self.checker.joined)
        self.disk.on_ticket = self.checker.ticket
        self.disk.on_record = self.checker.record
        self.checkpoint_fs.on_commit = self.checker.committed
        self.checkpoint_fs.on_replaced = self.checker.replaced
        self.memory.on_release = self.checker.released

    def _node(self, i: int) -> SimNode:
        clock = NodeClock(1000.0 + 7.0 * i, 1.0 + self.rng.uniform(-1e-4, 1e-4))
        return SimNode(self, i, f"n{i:04d}", Mount(self.disk, self.timeline), clock)

    # ---- running ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first job is submitted, and every fault of the plan is due."""
        self.scheduler.sbatch(0, ())
        self._expect_faults()
        self.timeline.after(30.0, self._owners)

    def _expect_faults(self) -> None:
        for fault in self.plan:
            self.timeline.at(fault.at_s, lambda fault=fault: injure(self, fault))  # type: ignore[misc]

    def arm(self, plan: FaultPlan, seed: int) -> None:
        """These faults from now on, and chance from this seed; a world that has not begun yet begins."""
        self.plan, self.seed = plan.shifted(self.timeline.now), seed
        self.rng.seed(f"world {seed}")
        if self.scheduler.jobs:
            self._expect_faults()
        else:
            self.start()

    def run(self, settle_s: float = SETTLE_S, *, until_steady: bool = False) -> Outcome:
        """To the end of the run, or until it had ``settle_s`` after the last fault to get there.

        ``until_steady``: a gang that steps undisturbed again after the last fault is enough.
        """
        if not self.scheduler.jobs:
            self.start()
        end = self.plan.over_at_s + settle_s
        while until_steady and not self.timeline.stopped and self.timeline.now < end and not self._steady():
            self.run_until(min(end, max(self.timeline.now, self.plan.over_at_s) + STEADY_S))
        self.run_until(self.timeline.now if until_steady else end)
        self.checker.at_the_end()
        return self.outcome()

    def _steady(self) -> bool:
        """Faults are over, nobody is a suspect, and all ranks have stepped for a while."""
        holder = self.holder()
        if self.timeline.now <= self.plan.over_at_s or holder is None or holder.loop is None:
            return False
        if holder.loop.state.phase is not Phase.RUNNING or holder.loop.silence.suspects:
            return False
        return any(gang.stepping and gang.steady_s() >= STEADY_S for gang in self.gangs)

    def run_until(self, until: float) -> None:
        """Let the world go on."""
        self.timeline.run_until(until)

    def is_over(self) -> bool:
        """The run has ended and no job holds nodes, nor will."""
        return bool(self.scheduler.jobs) and all(job.state.value == "ENDED" for job in self.scheduler.jobs)

    def _owners(self) -> None:
        self.checker.owners()
        self.timeline.after(30.0, self._owners)

    def outcome(self) -> Outcome:
        """What came of it so far."""
        return Outcome(
            seed=self.seed,
            state=self.newest_state(),
            took_s=self.timeline.now,
            events_count=self.timeline.events_count,
            steps=max((gang.step() for gang in self.gangs), default=0),
            gangs=tuple((*gang.name, gang.step()) for gang in self.gangs if gang.members),
            notes=tuple(self.checker.refused),
        )

    def newest_state(self) -> RunState | None:
        """What a reader of the journal sees now."""
        if not any(line.torn for lines in self.disk.journals.values() for line in lines):
            return self.checker.replayed()
        records = [record for term in sorted(self.disk.journals) for record in self.disk.readable(term)[0]]
        return wire_record.replay(records)

    def story(self) -> str:
        """For failure messages: where, what went wrong before, the last records, and how to see it again."""
        faults = "\n".join(f"  {fault}" for fault in self.plan)
        again = f"python -m gangrun.sim --seed {self.seed} {self.setup.label}"
        return (
            f"at {self.timeline.now:.3f} s of seed {self.seed}\nfaults:\n{faults or '  none'}\nlast records:\n"
            f"{self.checker.last_records()}\nsee it again: {again}"
        )

    @property
    def began_at(self) -> float:
        """Wall time when nothing had happened yet, on hosts whose clocks are right."""
        return EPOCH_S

    # ---- what the parts ask -------------------------------------------------------------------------------------

    def new_pid(self) -> int:
        """Unique, as long as nobody plays tricks."""
        self._pids += 1
        return self._pids

    def new_port(self) -> int:
        """Outside the ephemeral range, fresh per attempt."""
        self._ports += 1
        return self._ports

    def policy_of_next_term(self) -> Policy:
        """The policy, or what a newer gangrun thinks of it."""
        if self.upgraded:
            return replace(self.setup.policy, backoff_first_s=3.0, restarts_max_count=5)
        return self.setup.policy

    def new_supervisor(
        self,
        node: SimNode,
        term_min: int,
        promises: tuple[str, ...],
        promised_at: float,
        alone: Callable[[], None] | None = None,
    ) -> SimSupervisor:
        """A supervisor's process begins; ``alone``: the last resort of its job, and who hears of its end."""
        del promised_at
        supervisor = SimSupervisor(node, term_min, promises, alone)
        supervisor.probe = self.supervisor_probe
        self.supervisors.append(supervisor)
        supervisor.start()
        return supervisor

    def supervisor_at(self, endpoint: str) -> SimSupervisor | None:
        """Who listens there."""
        return next((s for s in reversed(self.supervisors) if s.endpoint == endpoint and s.alive), None)

    def lives(self, pid: int) -> bool:
        """Is this supervisor's process there, as a look on its own host tells?"""
        return any(supervisor.pid == pid and supervisor.alive for supervisor in self.supervisors)

    def roster_of(self, job: str) -> tuple[str, ...]:
        """The nodes that the job was given, whatever became of them."""
        found = self.scheduler.job_of(job)
        return () if found is None else tuple(node.name for node in found.nodes)

    def add_agent(self, agent: SimAgent) -> None:
        """It listens for its peers."""
        self._agents[agent.incarnation] = agent

    def send_peer(self, sender: SimAgent, endpoint: str, message: BetweenAgents) -> None:
        """From agent to agent."""
        receiver = self._agents.get(endpoint.removeprefix("peer:"))
        if receiver is None or not receiver.alive:
            return
        route = f"peer:{sender.incarnation}".encode()
        self.network.send(sender.node.index, receiver.node.index, lambda: receiver.hear_peer(message, route))

    def gang_at(self, command: Launch) -> SimGang:
        """Whoever meets at this address and port."""
        key = (command.master_addr, command.master_port)
        gang = self._gangs_at.get(key)
        if gang is None or gang.alive_count == 0:
            gang = SimGang(
                self.timeline,
                self.setup.script,
                self.checkpoint_fs,
                command.world_size,
                command.resume_step,
                self._watched,
            )
            gang.reachable = self._reachable
            gang.keep = lambda gang, step: self.memory.save(gang, step, lambda rank: self.nodes[rank.host.index])
            self._gangs_at[key] = gang
            self.gangs.append(gang)
        return gang

    def _reachable(self, gang: SimGang) -> bool:
        if not self.network.troubles:
            return True
        indexes = sorted({rank.host.index for rank in gang.members.values()})
        return all(self.network.reaches(a, indexes[0]) and self.network.reaches(indexes[0], a) for a in indexes)

    def _gang_changed(self, gang: SimGang) -> None:
        """It stopped stepping: whoever holds its ranks has something to tell."""
        for rank in gang.members.values():
            node = self.nodes[rank.host.index]
            if rank.alive and node.agent is not None:
                node.agent.unpark()

    def rank_started(self, node: SimNode, rank: SimRank, command: Launch) -> None:
        """A rank was forked."""
        self.checker.rank_started(node, rank, command)

    def memory_may_be_missed(self) -> bool:
        """Was there a fault so far for which a node may not be asked, or may not write?"""
        return any(fault.at_s <= self.timeline.now and fault.kind not in MISSES_NO_MEMORY for fault in self.plan)

    def node_left(self, node: SimNode) -> None:
        """The job's task on the node ended."""
        self.scheduler.node_left(node)

    def node_lost(self, node: SimNode) -> None:
        """The node died; the job goes on without it (``--no-kill``)."""
        job = self.scheduler.job_of(node.job)
        if job is not None and not any(n.up and n.job == job.token for n in job.nodes):
            self.scheduler.kill(job)

    def job_lives(self, name: str) -> bool:
        """Does the job still hold nodes?"""
        return any(job.token == name for job in self.scheduler.running())

    def node_named(self, name: str) -> SimNode | None:
        """By name."""
        return self._by_name.get(name)

    def clocks_stopped(self, node: SimNode) -> bool:
        """Was this node stopped so lately that time says nothing about it?"""
        fence_s = self.setup.policy.timing.fence_after_s
        return self.timeline.now < node.stopped_until + fence_s + 5.0 and node.stopped_until > 0

    def unpark_all(self) -> None:
        """Something changes for everybody."""
        for node in self.nodes:
            if node.agent is not None:
                node.agent.unpark()

    def holder(self) -> SimSupervisor | None:
        """The newest supervisor that lives."""
        alive = [s for s in self.supervisors if s.alive]
        return max(alive, key=lambda s: (s.term, s.pid), default=None)

    def enough_nodes(self) -> bool:
        """Could the whole gang be placed on nodes that are up?"""
        return sum(node.up for node in self.nodes) >= self.setup.shape.nodes_count

    def anybody_was_left(self) -> bool:
        """Did the newest job end while one of its nodes still stood?"""
        job = self.scheduler.jobs[-1]
        return any(node.up for node in job.nodes)

    # ---- people -------------------------------------------------------------------------------------------------

    def terminate(self, node: SimNode, signal: int) -> None:
        """A signal to everything of ours on the node."""
        if node.agent is not None:
            node.agent.tell(facts.TerminateAsked(signal))

    def mark_cancelled(self) -> None:
        """The mark alone, by a supervisor that was told."""
        if self.disk.cancelled_at is None:
            self.disk.cancelled_at = self.timeline.now

    def cancel(self) -> None:
        """``gangrun cancel``: the mark first, which the supervisor watches for; then scancel until no job is left."""
        if self.disk.cancelled_at is not None or self.is_over():
            return
        self.disk.cancelled_at = self.timeline.now
        for supervisor in self.supervisors:
            supervisor.look_for_cancel()
        for job in self.scheduler.jobs:
            if job.state.value == "PENDING":
                self.scheduler.scancel(job)
        self.timeline.after(SCANCEL_AFTER_S, self._scancel)

    def _scancel(self) -> None:
        for job in self.scheduler.jobs:
            self.scheduler.scancel(job)
        if not self.is_over():
            self.timeline.after(SCANCEL_AFTER_S, self._scancel)
