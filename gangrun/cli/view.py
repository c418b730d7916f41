"""``gangrun status``, ``explain`` and ``logs``: they look at a run and never touch it.

``status`` is looked at often: what only the others need is imported in them.
"""

from __future__ import annotations

from typing import Any

import click

from gangrun.cli.options import json_option, run_argument, runs_dir_option
from gangrun.display.status_page import look_now, overview, page
from gangrun.display.text import echo_json, log_line
from gangrun.errors import UserError
from gangrun.runs.locate import entries_of, find
from gangrun.runs.snapshot import read
from gangrun.runs.status import RunList, status_of, statuses_of, with_recoveries
from gangrun.runs.times import wall_now

SHOWN_COUNT = 20


@click.command("status")
@run_argument
@click.option("-a", "--all", "all_runs", is_flag=True, help="Show all runs, newest first, one line each.")
@click.option("--ranks", is_flag=True, help="Also show every rank: its node, pid, step and state, up to 30 s old.")
@click.option("-w", "--watch", is_flag=True, help="Show the run on the whole screen until it ends; q leaves.")
@json_option
@runs_dir_option
def status(run: str | None, all_runs: bool, ranks: bool, watch: bool, as_json: bool, runs_dir: str | None) -> int:
    """Show how a run goes: state and reason, where, step, checkpoint, attempts.

    RUN is an id, the beginning of one, a name, a job id or a path. Without RUN the newest run that was started in this
    directory is shown; if there is none, the newest of your runs.

    \b
      gangrun status              the newest run of this directory
      gangrun status --all        all runs
      gangrun status my-run -w    until it ends
    """  # noqa: D301 - click reads the backspace
    if ranks and (all_runs or watch):
        raise UserError("usage", "--ranks takes neither --all nor --watch", "leave them out")
    if all_runs:
        if run is not None or watch:
            raise UserError("usage", "--all shows every run, so it takes neither RUN nor --watch", "leave out --all")
        return _all(runs_dir, as_json=as_json)
    if watch and as_json:
        words = "--json and --watch exclude each other: --json prints one object, --watch prints many pages"
        raise UserError("usage", words, "gangrun wait --json prints the final state")
    paths = find(run, runs_dir)
    if watch:
        from gangrun.display.live_view import watch_run
        from gangrun.runs.follow import Follower
        from gangrun.runs.watched import WatchedRun

        watch_run(WatchedRun(paths, Follower(paths, curious=True)), look_now)
        return 0
    reading = read(paths, timeline=ranks, scheduler=True)
    found = with_recoveries(status_of(reading, wall_now()), reading)
    if ranks:
        from gangrun.runs.failures import rank_statuses

        found.ranks = rank_statuses(reading)
    return _json(found) if as_json else _lines(page(found, look_now()))


def _all(runs_dir: str | None, *, as_json: bool) -> int:
    entries = entries_of(runs_dir)
    shown = entries if as_json else entries[:SHOWN_COUNT]
    statuses = statuses_of(shown)
    if as_json:
        return _json(RunList(runs=tuple(statuses)))
    if not statuses:
        return _lines(["no runs yet; gangrun run starts one"])
    older = len(entries) - len(shown)
    more = [f"and {older} older ones (--json lists all, gangrun prune removes old ones)"] if older else []
    return _lines([*overview(statuses, look_now()), *more])


def _json(value: object) -> int:
    echo_json(value)
    return 0


def _lines(lines: list[str]) -> int:
    click.echo("\n".join(lines))
    return 0


@click.command("explain")
@run_argument
@click.option("-a", "--all", "everything", is_flag=True, help="Show ignored, refused and routine records too.")
@json_option
@runs_dir_option
def explain(run: str | None, everything: bool, as_json: bool, runs_dir: str | None) -> int:
    """Show the decisions of a run: when, what was seen, concluded and done.

    The sentences under "concluded" are the supervisor's own, from the journal. Without --all only decisions that
    matter are shown; routine ones are summed up under "meanwhile".
    """
    from gangrun.display.explain_page import explained, page

    look = look_now()
    told = explained(read(find(run, runs_dir), timeline=True, scheduler=True), look.now, everything=everything)
    return _json(told) if as_json else _lines(page(told, look, everything=everything))


@click.command("logs")
@run_argument
@click.option("-r", "--rank", "ranks", metavar="RANKS", help="Show only these ranks: 3, or 0,4-7.")
@click.option("-k", "--attempt", type=click.IntRange(min=0), metavar="K", help="Attempt to show (default the newest).")
@click.option("-n", "--node", metavar="NODE", help="Show only this node.")
@click.option("-t", "--tail", type=click.IntRange(min=0), metavar="LINES", help="Show only the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends; Ctrl-C leaves the viewer.")
@click.option("-e", "--errors", is_flag=True, help="Show who failed first, then each distinct traceback once.")
@json_option
@runs_dir_option
def logs(run: str | None, runs_dir: str | None, *, follow: bool, errors: bool, as_json: bool, **asked: Any) -> int:
    """Show what the ranks of a run printed, each line with [node:rankN] before it.

    \b
      gangrun logs -f                 all ranks, as it comes
      gangrun logs --rank 0 -t 100    the last lines of rank 0
      gangrun logs --errors           who failed first, and how
    """  # noqa: D301 - click reads the backspace
    from gangrun.runs.rank_output import Wanted, followed, newest_attempt, ranks_in, refuse_unknown_ranks, written

    attempt, tail, wanted = asked["attempt"], asked["tail"], Wanted(ranks_in(asked["ranks"]), asked["node"])
    if errors and (follow or tail is not None):
        raise UserError("usage", "--errors takes neither --follow nor --tail", "leave them out")
    if as_json and not errors:
        words = "--json needs --errors: the logs themselves are plain text"
        raise UserError("usage", words, "gangrun logs --errors --json")
    paths, color = find(run, runs_dir), look_now().color
    refuse_unknown_ranks(paths, wanted, attempt)
    if errors:
        from gangrun.display.explain_page import failure_page
        from gangrun.runs.failures import failure_in, failures_of
        from gangrun.runs.rank_output import tail_of

        reading = read(paths, timeline=True)
        failure = failure_in(reading, attempt, wanted)
        if as_json:
            return _json(failures_of(reading.spec.run, failure))
        tails = {one.exit.rank: tail_of(paths, failure.number, one.exit.rank) for one in failure.groups[:1]}
        click.echo("\n".join(failure_page(failure, tails, color=color)), color=color)
        return 0
    newest = attempt if attempt is not None else newest_attempt(paths, wait_for_it=follow)
    lines = written(paths, wanted, newest, tail)
    if follow:
        lines = followed(paths, wanted, newest, tail, only=attempt is not None)
    for line in lines:
        click.echo(log_line(line, color), color=color)
    return 0
