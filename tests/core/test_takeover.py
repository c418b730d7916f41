"""Who may claim, and with which numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Node
from gangrun.core.policy import Timing
from gangrun.core.protocol import takeover

TIMING = Timing()
ROSTER = tuple(f"n{index}" for index in range(1, 8))


def test_five_candidates_the_leaders_own_node_first() -> None:
    nodes = {name: Node(name, "i", "b", 1) for name in reversed((*ROSTER, "n10"))}
    assert takeover.candidates(nodes) == ("n1", "n2", "n3", "n4", "n5")
    assert takeover.candidates(nodes, "n10") == ("n10", "n1", "n2", "n3", "n4")
    nodes["n1"] = replace(nodes["n1"], silent_since=3.0)
    nodes["n2"] = replace(nodes["n2"], lost=True)
    assert takeover.candidates(nodes, "n1") == ("n3", "n4", "n5", "n6", "n7")
    assert takeover.candidates({}, "n1") == ()


@pytest.mark.parametrize(
    ("promises", "still_s", "writes", "down", "allowed", "words"),
    [
        (ROSTER[:4], 0.0, False, False, True, "4 of 7 agents lost the supervisor"),
        (
            ROSTER[:3],
            0.0,
            True,
            False,
            False,
            "only 3 of 7 agents promised themselves, and the supervisor's counter moved 0 s ago",
        ),
        ((*ROSTER[:3], "n1", "stranger", "n99"), 0.0, True, False, False, "only 3 of 7"),
        ((), 59.9, True, False, False, "counter moved 60 s ago"),
        ((), 60.0, True, False, True, "stood still for 60 s while our writes worked"),
        ((), 600.0, False, False, False, "our own writes fail"),
        ((), 0.0, False, True, True, "node is down"),
    ],
)
def test_may_claim(
    promises: tuple[str, ...], still_s: float, writes: bool, down: bool, allowed: bool, words: str
) -> None:
    ruling = takeover.may_claim(
        promises, ROSTER, counter_still_s=still_s, own_writes_ok=writes, holder_down=down, timing=TIMING
    )
    assert ruling.allowed is allowed and words in ruling.sentence


@pytest.mark.parametrize(("count", "need"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_half_is_not_a_majority(count: int, need: int) -> None:
    roster = ROSTER[:count]
    assert takeover.has_majority(roster[:need], roster) and not takeover.has_majority(roster[: need - 1], roster)


def test_backoff_doubles() -> None:
    assert [takeover.backoff_s(count) for count in (0, 1, 2, 3, 7, 8, 5000)] == [0.0, 1.0, 2.0, 4.0, 64.0, 64.0, 64.0]
