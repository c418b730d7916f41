"""The warden as a real process: what lives and what dies when its agent, its launcher, its lease or itself ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused
from gangrun.core.policy import Timing
from gangrun.core.protocol.lease import warden_must_kill
from gangrun.node import lease, warden
from gangrun.node.processes import become_subreaper, boottime_ns, descendants, kill_until_none, process_table
from gangrun.node.speech import LogWriter
from tests.faults.disk import FreezableDisk
from tests.local_parts.gang import ROOT, STRAY, boottime, lives, number_in, reap
from tests.waiting import stays, until

SCRIPT = STRAY + "stray(f'stray-{os.environ[\"GANGRUN_ATTEMPT\"]}')\ntime.sleep(600)\n"
SUPERVISOR = (
    "import sys, pathlib, os, time; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:])); time.sleep(600)"
)


class Node:
    """A warden with a stand-in agent, one rank, and a daemon that the rank left behind."""

    def __init__(self, directory: Path, lease_s: float, log_in: Path | None = None, **spec: Any) -> None:
        self.directory = directory
        (directory / "script.py").write_text(SCRIPT)
        self.agent_argv = [
            sys.executable,
            str(Path(__file__).with_name("agent_stand_in.py")),
            str(directory),
            str(lease_s),
        ]
        life_read, self.life_write = os.pipe()
        supervisor = [sys.executable, "-c", SUPERVISOR, str(directory / "supervisor")]
        fields = {
            "agent": self.agent_argv,
            "supervisor": supervisor,
            "node": "n0",
            "lease_s": lease_s,
            "agent_start_s": 20,
        }
        command = warden.argv(sys.executable, {**fields, "life_fd": life_read, **spec})
        environ = {**os.environ, "PYTHONPATH": ROOT}
        self.log = (log_in or directory) / "warden.err"
        with self.log.open("wb") as err:
            self.warden = subprocess.Popen(command, pass_fds=[life_read], env=environ, stderr=err)
        os.close(life_read)

    def said(self) -> str:
        return self.log.read_text()

    def agent(self, incarnation: int = 0, within_s: float = 15) -> dict[str, int]:
        """Pids of an incarnation: agent, rank, and the rank's stray."""
        path = self.directory / f"agent-{incarnation}.json"
        until(path.exists, within_s, lambda: f"agent {incarnation}: {self.said()}")
        pids: dict[str, int] = json.loads(path.read_text())
        pids["stray"] = until(lambda: number_in(self.directory / f"stray-{incarnation}"), 10, "the stray")
        return pids

    def ops(self, op: str) -> list[dict[str, Any]]:
        path = self.directory / "ops.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [message for message in map(json.loads, lines) if message["op"] == op]

    def touch(self, name: str) -> None:
        (self.directory / name).touch()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Any]:
    become_subreaper()
    made: list[Node] = []

    def make(lease_s: float = 30.0, **spec: Any) -> Node:
        made.append(Node(tmp_path, lease_s, **spec))
        return made[-1]

    yield make
    for node in made:
        os.close(node.life_write)
        node.warden.kill()
        node.warden.wait()
    kill_until_none(lambda: descendants([os.getpid()], process_table()), 5, reap)


def gone(*pids: int) -> bool:
    return not any(map(lives, pids))


def test_agent_killed_ranks_and_strays_die_and_a_new_agent_starts(nodes: Any) -> None:
    node = nodes()
    first = node.agent()
    os.kill(first["agent"], signal.SIGKILL)
    until(lambda: gone(first["rank"], first["stray"]), 2, "ranks to die with their agent")
    second = node.agent(1)
    assert lives(second["rank"])
    hello = until(lambda: node.ops("hello")[1:], 5, "the second hello")[0]
    assert (hello["previous_died"], hello["leftovers"], hello["incarnation"]) == ("signal SIGKILL", [], 1)


