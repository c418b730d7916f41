"""``gangrun wait``: until a run has ended, then its exit code."""

from __future__ import annotations

import click

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.cli.options import TIME, json_option, run_argument, runs_dir_option
from gangrun.display.text import clean, echo_json
from gangrun.display.times import span_words
from gangrun.errors import UNKNOWN
from gangrun.launch.stop import wait_for_end
from gangrun.runs.locate import find
from gangrun.runs.state import run_state
from gangrun.runs.status import status_of
from gangrun.runs.times import wall_now


@click.command("wait")
@run_argument
@click.option(
    "--timeout",
    "timeout_s",
    type=TIME,
    metavar="TIME",
    help="Stop waiting after TIME with exit code 3 (default never).",
)
@json_option
@runs_dir_option
def wait(run: str | None, timeout_s: float | None, as_json: bool, runs_dir: str | None) -> int:
    """Wait until a run has ended and exit with its code: 0 done, 1 failed, 130 cancelled; 3 if nobody can tell.

    A run on Slurm is waited for over all its jobs. What is to follow it waits for the run, not for one of its jobs.

    With --json the final status is printed, as `gangrun status --json` would.
    """
    return tell_end(find(run, runs_dir), timeout_s, as_json=as_json)


def tell_end(paths: RunPaths, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the end, tell it, and return the run's exit code."""
    reading = wait_for_end(paths, timeout_s)
    run, truth = clean(reading.spec.run), run_state(reading, wall_now())
    if as_json:
        echo_json(status_of(reading, wall_now()))
    elif truth.ended:
        click.echo(f"{run} {truth.state}: {clean(truth.reason)}")
    elif truth.abandoned:
        why = f" ({clean(truth.reason)})" if reading.spec.world == "slurm" else ""
        click.echo(f"{run}: nobody runs it any more, so it will not end by itself{why}", err=True)
        click.echo(f"  gangrun resume {run} takes it up again", err=True)
    else:
        span = f"{timeout_s:g} s" if timeout_s is not None and timeout_s < 60 else span_words(timeout_s or 0.0)
        click.echo(f"{run} has not ended within {span}", err=True)
    return UNKNOWN if truth.exit_code is None else truth.exit_code
