"""``gangrun events`` and ``metrics``: a run told to other systems, from its directory. Both only read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import msgspec

from gangrun.cli.options import Typed, run_argument, runs_dir_option
from gangrun.config.parsers import positive_span_s
from gangrun.display.explain_page import RunEvent, event_line, run_ended, run_event
from gangrun.display.status_page import look_now
from gangrun.display.text import clean
from gangrun.errors import DONE, UNKNOWN, UserError
from gangrun.launch.stop import wait_for_end
from gangrun.runs.locate import find
from gangrun.runs.snapshot import read
from gangrun.runs.state import run_state
from gangrun.runs.timeline import EventFeed
from gangrun.runs.times import wall_now


@click.command("events")
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Print events as they happen; end when the run ends.")
@click.option(
    "--since", type=click.IntRange(min=0), metavar="SEQ", default=None, help="Begin after the event with this number."
)
@click.option("-a", "--all", "everything", is_flag=True, help="Print ignored, refused and routine records too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@runs_dir_option
def events(
    run: str | None, follow: bool, since: int | None, everything: bool, as_json: bool, runs_dir: str | None
) -> int:
    """Print the events of a run, one line each: what was seen and what was decided.

    With --follow the command goes on over all supervisors and jobs of the run, and exits as `gangrun wait` does. Each
    line has a number that grows: `--since SEQ` goes on after it. The line RunEnded is the last one.

    \b
      gangrun events my-run --json
      gangrun events my-run --follow --json --since 2000000017
    """  # noqa: D301 - click reads the backspace
    paths, look = find(run, runs_dir), look_now()
    feed = EventFeed(paths, -1 if since is None else since, everything=everything)

    def show(event: RunEvent) -> None:
        click.echo(msgspec.json.encode(event).decode() if as_json else event_line(event, look), color=look.color)

    def tell() -> None:
        for entry in feed.poll():
            show(run_event(paths.run, entry))

    def tell_if_there() -> None:
        with contextlib.suppress(OSError):  # who waits looks again, and says when that has lasted too long
            tell()

    reading = wait_for_end(paths, None, tell_if_there) if follow else read(paths, scheduler=True)
    tell()
    truth = run_state(reading, wall_now())
    if truth.over:
        show(run_ended(reading, feed.seq, wall_now()))
    for note in feed.notes():
        click.echo(f"gangrun: the journal could not be read in full: {clean(note)}", err=True)
    if not follow:
        return DONE
    return UNKNOWN if truth.exit_code is None else truth.exit_code


@click.command("metrics")
@run_argument
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write into PATH, for node_exporter's collector.",
)
@click.option("--every", type=Typed(positive_span_s, name="time"), help="Write again every TIME until the run ends.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve by HTTP on PORT; 0 = any free one.")
@click.option(
    "--address",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on (default 127.0.0.1, this host only).",
)
@runs_dir_option
def metrics(
    run: str | None, textfile: Path | None, every: float | None, port: int | None, address: str, runs_dir: str | None
) -> int:
    """Print the figures of a run in Prometheus' text format, write them into a file, or serve them.

    All of it is read from the run directory, so any host that sees the directory will do, and the run notices nothing.

    \b
      gangrun metrics my-run
      gangrun metrics my-run --textfile /var/lib/node_exporter/my-run.prom --every 15s
      gangrun metrics my-run --port 9464
    """  # noqa: D301 - click reads the backspace
    from gangrun.entry.metrics import serve, write_textfile
    from gangrun.runs.metrics import MetricsReader

    if every is not None and textfile is None:
        raise UserError("usage", "--every needs --textfile", "--port answers whenever it is asked")
    if textfile is not None and port is not None:
        words = "--textfile and --port exclude each other"
        raise UserError("usage", words, "start gangrun metrics twice if you need both")
    paths = find(run, runs_dir)
    if textfile is not None:
        write_textfile(paths, textfile.absolute(), every)
    elif port is not None:
        serve(paths, address, port, lambda words: click.echo(f"gangrun: {words}", err=True))
    else:
        click.echo(MetricsReader(paths).text(wall_now()), nl=False)
    return DONE
