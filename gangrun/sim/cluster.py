"""The inhabitants of a simulated world and what they ask of it: nodes, agents, supervisors, the scheduler, gangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from gangrun.agent.brain import facts
from gangrun.core.events import ResumeRequested
from gangrun.core.policy import Policy
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.body.checkpoints import CheckpointFs
from gangrun.sim.body.gang import GangHooks, SimGang, SimRank
from gangrun.sim.body.memory import MemoryTier
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.rank_failures import RankFailures
from gangrun.sim.body.scheduler import SimScheduler
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.body.surroundings import Surroundings
from gangrun.sim.engine.clock import NodeClock, Timeline
from gangrun.sim.engine.disk import Mount, SimDisk
from gangrun.sim.engine.network import Network
from gangrun.sim.engine.process import Probe
from gangrun.sim.setup import Setup
from gangrun.wire.messages import BetweenAgents, Launch, PeerAddress

SCANCEL_AFTER_S = 40.0


class Cluster(Surroundings):
    """Everybody who lives in a world. ``world.World`` adds the faults, the checks and the end."""

    watched: GangHooks

    def __init__(self, setup: Setup, seed: int, probe: Probe | None) -> None:
        """Nothing runs yet. ``probe`` sees every boundary of every supervisor."""
        self.setup = setup
        self.seed = seed
        self.run_id = f"sim-{seed}"
        self.rng = random.Random(f"world {seed}")
        self.timeline = Timeline()
        self.disk = SimDisk(self.timeline)
        self.checkpoint_fs = CheckpointFs(self.timeline, foreign=setup.script.foreign)
        self.memory = MemoryTier(self.timeline)
        self.network = Network(self.timeline, self.rng)
        self.network.on_change = self.unpark_all
        self.scheduler: SimScheduler = SimScheduler(self)
        self.gangs: list[SimGang] = []
        self.supervisor_probe = probe
        self.upgraded = False
        self.journal_damaged = False  # decisions were lost, so what follows may contradict them
        self.sick: set[str] = set()
        self.broken_slots: dict[str, set[int]] = {}
        self.bad_links: set[frozenset[str]] = set()
        self.at_fault: set[str] = set()  # nodes that had a fault of their own
        self.rank_failures = RankFailures(self.timeline, self.rng)
        self.resumed: dict[str, ResumeRequested] = {}
        self.supervisors: list[SimSupervisor] = []
        self._agents: dict[str, SimAgent] = {}
        self._gangs_at: dict[tuple[str, int], SimGang] = {}
        self._pids = 1000
        self.heavy_ranks: dict[int, float] = {}  # rank -> so many times as long its own work takes anywhere
        self._ports = 20000
        self.nodes: list[SimNode] = [self._node(i) for i in range(setup.pool_count or setup.job_nodes_count)]
        self._by_name = {node.name: node for node in self.nodes}

    def _node(self, i: int) -> SimNode:
        clock = NodeClock(1000.0 + 7.0 * i, 1.0 + self.rng.uniform(-1e-4, 1e-4))
        return SimNode(self, i, f"n{i:04d}", Mount(self.disk, self.timeline), clock)

    def is_over(self) -> bool:
        """The run has ended and no job holds nodes, nor will."""
        jobs, refills = self.scheduler.jobs, self.scheduler.refills.jobs
        states = [*(job.state for job in jobs), *(job.state for job in refills)]
        return bool(jobs) and all(state.value == "ENDED" for state in states)

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
        alone: Callable[[bool], None] | None = None,
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

    def knock(self, sender: SimAgent, peer: PeerAddress) -> None:
        """The kernel of a host that is up answers, if the way there and back is open; so does none that is paused."""
        target = self.node_named(peer.node)

        def answer() -> None:
            if target is not None and target.up and not target.clock.stopped:
                fact = facts.HostAnswered(peer.node)
                self.network.send(target.index, sender.node.index, lambda: sender.tell(fact))

        if target is not None:
            self.network.send(sender.node.index, target.index, answer)

    def slow_down(self, gang: SimGang, rank: SimRank) -> None:
        """The rank takes longer for its own work, if its node is slow or it has more to do."""
        factor = max(rank.host.slowness, self.heavy_ranks.get(rank.rank, 1.0))
        if factor > 1 and gang.alive_count:
            gang.slow_down(rank.rank, factor)

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
                self.watched,
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

    def gang_changed(self, gang: SimGang) -> None:
        """It stopped stepping: whoever holds its ranks has something to tell."""
        for rank in gang.members.values():
            node = self.nodes[rank.host.index]
            if rank.alive and node.agent is not None:
                node.agent.unpark()

    def node_left(self, node: SimNode) -> None:
        """The job's task on the node ended."""
        self.scheduler.refills.node_left(node)
        self.scheduler.node_left(node)

    def warden_killed(self, node: SimNode) -> None:
        """The warden was killed on a node that lives."""
        self.scheduler.warden_killed(node)

    def node_lost(self, node: SimNode) -> None:
        """The node died; the job goes on without it (``--no-kill``)."""
        self.at_fault.add(node.name)
        self.scheduler.refills.node_lost(node)
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
        self.scheduler.refills.cancel_waiting()
        self.timeline.after(SCANCEL_AFTER_S, self._scancel)

    def _scancel(self) -> None:
        for job in self.scheduler.jobs:
            self.scheduler.scancel(job)
        self.scheduler.refills.cancel_all()
        if not self.is_over():
            self.timeline.after(SCANCEL_AFTER_S, self._scancel)
