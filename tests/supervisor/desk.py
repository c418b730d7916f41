"""A loop on a desk: hand-held ports, agents that obey, and time that moves when asked to (room: tests/supervisor)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gangrun.core.evidence import RankStack
from gangrun.core.model import Shape
from gangrun.core.policy import Policy
from gangrun.ports import AgentsSaid
from gangrun.supervisor.loop import Loop
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.takeover import take
from gangrun.wire.messages import (
    Ack,
    AgentEvent,
    Answer,
    AskSave,
    Beat,
    CheckNode,
    CommandResult,
    Farewell,
    Hello,
    Launch,
    LiveRank,
    PeerAddress,
    Prepare,
    RankSample,
    SaveAnswer,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    Welcome,
)
from gangrun.wire.record import Claim
from tests.supervisor.ports_in_memory import (
    HandCheckpoints,
    HandClock,
    HandMailbox,
    MemoryDisk,
    MemoryRadio,
    MemoryStore,
    MemoryTerms,
    NoJobs,
)


@dataclass
class HandAgent:
    """The far end of a line: obeys at once unless told not to, beats when told to."""

    desk: Desk
    node: str
    incarnation: str = "i1"
    obeys: bool = True
    beating: bool = True
    seq: int = 0
    echo: float = 0.0
    attempt: int = -1
    ranks: tuple[int, ...] = ()
    step: int = -1
    first_step: int = -1
    standbys: tuple[int, int] = (0, 0)
    refuses: dict[type, str] = field(default_factory=dict)
    got: list[Any] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    next_beat: float = 0.0

    def post(self, message: Any) -> None:
        self.desk.mailbox.post(AgentsSaid(((f"{self.node}/{self.incarnation}".encode(), message),)))

    def hello(self, **changes: Any) -> None:
        said = Hello(
            node=self.node,
            job=self.desk.facts.job,
            boot_id=f"boot-{self.node}",
            incarnation=self.incarnation,
            term_max=0,
            slots_count=2,
            attempt=self.attempt,
            ranks=tuple(LiveRank(rank, 100 + rank, 1) for rank in self.ranks),
            peer=PeerAddress(self.node, f"tcp://{self.node}", "key"),
            addresses=(f"address of {self.node}",),
        )
        self.post(Hello(**{**{f: getattr(said, f) for f in said.__struct_fields__}, **changes}))

    def beat(self, **changes: Any) -> None:
        self.seq += 1
        self.next_beat = self.desk.clock.boot + 1.0
        if self.first_step < 0:
            self.first_step = self.step
        said: dict[str, Any] = {
            "node": self.node,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "boottime": self.desk.clock.boot,
            "term_max": 0,
            "attempt": self.attempt,
            "empty": not self.ranks,
            "readings": tuple(
                RankSample(r, self.step, 2, max(0, self.step), 0, 0.0, "R", first_step=self.first_step)
                for r in self.ranks
            ),
            "events": tuple(self.events),
            "echo": self.echo,
            "standbys": self.standbys,
        }
        self.post(Beat(**{**said, **changes}))

    def tell(self, seq: int, kind: str, data: dict[str, Any]) -> None:
        self.events.append(AgentEvent(seq, kind, data))

    def answer(self, message: Any, ok: bool = True, why: str = "", answer: Answer | None = None) -> None:
        self.post(CommandResult(self.node, self.incarnation, message.act, ok, why, answer))

    def hear(self, message: Any) -> None:
        self.got.append(message)
        if isinstance(message, Welcome | Ack):
            self.echo = max(self.echo, message.stamp)
        if isinstance(message, Ack):
            self.acks.append(message)
            self.events = [event for event in self.events if event.seq > message.journalled_seq]
        if not self.obeys or isinstance(message, Welcome | Ack):
            return
        why = self.refuses.get(type(message))
        if why is not None:
            self.answer(message, False, why)
            return
        match message:
            case Prepare():
                self.answer(message, answer=StartAnswer(20000 + message.attempt if message.rank_zero else 0))
            case Launch():
                self.attempt, self.ranks = message.attempt, message.ranks
                self.answer(message)
            case Stop():
                self.ranks = ()
                self.answer(message)
            case Stacks():
                self.answer(message, answer=StacksAnswer(tuple(RankStack(r, self.node, "f", "") for r in self.ranks)))
            case CheckNode() | Farewell():
                self.answer(message)
            case AskSave() if message.hold:
                self.answer(message, answer=SaveAnswer(self.step))

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]


class Desk:
    """One run directory, one job; a supervisor of one term after the other."""

    def __init__(self, nodes: int = 2, policy: Policy | None = None, **facts: Any) -> None:
        self.clock = HandClock()
        self.mailbox = HandMailbox(self.clock)
        self.disk = MemoryDisk()
        self.last_known_at = float("inf")  # until then storage and scheduler say that this job has the run
        self.policy = policy or Policy()
        self.says: list[str] = []
        names = [f"n{i}" for i in range(nodes)]
        shape = Shape(nodes_count=nodes, nodes_min_count=nodes, slots_per_node=2, ranks_per_slot=1)
        self.facts = replace(
            RunFacts(run="r", shape=shape, job="j1", node="n0", addresses={n: f"10.0.0.{n}" for n in names}), **facts
        )
        self.agents = {name: HandAgent(self, name) for name in names}

    def offer(self, term: int) -> Claim:
        return Claim(term, "r", self.facts.job, "n0", 1000 + term, 1, "tcp://x", "key", self.clock.wall())

    def open(self, *, stalled: bool = False) -> Loop:
        """Take the next term; what earlier loops left in the mailbox is gone with their process."""
        self.mailbox.items.clear()
        opening = take(MemoryTerms(self.disk), self.clock, self.facts, self.policy, offer=self.offer)
        self.store = MemoryStore(self.disk, opening.term, self.mailbox.post, stalled, seen_open=self.last_known_at)
        self.radio = MemoryRadio(on_send=lambda node, message: self.agents[node].hear(message))
        self.checkpoints = HandCheckpoints(self.mailbox.post)
        self.jobs = NoJobs(self.mailbox.post, confirmed_at=self.last_known_at)
        self.loop = Loop(
            clock=self.clock,
            mailbox=self.mailbox,
            store=self.store,
            radio=self.radio,
            checkpoints=self.checkpoints,
            jobs=self.jobs,
            policy=self.policy,
            facts=self.facts,
            opening=opening,
            say=self.says.append,
        )
        return self.loop

    def join(self) -> None:
        for agent in self.agents.values():
            agent.echo = 0.0
            agent.hello()
        self.turn_all()
        for agent in self.agents.values():
            agent.beat()
        self.turn_all()

    def turn_all(self) -> None:
        """Turn while there is mail; time stands still."""
        self.mailbox.stop_at = self.clock.boot
        for _ in range(100_000):
            if not self.mailbox.items and self.loop.deadline() > self.clock.boot:
                return
            if not self.loop.turn():
                return
        raise AssertionError("the loop never came to rest")

    def pass_s(self, seconds: float) -> None:
        """Let time go by; agents that beat do so every second."""
        end = self.clock.boot + seconds
        while self.loop.exit_code is None:
            self.turn_all()
            beating = [agent for agent in self.agents.values() if agent.beating]
            soonest = min([end, self.loop.deadline(), *(agent.next_beat for agent in beating)])
            self.clock.boot = max(self.clock.boot, min(end, soonest))
            for agent in beating:
                if agent.next_beat <= self.clock.boot:
                    agent.beat()
            if self.clock.boot >= end:
                self.turn_all()
                return

    def running(self) -> Loop:
        """A loop whose gang runs."""
        loop = self.open()
        self.join()
        self.pass_s(3.0)
        assert loop.state.phase.value == "RUNNING", (loop.state.phase, loop.state.reason)
        return loop

    def kinds(self) -> list[str]:
        """Kinds of this term's records on disk."""
        return [record.kind for record in self.disk.records(self.loop.term)]
