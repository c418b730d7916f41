"""The run directory or one of our processes stands still: training goes on, and nothing is started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.node import processes
from tests.faults.disk import say
from tests.local.evidence import alive, each_step_once, kinds, never_two_gangs
from tests.local.harness import Box
from tests.waiting import stays, until

QUICK = ("--silence-after", "2", "--fence-after", "15")  # the shortest lease that the policy's laws allow, about


def steered(box: Box) -> Box:
    """A box whose run directory obeys the file ``disk`` in its folder."""
    box.environment["FAULT_DISK_CONTROL"] = str(box.folder / "disk")
    return box


@pytest.fixture
def disk(box: Box) -> Path:
    """The control file of the disk under supervisor, agents and owner."""
    return steered(box).folder / "disk"


def steps_on(box: Box, rank: int = 0) -> None:
    """The rank makes steps now."""
    before = len(box.rows(rank))
    until(lambda: len(box.rows(rank)) > before + 2, 10, f"rank {rank} steps on\n{box.told()}")


def hears(box: Box, words: str, deadline_s: float = 20) -> None:
    """Whoever sits in front of ``gangrun run`` is told."""
    until(lambda: words in box.err.read_text(), deadline_s, f"being told {words!r}\n{box.told()}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_directory_that_stands_still_for_20_s_stops_nobody_and_starts_nothing(box: Box, disk: Path) -> None:
    box.step(
        2, "--silence-after", "12", "--fence-after", "60", steps=100_000
    )  # shorter than the stall, not than a pause
    ranks = box.stepping()
    say(disk, "stall")
    stays(lambda: all(map(alive, ranks)), 20, "all ranks live while the run directory stands still")
    steps_on(box)
    hears(box, "has not answered for")
    assert "nothing is started" in box.err.read_text()
    warning = box.gangrun("status", "--runs-dir", str(box.runs)).stdout
    assert "has written nothing for" in warning, warning
    say(disk, "run")
    hears(box, "the run directory answers again")
    box.until_status("the reason is up to date", lambda status: "answers again" in status["reason"])
    assert [box.pid_of(rank) for rank in (0, 1)] == ranks

    # the second time a rank dies in it: the others may be stopped, but nothing may be started
    say(disk, "stall")
    os.kill(ranks[1], signal.SIGKILL)
    until(lambda: not any(map(alive, ranks)), 15, f"the gang is stopped while the disk stands still\n{box.told()}")
    stays(lambda: box.rows()[-1][0] == 0, 5, "no new attempt while nothing can be recorded")
    say(disk, "run")
    box.wait_for_step(3, attempt=1, deadline_s=30)
    box.interrupt()
    assert never_two_gangs(box, 2) == [0, 1]
    each_step_once(box, 0)
    first, _ = box.status()["attempts"]
    assert "rank 1" in first["reason"]
    assert kinds(box).count("StoreStalled") == kinds(box).count("StoreBack") >= 2
    assert not any("NodeLost" in kind or "NodeSilent" in kind for kind in kinds(box))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stall_longer_than_every_limit_with_and_without_a_supervisor(boxes: Callable[[str], Box]) -> None:
    """Ten minutes, scaled: hang limit 8 s instead of 120 and more, lease 15 s instead of 30, the stall 20 s and more.

    In one run the supervisor lives, and the ranks themselves wait for the same disk, as a rank that loads data would,
    so that they look hung. In the other it is killed: the leases run out, and the run waits for its disk.
    """
    patient, orphaned = steered(boxes("patient")), steered(boxes("orphaned"))
    for box in (patient, orphaned):
        say(box.folder / "disk", "run")
    patient.step(
        2, *QUICK, "--hang-timeout", "8", steps=60,
        hook="""
            disk = folder.parent.parent / "disk"
            def hook(step):
                while step > 10 and "stall" in disk.read_text(): time.sleep(0.01)
        """,
    )  # fmt: skip
    orphaned.step(2, *QUICK, steps=100_000)
    ranks = {}
    for box in (patient, orphaned):
        ranks[box] = box.stepping()
        say(box.folder / "disk", "stall")
    os.kill(orphaned.one("entry.supervisor"), signal.SIGKILL)
    stays(lambda: all(map(alive, ranks[patient])), 20, "ranks that wait for the disk are not hung, leases are renewed")
    until(lambda: not any(map(alive, ranks[orphaned])), 5, f"the lease ends, the ranks with it\n{orphaned.told()}")
    stays(lambda: orphaned.rows()[-1][0] == 0, 3, "no new attempt while nobody can claim a term")
    for box in (patient, orphaned):
        say(box.folder / "disk", "run")
    assert patient.end(60) == 0, patient.told()
    assert len(patient.status()["attempts"]) == 1
    assert "StoreBack" in kinds(patient)
    orphaned.wait_for_step(3, attempt=1, deadline_s=60)
    orphaned.interrupt()
    assert never_two_gangs(orphaned, 2) == [0, 1]


@pytest.mark.slow
def test_ctrl_c_is_heeded_while_the_run_directory_stands_still(box: Box, disk: Path) -> None:
    box.step(2, steps=100_000)
    ranks = box.stepping()
    say(disk, "stall")
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    hears(box, "no supervisor reacts to the cancel")
    until(lambda: not any(map(alive, ranks)), 15, f"the ranks are stopped\n{box.told()}")
    assert box.process.poll() is None, "the end is not written down yet"
    box.process.send_signal(signal.SIGINT)
    hears(box, "to record the cancel")
    say(disk, "")
    assert box.end(20) == 130, box.told()
    assert not box.left()
    status = box.status()
    assert (status["state"], status["exit_code"]) == ("CANCELLED", 130)
    assert "killed before that could be written down" in status["reason"]


PRINTS = """
    flag = folder.parent.parent / "print"
    def hook(step):
        if flag.exists() and not (folder / f"printed-{rank}").exists():
            (folder / f"printed-{rank}").touch()
            for number in range(3000): print(f"number {number:04}", "x" * 200, flush=True)
