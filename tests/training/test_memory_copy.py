"""Two nodes with a rank each keep each other's files: what one node alone holds is the whole step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from gangrun.checkpoint.formats.manifest import verify  # noqa: E402
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName  # noqa: E402
from gangrun.core.model import Level  # noqa: E402
from gangrun.training.memory.redundancy import Taking, distance  # noqa: E402
from gangrun.training.save.shard_file import row_of  # noqa: E402
from tests.training.nodes import Nodes  # noqa: E402


def test_either_node_alone_has_the_whole_step_and_it_is_proven_byte_by_byte(nodes_of: Callable[..., Nodes]) -> None:
    nodes = nodes_of(10**9, 10**9)
    assert nodes.train(3, 5_000) == set()  # 20 MB a rank, two chunks
    for node in (0, 1):
        whole = nodes.whole_of(node)
        assert whole is not None and whole.step == 2
        assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "gangrun.json"} == set(whole.files[str(node)])
        assert verify(str(nodes.brought(whole, f"of-{node}")), 2).level is Level.VERIFIED


@pytest.mark.parametrize("fault", ["", "damaged", "no room"])
def test_only_a_copy_that_came_whole_is_kept(nodes_of: Callable[..., Nodes], fault: str) -> None:
    nodes, name, data = nodes_of(1000, 10), StepName(0, 5, "ab"), b"the other's bytes"
    kept = KeeperClient(nodes.names[fault == "no room"])
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
