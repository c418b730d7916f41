"""Draws docs/watch.svg and docs/report.png from a run that was made up:  python docs/draw_watch.py [FOLDER]

No cluster of that size is at hand, so the records are those with which tests measure large reports. The screen and the
page are the real ones. report.png needs chromium; without it only the screen is drawn.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timezone
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gangrun.display.report.page import html_page  # noqa: E402
from gangrun.display.status_page import PageFormat  # noqa: E402
from gangrun.display.watch_screen import Scrolled, screen_lines  # noqa: E402
from gangrun.runs.history import TrainingHistory  # noqa: E402
from gangrun.runs.report import report_of  # noqa: E402
from gangrun.runs.snapshot import RunSnapshot  # noqa: E402
from gangrun.runs.status import status_of  # noqa: E402
from gangrun.runs.watched import NodeSquares, RankKind, WatchedLook  # noqa: E402
from tests.runs.large_run import large  # noqa: E402

COLUMNS, ROWS = 100, 32
NODES, FAILURES, DAYS = 132, 5, 3.0
PAGE_PIXELS = "1160,2250"


def looked(run: RunSnapshot) -> WatchedLook:
    """What a watcher knows of it."""
    past = TrainingHistory().read(run.records)
    spares = [NodeSquares(f"n{k:04d}", (RankKind.SPARE,)) for k in range(126, 131)]
    ranks = [NodeSquares(f"n{k:04d}", (RankKind.RUNNING,) * 8) for k in range(126)]
    paces = [one.step_s * (1 + 0.1 * ((k * 7919) % 13) / 13) for k, one in enumerate(past.paces())]
    losses = [one.loss for one in past.samples if one.loss is not None]
    decisions = [(one.wall, one.reason) for one in run.records if one.reason]
    status = status_of(run, run.records[-1].wall)
    status.name, status.abandoned, status.steps_per_s, status.reason = "llm-70b", False, 1 / paces[-1], decisions[-1][1]
    nodes = (*ranks, *spares, NodeSquares("n0111", (RankKind.LOST,)))
    return WatchedLook(status, nodes, tuple(paces), tuple(losses), tuple(decisions))


def main(folder: Path) -> None:
    """The screen, then the page."""
    with tempfile.TemporaryDirectory(prefix="gangrun-picture-") as name:
        run = large(Path(name), NODES, FAILURES, DAYS)
        run = replace(run, owner_alive=True)
        look = PageFormat(run.records[-1].wall + 2, COLUMNS, color=True, zone=timezone.utc)
        lines = screen_lines(looked(run), Scrolled(), look, ROWS)
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), highlight=False, force_terminal=True)  # noqa: SIM115
        console.print(Text.from_ansi("\n".join(lines)))
        svg = console.export_svg(title="gangrun status --watch", unique_id="gangrun-watch")
        (folder / "watch.svg").write_text(svg, "utf-8")
        if browser := shutil.which("chromium"):
            page = Path(name) / "report.html"
            page.write_text(html_page(run, report_of(run, None, 2.5), look), "utf-8")
            words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={PAGE_PIXELS}"]
            shot = f"--screenshot={folder / 'report.png'}"
            subprocess.run([browser, *words, shot, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