def test_the_next_agent_is_told_which_error_ended_the_one_before_it(nodes: Any) -> None:
    node = nodes()
    node.agent()
    node.touch("raise-first")
    node.agent(1)
    hello = until(lambda: node.ops("hello")[1:], 5, "the second hello")[0]
    assert hello["previous_died"] == "exit code 1: MemoryError: no page is left"
    assert "the agent died (exit code 1: MemoryError: no page is left)" in node.said()


def test_warden_killed_agent_and_ranks_die(nodes: Any) -> None:
    node = nodes()
    first = node.agent()
    node.warden.kill()
    until(lambda: gone(first["agent"], first["rank"]), 2, "all to die with the warden")
    kill_until_none(lambda: descendants([os.getpid()], process_table()), 2, reap)  # the launcher's part, as a subreaper
    assert gone(first["stray"])


@pytest.mark.serial
def test_the_lease_ends_all_ranks_but_not_the_agent(nodes: Any) -> None:
    node = nodes(lease_s=1.5)
    first = node.agent()
    started = boottime()
    node.touch("no-renew")
    until(lambda: gone(first["rank"], first["stray"]), 4, "ranks to die at the deadline")
    assert 0.5 < boottime() - started < 1.5 + 1 + 0.25 + 0.5
    until(lambda: node.ops("lease_expired"), 3, "the agent to be told")
    assert lives(first["agent"])
    assert "the lease has ended" in node.said()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FreezableDisk]:
    made = FreezableDisk(tmp_path / "disk")
    yield made
    made.close()


@pytest.mark.root
def test_the_fence_does_not_wait_for_the_disk_of_its_log(nodes: Any, disk: FreezableDisk) -> None:
    """All that is said goes to a file system that is frozen: the lease ends all ranks, and the warden itself ends."""
    node = nodes(lease_s=3.0, log_in=disk.folder, writes_log=True)
    first = node.agent()
    until(lambda: "speaks" in node.said(), 5, "the agent's words to reach the log")
    disk.freeze()
    node.touch("speak")  # much: the pipe is full long before the thaw
    node.touch("no-renew")
    until(lambda: gone(first["rank"], first["stray"]), 3 + 1 + 0.25 + 2, "ranks to die at the deadline")
    assert until(lambda: node.ops("lease_expired"), 3, "the agent to be told")[0]["leftovers"] == []
    assert lives(first["agent"]), "it waits for no disk either"
    disk.thaw()
    until(lambda: "lines were lost here: nobody could take them" in node.said(), 5, "what is missing to be said")
    disk.freeze()
    node.touch("bye")
    assert node.warden.wait(timeout=warden.KILL_WITHIN_S + warden.LAST_WORDS_WITHIN_S + 5) == 0
    disk.thaw()


