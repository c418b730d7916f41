"""A simulated supervisor's process around the real take-over and the real loop.

It has what the loop asks of ``ports``, in numbers: a mailbox, a radio, a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from gangrun.core.events import CancelRequested, Stamped
from gangrun.core.protocol import takeover as rules
from gangrun.node.speech import Voice
from gangrun.ports import AgentsSaid, Item, Woken
from gangrun.sim.body.agent import SimAgent
from gangrun.sim.body.checkpoints import SimCheckpoints
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.surroundings import Line, SupervisorBody
from gangrun.sim.engine.clock import Scheduled
from gangrun.sim.engine.disk import SimStandardError, SimStore, SimTerms
from gangrun.sim.engine.process import ProcessKilled
from gangrun.supervisor import takeover
from gangrun.supervisor.loop import Loop
from gangrun.supervisor.opening import EXIT_DEPOSED, EXIT_NOT_KNOWN, EXIT_REFUSED, RunFacts
from gangrun.wire.messages import Ack, Dial, FromAgent, Probe, Stop, ToAgent, Welcome
from gangrun.wire.record import Claim
from gangrun.wire.spec import CheckpointSpec

CANCEL_LOOK_S = 0.25
ASK_AGAIN_S = 1.0
FLUSH_EVERY_S = 9.0
FLUSHES_NODES_MAX_COUNT = 16  # each flush wakes all agents: in big worlds that is most of what there is to simulate
QUIET = (Ack, Welcome, Probe)

REFRESH_EVERY_S = 0.4  # before a heartbeat of a parked agent would count as missed
TRIP_S = 0.001  # of a beat that is not sent


class HostClock:
    """The ``Clock`` port of one host."""

    def __init__(self, node: SimNode) -> None:
        """Its host's."""
        self._node = node

    def now(self) -> float:
        """CLOCK_BOOTTIME."""
        return self._node.clock.boot(self._node.timeline.now)

    def wall(self) -> float:
        """CLOCK_REALTIME."""
        return self._node.clock.wall(self._node.timeline.now)


