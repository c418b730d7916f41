"""What is left of a node's memory, and what its ranks' processes use."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.agent.ranks.observe import (
    CpuDemand,
    NodeRoom,
    anonymous_bytes,
    open_files,
    scheduled,
    tree_of,
    use_of_node,
)
from gangrun.core.recovery.standing import IDLE_CPU_RATE
from tests.waiting import until

KIB, GIB = 1024, 1024**3


def room(folder: Path, own: str, files: dict[str, str], meminfo: str = f"MemAvailable: {8 * GIB // KIB} kB\n") -> int:
    """``files`` of the cgroups, below their root."""
    proc, root = folder / "proc", folder / "cgroup"
    for path, text in {proc / "self" / "cgroup": own, proc / "meminfo": meminfo}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return NodeRoom(proc, root).left_bytes()


def v2(group: str, limit: object, used: int, cache: int) -> dict[str, str]:
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": f"anon {used - cache}\ninactive_file {cache // 2}\nactive_file {cache - cache // 2}\n",
    }


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 8 * GIB),
        (v2("job/task", "max", GIB, 0), 8 * GIB),
        (v2("job/task", 4 * GIB, GIB, 0), 3 * GIB),
        (v2("job/task", 4 * GIB, 3 * GIB, 2 * GIB), 3 * GIB),  # the cache of files can be taken back
        (v2("job/task", "max", GIB, 0) | v2("job", 4 * GIB, 2 * GIB, 0), 2 * GIB),  # the job's limit, as Slurm sets it
        (v2("job/task", 64 * GIB, GIB, 0), 8 * GIB),  # the node itself has less
        (v2("job/task", GIB, 2 * GIB, 0), 0),
    ],
)
def test_what_is_left_is_the_nodes_or_the_tightest_limit_of_our_cgroups(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    assert room(tmp_path, "0::/job/task\n", {"job/task/memory.events": "oom_kill 0\n", **files}) == left


def test_the_tightest_limit_of_our_cgroups_is_told_itself(tmp_path: Path) -> None:
    room(tmp_path, "0::/job/task\n", {"job/task/memory.events": "", **v2("job/task", 4 * GIB, 0, 0)})
    found = NodeRoom(tmp_path / "proc", tmp_path / "cgroup")
    assert found.limit_bytes() == 4 * GIB
    for path, limit in (("job/memory.max", GIB), ("memory.limit_in_bytes", GIB // 2), ("job/task/memory.max", "max")):
        (tmp_path / "cgroup" / path).write_text(f"{limit}\n")
        assert found.limit_bytes() == (GIB if path == "job/memory.max" else GIB // 2)
    for path in ("job/memory.max", "memory.limit_in_bytes"):
        (tmp_path / "cgroup" / path).write_text("9223372036854771712\n")
    assert found.limit_bytes() == NodeRoom(tmp_path, tmp_path / "none").limit_bytes() == 0


def test_cgroups_of_the_first_version_have_limits_too(tmp_path: Path) -> None:
    group = "memory/job"
    files = {
        f"{group}/memory.oom_control": "oom_kill 0\n",
        f"{group}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{group}/memory.stat": f"cache 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
    }
    assert room(tmp_path, "4:memory:/job\n", files) == 2 * GIB
    files[f"{group}/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert room(tmp_path, "4:memory:/job\n", files) == 8 * GIB


def test_where_nobody_says_it_nothing_is_known(tmp_path: Path) -> None:
    assert room(tmp_path, "0::/\n", {}, meminfo="MemFree: 1 kB\n") == -1
    assert NodeRoom(tmp_path / "none", tmp_path / "none").left_bytes() == -1


def test_a_mapped_file_is_no_memory_that_grows(tmp_path: Path) -> None:
    path, size = tmp_path / "data", 64 << 20
    path.write_bytes(b"x" * size)

    def own_bytes() -> int:
        return anonymous_bytes(tree_of(os.getpid()))

    before = own_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, size, 4096)) == size // 4096 * ord("x")
        assert own_bytes() < before + size // 2
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the heap may have had as much to spare
    with mmap.mmap(-1, size, flags=flags) as held:
        for at in range(0, size, mmap.PAGESIZE):
            held[at] = 1
        assert own_bytes() > before + size // 2
    assert anonymous_bytes(tree_of(2**30)) == 0


def waiting(script: str) -> subprocess.Popen[bytes]:
    """A process that has run this, and waits for a line."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{script}; print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    return child


LOADAVG = "0.1 0.2 0.3 2/1000 77\n"


@pytest.mark.parametrize(
    ("own", "files", "nearest"),
    [
        ("0::/job/task\n", {}, (1000, 30_000)),
        ("0::/job/task\n", {"job/task/pids.max": "max\n", "job/task/pids.current": "9\n"}, (1000, 30_000)),
        ("0::/job/task\n", {"job/pids.max": "512\n", "job/pids.current": "400\n"}, (400, 512)),  # of the whole job
        ("8:pids:/job\n0::/\n", {"pids/job/pids.max": "99\n", "pids/job/pids.current": "9\n"}, (9, 99)),
        ("8:pids:/elsewhere\n", {"pids/pids.max": "99\n", "pids/pids.current": "9\n"}, (9, 99)),  # in a container
        ("0::/\n", {"pids.max": "99999\n", "pids.current": "9\n"}, (1000, 30_000)),
    ],
)
def test_threads_count_against_the_limit_that_leaves_the_fewest(
    tmp_path: Path, own: str, files: dict[str, str], nearest: tuple[int, int]
) -> None:
    room(tmp_path, own, files)
    proc = tmp_path / "proc"
    kernel = {"loadavg": LOADAVG, "sys/kernel/pid_max": "30000\n", "sys/kernel/threads-max": "90000\n"}
    for name, text in kernel.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    assert NodeRoom(proc, tmp_path / "cgroup", uid=0).threads({os.getpid(): 1}) == nearest
    (proc / "loadavg").unlink()
    assert NodeRoom(proc, tmp_path / "none", uid=0).threads({os.getpid(): 1}) == (0, 0)


