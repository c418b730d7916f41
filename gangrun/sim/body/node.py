"""A simulated host: its clocks, its warden with the lease, its agent, its ranks.

The warden's judgement is the pure rule that the real one is held against (``core.lease.warden_must_kill``). What may
befall a node (kill, reboot, pause, a paused virtual machine) is here too.
"""

from __future__ import annotations

import math

from gangrun.agent.brain import facts
from gangrun.core.evidence import ErrorReport
from gangrun.core.protocol.lease import warden_must_kill
from gangrun.node.speech import Voice
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.body.gang import SimRank
from gangrun.sim.body.memory import SimKept
from gangrun.sim.body.surroundings import SupervisorBody, Surroundings
from gangrun.sim.engine.clock import NodeClock, Scheduled
from gangrun.sim.engine.disk import Mount, SimStandardError
from gangrun.sim.engine.process import SimProcess
from gangrun.wire.messages import Launch

AGENT_START_S, SUPERVISOR_START_S, REAP_S = 0.3, 0.3, 0.005
RESTARTS_MAX_COUNT, RESTARTS_WINDOW_S = 5, 60.0
SUPERVISORS_MAX_COUNT = 3


class SimWarden(SimProcess):
    """First process on the node: starts the others, and kills what must not live."""

    def __init__(self, node: SimNode) -> None:
        """Started by the job."""
        super().__init__(node.timeline, f"warden on {node.name}", node.world.new_pid())
        self.node = node
        self.deadline = 0.0
        self.granted = False
        self.kept = SimKept()
        self.voice = Voice(SimStandardError(node.mount, self).write)
        self.said_goodbye = False
        self.kills_at_deadline = True
        self._woke_boot = node.clock.boot(node.timeline.now)
        self._slept_from: float | None = None
        self._check: Scheduled | None = None
        self._starts: list[float] = []

    # ---- lease --------------------------------------------------------------------------------------------------

    def lease_written(self, deadline: float) -> None:
        """The agent wrote into the shared memory."""
        if deadline > self.deadline:
            self.deadline, self.granted = deadline, False
            if self._check is None or self._check.action is None:
                self._plan()

    def _plan(self) -> None:
        wake_s = self.node.world.setup.policy.timing.warden_wake_s
        when = self.node.clock.when(self.deadline) + wake_s * self.node.world.rng.random()
        if self._check is not None:
            self._check.cancel()
        self._check = None if when == math.inf else self.timeline.at(when, self._judge)

    def replan(self) -> None:
        """The clock was stopped, restarted, or runs at another rate."""
        if self.deadline:
            self._plan()

    def slept(self, boot: float) -> None:
        """It is being stopped at that CLOCK_BOOTTIME: the gap is seen on waking."""
        if self._slept_from is None:
            self._slept_from = boot

    def _judge(self) -> None:
        self.when_awake(self._judge_now)

    def _judge_now(self) -> None:
        agent = self.node.agent
        if agent is not None:
            agent.account()
        now = self.node.clock.boot(self.timeline.now)
        woke, self._slept_from = self._slept_from if self._slept_from is not None else now, None
        rule = warden_must_kill(self.deadline, now, woke, self.node.world.setup.policy.timing, self.granted)
        self.deadline, self.granted = rule.deadline, rule.granted
        if not rule.kill:
            self._plan()
            return
        self._check = None
        if self.kills_at_deadline:
            self.end_lease()
            if any(rank.alive for rank in self.node.ranks):
                self._check = self.timeline.after(0.25, self._judge)

    def end_lease(self) -> None:
        """Kill first, speak second."""
        self.node.world.checks.lease_ended(self.node)
        self.node.kill_ranks("lease ended")
        self.voice.say("the lease has ended: all ranks were killed")

    # ---- children -----------------------------------------------------------------------------------------------

    def start_agent(self, previous_died: str) -> None:
        """Start one more incarnation, unless too many died lately."""
        now = self.timeline.now
        self._starts = [at for at in self._starts if at > now - RESTARTS_WINDOW_S]
        if len(self._starts) > RESTARTS_MAX_COUNT:
            self.node.leave()
            return
        self._starts.append(now)
        span = self.node.world.setup.agents_begin_s
        start_s = AGENT_START_S if span is None else self.node.world.rng.uniform(*span)
        self.timeline.after(start_s, lambda: self.when_awake(lambda: self.node.new_agent(previous_died)))

    def agent_died(self, how: str) -> None:
        """SIGCHLD: nothing of the agent's may live; only then the next agent."""

        def clean() -> None:
            if self.said_goodbye:
                return
            self.node.kill_ranks("agent died")
            if any(rank.alive for rank in self.node.ranks):
                self.timeline.after(0.25, lambda: self.when_awake(clean))
                return
            self.deadline = 0.0
            self.start_agent(how)

        self.timeline.after(REAP_S, lambda: self.when_awake(clean))

    def spawn_supervisor(self, term_min: int, promises: tuple[str, ...], promised_at: float) -> None:
        """The agent asks for one. A stopped one is in nobody's way once agents promised themselves to a newer term."""
        there = [supervisor for supervisor in self.node.supervisors if supervisor.alive]
        newest = max((supervisor.term_min for supervisor in there), default=-1)
        if there and (not promises or newest >= term_min or len(there) >= SUPERVISORS_MAX_COUNT):
            return
        self.timeline.after(
            SUPERVISOR_START_S,
            lambda: self.when_awake(lambda: self.node.new_supervisor(term_min, promises, promised_at)),
        )

    def supervisor_exited(self, code: int, term_min: int) -> None:
        """SIGCHLD: tell the agent."""

        def tell() -> None:
            if self.node.agent is not None:
                self.node.agent.tell(facts.SupervisorExited(code, term_min))

        self.timeline.after(REAP_S, lambda: self.when_awake(tell))

    def goodbye(self, code: int) -> None:
        """The agent is done: leave nothing behind."""
        self.said_goodbye = True
        self.node.kill_ranks("goodbye")
        self.node.exit_code = code
        if self.node.agent is not None:
            self.node.agent.kill()
        self.timeline.after(1.0, self.node.leave)


