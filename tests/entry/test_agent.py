"""A real agent under a real warden; this test is its supervisor, over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import create_run, write_spec
from gangrun.adapters.fs.terms import FsTerms
from gangrun.adapters.net.curve import write_client_key
from gangrun.adapters.net.router import QueueMailbox, RouterRadio
from gangrun.agent.loop import FAREWELL_S
from gangrun.agent.ranks.gang_part import ENDED_WITHIN_S, LOGS_CLOSE_AT_END_S
from gangrun.core.policy import Policy, Timing
from gangrun.entry.wiring import own_command
from gangrun.launch import local, slurm_job_owner
from gangrun.node import warden
from gangrun.node.processes import become_subreaper, descendants, kill_until_none, process_table, read_proc
from gangrun.ports import AgentSaid
from gangrun.wire.messages import (
    Ack,
    AgentEvent,
    Beat,
    CheckNode,
    CommandResult,
    Farewell,
    Hello,
    Launch,
    PeerAddress,
    Prepare,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    Welcome,
)
from gangrun.wire.record import Claim
from gangrun.wire.spec import RunSpec
from tests.local_parts.gang import lives, reap
from tests.waiting import PATIENCE, until

M = TypeVar("M")
SCRIPT = "import sys, time\nprint('up', flush=True)\ntime.sleep(600)\n"
FAST = Timing(
    beat_every_s=0.2, silence_after_s=1.0, fence_after_s=9.0, takeover_after_s=1.0, leader_lease_s=0.6, drift=0.01
)
PATIENT = replace(FAST, fence_after_s=60.0)
MARK = "import sys, pathlib, time; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:])); time.sleep(600)"


class Node:
    """One warden with the real agent; ``self`` speaks for the supervisor of the newest term."""

    def __init__(self, folder: Path, timing: Timing) -> None:
        self.folder, self.timing, self.clock = folder, timing, SystemClock()
        self.paths = create_run(Disk(), folder / "runs", 1.8e9, os.urandom)
        (folder / "train.py").write_text(SCRIPT)
        spec = RunSpec(
            run=self.paths.root.name,
            name="t",
            world="local",
            command=(sys.executable, str(folder / "train.py")),
            python=True,
            working_directory=str(folder),
            nodes=("n0",),
            nodes_min_count=1,
            slots_per_node=2,
            ranks_per_slot=1,
            policy=Policy(timing=timing),
        )
        write_spec(Disk(), self.paths, spec)
        self.keys = write_client_key(self.paths.client_key)
        self.run = spec.run
        self.radios: list[RouterRadio] = []
        self.heard: list[Any] = []
        self.n = 0
        self.acking = True
        self.lead()
        common = ["--run-dir", str(self.paths.root), "--node", "n0", "--job", "job"]
        fields = {
            "agent": own_command("gangrun.entry.agent", common, sys.executable),
            "supervisor": [sys.executable, "-c", MARK, str(folder / "supervisor")],
            "node": "n0",
            "lease_s": timing.fence_after_s,
        }
        environ = {**os.environ, "GANGRUN_LOCAL_DIR": str(folder)}
        with (folder / "err").open("wb") as err:
            self.warden = subprocess.Popen(
                warden.argv(sys.executable, {**fields, "pdeathsig": True}), env=environ, stderr=err
            )

    def lead(self) -> None:
        """Take the next term: a new router, a new key, a new claim."""
        self.mailbox = QueueMailbox(self.clock)
        radio = RouterRadio(self.run, self.keys.public, "127.0.0.1", self.mailbox.post_many)
        self.radios.append(radio)
        self.term = len(self.radios)
        radio.start()
        terms = FsTerms(self.paths, self.clock, Disk())
        assert terms.claim(Claim(self.term, self.run, "job", "n0", 1, 1, radio.endpoint, radio.server_key, 0.0))

    def pump(self, for_s: float) -> None:
        """Hear for a while; welcome and ack as a supervisor would."""
        item = self.mailbox.next(self.clock.now() + for_s)
        if not isinstance(item, AgentSaid):
            return
        said, now = item.message, self.clock.now()
        if isinstance(said, Hello):
            self.radios[-1].bind_peer(said.node, item.peer)
            self.say(Welcome(self.term, said.node, now))
        if isinstance(said, Beat) and self.acking:
            top = max((e.seq for e in said.events), default=0)
            self.acked_at = said.boottime
            self.say(Ack(self.term, said.seq, said.boottime, top, self.me, 1, now))
        if isinstance(said, Hello):
            self.me = (said.peer,)
        self.heard.append(said)

    me: tuple[PeerAddress, ...] = ()
    acked_at = 0.0  # when the newest beat that was acked was sent: the lease counts from there

    def say(self, message: object) -> None:
        self.radios[-1].send("n0", message)

    def next(self, kind: type[M], within_s: float = 15.0) -> M:
        """The next message of a kind; events come out of beats."""
        end = self.clock.now() + within_s * PATIENCE
        while True:
            for said in list(self.heard):
                self.heard.remove(said)
                found = [*said.events, said] if isinstance(said, Beat) else [said]
                for one in found:
                    if isinstance(one, kind):
                        return one
            assert self.clock.now() < end, f"no {kind.__name__}: {self.said()}"
            self.pump(0.05)

    def ask(self, make: type[Any], *fields: object) -> CommandResult:
        """A command, said again until it is answered."""
        self.n += 1
        act, said_at = (self.term, self.n), 0.0
        end = self.clock.now() + 15 * PATIENCE
        while self.clock.now() < end:
            if self.clock.now() - said_at > 0.5:
                said_at = self.clock.now()
                self.say(make(self.term, act, *fields))
            for result in [r for r in self.heard if isinstance(r, CommandResult)]:
                self.heard.remove(result)
                if result.act == act:
                    return result
            self.pump(0.05)
        raise AssertionError(f"no answer to {make.__name__}: {self.said()}")

    def launch(self, attempt: int) -> list[int]:
        """Two ranks; their pids."""
        prepared = self.ask(Prepare, attempt, True)
        assert prepared.ok, prepared.why
        assert isinstance(prepared.answer, StartAnswer)
        port = prepared.answer.port
        up = self.ask(Launch, attempt, 2, 0, 1, (0, 1), (0, 1), "127.0.0.1", port, ("n0",))
        assert up.ok, up.why
        table = process_table()
        return [p.pid for p in descendants([self.agent], table) if b"train.py" in cmdline(p.pid)]

    def said(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def agent(self) -> int:
        found = [p.pid for p in descendants([self.warden.pid], process_table()) if b"entry.agent" in cmdline(p.pid)]
        return found[0]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    become_subreaper()
    made = Node(tmp_path, getattr(request, "param", Timing()))
    try:
        yield made
    finally:
        made.warden.kill()
        made.warden.wait()
        kill_until_none(lambda: descendants([os.getpid()], process_table()), 5.0, reap)
        for radio in made.radios:
            radio.close()


@pytest.mark.serial
def test_a_life_from_hello_to_goodbye(node: Node):
    hello = node.next(Hello)
    assert (hello.node, hello.job, hello.attempt, hello.ranks, hello.slots_count) == ("n0", "job", -1, (), 2)
    assert hello.peer.endpoint.startswith("tcp://127.0.0.1:")
    assert node.next(Beat).empty
    assert node.ask(CheckNode).ok
    ranks = node.launch(0)
    assert len(ranks) == 2
    beat = node.next(Beat)
    while len(beat.readings) < 2:
        beat = node.next(Beat)
    assert not beat.empty
    stacks = node.ask(Stacks, 0).answer
    assert isinstance(stacks, StacksAnswer) and stacks.stacks[0].rank == 0

    node.next(Beat)  # the next one is due in a second
    killed_at = node.clock.now()
    os.kill(ranks[1], signal.SIGKILL)
    event = node.next(AgentEvent)
    seen_after_s = node.clock.now() - killed_at
    assert (event.kind, event.data["exit"]["signal"], event.data["exit"]["rank"]) == ("RankExited", 9, 1)
    assert seen_after_s < 0.7, f"a rank's death was heard of after {seen_after_s:.3f} s"

    stopped = node.ask(Stop, 0, 5.0, False, 0.0, "test")
    assert stopped.ok, stopped.why
    assert not any(lives(pid) for pid in ranks)
    again = node.ask(Launch, 0, 2, 0, 1, (0, 1), (0, 1), "127.0.0.1", 29999, ("n0",))
    assert not again.ok
    assert node.ask(Farewell, 7, "the test is over").ok
    assert node.warden.wait(100) == 7


def test_farewell_stops_what_runs(node: Node):
    node.next(Hello)
    ranks = node.launch(0)
    assert node.ask(Farewell, 0, "over").ok
    assert node.warden.wait(100) == 0
    assert not any(lives(pid) for pid in ranks)


@pytest.mark.serial  # the same signal within seconds is an echo
def test_a_signal_to_agent_and_warden_is_one_event(node: Node):
    node.next(Beat)
    node.ask(CheckNode)
    os.kill(node.agent, signal.SIGTERM)
    node.warden.send_signal(signal.SIGTERM)
    event = node.next(AgentEvent)
    assert (event.kind, event.seq) == ("Notice", 1)
    node.ask(CheckNode)
    node.ask(CheckNode)
    assert node.ask(Farewell, 143, "told to").ok
    assert node.warden.wait(100) == 143


@pytest.mark.serial
def test_a_signal_to_every_process_is_one_notice_and_all_live_until_the_stop(node: Node):
    node.next(Hello)
    ranks = node.launch(0)
    until(lambda: log_of(node).count("up") == 2, 20, "both scripts to run")
    below = [p.pid for p in descendants([node.warden.pid], process_table())]
    family = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (node.warden.pid, *below)}
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGCONT, signal.SIGTERM, signal.SIGTERM):
        for pid in family:
            os.kill(pid, number)
    event = node.next(AgentEvent)
    assert (event.kind, event.seq) == ("Notice", 1)
    assert node.ask(CheckNode).ok
    assert not {pid: said for pid, said in family.items() if not lives(pid)}
    assert node.ask(Stop, 0, 30.0, False, 0.0, "test").ok
    assert not any(map(lives, ranks))
    told = [node.next(AgentEvent) for _ in range(2)]
    assert {(event.kind, event.data["exit"]["by_us"]) for event in told} == {("RankExited", True)}
    assert lives(node.agent)


def log_of(node: Node) -> str:
    path = node.paths.root / "logs" / "0" / "n0.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("node", [PATIENT], indirect=True)
def test_a_silent_supervisor_is_replaced_and_ranks_run_on(node: Node):
    node.next(Hello)
    ranks = node.launch(0)
    node.acking = False

    def asked_for() -> list[str]:
        node.pump(0.05)
        path = node.folder / "supervisor"
        return path.read_text().split() if path.exists() else []

    words = until(asked_for, 10, "the warden was asked for a supervisor")
    assert words[:2] == ["--term-min", "2"]
    assert '["n0"]' in words
    node.lead()
    node.acking = True
    node.heard.clear()
    hello = node.next(Hello)
    assert (hello.term_max, hello.attempt, len(hello.ranks)) == (2, 0, 2)
    node.next(Beat)
    assert all(lives(pid) for pid in ranks)
    assert node.ask(Stop, 0, 5.0, False, 0.0, "test").ok


@pytest.mark.parametrize("node", [FAST], indirect=True)
def test_no_acks_no_ranks(node: Node):
    node.next(Hello)
    ranks = node.launch(0)
    node.acking = False

    def dead() -> bool:
        node.pump(0.05)
        return not any(lives(pid) for pid in ranks)

    until(dead, 20, "the lease ends")
    assert node.clock.now() - node.acked_at > FAST.fence_after_s * (1 - 2 * FAST.drift), "and not before"


def test_a_killed_agent_comes_back_empty_and_says_what_became_of_the_last(node: Node):
    node.next(Hello)
    ranks = node.launch(0)
    os.kill(node.agent, signal.SIGKILL)
    hello = node.next(Hello)
    assert (hello.attempt, hello.ranks) == (-1, ())
    assert hello.previous_died == "signal SIGKILL"
    assert not any(lives(pid) for pid in ranks)
    node.next(Beat)
    again = node.ask(Launch, 0, 2, 0, 1, (0, 1), (0, 1), "127.0.0.1", 29999, ("n0",))
    assert (again.ok, again.why) == (False, "attempt 0 was not prepared by this agent")


def test_an_agent_stopped_for_a_while_looks_for_nobody_when_it_wakes(node: Node):
    node.next(Beat)
    os.kill(node.agent, signal.SIGSTOP)
    stopped_at = node.clock.now()
    while node.clock.now() < stopped_at + 8:  # longer than a takeover takes
        node.pump(0.1)
    node.heard.clear()
    os.kill(node.agent, signal.SIGCONT)
    for _ in range(3):
        node.next(Beat)
    assert not (node.folder / "supervisor").exists()


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads, to the nanosecond."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@pytest.mark.serial
def test_an_idle_agent_costs_next_to_nothing(node: Node):
    """Under 60 MB and half a percent of a core, at a beat per second."""
    node.next(Beat)
    node.ask(CheckNode)
    pid = node.agent
    for _ in range(2):
        node.next(Beat)
    before, began = cpu_s(pid), node.clock.now()
    while node.clock.now() < began + 6:
        node.pump(0.2)
    share = (cpu_s(pid) - before) / (node.clock.now() - began)
    proc = read_proc(pid)
    assert proc is not None
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    resident_mb = int(status["VmRSS"].split()[0]) / 1024
    assert resident_mb < 60, f"{resident_mb:.1f} MB"
    assert share < 0.005, f"{100 * share:.2f} % of a core"


def test_what_the_disk_did_not_take_of_the_last_lines_is_said_before_it_leaves(node: Node):
    logs = node.paths.root / "logs" / "0"
    logs.mkdir(parents=True)
    os.mkfifo(logs / "n0.log")  # opening it for writing blocks until somebody reads
    node.next(Hello)
    node.launch(0)
    until(lambda: any(one.output_bytes for one in node.next(Beat).readings), 20, "a line to be printed")
    assert node.ask(Farewell, 0, "over").ok
    assert node.warden.wait(100) == 0
    assert "the last lines are missing in the logs" in node.said()


def test_an_agent_has_left_before_the_owner_of_its_run_kills_what_is_left():
    leaves_within_s = FAREWELL_S + ENDED_WITHIN_S + LOGS_CLOSE_AT_END_S
    assert leaves_within_s < min(local.LETS_GO_WITHIN_S, slurm_job_owner.LETS_GO_WITHIN_S)
