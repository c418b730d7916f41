"""A machine room on one machine: hosts made of namespaces, on a switch that can be cut. Needs root; knows no Slurm.

The room is a process with a PID and a network namespace of its own, in which the switch lies. Each host lives inside
it and has its own PID, network, mount, UTS and IPC namespace, its own /tmp and /dev/shm. The room ends when the pipe
that its maker holds is closed, however the maker ended, and takes every host, process, link and mount with it: only
files stay. Next: ``cluster``, which runs Slurm on these hosts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.slurm import reach
from tests.waiting import PATIENCE, until

NETWORK = "10.231.0"  # seen by nobody outside the room
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
ROOM = "ip link add sw0 type bridge forward_delay 0 && ip link set sw0 up && echo ready && read -r _"
STARTS_WITHIN_S = 20.0

# Its first process: waits for its link, starts its daemon, and then only buries what dies on it.
HOST = """set -eu
name=$1; log=$2; shift 2
{mounts}
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
{more}
hostname "$name"
echo up
read -r _
if [ $# -gt 0 ]; then "$@" </dev/null >>"$log" 2>&1 & fi
exec >/dev/null 2>&1
sleep infinity &
while :; do wait || true; done
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of some host, as seen from outside."""

    pid: int
    uid: int
    state: str  # as in /proc: R, S, D, T, Z
    command: str  # its words, joined by blanks


@dataclass(slots=True)
class Host:
    """One host, on or off."""

    name: str
    address: str
    daemon: tuple[str, ...]
    maker: subprocess.Popen[str] | None = None
    first: int = 0  # its process 1, as seen from outside
    space: str = ""  # its PID namespace


def tell(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Room:
    """Hosts by name. ``base`` is the one folder that all of them share with the maker."""

    def __init__(self, base: Path, more_mounts: Sequence[str] = ()) -> None:
        self.base = base
        self.hosts: dict[str, Host] = {}
        script = HOST.format(mounts="\n".join(reach.mounts(base)), more="\n".join(more_mounts))
        (base / "host.sh").write_text(script)
        self._room = self._spawn(["unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", ROOM])
        self._heard(self._room, "ready")
        self._first = self._first_of(self._room)

    # ---- power ----

    def add(self, name: str, *daemon: str) -> None:
        """A new host, switched on by ``start``."""
        self.hosts[name] = Host(name, f"{NETWORK}.{10 + len(self.hosts)}", daemon)

    def start(self, *names: str) -> None:
        """Switch hosts on that are off, at once."""
        hosts = [self.hosts[name] for name in names]
        for host in hosts:
            log = self.base / "log" / f"{host.name}.out"
            host.maker = self._spawn(
                ["nsenter", f"--target={self._first}", "--pid", "--", "unshare", *NAMESPACES, "--fork", "--kill-child",
                 "--mount-proc", "bash", str(self.base / "host.sh"), host.name, str(log), *host.daemon]
            )  # fmt: skip
        for host in hosts:
            assert host.maker is not None
            assert host.maker.stdin is not None
            self._heard(host.maker, "up")
            host.first = self._first_of(host.maker)
            host.space = os.readlink(f"/proc/{host.first}/ns/pid")
            self._switch(f"link add {host.name} type veth peer name eth0 netns {host.first}")
            self._switch(f"link set {host.name} master sw0 up")
            last = int(host.address.rpartition(".")[2])
            card = f"link set eth0 address 02:00:00:00:00:{last:02x}"  # the same after a restart, as a real one's
            for words in ("link set lo up", card, f"addr add {host.address}/24 dev eth0", "link set eth0 up"):
                self._in(host, "ip", *words.split())
            host.maker.stdin.write("go\n")
            host.maker.stdin.flush()

    def power_off(self, name: str) -> None:
        """All of a host is gone at once, and no farewell of a socket gets out."""
        host = self.hosts[name]
        if host.maker is None:
            return
        self._switch(f"link set {name} down")
        tell(host.first, signal.SIGKILL)
        self._bury(host.maker)
        host.maker, host.first, host.space = None, 0, ""
        self._switch(f"link del {name}", check=False)

    def is_on(self, name: str) -> bool:
        return self.hosts[name].maker is not None

    def close(self) -> None:
        """Everything, at once."""
        assert self._room.stdin is not None
        self._room.stdin.close()
        self._bury(self._room)
        for host in self.hosts.values():
            if host.maker is not None:
                self._bury(host.maker)

    # ---- the network ----

    def cut_one_way(self, name: str, direction: str) -> None:
        """``in``: the host hears nobody. ``out``: nobody hears the host."""
        drop = "qdisc replace dev {} root pfifo limit 0"  # a queue that holds nothing: kernels have it without modules
        match direction:
            case "in":
                self._tc(drop.format(name))
            case "out":
                self._in(self.hosts[name], "tc", *drop.format("eth0").split())
            case _:
                raise ValueError(f"direction is 'in' or 'out', not {direction!r}")

    def part(self, name: str, other: str) -> None:
        """The two do not reach each other; all others reach both."""
        for one, far in ((name, other), (other, name)):
            if self.is_on(one):
                route = ("ip", "route", "replace", "blackhole", f"{self.hosts[far].address}/32")
                self._in(self.hosts[one], *route)

    def throttle(self, name: str, rate: str) -> None:
        """Both ways of its cable carry no more than this (``4mbit``), by a token bucket."""
        words = f"qdisc replace dev {{}} root tbf rate {rate} burst 16kb latency 400ms"
        self._tc(words.format(name))
        self._in(self.hosts[name], "tc", *words.format("eth0").split())

    def heal(self, name: str) -> None:
        """As if nothing had been cut."""
        if not self.is_on(name):
            return
        self._switch(f"link set {name} up")
        self._tc(f"qdisc del dev {name} root", check=False)
        self._in(self.hosts[name], "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        self._in(self.hosts[name], "ip", "route", "flush", "type", "blackhole", check=False)

    # ---- processes ----

    def processes(self, name: str) -> list[Process]:
        """Everything that lives on a host, stopped or not; what is dead and not yet buried is left out."""
        space = self.hosts[name].space
        found = []
        for entry in Path("/proc").iterdir():
            if not space or not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "pid") == space and (process := look(entry)).state not in "ZX":
                    found.append(process)
        return sorted(found, key=lambda one: one.pid)

    def stall(self, name: str) -> None:
        """Stop every process of a host, the ones that are born meanwhile too."""

        def stopped() -> bool:
            goes_on = [one for one in self.processes(name) if one.state not in "Tt"]
            for one in goes_on:
                tell(one.pid, signal.SIGSTOP)
            return not goes_on

        until(stopped, 10, f"every process of {name} is stopped")

    def resume(self, name: str) -> None:
        """Let them go on."""
        for one in self.processes(name):
            tell(one.pid, signal.SIGCONT)

    # ---- commands ----

    def enter(self, name: str) -> list[str]:
        """The beginning of an argv that runs the rest of it on a host, as root."""
        assert self.is_on(name), f"{name} is off"
        return ["nsenter", f"--target={self.hosts[name].first}", *NAMESPACES, "--"]

    def run(
        self, name: str, *argv: str, within_s: float = 20.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command on a host, as root, to its end."""
        return self._in(self.hosts[name], *argv, within_s=within_s, check=check)

    def _in(
        self, host: Host, *argv: str, within_s: float = 20.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self._run([*self.enter(host.name), *argv], within_s, check)

    def _switch(self, words: str, check: bool = True) -> None:
        self._run(["nsenter", f"--target={self._first}", "--net", "--", "ip", *words.split()], 20.0, check)

    def _tc(self, words: str, check: bool = True) -> None:
        self._run(["nsenter", f"--target={self._first}", "--net", "--", "tc", *words.split()], 20.0, check)

    @staticmethod
    def _run(argv: Sequence[str], within_s: float, check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s * PATIENCE,
            check=False,
            cwd="/",
        )
        assert not check or done.returncode == 0, f"{shlex.join(argv)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    # ---- the first processes ----

    def _spawn(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """With an open pipe, in a session of its own."""
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        with (self.base / "log" / "room.err").open("ab") as err:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd="/",
                env={**path, **(environment or {})}, start_new_session=True,
                umask=0o022,
            )  # fmt: skip

    def _heard(self, maker: subprocess.Popen[str], word: str) -> None:
        assert maker.stdout is not None
        os.set_blocking(maker.stdout.fileno(), False)
        pipe, heard = maker.stdout.fileno(), bytearray()
        os.set_blocking(pipe, False)

        def listen() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.extend(os.read(pipe, 1000))
            return word.encode() in heard or maker.poll() is not None

        until(listen, STARTS_WITHIN_S, self.told)
        assert word.encode() in heard, self.told()

    @staticmethod
    def _bury(maker: subprocess.Popen[str]) -> None:
        """Its end, and its pipes'."""
        assert maker.stdin is not None
        assert maker.stdout is not None
        with contextlib.suppress(OSError):
            maker.stdin.close()
        maker.stdout.close()
        maker.wait(100)

    def _first_of(self, maker: subprocess.Popen[str]) -> int:
        """The process 1 that ``maker`` has made, below it: it waits for a word, so it lives."""
        return until(lambda: next(first_below(maker.pid), 0), STARTS_WITHIN_S, self.told)

    def told(self) -> str:
        """What could not be said otherwise."""
        return f"the machine room: {(self.base / 'log' / 'room.err').read_text(errors='replace')[-2000:]}"


def look(entry: Path) -> Process:
    """One process by its folder in /proc."""
    fields = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
    words = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return Process(int(entry.name), int(fields["Uid"].split()[0]), fields["State"].split()[0], words)


def first_below(pid: int) -> Iterator[int]:
    """Descendants of ``pid`` that are the first process of a PID namespace that it made."""
    parents: dict[int, list[int]] = {}
    numbers: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
                parents.setdefault(int(fields["PPid"]), []).append(int(entry.name))
                numbers[int(entry.name)] = fields["NSpid"].split()
    below = list(parents.get(pid, ()))
    for one in below:
        below += parents.get(one, ())
        if numbers[one][-1] == "1":
            yield one
