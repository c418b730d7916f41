"""A job's batch script: claims the job's place in the run, starts its step, ends as the run ended.

Sent by ``gangrun submit`` and by every supervisor that asks for a successor; sending it twice does no harm. It is the
supervisor of last resort's starter, and it owns nothing: the run lives on without it, on the job's other nodes.
Exit codes: 0, 1 and 130 as the run ended; 75 it goes on in another job; 78 a person must look.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken, insist, plain_job
from gangrun.adapters.fs.journal import JournalReader, live_of
from gangrun.adapters.fs.run_dir import (
    RunDirError,
    RunPaths,
    mark_cancelled,
    read_cancelled,
    read_spec,
    read_submission,
)
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.jobs import repoint
from gangrun.adapters.slurm.scheduler import SchedulerSilent, SlurmScheduler
from gangrun.config import environment
from gangrun.core.model import EXIT_CODES, TERMINAL, Failure, RunState
from gangrun.core.nodeset import NodesetError
from gangrun.core.text import counted
from gangrun.display.live_view import LiveView
from gangrun.entry.wiring import clock_of, disk_of
from gangrun.errors import UserError
from gangrun.launch.exclusive import refuse_lasting_company
from gangrun.launch.sidecars import Sidecars
from gangrun.launch.slurm_batch_job import EXIT_CANCELLED, Allocation, allocation_of, note_stopped, srun_options
from gangrun.launch.slurm_job_owner import EXIT_ELSEWHERE, EXIT_UNUSABLE, JobOwner
from gangrun.node import processes
from gangrun.node.speech import Voice
from gangrun.runs.locate import entries_of
from gangrun.wire.record import RecordError, replay
from gangrun.wire.spec import JobLine, RunSpec, SpecError
from gangrun.wire.submission import SubmissionError

ASKED_FOR_S = 60.0  # a Slurm that starts jobs answers, sooner or later
ASK_EVERY_S = 2.0


def place_of(state: RunState | None, job: str, asked: int) -> int:
    """Which place this stay of the job is to take: a requeued one runs the same script, and has moved on."""
    if state is not None and plain_job(state.job) == job:
        return max(asked, state.seq)
    return asked


def main(words: list[str]) -> int:
    """Until the job is over."""
    parser = argparse.ArgumentParser(prog="gangrun-job")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--directory", default="", help="where the user's batch script stood at its gangrun run line")
    own, command = words, []
    if "--" in words:
        own, command = words[: words.index("--")], words[words.index("--") + 1 :]
    found = parser.parse_args(own)
    paths, variables = RunPaths(found.run_dir), environment.all_variables()
    disk, clock = disk_of(paths), clock_of()
    try:
        spec, submission = insist(lambda: (read_spec(disk, paths), read_submission(disk, paths)), _say)
        allocation = allocation_of(variables, processes.host_name())
        # There is no elsewhere: a job that left after an error of the file system would leave the run to nobody.
        taken = insist(
            lambda: _taken(paths, disk, clock, allocation, found.seq, variables), _say,
            within_s=spec.policy.waiting_max_s,
        )  # fmt: skip
    except (RunDirError, SpecError, SubmissionError) as error:
        return _leave(EXIT_UNUSABLE, str(error))
    except OSError as error:
        return _leave(EXIT_UNUSABLE, f"nothing is started: {error}; gangrun resume {paths.run} continues the run")
    except (KeyError, NodesetError) as error:
        return _leave(EXIT_UNUSABLE, f"this is not the environment of a Slurm job: {error}")
    if taken == EXIT_ELSEWHERE or (isinstance(taken, int) and _has_ended(paths, disk)):
        return taken  # its own supervisor or job tells
    sidecars = Sidecars.of(spec, paths, variables, _say)
    if isinstance(taken, int):
        sidecars.notifier.over(taken, "a job of the run was cancelled in Slurm")
        return taken
    if command:
        spec = spec.with_line(JobLine(found.directory, tuple(command)))
    if why := _company(spec):
        told = f"nothing is started: {why}"
        note_stopped(paths, disk, taken.seq, told, Failure.SCRIPT)
        sidecars.notifier.over(EXIT_UNUSABLE, told)
        return _leave(EXIT_UNUSABLE, told)
    view = LiveView(
        log_of=paths.node_log, live_of=lambda term: live_of(disk, paths, term), wall=clock.wall, out=sys.stdout
    )
    view.say(f"run {spec.run}: job {taken.token} on {counted(len(allocation.nodes), 'node')}")
    options = srun_options(submission)
    code = JobOwner(spec, paths, taken, allocation, variables, options, disk, clock, view).run()
    view.let_go()
    sidecars.notifier.over(code)
    sidecars.close()
    return code


def _taken(
    paths: RunPaths, disk: Disk, clock: SystemClock, allocation: Allocation, asked: int, variables: Mapping[str, str]
) -> JobClaim | int:
    """The claim of the job's place, or the code to leave with. ``OSError``: not known; safe to ask again."""
    mark = read_cancelled(disk, paths)
    if mark is not None:
        return _leave(EXIT_CANCELLED, f"the run was cancelled by {mark.by}: nothing is started")
    state = _last_state(paths, disk)
    seq = place_of(state, allocation.job, asked)
    if state is not None and state.phase in TERMINAL and not _is_resumed(paths, disk, seq):
        why = f"nothing is started: the run has ended ({state.phase.value}, {state.reason})"
        return _leave(EXIT_CODES[state.phase], why)
    if _was_cancelled(paths, disk, state, seq, SlurmScheduler(Tools(variables)), clock.now):
        mark_cancelled(disk, paths, "scancel of the job before", clock.wall())
        return _leave(EXIT_CANCELLED, "the job before was cancelled in Slurm, and the run with it: nothing is started")
    me = processes.read_proc(os.getpid())
    assert me is not None
    wish = JobClaim(seq, allocation.job, allocation.restart, allocation.host, me.pid, me.start_ticks)
    claimed = JobClaims(paths, disk).claim(wish)
    if isinstance(claimed, Taken):
        if claimed.holder is not None and claimed.holder.job != allocation.job:  # sbatch may have named this one
            repoint(SlurmScheduler(Tools(variables)), allocation.job, claimed.holder.job, clock, _say)
        return _leave(EXIT_ELSEWHERE, f"nothing is started: {claimed.why}")
    return claimed.claim


