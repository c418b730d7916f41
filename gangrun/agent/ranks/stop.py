"""Stopping all ranks of a node, step by step, until none is left; and what is left of an earlier attempt.

Ask (save, then stop), by the slot or by the script's save signal - SIGTERM - grace - SIGKILL to everything that came
from a rank. A grace is given only where it can help: to a script with a handler of its own. Where there is none
``boot.py``'s C handler tells so within milliseconds, and waiting for a rank that is stuck in a collective would only
delay the next attempt. ``StopLadder`` runs in a thread of ``gang_part`` and never blocks without a bound.

"Ours" is proven, never guessed: below our warden or our ranks, or marked by our tag in our own job; a shared-memory
file only if its name holds the pid of a dead process of ours, or if a process of ours had it mapped under one of the
names that NCCL gives. What is not provably ours is left alone.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from gangrun.agent.ranks.environment import JOB_ID, TAG
from gangrun.agent.ranks.exits import WatchedRank, has_shown_error, has_told_victim
from gangrun.node.processes import Proc, descendants, is_alive, kill, kill_until_none, process_table, read_proc
from gangrun.wire.messages import Stop
from gangrun.wire.progress import StepRequest

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named by torch and NCCL, not by us
PORT_FIRST, PORT_LAST = 20_000, 65_535
PORT_TRIES_COUNT = 200
_TORCH_FILE = re.compile(r"torch_(?P<pid>\d+)_")
_MAPPED = re.compile(rb"/dev/shm/((?:torch_\d+_|nccl-)\S+)$", re.MULTILINE)


class OwnProcesses:
    """Knows which processes of this node are ranks, or come from ranks, of any attempt of this run."""

    def __init__(
        self,
        tag_prefix: str,
        job: str,
        warden_pid: int,
        spared: Callable[[], Collection[int]],
        standbys: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``spared``: processes that are no ranks. ``standbys``: those that are none yet, with all below them."""
        self._tag_prefix = tag_prefix.encode()
        self._job = job.encode()  # a job that a rank submitted carries our tag too, and must live
        self._warden_pid = warden_pid  # 0: there is none, orphans go to whoever takes them
        self._spared = spared
        self._standbys = standbys

    def find(self, roots: Iterable[Proc]) -> list[Proc]:
        """All live processes of ours, the live ones of ``roots`` included."""
        table = process_table()
        standbys = self._standbys()  # after the table was read: one that became a rank meanwhile must be found
        live = {p.pid: p for root in roots if (p := table.get(root.pid)) and p.start_ticks == root.start_ticks}
        found = {pid: proc for pid, proc in live.items() if is_alive(proc)}
        found |= {proc.pid: proc for proc in descendants(live, table)}
        waiting = {proc.pid for proc in descendants(standbys, table)}
        spared = {os.getpid(), *self._spared(), *standbys, *waiting}
        if self._warden_pid:
            found |= {proc.pid: proc for proc in descendants([self._warden_pid], table, spared)}
        tagged = [p for p in table.values() if p.pid not in found and p.pid not in spared and self._is_tagged(p)]
        found |= {proc.pid: proc for proc in tagged if is_alive(proc)}
        return list(found.values())

    def _is_tagged(self, proc: Proc) -> bool:
        try:
            with Path(f"/proc/{proc.pid}/environ").open("rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            return False
        if not any(variable.startswith(TAG.encode() + b"=" + self._tag_prefix) for variable in variables):
            return False
        job = next((v.partition(b"=")[2] for v in variables if v.startswith(JOB_ID.encode() + b"=")), b"")
        return job == self._job


def is_torch_cleaner(proc: Proc) -> bool:
    """Whether it is torch's manager of named shared memory, which cleans two seconds after its last client left."""
    return proc.name.startswith("torch_shm_manag")


def is_cleaner(proc: Proc) -> bool:
    """Whether it only waits for the others' end to unlink the shared memory they left, which it alone knows."""
    if is_torch_cleaner(proc):
        return True
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{proc.pid}/cmdline").read_bytes()
    except OSError:
        return False


def mapped_segments(procs: Iterable[Proc]) -> set[str]:
    """Names in /dev/shm of torch's or NCCL's kind that these processes have mapped."""
    names: set[str] = set()
    for proc in procs:
        try:
            maps = Path(f"/proc/{proc.pid}/maps").read_bytes()
        except OSError:
            continue
        names |= {os.fsdecode(name) for name in _MAPPED.findall(maps)}
    return names


def strange_segments(known_pids: Collection[int], since_wall: float) -> bool:
    """Whether torch's files lie there whose dead makers nobody saw, made since then: only torch's own cleaner, if it
    lives, can say whose they are.
    """
    for entry in SHARED_MEMORY.glob("torch_*"):
        match = _TORCH_FILE.match(entry.name)
        if not match or int(match["pid"]) in known_pids:
            continue
        try:
            status = entry.lstat()
        except OSError:
            continue
        maker = read_proc(int(match["pid"]))
        if status.st_uid == os.getuid() and status.st_ctime >= since_wall and not (maker and is_alive(maker)):
            return True
    return False


def remove_segments(dead_pids: Collection[int], seen: Collection[str]) -> list[str]:
    """Unlink what dead processes of ours left in /dev/shm; the names that could not be."""
    left: list[str] = []
    try:
        entries = list(SHARED_MEMORY.iterdir())
    except OSError:
        return left
    for entry in entries:
        match = _TORCH_FILE.match(entry.name)
        pid = int(match["pid"]) if match else 0
        if not (pid in dead_pids or (entry.name in seen and not pid)):
            continue
        owner = read_proc(pid) if pid else None
        if owner is not None and is_alive(owner):
            continue
        try:
            if entry.lstat().st_uid == os.getuid():
                entry.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{entry}: {error.strerror}")
    return left


def build_locks(pids: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Locks of torch's builds of native code that these processes hold, with device and inode. A process that is killed
    leaves its lock, and every later start would wait for it for ever.
    """
    found = {}
    for pid in pids:
        try:
            links = [Path(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        for link in links:
            try:
                path = os.readlink(link)
                if not path.endswith("/lock") or not _is_of_a_build(pid, path):
                    continue
                status = link.stat()
            except OSError:
                continue
            found[path] = status.st_dev, status.st_ino
    return found


def _is_of_a_build(pid: int, path: str) -> bool:
    if "/torch_extensions/" in path:
        return True
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    place = next((one.partition(b"=")[2] for one in variables if one.startswith(b"TORCH_EXTENSIONS_DIR=")), b"")
    return bool(place) and os.fsencode(path).startswith(place.rstrip(b"/") + b"/")


def remove_build_locks(locks: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """Unlink those whose holders, all of them ours, are dead; which ones."""
    removed = []
    for path, identity in locks.items():
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) == identity:  # else it was released, and perhaps somebody else builds now
                os.unlink(path)
                removed.append(path)
        except OSError:
            continue
    return tuple(removed)


def ephemeral_range() -> tuple[int, int]:
    """The ports that the kernel gives out by itself."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def port_is_free(port: int) -> bool:
    """Whether rank 0's store could listen there: bound as it binds, on every address."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in _NO_IPV6:
                continue
            return False
    return True


def listens(port: int) -> bool:
    """Whether a process of this host listens on this port. The kernel lists those that listen first."""
    wanted = f":{port:04X}"
    for table in ("tcp6", "tcp"):
        try:
            with Path(f"/proc/net/{table}").open() as file:
                rows = itertools.takewhile(
                    lambda row: row[3:4] == ["0A"], map(str.split, itertools.islice(file, 1, None))
                )
                if any(row[1].endswith(wanted) for row in rows):
                    return True
        except OSError:
            continue
    return False


_NO_IPV6 = frozenset({97, 99})  # EAFNOSUPPORT, EADDRNOTAVAIL


def free_port(avoid: Collection[int], draw: random.Random) -> int:
    """A port outside the ephemeral range, where no outgoing connection can take it before rank 0 binds; 0 if none."""
    low, high = ephemeral_range()
    for _ in range(PORT_TRIES_COUNT):
        port = draw.randint(PORT_FIRST, PORT_LAST)
        if low <= port <= high or port in avoid:
            continue
        if port_is_free(port):
            return port
    return 0


def describe(procs: Iterable[Proc]) -> tuple[str, ...]:
    """In words, for people."""
    return tuple(sorted(str(proc) for proc in procs))


def job_of(environment: Mapping[str, str]) -> str:
    """The job that this node's ranks belong to, "" outside a scheduler's."""
    return environment.get(JOB_ID, "")


def ask_to_save(targets: Collection[WatchedRank], step: int, more: StepRequest) -> dict[int, int]:
    """Ask ranks to save ``step``; the request's generation by rank, {} if no script reads requests.

    -1: the supervisor has chosen none, so the first one is chosen that no rank here has done. A request that is open is
    joined: if another replaced it, ranks that save already would wait for those that were still to hear of it.
    """
    if all(target.slot.save_asked == step for target in targets) if step >= 0 else _open_save(targets) >= 0:
        return {target.rank: target.slot.add(more) for target in targets}
    if step < 0:
        newest = hold_steps(targets)
        if newest < 0 and not any(target.slot.read().saves_on_stop for target in targets):
            for target in targets:
                target.slot.ask(StepRequest.NOTHING)
            return {}
        step = newest + 1
    return {target.rank: target.slot.ask(StepRequest.CHECKPOINT_NOW | more, step) for target in targets}


def hold_steps(targets: Collection[WatchedRank]) -> int:
    """Have each rank wait at the end of its next step; the newest step of all, -1 if no script here reads requests.

    No rank does more than one step after that until it is told which step to save. Ranks that are to save one already
    are not held: the answer makes that step the one to save.
    """
    if (open_step := _open_save(targets)) >= 0:
        return open_step - 1
    for target in targets:
        target.slot.ask(StepRequest.HOLD)
    threading.Event().wait(HEARD_S)
    slots = [target.slot.read() for target in targets]
    return max((slot.step for slot in slots), default=-1) if any(slot.saves_on_stop for slot in slots) else -1


def _open_save(targets: Collection[WatchedRank]) -> int:
    """The step that ranks were asked to save and have not all saved; -1: none."""
    waiting = [one.slot for one in targets if one.slot.read().handled_generation < one.slot.generation]
    return max((slot.save_asked for slot in waiting if slot.read().saves_on_stop), default=-1)


def has_saved(target: WatchedRank, generation: int) -> bool:
    """Whether its script is done with the request, or reads none."""
    slot = target.slot.read()
    return slot.handled_generation >= generation or not slot.saves_on_stop


def _trains_on(target: WatchedRank, generation: int) -> bool:
    """Whether its script steps on after that: one that leaves its loop ends by itself."""
    slot = target.slot.read()
    return has_saved(target, generation) and (slot.step > slot.saved_step or not slot.saves_on_stop)


POLL_S = 0.01
POLL_SHARE = 0.1  # of the time that was waited already: a stop without a grace takes milliseconds
POLL_MIN_S = 0.001
HEARD_S = 0.001  # the step of a rank that looked for requests just before this one can be read by then
LAST_LINES_S = 0.03  # from a rank's report to the last line of its traceback, at most
LOOK_AGAIN_S = 0.1  # for what is ours: a stop without a grace is over sooner
KILL_WITHIN_S = 5.0
CLEAN_WITHIN_S = 1.0  # for Python's own tracker of shared memory, once all else is dead
TORCH_CLEAN_WITHIN_S = 3.0  # for torch's, where it alone knows of what is left: it waits two seconds before it cleans


class StopLadder:
    """One stop; ``hurry`` cuts every grace short, ``saved`` only the one for saving."""

    def __init__(
        self,
        targets: Sequence[WatchedRank],
        family: OwnProcesses,
        known: Iterable[Proc],
        now: Callable[[], float],
        orphan_pids: Iterable[int] = (),
        save_signal: int = 0,
        commits_are_seen: bool = True,
        locks: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        stderr: Callable[[int], Sequence[tuple[float, str]]] = lambda _: (),
    ) -> None:
        """``known``: processes that were seen to come from the ranks, dead or alive. ``orphan_pids``: some that may
        have; they are not killed for that, but what they left in shared memory goes once they are dead.
        ``locks``: of builds, as ``build_locks`` found them in processes that may be dead now.
        ``commits_are_seen``: ``saved`` is called once the checkpoint that ranks were told to save is whole.
        ``stderr``: the newest lines of a rank, and when they were read.
        """
        self._orphan_pids = frozenset(orphan_pids)
        self._targets = targets
        self._family = family
        self._now = now
        self._save_signal = save_signal
        self._commits_are_seen = commits_are_seen
        self._hurried = threading.Event()
        self._saved = threading.Event()
        self._pause = threading.Event()
        self._came_from_ranks: dict[int, Proc] = {proc.pid: proc for proc in known}
        self._segments: set[str] = set()
        self._locks = dict(locks)
        self._stderr = stderr
        self._looked_at = float("-inf")
        self._cleaners: list[Proc] = []
        self.left: list[Proc] = []  # that could not be killed
        self.overdue: list[int] = []  # ranks that had not ended after the grace, though they could
        self.grace_s = 0.0  # what they got
        self.saved_step = -1  # the newest that a rank saved because it was asked to
        self.unlocked: tuple[str, ...] = ()  # once all are dead: locks of theirs that were removed

    def hurry(self) -> None:
        """No more grace."""
        self._saved.set()
        self._hurried.set()

    def saved(self) -> None:
        """No more waiting for a save; the grace after SIGTERM stays."""
        self._saved.set()

    def run(self, command: Stop) -> tuple[str, ...]:
        """Stop; what could not be killed, in words."""
        self._look()
        self._settle(command.settle_s)
        asked = dict[int, int]()  # generation of the request to save, by rank
        if command.checkpoint_first and not any(target.ended.is_set() for target in self._targets):
            asked = self._let_save(command)  # with one gone the others could only wait for it
        alive = [target for target in self._targets if not target.ended.is_set()]
        if alive and not self._hurried.is_set():
            if self._now() - self._looked_at >= LOOK_AGAIN_S:
                self._look()
            self._terminate(alive, self._grace_s(command))
        left = self._kill_all()
        slots = [(target.slot.read(), asked[target.rank]) for target in self._targets if target.rank in asked]
        saved = [slot.saved_step for slot, generation in slots if slot.handled_generation >= generation]
        self.saved_step = max(saved, default=-1)
        return left

    def _grace_s(self, command: Stop) -> float:
        """A handler of a rank whose peer is gone waits for it in vain, unless it is there to save."""
        if command.peer_gone_grace_s is None or self._save_signal:
            return command.grace_s
        saves = any(target.slot.read().saves_on_stop for target in self._targets)
        return command.grace_s if saves else min(command.grace_s, command.peer_gone_grace_s)

    def _settle(self, within_s: float) -> None:
        """Let ranks that fail by themselves at this moment do so; any hurry cuts it short.

        A victim that has written its error down has said all that it can: its interpreter may need long to wind up.
        """
        began = self._now()
        waiting = list(self._targets)
        while waiting and self._now() < began + within_s and not self._saved.is_set():
            waiting[0].ended.wait(self._poll_s(began))
            waiting = [target for target in waiting if not target.ended.is_set() and not has_told_victim(target.files)]
        told = [one for one in self._targets if within_s and not one.ended.is_set() and has_told_victim(one.files)]
        told_at = self._now()
        while told and self._now() < told_at + LAST_LINES_S and not self._saved.is_set():
            told[0].ended.wait(POLL_MIN_S)
            told = [one for one in told if not one.ended.is_set() and not self._has_shown_error(one)]

    def _has_shown_error(self, target: WatchedRank) -> bool:
        return has_shown_error(target.files, self._stderr(target.rank))

    def _poll_s(self, began: float) -> float:
        """The pause of a wait that began then: short at first, so that it is over soon after what it is for."""
        return min(POLL_S, max(POLL_MIN_S, POLL_SHARE * (self._now() - began)))

    def _look(self) -> None:
        """Remember what is ours while it lives: pids and shared memory are harder to prove afterwards."""
        self._looked_at = self._now()
        found = self._family.find(target.proc for target in self._targets)
        self._came_from_ranks |= {proc.pid: proc for proc in found}
        self._segments |= mapped_segments(found)
        self._locks |= build_locks(proc.pid for proc in found)

    def _let_save(self, command: Stop) -> dict[int, int]:
        """StepRequest as the script wants to be asked; wait for those that can hear it. As ``ask_to_save`` returns."""
        asked = ask_to_save(self._targets, command.save_step, StepRequest.STOP_AFTER_STEP)
        sizes = {target.proc.pid: _size(target.files.signals) for target in self._targets}
        waiting = [target for target in self._targets if self._send_save(target) or asked]
        until = self._now() + command.checkpoint_grace_s
        while waiting and self._now() < until and not self._saved.is_set():
            waiting = [target for target in waiting if not target.ended.is_set()]
            if asked and not self._commits_are_seen and all(_trains_on(one, asked[one.rank]) for one in waiting):
                break
            if not asked:
                waiting = [one for one in waiting if _size(one.files.signals) == sizes[one.proc.pid]]
            if waiting:
                waiting[0].ended.wait(POLL_S)
        return asked

    def _send_save(self, target: WatchedRank) -> bool:
        """Whether anything of this rank heard the save signal. A wrapper would die of it: what it runs gets it."""
        if not self._save_signal:
            return False
        if target.through_boot:
            _order(target, self._save_signal)
            return kill(target.proc, self._save_signal)
        level = [target.proc]
        while level and not any(_catches(proc, self._save_signal) for proc in level):
            parents = {proc.pid for proc in level}
            level = [proc for proc in self._came_from_ranks.values() if proc.parent in parents]
        heard = [kill(proc, self._save_signal) for proc in level if _catches(proc, self._save_signal)]
        return any(heard)

    def _terminate(self, alive: Sequence[WatchedRank], grace_s: float) -> None:
        sizes = {target.proc.pid: _size(target.files.signals) for target in alive}
        for target in alive:
            target.slot.ask(StepRequest.STOP | StepRequest.STOP_AFTER_STEP)
            self._send_term(target)
        began, self.grace_s = self._now(), grace_s
        waiting = list(alive)
        while waiting and self._now() < began + grace_s and not self._hurried.is_set():
            for target in list(waiting):
                if target.ended.is_set():
                    waiting.remove(target)
                elif _size(target.files.signals) > sizes[target.proc.pid] or not _can_run(target.proc):
                    kill(target.proc)  # nothing of its own to finish, or no way to
                    waiting.remove(target)
            if waiting:
                waiting[0].ended.wait(self._poll_s(began))
        if grace_s > 0 and not self._hurried.is_set():
            self.overdue = [target.rank for target in waiting]

    def _send_term(self, target: WatchedRank) -> None:
        """To the rank alone: workers that die first would break a save. A wrapper passes nothing on: to its group."""
        _order(target, signal.SIGTERM)
        kill(target.proc, signal.SIGTERM)
        if not target.through_boot:
            for proc in self._came_from_ranks.values():
                if proc.group == target.proc.pid and proc.pid != target.proc.pid:
                    kill(proc, signal.SIGTERM)

    def _kill_all(self) -> tuple[str, ...]:
        left = kill_until_none(self._find_all_but_cleaners, KILL_WITHIN_S, _nothing, self._await_an_end)
        if self._cleaners and not left:
            self._let_clean()
        left = self.left = kill_until_none(self._find, KILL_WITHIN_S, _nothing, self._await_an_end)
        for target in self._targets:
            target.ended.wait(KILL_WITHIN_S if not left else 0)
        dead = self._pids() - {proc.pid for proc in left}
        self.unlocked = remove_build_locks(self._locks) if not left else ()
        return (*describe(left), *remove_segments(dead, self._segments if not left else ()))

    def _await_an_end(self, within_s: float) -> None:
        """A rank that is killed needs a while to give its memory back, and its end is told at once."""
        alive = (target.ended for target in self._targets if not target.ended.is_set())
        next(alive, self._pause).wait(within_s)

    def _find_all_but_cleaners(self) -> list[Proc]:
        found = self._find()
        self._cleaners = [proc for proc in found if is_cleaner(proc)]
        return [proc for proc in found if proc not in self._cleaners]

    def _let_clean(self) -> None:
        """Nothing but cleaners lives. What they know and we do too is removed sooner by us."""
        began, started_wall = self._now(), self._started_wall()
        while cleaners := self._find():
            strange = strange_segments(self._pids(), started_wall)
            patience_s = TORCH_CLEAN_WITHIN_S if strange else CLEAN_WITHIN_S
            if self._now() >= began + patience_s or not (strange or any(not is_torch_cleaner(p) for p in cleaners)):
                return
            self._pause.wait(POLL_S)

    def _started_wall(self) -> float:
        """By the file system's clock: when the ranks' small files were made."""
        try:
            return min(target.files.signals.parent.stat().st_mtime for target in self._targets)
        except (OSError, ValueError):
            return float("inf")

    def _pids(self) -> set[int]:
        return {*self._came_from_ranks, *self._orphan_pids}

    def _find(self) -> list[Proc]:
        # What was ours stays ours: a dying process has no environment any more, but may still hold memory.
        known = [*self._came_from_ranks.values(), *(target.proc for target in self._targets)]
        found = self._family.find(known)
        self._came_from_ranks |= {proc.pid: proc for proc in found}
        return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _order(target: WatchedRank, number: int) -> None:
    """Write down what is about to be sent; without it the script's handler does not run, but its grace does."""
    try:
        fd = os.open(target.files.orders, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, bytes([number]))
    finally:
        os.close(fd)


def _catches(proc: Proc, number: int) -> bool:
    """Whether it has a handler of its own for this signal."""
    try:
        lines = Path(f"/proc/{proc.pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.partition(":")[2] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _can_run(proc: Proc) -> bool:
    now = read_proc(proc.pid)
    return now is not None and now.state not in "Tt"


def _nothing() -> None:
    """The watch threads reap: there is nothing to do between two rounds of killing."""
