"""A job's batch script (room: cli): claims the job's place in the run, starts its step, ends as the run ended.

Sent by ``gangrun submit`` and by every supervisor that asks for a successor; sending it twice does no harm. It is the
supervisor of last resort's starter, and it owns nothing: the run lives on without it, on the job's other nodes.
Exit codes: 0, 1 and 130 as the run ended; 75 it goes on in another job; 78 a person must look.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from gangrun import processes
from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, Taken, plain_job
from gangrun.adapters.fs.journal import JournalReader
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_cancelled, read_spec, read_submission
from gangrun.adapters.local import box
from gangrun.cli import environment
from gangrun.cli.job_step import JobStep, Part
from gangrun.cli.live_view import LiveView
from gangrun.cli.local_world import live_of
from gangrun.cli.onlooker import Onlooker
from gangrun.cli.slurm_world import Allocation, allocation_of
from gangrun.cli.wiring import clock_of, disk_of
from gangrun.core.model import TERMINAL, RunState
from gangrun.core.moves import EXIT_CODES
from gangrun.core.nodeset import NodesetError
from gangrun.wire.record import RecordError, replay
from gangrun.wire.spec import RunSpec, SpecError
from gangrun.wire.submission import Submission, SubmissionError

EXIT_ELSEWHERE = 75  # not 0: whoever waits for this job by afterok waits for a finished run
EXIT_CANCELLED = 130
EXIT_UNUSABLE = 78
LOOK_EVERY_S = 0.25
LETS_GO_WITHIN_S = 10.0
LAST_LOOK_WITHIN_S = 5.0


def is_over(state: RunState | None, claim: JobClaim) -> bool:
    """Does the run want nothing more of this job?"""
    if state is None:
        return False
    ours = state.job == claim.token
    return state.seq > claim.seq or (ours and (state.leaving or state.phase in TERMINAL))


def code_of(state: RunState | None, claim: JobClaim) -> int:
    """With what the job ends, so that Slurm's word and the run's agree."""
    if state is not None and state.phase in TERMINAL:
        return EXIT_CODES[state.phase]
    return EXIT_ELSEWHERE if is_over(state, claim) else EXIT_UNUSABLE


def srun_options(submission: Submission) -> tuple[str, ...]:
    """What the user asked of srun besides."""
    return tuple(f"--{key}" if value is None else f"--{key}={value}" for key, value in submission.srun)


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
    found = parser.parse_args(words)
    paths, variables = RunPaths(found.run_dir), environment.all_variables()
    disk, clock = disk_of(paths), clock_of()
    try:
        spec, submission = read_spec(disk, paths), read_submission(disk, paths)
        allocation = allocation_of(variables, box.short_name())
    except (RunDirError, SpecError, SubmissionError) as error:
        return _leave(EXIT_UNUSABLE, str(error))
    except (KeyError, NodesetError) as error:
        return _leave(EXIT_UNUSABLE, f"this is no Slurm job's environment: {error}")
    mark = read_cancelled(disk, paths)
    if mark is not None:
        return _leave(EXIT_CANCELLED, f"the run was cancelled by {mark.by}: nothing is started")
    state = _last_state(paths, disk)
    seq = place_of(state, allocation.job, found.seq)
    if state is not None and state.phase in TERMINAL and not disk.exists(paths.machine / f"resume-{seq}.json"):
        why = f"nothing is started: the run has ended ({state.phase.value}, {state.reason})"
        return _leave(EXIT_CODES[state.phase], why)
    taken = _claimed(paths, disk, allocation, seq)
    if isinstance(taken, Taken):
        return _leave(EXIT_ELSEWHERE, f"nothing is started: {taken.why}")
    return Job(spec, paths, taken, allocation, variables, srun_options(submission), disk, clock).run()


def _last_state(paths: RunPaths, disk: Disk) -> RunState | None:
    try:
        return replay(JournalReader(paths, disk).read(newest_only=True).records)
    except (RecordError, OSError):
        return None  # whoever claims the next term finds out, and says so


def _claimed(paths: RunPaths, disk: Disk, allocation: Allocation, seq: int) -> JobClaim | Taken:
    me = processes.read_proc(os.getpid())
    assert me is not None
    wish = JobClaim(seq, allocation.job, allocation.restart, allocation.host, me.pid, me.start_ticks)
    claimed = JobClaims(paths, disk).claim(wish)
    return claimed if isinstance(claimed, Taken) else claimed.claim


@dataclass(slots=True)
class Job:
    """One stay of one job: its step, and what is seen of the run meanwhile."""

    spec: RunSpec
    paths: RunPaths
    claim: JobClaim
    allocation: Allocation
    variables: dict[str, str]
    extra: tuple[str, ...]
    disk: Disk
    clock: SystemClock

    def run(self) -> int:
        """Until nothing of it is left to do; the exit code."""
        view = LiveView(
            log_of=self.paths.node_log,
            live_of=lambda term: live_of(self.paths, self.disk, term),
            wall=self.clock.wall,
            out=sys.stdout,
            quiet_ranks=False,
        )
        onlooker = Onlooker(self.paths, self.disk, self.clock, view)
        onlooker.catch_up()
        steps = JobStep(
            self.spec, self.paths, self.claim, self.allocation, self.variables, self.extra,
            over=lambda: is_over(onlooker.state(), steps.claim), say=view.say, disk=self.disk,
        )  # fmt: skip
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            # Slurm tells the step too, and what it means is found out there. Not SIG_IGN: srun would inherit that.
            signal.signal(signum, lambda _number, _frame: None)
        onlooker.start()
        view.say(f"run {self.spec.run}: job {self.claim.token} on {len(self.allocation.nodes)} nodes")
        steps.start()
        self._stay(steps, onlooker)
        if not onlooker.leave(LAST_LOOK_WITHIN_S):
            view.say(f"{self.paths.root} does not answer: the last lines are missing here")
        return code_of(onlooker.state(), steps.claim)

    def _stay(self, steps: JobStep, onlooker: Onlooker) -> None:
        pause, give_up_at = threading.Event(), float("inf")
        while steps.part is not Part.OVER:
            pause.wait(LOOK_EVERY_S)
            steps.turn()
            if give_up_at == float("inf") and is_over(onlooker.state(), steps.claim):
                give_up_at = self.clock.now() + LETS_GO_WITHIN_S
            if self.clock.now() >= give_up_at:
                steps.kill()


def _leave(code: int, why: str) -> int:
    sys.stderr.write(f"gangrun: {why}\n")
    return code
