"""Continuing a run after a fix, a cancel or a spent budget: ``gangrun resume``.

The run stays the same one: its directory, its journal, its checkpoints. What is asked of the next job is left for its
supervisor in ``.gangrun/resume-<seq>.json``; then this process owns the run as ``gangrun run`` would.
"""

from __future__ import annotations

from functools import partial

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import (
    ResumeOrder,
    RunDirError,
    RunPaths,
    check_private,
    clear_cancelled,
    leave_resume_order,
    read_cancelled,
)
from gangrun.config import environment
from gangrun.config.request import refuse_unfindable
from gangrun.core.model import Phase
from gangrun.display.text import clean
from gangrun.errors import UNKNOWN, UserError
from gangrun.launch.exclusive import refuse_company
from gangrun.runs.liveness import RunLiveness, liveness_of
from gangrun.runs.locate import entries_of, find
from gangrun.runs.snapshot import RunSnapshot, is_owner_alive, read
from gangrun.runs.times import pause, steady_now, wall_now
from gangrun.wire.spec import RunSpec

LETS_GO_WITHIN_S = 10.0


def resume(
    run: str | None, runs_dir: str | None, request: str, max_restarts: int | None, *, quiet: bool, as_json: bool,
    detach: bool = False,
) -> int:  # fmt: skip
    """Continue a run here (``detach``: in the background), or ask for its next job; ``max_restarts`` None keeps the
    run's own.
    """
    order = ResumeOrder(by=environment.user_name(), request=request, restarts_max_count=max_restarts)
    paths = find(run, runs_dir, steering=True)
    reading = read(paths)
    in_slurm = reading.spec.is_scheduled
    if detach and in_slurm:
        hint = "leave --detach out: Slurm starts the run, and gangrun resume returns at once"
        raise UserError("usage", f"--detach: run {clean(reading.spec.run)} belongs to Slurm", hint)
    refuse_unfindable(request, reading.spec.checkpoint.directory, here=not in_slurm)
    _may_go_on(reading, asks_slurm=in_slurm)
    _whole(paths)
    _readable(reading)
    variables = _variables(reading.spec, environment.all_variables())
    disk = Disk()
    if in_slurm:
        from gangrun.launch.slurm_resume import resume_job

        return resume_job(reading, order, variables, partial(leave_resume_order, disk, paths), as_json=as_json)
    refuse_company(reading.spec, lambda: entries_of(None))
    from gangrun.launch.local import own, own_in_background

    def ready(seq: int) -> None:
        leave_resume_order(disk, paths, msgspec.structs.replace(order, seq=seq))
        if read_cancelled(disk, paths) == reading.cancelled:  # else somebody has cancelled it meanwhile
            clear_cancelled(disk, paths)

    over = reading.owner if reading.ended else None
    if detach:
        return own_in_background(reading.spec, paths, variables, as_json=as_json, over=over, ready=ready)
    return own(reading.spec, paths, variables, as_json=as_json, quiet=quiet, over=over, ready=ready)


def _may_go_on(reading: RunSnapshot, *, asks_slurm: bool) -> None:
    run, owner = clean(reading.spec.run), reading.owner
    if reading.state is not None and reading.state.phase is Phase.SUCCEEDED:
        hint = f"gangrun {'submit' if asks_slurm else 'run'} starts a new run"
        raise UserError("ended", f"{run} has succeeded, so nothing is left to do", hint)
    if asks_slurm:
        return
    match liveness_of(reading, wall_now()):
        case RunLiveness.ENDED:
            _let_go(reading)
        case RunLiveness.ALIVE if owner is not None:
            words = f"{run} is being run by process {owner.pid} on {clean(owner.host)}"
            raise UserError("busy", words, f"gangrun cancel {run} ends it first")
        case RunLiveness.UNKNOWN if owner is not None:
            host = clean(owner.host)
            words = f"{run} may still be run by process {owner.pid} on {host}, which this host cannot ask"
            raise UserError("busy", words, f"resume it on {host}, or cancel it first")
        case _:
            pass  # nobody holds it


def _let_go(reading: RunSnapshot) -> None:
    """A run that has just ended still has its owner, which shows the last lines and leaves. One on another host cannot
    be seen to leave: it gets the same time.
    """
    if reading.owner is not None and reading.owner_alive is None:
        ended_for_s = wall_now() - (reading.last_sign() or 0.0)
        pause(min(LETS_GO_WITHIN_S, max(0.0, LETS_GO_WITHIN_S - ended_for_s)))
        return
    give_up_at = steady_now() + LETS_GO_WITHIN_S
    while is_owner_alive(reading.owner):
        if steady_now() > give_up_at:
            words = f"{clean(reading.spec.run)} has ended, but the process that ran it has not exited yet"
            raise UserError("busy", words, "try again in a moment")
        pause(0.1)


def _whole(paths: RunPaths) -> None:
    try:
        check_private(Disk(), paths)
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint) from error


def _readable(reading: RunSnapshot) -> None:
    """Asked before anything is started: a supervisor would refuse, and its nodes would wait for a better one."""
    from gangrun.adapters.fs.terms import FsTerms
    from gangrun.entry.wiring import clock_of
    from gangrun.supervisor.takeover import refusal

    paths = reading.paths
    terms = FsTerms(paths, clock_of(), Disk())
    why = refusal(terms, terms.highest() + 1)
    if why:
        words = f"{clean(reading.spec.run)} cannot be continued from its journal: {clean(why)}"
        raise UserError("journal", words, f"the journal is in {paths.journals}; nothing was started", UNKNOWN)


def _variables(spec: RunSpec, mine: dict[str, str]) -> dict[str, str]:
    """My environment with what the run was given; secrets were never stored, so they must be here again."""
    missing = [name for name in spec.secret_names if name not in mine]
    if missing:
        were = "was" if len(missing) == 1 else "were"
        words = f"{', '.join(missing)} {were} given to this run; gangrun stores no secrets"
        raise UserError("secrets", words, f"export {' '.join(missing)} again, then resume")
    return {**mine, **spec.environment}
