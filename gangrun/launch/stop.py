"""Ending a run, waiting for an end, and what else a person asks of a run that is alive: a save, a drain.

A cancel is a mark in the run directory first; only then is the owner told, so that nothing starts again whoever hears
of it. A process is signalled only if it is surely the owner: number and start time must both be its own.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import click
import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, SaveOrder, leave_save_order, mark_cancelled
from gangrun.config import environment
from gangrun.core.machine.transitions import may_hold_ranks
from gangrun.core.model import TERMINAL, Phase
from gangrun.core.text import step_or_none, step_words
from gangrun.display.text import clean, echo_json
from gangrun.display.times import span_words
from gangrun.errors import UNKNOWN, UserError
from gangrun.node import processes
from gangrun.runs.follow import Follower, JournalReplay
from gangrun.runs.liveness import is_abandoned
from gangrun.runs.saves import unjudged_on_disk
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.status import SCHEMA, Status, status_of
from gangrun.runs.times import pause, steady_now, wall_now
from gangrun.wire.record import Record
from gangrun.wire.spec import CheckpointSpec

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


def tell_owner(reading: RunSnapshot, *, again: bool = False, now: bool = False) -> SignalResult:
    """SIGTERM to the process that holds the run, if it lives on this host; ``now``: the signal that kills at once.

    Not ``again``: to the owner a second SIGTERM means "kill now", and whoever cancels twice only means to cancel.
    """
    owner = reading.owner
    if owner is None or reading.owner_alive is False:
        return SignalResult.NOBODY
    if reading.owner_alive is None:
        return SignalResult.ELSEWHERE
    proc = processes.read_proc(owner.pid)
    if proc is None or proc.start_ticks != owner.start_ticks:
        return SignalResult.NOBODY
    if again and not now:
        return SignalResult.TOLD
    told = processes.kill(proc, signal.SIGQUIT if now else signal.SIGTERM)
    return SignalResult.TOLD if told else SignalResult.NOBODY


def wait_for_end(paths: RunPaths, timeout_s: float | None, meanwhile: Callable[[], None] = lambda: None) -> RunSnapshot:
    """The last look at a run: when it has ended, when nobody is left to end it, or when the time is up.

    An owner that is gone gets one more look: its last record may have come in between. ``meanwhile()`` is called after
    each look.
    """
    give_up_at = None if timeout_s is None else steady_now() + timeout_s
    alone, follower = False, Follower(paths)
    while True:
        reading = follower.look()
        meanwhile()
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
    by = f"{environment.user_name()} (gangrun cancel{' --now' if now else ''})"
    first = mark_cancelled(Disk(), paths, by, wall_now(), now=now)
    if reading.spec.is_scheduled:
        from gangrun.launch.slurm_cancel import cancel_jobs

        return cancel_jobs(reading, timeout_s, grace_s, say, waits=waits, now=now)
    told = tell_owner(reading, again=not first, now=now)
    if told is SignalResult.NOBODY:
        words = "no process runs it, so nothing had to be stopped; it is marked as cancelled"
        return read(paths), f"{run}: {words}"
    if not waits:
        return reading, f"{run} is asked to stop{'' if first else ' (it was asked before)'}"
    if told is SignalResult.ELSEWHERE and reading.owner is not None:
        orderly = "; --now after a cancel kills only on that host, so ranks stop in order" if now and not first else ""
        say(f"the process that runs it is on {reading.owner.host} and will see the cancel{orderly}; waiting")
    last = wait_for_end(paths, grace_s if timeout_s is None else timeout_s)
    if last.ended:
        return last, f"{run} has ended"
    if is_abandoned(last, wall_now()):
        if now:
            return last, f"{run}: all ranks were killed; the run is cancelled"
        return last, f"{run}: the process that ran it is gone, and so are all ranks"
    hint = f"the cancel stays in force; gangrun status {run} shows what still runs"
    raise UserError("not yet", f"{run} has not ended yet", hint, UNKNOWN)


class SaveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``checkpoint --json`` prints. ``step``: newest step saved on request; -1: none is known."""

    schema: int = SCHEMA
    message: str
    step: int = -1
    path: str = ""


HEARD_WITHIN_S = 30.0  # a supervisor that lives looks for orders four times a second; its successor takes 20 s
SEEN_WITHIN_S = 15.0  # between a save and its verification, for a checkpoint that gangrun can judge


