"""docs/terminal.svg is what a real run shows: drawn again, it tells the same story."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORY = (
    "$ gangrun run --nproc-per-node 2 --checkpoint-dir ckpt train.py",
    "starting from the beginning: no checkpoint was ever committed",
    "# in another terminal: kill -9 of rank 1",
    "rank 1 on ",
    "was killed by SIGKILL (9)",
    "resuming from step ",
    "step 100 loss ",
    "$ gangrun status",
    "SUCCEEDED",
)


def text_of(picture: Path) -> str:
    """The words of the picture on one line."""
    words = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text("utf-8"))
    return " ".join(html.unescape(" ".join(words)).replace("\xa0", " ").split())


def told(picture: Path) -> None:
    text, at = text_of(picture), 0
    for sentence in STORY:
        at = text.find(sentence, at)
        assert at >= 0, (sentence, text)


def test_the_picture_tells_of_a_killed_rank() -> None:
    told(ROOT / "docs" / "terminal.svg")
    assert str(ROOT) not in text_of(ROOT / "docs" / "terminal.svg")


@pytest.mark.processes
@pytest.mark.slow
def test_a_new_picture_tells_the_same(tmp_path: Path) -> None:
    drawn = tmp_path / "terminal.svg"
    subprocess.run([sys.executable, ROOT / "docs" / "draw_terminal.py", drawn], check=True, timeout=280)
    told(drawn)
