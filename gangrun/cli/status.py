"""``gangrun status``: what is running, where, at which step, what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.cli.options import json_option, run_argument, runs_dir_option
from gangrun.display.status_page import look_now, overview, page
from gangrun.display.text import clean, echo_json
from gangrun.errors import UserError
from gangrun.runs.locate import entries_of, find
from gangrun.runs.snapshot import RunSnapshot, concerns_slurm, read, with_queue
from gangrun.runs.status import SCHEMA, Status, UnreadableRun, status_of
from gangrun.runs.times import wall_now

SHOWN_COUNT = 20


@click.command("status")
@run_argument
@click.option("-a", "--all", "all_runs", is_flag=True, help="All runs, newest first, one line each.")
@click.option(
    "-w", "--watch", is_flag=True, help="Stay, and show it anew until the run ends (Ctrl-C leaves the viewer)."
)
@json_option
@runs_dir_option
def status(run: str | None, all_runs: bool, watch: bool, as_json: bool, runs_dir: str | None) -> int:
    """How a run goes: state and reason, where, step, checkpoint, attempts. Looking never touches the run.

    RUN is an id, the beginning of one, a name, a Slurm job id or a path; without it the newest run is shown.

    \b
      gangrun status              the newest run
      gangrun status --all        all runs
      gangrun status my-run -w    until it ends
    """  # noqa: D301 - click reads the backspace
    if all_runs:
        if run is not None or watch:
            raise UserError("usage", "--all shows every run, so it takes neither RUN nor --watch")
        return _all(runs_dir, as_json)
    if watch and as_json:
        raise UserError("usage", "--json is one object, --watch many looks", "gangrun wait --json prints the last one")
    paths = find(run, runs_dir)
    if watch:
        from gangrun.display.live_view import watch_run
        from gangrun.runs.follow import Follower

        watch_run(Follower(paths, curious=True), look_now)
        return 0
    status = status_of(read(paths, slurm=True), wall_now())
    if as_json:
        echo_json(status)
    else:
        click.echo("\n".join(page(status, look_now())))
    return 0


def _all(runs_dir: str | None, as_json: bool) -> int:
    entries = entries_of(runs_dir)
    shown = entries if as_json else entries[:SHOWN_COUNT]
    statuses = _statuses(shown)
    if as_json:
        echo_json({"schema": SCHEMA, "runs": statuses})
        return 0
    if not statuses:
        click.echo("no runs yet; gangrun run starts one")
        return 0
    click.echo("\n".join(overview(statuses, look_now())))
    if len(entries) > len(shown):
        click.echo(f"and {len(entries) - len(shown)} older ones (--json lists all, gangrun prune removes old ones)")
    return 0


def _statuses(entries: Sequence[IndexEntry]) -> list[Status | UnreadableRun]:
    """Slurm is asked once for all runs, and those that this concerns are read anew: a journal's word is newer."""
    found = [_read_or_why(entry) for entry in entries]
    if any(isinstance(one, RunSnapshot) and concerns_slurm(one) for one in found):
        from gangrun.runs.jobs import queue_of_each

        queue = queue_of_each()
        for k, one in enumerate(found):
            if isinstance(one, RunSnapshot) and concerns_slurm(one):
                again = _read_or_why(entries[k])
                if isinstance(again, RunSnapshot):
                    again = with_queue(again, queue(again.paths, again.spec.run, again.owner))
                found[k] = again
    return [status_of(one, wall_now()) if isinstance(one, RunSnapshot) else one for one in found]


def _read_or_why(entry: IndexEntry) -> RunSnapshot | UnreadableRun:
    try:
        return read(RunPaths(Path(entry.path)))
    except UserError as error:
        why = error.message
    except OSError as error:
        why = f"{error.strerror or error} ({clean(error.filename or entry.path)})"
    return UnreadableRun(run=entry.run, name=entry.name, reason=why)
