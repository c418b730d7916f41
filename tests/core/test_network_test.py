"""Ranks lost a connection and nothing else says why: nodes meet in pairs before the next attempt, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gangrun.core.actions import CheckNodes, SealAttempts
from gangrun.core.events import NodeChecked, NodeLost
from gangrun.core.evidence import ErrorReport
from gangrun.core.model import Cure, Met, Phase
from gangrun.core.nodes import meetings, network_test
from gangrun.core.policy import Policy
from gangrun.core.recovery.error_rules import BY_NAME
from tests.core.life import Life

TRIES = Policy(test_suspects=True)
SLURM = replace(TRIES, can_requeue=True)
LOST = ErrorReport(
    "torch.distributed.DistBackendError",
    "NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
    "lost",
    "Traceback ...",
    True,
)


def lost(life: Life, *, error: ErrorReport = LOST) -> Life:
    """All ranks of the gang say that they lost a peer."""
    for rank in range(len(life.state.attempt.placement.nodes if life.state.attempt.placement else ())):
        life.exit(rank, code=1, error=error)
    life.stopped()
    return life


def gang(nodes: int, policy: Policy = SLURM, spares: tuple[str, ...] = ()) -> Life:
    life = Life(nodes, 1, policy=policy).running()
    for name in spares:
        life.join(name)
        life.on(NodeChecked(name, True))
    return life


def answer(life: Life, bad: Mapping[str, tuple[str, ...]]) -> Life:
    """Each node says whom it met; ``bad``: whom it did not reach."""
    test = life.state.health.network
    assert test is not None
    pairs = [pair for one in meetings.rounds_of_few(test.nodes) for pair in one]
    for name in test.nodes:
        partners = [pair[1 - pair.index(name)] for pair in pairs if name in pair]
        told = tuple(Met(p, f"{p} does not answer: timed out" if p in bad.get(name, ()) else "") for p in partners)
        life.on(NodeChecked(name, True, met=told))
    return life


def test_rows_of_the_table_say_that_a_lost_connection_is_tested() -> None:
    assert {rule.name for rule in BY_NAME.values() if rule.few is Cure.MEET} == {
        "ib-completion", "nccl-remote", "nccl-system", "peer-lost",
    }  # fmt: skip


def test_the_next_attempt_waits_until_nodes_have_met_and_a_test_that_finds_nothing_excludes_nobody() -> None:
    life = lost(gang(4))
    assert life.phase is Phase.CHECKING
    life.says("the network between n[0-3] is tested first")
    ring = meetings.rounds_of_few(("n0", "n1", "n2", "n3"))
    assert life.actions == (CheckNodes(("n0", "n1", "n2", "n3"), "", ring),)
    assert life.state.timers.deadlines["check"].at == pytest.approx(life.now + 60.0 + network_test.WITHIN_S)
    answer(life, {})
    assert life.phase is Phase.STARTING
    life.says("the network test: 4 nodes, 6 pairs: every node had a good pair", "starting attempt 1")
    assert not life.state.health.excluded
    assert life.state.health.network is None


def test_a_node_that_reaches_nobody_while_its_partners_reach_others_is_excluded() -> None:
    life = answer(lost(gang(4)), {"n1": ("n0", "n2", "n3"), "n0": ("n1",), "n2": ("n1",), "n3": ("n1",)})
    assert set(life.state.health.excluded) == {"n1"}
    life.says("the network test failed: the network of n1 does not get through: with n0 failed (n", "n1 excluded for")


def test_a_pair_that_fails_alone_is_a_link_and_of_its_nodes_one_goes() -> None:
    life = gang(3, replace(TRIES), ("n3",))
    lost(life)
    answer(life, {"n0": ("n1",), "n1": ("n0",)})
    life.says("the network test failed between n0 and n1 only: 4 nodes, 6 pairs")
    assert len(life.state.health.excluded) == 1
    assert set(life.state.health.excluded) < {"n0", "n1"}


def test_two_links_without_a_node_in_common_exclude_nobody() -> None:
    life = answer(lost(gang(4)), {"n0": ("n1",), "n1": ("n0",), "n2": ("n3",), "n3": ("n2",)})
    life.says("the network test failed between n0 and n1, n2 and n3 only", "n[0-3] are suspected")
    assert not life.state.health.excluded


def test_no_other_node_can_take_its_place() -> None:
    life = answer(lost(gang(3, TRIES)), {"n1": ("n0", "n2"), "n0": ("n1",), "n2": ("n1",)})
    life.says("no other node can take the place of n1")
    assert not life.state.health.excluded


def test_two_nodes_alone_cannot_be_told_apart() -> None:
    life = answer(lost(gang(2)), {"n0": ("n1",), "n1": ("n0",)})
    life.says("no pair was good, so it is the two nodes or what lies between them; nobody is named")
    assert not life.state.health.excluded


def test_what_only_one_side_says_does_not_count() -> None:
    life = lost(gang(4))
    for name in ("n0", "n1", "n2", "n3"):
        life.on(NodeChecked(name, True, met=(Met("n1", "timed out"), Met("n2", "timed out")) if name == "n0" else ()))
    life.says("the network test could not be made, which does not count against a node")
    assert not life.state.health.excluded


def test_a_node_that_does_not_answer_in_time_is_no_failed_test() -> None:
    life = lost(gang(3))
    life.on(NodeLost("n2", life.now, "gone"))
    life.on(NodeChecked("n0", True, met=(Met("n1"),)))
    life.due("check")
    life.says("no answer from the checks on n1", "the network test could not be made")


def test_nothing_meets_if_nobody_asked_for_tests_or_the_text_tells_of_no_connection() -> None:
    assert lost(gang(3, Policy())).state.health.network is None
    assert lost(gang(3), error=replace(LOST, message="something", kind="RuntimeError")).state.health.network is None


def test_one_node_has_nobody_to_meet() -> None:
    life = lost(gang(1))
    assert life.state.health.network is None
    assert isinstance(life.actions[0], SealAttempts)
