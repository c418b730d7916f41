"""Fixtures of the real runs on this box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local.harness import Box


@pytest.fixture(autouse=True)
def keeps_no_standbys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``no_warm`` says so: each standby imports torch, and these tests look at something else."""
    if request.node.get_closest_marker("no_warm"):
        monkeypatch.setenv("GANGRUN_NO_WARM", "1")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A folder with a run in it; everything is killed afterwards."""
    made = Box(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[[str], Box]]:
    """Several runs side by side: what takes 20 s in each takes 20 s in all."""
    made: list[Box] = []

    def make(name: str) -> Box:
        (tmp_path / name).mkdir()
        made.append(Box(tmp_path / name))
        return made[-1]

    try:
        yield make
    finally:
        for box in made:
            box.close()
