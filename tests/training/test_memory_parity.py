"""Nodes with parity of each other's files: whichever are lost, those that are left have the step to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gangrun import memory_keeper  # noqa: E402
from gangrun.agent.rescue import rescue  # noqa: E402
from gangrun.checkpoint.kept import Kept, NotKept, StepName  # noqa: E402
from gangrun.checkpoint.manifest_verify import verify  # noqa: E402
from gangrun.checkpoint.rescue import adopt  # noqa: E402
from gangrun.core.kept import Holding, WholeStep, newest_whole  # noqa: E402
from gangrun.core.model import Level  # noqa: E402
from gangrun.training.memory_parity import Coded, Plan, plan_of, records_of  # noqa: E402
from gangrun.wire import protection  # noqa: E402
from gangrun.wire.messages import Rescue  # noqa: E402
from tests.waiting import until  # noqa: E402

# Parts of unequal lengths, and several rounds of them. What is slow to import is imported once for all ranks.
RANKS = """
import json, os, sys, time, warnings
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
from gangrun.training import checkpointer

def train(rank, count):
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1] + "/store", count), rank=rank, world_size=count)
    torch.manual_seed(0)
    model = torch.nn.Linear(2001, 2049)
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with gangrun.Checkpointer(sys.argv[1] + "/ckpt", model=model, interval=1000, memory_interval=1) as ckpt:
            for step in range(int(sys.argv[3])):
                ckpt.step(step)
                while ckpt.saving:
                    time.sleep(0.001)
    for one in told:
        print(one.message, flush=True)
    dist.destroy_process_group()

children = []
for rank, variables in enumerate(json.loads(sys.argv[2])):
    if not (pid := os.fork()):
        os.environ.update(variables)
        train(rank, int(os.environ["WORLD_SIZE"]))
        os._exit(0)
    children.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in children))