@pytest.mark.root
def test_lines_for_people_and_lines_that_the_log_refuses_go_to_the_launcher(tmp_path: Path) -> None:
    """A log of one page, a pipe of one page that is read late; then a launcher that is gone."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder], check=True)
    try:
        code = "from gangrun.node.speech import LogWriter; import os, sys\nwriter = LogWriter((), int(sys.argv[1]))\n"
        code += "writer.start()\nfor line in sys.stdin.buffer: os.write(2, line)\nwriter.finish(); os.wait()"
        read, write = os.pipe()
        with (folder / "log").open("ab") as log:
            words = [sys.executable, "-c", code, str(write)]
            environ = {**os.environ, "PYTHONPATH": ROOT}
            speaker = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=log, pass_fds=[write], env=environ)
        os.close(write)
        heard = os.fdopen(read, "rb")
        assert speaker.stdin is not None

        def say(*lines: str) -> None:
            speaker.stdin.write("".join(f"{line}\n" for line in lines).encode())  # type: ignore[union-attr]
            speaker.stdin.flush()  # type: ignore[union-attr]

        say("[n0:agent] plain", "[>] [n0:rank0] step 7", "[n0:agent!] the disk is full", "[-] 0 n0 9 bytes")
        expected = ["[>] [n0:rank0] step 7", "[n0:agent!] the disk is full", "[-] 0 n0 9 bytes"]
        assert [heard.readline().decode().rstrip() for _ in expected] == expected
        until(lambda: "the disk is full" in (folder / "log").read_text(), 5, "the log to have it too")
        assert (folder / "log").read_text() == "[n0:agent] plain\n[n0:agent!] the disk is full\n"
        say("[n0:agent] " + "x" * 3000, "[n0:agent] " + "y" * 3000)
        assert "[n0:agent] " in heard.readline().decode(), "what the log did not take"
        heard.close()
        say("[n0:agent] " + "z" * 3000)
        speaker.stdin.close()
        assert speaker.wait(20) == 0
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("pid_of", ["keeper", "log writer"])
def test_who_serves_the_node_is_started_again(nodes: Any, pid_of: str) -> None:
    """The memory keeper under its name, the log writer at its pipe; and neither is taken for what a rank left."""
    node = nodes(memory_bytes=1 << 20, writes_log=True)
    first = node.agent()
    hello = until(lambda: node.ops("hello"), 5, "the hello")[0]
    assert len(hello["own_pids"]) == 2
    keeper, writer = hello["own_pids"]
    os.kill(keeper if pid_of == "keeper" else writer, signal.SIGKILL)
    now = until(lambda: node.ops("own_pids"), 5, "the agent to be told")[0]["pids"]
    assert len(now) == 2
    assert now != [keeper, writer]
    assert all(map(lives, [*now, first["rank"]]))
    if pid_of == "keeper":
        environ = Path(f"/proc/{first['agent']}/environ").read_text().split("\0")
        name = next(pair.partition("=")[2] for pair in environ if pair.startswith(warden.ENV_MEMORY + "="))
        client = until(lambda: met(name), 5, "the new keeper to answer")
        assert client.held(0) == ()
        client.close()
        until(lambda: "an empty keeper was started in its place" in node.said(), 5, "it to be said")
    os.kill(first["agent"], signal.SIGKILL)  # its ranks die, what serves the node does not
    node.agent(1)
    assert all(map(lives, now))
    until(lambda: "the agent died" in node.said(), 5, "the log to be written on")


@pytest.mark.parametrize("what", ["keeper", "log writer"])
def test_where_no_process_can_be_made_the_node_goes_on_without(
    what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = warden.Warden({"agent": [], "node": "n0", "memory_bytes": 1 << 20})
    with subprocess.Popen(["true"]) as child:
        if what == "keeper":
            made._keeper = child.pid
        else:
            made._writer = object.__new__(LogWriter)
            made._writer.pid = child.pid

        def no_fork() -> int:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(os, "fork", no_fork)

        def is_reaped() -> bool:
            made._reap()
            return not made._own_pids()

        until(is_reaped, 5, "the end of it")
    assert f"the {what} cannot be started (Resource temporarily unavailable)" in capfd.readouterr().err


def no_process_can_be_made(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """For so many forks; the next ones work."""
    forks, left = os.fork, [times]

    def fork() -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return forks()

    monkeypatch.setattr(os, "fork", fork)


def test_where_no_supervisor_can_be_made_the_agent_hears_of_it_and_ranks_live_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = warden.Warden({"agent": [], "node": "n0", "supervisor": ["true"]})
    made._link, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agents.setblocking(False)
    no_process_can_be_made(monkeypatch, 1)
    made._start_supervisor({"term_min": 3, "promises": []})
    (told,) = warden.receive(agents)[:1]
    assert told == {
        "op": "supervisor_refused", "why": "no process can be made: Resource temporarily unavailable", "term": 3,
    }  # fmt: skip
    assert not made._supervisors
    made._link.close()
    agents.close()


def test_an_agent_is_tried_again_while_its_link_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    socketpair, left = socket.socketpair, [3]

    def refused(*how: int) -> tuple[socket.socket, socket.socket]:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socketpair(*how)

    monkeypatch.setattr(socket, "socketpair", refused)
    made = warden.Warden({"agent": ["true"], "node": "n0"})
    assert made._start_agent("")
    os.waitpid(made._agent, 0)
    assert made._link is not None
    made._link.close()
    assert capfd.readouterr().err.count("the agent cannot be started (Too many open files): trying again") == 3


@pytest.mark.parametrize(("times", "starts"), [(3, True), (float("inf"), False)])
def test_an_agent_is_tried_again_while_no_process_can_be_made(
    times: float, starts: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warden, "AGENT_WITHIN_S", 60.0 if starts else 0.5)
    made = warden.Warden({"agent": ["true"], "node": "n0"})
    no_process_can_be_made(monkeypatch, times)
    assert made._start_agent("") is starts
    if made._link is not None:
        os.waitpid(made._agent, 0)
        made._link.close()
    assert "the agent cannot be started (Resource temporarily unavailable): trying again" in capfd.readouterr().err


def test_a_keeper_that_cannot_live_is_given_up(nodes: Any) -> None:
    node = nodes(memory_bytes=1 << 20, restarts_max_count=2)
    node.agent()
    (keeper,) = until(lambda: node.ops("hello"), 5, "the hello")[0]["own_pids"]
    for count in (1, 2):
        os.kill(keeper, signal.SIGKILL)
        (keeper,) = until(lambda: node.ops("own_pids")[count - 1 :], 5, "the next keeper")[0]["pids"]  # noqa: B023
    os.kill(keeper, signal.SIGKILL)
    until(lambda: "3 keepers died within 60 s: giving up" in node.said(), 5, node.said)


def met(name: str) -> KeeperClient | None:
    try:
        return KeeperClient(name)
    except KeeperRefused:
        return None


def test_a_stopped_agent_loses_its_ranks_and_is_replaced(nodes: Any) -> None:
    node = nodes(lease_s=5.0)
    first = node.agent()
    os.kill(first["agent"], signal.SIGSTOP)
    until(lambda: gone(first["rank"], first["stray"], first["agent"]), 5, "the lease to end")
    assert node.agent(1)["agent"] != first["agent"]


def test_a_warden_that_was_paused_lets_the_agent_renew_first(nodes: Any) -> None:
    node = nodes(lease_s=6.0)
    first = node.agent()
    for pid in (first["agent"], node.warden.pid):
        os.kill(pid, signal.SIGSTOP)
    paused_at = boottime()
    until(lambda: boottime() > paused_at + 6.6, 10, "the lease to run out for both")
    for pid in (node.warden.pid, first["agent"]):
        os.kill(pid, signal.SIGCONT)
    stays(lambda: lives(first["rank"]), 1.0, "the rank of an agent that renewed")
    assert "the lease has ended" not in node.said()


def test_the_wardens_rule_is_cores() -> None:
    timing = Timing()
    for deadline in (10.0, 50.0):
        for now in (9.0, 10.0, 30.0, 50.0, 60.0):
            for woke in (now - 0.25, now - 9.9, now - 10.1, now - 40.0):
                for granted in (False, True):
                    rule = warden_must_kill(deadline, now, woke, timing, granted)
                    ours = lease.must_kill(deadline, now, woke, timing.fence_after_s, granted=granted)
                    assert ours == (rule.kill, rule.deadline, rule.granted)


def test_a_supervisor_is_started_reported_and_outlives_an_agent(nodes: Any) -> None:
    node = nodes()
    node.touch("spawn")
    first = node.agent()
    pid = until(lambda: node.ops("supervisor_started"), 5, "the supervisor")[0]["pid"]
    words = until(
        lambda: (node.directory / "supervisor").exists() and (node.directory / "supervisor").read_text(), 5, "it"
    )
    assert words == '--term-min 4 --promises ["n0", "n1"]'
    os.kill(first["agent"], signal.SIGKILL)
    node.agent(1)
    assert lives(pid)
    assert until(lambda: node.ops("hello")[1:], 5, "the second hello")[0]["supervisor_pids"] == [pid]
    assert "one runs" in until(lambda: node.ops("supervisor_refused"), 5, "a refusal of the second")[0]["why"]
    os.kill(pid, signal.SIGKILL)
    exited = until(lambda: node.ops("supervisor_exited"), 2, "its exit to be told")[0]
    assert (exited["code"], exited["term"], exited["pid"]) == (-9, 4, pid)


def test_the_launchers_death_ends_everything(nodes: Any) -> None:
    node = nodes()
    first = node.agent()
    os.close(node.life_write)
    assert node.warden.wait(timeout=100) == warden.EXIT_LIFE_LINE_LOST
    assert gone(first["agent"], first["rank"], first["stray"])
    node.life_write = os.open("/dev/null", os.O_RDONLY)


@pytest.mark.serial  # the same signal within seconds is an echo
def test_sigterm_is_handed_on_and_a_second_one_kills(nodes: Any) -> None:
    node = nodes()
    first = node.agent()
    node.warden.terminate()
    assert until(lambda: node.ops("terminate"), 3, "the agent to be told")[0]["signal"] == signal.SIGTERM
    assert lives(first["rank"])
    node.warden.terminate()  # the echo of the first: a scheduler sends to the step's processes, and through srun
    stays(lambda: lives(first["rank"]), 0.3, "the rank after an echo")
    until(lambda: node.warden.poll() is not None or node.warden.terminate(), 5, "a second one that is meant")
    assert node.warden.wait(timeout=100) == 128 + signal.SIGTERM
    assert gone(first["agent"], first["rank"], first["stray"])


def test_signals_to_all_of_a_step_end_neither_agent_nor_supervisor(nodes: Any) -> None:
    node = nodes()
    node.touch("spawn")
    agent = node.agent()["agent"]
    supervisor = until(lambda: node.ops("supervisor_started"), 5, "the supervisor")[0]["pid"]
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGCONT):
        for pid in (node.warden.pid, agent, supervisor):
            os.kill(pid, number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(supervisor, number)
    stays(lambda: not gone(agent, supervisor) and node.warden.poll() is None, 0.5, "all three")
    assert not node.ops("supervisor_exited")


def test_goodbye_ends_with_its_code_and_leaves_nothing(nodes: Any) -> None:
    node = nodes()
    first = node.agent()
    node.touch("bye")
    assert node.warden.wait(timeout=100) == 0
    assert gone(first["agent"], first["rank"], first["stray"])


def test_an_agent_that_cannot_live_is_given_up(nodes: Any) -> None:
    node = nodes(restarts_max_count=2)
    node.touch("die")
    assert node.warden.wait(timeout=200) == warden.EXIT_AGENT_LOST
    assert "3 agents died within 60 s: giving up" in node.said()


def test_an_agent_that_never_speaks_is_replaced(nodes: Any, tmp_path: Path) -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    node = nodes(agent=silent, agent_start_s=0.5, restarts_max_count=1)
    assert node.warden.wait(timeout=100) == warden.EXIT_AGENT_LOST
    assert "gave no sign of life" in node.said()


@pytest.mark.serial
def test_a_warden_is_small_and_idle(nodes: Any) -> None:
    node = nodes()
    node.agent()
    status = Path(f"/proc/{node.warden.pid}/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident_kib < 20 * 1024
    before, at = cpu_ticks(node.warden.pid), boottime_ns()
    until(lambda: boottime_ns() - at > 2e9, 4, "two seconds of idling")
    assert cpu_ticks(node.warden.pid) - before <= 2


def cpu_ticks(pid: int) -> int:
    return process_table()[pid].cpu_ticks
