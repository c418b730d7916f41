"""What a node must prove, and questions that may never be answered."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.agent.background_tasks import BackgroundTasks
from gangrun.agent.brain import facts
from gangrun.agent.preflight import MemoryLimits, memory_limits, preflight
from gangrun.entry.agent import check
from tests.waiting import until


@pytest.mark.parametrize(
    ("given", "ok", "word"),
    [
        ({}, True, ""),
        ({"nofile_hard": 1025}, False, "needs 1026"),
        ({"nofile_hard": 1026}, True, ""),
        ({"probe": lambda: "cannot write to /runs"}, False, "cannot write"),
        ({"checkpoint_probe": lambda: "/ckpt: a directory cannot be renamed"}, True, "cannot be renamed"),
        ({"clock": lambda: "its clock is 61 s behind"}, True, "61 s behind"),
        ({"cpus_asked": "8", "cpus_allowed": 1}, True, "1 of the 8 CPUs"),
        ({"cpus_asked": "8", "cpus_allowed": 8}, True, ""),
        ({"cpus_asked": "", "cpus_allowed": 1}, True, ""),
        ({"cpus_asked": "8", "cpus_allowed": 1, "clock": lambda: "it is 61 s behind"}, True, "behind; its ranks"),
    ],
)
def test_refusals_name_the_figure_and_poor_things_are_only_said(given, ok, word):
    facts_given = {"nofile_hard": 4096, "agents_count": 2, "probe": lambda: "", "clock": str, **given}
    checked = preflight(**facts_given)
    assert checked.ok is ok
    assert word in checked.why
    assert bool(checked.why) == bool(word)


def test_an_agent_probes_the_run_directory_and_the_checkpoint_directory(tmp_path: Path) -> None:
    (tmp_path / ".gangrun").mkdir()
    for directory, word in (
        ("", ""),
        (str(tmp_path / "not" / "yet"), ""),
        ("/proc/checkpoints", "cannot write to /proc"),
        (f"/{'x' * 300}/checkpoints", "cannot write to /x"),  # it cannot even be asked what is there
    ):
        checked = check(RunPaths(tmp_path), SystemClock(), 4096, 2, 1, "abc", str, directory)
        assert checked.ok and checked.why.startswith(word) and bool(checked.why) == bool(word), checked
    assert not check(RunPaths(Path("/proc")), SystemClock(), 4096, 2, 1, "abc", str, "").ok


GB, BIG = 10**9, 64 * 10**9


@pytest.mark.parametrize(
    ("limits", "ok", "word"),
    [
        (MemoryLimits(), True, ""),
        (MemoryLimits(together=100 * 10**6, source="memory.max of its cgroup"), False, "100.0 MB"),
        (MemoryLimits(together=115 * 10**6), False, "8 ranks cannot even begin"),
        (MemoryLimits(together=118 * 10**6), True, "118.0 MB of memory together"),
        (
            MemoryLimits(together=8 * GB - 1, source="memory.max of its cgroup"),
            True,
            "8.0 GB of memory together, 1000.0 MB",
        ),
        (MemoryLimits(together=8 * GB, asked=8 * GB, total=BIG), True, ""),
        (MemoryLimits(together=8 * GB, asked=16 * GB), True, "16.0 GB of memory were asked for, its ranks may use 8.0"),
        (MemoryLimits(address_space=63 * GB, total=BIG), True, "63.0 GB of address space (`ulimit -v`)"),
        (MemoryLimits(address_space=BIG, total=BIG), True, ""),
        (MemoryLimits(data=2 * GB, total=BIG), True, "2.0 GB of data (`ulimit -d`)"),
        (MemoryLimits(data=BIG, total=BIG), True, ""),
        (MemoryLimits(locked=65536, total=BIG), True, ""),
        (MemoryLimits(locked=65536, total=BIG, infiniband=True), True, "lock 0.1 MB of memory (`ulimit -l`)"),
        (MemoryLimits(locked=None, total=BIG, infiniband=True), True, ""),
    ],
)
def test_a_limit_that_will_break_the_run_is_said_before_it_begins(limits, ok, word):
    checked = preflight(nofile_hard=4096, agents_count=2, probe=lambda: "", clock=str, memory=limits, ranks_count=8)
    assert checked.ok is ok
    assert word in checked.why
    assert bool(checked.why) == bool(word)


def box(root: Path, cgroup: str, **files: str) -> Path:
    """A machine of small files; ``__`` stands for a slash."""
    told = {"proc/self/cgroup": cgroup, "proc/meminfo": "MemFree: 1 kB\nMemTotal:    64 kB\n"}
    for name, text in {**told, **{name.replace("__", "/"): text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_of_all_cgroups_around_us_the_least_holds(tmp_path):
    job, step = "sys__fs__cgroup__slurm__job__", "sys__fs__cgroup__slurm__job__step__"
    maxima = {f"{step}memory.max": "max\n", f"{job}memory.max": "5000000\n", "sys__fs__cgroup__memory.max": "9000000\n"}
    found = memory_limits({}, box(tmp_path, "0::/slurm/job/step\n", **maxima))
    assert (found.together, found.source, found.total) == (5000000, "memory.max of its cgroup", 65536)


def test_the_first_version_of_cgroups_is_read_too_and_none_at_all_is_no_limit(tmp_path):
    name = "sys__fs__cgroup__memory__slurm__memory.limit_in_bytes"
    older = box(tmp_path / "1", "4:cpu,memory:/slurm\n3:pids:/slurm\n", **{name: "7000000\n"})
    assert memory_limits({}, older).together == 7000000
    boundless = box(tmp_path / "2", "4:memory:/slurm\n", **{name: "9223372036854771712\n"})
    assert memory_limits({}, boundless).together is None
    assert memory_limits({}, tmp_path / "3").together is None


def test_what_the_job_asked_for_and_what_a_process_may_have(tmp_path):
    found = memory_limits({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "8"}, tmp_path)
    assert found.asked == 800 << 20
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert found.locked == (None if soft == resource.RLIM_INFINITY else soft)


def test_an_answer_is_taken_once_and_an_exception_is_one_too():
    errands = BackgroundTasks()
    assert errands.take() == []
    errands.ask("fine", lambda: facts.Checked(True), lambda e: facts.Checked(False))
    assert until(errands.take, 5, "the answer") == [facts.Checked(True)]
    assert errands.take() == []

    def fails() -> facts.Fact:
        raise OSError("stale file handle")

    errands.ask("fine", fails, lambda e: facts.Checked(False, str(e)))
    assert until(errands.take, 5, "the answer") == [facts.Checked(False, "stale file handle")]


def test_one_of_a_kind_is_out_at_a_time_and_does_not_keep_others_back():
    errands, gate, asked = BackgroundTasks(), threading.Event(), []

    def slow() -> facts.Fact:
        asked.append(1)
        gate.wait(100)
        return facts.TermFound(None)

    for _ in range(5):
        errands.ask("slow", slow, lambda e: facts.TermFound(None))
    errands.ask("other", lambda: facts.Checked(True), lambda e: facts.Checked(False))
    assert until(errands.take, 5, "the other answer") == [facts.Checked(True)]
    gate.set()
    assert until(errands.take, 5, "the slow answer") == [facts.TermFound(None)]
    assert len(asked) == 1
    errands.ask("slow", slow, lambda e: facts.TermFound(None))
    until(lambda: len(asked) == 2, 5, "asked again")