def test_threads_of_a_user_count_against_the_limit_of_a_rank_and_are_counted_anew_when_a_rank_has_more(
    tmp_path: Path,
) -> None:
    """``ulimit -u``, which does not hold for root. The table of processes has this one and two that are no longer."""
    child = waiting("import resource; resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))")
    uid, pids = os.getuid(), (child.pid, os.getpid(), 2**30)
    for pid in pids:
        (tmp_path / str(pid)).mkdir()
    (mine,) = tree_of(os.getpid())[:1]
    found = NodeRoom(tmp_path, tmp_path, uid=uid or 7)
    if uid == 0:
        for pid in pids:
            os.chown(tmp_path / str(pid), 7, -1)
    assert found.threads({child.pid: 1}) == (1 + mine.threads_count, 50)
    (tmp_path / str(os.getpid())).rmdir()
    assert found.threads({child.pid: 1}) == (1 + mine.threads_count, 50), "nothing has changed that would tell of it"
    assert found.threads({child.pid: 2}) == (1, 50)
    assert NodeRoom(tmp_path, tmp_path, uid=0).threads({child.pid: 1}) == (0, 0)
    child.communicate(b"\n")
    assert found.threads({child.pid: 2}) == (0, 0)


def test_threads_of_a_rank_are_those_of_its_process_and_of_the_processes_below_it(tmp_path: Path) -> None:
    program = (
        "import threading; w = threading.Event().wait; s = lambda: threading.Thread(target=w, daemon=True).start()"
    )
    below = "k = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)"
    child = waiting(f"import subprocess, sys; {program}; s(); s(); {below}")
    use = use_of_node({7: child.pid}, NodeRoom(tmp_path, tmp_path, uid=0))
    assert (use.threads, use.threads_used, use.threads_limit) == ({7: 4}, 0, 0)
    child.communicate(b"\n")


def test_open_files_and_their_limit_are_those_of_the_process(tmp_path: Path) -> None:
    child = waiting("import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))")
    use = use_of_node({7: child.pid}, NodeRoom(tmp_path, tmp_path))
    assert use.files == {7: (3, 99)}
    assert use.memory[7] > 10**6 and use.shared_left != 0
    child.communicate(b"\n")
    assert open_files(child.pid) is None


@contextlib.contextmanager
def started(*texts: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Python processes with these programs, until the block ends."""
    found = [subprocess.Popen([sys.executable, "-c", text]) for text in texts]
    try:
        yield found
    finally:
        for one in found:
            one.kill()
            one.wait()


@pytest.mark.processes
def test_a_rank_that_gets_next_to_no_cpu_is_not_idle_and_one_that_sleeps_or_polls_is() -> None:
    """Those with the lowest priority share a CPU with two that spin. One gets under 1 % of it, and wants all. Another
    one looks for a file a hundred times a second, and waits for the CPU each time: longer than it sleeps.
    """
    cpu = min(os.sched_getaffinity(0))
    begin = f"import os, time; os.sched_setaffinity(0, {{{cpu}}}); "
    spins, sleeps = begin + "\nwhile True: pass", begin + "time.sleep(600)"
    works = begin + "os.nice(19)\nwhile True: pass"
    polls = begin + "os.nice(19)\nwhile not os.path.exists('/nowhere'): time.sleep(0.01)"
    with started(works, sleeps, polls, spins, spins) as (starved, asleep, polling, *_):
        demand, seen = CpuDemand(), {one.pid: list[tuple[float, float]]() for one in (starved, asleep, polling)}

        def rate(pid: int) -> float:
            """Over the last 5 s and more; 0 before."""
            at = time.monotonic()
            seen[pid].append((at, demand.so_far_s(tree_of(pid), at)))
            began = next((row for row in reversed(seen[pid]) if at - row[0] >= 5.0), seen[pid][-1])
            return (seen[pid][-1][1] - began[1]) / (at - began[0]) if began[0] < at else 0.0

        def told() -> bool:
            wanted, slept, polled = rate(starved.pid), rate(asleep.pid), rate(polling.pid)
            waited_s = scheduled(polling.pid)[1]
            return wanted > 0.5 and slept < IDLE_CPU_RATE and polled < IDLE_CPU_RATE and waited_s > 2.0

        until(told, 60, lambda: f"one that works, one that sleeps and one that polls: {seen}")
        assert scheduled(starved.pid)[1] > 1 > scheduled(asleep.pid)[1]


def test_processes_that_nobody_asks_for_are_forgotten_after_a_minute() -> None:
    demand = CpuDemand()
    demand.so_far_s(tree_of(os.getpid()), 100.0)
    demand.forget(159.0)
    assert demand._seen
    demand.forget(161.0)
    assert not demand._seen and not demand._wanted
