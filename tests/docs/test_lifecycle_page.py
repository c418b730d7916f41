"""docs/lifecycle.md is drawn from the table and stays equal to it."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_lifecycle.py"))["page"]()
    assert (ROOT / "docs" / "lifecycle.md").read_text() == drawn, "run: python docs/draw_lifecycle.py"
