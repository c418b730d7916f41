"""A step in memory is resumed from by fewer ranks than saved it, which protect it among themselves: to the last bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName  # noqa: E402
from gangrun.core.checkpoints.memory import WholeStep, holders, lacking_of, newest_whole  # noqa: E402
from gangrun.wire.messages import Recover  # noqa: E402
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
    model = build(os.environ.get("KIND", "fsdp"), world)
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
        return self._world(self.ranks_on(nodes, ranks_count, GANGRUN_ATTEMPT=str(attempt), **more), last)

    def sharing(self, attempt: int, shown: Mapping[int, Path], ranks_count: int, last: int, kind: str) -> list[Any]:
        """The same on the nodes that have a part of the step that they resume from, each where it is ``shown``."""
        each = self.ranks_on(
            tuple(shown), ranks_count, GANGRUN_ATTEMPT=str(attempt), GANGRUN_RESUME_SHARED="1", KIND=kind
        )
        places = [str(place) for place in shown.values() for _ in range(ranks_count)]
        return self._world([{**one, "GANGRUN_RESUME": place} for one, place in zip(each, places, strict=True)], last)

    def _world(self, each: list[dict[str, str]], last: int) -> list[Any]:
        assert self.ranks.stdin is not None and self.ranks.stdout is not None
        self.ranks.stdin.write(json.dumps([each, last]) + "\n")
        self.ranks.stdin.flush()
        line = self.ranks.stdout.readline()
        assert line, "a rank failed"
        found: list[Any] = json.loads(line)
        return found

    def shown(
        self, whole: WholeStep, before: int, nodes: tuple[int, ...], lacking: Collection[int] = ()
    ) -> dict[int, Path]:
        """What each node has of a step of attempt ``before``, as its agent shows it to the ranks of the next one."""
        step = StepName(before, whole.step, whole.nonce)
        found = {node: self.folder / f"shown-{before}-{node}" for node in nodes}
        for node, directory in found.items():
            directory.mkdir()
            if node in lacking:
                continue
            with closing(KeeperClient(self.names[node])) as kept:
                for name, path in kept.paths(before + 1, step).items():
                    (directory / name).symlink_to(path)
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


@pytest.mark.parametrize(("kind", "nodes", "ranks_count"), [("fsdp", (0, 1, 2, 3), 1), ("ddp", (0, 1, 2), 2)])
def test_ranks_that_stay_where_they_were_share_what_each_node_has(
    cluster: Cluster, kind: str, nodes: tuple[int, ...], ranks_count: int
) -> None:
    """To the last bit, and nothing is written; the step stays until the next one is whole everywhere."""
    _, _, saved = cluster.world(0, nodes, ranks_count, last=3, KIND=kind)
    held = {str(node): cluster.ask(node, Recover(1, (1, 1), 0)) for node in nodes}
    whole = newest_whole(held, -1)
    assert whole is not None and whole.step == 3
    assert not holders(held, whole) and lacking_of(held, whole, list(held)) == ()
    start, begins, ends = cluster.sharing(1, cluster.shown(whole, 0, nodes), ranks_count, 5, kind)
    assert (start, begins) == (4, saved)
    assert not list(cluster.directory.glob("step-*"))
    again = cluster.whole_of(*nodes, attempt=1)
    assert again is not None and again.step == 5
    start, begins, _ = cluster.sharing(2, cluster.shown(again, 1, nodes), ranks_count, 5, kind)
    assert (start, begins) == (6, ends)


@pytest.mark.parametrize(("kind", "left"), [("fsdp", (0, 3, 2)), ("ddp", (3, 0, 2)), ("fsdp", (2, 0))])
def test_ranks_are_sent_what_a_spare_lacks_and_what_a_lost_node_held(
    cluster: Cluster, kind: str, left: tuple[int, ...]
) -> None:
    """A spare in its place, rank 0's too, or one node less: to the last bit, and nothing is written first."""
    _, _, saved = cluster.world(0, (0, 1, 2), 1, last=3, KIND=kind)
    cluster.lose(1)
    held = {str(node): cluster.ask(node, Recover(1, (1, 1), 0)) for node in left}
    whole = newest_whole(held, -1)
    assert whole is not None and whole.step == 3
    assert lacking_of(held, whole, list(held)) == (("3",) if 3 in left else ())
    start, begins, _ = cluster.sharing(1, cluster.shown(whole, 0, left, lacking=[3]), 1, 5, kind)
    assert (start, begins) == (4, saved)
    assert not list(cluster.directory.glob("step-*"))
    again = cluster.whole_of(*left, attempt=1)
    assert again is not None and again.step == 5, "all nodes of the new gang protect what it saves"
