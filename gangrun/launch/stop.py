"""Ending a run, and waiting for an end: what ``cancel`` and ``wait`` share.

A cancel is a mark in the run directory first; only then is the owner told, so that nothing starts again whoever hears
of it. A process is signalled only if it is surely the owner: number and start time must both be its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from enum import Enum

import click
import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, mark_cancelled
from gangrun.config import environment
from gangrun.display.text import clean, echo_json
from gangrun.display.times import span_words
from gangrun.errors import UNKNOWN, UserError
from gangrun.node import processes
from gangrun.runs.follow import Follower
from gangrun.runs.liveness import is_abandoned
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.status import SCHEMA, Status, status_of
from gangrun.runs.times import pause, steady_now, wall_now

LOOK_EVERY_S = 0.2
SLACK_S = 30.0  # beyond the run's own grace periods


class CancelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``cancel --json`` prints: what was done, and the run's status after it."""

    schema: int = SCHEMA
    message: str
    status: Status


class SignalResult(Enum):
    """What became of the signal to the owner."""

    TOLD = "told"
    ELSEWHERE = "elsewhere"  # on another host: it will find the mark
    NOBODY = "nobody"


def tell_owner(reading: RunSnapshot, *, again: bool = False) -> SignalResult:
    """SIGTERM to the process that holds the run, if it lives on this host.

    Not ``again``: to the owner a second signal means "kill now", and whoever cancels twice only means to cancel.
    """
    owner = reading.owner
    if owner is None or reading.owner_alive is False:
        return SignalResult.NOBODY
    if reading.owner_alive is None:
        return SignalResult.ELSEWHERE
    proc = processes.read_proc(owner.pid)
    if proc is None or proc.start_ticks != owner.start_ticks:
        return SignalResult.NOBODY
    return SignalResult.TOLD if again or processes.kill(proc, signal.SIGTERM) else SignalResult.NOBODY


def wait_for_end(paths: RunPaths, timeout_s: float | None) -> RunSnapshot:
    """The last look at a run: when it has ended, when nobody is left to end it, or when the time is up.

    An owner that is gone gets one more look: its last record may have come in between.
    """
    give_up_at = None if timeout_s is None else steady_now() + timeout_s
    alone, follower = False, Follower(paths)
    while True:
        reading = follower.look()
        truth = run_state(reading, wall_now())
        if truth.ended or (alone and truth.abandoned):
            return reading
        alone = truth.abandoned
        left_s = LOOK_EVERY_S if give_up_at is None else min(LOOK_EVERY_S, give_up_at - steady_now())
        if left_s <= 0:
            return reading
        pause(left_s)


def cancel(
    reading: RunSnapshot, timeout_s: float | None, say: Callable[[str], None], *, waits: bool, now: bool
) -> tuple[RunSnapshot, str]:
    """End a run for good; the last look at it, and one sentence of what was done.

    ``UserError`` if it has not ended within ``timeout_s``, by default what its own policy gives an orderly stop.
    """
    paths, run, policy = reading.paths, clean(reading.spec.run), reading.spec.policy
    if reading.ended:
        return reading, f"{run} has ended already"
    grace_s = policy.checkpoint_grace_s + policy.stop_grace_s + policy.timing.fence_after_s + SLACK_S
    first = mark_cancelled(Disk(), paths, f"{environment.user_name()} (gangrun cancel)", wall_now())
    if reading.spec.is_scheduled:
        from gangrun.launch.slurm_cancel import cancel_jobs

        return cancel_jobs(reading, timeout_s, grace_s, say, waits=waits, now=now)
    told = tell_owner(reading, again=not first)
    if told is SignalResult.NOBODY:
        words = "no process runs it, so nothing had to be stopped; it is marked as cancelled"
        return read(paths), f"{run}: {words}"
    if not waits:
        return reading, f"{run} is asked to stop{'' if first else ' (it was asked before)'}"
    if told is SignalResult.ELSEWHERE and reading.owner is not None:
        say(f"the process that runs it is on {reading.owner.host} and will see the cancel; waiting")
    last = wait_for_end(paths, grace_s if timeout_s is None else timeout_s)
    if last.ended:
        return last, f"{run} has ended"
    if is_abandoned(last, wall_now()):
        return last, f"{run}: the process that ran it is gone, and so are all ranks"
    hint = f"the cancel stays in force; gangrun status {run} shows what still runs"
    raise UserError("not yet", f"{run} has not ended yet", hint, UNKNOWN)


def tell_end(paths: RunPaths, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the end, tell it, and return the run's exit code."""
    reading = wait_for_end(paths, timeout_s)
    run, truth = clean(reading.spec.run), run_state(reading, wall_now())
    if as_json:
        echo_json(status_of(reading, wall_now()))
    elif truth.ended:
        click.echo(f"{run} {truth.state}: {clean(truth.reason)}")
    elif truth.abandoned:
        why = f" ({clean(truth.reason)})" if reading.spec.is_scheduled else ""
        click.echo(f"{run}: no process runs it any more, so it will not end by itself{why}", err=True)
        click.echo(f"  gangrun resume {run} continues it", err=True)
    else:
        span = f"{timeout_s:g} s" if timeout_s is not None and timeout_s < 60 else span_words(timeout_s or 0.0)
        click.echo(f"{run} has not ended within {span}", err=True)
    return UNKNOWN if truth.exit_code is None else truth.exit_code
