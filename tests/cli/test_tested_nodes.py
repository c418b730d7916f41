"""What ``status`` says of devices that were put to work."""

from __future__ import annotations

import pytest

from gangrun.core.model import Node
from gangrun.runs.tested_nodes import as_json, told


def node(name: str, tested: str = "", trial: str = "") -> Node:
    return Node(name, "i", "b", 1, checked=None if trial else True, tested=tested, trial=trial)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("n0")], ""),
        ([node("n0", "0 wrong in 4 products")], "of n0 work: 0 wrong in 4 products"),
        ([node(f"n{k}", "0 wrong") for k in range(11)], "of n[0-10] work, as tested"),
        (
            [
                node("n0", "0 wrong"),
                node("n2", trial="attempt 0: hang"),
                node("n1", "0 wrong", trial="attempt 1: signal"),
            ],
            "of n0 work: 0 wrong; n1 is being tested (attempt 1: signal); n2 is being tested (attempt 0: hang)",
        ),
    ],
)
def test_on_one_line(nodes: list[Node], words: str) -> None:
    tests = as_json({one.name: one for one in nodes})
    assert told(tests) == words
    assert {one["state"] for one in tests} <= {"testing", "passed"}
