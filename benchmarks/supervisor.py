"""What one message costs the supervisor: ``python benchmarks/supervisor.py``.

The budget is half a core for 10,000 agents that beat once a second: under 50 us of CPU a beat, with all that is due in
between (the hang watch, silence, the counter file). The gang is started as any other is: hello, check, prepare, launch.
Then two of five nodes fall silent together and come back, others being asked about each, one rank fails and all start
again, and at last all ranks end. No turn of the loop may take longer than 0.5 s.
Everything but the loop is in memory; ``fleet.py`` has the same with a real process, real sockets and a real disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import deque
from pathlib import Path
from time import process_time  # other processes of the machine do not count

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from gangrun.adapters.net.router import BUNDLE_MAX_COUNT
from gangrun.agent.brain.line import SampleReport
from gangrun.core.events import RankExited, RankFinished
from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.model import Phase, Shape
from gangrun.core.policy import Policy
from gangrun.ports import AgentsSaid, Item, Woken
from gangrun.wire.messages import Ack, AgentEvent, Beat, Probe, ProbeResult, RankSample, Welcome
from tests.supervisor.desk import Desk, HandAgent
from tests.supervisor.ports_in_memory import MemoryRadio

RANKS_PER_NODE = 8
SECONDS = 30
HICCUP_S, BACK_S = 7, 3


class Ears(HandAgent):
    """Obeys, and remembers nothing but the echo and what it told of its ranks."""

    told_count = 0

    def __init__(self, desk: Desk, node: str) -> None:
        super().__init__(desk, node)
        self.report = SampleReport()

    def hear(self, message: object) -> None:
        """An ack costs the far end nothing here."""
        if isinstance(message, Ack):
            self.echo, self.report.is_asked = message.stamp, message.asks_for_all
            return
        if isinstance(message, Welcome):
            self.report.welcomed(message.whole_every_s)
        if isinstance(message, Probe):
            self.post(ProbeResult(self.node, message.target.node, True))
            return
        super().hear(message)
        self.got.clear()

    def reading_beat(self, second: int) -> Beat:
        """The beat of one second of training."""
        self.seq += 1
        taken = tuple(RankSample(rank, second, 2, second, second * 100, second * 0.9, "R", 0) for rank in self.ranks)
        self.report.take(self.attempt, taken)
        readings, is_brief = self.report.page(self.attempt, self.desk.clock.boot)
        return Beat(
            self.node,
            "i1",
            self.seq,
            self.desk.clock.boot,
            0,
            self.attempt,
            False,
            readings,
            (),
            self.echo,
            is_brief,
        )


class Bench:
    """One supervisor, and so many agents that cost nothing."""

    def __init__(self, agents_count: int) -> None:
        shape = Shape(agents_count, agents_count, RANKS_PER_NODE, 1)
        policy = Policy(join_within_s=1e6, check_within_s=1e6, start_within_s=1e6)
        self.desk = Desk(nodes=agents_count, policy=policy, addresses={}, shape=shape)
        self.desk.agents = {name: Ears(self.desk, name) for name in self.desk.agents}
        self.loop = self.desk.open()
        self.box: deque[Item] = self.desk.mailbox.items
        assert isinstance(self.desk.radio, MemoryRadio)
        self.agents: list[Ears] = [agent for agent in self.desk.agents.values() if isinstance(agent, Ears)]

    longest_s = 0.0

    def drain(self) -> float:
        """CPU seconds until the mailbox is empty."""
        self.desk.mailbox.stop_at = self.desk.clock.boot
        began = at = process_time()
        while self.box:
            self.loop.turn()
            before, at = at, process_time()
            self.longest_s = max(self.longest_s, at - before)
        self.desk.radio.sent.clear()
        return at - began

    def part(self, name: str, took_s: float, count: int) -> None:
        """Print what a part took."""
        each = f"{took_s / count * 1e6:.0f} us each, longest turn {self.longest_s:.3f} s"
        sys.stdout.write(f"{name}: {took_s:.1f} s of processor time for {count}, {each}\n")
        self.longest_s = 0.0

    def until_running(self) -> float:
        """CPU seconds until all train."""
        took_s = 0.0
        for _ in range(SECONDS):
            took_s += self.second(0)
            if self.loop.state.phase is Phase.RUNNING:
                return took_s
        raise AssertionError((self.loop.state.phase, self.loop.state.reason))

    def say(self, agent: Ears, events: list[RankExited | RankFinished]) -> None:
        """Events on a heartbeat; none of the agent's ranks is left if all of them ended."""
        agent.seq += 1
        told = [
            AgentEvent(i, type(one).__name__, msgspec.to_builtins(one))
            for i, one in enumerate(events, start=agent.told_count + 1)
        ]
        agent.told_count += len(told)
        if isinstance(events[0], RankFinished):
            agent.ranks = ()
        boot, gone = self.desk.clock.boot, not agent.ranks
        said = Beat(
            agent.node,
            "i1",
            agent.seq,
            boot,
            0,
            agent.attempt,
            gone,
            (),
            tuple(told),
            agent.echo,
        )
        self.box.append(AgentsSaid(((agent.node.encode(), said),), boot))

    def hiccup(self, number: int) -> float:
        """CPU seconds of a hiccup of two nodes of five, and until all are heard again."""
        everybody = self.agents
        self.agents = everybody[2 * len(everybody) // 5 :]
        took_s = sum(self.second(number + i) for i in range(HICCUP_S))
        assert len(self.loop.silence.suspects) == len(everybody) - len(self.agents)
        self.agents = everybody
        took_s += sum(self.second(number + HICCUP_S + i) for i in range(BACK_S))
        assert not self.loop.silence.suspects
        return took_s

    def second(self, number: int) -> float:
        """All beats of one second, and whatever else is due in it."""
        self.desk.clock.boot += 1.0
        said = [(agent.node.encode(), agent.reading_beat(number)) for agent in self.agents]
        for at in range(0, len(said), BUNDLE_MAX_COUNT):
            self.box.append(AgentsSaid(said[at : at + BUNDLE_MAX_COUNT], self.desk.clock.boot))
        self.box.append(Woken())
        return self.drain()


def main() -> None:
    """Print CPU microseconds per message, and of one core."""
    parser = argparse.ArgumentParser(description="Measure what one message costs the supervisor.")
    parser.add_argument("--agents", type=int, default=10_000)
    count = parser.parse_args().agents
    bench = Bench(count)
    for agent in bench.agents:
        agent.hello(slots_count=RANKS_PER_NODE)
    bench.part("hello", bench.drain(), count)
    bench.part("checks, prepare and launch", bench.until_running(), count)
    samples = [bench.second(number) for number in range(1, SECONDS)]
    assert bench.loop.state.phase is Phase.RUNNING, bench.loop.state.reason
    typical, worst = statistics.median(samples), max(samples)
    sys.stdout.write(
        f"training, {RANKS_PER_NODE} ranks a node, hang watch and all: {typical / count * 1e6:.1f} us a beat,"
        f" {100 * typical:.0f} % of a core for {count} agents, worst second {100 * worst:.0f} %\n"
    )
    bench.longest_s = 0.0
    took_s = bench.hiccup(SECONDS)
    bench.part(f"hiccup of two nodes of five within {HICCUP_S + BACK_S} s", took_s, count)
    bench.desk.clock.boot += 1.0
    broken = bench.agents[count // 2]
    error = ErrorReport("RuntimeError", "CUDA error", "RuntimeError@t.py:7", "Traceback\n", False)
    bench.say(broken, [RankExited(0, RankExit(broken.ranks[0], broken.node, 1, error=error))])
    took_s = bench.drain()
    bench.part("one failure, stop and restart", took_s + bench.until_running(), count)
    bench.desk.clock.boot += 1.0
    for agent in bench.agents:
        bench.say(
            agent,
            [RankFinished(agent.attempt, rank, agent.node, 1.0, SECONDS) for rank in agent.ranks],
        )
    took_s = bench.drain()
    for number in range(SECONDS):
        if bench.loop.state.phase is not Phase.STOPPING:
            break
        took_s += bench.second(SECONDS + number)  # agents are told to stop what is left, and answer
    bench.part("end of all ranks", took_s, count * RANKS_PER_NODE)
    assert bench.loop.state.phase is Phase.SUCCEEDED, bench.loop.state.reason


if __name__ == "__main__":
    main()
