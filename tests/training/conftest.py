"""Fixtures of the training side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.nodes import Nodes


@pytest.fixture
def nodes_of(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Makes nodes of so many bytes each; they are gone after the test."""
    made: list[Nodes] = []

    def make(*limits: int) -> Nodes:
        made.append(Nodes(tmp_path / f"nodes-{len(made)}", list(limits)))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()
