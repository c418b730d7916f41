"""Nodes with parity of each other's files: whichever are lost, those that are left have the step to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gangrun.checkpoint.formats.manifest import verify  # noqa: E402
from gangrun.checkpoint.memory_tier.keeper_client import StepName  # noqa: E402
from gangrun.core.model import Level  # noqa: E402
from gangrun.training.memory.redundancy import Coded, CodingPlan, plan_of, records_of  # noqa: E402
from gangrun.wire import protection  # noqa: E402
from tests.training.nodes import Nodes  # noqa: E402


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_whichever_two_of_four_nodes_are_lost_every_bit_of_the_step_comes_back(nodes_of: Callable[..., Nodes]) -> None:
    nodes = nodes_of(*[10**9] * 4)
    assert nodes.train(2, parity="2+2") == set()
    every = set(range(4))
    calm = nodes.whole_of(*every)
    assert calm is not None and calm.step == 1 and not calm.rebuild
    expected = content(nodes.brought(calm, "calm"))
    assert len(expected) == 6 and "parity.json" not in expected
    for lost in [*combinations(range(4), 2), (3,)]:
        whole = nodes.whole_of(*every.difference(lost))
        assert whole is not None and whole.rebuilt_count == len(lost), lost
        found = nodes.brought(whole, f"without-{lost}")
        assert content(found) == expected, lost
        assert verify(str(found), 1).level is Level.VERIFIED
    assert nodes.whole_of(0) is None


def test_a_node_without_room_for_parity_leaves_its_group_unprotected_and_the_step_whole(
    nodes_of: Callable[..., Nodes],
) -> None:
    nodes = nodes_of(10**9, 10**9, 7 * 10**6)  # its part of the step are 5.5 MB, and parity 2.7
    (said,) = nodes.train(1, parity="2+1")
    assert "not protected by parity: rank 2:" in said and "--memory-limit" in said
    whole = nodes.whole_of(0, 1, 2)
    assert whole is not None and not whole.rebuild
    assert nodes.whole_of(0, 1) is None


def test_fewer_nodes_than_were_asked_for_protect_each_other_as_far_as_they_can(nodes_of: Callable[..., Nodes]) -> None:
    nodes = nodes_of(10**9, 10**9)
    heard = nodes.train(1, parity="2+2", ranks_count=2)
    assert len(heard) == 1, heard
    (said,) = heard
    assert said == "steps in memory survive the loss of 1 of the nodes that this attempt has, and 2 were asked for"
    calm = nodes.whole_of(0, 1)
    assert calm is not None
    expected = content(nodes.brought(calm, "calm"))
    for left in (0, 1):
        whole = nodes.whole_of(left)
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
    files = [(protection.CodedFile(f"__{rank}_0.distcp", 7),) for rank in range(4)]
    told = [
        Coded("", {1: 10}, {(0, 0): (11, (11,))}),
        Coded("", {0: 41}, {(1, 0): (40, (40,))}),
        Coded("", {0: 11}, {(1, 0): (10, (10,))}),
        third,
    ]
    records, said = records_of(CodingPlan(((0, 2), (3, 1)), 1, 1), StepName(0, 5, "ab" * 8), files, told)
    assert said == trouble
    assert records[0] == records[2] and (records[1] == records[3] == b"") == bool(trouble)
    for record in filter(None, records):
        assert protection.decode(record).losses_count == 1
