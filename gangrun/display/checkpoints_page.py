"""The checkpoints of a run or of a directory as a table, and the bars of a verification."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gangrun.checkpoint.store import VerifyProgress
from gangrun.core.checkpoints.resume import Candidate, Kind
from gangrun.display.status_page import PageFormat, look_now
from gangrun.display.text import clean, size_words, styled, table, wrapped
from gangrun.display.times import ago_words
from gangrun.runs.checkpoints import DISK, Survey, measure, unread

MEMORY = "memory"
IN_MEMORY_ONLY = "on the nodes themselves; written to the disk when ranks or an agent die"
_HEAD = ("step", "valid", "level", "tier", "size", "shared", "changed", "directory", "why")


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """A bar on a terminal that may have one; nothing elsewhere."""
    if not (shown and sys.stderr.isatty() and look_now().color):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("step {task.fields[step]}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def progress(one: VerifyProgress) -> None:
            if one.path not in tasks:
                tasks[one.path] = bars.add_task("", total=one.total_bytes, step=one.step)
            bars.update(tasks[one.path], completed=one.done_bytes)

        yield progress


def page(survey: Survey, look: PageFormat) -> list[str]:
    """The table, and what would be resumed from."""
    place = survey.place
    lines = [f"{clean(place.directory)}{'  (of run ' + clean(place.run) + ')' if place.run else ''}"]
    rows = _rows(place.memory_step, survey.found, look)
    if not rows:
        lines.append("  no checkpoints here")
    else:
        lines += ["", *table(_HEAD, rows, look.columns)]
        lines[2] = styled(lines[2], "dim", look.color)
    return [*lines, "", *wrapped(f"a run would go on like this: {clean(survey.reason)}", look.columns, "  ")]


def _rows(memory_step: int | None, found: tuple[Candidate, ...], look: PageFormat) -> list[tuple[str, ...]]:
    """What is on the disk, and before it what is in memory only: that is newer, or it would have been let go."""
    rows = [_row(one, look, DISK if one.step != memory_step else f"{DISK}, {MEMORY}") for one in found]
    if memory_step is not None and all(one.step != memory_step for one in found):
        rows.insert(0, (str(memory_step), "-", "-", MEMORY, "-", "-", "-", "-", IN_MEMORY_ONLY))
    return rows


def _row(one: Candidate, look: PageFormat, tier: str) -> tuple[str, ...]:
    found = measure(one.path)
    return (
        str(one.step),
        _validity(one),
        one.level.value if one.level else ("?" if one.kind is Kind.UNKNOWN else "-"),
        tier,
        "?" if found.size_bytes is None else size_words(found.size_bytes),
        f"{100 * found.shared_bytes / found.size_bytes:.0f} %" if found.size_bytes and found.shared_bytes else "-",
        "?" if found.changed is None else ago_words(found.changed, look.now),
        clean(os.path.basename(one.path)),
        clean(one.why_not),
    )


def _validity(one: Candidate) -> str:
    if unread(one):
        return "unread"
    return "yes" if one.valid else ("no" if one.committed else "unfinished")
