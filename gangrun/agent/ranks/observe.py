"""What is seen of a rank from outside: a sample for each beat, and its stacks when a gang hangs.

A sample is a few reads of /proc and of mapped memory: no scan, no system call that can hang. Counters only grow
within an attempt.

Stacks: ``boot.py`` has given SIGRTMIN + 4 to faulthandler, which answers from C even if the main thread never comes
back to Python. A stopped process, one in D state and a command that is not Python cannot answer: for these /proc
speaks. The whole dump goes into the run directory.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gangrun.agent.ranks import flight_dumps
from gangrun.agent.ranks.exits import WatchedRank, oom_file
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.evidence import Anomaly, Collective, RankStack, SelfChecks
from gangrun.core.recovery.fill_rules import NodeUse
from gangrun.core.recovery.loss_rules import LossWatch
from gangrun.core.recovery.standing import Look
from gangrun.node import place_page
from gangrun.node.boot import STACK_SIGNAL_OFFSET
from gangrun.node.processes import Proc, kill, read_proc
from gangrun.wire.messages import RankSample
from gangrun.wire.progress import ProgressPage, SlotReading, read_findings

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TREE_MAX_COUNT = 64
DEMAND_WINDOW_S, DEMAND_KEPT_S = 5.0, 60.0


class ScriptReports:
    """What one rank says of its loss and gradient norm, read as it comes and put to the rules, and what its own checks
    found.

    A heartbeat reads it, and once more the thread that sees the rank's end: a loss in the last second counts too.
    """

    def __init__(
        self, rank: int, slot: ProgressPage, logs: RankLogs, before: ScriptReports | None = None, resumed_at: int = -1
    ) -> None:
        """``before``: of the earlier attempt, of this rank or another one. ``resumed_at``: the checkpoint's step."""
        self._rank, self._slot, self._logs = rank, slot, logs
        self._watch: LossWatch = LossWatch(None if before is None else before._watch, resumed_at)  # noqa: SLF001
        self._lock = threading.Lock()
        self._findings_count = 0
        self._checks: SelfChecks | None = None

    def anomalies(self) -> tuple[Anomaly, ...]:
        """Those of the whole attempt, the newest of each kind. What the script reports counts more than its log."""
        with self._lock:
            told, printed = self._slot.reports(), self._logs.take_losses(self._rank)
            if told.missed_step >= 0:
                self._watch.report(told.missed_step, math.nan, None)
            for one in told.entries:
                self._watch.report(one.step, one.loss, one.grad_norm)
            if not told.count and printed:
                at_step = self._slot.read().step
                for line in printed:
                    self._watch.report(max(line.step, at_step), line.loss, line.grad_norm)
            return self._watch.anomalies

    def checks(self) -> SelfChecks | None:
        """What its own checks found in this attempt; None: nothing."""
        with self._lock:
            count = self._slot.read().findings_count
            if count != self._findings_count:
                self._findings_count = count
                with contextlib.suppress(ValueError, RecursionError):  # it is the script's file
                    self._checks = msgspec.json.decode(read_findings(self._slot.path), type=SelfChecks)
            return self._checks


def reading(
    rank: int, pid: int, slot: SlotReading, logs: RankLogs, told: ScriptReports, demand: CpuDemand, now: float,
    *, wrapped: bool,
) -> RankSample:  # fmt: skip
    """One sample, in which what the script reports counts more than what it prints. ``wrapped``: a command of its own
    (a shell, a container), whose children do the work.
    """
    proc = read_proc(pid)
    procs = [] if proc is None else _tree(proc) if wrapped else [proc]
    return RankSample(
        rank=rank,
        step=slot.step,
        phase=slot.phase,
        slot_writes_count=slot.writes_count,
        output_bytes=logs.output_bytes(rank),
        cpu_s=demand.so_far_s(procs, now),
        state=_state(procs) if procs else "X",
        first_step=slot.first_step,
        kept_step=slot.kept_step,
        kept_losses_count=slot.kept_losses_count,
        loss=logs.loss(rank) if slot.loss is None else slot.loss,
        pid=pid,
        log_step=logs.step(rank) if slot.step < 0 else -1,
        log_first_step=logs.first_step(rank) if slot.step < 0 else -1,
        total_steps=slot.total_steps if slot.total_steps > 0 else logs.total_steps(rank),
        grad_norm=logs.grad_norm(rank) if slot.loss is None and slot.grad_norm is None else slot.grad_norm,
        tokens_count=slot.tokens_count,
        anomalies=told.anomalies(),
        checks=told.checks(),
    )


