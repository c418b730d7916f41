"""What real ranks leave, and what of it is taken for their end."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gangrun.agent.brain import facts
from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.exits import OomCounter, WatchedRank, watch
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.evidence import Collective, RankExit
from gangrun.node.processes import read_proc
from gangrun.wire.progress import ProgressPage
from gangrun.wire.spec import LogSpec
from tests.local_parts.gang import Harness, boottime, harness, order
from tests.waiting import until

SURVIVED = """
import logging, os, sys, time
try:
    raise RuntimeError("Failed to initialize NVML: Driver/library version mismatch")
except RuntimeError:
    logging.exception("no metrics")
"""


def ended(directory: Path, script: str, *, through_boot: bool = True) -> RankExit:
    """How one rank ends that runs this script, by our boot file or as a command of its own."""
    path = directory / "script.py"
    path.write_text(textwrap.dedent(script))
    command = (str(path),) if through_boot else (sys.executable, str(path))
    with harness(Harness(directory, command, through_boot=through_boot)) as made:
        made.gang.launch(order(1))
        return made.next_fact(facts.RankEnded).exit


@pytest.mark.parametrize(
    ("number", "through_boot"),
    [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGSEGV, True), (signal.SIGSEGV, False), (15, False)],
)
def test_an_error_that_the_script_logged_did_not_end_a_rank_that_was_killed(
    tmp_path: Path, number: int, through_boot: bool
) -> None:
    goes_on = "logging.warning('going on')\ntime.sleep(1.2)\nlogging.warning('step 2')\n"
    script = SURVIVED + goes_on + f"os.kill(os.getpid(), {int(number)})\n"
    died = ended(tmp_path, script, through_boot=through_boot)
    assert (died.signal, died.error) == (number, None) and died.mark != "driver-mismatch"
    assert not any("NVML" in line for line in died.tail), "nor may its lines be read as the last words"


def test_an_error_that_the_script_logged_is_not_why_it_left_with_a_code_of_its_own(tmp_path: Path) -> None:
    died = ended(tmp_path, SURVIVED + "print('bad label -7', flush=True)\nos._exit(17)\n")
    assert (died.code, died.error, died.mark) == (17, None, "-")


@pytest.mark.parametrize("leave", ["sys.exit(1)", "os._exit(1)", "sys.exit(3)"])
@pytest.mark.parametrize("through_boot", [True, False])
def test_an_error_that_the_script_shows_as_the_last_thing_ended_it(
    tmp_path: Path, leave: str, through_boot: bool
) -> None:
    script = f"""
        import os, sys, traceback
        try:
            raise RuntimeError("bad shard 7")
        except RuntimeError:
            traceback.print_exc()
            {leave}
    """
    died = ended(tmp_path, script, through_boot=through_boot)
    assert died.error is not None and (died.error.kind, died.error.message) == ("RuntimeError", "bad shard 7")


WATCHDOG = """
    import os, sys
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
        file.write({what})
    sys.exit(3)
"""
DUMP = "torch._C._distributed_c10d._dump_fr_trace()"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (DUMP, (Collective("0", 3, "gloo:all_reduce", "1000", 3, True),)),  # as the watchdog of NCCL writes it
        (DUMP + "[:-9]", ()),
        ("b'{}'", ()),
        ("__import__('pickle').dumps({'entries': [print]}, 2)", ()),  # it would be called by whoever unpickles it
        ("__import__('pickle').dumps({'entries': 1}, 2)", ()),
        ("bytes((64 << 20) + 1)", ()),
    ],
)
def test_what_the_watchdog_of_nccl_wrote_is_read_at_the_ranks_end(
    tmp_path: Path, what: str, told: tuple[Collective, ...]
) -> None:
    (tmp_path / "run" / "flight-recorder").mkdir(parents=True)
    assert ended(tmp_path, WATCHDOG.replace("{what}", what)).collectives == told


def test_what_the_watchdog_wrote_of_an_earlier_attempt_is_not_this_ranks(tmp_path: Path) -> None:
    """As under a name of the user's, which does not tell attempts apart."""
    (tmp_path / "run" / "flight-recorder").mkdir(parents=True)
    old = WATCHDOG.replace("{what}", DUMP).replace("sys.exit", "os.utime(file.name, (10**9, 10**9)); sys.exit")
    assert ended(tmp_path, old).collectives == ()


