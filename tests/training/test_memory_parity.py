"""Nodes with parity of each other's files: whichever are lost, those that are left have the step to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gangrun.agent.background_tasks import recover  # noqa: E402
from gangrun.checkpoint.formats.manifest import verify  # noqa: E402
from gangrun.checkpoint.memory_tier.keeper_client import StepName  # noqa: E402
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt  # noqa: E402
from gangrun.core.checkpoints.memory import Holding, WholeStep, newest_whole  # noqa: E402
from gangrun.core.model import Level  # noqa: E402
from gangrun.training.memory.redundancy import Coded, CodingPlan, plan_of, records_of  # noqa: E402
from gangrun.wire import protection  # noqa: E402
from gangrun.wire.messages import Recover  # noqa: E402
from tests.training.nodes import Nodes  # noqa: E402


def ask(nodes: Nodes, node: int, command: Recover) -> tuple[Holding, ...]:
    """As a supervisor asks the agent."""
    answer = recover(nodes.names[node], command)
    assert answer.ok, answer.why
    return answer.answer.steps if answer.answer else ()


def whole_of(nodes: Nodes, *left: int) -> WholeStep | None:
    """What those nodes have together."""
    held = {}
    for node in left:
        held[str(node)] = ask(nodes, node, Recover(1, (1, 1), 0))
    return newest_whole(held, -1)


def brought(nodes: Nodes, whole: WholeStep, name: str) -> Path:
    """The checkpoint that comes of it."""
    into, directory = str(nodes.folder / f"into-{name}"), nodes.folder / name
    directory.mkdir()
    for node, files in whole.files.items():
        ask(nodes, int(node), Recover(1, (1, 2), 0, into, whole.step, whole.nonce, files))
    for node, files in whole.rebuild.items():
        ask(nodes, int(node), Recover(1, (1, 3), 0, into, whole.step, whole.nonce, (), files))
    assert adopt(into, str(directory), whole.step, whole.nonce) == ""
    return directory / f"step-{whole.step}"


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_whichever_two_of_four_nodes_are_lost_every_bit_of_the_step_comes_back(nodes_of: Callable[..., Nodes]) -> None:
    nodes = nodes_of(*[10**9] * 4)
    assert nodes.train(2, parity="2+2") == set()
    every = set(range(4))
    calm = whole_of(nodes, *every)
    assert calm is not None and calm.step == 1 and not calm.rebuild
    expected = content(brought(nodes, calm, "calm"))
    assert len(expected) == 6 and "parity.json" not in expected
    for lost in [*combinations(range(4), 2), (3,)]:
        whole = whole_of(nodes, *every.difference(lost))
        assert whole is not None and whole.rebuilt_count == len(lost), lost
        found = brought(nodes, whole, f"without-{lost}")
        assert content(found) == expected, lost
        assert verify(str(found), 1).level is Level.VERIFIED
    assert whole_of(nodes, 0) is None


def test_a_node_without_room_for_parity_leaves_its_group_unprotected_and_the_step_whole(
    nodes_of: Callable[..., Nodes],
) -> None:
    nodes = nodes_of(10**9, 10**9, 7 * 10**6)  # its part of the step are 5.5 MB, and parity 2.7
    (said,) = nodes.train(1, parity="2+1")
    assert "have no parity: rank 2:" in said and "--memory-limit" in said
    whole = whole_of(nodes, 0, 1, 2)
    assert whole is not None and not whole.rebuild
    assert whole_of(nodes, 0, 1) is None


def test_fewer_nodes_than_were_asked_for_protect_each_other_as_far_as_they_can(nodes_of: Callable[..., Nodes]) -> None:
    nodes = nodes_of(10**9, 10**9)
    heard = nodes.train(1, parity="2+2", ranks_count=2)
    assert len(heard) == 1, heard
    (said,) = heard
    assert said == "steps in memory survive the loss of 1 of the nodes there are, and 2 were asked for"
    calm = whole_of(nodes, 0, 1)
    assert calm is not None
    expected = content(brought(nodes, calm, "calm"))
    for left in (0, 1):
        whole = whole_of(nodes, left)
        assert whole is not None and whole.rebuilt_count == 2
        assert content(brought(nodes, whole, f"of-{left}")) == expected


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