class SimSupervisor(SupervisorBody):
    """One supervisor, from its birth to its exit code."""

    def __init__(
        self, node: SimNode, term_min: int, promises: tuple[str, ...], alone: Callable[[bool], None] | None = None
    ) -> None:
        """Started just now by the node's warden, or by the job's batch script: ``alone(killed)`` hears of its end."""
        super().__init__(node.timeline, f"supervisor on {node.name}", node.world.new_pid())
        self.node = node
        self.world = node.world
        self.term_min = term_min
        self.promises = promises
        self.alone = alone
        self.endpoint = f"sim:{self.pid}"
        self.clock = HostClock(node)
        self.policy = node.world.policy_of_next_term()
        self.loop: Loop | None = None
        self.greeter = takeover.Greeter(node.job)
        self.term = 0
        self.entitled = ""
        self.mail: deque[Item] = deque()
        self.exit_code: int | None = None
        self.voice = Voice(SimStandardError(node.mount, self).write)
        self.store: SimStore | None = None
        self._lines: dict[bytes, Line] = {}
        self._peers: dict[str, bytes] = {}
        self.parked = ParkedAgents(self)
        self._wake: Scheduled | None = None
        self._watch: takeover.CounterWatch | None = None
        self._judged = 0
        self._cancel_seen = False
        self._turning = False

    # ---- birth --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim, if it may (``core.takeover.may_claim``, asked as the real process asks it)."""
        if not self.awake:
            self.when_awake(self.start)
            return
        place = self.world.disk.job_claims[max(self.world.disk.job_claims)].token
        if place != self.node.job:
            self.voice.say(f"{self.node.job} is not the job that holds this run: that is {place}")
            self._exit(EXIT_DEPOSED)
            return
        try:
            claims = self.node.mount.claims()
        except OSError as error:
            self._not_known(error)
            return
        newest = claims[max(claims)] if claims else None
        if self._watch is None:
            self._judged, self._watch = max(claims, default=0), takeover.CounterWatch(self.policy.timing)
        elif self._judged < max(claims, default=0):
            self.voice.say(f"term {max(claims)} was claimed while it was found out whether we may")
            self._exit(EXIT_DEPOSED)
            return
        by_promises = rules.has_majority(self.promises, self.world.roster_of(self.node.job))
        if not by_promises and self._judged < self.term_min - 1:
            self.voice.say(f"term {self.term_min - 1} is known to exist and cannot be seen from here")
            self._exit(EXIT_DEPOSED)
            return
        if newest is None or newest.job != self.node.job:
            self.entitled = "nobody holds a term of this job"
            self.timeline.after(0.0, lambda: self.when_awake(self._open))
            return
        verdict = None
        down = newest.node == self.node.name and not self.world.lives(newest.pid)
        if not by_promises and not down:
            verdict = self._look_at_counter(max(claims))
        ruling = rules.may_claim(
            self.promises,
            self.world.roster_of(self.node.job),
            counter_still_s=self.policy.timing.counter_still_s if verdict else 0.0,
            own_writes_ok=True,
            holder_down=down,
            timing=self.policy.timing,
        )
        if ruling.allowed:
            self.entitled = ruling.sentence
            self.timeline.after(0.0, lambda: self.when_awake(self._open))
        elif verdict is False:
            self.voice.say(ruling.sentence)
            self._exit(EXIT_DEPOSED)
        else:
            self.timeline.after(self.policy.timing.counter_every_s, self.start)

    def _not_known(self, error: OSError) -> None:
        """An agent asks for another supervisor; after the last resort there is nobody."""
        self.voice.say(f"cannot tell how the run stands, so nothing is taken over: {error}")
        if self.alone is None:
            self._exit(EXIT_NOT_KNOWN)
        else:
            self._watch = None
            self.timeline.after(ASK_AGAIN_S, self.start)

    def _look_at_counter(self, term: int) -> bool | None:
        assert self._watch is not None
        mount = self.node.mount
        works = self.timeline.now >= mount.stalled_until and not mount.trouble()
        at = mount.disk.counters.get(term)
        return self._watch.look(None if at is None else int(at * 1000), works, self.clock.now())

    def _claim(self, term: int) -> Claim:
        self.greeter.term = term
        return Claim(
            term=term,
            run=self.world.run_id,
            job=self.node.job,
            node=self.node.name,
            pid=self.pid,
            start_ticks=self.start_ticks,
            endpoint=self.endpoint,
            server_key="key",
            claimed_wall=self.clock.wall(),
        )

    def _facts(self, ask_why: Callable[[], None]) -> RunFacts:
        setup = self.world.setup
        flushes = setup.script.memory_every_count and setup.shape.nodes_count <= FLUSHES_NODES_MAX_COUNT
        return RunFacts(
            run=self.world.run_id,
            shape=setup.shape,
            job=self.node.job,
            seq=self.world.scheduler.seq_of(self.node.job),
            node=self.node.name,
            checkpoint=CheckpointSpec("checkpoints", memory=bool(flushes), flush_every_s=FLUSH_EVERY_S),
            resumed=self.world.resumed.get(self.node.job),
            asks_why=ask_why if self.policy.can_requeue else None,
            mark_cancel=lambda by: self.world.mark_cancelled(),
            loads_memory=bool(setup.script.memory_every_count),
            memory_staging=(lambda term, attempt: f"{term}/{attempt}") if setup.script.memory_every_count else None,
            alone=self.alone is not None,
        )

    def _open(self) -> None:
        mount, jobs = self.node.mount, self.world.scheduler.port(self)
        facts = self._facts(jobs.ask_why)
        try:
            opening = takeover.take(
                SimTerms(mount, self),
                self.clock,
                facts,
                self.policy,
                offer=self._claim,
                term_min=self.term_min,
                promised=self.promises,
                judged=self._judged,
            )
            self.term, self.greeter.term = opening.term, 0
            self.world.checks.claimed(self, self.term)
            self.store = SimStore(mount, self, self.post)
            self.store.boot = self.clock.now
            checkpoints = SimCheckpoints(self.world.checkpoint_fs, mount, self, self.term, self.post)
            checkpoints.on_act = lambda what, attempt: self.world.checks.performs(self.term, what, attempt)
            checkpoints.on_choice = self.world.checks.chose
            checkpoints.names = self.world.memory.names
            checkpoints.reads_together = self.world.setup.reads_together
            self.loop = Loop(
                clock=self.clock,
                mailbox=self,
                store=self.store,
                radio=self,
                checkpoints=checkpoints,
                jobs=jobs,
                policy=self.policy,
                facts=facts,
                opening=opening,
                say=self.voice.say,
            )
        except ProcessKilled:
            return
        except takeover.TermLost as error:
            self.voice.say(str(error))
            self._exit(EXIT_DEPOSED)
            return
        except OSError as error:
            self._not_known(error)
            return
        except takeover.JournalRefused as error:
            self.voice.say(str(error))
            self.world.checks.journal_refused(str(error))
            self._exit(EXIT_REFUSED)
            return
        agent = self.node.agent
        if agent is not None:
            agent.hear_peer(Dial(self.term, self.endpoint, "key"), b"")
        self.look_for_cancel()
        if self.mail:  # came while it was reading
            self._turn()
        self.plan()

    def look_for_cancel(self) -> None:
        """It looks for the marker four times a second, and says so once. An error says nothing: it looks again."""
        if self.loop is None or self._cancel_seen or not self.alive:
            return
        try:
            self._cancel_seen = self.node.mount.cancelled()
        except OSError:
            self.timeline.after(CANCEL_LOOK_S, lambda: self.when_awake(self.look_for_cancel))
            return
        if self._cancel_seen:
            self.timeline.after(CANCEL_LOOK_S, lambda: self.post(Stamped(CancelRequested("gangrun cancel"))))

    # ---- ports --------------------------------------------------------------------------------------------------

    def next(self, until: float) -> Item:
        """The ``Mailbox``: the world waits for us, so this never does."""
        del until
        return self.mail.popleft() if self.mail else Woken()

    def send(self, node: str, message: object) -> None:
        """The ``Radio``."""
        if isinstance(message, Stop):
            self.world.checks.says_stop(self, message.attempt)
        line = self._lines.get(self._peers.get(node, b""))
        if line is None:
            return
        assert isinstance(message, ToAgent)
        agent, said = line.agent, message
        if not isinstance(message, QUIET):
            self.boundary(f"before sending {type(message).__name__} to {node}")
        self.world.network.send(self.node.index, agent.node.index, lambda: agent.hear(line, said))

    def bind_peer(self, node: str, peer: bytes) -> None:
        """The ``Radio`` learns who speaks for a node."""
        self._peers[node] = peer

    # ---- the loop's life ----------------------------------------------------------------------------------------

    def hear(self, line: Line, message: FromAgent) -> None:
        """An agent's message arrives."""
        if not self.alive:
            return
        peer = f"{line.agent.node.name}/{line.agent.incarnation}".encode()
        self._lines[peer] = line
        said = AgentsSaid(((peer, message),))
        if self.awake:
            self.greeter.hear(said, self)
        self.post(said)

    def post(self, item: Item) -> None:
        """Into the mailbox; the loop turns as soon as it can."""
        self.mail.append(item)
        self.when_awake(self._turn)

    def plan(self) -> None:
        """Turn when something comes, at the latest at the loop's own deadline."""
        if self.loop is None or not self.alive:
            return
        when = self.node.clock.when(self.loop.deadline())
        if self._wake is not None:
            if self._wake.action is not None and self._wake.when == when:
                return
            self._wake.cancel()
        self._wake = None if when == math.inf else self.timeline.at(when, lambda: self.when_awake(self._turn))

    def _turn(self) -> None:
        loop = self.loop
        if loop is None or self._turning or self.exit_code is not None:
            return
        self._turning = True
        try:
            while self.awake:
                self.parked.refresh()
                going = loop.turn()
                self.world.checks.turned(self)
                if not going:
                    self._exit(loop.exit_code if loop.exit_code is not None else 1)
                    return
                if not self.mail:
                    break
        except ProcessKilled:
            return
        finally:
            self._turning = False
        self.plan()

    def _exit(self, code: int) -> None:
        self.exit_code = code
        self.kill()
        self.node.warden.supervisor_exited(code, self.term_min)

    def kill(self) -> None:
        """SIGKILL: what was being written may be lost, torn or late."""
        if not self.alive:
            return
        self.parked.wake_all()
        super().kill()
        if self.exit_code is None and self.store is not None:
            self.store.killed()
        if (alone := self.alone) is not None:
            killed = self.exit_code is None
            self.timeline.after(0.0, lambda: alone(killed))
        if self.exit_code is None:
            self.node.warden.supervisor_exited(-9, self.term_min)