def save_now(reading: RunSnapshot, timeout_s: float | None, *, waits: bool) -> SaveReport:
    """Have all ranks save while they train on; ``UserError`` if nothing was saved."""
    run = clean(reading.spec.run)
    _demand_alive(reading, run, f"gangrun checkpoints {run} lists what it saved")
    with _order(reading, "gangrun checkpoint", timeout_s) as order:
        return _answered(reading.spec.checkpoint, order, waits=waits)


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``drain --json`` prints. ``moved``: no rank is on the node any more."""

    schema: int = SCHEMA
    message: str
    node: str
    moved: bool


def drain(reading: RunSnapshot, node: str, timeout_s: float | None, *, waits: bool) -> DrainReport:
    """Have the ranks of a node move off it; ``UserError`` if that is refused."""
    run, agreed = clean(reading.spec.run), ""
    _demand_alive(reading, run, f"no rank of it is on {clean(node)}")
    with _order(reading, "gangrun drain", timeout_s, drain=node) as order:
        while True:
            for record in order.journal.poll():
                if record.kind == "DrainRequested" and (record.event or {}).get("key") == order.key:
                    agreed = f"{run}: {clean(record.reason)}"
                    if record.outcome != "applied":
                        raise UserError("not drained", agreed, order.hint)
            state = order.journal.state()
            if agreed and state is not None:
                placed = state.attempt.placement
                moved = state.phase in TERMINAL or not (may_hold_ranks(state) and placed and placed.holds(node))
                if moved or not waits:
                    words = f"{run}: no rank is on {node} any more" if moved else agreed
                    return DrainReport(message=words, node=node, moved=moved)
            order.wait(f"ranks are still on {node}; they move at the next checkpoint", heard=bool(agreed))


@dataclass(slots=True)
class _Order:
    """What a person asked of a run that is alive, and the journal from then on."""

    run: str
    key: str
    journal: JournalReplay
    timeout_s: float | None
    began_at: float

    @property
    def hint(self) -> str:
        """Where to look if it is not obeyed."""
        return f"gangrun status {self.run} shows its state"

    def wait(self, not_yet: str, *, heard: bool) -> None:
        """A moment; ``UserError`` if no supervisor hears the order, or it is not obeyed in time."""
        for_s = steady_now() - self.began_at
        if not heard and for_s >= HEARD_WITHIN_S:
            words = f"{self.run}: its supervisor did not answer within {HEARD_WITHIN_S:g} s"
            raise UserError("no answer", words, self.hint, UNKNOWN)
        if self.timeout_s is not None and for_s >= self.timeout_s:
            raise UserError("not yet", f"{self.run}: {not_yet}", self.hint, UNKNOWN)
        pause(LOOK_EVERY_S)


@contextlib.contextmanager
def _order(reading: RunSnapshot, command: str, timeout_s: float | None, drain: str = "") -> Iterator[_Order]:
    """Leave an order in the run directory for as long as somebody waits for it."""
    paths, disk, key = reading.paths, Disk(), secrets.token_hex(8)
    journal = JournalReplay(paths, disk, newest_only=True)
    journal.poll()
    leave_save_order(disk, paths, SaveOrder(f"{environment.user_name()} ({command})", key, drain))
    try:
        yield _Order(clean(reading.spec.run), key, journal, timeout_s, steady_now())
    finally:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(paths.save_order)


def _demand_alive(reading: RunSnapshot, run: str, hint: str) -> None:
    truth = run_state(reading, wall_now())
    if truth.ended or truth.abandoned:
        why = f"has ended: {truth.state}, {clean(truth.reason)}" if truth.ended else "is run by no process any more"
        on = "" if truth.state == Phase.SUCCEEDED.value else f"; gangrun resume {run} continues it"
        raise UserError("ended", f"{run} {why}", hint + on)


@dataclass(slots=True)
class _SaveWatch:
    """What the journal says of one order to save."""

    run: str
    asked: CheckpointSpec
    key: str
    heard: bool = False
    step: int = -1
    seen_until: float | None = None  # the ranks have saved: until then the checkpoint is waited for
    seen: dict[str, Any] | None = None

    def take(self, record: Record) -> None:
        """One record; ``UserError`` if it says that nothing is saved."""
        event = record.event or {}
        if record.kind == "CheckpointSeen" and self.heard and record.outcome == "applied":
            self.seen = event["checkpoint"]
        if event.get("key") != self.key:
            return
        self.heard = True
        hint = f"gangrun status {self.run} shows its state"
        if record.kind == "SaveRequested" and record.outcome != "applied":
            raise UserError("not saved", f"{self.run}: {clean(record.reason)}", hint)
        if record.kind == "SaveAnswered":
            if why := event.get("why"):
                raise UserError("not saved", f"{self.run}: {clean(why)}", hint)
            self.step = event["step"]
            self.seen_until = steady_now() + (SEEN_WITHIN_S if self.asked.directory else 0.0)

    def report(self) -> SaveReport | None:
        """What was saved, once that is known."""
        if self.seen_until is None:
            return None
        if self.seen is not None and self.seen["step"] >= self.step:
            step, path = self.seen["step"], self.seen["path"]
            words = f"{step_words(step)} is saved ({self.seen['level']}) in {path}"
            return SaveReport(message=f"{self.run}: {words}", step=step_or_none(step) or self.step, path=path)
        if steady_now() < self.seen_until:
            return None
        strange = unjudged_on_disk(self.asked)
        unseen = f"gangrun sees no new checkpoint in {self.asked.directory}" + (f": {strange}" if strange else "")
        words = unseen if self.asked.directory else "gangrun knows no checkpoint directory to look into"
        return SaveReport(message=f"{self.run}: the script saved at step {self.step}; {words}", step=self.step)


def _answered(asked: CheckpointSpec, order: _Order, *, waits: bool) -> SaveReport:
    watch = _SaveWatch(order.run, asked, order.key)
    while True:
        for record in order.journal.poll():
            watch.take(record)
        if watch.heard and not waits:
            return SaveReport(message=f"{order.run}: all ranks are asked to save")
        if report := watch.report():
            return report
        state = order.journal.state()
        if watch.heard and watch.seen_until is None and state is not None and state.phase is not Phase.RUNNING:
            raise UserError("not saved", f"{order.run}: {clean(state.reason)}", order.hint)
        order.wait(
            f"the save has not ended within {order.timeout_s or 0:g} s; the ranks may still save", heard=watch.heard
        )


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
