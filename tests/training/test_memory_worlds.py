"""A step in memory is resumed from by fewer ranks than saved it, which protect it among themselves: to the last bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gangrun.agent.background_tasks import recover  # noqa: E402
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt  # noqa: E402
from gangrun.core.checkpoints.memory import WholeStep, newest_whole  # noqa: E402
from gangrun.wire.messages import Recover  # noqa: E402
from tests.training.nodes import started_keeper  # noqa: E402

# Torch is imported once. Each line that comes is a world: variables of each rank, and the last step to be done. Each
# is answered with what rank 0 saw: where it began, and digests of the whole state there and at the end.
RANKS = """
import json, os, sys, time
import torch, torch.distributed as dist
from gangrun.training import checkpointer
import gangrun
from tests.training.gang import build, digest

def train(rank, world, folder, last):
    store = dist.FileStore(f"{folder}/store-{os.environ['GANGRUN_ATTEMPT']}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    model = build("fsdp", world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(24, 37, generator=torch.Generator().manual_seed(1))
    with gangrun.Checkpointer(
        f"{folder}/ckpt", model=model, optimizer=optimizer, every_steps=10**6, memory_every_steps=1
    ) as ckpt:
        start = ckpt.resume()
        begins = digest(model, optimizer)
        for step in range(start, last + 1):
            model(inputs[rank::world]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step(step)
            while ckpt.saving:
                time.sleep(0.001)
        ends = digest(model, optimizer)
        if rank == 0:
            print(json.dumps([start, begins, ends]), flush=True)
        dist.barrier()
        os._exit(0)  # as if killed: what is in memory is all there is

for line in sys.stdin:
    each, last = json.loads(line)
    children = []
    for rank, variables in enumerate(each):
        if not (pid := os.fork()):
            try:
                os.environ.update(variables)
                train(rank, len(each), sys.argv[1], last)
            finally:
                os._exit(1)
        children.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in children]):
        sys.exit(1)
"""


class Cluster:
    """Keepers of some nodes, and one process that makes all worlds."""

    def __init__(self, folder: Path, nodes_count: int) -> None:
        self.folder, self.directory = folder, folder / "ckpt"
        self.directory.mkdir()
        self.names, self.keepers = zip(*(started_keeper(10**8) for _ in range(nodes_count)), strict=True)
        environment = {
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "GANGRUN_RUN": "r",
            "GANGRUN_CHECKPOINT_DIR": str(self.directory),
        }  # fmt: skip
        self.ranks = subprocess.Popen(
            [sys.executable, "-c", RANKS, str(folder)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def train(self, attempt: int, nodes: tuple[int, ...], ranks_count: int, last: int, **more: str) -> list[Any]:
        """So many ranks on each of these nodes; what rank 0 saw."""
        world = len(nodes) * ranks_count
        each = [
            {
                "RANK": str(rank), "WORLD_SIZE": str(world), "GANGRUN_ATTEMPT": str(attempt),
                "LOCAL_RANK": str(rank % ranks_count), "LOCAL_WORLD_SIZE": str(ranks_count),
                "GANGRUN_MEMORY": self.names[nodes[rank // ranks_count]], **more,
            }
            for rank in range(world)
        ]  # fmt: skip
        assert self.ranks.stdin is not None and self.ranks.stdout is not None
        self.ranks.stdin.write(json.dumps([each, last]) + "\n")
        self.ranks.stdin.flush()
        line = self.ranks.stdout.readline()
        assert line, "a rank failed"
        found: list[Any] = json.loads(line)
        return found

    def lose(self, node: int) -> None:
        self.keepers[node].kill()
        self.keepers[node].wait()

    def brought(self, attempt: int) -> WholeStep:
        """What the nodes that are left have whole, as a supervisor has it brought to the disk."""
        nodes = {name: name for name, keeper in zip(self.names, self.keepers, strict=True) if keeper.poll() is None}
        said = {name: recover(name, Recover(1, (1, 1), attempt)) for name in nodes}
        held = {name: fact.answer.steps for name, fact in said.items() if fact.answer}
        whole = newest_whole(held, -1)
        assert whole is not None
        into = str(self.folder / f"into-{attempt}")
        for wanted, rebuild in ((whole.files, False), (whole.rebuild, True)):
            for name, files in wanted.items():
                parts = ((), files) if rebuild else (files, ())
                told = recover(name, Recover(1, (1, 2), attempt, into, whole.step, whole.nonce, *parts))
                assert told.ok, told.why
        assert adopt(into, str(self.directory), whole.step, whole.nonce) == ""
        return whole


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 4)
    try:
        yield made
    finally:
        os.killpg(made.ranks.pid, signal.SIGKILL)
        with made.ranks:
            pass  # its pipes are closed
        for keeper in made.keepers:
            keeper.kill()
            keeper.wait()


@pytest.mark.timeout(900)
def test_four_ranks_on_two_nodes_then_three_then_two_go_on_from_what_lost_nodes_left_in_others_memory(
    cluster: Cluster,
) -> None:
    """First by a copy, then by parity among the three, one of which is the node that survived before."""
    start, _, saved = cluster.train(0, (0, 1), 2, last=3)
    assert start == 0
    cluster.lose(1)
    whole = cluster.brought(0)
    assert (whole.step, whole.rebuilt_count) == (3, 0)
    resumed = {"GANGRUN_RESUME": str(cluster.directory / "step-3")}
    start, begins, saved_by_three = cluster.train(1, (0, 2, 3), 1, 6, **resumed, GANGRUN_MEMORY_PARITY="2+1")
    assert (start, begins) == (4, saved)
    cluster.lose(0)
    whole = cluster.brought(1)
    assert (whole.step, whole.rebuilt_count) == (6, 2)
    resumed = {"GANGRUN_RESUME": str(cluster.directory / "step-6")}
    start, begins, _ = cluster.train(2, (2, 3), 1, 7, **resumed)
    assert (start, begins) == (7, saved_by_three)
    assert sorted(path.name for path in cluster.directory.glob("step-*")) == ["step-3", "step-6"]
