"""Rank, agent, warden or everything is killed at seeded points of save, prune and flush: what is there is whole.

A handful of rounds here; ``GANGRUN_TEST_KILLS=200`` plays so many, ``GANGRUN_TEST_KILLS_SEED`` others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults.inject import gangrun
from tests.local.harness import Box
from tests.local.kills import Blows
from tests.waiting import until

pytest.importorskip("torch")
ROUNDS = int(os.environ.get("GANGRUN_TEST_KILLS", "3"))
SEED = int(os.environ.get("GANGRUN_TEST_KILLS_SEED", "2"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 120 * ROUNDS)]

SCRIPT = """
import gc; gc.disable()  # torch is imported in three quarters of the time
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
import gangrun
from tests.local.kills import Blows

blows, directory = Blows(os.environ["KILLS"]), Path(sys.argv[1])
dist.init_process_group("gloo")
rank, number = dist.get_rank(), blows.number()
if rank == 0:
    blows.judged(directory)
dist.barrier()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 12000).requires_grad_(False))
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
model(torch.randn(4, 300)).sum().backward()
optimizer.step()
with gangrun.Checkpointer(
    directory, model=model, optimizer=optimizer, keep=2, full_every=3, every_steps=3, memory_every_steps=2
) as ckpt:
    start = ckpt.resume()
    if start <= blows.committed():
        blows.note(f"resumed at {start} though {blows.committed()} was committed")
    if start and model[0].weight[0, 0].item() != start - 1:
        blows.note(f"step {start - 1} holds the weights of {model[0].weight[0, 0].item()}")
    for step in range(start, start + 3000):
        with torch.no_grad():
            model[0].weight.fill_(step)
        ckpt.step(step)
        if (step - start) % 5 == 1:
            ckpt.save(step, wait=True)
            if rank == 0:
                blows.tell(step)
        if step - start == 1:
            blows.arm(rank)
        if number >= blows.rounds and step - start == 6:
            break
dist.destroy_process_group()
"""


def test_whatever_is_killed_while_it_saves_a_whole_step_is_there_and_the_newest(box: Box, tmp_path: Path) -> None:
    saves, told = box.work / "saves", f"{tmp_path}:{SEED}:{ROUNDS}"
    box.environment |= {"KILLS": told}
    blows = Blows(told)
    script = box.script(SCRIPT)
    box.start(
        "--nproc-per-node", "2", "--memory-checkpoints", "--flush-every", "1", "--checkpoint-dir", saves, script, saves
    )  # fmt: skip
    struck = -1
    while (seen := until(lambda: ended(box) or blows.flush_due(saves), 150 + 60 * ROUNDS, box.told)) != "0":
        if seen.isalpha():
            strike(box, seen)
            blows.flush_struck(seen)
            continue
        assert len(blows.lines()) > struck, f"it ended by itself\n{blows.lines()}\n{box.told()}"
        struck = len(blows.lines())
        until(lambda: not box.left(), 60, lambda: f"everything of it to be gone\n{box.left()}")
        resume(box)
    troubles = tmp_path / "troubles"
    assert not troubles.exists(), troubles.read_text() + "\n".join(blows.lines())
    assert blows.number() == ROUNDS, box.told()
    blows.judged(saves)
    assert not troubles.exists(), troubles.read_text() + "\n".join(blows.lines())
    assert not list(saves.glob(".gangrun/*/*/*/saving-*")), "each attempt removes what those before it left"


def ended(box: Box) -> str:
    """The exit code of ``gangrun run`` or ``resume``; "" while it runs."""
    code = None if box.process is None else box.process.poll()
    return "" if code is None else str(code)


def strike(box: Box, target: str) -> None:
    part = {"agent": "entry.agent", "warden": "node/warden.py"}.get(target)
    for pid in box.left() if part is None else box.process_ids(part):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def resume(box: Box) -> None:
    """``gangrun resume`` of the newest run, in the background."""
    command = [*gangrun(box.environment), "resume", box.run_dir().name, "--runs-dir", str(box.runs)]
    with box.out.open("ab") as out, box.err.open("ab") as err:
        box.process = subprocess.Popen(
            command, cwd=box.work, env=box.environment, stdout=out, stderr=err, start_new_session=True
        )
