"""Reads what a run's journal says: no daemon is asked, the journal is the state.

Shared by every command that looks at a run. Nothing here writes. If a scheduled run has not ended, the scheduler is
asked too, where the command wants that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims
from gangrun.adapters.fs.journal import JournalReader, Live, read_counter
from gangrun.adapters.fs.run_dir import CancelMark, RunDirError, RunPaths, read_cancelled, read_spec, resume_order_seqs
from gangrun.core.model import TERMINAL, RunState
from gangrun.core.text import one_line
from gangrun.errors import NO_SUCH_RUN, UNKNOWN, UserError
from gangrun.node import processes
from gangrun.runs.job_queue import Queue
from gangrun.wire import record as wire_claim
from gangrun.wire.record import Claim, Record, RecordError, replay
from gangrun.wire.spec import RunSpec, SpecError

PATIENCE_S = 5.0
UNREPLAYABLE = (RecordError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One run as its directory tells it now."""

    paths: RunPaths
    spec: RunSpec
    state: RunState | None  # None: no supervisor has begun yet
    records: tuple[Record, ...]
    notes: tuple[str, ...]
    live: Live | None
    claim: Claim | None  # of the newest term
    owner: JobClaim | None
    owner_alive: bool | None  # None: on another host, or no owner
    cancelled: CancelMark | None
    queue: Queue | None = None  # the jobs of the run in the queue; None: it was not asked
    resumed: bool = False  # it had ended, and a person takes it up again, or asked for a job that has not begun yet

    @property
    def ended(self) -> bool:
        """Does the journal say that the run is over, and nobody else that it goes on?"""
        return self.state is not None and self.state.phase in TERMINAL and not self.resumed

    def last_sign(self) -> float | None:
        """When anything of the run was last written, by the wall clock."""
        signs = [self.records[-1].wall] if self.records else []
        if self.live is not None:
            signs.append(self.live.wall)
        return max(signs, default=None)

    def signs(self) -> tuple[object, ...]:
        """What changes while anything of the run lives, whatever its clocks say."""
        newest = self.records[-1] if self.records else None
        return (self.owner, None if newest is None else (newest.term, newest.n), self.live)


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say so if a file system does not answer; the kernel alone decides how long that lasts."""
    words = f"gangrun: still waiting for {one_line(what)} to answer (Ctrl-C leaves; it does not stop the run)"
    timer = threading.Timer(PATIENCE_S, lambda: click.echo(words, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read(paths: RunPaths, *, timeline: bool = False, scheduler: bool = False) -> RunSnapshot:
    """Read a run; ``timeline`` also brings every record, else only the newest term's. ``scheduler``: ask it too."""
    with patience(str(paths.root)):
        reading = _read(paths, timeline)
    if not scheduler or not concerns_scheduler(reading):
        return reading
    queue = ask_scheduler(reading)
    with patience(str(paths.root)):
        return with_queue(_read(paths, timeline), queue)  # anew: what was written meanwhile is newer


def concerns_scheduler(reading: RunSnapshot) -> bool:
    """Does the scheduler know more of this run than its journal?"""
    return reading.spec.is_scheduled and not reading.ended


def ask_scheduler(reading: RunSnapshot) -> Queue:
    """How the run's jobs stand; a few seconds at most."""
    from gangrun.runs.jobs import ask

    return ask(reading.paths, reading.spec.run, reading.owner)


def with_queue(reading: RunSnapshot, queue: Queue) -> RunSnapshot:
    """The reading with what the scheduler said just before it, which also tells whether the owner lives."""
    known = {job.job: job for job in queue.jobs}
    alive_there = None
    if reading.owner is not None and not queue.silent:
        job = known.get(reading.owner.job)
        alive_there = job is not None and job.active
    return replace(reading, queue=queue, owner_alive=alive_there)


def _read(paths: RunPaths, timeline: bool) -> RunSnapshot:
    disk = Disk()
    spec = spec_of(paths, disk)
    history = JournalReader(paths, disk).read(newest_only=not timeline)
    try:
        state = replay(history.records)
    except UNREPLAYABLE as error:
        raise unreplayable(spec, error) from error
    return snapshot_of(paths, spec, state, history.records, history.notes)


def unreplayable(spec: RunSpec, error: Exception) -> UserError:
    """A journal whose lines are whole and whose patches are of another shape than any gangrun writes."""
    return UserError("journal", f"the journal of {spec.run} cannot be replayed: {error}", "", UNKNOWN)


def snapshot_of(
    paths: RunPaths, spec: RunSpec, state: RunState | None, records: tuple[Record, ...], notes: tuple[str, ...]
) -> RunSnapshot:
    """What the journal told, with what lies beside it."""
    if state is None and (records or notes):
        why = "; ".join(notes) or "it has no snapshot to begin with"
        hint = f"it lies in {paths.journals}"
        raise UserError("journal", f"the journal of {spec.run} cannot be read: {why}", hint, UNKNOWN)
    disk = Disk()
    claims = JobClaims(paths, disk)
    highest = claims.highest()
    owner = claims.holder(highest) if highest >= 0 else None
    alive = None if spec.is_scheduled else is_owner_alive(owner)  # its pid means nothing on this host
    return RunSnapshot(
        paths,
        spec,
        state,
        records,
        notes,
        read_counter(disk, paths, state.term) if state else None,
        _claim_of(paths, disk, state.term) if state else None,
        owner,
        alive,
        read_cancelled(disk, paths),
        resumed=(spec.is_scheduled or alive is True) and _is_resumed(paths, state),
    )


def _is_resumed(paths: RunPaths, state: RunState | None) -> bool:
    """Has ``gangrun resume`` asked for a job after the last one of a run that has ended?"""
    if state is None or state.phase not in TERMINAL:
        return False
    return any(seq > state.seq for seq in resume_order_seqs(paths))


def spec_of(paths: RunPaths, disk: Disk) -> RunSpec:
    """The spec, or what is wrong with it in words."""
    try:
        return read_spec(disk, paths)
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint, NO_SUCH_RUN) from error
    except SpecError as error:
        raise UserError("spec", f"{paths.root.name}: {error}", f"it lies in {paths.spec}", UNKNOWN) from error


def _claim_of(paths: RunPaths, disk: Disk, term: int) -> Claim | None:
    try:
        return wire_claim.decode_claim(disk.read(paths.claim(term), limit=1 << 20))
    except (OSError, wire_claim.ClaimError):
        return None


def is_owner_alive(claim: JobClaim | None) -> bool | None:
    """Does a local run's owner live? None where this host cannot tell."""
    if claim is None or claim.host != processes.host_name():
        return None
    proc = processes.read_proc(claim.pid)
    return proc is not None and proc.start_ticks == claim.start_ticks and proc.state != "Z"