class ParkedAgents:
    """Agents whose heartbeats this supervisor knows without their being sent.

    They are entered in the loop's table before it looks there, as if each had come: so an idle world costs nothing.
    """

    def __init__(self, supervisor: SimSupervisor) -> None:
        """None yet."""
        self.supervisor = supervisor
        self._parked: dict[str, SimAgent] = {}
        self._willing: dict[str, SimAgent] = {}
        self._refreshed_at = -math.inf

    def would_hear(self, agent: SimAgent) -> bool:
        """Is all between us so well that beats need not be sent?"""
        supervisor, loop = self.supervisor, self.supervisor.loop
        if loop is None or not supervisor.awake or supervisor.exit_code is not None or supervisor.probe is not None:
            return False
        network, here, there = supervisor.world.network, supervisor.node.index, agent.node.index
        if not (network.clear(here, there) and network.clear(there, here)):
            return False
        row = loop.beats.rows.get(agent.node.name)
        suspected = agent.node.name in loop.silence.suspects
        return row is not None and row.incarnation == agent.incarnation and not suspected

    def park_if_many(self, agent: SimAgent) -> None:
        """Unsent beats count only where those who do not send them are a majority: acks depend on one (law 3)."""
        self._willing[agent.node.name] = agent
        loop = self.supervisor.loop
        if loop is None or not loop.leadership.holds(loop.run_clock.at(self.supervisor.clock.now())):
            return
        if not self._are_many(len(self._parked | self._willing)):
            return
        willing, self._willing = self._willing, {}
        for other in willing.values():
            if other is agent or other.still_willing(self.supervisor):
                self._parked[other.node.name] = other
                other.park()
        if not self._are_many(len(self._parked)):
            self.wake_all()

    def _are_many(self, count: int) -> bool:
        loop = self.supervisor.loop
        return loop is not None and 2 * count > max(len(loop.state.roster.nodes), len(loop.beats.heard))

    def wake_all(self) -> None:
        """From here on all send theirs."""
        parked, self._parked = self._parked, {}
        for agent in parked.values():
            agent.unpark()

    def forget(self, agent: SimAgent) -> None:
        """It will send its beats."""
        if self._parked.pop(agent.node.name, None) is not None and not self._are_many(len(self._parked)):
            self.wake_all()

    def catch_up(self, agent: SimAgent, count: int, ago_s: float) -> float:
        """These beats came while nobody looked; the stamp of the newest ack."""
        loop = self.supervisor.loop
        row = None if loop is None else loop.beats.rows.get(agent.node.name)
        if loop is None or row is None or row.incarnation != agent.incarnation:
            return 0.0
        self._enter(loop, loop.run_clock.at(self.supervisor.clock.now()), agent, ago_s)
        row.seq += count
        return row.arrived_at

    def _enter(self, loop: Loop, now: float, agent: SimAgent, ago_s: float, *, held_up: bool = True) -> None:
        row = loop.beats.rows[agent.node.name]
        arrived_at = now - (ago_s - TRIP_S if ago_s > TRIP_S else 0.0)
        if arrived_at <= row.arrived_at:
            return
        row.arrived_at = arrived_at
        row.sent_after = max(row.sent_after, arrived_at - self.supervisor.policy.timing.beat_every_s)
        loop.beats.heard[row.node] = arrived_at
        loop.leadership.heard(row.node, row.sent_after)
        if held_up and not loop.takeover.gathering and agent.is_held_up():
            row.take(agent.readings())
            loop.progress.observe(row, arrived_at)

    def refresh(self) -> None:
        """Enter what parked agents are known to have sent."""
        loop, now = self.supervisor.loop, self.supervisor.timeline.now
        if now < self._refreshed_at + REFRESH_EVERY_S or not self._parked or loop is None:
            return
        self._refreshed_at = now
        here = loop.run_clock.at(self.supervisor.clock.now())
        held_up = any(gang.alive_count and not gang.stepping for gang in self.supervisor.world.gangs)
        for agent in self._parked.values():
            _, count, ago_s = agent.newest_beat()
            if count:
                self._enter(loop, here, agent, ago_s, held_up=held_up)