class CpuDemand:
    """CPU time that processes had, and that their main threads wanted: on a crowded node a rank that works may get next
    to none, and is not idle.

    A wait for a CPU counts by the share of its own time in which the main thread did not sleep, over the last seconds.
    One that works would have run instead: all of it counts. One that only looks for something every few milliseconds
    would sleep again at once, however long each of its looks waits: next to nothing does. Other threads do not count,
    since those of gloo and of the sampler wake up without work.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], deque[tuple[float, float, float]]] = {}  # when, ran, had waited
        self._wanted: dict[tuple[int, int], float] = {}

    def so_far_s(self, procs: Sequence[Proc], now: float) -> float:
        """Of all of them; it grows as long as these processes live."""
        return sum(one.cpu_ticks / TICKS_PER_S + self._wanted_s(one, now) for one in procs)

    def forget(self, now: float) -> None:
        """Those that nobody asked for lately."""
        for key in [key for key, rows in self._seen.items() if now - rows[-1][0] > DEMAND_KEPT_S]:
            del self._seen[key], self._wanted[key]

    def _wanted_s(self, proc: Proc, now: float) -> float:
        key, (ran, waited) = (proc.pid, proc.start_ticks), scheduled(proc.pid)
        rows = self._seen.setdefault(key, deque())
        was_waited = rows[-1][2] if rows else 0.0
        rows.append((now, ran, waited))
        while len(rows) > 2 and now - rows[1][0] >= DEMAND_WINDOW_S:
            rows.popleft()
        since, had_run, had_waited = rows[0]
        ran_s = ran - had_run
        slept_s = max(0.0, now - since - ran_s - (waited - had_waited))
        share = ran_s / (ran_s + slept_s) if ran_s + slept_s > 0 else 1.0
        self._wanted[key] = self._wanted.get(key, 0.0) + share * max(0.0, waited - was_waited)
        return self._wanted[key]


def scheduled(pid: int) -> tuple[float, float]:
    """How long its main thread ran, and was ready to run while no CPU took it; 0 if the kernel does not count that."""
    try:
        ran_ns, queued_ns = Path(f"/proc/{pid}/schedstat").read_bytes().split()[:2]
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


HELD_S = 2.0  # a sampler that has seen the main thread leave its call lately says enough


def look_at(rank: WatchedRank, sample: RankSample, demand: CpuDemand, now_ns: int) -> Look | None:
    """What the rank's sampler says; None if none runs. If the rank may stand, its children's work counts as its own."""
    page = rank.place.read() if rank.place is not None else None
    if rank.place is None or page is None:
        return None
    words, place = page
    at, exact = words[place_page.W_AT], words[place_page.W_EXACT]
    cpu_s, io_bytes = sample.cpu_s, 0
    if now_ns - (min(at, exact) if exact else at) > HELD_S * 1e9:
        if now_ns - at > HELD_S * 1e9 and not _maps(rank.proc.pid, rank.place.path):
            return None  # the script has replaced itself by another program
        cpu_s = demand.so_far_s(tree_of(rank.proc.pid), now_ns / 1e9) or cpu_s
        io_bytes = _io_bytes(rank.proc.pid)
    first, groups_count = place_page.W_COUNTS, words[place_page.W_GROUPS]
    counts = tuple((words[n], words[n + 1]) for n in range(first, first + 2 * groups_count, 2))
    return Look(
        at=at / 1e9,
        has_exact=bool(words[place_page.W_HAS_EXACT]),
        key=words[place_page.W_KEY],
        exact_since=exact / 1e9,
        sampled_since=words[place_page.W_SAMPLED] / 1e9,
        circling_since=words[place_page.W_CIRCLING] / 1e9,
        counted_at=words[place_page.W_COUNTED] / 1e9,
        timeout_s=words[place_page.W_TIMEOUT] / 1e3,
        counts=counts,
        place=place,
        state=sample.state,
        cpu_s=cpu_s,
        io_bytes=io_bytes,
        told_count=sample.slot_writes_count + (0 if counts else sample.output_bytes),
        looks=(words[place_page.W_LOOKS], words[place_page.W_WAITS]),
        scheduled=scheduled(rank.proc.pid),
    )


def _maps(pid: int, path: str) -> bool:
    try:
        return path in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True  # nobody says otherwise


def _io_bytes(pid: int) -> int:
    """That it has read and written, files and pipes; 0 where we may not see it."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar:", "wchar:")))
    except (OSError, ValueError):
        return 0


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and all below it, such as data loaders' workers; what they share counts in each."""
    return PAGE_BYTES * sum(one.resident_pages for one in tree_of(pid))


