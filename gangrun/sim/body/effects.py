"""What a simulated agent's brain wants done, done in numbers.

Here is what ``agent.loop`` does with sockets, processes and disks, and how long it takes. What comes of it is told to
the agent as a fact.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.effects import Effect
from gangrun.core.model import RankStack
from gangrun.sim.body.memory import holdings
from gangrun.sim.engine.network import Line
from gangrun.wire.messages import Dial, FromAgent, Launch, Prepare, Prove, Rescue, Stop

if TYPE_CHECKING:
    from gangrun.sim.body.agent import SimAgent

PREPARE_S, LAUNCH_S, STOP_S, STACKS_S, CHECK_S, TESTS_S, BRING_S, READ_S = 0.02, 0.1, 0.3, 0.2, 0.05, 20.0, 0.4, 0.6


class Deeds:
    """The hands of one agent."""

    def __init__(self, agent: SimAgent) -> None:
        """Its own."""
        self.agent = agent
        self.node = agent.node
        self.world = agent.world
        self.timeline = agent.timeline
        self._pending: list[Launch] = []  # not forked yet

    def do(self, effect: Effect) -> None:
        """One of them."""
        node = self.node
        match effect:
            case effects.SendSupervisor():
                self._send(effect.message)
            case effects.SendPeer():
                self.world.send_peer(self.agent, effect.peer.endpoint, effect.message)
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
            case effects.PrepareSlate():
                self.world.checker.obeys(self.agent, effect.command)
                self.timeline.after(PREPARE_S, lambda: self._prepared(effect.command))
            case effects.LaunchRanks():
                self.world.checker.obeys(self.agent, effect.command)
                self._pending.append(effect.command)
                self.timeline.after(LAUNCH_S, lambda: self.agent.when_awake(lambda: self._launch(effect.command)))
            case effects.StopRanks():
                self._stop(effect.command)
            case effects.TakeStacks():
                attempt = effect.command.attempt
                stacks = tuple(
                    RankStack(rank.rank, node.name, "train.py:1 step", "") for rank in node.ranks if rank.alive
                )
                self.timeline.after(STACKS_S, lambda: self.agent.tell(facts.StacksTaken(attempt, stacks)))
            case effects.RunCheck():
                tests = effect.command.tests
                self.timeline.after(TESTS_S if tests else CHECK_S, lambda: self._checked(tests))
            case effects.Leave():
                node.warden.goodbye(effect.code)
            case effects.UseDisk():
                self._use_disk(effect.command)

    def _checked(self, tests: str) -> None:
        sick = self.node.name in self.world.sick
        if sick:
            self.agent.finds(fatal=True)
        tested = "all came out right" if tests and not sick else ""
        self.agent.tell(facts.Checked(not sick, "a GPU fell off the bus" if sick else "", tested, tests))

    def _use_disk(self, command: Rescue | Prove) -> None:
        """What is in memory is known at once; what is written is there when the disk has it."""
        if isinstance(command, Prove):
            self._read_share(command)
            return
        kept, names = self.node.kept, self.world.memory.names
        if not command.into:
            steps = [msgspec.to_builtins(one) for one in holdings(kept, command.attempt, names, pin=command.pin)]
            self.agent.tell(facts.DiskUsed(command, True, data={"steps": steps}))
            return

        def write() -> None:
            there = kept.steps.get((command.attempt, command.step, command.nonce), set())
            why = "" if there.issuperset(command.files) else "it is not kept any more"
            why = why or (os.strerror(self.node.mount.trouble()) if self.node.mount.trouble() else "")
            why = why or self.world.checkpoint_fs.bring(command.into, command.files)
            if command.pin:
                kept.let_go()
            self.agent.tell(facts.DiskUsed(command, not why, why))

        self.timeline.at(self.node.mount.ready_at() + BRING_S, lambda: self.agent.when_awake(write))

    def _read_share(self, command: Prove) -> None:
        """Whole where what stands there is, and this node's mount shows it."""

        def read() -> None:
            why = self.world.checkpoint_fs.damage_of(command.directory, command.nonce)
            why = why or (os.strerror(self.node.mount.trouble()) if self.node.mount.trouble() else "")
            self.agent.tell(facts.DiskUsed(command, not why, why))

        self.timeline.at(self.node.mount.ready_at() + READ_S, lambda: self.agent.when_awake(read))

    def _send(self, message: FromAgent) -> None:
        line = self.agent.line
        if line is None or line.supervisor is None:
            return
        supervisor = line.supervisor
        self.world.network.send(self.node.index, supervisor.node.index, lambda: supervisor.hear(line, message))

    def _found(self) -> None:
        claims = self.node.mount.claims()
        if not claims:
            self.agent.tell(facts.TermFound(None))
            return
        claim = claims[max(claims)]
        self.agent.tell(facts.TermFound(Dial(claim.term, claim.endpoint, claim.server_key), claim.job))

    def _prepared(self, command: Prepare) -> None:
        left = [rank.name for rank in self.node.ranks if rank.alive]
        port = self.world.new_port() if command.rank_zero else 0
        self.agent.tell(facts.SlatePrepared(command.attempt, not left, ", ".join(left), port))

    def _launch(self, command: Launch) -> None:
        if command not in self._pending:
            self.agent.tell(facts.RanksLaunched(command.attempt, False, "stopped before they were up"))
        elif self.node.launch(command, self.agent):
            ranks = tuple(rank.live() for rank in self.node.ranks if rank.alive and rank.of[1] == command.attempt)
            self.agent.tell(facts.RanksLaunched(command.attempt, True, ranks=ranks))
        else:
            self.agent.tell(
                facts.RanksLaunched(command.attempt, False, "the lease ended while ranks were being started")
            )

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

        began = self.timeline.now
        alive = any(rank.alive for rank in self.node.ranks)
        self.timeline.after(STOP_S if alive else 0.001, lambda: self.agent.when_awake(look))
