"""What one message costs the supervisor: ``python benchmarks/supervisor.py``.

The budget is half a core for 10,000 agents that beat once a second: under 50 us of CPU a beat, with all that is due in
between (the hang watch, silence, the counter file). The gang is started as any other is: hello, check, prepare, launch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import deque
from pathlib import Path
from time import process_time  # other processes of the machine do not count

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gangrun.core.model import Phase, Shape
from gangrun.core.policy import Policy
from gangrun.ports import AgentSaid, Item, Woken
from gangrun.wire.messages import Ack, Beat, RankSample
from tests.supervisor.desk import Desk, HandAgent
from tests.supervisor.ports_in_memory import MemoryRadio

RANKS_PER_NODE = 8
SECONDS = 30


class Ears(HandAgent):
    """Obeys, and remembers nothing but the echo."""

    def hear(self, message: object) -> None:
        """An ack costs the far end nothing here."""
        if isinstance(message, Ack):
            self.echo = message.stamp
            return
        super().hear(message)
        self.got.clear()

    def reading_beat(self, second: int) -> Beat:
        """The beat of one second of training."""
        self.seq += 1
        readings = tuple(RankSample(rank, second, 2, second, second * 100, second * 0.9, "R", 0) for rank in self.ranks)
        return Beat(self.node, "i1", self.seq, self.desk.clock.boot, 0, self.attempt, False, readings, (), self.echo)


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

    def drain(self) -> float:
        """CPU seconds until the mailbox is empty."""
        self.desk.mailbox.stop_at = self.desk.clock.boot
        began = process_time()
        while self.box:
            self.loop.turn()
        took_s = process_time() - began
        self.desk.radio.sent.clear()
        return took_s

    def second(self, number: int) -> float:
        """All beats of one second, and whatever else is due in it."""
        self.desk.clock.boot += 1.0
        for agent in self.agents:
            self.box.append(AgentSaid(agent.node.encode(), agent.reading_beat(number)))
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
    took_s = bench.drain()
    sys.stdout.write(f"hello: {took_s / count * 1e6:.0f} us each, with the records of {count} joins\n")
    took_s, seconds_count = 0.0, 0
    while bench.loop.state.phase is not Phase.RUNNING:
        took_s += bench.second(0)
        seconds_count += 1
        assert seconds_count < SECONDS, (bench.loop.state.phase, bench.loop.state.reason)
    sys.stdout.write(f"checks, prepare and launch of {count} nodes: {took_s:.1f} s\n")
    samples = [bench.second(number) for number in range(1, SECONDS)]
    assert bench.loop.state.phase is Phase.RUNNING, bench.loop.state.reason
    typical, worst = statistics.median(samples), max(samples)
    sys.stdout.write(
        f"training, {RANKS_PER_NODE} ranks a node, hang watch and all: {typical / count * 1e6:.1f} us a beat,"
        f" {100 * typical:.0f} % of a core for {count} agents, worst second {100 * worst:.0f} %\n"
    )


if __name__ == "__main__":
    main()