def anonymous_bytes(procs: Sequence[Proc]) -> int:
    """Memory without pages of files, which the kernel can take back."""
    pages = 0
    for one in procs:
        try:
            _, resident, shared = Path(f"/proc/{one.pid}/statm").read_bytes().split()[:3]
        except (OSError, ValueError):
            continue  # it has just ended
        pages += int(resident) - int(shared)
    return PAGE_BYTES * pages


def open_files(pid: int) -> tuple[int, int] | None:
    """How many files the process has open, and how many it may have; None if we may not see it."""
    try:
        count = len(os.listdir(f"/proc/{pid}/fd"))
        limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return None if limit == resource.RLIM_INFINITY else (count, limit)


class NodeRoom:
    """What is left of this node's memory and threads: what the kernel has, or less if a cgroup of ours has a limit (v1
    and v2), or the user.
    """

    def __init__(self, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup"), uid: int | None = None) -> None:
        self._proc, self._uid = proc, os.getuid() if uid is None else uid
        counter = oom_file(proc / "self" / "cgroup", root)
        self._groups = _upwards(None if counter is None else counter.parent, root)
        self._task_groups = _upwards(_group_of_tasks(proc / "self" / "cgroup", root), root)
        self._of_user = -1, 0  # threads of the ranks when those of the user were counted, and those

    def threads(self, of_ranks: Mapping[int, int]) -> tuple[int, int]:
        """In use and allowed, by the limit with the least room; (0, 0) if nobody says it. ``of_ranks``: threads of each
        rank, by its pid: as long as those are the same, the user's other ones are not counted anew.
        """
        limits = [self._tasks_of_kernel(), *map(_tasks_of_group, self._task_groups), self._tasks_of_user(of_ranks)]
        return min((one for one in limits if one is not None), key=lambda one: one[1] - one[0], default=(0, 0))

    def _tasks_of_kernel(self) -> tuple[int, int] | None:
        try:
            used = int((self._proc / "loadavg").read_text().split()[3].partition("/")[2])
            return used, min(int((self._proc / "sys/kernel" / name).read_text()) for name in ("pid_max", "threads-max"))
        except (OSError, ValueError, IndexError):
            return None

    def _tasks_of_user(self, of_ranks: Mapping[int, int]) -> tuple[int, int] | None:
        """``ulimit -u`` counts all threads of the user on the node, and does not hold for root."""
        try:
            limits = {resource.prlimit(pid, resource.RLIMIT_NPROC)[0] for pid in of_ranks} - {resource.RLIM_INFINITY}
        except OSError:
            return None
        if not limits or self._uid == 0:
            return None
        if (total := sum(of_ranks.values())) != self._of_user[0]:
            try:
                with os.scandir(self._proc) as entries:
                    theirs = [entry.name for entry in entries if entry.name.isdigit() and _owner(entry) == self._uid]
            except OSError:
                return None
            procs = [proc for name in theirs if (proc := read_proc(int(name))) is not None]
            self._of_user = total, sum(proc.threads_count for proc in procs)
        return self._of_user[1], min(limits)

    def left_bytes(self) -> int:
        """-1 if nobody says it."""
        lefts = [left for left in (self._of_kernel(), *map(_left_of_group, self._groups)) if left is not None]
        return max(0, min(lefts)) if lefts else -1

    def limit_bytes(self) -> int:
        """The tightest limit of our cgroups; 0 if there is none."""
        return min((found for one in self._groups if (found := _limit_of_group(one)) is not None), default=0)

    def _of_kernel(self) -> int | None:
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
        except (OSError, ValueError, IndexError):
            return None


def _upwards(folder: Path | None, root: Path) -> list[Path]:
    """This cgroup and those above it."""
    folders = [] if folder is None else [folder, *folder.parents]
    return [one for one in folders if one.is_relative_to(root)]


def _group_of_tasks(proc: Path, root: Path) -> Path | None:
    """Our cgroup that may limit tasks; None if there is none."""
    try:
        rows = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return None
    paths = {name: path.lstrip("/") for _, names, path in rows for name in names.split(",")}
    if "pids" in paths:
        return root / "pids" / paths["pids"]
    return root / paths[""] if "" in paths else None


def _tasks_of_group(folder: Path) -> tuple[int, int] | None:
    """In use and allowed; None: it has no limit."""
    try:
        return int((folder / "pids.current").read_text()), int((folder / "pids.max").read_text())
    except (OSError, ValueError):
        return None  # "max" is no number


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1  # it has just ended


UNLIMITED_BYTES = 1 << 60  # about what v1 says of a group without a limit


def _left_of_group(folder: Path) -> int | None:
    """None: it has no limit, or is no group of ours. The cache of files in it can be taken back."""
    for limit, used, caches in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        try:
            most = int((folder / limit).read_text())
            if most >= UNLIMITED_BYTES:
                return None
            pairs = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return most - int((folder / used).read_text()) + sum(int(pairs.get(name, 0)) for name in caches)
        except (OSError, ValueError):
            continue  # "max" is no number
    return None


def _limit_of_group(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            limit_bytes = int((folder / name).read_text())
        except (OSError, ValueError):
            continue
        return limit_bytes if limit_bytes < UNLIMITED_BYTES else None
    return None


def use_of_node(ranks: Mapping[int, int], room: NodeRoom) -> NodeUse:
    """What the ranks that train have, and what is left. ``ranks``: the pid of each."""
    files = {rank: seen for rank, pid in ranks.items() if (seen := open_files(pid)) is not None}
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 - it is looked at, not written
        used, left = (shm.f_blocks - shm.f_bfree) * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        used, left = 0, -1
    trees = {rank: tree_of(pid) for rank, pid in ranks.items()}
    memory = {rank: anonymous_bytes(procs) for rank, procs in trees.items()}
    threads = {rank: sum(proc.threads_count for proc in procs) for rank, procs in trees.items()}
    threads_used, threads_limit = room.threads({ranks[rank]: count for rank, count in threads.items() if count})
    return NodeUse(
        memory, room.left_bytes(), files, used, left, threads=threads, threads_used=threads_used,
        threads_limit=threads_limit,
    )  # fmt: skip


def _children(pid: int) -> list[int]:
    """Pids of the children that its main thread has; [] where the kernel does not list them."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def new_children(pid: int, seen: Mapping[int, Proc]) -> dict[int, Proc]:
    """Children not seen before: workers that end with their rank must be known while they live."""
    return {proc.pid: proc for proc in map(read_proc, set(_children(pid)) - set(seen)) if proc is not None}


def _state(procs: list[Proc]) -> str:
    """The state of the one that matters: stuck before stopped before running before asleep."""
    states = {proc.state for proc in procs}
    return next((state for state in "DTtR" if state in states), procs[0].state)


def tree_of(pid: int) -> list[Proc]:
    """The process and those below it, bounded; [] if it is gone."""
    proc = read_proc(pid)
    return [] if proc is None else _tree(proc)


def _tree(root: Proc) -> list[Proc]:
    """The process and those below it, bounded; only the root where the kernel does not list children."""
    found = [root]
    todo = [root.pid]
    while todo and len(found) < TREE_MAX_COUNT:
        children = _children(todo.pop())
        todo += children
        found += [proc for proc in map(read_proc, children) if proc is not None]
    return found


POLL_S = 0.02
SETTLED_S = 0.1  # a dump that has not grown for this long is whole
_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\S+) in (?P<function>.*)$')
_SYSCALL_STATES = {"D": "waits in the kernel and cannot be woken", "T": "is stopped", "t": "is held by a debugger"}


def take_stacks(
    subjects: Sequence[WatchedRank], keep_in: Path, within_s: float, now: Callable[[], float]
) -> tuple[RankStack, ...]:
    """Ask all at once, wait for all together, keep what came."""
    pause = threading.Event()
    before = {subject.rank: _size(subject.files.stack) for subject in subjects}
    asked = [subject for subject in subjects if _can_answer(subject.proc.pid)]
    for subject in asked:
        kill(subject.proc, signal.SIGRTMIN + STACK_SIGNAL_OFFSET)
    give_up_at = now() + within_s
    sizes, since = dict(before), now()
    while asked and now() < give_up_at:
        pause.wait(POLL_S)
        newest = {subject.rank: _size(subject.files.stack) for subject in asked}
        if any(newest[rank] != sizes[rank] for rank in newest):
            sizes.update(newest)
            since = now()
        if all(sizes[s.rank] > before[s.rank] for s in asked) and now() - since >= SETTLED_S:
            break
    return tuple(_stack(subject, before[subject.rank], keep_in) for subject in subjects)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _can_answer(pid: int) -> bool:
    """Whether the signal would be caught, now: anything else it would kill, or wait."""
    try:
        fields = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        caught = int(fields["SigCgt"], 16) >> (signal.SIGRTMIN + STACK_SIGNAL_OFFSET - 1) & 1
    except (OSError, KeyError, ValueError):
        return False
    return bool(caught) and fields.get("State", "?")[0] not in _SYSCALL_STATES


def _stack(subject: WatchedRank, offset: int, keep_in: Path) -> RankStack:
    text = _read_from(subject.files.stack, offset)
    kernel = kernel_view(subject.proc.pid)
    path = keep_in / f"rank-{subject.rank}.txt"
    try:
        keep_in.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"rank {subject.rank} on {subject.node}, process {subject.proc}\nkernel: {kernel}\n{text}\n")
        kept = str(path)
    except OSError:
        kept = ""  # the frame alone must do
    return RankStack(
        subject.rank, subject.node, innermost_frame(text) or f"no Python stack: {kernel}", kept, _recorded(subject)
    )


def _recorded(subject: WatchedRank) -> tuple[Collective, ...]:
    """What its flight recorder held when it began to stand; () if it could not write it, or wrote something else."""
    if subject.place is None or not subject.place.has_dumped:
        return ()
    return flight_dumps.written_by_sampler(Path(f"{subject.place.path}.dump"))


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def innermost_frame(dump: str) -> str:
    """The innermost frame of the main thread, as ``train.py:12 in forward``; "" if there is none.

    faulthandler lists the main thread last.
    """
    frame = ""
    at_top = False
    for line in dump.splitlines():
        if line.endswith("(most recent call first):"):
            at_top = True
        elif at_top:
            found = _FRAME.match(line)
            frame = f"{Path(found['file']).name}:{found['line']} in {found['function']}" if found else ""
            at_top = False
    return frame


def kernel_view(pid: int) -> str:
    """What /proc says that the process is doing."""
    proc = read_proc(pid)
    if proc is None:
        return "it is gone"
    words = [_SYSCALL_STATES.get(proc.state, f"state {proc.state}")]
    for name in ("wchan", "syscall"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text().strip()
        except OSError:
            continue  # not allowed without ptrace rights: the state must do
        if text and text not in ("0", "running"):
            words.append(f"{name} {text.split()[0]}")
    return ", ".join(words)
