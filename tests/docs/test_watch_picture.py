"""docs/watch.svg is what the screen shows today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_terminal_picture import text_of

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_the_picture_of_the_screen_is_of_today(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "docs" / "draw_watch.py", tmp_path], check=True, timeout=280)
    assert text_of(tmp_path / "watch.svg") == text_of(ROOT / "docs" / "watch.svg")
