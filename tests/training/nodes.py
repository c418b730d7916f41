"""Nodes whose memory keeps steps: a real keeper for each, and ranks that train under them on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gangrun.agent.background_tasks import recover
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt
from gangrun.core.checkpoints.memory import Holding, WholeStep, newest_whole
from gangrun.node import memory_keeper
from gangrun.wire.messages import MemoryAnswer, Recover
from tests.waiting import until

# What is slow to import is imported once for all ranks.
RANKS = """
import json, os, sys, time, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
from gangrun.training import checkpointer  # so that it is there before ranks are forked
from tests.training.harness import forked

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

each = json.loads(sys.argv[2])
sys.exit(any(forked(len(each), lambda rank: os.environ.update(each[rank]) or train(rank, len(each)))))
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
        self.folder, self.directory = folder, folder / "ckpt"
        self.directory.mkdir(parents=True)
        self.names, self.keepers = zip(*map(started_keeper, limits), strict=True)

    def environment(self, **more: str) -> dict[str, str]:
        """What all ranks have."""
        return {
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "GANGRUN_RUN": "r",
            "GANGRUN_CHECKPOINT_DIR": str(self.directory), **more,
        }  # fmt: skip

    def ranks_on(self, nodes: Sequence[int], ranks_count: int, **more: str) -> list[dict[str, str]]:
        """The variables of each rank, so many of them on each of these nodes."""
        world = len(nodes) * ranks_count
        return [
            {
                "RANK": str(rank), "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank % ranks_count), "LOCAL_WORLD_SIZE": str(ranks_count),
                "GANGRUN_MEMORY": self.names[nodes[rank // ranks_count]], **more,
            }
            for rank in range(world)
        ]  # fmt: skip

    def train(self, steps_count: int, columns_count: int = 2001, *, parity: str = "", ranks_count: int = 1) -> set[str]:
        """What ranks said. Each step is a matrix of so many columns and 2049 rows, which no number of ranks divides."""
        each = self.ranks_on(range(len(self.names)), ranks_count)
        words = map(str, (self.folder, json.dumps(each), steps_count, columns_count))
        done = subprocess.run(
            [sys.executable, "-c", RANKS, *words], env=self.environment(GANGRUN_MEMORY_PARITY=parity),
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return set(done.stdout.splitlines())

    def ask(self, node: int, command: Recover) -> tuple[Holding, ...]:
        """As a supervisor asks the agent there."""
        told = recover(self.names[node], command)
        assert told.ok, told.why
        return told.answer.steps if isinstance(told.answer, MemoryAnswer) else ()

    def whole_of(self, *left: int, attempt: int = 0) -> WholeStep | None:
        """The newest step that these nodes have together."""
        return newest_whole({str(node): self.ask(node, Recover(1, (1, 1), attempt)) for node in left}, -1)

    def brought(self, whole: WholeStep, name: str, attempt: int = 0) -> Path:
        """The checkpoint that comes of it, in the directory of that name."""
        into, directory = str(self.folder / f"into-{name}-{attempt}"), self.folder / name
        directory.mkdir(exist_ok=True)
        parts = [(node, files, ()) for node, files in whole.files.items()]
        for node, files, rebuild in [*parts, *((node, (), files) for node, files in whole.rebuild.items())]:
            self.ask(int(node), Recover(1, (1, 2), attempt, into, whole.step, whole.nonce, files, rebuild))
        assert adopt(into, str(directory), whole.step, whole.nonce) == ""
        return directory / f"step-{whole.step}"

    def lose(self, node: int) -> None:
        """As when it loses its power."""
        self.keepers[node].kill()
        self.keepers[node].wait()

    def end(self) -> None:
        """All of them."""
        for node in range(len(self.keepers)):
            self.lose(node)


def _there(name: str) -> bool:
    try:
        KeeperClient(name).close()
    except KeeperRefused:
        return False
    return True
