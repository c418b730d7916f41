"""Fixtures of the real runs on this box."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.harness import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A folder with a run in it; everything is killed afterwards."""
    made = Box(tmp_path)
    try:
        yield made
    finally:
        made.close()
