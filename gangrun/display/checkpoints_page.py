"""The checkpoints of a run or of a directory as a table, and the bars of a verification."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gangrun.checkpoint.store import VerifyProgress
from gangrun.core.checkpoints.resume import Kind
from gangrun.core.text import step_words
from gangrun.display.status_page import PageFormat, look_now
from gangrun.display.text import clean, size_words, styled, table, wrapped
from gangrun.display.times import ago_words
from gangrun.runs.checkpoints import CheckpointList, ListedCheckpoint

MEMORY = "memory"
IN_MEMORY_ONLY = "in the memory of the nodes; written to disk if ranks or an agent die"
_HEAD = ("step", "valid", "level", "tier", "size", "shared", "changed", "name", "why")


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
        TextColumn("{task.fields[step]}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def progress(one: VerifyProgress) -> None:
            if one.path not in tasks:
                tasks[one.path] = bars.add_task("", total=one.total_bytes, step=step_words(one.step))
            bars.update(tasks[one.path], completed=one.done_bytes)

        yield progress


def page(found: CheckpointList, look: PageFormat) -> list[str]:
    """The table, and what would be resumed from."""
    lines = [f"{clean(found.directory)}{'  (of run ' + clean(found.run) + ')' if found.run else ''}"]
    rows = _rows(found, look)
    if not rows:
        lines.append("  no checkpoint that gangrun can judge")
    else:
        shown = [k for k, name in enumerate(_HEAD) if name != "shared" or any(row[k] != "-" for row in rows)]
        cut = [tuple(row[k] for k in shown) for row in (_HEAD, *rows)]
        lines += ["", *table(cut[0], cut[1:], look.columns)]
        lines[2] = styled(lines[2], "dim", look.color)
    return [*lines, "", *wrapped(f"if a run started now: {clean(found.reason)}", look.columns, "  ")]


def _rows(found: CheckpointList, look: PageFormat) -> list[tuple[str, ...]]:
    """What is on the disk, and before it what is in memory only: that is newer, or it would have been let go."""
    step = found.memory_step
    kept = () if step is None else (step,)
    rows = [_row(one, look, f"{one.tier}, {MEMORY}" if one.step in kept else one.tier) for one in found.checkpoints]
    if step is not None and all(one.step != step for one in found.checkpoints):
        rows.insert(0, (str(step), "-", "-", MEMORY, "-", "-", "-", "-", IN_MEMORY_ONLY))
    return rows


def _row(one: ListedCheckpoint, look: PageFormat, tier: str) -> tuple[str, ...]:
    valid = "unread" if one.valid is None else "yes" if one.valid else "no" if one.committed else "unfinished"
    return (
        "-" if one.step is None else str(one.step),
        valid,
        one.level or ("?" if one.kind == Kind.UNKNOWN.value else "-"),
        tier,
        "?" if one.size_bytes is None else size_words(one.size_bytes),
        f"{100 * one.shared_bytes / one.size_bytes:.0f} %" if one.size_bytes and one.shared_bytes else "-",
        "?" if one.changed is None else ago_words(one.changed, look.now),
        clean(os.path.basename(one.path)),
        clean(one.why_not),
    )