"""


class Nodes:
    """A keeper for each node; as many ranks on each as is told."""

    def __init__(self, folder: Path, limits: list[int]) -> None:
        self.folder = folder
        folder.mkdir()
        self.names = [f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}" for _ in limits]
        island = memory_keeper.__file__
        self.keepers = [
            subprocess.Popen([sys.executable, "-E", "-s", "-S", island, name, str(limit)])
            for name, limit in zip(self.names, limits, strict=True)
        ]
        for name in self.names:
            until(lambda name=name: _there(name), 60, "a keeper")  # type: ignore[misc]

    def train(self, parity: str, steps_count: int, ranks_count: int = 1) -> set[str]:
        """What ranks said."""
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
        command = [sys.executable, "-c", RANKS, str(self.folder), json.dumps(each), str(steps_count)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return set(done.stdout.splitlines())

    def ask(self, node: int, command: Rescue) -> Any:
        """As a supervisor asks the agent."""
        answer = rescue(self.names[node], command)
        assert answer.ok, answer.why
        return answer.data

    def whole(self, *nodes: int) -> WholeStep | None:
        """What those nodes have together."""
        held = {}
        for node in nodes:
            steps = self.ask(node, Rescue(1, (1, 1), 0))["steps"]
            held[str(node)] = [_holding(one) for one in steps]
        return newest_whole(held, -1)

    def brought(self, whole: WholeStep, name: str) -> Path:
        """The checkpoint that comes of it."""
        into, directory = str(self.folder / f"into-{name}"), self.folder / name
        directory.mkdir()
        for node, files in whole.files.items():
            self.ask(int(node), Rescue(1, (1, 2), 0, into, whole.step, whole.nonce, files))
        for node, files in whole.rebuild.items():
            self.ask(int(node), Rescue(1, (1, 3), 0, into, whole.step, whole.nonce, (), files))
        assert adopt(into, str(directory), whole.step, whole.nonce) == ""
        return directory / f"step-{whole.step}"


def _holding(one: Any) -> Holding:
    import msgspec

    return msgspec.convert(one, Holding)


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
        made.append(Nodes(tmp_path / str(len(made)), list(limits)))
        return made[-1]

    yield make
    for keeper in [keeper for nodes in made for keeper in nodes.keepers]:
        keeper.kill()
        keeper.wait()


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_whichever_two_of_four_nodes_are_lost_every_bit_of_the_step_comes_back(nodes_of: Any) -> None:
    nodes = nodes_of(*[10**9] * 4)
    assert nodes.train("2+2", 2) == set()
    every = set(range(4))
    calm = nodes.whole(*every)
    assert calm is not None and calm.step == 1 and not calm.rebuild
    expected = content(nodes.brought(calm, "calm"))
    assert len(expected) == 6 and "parity.json" not in expected
    for lost in [*combinations(range(4), 2), (3,)]:
        whole = nodes.whole(*every.difference(lost))
        assert whole is not None and whole.rebuilt_count == len(lost), lost
        found = nodes.brought(whole, f"without-{lost}")
        assert content(found) == expected, lost
        assert verify(str(found), 1).level is Level.VERIFIED
    assert nodes.whole(0) is None


def test_a_node_without_room_for_parity_leaves_its_group_unprotected_and_the_step_whole(nodes_of: Any) -> None:
    nodes = nodes_of(10**9, 10**9, 7 * 10**6)  # its part of the step are 5.5 MB, and parity 2.7
    (said,) = nodes.train("2+1", 1)
    assert "have no parity: rank 2:" in said and "--memory-limit" in said
    whole = nodes.whole(0, 1, 2)
    assert whole is not None and not whole.rebuild
    assert nodes.whole(0, 1) is None


def test_fewer_nodes_than_were_asked_for_protect_each_other_as_far_as_they_can(nodes_of: Any) -> None:
    nodes = nodes_of(10**9, 10**9)
    (said,) = nodes.train("2+2", 1, ranks_count=2)
    assert said == "steps in memory survive the loss of 1 of the nodes there are, and 2 were asked for"
    calm = nodes.whole(0, 1)
    assert calm is not None
    expected = content(nodes.brought(calm, "calm"))
    for left in (0, 1):
        whole = nodes.whole(left)
        assert whole is not None and whole.rebuilt_count == 2
        assert content(nodes.brought(whole, f"of-{left}")) == expected


@pytest.mark.parametrize(
    ("world_size", "local_world_size", "codes", "losses_count"),
    [
        (1, 1, (), 0),
        (8, 8, (), 0),
        (7, 2, (), 0),
        (4, 0, (), 0),
        (2, 1, ((0, 1),), 1),
        (3, 1, ((0, 1, 2),), 2),
        (8, 2, ((0, 2, 4, 6), (1, 3, 5, 7)), 2),
        (8, 1, ((0, 2, 4, 6), (1, 3, 5, 7)), 2),
        (9, 1, ((0, 2, 4, 6, 8), (1, 3, 5, 7)), 2),
    ],
)
def test_one_rank_of_each_node_codes_with_its_like(
    world_size: int, local_world_size: int, codes: tuple[tuple[int, ...], ...], losses_count: int
) -> None:
    plan = plan_of(world_size, local_world_size, 2, 2)
    assert (plan.codes, plan.losses_count) == (codes, losses_count)


@pytest.mark.parametrize(
    ("third", "trouble"),
    [
        (Coded("", {1: 40}, {(0, 0): (41, (41,))}), ""),
        (Coded("no room", {1: 40}, {(0, 0): (41, (41,))}), "rank 3: no room"),
        (Coded("", {1: 40}, {(0, 0): (41, (99,))}), "a piece came damaged for parity"),
    ],
)
def test_a_group_of_which_two_saw_other_bytes_has_no_record_and_others_have_theirs(third: Coded, trouble: str) -> None:
    """Two groups of two nodes; in each, either holds parity of the other's file."""
    files = [(protection.File(f"__{rank}_0.distcp", 7),) for rank in range(4)]
    told = [
        Coded("", {1: 10}, {(0, 0): (11, (11,))}),
        Coded("", {0: 41}, {(1, 0): (40, (40,))}),
        Coded("", {0: 11}, {(1, 0): (10, (10,))}),
        third,
    ]
    records, said = records_of(Plan(((0, 2), (3, 1)), 1, 1), StepName(0, 5, "ab" * 8), files, told)
    assert said == trouble
    assert records[0] == records[2] and (records[1] == records[3] == b"") == bool(trouble)
    for record in filter(None, records):
        assert protection.decode(record).losses_count == 1
