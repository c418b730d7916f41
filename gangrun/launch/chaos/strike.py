"""How each kind of drill is done to a run, and undone.

Only processes that are surely this run's own are touched: ranks that its supervisor has noted, the agent and the warden
above them, and the holder of the newest term. A rank on another node is reached through ``srun --overlap`` of the run's
own job. What a strike leaves behind on purpose (a stopped process, a mount, damaged bytes) is put right by ``undo``,
which runs however the drill ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gangrun.adapters.local.played_network import PlayedNetwork
from gangrun.adapters.local.played_ports import DEVICES, PORT_DOWN, PlayedPorts
from gangrun.adapters.local.played_world import PlayedClock, PlayedDriver, make_read_only, make_silent, unmount
from gangrun.adapters.slurm.step import Unasked, Where, on_each
from gangrun.config import environment
from gangrun.core.model import Placement
from gangrun.core.text import signal_name, step_words
from gangrun.errors import UNKNOWN, UserError
from gangrun.launch.chaos.kinds import CLOCK_JUMP_S, LATENCY_S, DrillKind
from gangrun.launch.chaos.plan import Drill
from gangrun.launch.chaos.score import Struck
from gangrun.launch.slurm_ask import tools_of
from gangrun.launch.stop import drain, tell_owner
from gangrun.node import processes
from gangrun.runs.checkpoints import place_of, surveyed
from gangrun.runs.failures import rank_statuses
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import RankStatus, job_number
from gangrun.runs.times import wall_now

SLOW_STOPPED_S, SLOW_RUNS_S = 0.1, 0.1
REACHED_WITHIN_S = 30.0
TORN_MAX_BYTES = 64 * 1024
GPU_LOST_XID, ECC_ERRORS_COUNT = 79, 3
_SIGNALS = {
    DrillKind.KILL_RANK: signal.SIGKILL, DrillKind.SEGFAULT_RANK: signal.SIGSEGV, DrillKind.STOP_RANK: signal.SIGSTOP,
    DrillKind.KILL_SUPERVISOR: signal.SIGKILL, DrillKind.STOP_SUPERVISOR: signal.SIGSTOP,
}  # fmt: skip
_DISKS = {
    DrillKind.FULL_DISK: "is full", DrillKind.READ_ONLY_DISK: "is read-only", DrillKind.STALLED_DISK: "does not answer",
}  # fmt: skip
_OWN_COMMANDS = (b"gangrun.entry.", b"/node/warden.py", b"/node/memory_keeper.py")
# On another node: walks up from a rank to its agent (1) or warden (2), and signals it as ``belongs`` finds it to be the
# run's: the number of a rank that has ended may be another process's by then.
SIGNAL_THERE = (
    "import os, sys\n"
    "pid, up, number, run = *map(int, sys.argv[1:4]), sys.argv[4].encode()\n"
    "read = lambda name: open(f'/proc/{pid}/{name}', 'rb').read()\n"
    "for _ in range(up): pid = int(read('stat').rpartition(b')')[2].split()[1])\n"
    "command = read('cmdline')\n"
    f"known = run in command and any(part in command for part in {_OWN_COMMANDS!r})\n"
    "if known or b'GANGRUN_RUN=' + run in read('environ').split(b'\\0'):\n"
    "    os.kill(pid, number)\n"
    "    print('done')\n"
    "else:\n"
    "    sys.exit(f'process {pid} is not of this run any more')\n"
)


@dataclass(frozen=True, slots=True)
class OwnWorld:
    """What a run of ``--local`` has besides: its folder for the sample script, its mounts, its driver, its clock, its
    network, its ports.
    """

    drill_folder: Path
    run_root: Path  # as the run's own processes name it; mounts go over it
    sample: bool = False
    driver: PlayedDriver | None = None
    clock: PlayedClock | None = None
    network: PlayedNetwork | None = None
    ports: PlayedPorts | None = None
    has_mounts: bool = False


@dataclass(slots=True)
class DrillStrike:
    """One drill of one run that trains now. ``undo`` is closed by whoever made it."""

    drill: Drill
    reading: RunSnapshot  # with all records
    own: OwnWorld | None
    undo: ExitStack = field(default_factory=ExitStack)

    def strike(self) -> Struck:
        """Do it; ``UserError`` if it cannot be done."""
        match self.drill.kind:
            case DrillKind.KILL_RANK | DrillKind.SEGFAULT_RANK | DrillKind.STOP_RANK:
                return self._signal_rank(_SIGNALS[self.drill.kind])
            case DrillKind.SLOW_RANK:
                return self._slow_rank()
            case DrillKind.OOM_RANK:
                return self._limit_memory()
            case DrillKind.NAN_LOSS:
                return self._nan()
            case DrillKind.KILL_AGENT | DrillKind.KILL_WARDEN:
                return self._kill_above()
            case DrillKind.KILL_SUPERVISOR | DrillKind.STOP_SUPERVISOR:
                return self._signal_supervisor(_SIGNALS[self.drill.kind])
            case DrillKind.STOP_NODE | DrillKind.POWER_OFF:
                return self._stop_node() if self.drill.kind is DrillKind.STOP_NODE else self._power_off()
            case DrillKind.FULL_DISK | DrillKind.READ_ONLY_DISK | DrillKind.STALLED_DISK:
                return self._disk()
            case DrillKind.TORN_CHECKPOINT | DrillKind.FLIPPED_CHECKPOINT | DrillKind.MIXED_CHECKPOINT:
                return self._checkpoint()
            case DrillKind.XID | DrillKind.ECC | DrillKind.IB_DOWN:
                return self._hardware()
            case DrillKind.DRAIN:
                return self._drain()
            case DrillKind.SCANCEL | DrillKind.PREEMPT:
                return self._end_job()
            case DrillKind.CLOCK_JUMP:
                return self._clock()
            case DrillKind.CUT | DrillKind.CUT_ONE_WAY | DrillKind.LATENCY:
                return self._network()

    # ---- whom --------------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> str:
        return self.reading.spec.run

    @property
    def _placement(self) -> Placement:
        state = self.reading.state
        if state is None or state.attempt.placement is None:
            raise _cannot(self._run, "it has no ranks now")
        return state.attempt.placement

    def _rank(self) -> RankStatus:
        """The rank that the plan names, else one on the node that it names, else any that the seed chooses."""
        placed = self._placement
        ranks = [one for one in rank_statuses(self.reading) if one.pid is not None]
        if self.drill.rank >= placed.world_size:
            raise _cannot(f"rank {self.drill.rank}", f"{self._run} has ranks 0 to {placed.world_size - 1}")
        if self.drill.node and not placed.holds(self.drill.node):
            raise _cannot(self.drill.node, f"no rank of {self._run} is there; ranks are on {', '.join(placed.nodes)}")
        if self.drill.rank >= 0:
            ranks = [one for one in ranks if one.rank == self.drill.rank]
        if self.drill.node:
            ranks = [one for one in ranks if one.node == self.drill.node]
        if not ranks:
            raise _cannot(self._run, "its supervisor has not noted the processes of such ranks yet")
        return ranks[int(self.drill.choice * len(ranks))]

    def _struck(self, words: str, node: str = "", rank: int = -1) -> Struck:
        """To be called right before the deed."""
        state = self.reading.state
        assert state is not None
        return Struck(wall_now(), state.attempt.number, node, rank, words)

    def _is_here(self, node: str) -> bool:
        return not self.reading.spec.is_scheduled or node == processes.host_name()

    def _send(self, node: str, pid: int, signum: signal.Signals, up: int = 0) -> None:
        """Signal a process of this run, or one above it; on another node through Slurm."""
        if self._is_here(node):
            self._send_here(pid, signum, up)
            return
        owner = self.reading.owner
        if owner is None:
            raise _cannot(node, "no job of the run is known")
        command = [sys.executable, "-I", "-c", SIGNAL_THERE, str(pid), str(up), str(int(signum)), self._run]
        try:
            where = Where((node,), job_number(owner.token))
            heard = on_each(tools_of(environment.all_variables()), where, command, REACHED_WITHIN_S)
        except Unasked as error:
            raise UserError("refused", f"srun reaches nothing on {node}: {error}", "", UNKNOWN) from error
        if "done" not in heard.lines:
            why = heard.silent.get(node, heard.otherwise)
            raise UserError("refused", f"process {pid} on {node} was not reached: {why}", "", UNKNOWN)

    def _send_here(self, pid: int, signum: signal.Signals, up: int) -> None:
        proc = processes.read_proc(pid)
        for _ in range(up):
            proc = processes.read_proc(proc.parent) if proc is not None else None
        if proc is None or not belongs(proc.pid, self._run) or not processes.kill(proc, signum):
            raise UserError("gone", f"process {pid} of {self._run} ended before the drill began", "", UNKNOWN)

    def _later(self, node: str, pid: int, signum: signal.Signals) -> None:
        """Undo: a process that is gone by then needs none."""

        def send() -> None:
            with contextlib.suppress(UserError):
                self._send(node, pid, signum)

        self.undo.callback(send)

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _signal_rank(self, signum: signal.Signals) -> Struck:
        one = self._rank()
        assert one.pid is not None
        struck = self._struck(f"{signal_name(signum)} to rank {one.rank} on {one.node}", one.node, one.rank)
        if signum is signal.SIGSTOP:
            self._later(one.node, one.pid, signal.SIGCONT)
        self._send(one.node, one.pid, signum)
        return struck

    def _kill_above(self) -> Struck:
        up, who = (1, "agent") if self.drill.kind is DrillKind.KILL_AGENT else (2, "warden")
        one = self._rank()
        assert one.pid is not None
        struck = self._struck(f"SIGKILL to the {who} on {one.node}", one.node)
        self._send(one.node, one.pid, signal.SIGKILL, up)
        return struck

    def _signal_supervisor(self, signum: signal.Signals) -> Struck:
        claim = self.reading.claim
        if claim is None:
            raise _cannot(self._run, "it has no supervisor now")
        struck = self._struck(f"{signal_name(signum)} to the supervisor on {claim.node}", claim.node)
        if signum is signal.SIGSTOP:
            self._later(claim.node, claim.pid, signal.SIGCONT)
        self._send(claim.node, claim.pid, signum)
        return struck

    def _slow_rank(self) -> Struck:
        one = self._rank()
        if not self._is_here(one.node) or one.pid is None:
            raise _cannot(f"rank {one.rank}", f"only ranks on this machine can be slowed, and it is on {one.node}")
        proc, over = processes.read_proc(one.pid), threading.Event()
        if proc is None or not belongs(proc.pid, self._run):
            raise UserError("gone", f"rank {one.rank} ended before the drill began", "", UNKNOWN)

        def slow() -> None:
            while not over.wait(SLOW_RUNS_S) and processes.kill(proc, signal.SIGSTOP):
                over.wait(SLOW_STOPPED_S)
                processes.kill(proc, signal.SIGCONT)

        thread = threading.Thread(target=slow, name="slow rank", daemon=True)
        self.undo.callback(processes.kill, proc, signal.SIGCONT)
        self.undo.callback(thread.join)
        self.undo.callback(over.set)
        struck = self._struck(f"rank {one.rank} on {one.node} stopped for half of the time", one.node, one.rank)
        thread.start()
        return struck

    def _limit_memory(self) -> Struck:
        one = self._rank()
        if not self._is_here(one.node) or one.pid is None or not belongs(one.pid, self._run):
            raise _cannot(f"rank {one.rank}", f"only limits of ranks on this machine can be set; it is on {one.node}")
        pid = one.pid
        try:
            soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            held_bytes = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            struck = self._struck(f"no more memory for rank {one.rank} on {one.node}", one.node, one.rank)
            resource.prlimit(pid, resource.RLIMIT_AS, (held_bytes // 2, hard))  # it may free some before it asks
        except OSError as error:
            raise _cannot(f"the limit of rank {one.rank}", error.strerror or str(error)) from error

        def lift() -> None:
            with contextlib.suppress(OSError):
                if belongs(pid, self._run):
                    resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))

        self.undo.callback(lift)
        return struck

    def _nan(self) -> Struck:
        if self.own is None or not self.own.sample:
            raise _cannot(self.drill.kind.value, "your script reports its own loss; leave COMMAND out")
        one, state = self._rank(), self.reading.state
        assert state is not None
        mark = self.own.drill_folder / f"nan-{state.attempt.number}-{one.rank}"
        struck = self._struck(f"NaN as the loss of rank {one.rank} on {one.node}", one.node, one.rank)
        mark.touch()
        self.undo.callback(partial(mark.unlink, missing_ok=True))
        return struck

    def _stop_node(self) -> Struck:
        """Not the supervisor's host: of the others one hears nothing, and that is the drill."""
        one, claim = self._rank_elsewhere(), self.reading.claim
        found = self._all_of_host(one)
        if claim is not None and claim.pid in {proc.pid for proc in found}:
            raise _changed(one.node)
        struck = self._struck(f"SIGSTOP to all {len(found)} processes of {one.node}", one.node)
        for proc in found:
            self.undo.callback(partial(processes.kill, proc, signal.SIGCONT))
        for proc in found:  # the warden first: it would take a stop of its children for their end
            processes.kill(proc, signal.SIGSTOP)
        return struck

    def _power_off(self) -> Struck:
        """Its kernel sends nothing: first nothing leaves the host, then all that runs there stands still. At the end of
        the drill that is killed before the network comes back, so nothing of it is ever heard again.
        """
        one, network = self._rank(), self._own_network()
        found = self._all_of_host(one)
        self.undo.callback(network.heal)
        for proc in found:
            self.undo.callback(processes.kill, proc, signal.SIGKILL)
        struck = self._struck(f"power of {one.node} taken, with all {len(found)} processes there", one.node)
        network.cut(one.node, one_way=False)
        for proc in found:  # the warden first, as above
            processes.kill(proc, signal.SIGSTOP)
        return struck

    def _all_of_host(self, one: RankStatus) -> list[processes.Proc]:
        """The warden of the rank's pretended host, and all below it."""
        warden = None if one.pid is None else _above(one.pid, 2)
        if warden is None or not belongs(warden.pid, self._run):
            raise _changed(one.node)
        return [warden, *processes.descendants([warden.pid], processes.process_table())]

    def _own_network(self) -> PlayedNetwork:
        if self.own is None or self.own.network is None:
            raise _cannot(self.drill.kind.value, "the run has no such network of its own")
        return self.own.network

    def _network(self) -> Struck:
        one, network = self._rank(), self._own_network()
        self.undo.callback(network.heal)
        if self.drill.kind is DrillKind.LATENCY:
            struck = self._struck(f"all packets from and to {one.node} delayed by {LATENCY_S:g} s", one.node)
            network.slow_down(one.node, LATENCY_S)
            return struck
        one_way = self.drill.kind is DrillKind.CUT_ONE_WAY
        words = f"all packets from {one.node} dropped" if one_way else f"{one.node} cut off the network"
        struck = self._struck(words, one.node)
        network.cut(one.node, one_way=one_way)
        return struck

    def _rank_elsewhere(self) -> RankStatus:
        claim = self.reading.claim
        holder = "" if claim is None else claim.node
        if self.drill.node or self.drill.rank >= 0:
            one = self._rank()
            if one.node == holder:
                raise _cannot(one.node, "the supervisor is there; name another host")
            return one
        ranks = [one for one in rank_statuses(self.reading) if one.pid is not None and one.node != holder]
        if not ranks:
            raise _cannot(self._run, "all its ranks are on the supervisor's host")
        return ranks[int(self.drill.choice * len(ranks))]

    def _clock(self) -> Struck:
        """Of ranks, agents, wardens and the supervisor; a process without the played clock would make it no drill."""
        if self.own is None or self.own.clock is None:
            raise _cannot(self.drill.kind.value, "the run has no played clock")
        clock, claim = self.own.clock, self.reading.claim
        ranks = [one.pid for one in rank_statuses(self.reading) if one.pid is not None]
        above = [proc.pid for pid in ranks for up in (1, 2) if (proc := _above(pid, up)) is not None]
        pids = {*ranks, *above, *(() if claim is None else (claim.pid,))}
        if without := [pid for pid in sorted(pids) if not clock.is_of(pid)]:
            raise _cannot(f"process {without[0]}", "it has not loaded the played clock; is it linked statically?")
        self.undo.callback(clock.set_ahead, 0.0)
        struck = self._struck(f"wall clock of {len(pids)} processes {CLOCK_JUMP_S / 3600:g} hours ahead")
        clock.set_ahead(CLOCK_JUMP_S)
        return struck

    # ---- file systems ------------------------------------------------------------------------------------------------

    def _disk(self) -> Struck:
        """A run that goes well writes little, so a rank dies: nothing may start again before that is recorded."""
        if self.own is None or not self.own.has_mounts:
            raise _cannot(self.drill.kind.value, "the run has no file system of its own")
        one, root = self._rank(), self.own.run_root
        assert one.pid is not None
        struck = self._struck(f"the file system of {root} {_DISKS[self.drill.kind]}, then SIGKILL to rank {one.rank}")
        match self.drill.kind:
            case DrillKind.FULL_DISK:
                ballast = root.parent / "ballast"
                self.undo.callback(partial(ballast.unlink, missing_ok=True))
                for piece in (b"\0" * 65536, b"\0"):
                    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                        while file.write(piece):
                            pass
            case DrillKind.READ_ONLY_DISK:
                make_read_only(root)
                self.undo.callback(unmount, root)
            case _:
                server = make_silent(root)
                self.undo.callback(os.close, server)
                self.undo.callback(unmount, root)
        self._send(one.node, one.pid, signal.SIGKILL)
        return struck

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> Struck:
        """Ranks are stopped first: one that lives could commit a newer step before any is loaded."""
        if not self.reading.spec.checkpoint.directory:
            raise _cannot(self._run, "it has no checkpoint directory")
        one = self._rank()
        assert one.pid is not None
        for other in rank_statuses(self.reading):
            if other.pid is not None and self._is_here(other.node):
                self._later(other.node, other.pid, signal.SIGCONT)
                self._send(other.node, other.pid, signal.SIGSTOP)
        saves = self._checkpoints()
        if len(saves) < 2:
            raise _cannot(self._run, "it has fewer than two checkpoints, so that nothing would be left to resume from")
        newest, older = saves[:2]
        words = self._damage(Path(newest.path), Path(older.path))
        told = f"{words} of {step_words(-1 if newest.step is None else newest.step)}, then SIGKILL to rank {one.rank}"
        struck = self._struck(told, one.node, one.rank)
        self._send(one.node, one.pid, signal.SIGKILL)
        return struck

    def _checkpoints(self) -> Sequence[_Save]:
        place = place_of(str(self.reading.paths.root), None, None, None)
        listed = surveyed(place, None, None, verify=False).checkpoints
        return [_Save(one.step, one.path) for one in listed if one.committed and one.level and one.valid is not False]

    def _damage(self, newest: Path, older: Path) -> str:
        target = _largest_file(newest)
        if target.stat().st_nlink > 1:
            raise _cannot(str(target), "older checkpoints share its bytes, and would be damaged with it")
        match self.drill.kind:
            case DrillKind.MIXED_CHECKPOINT:
                return self._mix(target, older / target.relative_to(newest))
            case DrillKind.TORN_CHECKPOINT:
                fd, size = os.open(target, os.O_RDWR), target.stat().st_size
                at = size - min(TORN_MAX_BYTES, (size + 1) // 2)
                kept = os.pread(fd, size - at, at)
                self._restored(fd, kept, at)
                os.ftruncate(fd, at)
                return f"the last {size - at} bytes of {target.name} cut off"
            case _:
                fd, size = os.open(target, os.O_RDWR), target.stat().st_size
                kept = os.pread(fd, 1, size // 2)
                self._restored(fd, kept, size // 2)
                os.pwrite(fd, bytes([kept[0] ^ 0x10]), size // 2)
                return f"a bit of {target.name} flipped"

    def _restored(self, fd: int, kept: bytes, at: int) -> None:
        """Undo through the open file, wherever it was moved meanwhile."""
        self.undo.callback(os.close, fd)
        self.undo.callback(os.pwrite, fd, kept, at)

    def _mix(self, target: Path, older: Path) -> str:
        if not older.is_file():
            raise _cannot(str(older), "there is no such file in the older checkpoint")
        folder, beside = (os.open(one, os.O_RDONLY | os.O_DIRECTORY) for one in (target.parent, target.parent.parent))
        name = f".drill-{secrets.token_hex(4)}"
        self.undo.callback(os.close, beside)
        self.undo.callback(os.close, folder)
        self.undo.callback(os.rename, name, target.name, src_dir_fd=beside, dst_dir_fd=folder)
        os.rename(target.name, name, src_dir_fd=folder, dst_dir_fd=beside)
        shutil.copyfile(older, target)
        return f"{target.name} of an older checkpoint put into the one"

    # ---- hardware and scheduler --------------------------------------------------------------------------------------

    def _hardware(self) -> Struck:
        one, own = self._rank(), self.own
        if own is not None and own.ports is not None:
            return self._port(own.ports, one.node)
        if own is None or own.driver is None:
            raise _cannot(self.drill.kind.value, "the run has no hardware that is played")
        driver = own.driver
        self.undo.callback(driver.say, {})
        if self.drill.kind is DrillKind.XID:
            struck = self._struck(f"XID {GPU_LOST_XID} of GPU {one.rank} on {one.node}", one.node, one.rank)
            driver.say({"event0": f"{one.rank} 8 {GPU_LOST_XID}"})
        else:
            words = f"{ECC_ERRORS_COUNT} uncorrectable memory errors of GPU {one.rank} on {one.node}"
            struck = self._struck(words, one.node, one.rank)
            driver.say({f"gpu{one.rank}.ecc10": ECC_ERRORS_COUNT})
        return struck

    def _port(self, ports: PlayedPorts, node: str) -> Struck:
        self.undo.callback(ports.say, node, {})
        struck = self._struck(f"InfiniBand port 1 of {DEVICES[0]} on {node} taken down", node)
        ports.say(node, PORT_DOWN)
        return struck

    def _end_job(self) -> Struck:
        owner = self.reading.owner
        if self.drill.kind is DrillKind.PREEMPT:
            return self._tool("scontrol", () if owner is None else ("requeue", job_number(owner.token)))
        if not self.reading.spec.is_scheduled:
            struck = self._struck("SIGTERM to gangrun run")
            tell_owner(self.reading)
            return struck
        return self._tool("scancel", () if owner is None else (job_number(owner.token),))

    def _tool(self, tool: str, words: Sequence[str]) -> Struck:
        if not words:
            raise _cannot(self._run, "no job of the run is known")
        struck = self._struck(" ".join((tool, *words)))
        answer = tools_of(environment.all_variables()).run((tool, *words), REACHED_WITHIN_S)
        if answer.code != 0:
            hint = "only a run that was submitted with --requeue same-job can be requeued" if tool == "scontrol" else ""
            raise UserError("refused", f"{tool} failed: {answer.words}", hint, UNKNOWN)
        return struck

    def _drain(self) -> Struck:
        one = self._rank_elsewhere()
        struck = self._struck(f"drain of {one.node}", one.node)
        drain(self.reading, one.node, REACHED_WITHIN_S, waits=False)
        return struck


@dataclass(frozen=True, slots=True)
class _Save:
    step: int | None
    path: str


def _cannot(what: str, why: str) -> UserError:
    return UserError("refused", f"{what}: {why}", "gangrun chaos --list shows what each kind needs")


def _changed(node: str) -> UserError:
    return UserError("gone", f"{node} changed before the drill began", "", UNKNOWN)


def _above(pid: int, up: int) -> processes.Proc | None:
    proc = processes.read_proc(pid)
    for _ in range(up):
        proc = processes.read_proc(proc.parent) if proc is not None else None
    return proc


def belongs(pid: int, run_id: str) -> bool:
    """Is it surely a process of this run? Its environment names the run, or it is one of gangrun's own for it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    run = run_id.encode()
    if b"GANGRUN_RUN=" + run in variables:
        return True
    return run in command and any(part in command for part in _OWN_COMMANDS)


def _largest_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = [one for one in path.rglob("*") if one.is_file() and not one.is_symlink()]
    if not files:
        raise _cannot(str(path), "it holds no file")
    return max(files, key=lambda one: (one.stat().st_size, one.name))
