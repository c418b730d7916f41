"""Nodes whose memory keeps steps: a real keeper for each, and ranks that train under them on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused
from gangrun.node import memory_keeper
from tests.waiting import until

# What is slow to import is imported once for all ranks.
RANKS = """
import json, os, sys, time, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
from gangrun.training import checkpointer  # so that it is there before ranks are forked

def train(rank, count):
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1] + "/store", count), rank=rank, world_size=count)
    torch.manual_seed(0)
    model = torch.nn.Linear(int(sys.argv[4]), 2049)
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with gangrun.Checkpointer(sys.argv[1] + "/ckpt", model=model, every_steps=1000, memory_every_steps=1) as ckpt:
            for step in range(int(sys.argv[3])):
                ckpt.step(step)
                while ckpt.saving:
                    time.sleep(0.001)
    for one in told:
        os.write(1, f"{one.message}\\n".encode())  # one write: all ranks have this pipe
    dist.destroy_process_group()

children = []
for rank, variables in enumerate(json.loads(sys.argv[2])):
    if not (pid := os.fork()):
        os.environ.update(variables)
        train(rank, int(os.environ["WORLD_SIZE"]))
        os._exit(0)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""


def started_keeper(limit_bytes: int) -> tuple[str, subprocess.Popen[bytes]]:
    """A keeper that answers: its name and its process."""
    name = f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}"
    keeper = subprocess.Popen([sys.executable, "-E", "-s", "-S", memory_keeper.__file__, name, str(limit_bytes)])
    until(lambda: _there(name), 60, "a keeper")
    return name, keeper


class Nodes:
    """A keeper for each node, started and there."""

    def __init__(self, folder: Path, limits: list[int]) -> None:
        self.folder = folder
        folder.mkdir()
        self.names, self.keepers = zip(*map(started_keeper, limits), strict=True)

    def train(self, steps_count: int, columns_count: int = 2001, *, parity: str = "", ranks_count: int = 1) -> set[str]:
        """What ranks said. Each step is a matrix of so many columns and 2049 rows, which no number of ranks divides."""
        world = len(self.names) * ranks_count
        each = [
            {
                "RANK": str(rank), "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank % ranks_count), "LOCAL_WORLD_SIZE": str(ranks_count),
                "GANGRUN_MEMORY": self.names[rank // ranks_count],
            }
            for rank in range(world)
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "GANGRUN_RUN": "r",
            "GANGRUN_CHECKPOINT_DIR": str(self.folder / "ckpt"), "GANGRUN_MEMORY_PARITY": parity,
        }  # fmt: skip
        command = [
            sys.executable,
            "-c",
            RANKS,
            str(self.folder),
            json.dumps(each),
            str(steps_count),
            str(columns_count),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return set(done.stdout.splitlines())

    def end(self) -> None:
        """As when all of them lose their power."""
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()


def _there(name: str) -> bool:
    try:
        KeeperClient(name).close()
    except KeeperRefused:
        return False
    return True
