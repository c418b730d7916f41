"""docs/failures.md is drawn from the table of error texts and stays equal to it."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_failures.py"))["page"]()
    assert (ROOT / "docs" / "failures.md").read_text() == drawn, "run: python docs/draw_failures.py"
