"""``gangrun logs``: what the ranks printed, and with --errors who failed first."""

from __future__ import annotations

from collections import deque

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.cli.options import json_option, run_argument, runs_dir_option
from gangrun.config import environment
from gangrun.core.nodeset import NodesetError, unfold
from gangrun.display.explain_page import failure_page
from gangrun.display.text import clean, echo_json, log_line, welcomes_color
from gangrun.errors import UserError
from gangrun.runs import failures
from gangrun.runs.follow import Follower
from gangrun.runs.locate import find
from gangrun.runs.rank_output import NewLines, Wanted, attempts_of, lines_of, node_logs
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.times import pause, steady_now, wall_now

LOOK_EVERY_S = 0.25
LOOK_AT_RUN_EVERY_S = 1.0
TAIL_LINES_COUNT = 15
LAST_ROUNDS_COUNT = 2  # after the end, so that the last lines are not missed


@click.command("logs")
@run_argument
@click.option("-r", "--rank", "ranks_text", metavar="R", help="Only these ranks: 3, or 0,4-7.")
@click.option("-k", "--attempt", type=click.IntRange(min=0), metavar="K", help="This attempt (default: the newest).")
@click.option("-n", "--node", metavar="NODE", help="Only this node.")
@click.option("-t", "--tail", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
@click.option("-f", "--follow", is_flag=True, help="Stay until the run ends, over attempts (Ctrl-C leaves the viewer).")
@click.option("-e", "--errors", is_flag=True, help="Who failed first, then every distinct traceback once.")
@json_option
@runs_dir_option
def logs(
    run: str | None,
    ranks_text: str | None,
    attempt: int | None,
    node: str | None,
    tail: int | None,
    follow: bool,
    errors: bool,
    as_json: bool,
    runs_dir: str | None,
) -> int:
    """What the ranks of a run printed, each line with [node:rankN] before it.

    \b
      gangrun logs -f                 all ranks, as it comes
      gangrun logs --rank 0 -t 100    the last lines of rank 0
      gangrun logs --errors           who failed first, and how
    """  # noqa: D301 - click reads the backspace
    wanted = Wanted(_ranks(ranks_text), node)
    if errors and (follow or tail is not None):
        raise UserError("usage", "--errors takes neither --follow nor --tail")
    if as_json and not errors:
        raise UserError("usage", "--json goes with --errors; logs are lines", "gangrun logs --errors --json")
    paths = find(run, runs_dir)
    if errors:
        return _errors(read(paths, timeline=True), wanted, attempt, as_json=as_json)
    newest = attempt if attempt is not None else _newest(paths, wait_for_it=follow)
    if follow:
        return _follow(paths, wanted, newest, tail, only=attempt is not None)
    return _show(paths, wanted, newest, tail)


def _ranks(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(name) for name in unfold(f"[{text}]"))
    except (NodesetError, ValueError):
        raise UserError("usage", f"--rank {text!r} is neither a rank nor a list of ranks", "e.g. 3, or 0,4-7") from None


def _newest(paths: RunPaths, *, wait_for_it: bool) -> int:
    """The newest attempt with output."""
    known = attempts_of(paths)
    if known:
        return known[-1]
    reading = read(paths)
    if wait_for_it and not reading.ended:
        return 0
    reason = clean(reading.state.reason) if reading.state else "no supervisor has begun yet"
    raise UserError("no output", f"no rank of {paths.run} has printed anything yet", f"the run says: {reason}", 1)


def _show(paths: RunPaths, wanted: Wanted, attempt: int, tail: int | None) -> int:
    logs = node_logs(paths, attempt, wanted.node)
    if not logs:
        of = f" of node {wanted.node}" if wanted.node else ""
        have = ", ".join(str(number) for number in attempts_of(paths)) or "none"
        raise UserError("no output", f"there is no output{of} in attempt {attempt}", f"attempts with output: {have}", 1)
    color = welcomes_color(environment.all_variables())
    for log in logs:
        lines = lines_of(log, wanted)
        for line in lines if tail is None else deque(lines, maxlen=tail):
            click.echo(log_line(line, color), color=color)
    return 0


def _follow(paths: RunPaths, wanted: Wanted, attempt: int, tail: int | None, *, only: bool) -> int:
    color = welcomes_color(environment.all_variables())
    follower, run = NewLines(paths, wanted, attempt, only), Follower(paths)
    lines = follower.poll()
    for line in lines if tail is None else deque(lines, maxlen=tail):
        click.echo(log_line(line, color), color=color)
    look_at = steady_now()
    rounds_left = LAST_ROUNDS_COUNT
    while rounds_left:
        for line in follower.poll():
            click.echo(log_line(line, color), color=color)
        if steady_now() >= look_at:
            look_at = steady_now() + LOOK_AT_RUN_EVERY_S
            rounds_left -= _is_over(run.look(), attempt if only else None)
        pause(LOOK_EVERY_S)
    return 0


def _is_over(reading: RunSnapshot, attempt: int | None) -> bool:
    """Will nothing more be written: by the run, or by this attempt of it?"""
    if run_state(reading, wall_now()).over:
        return True
    return attempt is not None and reading.state is not None and reading.state.attempt > attempt


def _errors(reading: RunSnapshot, wanted: Wanted, attempt: int | None, *, as_json: bool) -> int:
    by_attempt = failures.exits_of(reading.records)
    number = attempt if attempt is not None else max(by_attempt, default=-1)
    exits = [
        one
        for one in failures.with_reports(reading.paths, number, by_attempt.get(number, []), Disk())
        if (wanted.ranks is None or one.rank in wanted.ranks) and wanted.node in (None, one.node)
    ]
    groups = failures.groups_of(exits)
    if as_json:
        echo_json(failures.failures_of(reading.spec.run, by_attempt, number, groups))
        return 0
    if not groups:
        others = ", ".join(str(known) for known in sorted(by_attempt))
        where = f" in attempt {number}" if attempt is not None and number >= 0 else ""
        click.echo(f"no rank failed{where}" + (f"; ranks failed in attempts {others}" if others else ""))
        return 0
    color = welcomes_color(environment.all_variables())
    tails = {group.exit.rank: _tail_of(reading.paths, number, group.exit.rank, color=color) for group in groups[:1]}
    click.echo("\n".join(failure_page(number, groups, tails, color=color)), color=color)
    earlier = [str(known) for known in sorted(by_attempt) if known != number]
    if earlier:
        which = "attempt" if len(earlier) == 1 else "attempts"
        click.echo(f"\nranks failed in {which} {', '.join(earlier)} too: --attempt K shows them")
    return 0


def _tail_of(paths: RunPaths, attempt: int, rank: int, *, color: bool) -> list[str]:
    last: deque[str] = deque(maxlen=TAIL_LINES_COUNT)
    for log in node_logs(paths, attempt):
        last.extend(lines_of(log, Wanted(frozenset({rank}))))
    return [log_line(line, color) for line in last]
