"""One real supervisor process and thousands of light agents on loopback: ``python benchmarks/fleet.py``.

The agents are two processes with a real socket for each agent. They speak the real protocol: CURVE, hello, heartbeats
every second with eight ranks' samples, answers to commands, events until they are journalled. They start no ranks.

One run goes through start, training, a silent node, half of all nodes silent and back, one failed rank with the restart
of all, and the end of all ranks.
Budgets: half a core while all train, a silent node found within ``silence_after_s`` and a heartbeat, and a loop that
no single turn blocks for more than 0.5 s. A turn is timed in the supervisor's own loop, by a mailbox that notes when
the loop comes back to it. Processor seconds come from /proc, so a busy machine does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapreplace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import zmq

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.net import sockets
from gangrun.adapters.net.curve import read_client_key, write_client_key
from gangrun.adapters.net.router import QueueMailbox
from gangrun.agent.brain.line import SampleReport
from gangrun.core.events import RankExited, RankFinished
from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.nodeset import fold, unfold
from gangrun.core.policy import Policy
from gangrun.entry import supervisor
from gangrun.ports import Item
from gangrun.runs.snapshot import read
from gangrun.wire import messages as wire
from gangrun.wire import record as wire_record
from tests.runs.builder import Builder

RANKS_PER_NODE = 8
AGENT_PROCESSES_COUNT = 2
READINGS_COUNT, READING_S, HICCUP_S = 5, 6.0, 7.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TRACEBACK = "Traceback (most recent call last):\n" + "  a line of some file of torch\n" * 100
WITHIN_S = 400.0
THREAD_TOLD_US = 0.1
SILENCED: set[str] = set()  # nodes that no other reaches, as each process of agents knows


# ---- the supervisor's process ----


class TimedMailbox(QueueMailbox):
    """Notes how long the loop was away, each time that it comes back.

    Processor time is read only where it waits: reading it takes a twentieth of what a heartbeat costs.
    """

    left_at = 0.0
    waited_cpu = 0.0  # of the loop's thread, as it waited last
    # Seconds of the longest turn since the last note, and at most so many processor seconds.
    worst = (0.0, 0.0)
    noted_at = 0.0

    def next(self, until: float) -> Item:
        """As ever."""
        now = time.monotonic()
        if self.left_at and now - self.left_at > self.worst[0]:
            self.worst = now - self.left_at, time.thread_time() - self.waited_cpu
        if now - self.noted_at > 1.0:
            os.write(1, json.dumps(self.worst).encode() + b"\n")
            self.noted_at, self.worst = now, (0.0, 0.0)
        waits = not self._taken
        item = super().next(until)
        if waits:
            self.waited_cpu = time.thread_time()
        self.left_at = time.monotonic()
        return item


def supervise(words: list[str]) -> int:
    """The real entry point, with a mailbox that notes."""
    supervisor.QueueMailbox = TimedMailbox  # type: ignore[misc]
    return supervisor.main(words)


# ---- the agents' processes ----


@dataclass(slots=True)
class LightAgent:
    """One socket, and as little as the protocol allows behind it."""

    node: str
    job: str
    run: str
    due: float
    socket: sockets.Socket | None = None
    seq: int = 0
    echo: float = 0.0
    attempt: int = -1
    ranks: tuple[int, ...] = ()
    step: int = 0
    events: list[wire.AgentEvent] = field(default_factory=list)
    told_count: int = 0
    over: bool = False
    acked: int = 0
    sent_at: float = 0.0
    samples: SampleReport = field(default_factory=SampleReport)

    def say(self, message: wire.FromAgent) -> None:
        """To the supervisor; said again later if the queue is full."""
        assert self.socket is not None
        try:
            self.socket.send(wire.encode(self.run, message), zmq.NOBLOCK)
        except zmq.Again:
            pass

    def beat(self, now: float) -> None:
        """Hello until somebody answers, then a heartbeat."""
        if not self.echo:
            peer = wire.PeerAddress(self.node, "tcp://127.0.0.1:9", "k" * 40)
            self.say(
                wire.Hello(
                    self.node,
                    self.job,
                    f"boot-{self.node}",
                    "i1",
                    0,
                    RANKS_PER_NODE,
                    -1,
                    (),
                    peer,
                )
            )
            return
        self.seq += 1
        self.step += bool(self.ranks)
        readings, is_brief = (), False
        if self.ranks:
            cpu_s = 0.9 * self.seq
            taken = tuple([wire.RankSample(r, self.step, 2, self.step, 99, cpu_s, "R") for r in self.ranks])
            self.samples.take(self.attempt, taken)
            readings, is_brief = self.samples.page(self.attempt, now)
        told = tuple(self.events)
        self.sent_at = now
        self.say(
            wire.Beat(
                self.node,
                "i1",
                self.seq,
                now,
                0,
                self.attempt,
                not self.ranks,
                readings,
                told,
                self.echo,
                is_brief,
            )
        )

    def tell(self, event: RankExited | RankFinished) -> None:
        """Kept until it is journalled."""
        self.told_count += 1
        self.events.append(wire.AgentEvent(self.told_count, type(event).__name__, msgspec.to_builtins(event)))

    def hear(self, message: wire.ToAgent, now: float) -> float:
        """Obey; seconds from the newest heartbeat to its ack, 0 for anything else."""
        match message:
            case wire.Welcome():
                if not self.echo:
                    self.samples.welcomed(message.whole_every_s)
                self.echo = max(self.echo, message.stamp)
            case wire.Ack():
                self.samples.is_asked = message.asks_for_all
                self.echo = max(self.echo, message.stamp)
                self.events = [event for event in self.events if event.seq > message.journalled_seq]
                self.acked = message.seq
                return now - message.boottime
            case wire.Prepare():
                self.answer(message, wire.StartAnswer(20000 if message.rank_zero else 0))
            case wire.Launch():
                self.attempt, self.ranks, self.step = message.attempt, message.ranks, 0
                self.answer(message, wire.StartAnswer())
            case wire.Stop():
                self.ranks = ()
                self.answer(message, wire.StopAnswer(()))
            case wire.Probe():
                self.say(wire.ProbeResult(self.node, message.target.node, message.target.node not in SILENCED))
            case wire.CheckNode():
                self.answer(message, None)
            case wire.Farewell():
                self.over = True
                self.answer(message, None)
            case _:
                pass
        return 0.0

    def answer(self, command: wire.Command | wire.Farewell, answer: wire.Answer | None) -> None:
        """All is well."""
        self.say(wire.CommandResult(self.node, "i1", command.act, True, "", answer))


class Fleet:
    """The agents of one process, in one thread."""

    def __init__(self, paths: RunPaths, names: Sequence[str], job: str, dials_per_s: float) -> None:
        sockets.raise_nofile()
        keys, claim = (
            read_client_key(paths.client_key),
            wire_record.decode_claim(paths.claim(1).read_bytes()),
        )
        context: sockets.Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, len(names) + 16)
        now = time.monotonic()
        self.agents, self.by_fd = [], {}
        self.epoll = select.epoll()
        self.delay_s, self.lag_s, self.beats_count = 0.0, 0.0, 0
        self.silenced: set[str] = set()
        self._dial = partial(
            sockets.client,
            context,
            keys,
            endpoint=claim.endpoint,
            server_key=claim.server_key,
        )
        for i, name in enumerate(names):
            self.agents.append(LightAgent(name, job, paths.run, now + i / dials_per_s))
        self.epoll.register(0, select.EPOLLIN)

    def dial(self, agent: LightAgent) -> None:
        """Its line to the supervisor."""
        agent.socket = self._dial(f"{agent.node}/i1/1")
        fd = int(agent.socket.get(zmq.FD))
        self.by_fd[fd] = agent
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def run(self) -> None:
        """Until standard input ends."""
        queue = [(agent.due, at) for at, agent in enumerate(self.agents)]
        while True:
            now = time.monotonic()
            agent = self.agents[queue[0][1]]
            if now >= agent.due:
                if agent.socket is None:
                    self.dial(agent)
                self.lag_s = max(self.lag_s, now - agent.due)
                agent.due = max(agent.due + 1.0, now)  # a late process drops heartbeats rather than piling them up
                heapreplace(queue, (agent.due, queue[0][1]))
                if agent.node not in self.silenced:
                    agent.beat(now)
                    self.beats_count += 1
                    self.take(agent)
                continue
            for fd, _ in self.epoll.poll(agent.due - now, 512):
                if fd == 0:
                    if not self.obey(os.read(0, 65536).decode()):
                        return
                else:
                    self.take(self.by_fd[fd])

    def take(self, agent: LightAgent) -> None:
        """All that has come for one agent; the descriptor is edge-triggered."""
        assert agent.socket is not None
        while True:
            try:
                data = agent.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = wire.decode(agent.run, data)
            if agent.node not in self.silenced and isinstance(message, wire.ToAgent):
                self.delay_s = max(self.delay_s, agent.hear(message, time.monotonic()))

    def obey(self, words: str) -> bool:
        """What the benchmark asks, a word a line; False at the end."""
        for word in words.split():
            if word.startswith("gone:"):
                SILENCED.update(word.removeprefix("gone:").split(","))
            elif word == "state":
                ranks = sum(bool(agent.ranks) for agent in self.agents)
                told = {
                    "welcomed": sum(agent.echo > 0 for agent in self.agents),
                    "running": ranks,
                }
                told |= {
                    "over": sum(agent.over for agent in self.agents),
                    "beats": self.beats_count,
                }
                print(
                    json.dumps({**told, "delay_s": self.delay_s, "lag_s": self.lag_s}),
                    flush=True,
                )
                self.delay_s = self.lag_s = self.beats_count = 0
            elif word == "silence":
                agent = self.agents[-1]
                self.silenced.add(agent.node)
                SILENCED.add(agent.node)
                print(json.dumps({"node": agent.node, "last": agent.sent_at}), flush=True)
            elif word == "speak":
                self.silenced.clear()
                SILENCED.clear()
            elif word == "fail":
                agent = self.agents[len(self.agents) // 2]
                error = ErrorReport(
                    "RuntimeError",
                    "CUDA error",
                    "RuntimeError@t.py:7",
                    TRACEBACK,
                    False,
                )
                agent.tell(
                    RankExited(
                        agent.attempt,
                        RankExit(agent.ranks[0], agent.node, 1, error=error),
                    )
                )
                agent.ranks = agent.ranks[1:]
            elif word == "finish":
                for agent in self.agents:
                    for rank in agent.ranks:
                        agent.tell(RankFinished(agent.attempt, rank, agent.node, 1.0, agent.step))
                    agent.ranks = ()
        return bool(words)


# ---- the benchmark ----


class Bench:
    """The processes and what is asked of them."""

    def __init__(self, folder: Path, nodes_count: int, dials_per_s: float) -> None:
        names = tuple(f"n{i:05d}" for i in range(nodes_count))
        policy = Policy(join_within_s=600.0, check_within_s=300.0, start_within_s=300.0)
        built = Builder(folder, nodes=names, ranks=RANKS_PER_NODE, policy=policy)
        self.paths, self.disk = built.paths, Disk()
        write_client_key(self.paths.client_key)
        job = f"local-{os.uname().nodename}-{os.getpid()}"
        words = ["--run-dir", str(self.paths.root), "--node", names[0], "--job", job]
        me = [sys.executable, __file__]
        self.log = (folder / "turns").open("wb")
        self.supervisor = subprocess.Popen(
            [*me, "--supervise", json.dumps(words)],
            stdout=self.log,
            stderr=(folder / "said").open("wb"),
        )
        self.wait("a claim", lambda: self.paths.claim(1).exists())
        dials_per_s /= AGENT_PROCESSES_COUNT
        share = -(-nodes_count // AGENT_PROCESSES_COUNT)
        self.fleets = [
            subprocess.Popen(
                [*me, "--agents", json.dumps([str(self.paths.root), job, fold(each), dials_per_s])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for each in (names[i : i + share] for i in range(0, nodes_count, share))
        ]  # fmt: skip
        self.nodes_count = nodes_count
        self.turns_read = 0

    def wait(self, what: str, condition: object) -> float:
        """Seconds until it holds."""
        assert callable(condition)
        began = time.monotonic()
        while not condition():
            assert self.supervisor.poll() in (None, 0), f"the supervisor ended with {self.supervisor.returncode}"
            assert time.monotonic() - began < WITHIN_S, f"no {what} within {WITHIN_S:g} s: {self.ask('state')}"
            time.sleep(0.25)
        return time.monotonic() - began

    def ask(self, word: str, *, answered: bool = True) -> list[dict[str, float]]:
        """One word to all processes of agents, and what they say."""
        for fleet in self.fleets:
            assert fleet.stdin is not None
            fleet.stdin.write(f"{word}\n")
            fleet.stdin.flush()
        return [json.loads(fleet.stdout.readline()) for fleet in self.fleets if fleet.stdout] if answered else []

    def all_are(self, what: str) -> bool:
        """Do all agents say so?"""
        said = self.ask("state")
        self.delay_s = max(self.delay_s, *(one["delay_s"] for one in said))
        self.lag_s = max(self.lag_s, *(one["lag_s"] for one in said))
        return sum(one[what] for one in said) == self.nodes_count

    delay_s = lag_s = 0.0

    def cpu_s(self) -> float:
        """Processor seconds of the supervisor, all threads."""
        try:
            words = Path(f"/proc/{self.supervisor.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:  # it has ended meanwhile
            return self.cpu_known_s
        self.cpu_known_s = (int(words[11]) + int(words[12])) / TICKS_PER_S
        return self.cpu_known_s

    def threads_cpu_s(self) -> dict[str, float]:
        """Processor seconds of each of the supervisor's threads, by name."""
        spent: dict[str, float] = {}
        for stat in Path(f"/proc/{self.supervisor.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name, words = stat.read_text().split("(", 1)[1].rsplit(")", 1)
                ticks = words.split()
                name = "loop" if stat.parent.name == str(self.supervisor.pid) else name.replace("python", "router")
                spent[name] = spent.get(name, 0.0) + (int(ticks[11]) + int(ticks[12])) / TICKS_PER_S
        return spent

    cpu_known_s = memory_known_mb = 0.0

    def memory_mb(self) -> float:
        """The most that the supervisor had."""
        with contextlib.suppress(FileNotFoundError, StopIteration):  # it has ended meanwhile
            lines = Path(f"/proc/{self.supervisor.pid}/status").read_text().splitlines()
            self.memory_known_mb = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e3
        return self.memory_known_mb

    def turn(self) -> tuple[float, float]:
        """The longest turn since this was asked last: seconds, and processor seconds of its thread."""
        lines = Path(self.log.name).read_bytes().splitlines()
        fresh = [json.loads(line) for line in lines[self.turns_read :]]
        self.turns_read = len(lines)
        wall, cpu = max(fresh, default=(0.0, 0.0))
        return wall, cpu

    def phase(self, name: str, condition: object) -> None:
        """One part of the run."""
        before = self.cpu_s()
        self.delay_s = self.lag_s = 0.0
        took_s = self.wait(name, condition)
        wall, cpu = self.turn()
        print(
            f"{name}: {took_s:.1f} s, {self.cpu_s() - before:.1f} s of processor time, longest turn {wall:.2f} s"
            f" ({cpu:.2f} s of processor time), slowest ack {self.delay_s:.1f} s (agents late {self.lag_s:.1f} s),"
            f" {self.memory_mb():.0f} MB",
            flush=True,
        )

    def training(self) -> None:
        """Share of a core while all train."""
        self.ask("state")
        shares, rates, spent = [], [], self.threads_cpu_s()
        for _ in range(READINGS_COUNT):
            began, before = time.monotonic(), self.cpu_s()
            time.sleep(READING_S)
            took_s = time.monotonic() - began
            shares.append((self.cpu_s() - before) / took_s)
            said = self.ask("state")
            rates.append(sum(one["beats"] for one in said) / took_s)
        wall, cpu = self.turn()
        beats = statistics.median(rates) * READINGS_COUNT * READING_S
        parts = {name: 1e6 * (at - spent.get(name, 0.0)) / beats for name, at in self.threads_cpu_s().items()}
        most = sorted(parts.items(), key=lambda part: -part[1])
        told = ", ".join(f"{name} {us:.1f}" for name, us in most if us >= THREAD_TOLD_US)
        print(
            f"training: {sum(parts.values()):.1f} us a heartbeat, by thread: {told}\n"
            f"training: {100 * statistics.median(shares):.0f} % of a core (of {', '.join(f'{s:.2f}' for s in shares)})"
            f" at {statistics.median(rates):.0f} heartbeats a second, longest turn {wall:.2f} s ({cpu:.2f} s)",
            flush=True,
        )

    def silence(self) -> None:
        """How soon a silent node is suspected."""
        last = {str(one["node"]): one["last"] for one in self.ask("silence")}
        self.ask(f"gone:{','.join(last)}", answered=False)

        def found() -> dict[str, float]:
            journal = self.paths.journal(1).read_bytes().splitlines()
            records = [wire_record.decode(line) for line in journal if b'"NodeSilent"' in line]
            return {one.event["node"]: one.wall for one in records}

        offset, before = time.time() - time.monotonic(), set(found()) - set(last)
        self.wait("word of the silent nodes", lambda: set(last) <= set(found()))
        late = [found()[node] - offset - last[node] for node in last]
        others = set(found()) - set(last) - before
        print(
            f"silent nodes found after {', '.join(f'{s:.1f}' for s in late)} s; others suspected meanwhile:"
            f" {len(others)}, since the first dialled: {len(before | others)}",
            flush=True,
        )
        self.ask("speak", answered=False)

    def hiccup(self) -> None:
        """Half of all agents say nothing for a while, as behind a switch that starts anew, and come back."""
        before = self.cpu_s()
        self.turn()
        self.fleets[0].send_signal(signal.SIGSTOP)
        time.sleep(HICCUP_S)
        self.fleets[0].send_signal(signal.SIGCONT)
        self.ask("state")
        time.sleep(READING_S)
        wall, cpu = self.turn()
        print(
            f"half of the nodes silent for {HICCUP_S:g} s: {self.cpu_s() - before:.1f} s of processor time in"
            f" {HICCUP_S + READING_S:g} s, longest turn {wall:.2f} s ({cpu:.2f} s of processor time)",
            flush=True,
        )

    def close(self) -> None:
        """End all."""
        for fleet in self.fleets:
            assert fleet.stdin is not None
            fleet.stdin.close()
            fleet.wait(30)
        self.supervisor.kill()
        self.supervisor.wait(30)


def main() -> None:
    """Print a line for each part of the run."""
    parser = argparse.ArgumentParser(description="Measure one supervisor process with thousands of agents.")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument(
        "--dials-per-s",
        type=float,
        default=200.0,
        help="agents that connect in one second",
    )
    parser.add_argument("--supervise", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--agents", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.supervise:
        sys.exit(supervise(given.supervise))
    if given.agents:
        root, job, names, dials_per_s = given.agents
        Fleet(RunPaths(Path(root)), unfold(names), job, dials_per_s).run()
        return
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), given.nodes, given.dials_per_s)
        try:
            bench.phase("start", lambda: bench.all_are("running"))
            bench.training()
            bench.silence()
            bench.hiccup()
            bench.phase("all train again", lambda: bench.all_are("running"))
            bench.ask("fail", answered=False)
            bench.phase(
                "stop of all",
                lambda: not all(one["running"] for one in bench.ask("state")),
            )
            bench.phase("restart of all", lambda: bench.all_are("running"))
            bench.ask("finish", answered=False)
            bench.phase(
                "end",
                lambda: bench.supervisor.poll() is not None or bench.all_are("over"),
            )
            state = read(bench.paths).state
            assert state is not None
            size = bench.paths.journal(1).stat().st_size
            print(f"{state.phase.value}: {state.reason}; {size / 1e6:.1f} MB of journal")
        finally:
            bench.close()


if __name__ == "__main__":
    main()
