"""``gangrun wait``: until a run has ended, then its exit code (room: cli; reads, never writes)."""

from __future__ import annotations

import click

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.cli.errors import UNKNOWN, UserError
from gangrun.cli.options import echo_json, json_option, run_argument, runs_dir_option
from gangrun.cli.reading import find
from gangrun.cli.settings import span_s
from gangrun.cli.status_json import status_of
from gangrun.cli.steering import exit_code_of, wait_for_end
from gangrun.cli.terminal import clean
from gangrun.cli.times import span_words, wall_now


@click.command("wait")
@run_argument
@click.option("--timeout", metavar="TIME", help="Give up after so long, with exit code 3 (default: never).")
@json_option
@runs_dir_option
def command(run: str | None, timeout: str | None, as_json: bool, runs_dir: str | None) -> int:
    """Wait until a run has ended and exit with its code: 0 done, 1 failed, 130 cancelled; 3 if nobody can tell.

    With --json the final status is printed, as `gangrun status --json` would.
    """
    try:
        timeout_s = None if timeout is None else span_s(timeout)
    except ValueError as error:
        raise UserError("usage", f"--timeout: {error}") from error
    return tell_end(find(run, runs_dir), timeout_s, as_json=as_json)


def tell_end(paths: RunPaths, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the end, tell it, and return the run's exit code."""
    reading = wait_for_end(paths, timeout_s)
    code = exit_code_of(reading)
    if as_json:
        echo_json(status_of(reading, wall_now()))
    elif reading.ended and reading.state is not None:
        click.echo(f"{clean(reading.spec.run)} {reading.state.phase.value}: {clean(reading.state.reason)}")
    elif reading.abandoned(wall_now()):
        click.echo(f"{clean(reading.spec.run)}: nobody runs it any more, so it will not end by itself", err=True)
        click.echo(f"  gangrun resume {clean(reading.spec.run)} takes it up again", err=True)
    else:
        click.echo(f"{clean(reading.spec.run)} has not ended within {span_words(timeout_s or 0.0)}", err=True)
    return code if reading.ended else UNKNOWN