def _has_ended(paths: RunPaths, disk: Disk) -> bool:
    state = _last_state(paths, disk)
    return state is not None and state.phase in TERMINAL


def _last_state(paths: RunPaths, disk: Disk) -> RunState | None:
    try:
        return replay(JournalReader(paths, disk).read(newest_only=True).records)
    except RecordError:
        return None  # whoever claims the next term finds out, and says so


def _was_cancelled(
    paths: RunPaths, disk: Disk, state: RunState | None, seq: int, scheduler: SlurmScheduler, now: Callable[[], float]
) -> bool:
    """Did somebody scancel the job before, with nobody left to write that down? A job that we ended has a record."""
    before = JobClaims(paths, disk).holder(seq - 1) if seq > 0 else None
    if (
        before is None
        or state is None
        or state.job != before.token
        or state.ending.leaving
        or _is_resumed(paths, disk, seq)
    ):
        return False
    pause, until = threading.Event(), now() + ASKED_FOR_S
    while True:
        try:
            facts = scheduler.job(before.job)
        except SchedulerSilent as error:
            if now() >= until:
                _say(f"cannot tell whether job {before.job} was cancelled: {error}; continuing")
                return False
            pause.wait(ASK_EVERY_S)
            continue
        return facts is not None and facts.state == "CANCELLED"


def _is_resumed(paths: RunPaths, disk: Disk, seq: int) -> bool:
    """Has a person asked for this very job? Then what became of the one before does not matter."""
    return disk.exists(paths.resume_order(seq))


def _company(spec: RunSpec) -> str:
    """Who else saves where this run does."""
    try:
        refuse_lasting_company(spec, lambda: entries_of(None))
    except UserError as error:
        return f"{error.message}; {error.hint}, and then gangrun resume {spec.run}"
    return ""


def _leave(code: int, why: str) -> int:
    _say(why)
    return code


_VOICE = Voice()  # the output of the job may lie on the disk that fails


def _say(sentence: str) -> None:
    _VOICE.say(f"gangrun: {sentence}")
