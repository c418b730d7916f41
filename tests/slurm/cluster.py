"""A real Slurm cluster on one machine: a controller, six nodes and a login host, and every way of breaking them.

Real slurmctld, slurmd and munged (Debian: slurm-wlm slurm-wlm-basic-plugins munge); needs root. Commands run as an
ordinary user who exists on these hosts only. Several clones may each have a cluster at the same time. Nothing outside
of one folder under /tmp is touched, and when the maker dies, however it dies, all but that folder goes with it; the
next start removes what such a one left. ``room`` has the hosts, ``site`` the configuration.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from gangrun.node.processes import read_proc
from tests.slurm import reach
from tests.slurm.place import PATH, free_uid, leave_place, missing, take_place
from tests.slurm.room import Process, Room, tell
from tests.slurm.site import NODES, USER, Site, for_everybody
from tests.waiting import PATIENCE, until

FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:_]*)=(.*?)(?=\s[A-Z][A-Za-z/:_]*=|\s*$)", re.DOTALL)
NO_SRUN = r"^(?!\S*srun |.*/slurm_script)"
NOISE = re.compile(r"PMIx|mpi/pmix|part_data_create|No parameter for mcs|mcs: MCS|SchedulerParameters=")
LEFT = ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE")


class Cluster:
    """Six nodes n1 to n6, ``ctl`` (slurmctld), ``login`` (the user's commands) and ``auth`` (munged)."""

    def __init__(self) -> None:
        if absent := missing():
            raise AssertionError(f"a test cluster needs {', '.join(absent)}; `make system` installs them")
        base, self._lock = take_place()
        self.site = Site(base, free_uid())
        self.base, self.home, self.control = base, self.site.home, self.site.control
        self.names = NODES
        self._changed: dict[str, str] = {}
        self._stalled: set[str] = set()
        self._hidden: list[tuple[str, str]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._shaken = False  # hosts were off, cut or stopped since a job ran on all of them
        self.site.lay_out()
        self.room = Room(base, self.site.mounts())
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        base, conf, room = self.base, str(self.site.conf), self.room
        munge = {
            "--socket": "socket",
            "--key-file": "key",
            "--pid-file": "pid",
            "--log-file": "log",
            "--seed-file": "seed",
        }
        words = [f"{option}={base}/munge/{name}" for option, name in munge.items()]
        room.add("auth", "munged", "--foreground", "--force", *words)
        room.add("ctl", "env", f"SLURM_CONF={conf}", "slurmctld", "-D", "-f", conf, "-L", f"{base}/log/slurmctld.log")
        room.add("login")
        for name in NODES:
            daemon = ("slurmd", "-D", "-N", name, "-f", conf, "-L", f"{base}/log/slurmd-{name}.log")
            room.add(name, "env", f"SLURM_CONF={conf}", *daemon)
        self.site.configure({host.name: host.address for host in room.hosts.values()}, {})
        room.start("auth")
        until((base / "munge" / "socket").exists, 20, self.told)
        room.start("ctl", "login", *NODES)
        self.wait_idle(deadline_s=40)
        done = self.user_run([reach.PYTHON, "-c", "import gangrun"], check=False)
        assert done.returncode == 0, f"the cluster's user cannot run gangrun: {done.stderr}"

    def close(self) -> None:
        """Nothing of it stays."""
        self.room.close()
        for one in self._started:
            one.wait(100)
        leave_place(self.base, self._lock)

    # ---- the user ----

    def folder(self, name: str) -> Path:
        """A new folder of the user's, which every host has."""
        path = self.home / name
        with for_everybody():
            path.mkdir(parents=True)
        os.chown(path, self.site.uid, self.site.uid)
        return path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the user's commands see."""
        own = {
            "HOME": str(self.home),
            "USER": USER,
            "LOGNAME": USER,
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "GANGRUN_NO_HEALTH": "1",  # in each process's start; the tests of it turn it on
        }
        return {**own, "SLURM_CONF": str(self.site.conf), **(more or {})}

    def _as_user(self, argv: Sequence[str | Path], cwd: str | Path | None, host: str) -> list[str]:
        ordinary = ["setpriv", f"--reuid={self.site.uid}", f"--regid={self.site.uid}", "--clear-groups",
                    "--inh-caps=-all", "--pdeathsig=KILL", "--", "env", f"--chdir={cwd or self.home}"]  # fmt: skip
        return [*self.room.enter(host), *ordinary, *map(str, argv)]

    def user_run(
        self,
        argv: Sequence[str | Path],
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        within_s: float = 60.0,
        host: str = "login",
    ) -> subprocess.CompletedProcess[str]:
        """A command of the ordinary user to its end; ``env`` is added to what ``environment`` says."""
        done = subprocess.run(
            self._as_user(argv, cwd, host), env=self.environment(env), cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=within_s * PATIENCE, check=False, start_new_session=True,
            umask=0o022,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def popen(
        self,
        argv: Sequence[str | Path],
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        host: str = "login",
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """The same in the background; it ends with the cluster at the latest. Its pid is not the command's own."""
        started = subprocess.Popen(
            self._as_user(argv, cwd, host), env=self.environment(env), cwd="/", stdin=subprocess.DEVNULL,
            stdout=stdout, stderr=stderr, start_new_session=True, umask=0o022,
        )  # fmt: skip
        self._started.append(started)
        return started

    def submit(self, script: str, *options: str) -> int:
        """``sbatch`` of a shell script by the user; the job's number."""
        done = self.user_run(["sbatch", "--parsable", *options, f"--wrap={script}"])
        return int(done.stdout.split(";")[0])

    # ---- what Slurm says, asked by root past all wrappers ----

    def tool(self, name: str, *words: str, check: bool = True) -> str:
        """A tool's answer."""
        wrapped = self.base / "real" / name
        program = str(wrapped) if wrapped.exists() else name
        done = self.room.run("login", "env", f"SLURM_CONF={self.site.conf}", program, *words, check=check)
        return done.stdout

    def nodes(self) -> dict[str, str]:
        """Node -> state, in sinfo's long words; a ``*`` at its end means that it does not answer."""
        lines = self.tool("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def squeue(self) -> list[dict[str, str]]:
        """Jobs that are not over."""
        keys = ("id", "state", "nodes", "reason", "partition", "name", "comment")
        form = "--format=%A|%T|%N|%r|%P|%j|%k"
        lines = self.tool("squeue", "--noheader", "--states=all", form).splitlines()
        rows = [dict(zip(keys, line.split("|", len(keys) - 1), strict=True)) for line in lines]
        return [row for row in rows if not row["state"].startswith(LEFT)]

    def job(self, job: int | str) -> dict[str, str]:
        """``scontrol show job``; empty where there is none any more."""
        done = self.tool("scontrol", "--oneliner", "show", "job", str(job), check=False)
        return dict(FIELD.findall(done.strip()))

    def wait_job(self, job: int | str, *states: str, deadline_s: float = 30.0) -> dict[str, str]:
        """Until a job is in one of these states; what is said of it then."""
        return until(
            lambda: found if (found := self.job(job)).get("JobState") in states else {},
            deadline_s, lambda: f"job {job} in {states}, but: {self.job(job)}\n{self.told()}",
        )  # fmt: skip

    def wait_idle(self, *names: str, deadline_s: float = 40.0) -> None:
        """Until these nodes (all, where none is named) wait for work."""
        wanted = set(names or self.names)

        def idle() -> bool:
            with contextlib.suppress(AssertionError):
                return wanted <= {name for name, state in self.nodes().items() if state == "idle"}
            return False

        until(idle, deadline_s, lambda: f"{sorted(wanted)} idle, but: {self.nodes()}\n{self.told()}")

    def ready(self) -> None:
        """Until every node takes work: one that Slurm lately took for silent may be idle and out of use for minutes."""

        def works() -> bool:
            states = self.nodes()
            if any(state != "idle" for state in states.values()):
                self._recall(states)
            elif not self._shaken:
                return True
            else:
                probe = ["timeout", "5", "srun", f"--nodes={len(self.names)}", "true"]
                self._shaken = self.user_run(probe, check=False).returncode != 0
            return False

        until(works, 40, lambda: f"a job on all nodes, but: {self.nodes()}\n{self.told()}")

    def _recall(self, states: Mapping[str, str]) -> None:
        """Nodes that are out of use come back, and Slurm asks them at once."""
        if silent := [name for name, state in states.items() if state.endswith("*")]:
            self.declare_down(*silent)  # or nobody would ask them for minutes
        out = [name for name, state in states.items() if state.startswith(("drain", "down", "fail")) or name in silent]
        if out:
            self.tool("scontrol", "update", f"NodeName={','.join(out)}", "State=RESUME", check=False)

    # ---- breaking nodes ----

    def power_off(self, name: str) -> None:
        """Everything on it is gone; its address is silent."""
        self._shaken = True
        self.room.power_off(name)
        self._stalled.discard(name)
        self._hidden = [one for one in self._hidden if one[0] != name]

    def power_on(self, name: str) -> None:
        """It boots: slurmd runs, and nothing else."""
        self.room.start(name)

    def declare_down(self, *names: str) -> None:
        """What Slurm finds out about a silent node only in minutes. It returns by itself once it answers."""
        self.tool("scontrol", "update", f"NodeName={','.join(names)}", "State=DOWN", "Reason=test")

    def cut_one_way(self, name: str, direction: str) -> None:
        """``in``: it hears nobody; ``out``: nobody hears it."""
        self._shaken = True
        self.room.cut_one_way(name, direction)

    def part(self, name: str, other: str) -> None:
        """The two do not reach each other; all others reach both."""
        self._shaken = True
        self.room.part(name, other)

    def heal(self, name: str) -> None:
        self.room.heal(name)

    def stall(self, name: str) -> None:
        """SIGSTOP to everything on it; its kernel still answers pings."""
        self._shaken = True
        self._stalled.add(name)
        self.room.stall(name)

    def resume(self, name: str) -> None:
        self._stalled.discard(name)
        self.room.resume(name)

    def hide(self, name: str, path: str | Path, options: str = "mode=1777") -> None:
        """An empty folder lies over ``path`` on that host, as where a mount is missing; ``size=256k``: a small disk."""
        self.room.run(name, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
        self._hidden.append((name, str(path)))

    def unhide(self, name: str, path: str | Path) -> None:
        self.room.run(name, "umount", "--lazy", str(path))
        self._hidden.remove((name, str(path)))

    # ---- processes ----

    def processes_on(self, name: str, pattern: str = "") -> list[Process]:
        """Processes of the user on a host whose command line has ``pattern`` (a regular expression)."""
        ours = [one for one in self.room.processes(name) if one.uid == self.site.uid]
        return [one for one in ours if re.search(pattern, one.command)]

    def kill_on(self, name: str, pattern: str, number: int = signal.SIGKILL) -> list[int]:
        """Signal them; which they were. To end, they are stopped first: none sees another one's end (srun has a helper
        that cancels the step if it outlives it).
        """
        pids = [one.pid for one in self.processes_on(name, pattern)]
        for told in (signal.SIGSTOP, number) if number == signal.SIGKILL else (number,):
            for pid in pids:
                tell(pid, told)
        return pids

    def warden_on(self, name: str) -> int:
        """Its pid: the one whose parent is none, as each child of a warden begins as its copy."""

        def found() -> int:
            table = {one.pid for one in self.processes_on(name, r"^(?!\S*srun ).*warden\.py")}
            first = [pid for pid in table if (proc := read_proc(pid)) is not None and proc.parent not in table]
            return first[0] if len(first) == 1 else 0

        return until(found, 20, lambda: f"one warden on {name}: {self.processes_on(name)}")

    # ---- breaking Slurm ----

    def reconfigure(self, **settings: str | int) -> None:
        """Change slurm.conf, everywhere and at once: ``reconfigure(MinJobAge=2)``. Undone by ``reset``."""
        self._changed |= {key: str(value) for key, value in settings.items()}
        self._write_configuration()
        self.tool("scontrol", "reconfigure")

    def _write_configuration(self) -> None:
        self.site.configure({host.name: host.address for host in self.room.hosts.values()}, self._changed)

    def order(self, tool: str, shell: str, times: int | None = None, host: str = "") -> None:
        """What ``tool`` (sbatch, scancel, scontrol, squeue) does when the user or a job calls it, as shell lines.

        ``$real`` is the true tool. For the next ``times`` calls, or for all of them; on one host, or on each.
        """
        name = f"{tool}@{host}" if host else tool
        ahead = len(list(self.control.glob(f"{name}.*")))
        files = [name] if times is None else [f"{name}.{ahead + number:03}" for number in range(times)]
        for file in files:
            (self.control / f".{file}").write_text(shell + "\n")
            (self.control / f".{file}").chmod(0o666)
            (self.control / f".{file}").rename(self.control / file)

    def refuse(self, tool: str, words: str, times: int | None = None, host: str = "") -> None:
        """It fails with these words, and nothing was done."""
        self.order(tool, f"echo {shlex.quote(words)} >&2; exit 1", times, host)

    def hang(self, tool: str, times: int | None = None, host: str = "") -> None:
        """It does nothing and never answers."""
        self.order(tool, "exec sleep infinity", times, host)

    def fail_prolog(self, name: str) -> None:
        """Jobs do not get started on that node, and Slurm drains it."""
        (self.control / f"prolog-fails@{name}").touch()

    def calls(self, tool: str) -> list[tuple[str, str]]:
        """(host, arguments) of each call of a tool by the user and the user's jobs, since the last reset."""
        rows = (line.split("\t", 2) for line in (self.control / "calls").read_text().splitlines())
        return [(row[0], row[2]) for row in rows if len(row) == 3 and row[1] == tool]

    # ---- between tests ----

    def assert_clean(self, deadline_s: float = 0.0) -> None:
        """No job and no process of the user's is left anywhere."""

        def left() -> str:
            alive = {name: self.processes_on(name) for name in self.room.hosts if self.room.is_on(name)}
            told = [f"{name}: {one.pid} {one.command}" for name, found in alive.items() for one in found]
            return "\n".join([*map(str, self.squeue()), *told])

        until(lambda: not left(), deadline_s, lambda: f"left behind:\n{left()}")

    def reset(self) -> None:
        """As it was at the start: all links and hosts in order, no job, no process of the user's, nodes idle."""
        for file in self.control.iterdir():
            if file.name != "calls":
                file.unlink(missing_ok=True)
        (self.control / "calls").write_text("")
        for name in [*self._stalled]:
            self.resume(name)
        for name, path in [*self._hidden]:
            self.unhide(name, path)
        for name in self.room.hosts:
            self.room.heal(name)
        changed = dict(self._changed)
        self._changed.clear()
        self._write_configuration()
        off = [name for name in self.room.hosts if not self.room.is_on(name)]
        if dead := [name for name in off if name in self.names]:
            self.declare_down(*dead)  # or they would count as idle before they are up
        self.room.start(*off)
        if changed:
            self.tool("scontrol", "reconfigure")
        self._empty()
        self._recall(self.nodes())
        self.wait_idle()
        self._started = [one for one in self._started if one.poll() is None]

    def _empty(self) -> None:
        """Tasks die before their srun, or slurmstepd would look for it for seconds; a job left without any is over."""
        rounds = 0

        def gone() -> bool:
            nonlocal rounds
            rounds += 1
            for name in self.room.hosts:
                self.kill_on(name, "" if rounds > 6 else NO_SRUN)
            jobs = self.squeue()
            stay = [row["id"] for row in jobs if rounds > 20 or row["state"] not in {"RUNNING", "COMPLETING"}]
            if stay:
                self.tool("scancel", *stay, check=False)
            return not jobs

        until(gone, 60, lambda: f"no jobs, but: {self.squeue()}\n{self.told()}")

    def told(self) -> str:
        """What helps to understand a failure: the ends of all logs."""
        logs = sorted((self.base / "log").glob("*.log")) or sorted((self.base / "log").glob("*.out"))
        told = []
        for log in logs:
            lines = [line for line in log.read_text(errors="replace").splitlines() if not NOISE.search(line)]
            told.append("\n".join([f"--- {log.name}", *lines[-20:]]))
        return "\n".join(told)


@functools.cache
def shared() -> Cluster:
    """The one cluster of this process, made when it is wanted first and closed when the process ends."""
    cluster = Cluster()
    atexit.register(cluster.close)
    return cluster