"""


@pytest.mark.root
@pytest.mark.slow
def test_a_full_disk_under_the_logs_loses_no_line_of_the_terminal_and_the_loss_is_told(box: Box) -> None:
    box.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", box.runs], check=True)
    try:
        box.step(2, steps=100_000, hook=PRINTS)
        box.stepping()
        ballast = box.runs / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        (box.folder / "print").touch()
        shown = [
            f"[{processes.host_name()}:rank{rank}] number {number:04} " for rank in (0, 1) for number in range(3000)
        ]

        def numbers() -> list[str]:
            lines = box.out.read_text().splitlines()
            return sorted(
                re.sub(r" [0-9:]{8}\]", "]", line.partition("x")[0])
                for line in lines
                if " number " in line and line.endswith("x" * 200)
            )

        until(lambda: len(numbers()) >= len(shown), 10, lambda: f"every line: {len(numbers())} of {len(shown)}")
        assert numbers() == shown, "each once"
        hears(box, "the disk refuses what ranks print (No space left on device)")
        ballast.unlink()
        box.interrupt()
        hears(box, "bytes of what ranks printed are missing in")
        (note,) = box.status()["notes"]
        assert note.startswith("some of what ranks printed is missing in logs/0/")
        assert "what ranks printed is missing in" in box.gangrun("status", "--runs-dir", str(box.runs)).stdout
    finally:
        subprocess.run(["umount", "--lazy", box.runs], check=True)


REFUSALS = {"ENOSPC": "No space left on device", "EROFS": "Read-only file system"}


@pytest.mark.slow
def test_a_run_directory_that_refuses_writing_stops_nobody_and_starts_nothing(boxes: Callable[[str], Box]) -> None:
    runs = {error: steered(boxes(error)) for error in REFUSALS}
    ranks = {}
    for error, box in runs.items():
        box.step(2, steps=100_000)
        ranks[error] = box.stepping()
        say(box.folder / "disk", f"fail {error}")
    for error, box in runs.items():
        hears(box, REFUSALS[error])
        steps_on(box)
        assert all(map(alive, ranks[error]))
        os.kill(ranks[error][0], signal.SIGKILL)
    for error, box in runs.items():
        until(lambda: not any(map(alive, ranks[error])), 15, f"the gang is stopped\n{box.told()}")  # noqa: B023
    stays(lambda: all(box.rows()[-1][0] == 0 for box in runs.values()), 4, "no new attempt while nothing is recorded")
    for box in runs.values():
        say(box.folder / "disk", "run")
    for box in runs.values():
        box.wait_for_step(3, attempt=1, deadline_s=30)
        box.interrupt()
        assert never_two_gangs(box, 2) == [0, 1]
        assert "rank 0" in box.status()["attempts"][0]["reason"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whoever_of_us_sleeps_for_12_s_the_ranks_are_untouched(boxes: Callable[[str], Box]) -> None:
    sleepers = {}
    for part in ("entry.agent", "entry.supervisor", "node/warden.py"):
        box = boxes(part.replace("/", "-"))
        box.step(2, "--silence-after", "2", "--fence-after", "24", steps=100_000)
        sleepers[part] = box
    for box in sleepers.values():
        box.wait_for_step(5, deadline_s=60)
    asleep = {part: box.one(part) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGSTOP)
    ranks = {part: [box.pid_of(rank) for rank in (0, 1)] for part, box in sleepers.items()}
    stays(lambda: all(alive(pid) for pids in ranks.values() for pid in pids), 12, "all ranks live")
    reached = {part: len(box.rows()) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGCONT)
    for part, box in sleepers.items():
        box.wait_for_step(reached[part] + 40)
        assert [box.pid_of(rank) for rank in (0, 1)] == ranks[part], part
        assert len(box.status()["attempts"]) == 1, part
        assert not any(kind in {"NodeLost", "ProgressStalled", "RankExited"} for kind in kinds(box)), (part, kinds(box))
        assert part != "entry.agent" or kinds(box).count("TermTaken") == 1, "one that wakes looks for nobody else"
        box.interrupt()
        each_step_once(box, 0)
