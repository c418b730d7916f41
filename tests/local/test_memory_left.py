"""However a run ends, nothing of the steps that its hosts held in memory is left: no memfd, no process, no file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.harness import Box
from tests.waiting import until

SIZE = 4 * 2**20
KEEPS = f"""
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName
line = KeeperClient(os.environ["GANGRUN_MEMORY"])
def hook(step):
    name = StepName(attempt, step, "ab" * 8)
    line.put(name, f"file-{{rank}}", bytes({SIZE}))
    line.whole(name)
"""


def memfds(pids: list[int]) -> set[tuple[int, int]]:
    """Device and inode of what these processes hold in memory, one or more of them."""
    found = set()
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:gangrun-checkpoint" in os.readlink(entry):
                    told = entry.stat()
                    found.add((told.st_dev, told.st_ino))
        except OSError:
            continue
    return found


def everybody() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def shared_bytes(box: Box) -> int | None:
    """Of the run's files in shared memory; None where there are none."""
    sizes = [path.stat().st_size for path in Path("/dev/shm").glob(f"gangrun-*/{box.run_dir().name}/**/*")]
    return sum(sizes) if sizes else None


def succeeds(box: Box) -> None:
    assert box.end() == 0, box.told()


def is_cancelled(box: Box) -> None:
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    box.process.wait(120)


def is_killed(box: Box) -> None:
    """``gangrun run`` and its wardens: nobody is left who could kill the others, so these have to go by themselves."""
    assert box.process is not None
    box.process.send_signal(signal.SIGSTOP)
    for pid in box.process_ids("node/warden.py"):
        os.kill(pid, signal.SIGKILL)
    box.process.kill()
    box.process.wait(120)


@pytest.mark.parametrize("ends", [succeeds, is_cancelled, is_killed])
def test_nothing_is_left_in_memory(box: Box, ends: Callable[[Box], None]) -> None:
    box.step(
        1, "--local-hosts", "--nodes", "2", "--memory-checkpoints", "--checkpoint-dir", str(box.work / "saves"),
        "--checkpoint-grace", "1", steps=100_000 if ends is not succeeds else 20, hook=KEEPS,
    )  # fmt: skip
    box.wait_for_step(10, deadline_s=60)
    keepers = box.process_ids("node/memory_keeper.py")
    assert len(keepers) == 2
    held = until(lambda: memfds(keepers), 60, "something in memory")
    ends(box)
    until(lambda: not box.left(), 60, lambda: f"all processes to be gone: {box.left()}")
    assert not held.intersection(memfds(everybody()))
    left_bytes = shared_bytes(box)
    if ends is is_killed:
        assert left_bytes is None or left_bytes < SIZE / 8, "small files, which the next run removes"
    else:
        assert left_bytes is None
