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

from tests.training.nodes import Nodes  # noqa: E402

# Torch is imported once. Each line that comes is a world: variables of each rank, and the last step to be done. Each
# is answered with what rank 0 saw: where it began, and digests of the whole state there and at the end.
RANKS = """
import json, os, sys, time
import torch, torch.distributed as dist
from gangrun.training import checkpointer
import gangrun
from tests.training.gang import build, digest
from tests.training.harness import forked

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
    if any(forked(len(each), lambda rank: os.environ.update(each[rank]) or train(rank, len(each), sys.argv[1], last))):
        sys.exit(1)
"""


class Cluster(Nodes):
    """One process makes all worlds."""

    def __init__(self, folder: Path, nodes_count: int) -> None:
        super().__init__(folder, [10**8] * nodes_count)
        self.ranks = subprocess.Popen(
            [sys.executable, "-c", RANKS, str(folder)],
            env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def world(self, attempt: int, nodes: tuple[int, ...], ranks_count: int, last: int, **more: str) -> list[Any]:
        """So many ranks on each of these nodes; what rank 0 saw."""
        assert self.ranks.stdin is not None and self.ranks.stdout is not None
        each = self.ranks_on(nodes, ranks_count, GANGRUN_ATTEMPT=str(attempt), **more)
        self.ranks.stdin.write(json.dumps([each, last]) + "\n")
        self.ranks.stdin.flush()
        line = self.ranks.stdout.readline()
        assert line, "a rank failed"
        found: list[Any] = json.loads(line)
        return found

    def resumed_from(self, attempt: int, *left: int) -> tuple[int, int, dict[str, str]]:
        """The step that these nodes have whole, once it is on disk, how much of it was rebuilt, and what ranks hear."""
        whole = self.whole_of(*left, attempt=attempt)
        assert whole is not None
        path = self.brought(whole, "ckpt", attempt)
        return whole.step, whole.rebuilt_count, {"GANGRUN_RESUME": str(path)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 4)
    try:
        yield made
    finally:
        os.killpg(made.ranks.pid, signal.SIGKILL)
        with made.ranks:
            pass  # its pipes are closed
        made.end()


@pytest.mark.timeout(900)
def test_four_ranks_on_two_nodes_then_three_then_two_go_on_from_what_lost_nodes_left_in_others_memory(
    cluster: Cluster,
) -> None:
    """First by a copy, then by parity among the three, one of which is the node that survived before."""
    start, _, saved = cluster.world(0, (0, 1), 2, last=3)
    assert start == 0
    cluster.lose(1)
    *found, resumed = cluster.resumed_from(0, 0, 2, 3)
    assert found == [3, 0]
    start, begins, saved_by_three = cluster.world(1, (0, 2, 3), 1, 6, **resumed, GANGRUN_MEMORY_PARITY="2+1")
    assert (start, begins) == (4, saved)
    cluster.lose(0)
    *found, resumed = cluster.resumed_from(1, 2, 3)
    assert found == [6, 2]
    start, begins, _ = cluster.world(2, (2, 3), 1, 7, **resumed)
    assert (start, begins) == (7, saved_by_three)
    assert sorted(path.name for path in cluster.directory.glob("step-*")) == ["step-3", "step-6"]
