"""Again and again kill -9 of a random rank in one run of a real gloo gang, and each time it steps again."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.local.harness import Box, whole_lines

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 8

# An all-reduce per step and a checkpoint every few of them, which is what keeps the budget of restarts full.
STEPPER = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
rank, value = dist.get_rank(), torch.zeros(1)
start, attempt = 0, os.environ["GANGRUN_ATTEMPT"]
if path := os.environ.get("GANGRUN_RESUME"):
    state = {"value": value}
    dcp.load(state, checkpoint_id=path)
    start = int(os.environ["GANGRUN_RESUME_STEP"])
    assert value.item() == 2 * start
for step in range(start + 1, 100_000):
    one = torch.ones(1)
    dist.all_reduce(one)
    value += one
    if step % 10 == 0:
        dcp.save({"value": value}, checkpoint_id=f"saves/step-{step}")
    with open(f"rank-{rank}.log", "a") as log:
        log.write(f"{attempt} {step} {os.environ['MASTER_PORT']} {os.getpid()}\\n")
    time.sleep(0.02)
    if os.path.exists("enough") and step % 10 == 9:
        break
dist.barrier()
"""


def rows(box: Box, rank: int) -> list[tuple[int, int, int, int]]:
    """(attempt, step, port, pid) as a rank wrote them."""
    try:
        lines = whole_lines(box.work / f"rank-{rank}.log")
    except OSError:
        return []
    return [(int(a), int(s), int(p), int(i)) for a, s, p, i in (line.split() for line in lines if line.count(" ") == 3)]


def has_stepped(box: Box, attempt: int) -> bool:
    return all(sum(row[0] == attempt for row in rows(box, rank)) > 12 for rank in (0, 1))


def test_after_every_kill_it_steps_again(box: Box) -> None:
    box.start("--nproc-per-node", "2", "--checkpoint-dir", "saves", box.script(STEPPER))
    draw = random.Random(20)
    for attempt in range(ROUNDS + 1):
        box.until(partial(has_stepped, box, attempt), f"steps of attempt {attempt}")
        if attempt < ROUNDS:
            os.kill(rows(box, draw.randrange(2))[-1][3], signal.SIGKILL)
    (box.work / "enough").touch()
    assert box.end(150) == 0, box.told()
    status = box.status()
    assert status["restarts"] == ROUNDS
    assert [one["outcome"] for one in status["attempts"]] == ["signal"] * ROUNDS + ["succeeded"]
    ports = {row[0]: row[2] for row in rows(box, 0)}
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(set(ports.values())) == len(ports) == ROUNDS + 1, "every attempt has its own port"
    assert not [port for port in ports.values() if low <= port <= high], "and none that the kernel gives away"
