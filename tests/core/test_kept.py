"""Which step in the nodes' memory is whole, and whose it may be."""

from __future__ import annotations

import pytest

from gangrun.core.kept import Holding, WholeStep, newest_chosen, newest_whole


def held(step: int, nonce: str, *files: str, of: int = 0) -> Holding:
    return Holding(step, nonce, files, of)


@pytest.mark.parametrize(
    ("nodes", "above", "expected"),
    [
        ({}, -1, None),
        ({"a": []}, -1, None),
        ({"a": [held(5, "x", "0", "m", of=2)]}, -1, WholeStep(5, "x", {"a": ("0", "m")})),
        ({"a": [held(5, "x", "0", "m", of=2)]}, 5, None),  # the disk has it
        ({"a": [held(5, "x", "0", "m", of=3)]}, -1, None),  # a shard is nowhere
        ({"a": [held(5, "x", "0")], "b": [held(5, "x", "1")]}, -1, None),  # nobody has the manifest: never whole
        (  # a node that had not yet heard of the manifest holds its shard all the same
            {"a": [held(4, "w", "0", "m", of=3), held(5, "x", "0", "m", of=3)], "b": [held(5, "x", "1")]},
            -1,
            WholeStep(5, "x", {"a": ("0", "m"), "b": ("1",)}),
        ),
        (  # half of the newer save: the older one is taken
            {"a": [held(4, "w", "0", "m", of=3), held(5, "x", "0")], "b": [held(4, "w", "1", "m", of=3)]},
            -1,
            WholeStep(4, "w", {"a": ("0", "m"), "b": ("1",)}),
        ),
        (  # two saves of one step are never mixed
            {"a": [held(5, "x", "0", "m", of=3)], "b": [held(5, "y", "1", "m", of=3)]},
            -1,
            None,
        ),
        (  # what two nodes hold is written by one of them
            {"a": [held(5, "x", "0", "1", "m", of=3)], "b": [held(5, "x", "0", "1", "m", of=3)]},
            -1,
            WholeStep(5, "x", {"a": ("0", "1", "m")}),
        ),
    ],
)
def test_the_newest_step_of_which_some_node_holds_every_file_is_taken(
    nodes: dict[str, list[Holding]], above: int, expected: WholeStep | None
) -> None:
    assert newest_whole(nodes, above) == expected


def test_only_the_newest_attempt_that_chose_where_to_begin_may_give_its_memory_back() -> None:
    assert newest_chosen([], 0) == -1
    assert newest_chosen([(0, True), (1, True), (2, False)], 3) == 1
    assert newest_chosen([(0, True), (1, True)], 1) == 0