HELPER = """
import json, os, subprocess, sys, time
if len(sys.argv) > 1:
    told = {"message": "RuntimeError: CUDA error: uncorrectable ECC error", "extraInfo": {"py_callstack": ""}}
    json.dump({"message": told}, open(os.environ["TORCHELASTIC_ERROR_FILE"], "w"))
    if "GANGRUN_ERROR_FILE" in os.environ:
        told = {"type": "RuntimeError", "message": "CUDA error: uncorrectable ECC error"}
        json.dump(told, open(os.environ["GANGRUN_ERROR_FILE"], "w"))
    raise RuntimeError("CUDA error: uncorrectable ECC error")
subprocess.run([sys.executable, __file__, "helper"])
time.sleep(1.2)
print("going on", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(4)"])
def test_what_a_helper_process_reports_is_not_the_ranks_end(tmp_path: Path, end: str) -> None:
    assert ended(tmp_path, HELPER + end).error is None
    assert ended(tmp_path, HELPER + "os.kill(os.getpid(), 9)", through_boot=False).error is None


def test_what_a_worker_raises_in_its_rank_is_the_ranks_end(tmp_path: Path) -> None:
    script = """
        import multiprocessing
        def work(n):
            raise OSError(28, "No space left on device", "/tmp/cache")
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                pool.map(work, [1])
    """
    died = ended(tmp_path, script)
    assert died.error is not None and died.error.kind == "OSError" and "[Errno 28]" in died.error.message


def test_what_python_prints_after_the_error_does_not_hide_it(tmp_path: Path) -> None:
    script = """
        import atexit, sys, time, warnings
        def late():
            time.sleep(1.2)
            sys.stderr.write("[rank0]:[W1121 10:00:01.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
                             "destroy_process_group() was not called before program exit\\n")
            warnings.warn("resource_tracker: There appear to be 3 leaked semaphore objects to clean up")
        atexit.register(late)
        class Pool:
            def __del__(self): raise ValueError("late")
        pool = Pool()
        raise RuntimeError("bad shard 7\\nof 9")
    """
    died = ended(tmp_path, script, through_boot=False)
    assert died.error is not None and (died.error.kind, died.error.message) == ("RuntimeError", "bad shard 7")
    assert died.tail, "people see what came after it"


@pytest.mark.parametrize(
    ("stopped", "reported", "is_oom"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_only_a_rank_that_we_did_not_kill_was_killed_for_memory(
    tmp_path: Path, stopped: bool, reported: bool, is_oom: bool
) -> None:
    """The kernel's counter is one for all: it says nothing of a rank that we killed because of the first one's end."""
    own, events = tmp_path / "self", tmp_path / "memory.events"
    own.write_text("0::/\n")
    events.write_text("oom 0\noom_kill 0\n")
    oom, files, told = OomCounter(own, tmp_path), RankFiles.below(tmp_path, 0), list[RankExit]()
    if reported:  # its peer was gone; such ranks are killed before the others
        files.error.write_text(json.dumps({"type": "RuntimeError", "message": "lost", "written_at": boottime()}))
    child = subprocess.Popen(["sleep", "600"])
    proc = read_proc(child.pid)
    assert proc is not None
    rank = WatchedRank(0, "n", child, proc, ProgressPage(str(files.slot), 0), files, through_boot=True)
    logs = RankLogs("n", tmp_path / "logs", LogSpec(), boottime)
    stopped_at = boottime() if stopped else math.inf
    watch(rank, logs, oom, lambda: stopped_at, boottime, told.append, memory=lambda: "rank 0 held 1 GB")
    events.write_text("oom 1\noom_kill 1\n")
    child.kill()
    until(rank.told.is_set, 30, "how it ended")
    assert [(how.signal, how.oom_kill, how.memory) for how in told] == [
        (9, is_oom, "rank 0 held 1 GB" if is_oom else "")
    ]