class SimNode:
    """One host."""

    def __init__(self, world: Surroundings, index: int, name: str, mount: Mount, clock: NodeClock) -> None:
        """Up, and empty."""
        self.world = world
        self.timeline = world.timeline
        self.index = index
        self.name = name
        self.mount = mount
        self.clock = clock
        self.boot_id = f"boot-{name}-0"
        self.boots_count = 0
        self.booted_at = 0.0  # on the world's clock
        self.job = ""
        self.founder = False
        self.serves = ""  # the stay of a job to which a refill brought it; its own job is that refill
        self.refill = 0
        self.warden = SimWarden(self)
        self.agent: SimAgent | None = None
        self.supervisors: list[SupervisorBody] = []  # all of this boot; at most one of them is not stopped
        self.ranks: list[SimRank] = []
        self.up = True
        self.exit_code: int | None = None
        self.kill_takes_s = 0.0
        self.slowness = 1.0  # so many times as long its ranks' own work takes
        self.stopped_until = 0.0  # all of it was paused, so what is presumed of it by time may be wrong
        self._incarnations = 0

    # ---- life ---------------------------------------------------------------------------------------------------

    def begin_job(self, job: str, *, founder: bool, previous_died: str = "") -> None:
        """The step starts here: a warden, and through it an agent."""
        self.job, self.founder = job, founder
        self.exit_code = None
        self.warden = SimWarden(self)
        self.warden.start_agent(previous_died)

    def new_agent(self, previous_died: str) -> None:
        """The agent's process is up."""
        self._incarnations += 1
        self.agent = SimAgent(self, f"{self.name}.{self.boots_count}.{self._incarnations}", previous_died)
        self.world.add_agent(self.agent)

    def new_supervisor(self, term_min: int, promises: tuple[str, ...], promised_at: float) -> None:
        """A supervisor's process is up."""
        self.supervisors.append(self.world.new_supervisor(self, term_min, promises, promised_at))

    @property
    def supervisor(self) -> SupervisorBody | None:
        """The newest one here."""
        return self.supervisors[-1] if self.supervisors else None

    @property
    def kept(self) -> SimKept:
        """The memory that its keeper holds; without a warden there is none."""
        return self.warden.kept if self.warden.alive else SimKept()

    def leave(self) -> None:
        """The job's step ends on this node."""
        for process in self.processes():
            process.kill()
        for rank in list(self.ranks):
            self._died(rank, None, 9, None)
        self.agent = None
        self.world.node_left(self)

    def kill_warden(self) -> None:
        """Agent and supervisor have its death signal, ranks have the agent's: they die as soon as a kill takes."""
        for process in self.processes():
            process.kill()
        self.agent = None
        self.kill_ranks("their agent's end")
        self.world.warden_killed(self)

    def processes(self) -> list[SimProcess]:
        """All of ours here but ranks."""
        found: list[SimProcess | None] = [self.warden, self.agent, *self.supervisors]
        return [process for process in found if process is not None and process.alive]

    def kill(self) -> None:
        """Power off."""
        self.unpark()
        self.up = False
        for process in self.processes():
            process.kill()
        for rank in list(self.ranks):
            rank.stuck_until = 0.0
            self._died(rank, None, 9, None, quiet=True)
        self.agent = None
        self.supervisors.clear()
        self.world.node_lost(self)

    def restart(self) -> None:
        """It boots again, and the job's step is started on it again."""
        self.up = True
        self.boots_count += 1
        self.booted_at = self.timeline.now
        self.boot_id = f"boot-{self.name}-{self.boots_count}"
        self.clock.restart(self.timeline.now)
        if self.job and self.world.job_lives(self.job):
            self.begin_job(self.job, founder=self.founder)

    def pause(self, for_s: float, *, machine: bool) -> None:
        """Stop every process; ``machine``: the virtual machine, clock and all."""
        self.unpark()
        now = self.timeline.now
        self.stopped_until = max(self.stopped_until, now + for_s)
        if machine and not self.clock.stopped:
            self.clock.stop(now)
            self.timeline.at(now + for_s, self._machine_back)
        elif not machine:
            self.warden.slept(self.clock.boot(now))
        for process in [*self.processes(), *self.ranks]:
            process.pause(for_s)
        for rank in self.ranks:
            if rank.gang is not None:
                rank.gang.update()
                self.timeline.at(now + for_s, rank.gang.update)
        self.warden.replan()

    def _machine_back(self) -> None:
        if self.timeline.now >= self.stopped_until:
            self.clock.go_on(self.timeline.now)
            self.warden.replan()
            if self.agent is not None:
                self.agent.perform([])
            if self.supervisor is not None and self.supervisor.alive:
                self.supervisor.plan()
        else:
            self.timeline.at(self.stopped_until, self._machine_back)

    def unpark(self) -> None:
        """Its agent's heartbeats come one by one again."""
        if self.agent is not None:
            self.agent.unpark()

    def keeps_talking(self) -> bool:
        """Rank 0's node tells of every step, and all nodes while a rank is slow, or of their GPUs; of a gang that makes
        no step there is nothing new between two changes.
        """
        return any(
            rank.alive and (rank.rank == 0 or rank.gang is None or rank.gang.slow or rank.gang.script.on_gpus)
            for rank in self.ranks
        )

    # ---- ranks --------------------------------------------------------------------------------------------------

    def launch(self, command: Launch, agent: SimAgent) -> bool:
        """Fork the ranks of one attempt, all or none."""
        if not agent.brain.lease.live(agent.boot()):
            return False
        gang = self.world.gang_at(command)
        for number in command.ranks:
            name = (command.term, command.attempt)
            rank = SimRank(self.timeline, self, number, name, self.world.new_pid())
            rank.agent = agent
            self.ranks.append(rank)
            self.world.checks.rank_started(self, rank, command)
            gang.join(rank)
        return True

    def kill_ranks(self, why: str) -> None:
        """SIGKILL to all of them, as often as it takes."""
        del why
        for rank in list(self.ranks):
            self.kill_rank(rank, 9)

    def kill_rank(self, rank: SimRank, signal: int) -> None:
        """One signal that ends it, when the kernel lets it."""
        now = self.timeline.now
        if not rank.alive:
            return
        if now < rank.stuck_until:
            self.timeline.at(rank.stuck_until, lambda: self.kill_rank(rank, signal))
        elif self.kill_takes_s:
            self.timeline.after(self.kill_takes_s, lambda: self._died(rank, None, signal, None))
        else:
            self._died(rank, None, signal, None)

    def rank_ended(self, rank: SimRank, code: int | None, signal: int | None, *, error: ErrorReport | None) -> None:
        """A rank ended by itself, or by somebody else's hand."""
        self._died(rank, code, signal, error)

    def _died(
        self, rank: SimRank, code: int | None, signal: int | None, error: ErrorReport | None, *, quiet: bool = False
    ) -> None:
        if not rank.alive:
            return
        rank.kill()
        self.ranks = [other for other in self.ranks if other.alive]
        if not quiet and self.agent is not None and self.agent.alive:
            self.agent.rank_ended(rank, code, signal, error)
        if rank.gang is not None:
            rank.gang.left(rank)
