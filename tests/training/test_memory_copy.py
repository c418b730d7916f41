"""Two nodes with a rank each keep each other's files: what one node alone holds is the whole step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gangrun import memory_keeper  # noqa: E402
from gangrun.agent.rescue import holdings  # noqa: E402
from gangrun.checkpoint.kept import Kept, NotKept, StepName  # noqa: E402
from gangrun.checkpoint.manifest_verify import verify  # noqa: E402
from gangrun.checkpoint.rescue import adopt, bring  # noqa: E402
from gangrun.core.kept import newest_whole  # noqa: E402
from gangrun.core.model import Level  # noqa: E402
from gangrun.training.memory_copy import Taking, distance  # noqa: E402
from gangrun.training.shard_file import row_of  # noqa: E402
from tests.waiting import until  # noqa: E402

RANK = """
import os, sys, time, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
store = dist.FileStore(sys.argv[1] + "/store", 2)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Linear(int(sys.argv[2]), 1024)  # large enough for several chunks on their way
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with gangrun.Checkpointer(sys.argv[1] + "/ckpt", model=model, interval=1000, memory_interval=1) as ckpt:
        for step in range(3):
            ckpt.step(step)
            while ckpt.saving:
                time.sleep(0.001)
for one in told:
    print(one.message)
dist.destroy_process_group()
"""


class Nodes:
    """A keeper for each rank."""

    def __init__(self, folder: Path, limits: tuple[int, int]) -> None:
        self.folder = folder
        self.names = [f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}" for _ in limits]
        island = memory_keeper.__file__
        self.keepers = [
            subprocess.Popen([sys.executable, "-E", "-s", "-S", island, name, str(limit)])
            for name, limit in zip(self.names, limits, strict=True)
        ]
        for name in self.names:
            until(lambda name=name: _there(name), 20, "a keeper")  # type: ignore[misc]

    def train(self, columns_count: int) -> str:
        """What ranks said."""
        command = [sys.executable, "-c", RANK, str(self.folder), str(columns_count)]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **_environment(self, rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        said = "".join(rank.communicate(timeout=500)[0] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], said
        return said

    def held(self, *nodes: int) -> dict[str, Any]:
        found = {}
        for node in nodes:
            kept = Kept(self.names[node])
            found[str(node)] = holdings(kept, 0)
            kept.close()
        return found


def _environment(nodes: Nodes, rank: int) -> dict[str, str]:
    return {
        "PYTHONPATH": str(Path(__file__).parents[2]), "RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "GANGRUN_RUN": "r", "GANGRUN_MEMORY": nodes.names[rank], "OMP_NUM_THREADS": "1",
        "GANGRUN_CHECKPOINT_DIR": str(nodes.folder / "ckpt"),
    }  # fmt: skip


def _there(name: str) -> bool:
    try:
        Kept(name).close()
    except NotKept:
        return False
    return True


@pytest.fixture
def nodes_of(tmp_path: Path) -> Iterator[Any]:
    made: list[Nodes] = []

    def make(*limits: int) -> Nodes:
        made.append(Nodes(tmp_path, (limits[0], limits[1])))
        return made[-1]

    yield make
    for keeper in [keeper for nodes in made for keeper in nodes.keepers]:
        keeper.kill()
        keeper.wait()


def test_either_node_alone_has_the_whole_step_and_it_is_proven_byte_by_byte(nodes_of: Any) -> None:
    nodes = nodes_of(10**9, 10**9)
    assert nodes.train(10_000) == ""  # 20 MB a rank, two chunks
    for node in (0, 1):
        whole = newest_whole(nodes.held(node), -1)
        assert whole is not None and whole.step == 2
        assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "gangrun.json"} == set(whole.files[str(node)])
        into, directory = nodes.folder / f"into-{node}", nodes.folder / f"ckpt-{node}"
        directory.mkdir()
        kept = Kept(nodes.names[node])
        bring(kept, StepName(0, whole.step, whole.nonce), whole.files[str(node)], str(into))
        kept.close()
        assert adopt(str(into), str(directory), whole.step, whole.nonce) == ""
        assert verify(str(directory / "step-2"), 2).level is Level.VERIFIED


@pytest.mark.parametrize("fault", ["", "damaged", "no room"])
def test_only_a_copy_that_came_whole_is_kept(nodes_of: Any, fault: str) -> None:
    nodes, name, data = nodes_of(1000, 10), StepName(0, 5, "ab"), b"the other's bytes"
    kept = Kept(nodes.names[fault == "no room"])
    taking = Taking(kept, name, [row_of("__1_0.distcp", data)])
    taking.room(0).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if fault == "damaged":
        taking.room(0)[3] ^= 1
    taking.took(0)
    said = taking.close()
    assert {"": "", "damaged": "a copy came damaged", "no room": "would pass the limit of 10 bytes"}[fault] in said
    assert bool(said) == bool(fault)
    assert [one["files"] for one in kept.held(0) if one["files"]] == ([] if fault else [{"__1_0.distcp": len(data)}])
    kept.close()


@pytest.mark.parametrize(
    ("world_size", "local_world_size", "ranks"),
    [(1, 1, 0), (8, 8, 0), (2, 1, 1), (16, 8, 8), (24, 8, 8), (32, 8, 16), (7, 2, 0), (4, 0, 0)],
)
def test_a_copy_goes_half_way_round_the_nodes(world_size: int, local_world_size: int, ranks: int) -> None:
    assert distance(world_size, local_world_size) == ranks
