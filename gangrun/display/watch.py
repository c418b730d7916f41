"""``gangrun status --watch``: one page, drawn anew until the run ends.

On a terminal the page stays in its place; elsewhere a line is printed when something changed. Leaving it touches
nothing: it only reads.
"""

from __future__ import annotations

import click

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.display.status_page import look_now, page
from gangrun.display.text import clean
from gangrun.display.times import clock_words
from gangrun.runs.follow import Follower
from gangrun.runs.status import Status, status_of
from gangrun.runs.times import pause, wall_now

LOOK_EVERY_S = 1.0


def watch_run(paths: RunPaths) -> int:
    """Until the run has ended or nobody is left who could end it."""
    import sys

    if sys.stdout.isatty() and look_now().color:
        return _live(paths)
    return _lines(paths)


def _over(status: Status) -> bool:
    return status.exit_code is not None or bool(status.abandoned)


def _live(paths: RunPaths) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def drawn(status: Status) -> Text:
        return Text.from_ansi("\n".join(page(status, look_now())))

    run = Follower(paths, curious=True)
    status = status_of(run.look(), wall_now())
    with Live(drawn(status), console=Console(highlight=False), auto_refresh=False) as live:
        while not _over(status):
            pause(LOOK_EVERY_S)
            status = status_of(run.look(), wall_now())
            live.update(drawn(status), refresh=True)
    return 0


def _lines(paths: RunPaths) -> int:
    told, run = "", Follower(paths, curious=True)
    while True:
        status = status_of(run.look(), wall_now())
        line = _line(status)
        if line != told:
            now = wall_now()
            click.echo(f"{clock_words(now, now)} {line}")
            told = line
        if _over(status):
            return 0
        pause(LOOK_EVERY_S)


def _line(status: Status) -> str:
    step = f", step {status.step}" if status.step is not None else ""
    gone = "abandoned, " if status.abandoned else ""
    return f"{status.state}{step}: {gone}{clean(status.reason)}"
