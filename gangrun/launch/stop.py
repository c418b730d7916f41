"""Ending a run, and waiting for an end: what ``cancel`` and ``wait`` share.

A cancel is a mark in the run directory first; only then is the owner told, so that nothing starts again whoever hears
of it. A process is signalled only if it is surely the owner: number and start time must both be its own.
"""

from __future__ import annotations

import signal
from enum import Enum

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.node import processes
from gangrun.runs.follow import Follower
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.state import run_state
from gangrun.runs.times import pause, steady_now, wall_now

LOOK_EVERY_S = 0.2


class SignalResult(Enum):
    """What became of telling the owner."""

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
