"""``gangrun cancel``: end a run for good. The mark first, then whoever holds the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import mark_cancelled
from gangrun.cli.options import TIME, asks, json_option, run_argument, runs_dir_option
from gangrun.config import environment
from gangrun.display.text import clean, echo_json
from gangrun.errors import DONE, SLURM, UNKNOWN, UserError
from gangrun.launch.stop import SignalResult, tell_owner, wait_for_end
from gangrun.runs.liveness import is_abandoned
from gangrun.runs.locate import find
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.status import SCHEMA, status_of
from gangrun.runs.times import wall_now

if TYPE_CHECKING:
    from gangrun.launch.slurm_cancel import CancelJobs

SLACK_S = 30.0  # beyond the run's own grace periods


@click.command("cancel")
@run_argument
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until all ranks have ended (default).")
@click.option("--now", is_flag=True, help="Cancel running jobs at once, without an orderly stop (Slurm only).")
@click.option("--timeout", "timeout_s", type=TIME, help="Longest wait (default the run's grace periods plus 30s).")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation, even without RUN.")
@json_option
@runs_dir_option
def cancel(
    run: str | None, waits: bool, now: bool, timeout_s: float | None, yes: bool, as_json: bool, runs_dir: str | None
) -> int:
    """End a run for good: all ranks are stopped in order, and nothing starts again by itself.

    A script that asked for it may save a checkpoint first. On Slurm the run's jobs are cancelled too: those that wait
    at once, one that runs when its ranks are down. `gangrun resume` takes a cancelled run up again.
    """
    paths = find(run, runs_dir, steering=True)
    reading = read(paths)
    if now and reading.spec.world != "slurm":
        raise UserError("usage", "--now is for runs on Slurm", "gangrun run is stopped at once by a second Ctrl-C")
    if run is None and not yes:
        _ask(reading)
    if reading.ended:
        return _say(reading, f"{reading.spec.run} has ended already", as_json=as_json)
    first = mark_cancelled(Disk(), paths, f"{environment.user_name()} (gangrun cancel)", wall_now())
    if reading.spec.world == "slurm":
        return _in_slurm(reading, timeout_s, waits=waits, now=now, as_json=as_json)
    return _on_this_box(reading, timeout_s, first=first, waits=waits, as_json=as_json)


def _on_this_box(reading: RunSnapshot, timeout_s: float | None, *, first: bool, waits: bool, as_json: bool) -> int:
    paths = reading.paths
    told = tell_owner(reading, again=not first)
    if told is SignalResult.NOBODY:
        words = "nobody runs it, so there was nothing to stop; it is marked, and nothing starts it again by itself"
        return _say(read(paths), f"{reading.spec.run}: {words}", as_json=as_json)
    if not waits:
        again = "" if first else " (it was asked before)"
        return _say(reading, f"{reading.spec.run} is asked to stop{again}", as_json=as_json)
    if told is SignalResult.ELSEWHERE and reading.owner is not None and not as_json:
        click.echo(f"its owner is on {clean(reading.owner.host)} and will find the mark; waiting", err=True)
    last = wait_for_end(paths, timeout_s if timeout_s is not None else _patience_s(reading))
    if last.ended:
        return _say(last, f"{last.spec.run} has ended", as_json=as_json)
    if is_abandoned(last, wall_now()):
        return _say(last, f"{last.spec.run}: its owner is gone, and all ranks with it", as_json=as_json)
    hint = f"gangrun status {last.spec.run} shows how it goes; the cancel stands"
    raise UserError("not yet", f"{last.spec.run} has not ended in time", hint, UNKNOWN)


def _in_slurm(reading: RunSnapshot, timeout_s: float | None, *, waits: bool, now: bool, as_json: bool) -> int:
    from gangrun.launch.slurm_cancel import CancelJobs, NotEnded

    run = clean(reading.spec.run)

    def say(sentence: str) -> None:
        if not as_json:
            click.echo(f"gangrun: {clean(sentence)}", err=True)

    cancel = CancelJobs(reading, _patience_s(reading), now=now, say=say)
    try:
        if waits:
            last = cancel.until_none(timeout_s)
            return _say(last, _end_words(run, cancel, last), as_json=as_json)
        _, left = cancel.ask_once()
    except NotEnded as error:
        hint = f"the cancel stands, and no job of it starts anything any more; gangrun cancel {run}"
        hint += " again when Slurm answers" if error.silent else " --now ends what is left without an orderly stop"
        kind, code = ("slurm", SLURM) if error.silent else ("not yet", UNKNOWN)
        raise UserError(kind, str(error), hint, code) from error
    last = read(reading.paths, slurm=True)
    if left:
        return _say(last, f"{run} is asked to stop; its supervisor ends job {left[-1].job}", as_json=as_json)
    return _say(last, f"{run}: its jobs are cancelled" if cancel.cancelled else _nobody(run), as_json=as_json)


def _end_words(run: str, cancel: CancelJobs, last: RunSnapshot) -> str:
    if not cancel.cancelled and not last.ended:
        return _nobody(run)
    left = [job for job in last.queue.active if job.seq is not None] if last.queue is not None else []
    stuck = f"; Slurm still waits for nodes of job {left[-1].job} that do not answer" if left and not last.ended else ""
    return f"{run} has ended{stuck}"


def _nobody(run: str) -> str:
    return f"{run}: no job of it was left, so there was nothing to stop; it is marked, and nothing starts it again"


def _patience_s(reading: RunSnapshot) -> float:
    """As long as an orderly stop may take by the run's own policy."""
    policy = reading.spec.policy
    return policy.checkpoint_grace_s + policy.stop_grace_s + policy.timing.fence_after_s + SLACK_S


def _ask(reading: RunSnapshot) -> None:
    named = f"{clean(reading.spec.run)} ({clean(reading.spec.name)})"
    if not asks():
        raise UserError("usage", "which run? cancel wants a RUN, or -y for the newest", f"the newest is {named}")
    click.confirm(f"Cancel {named}?", abort=True, err=True)


def _say(reading: RunSnapshot, words: str, *, as_json: bool) -> int:
    if as_json:
        echo_json({"schema": SCHEMA, "message": words, "status": status_of(reading, wall_now())})
    else:
        truth = run_state(reading, wall_now())
        ended = reading.ended or (truth.ended and reading.queue is not None)
        click.echo(clean(words) + (f": {truth.state}, {clean(truth.reason)}" if ended else ""))
    return DONE
