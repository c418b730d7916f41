"""A refill's batch script: brings one node to a job of the run that lacks one, for as long as that job wants it.

It starts a warden and its agent as if they were of that job, which is all that joins them to it: the agent finds the
supervisor by the run directory and has the run's keys. No supervisor is ever made here. Before anything is started, and
again and again afterwards, it looks whether it is wanted: the journal must name this refill, and Slurm must hold that
very stay of the job for running. Where neither answers for long, it leaves. Its end is the end of its allocation.

Exit codes: 75 it is over, whatever the reason, so that Slurm does not take it for the run's end; 130 the run was
cancelled before; 78 a person must look.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import ABSENT, Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims, insist, link_whole, plain_job, temporary_tag
from gangrun.adapters.fs.journal import read_counter
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_cancelled, read_spec, read_submission
from gangrun.adapters.slurm import step
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.scheduler import SchedulerSilent, SlurmScheduler
from gangrun.config import environment
from gangrun.core.model import TERMINAL, Refill, RefillStage, RunState
from gangrun.core.nodeset import NodesetError, fold
from gangrun.entry.wiring import clock_of, disk_of, own_command
from gangrun.launch.node_spec import warden_spec
from gangrun.launch.slurm_batch_job import EXIT_CANCELLED, Allocation, allocation_of, srun_options
from gangrun.launch.slurm_job_owner import EXIT_ELSEWHERE, EXIT_UNUSABLE
from gangrun.node import processes
from gangrun.node.speech import Voice
from gangrun.ports import Clock
from gangrun.runs.follow import JournalReplay
from gangrun.wire.record import RecordError
from gangrun.wire.spec import JobLine, RunSpec, SpecError
from gangrun.wire.submission import SubmissionError

LOOK_EVERY_S = 0.5
ASK_EVERY_S = 10.0  # of Slurm, how the job stands
JOINS_WITHIN_S = 300.0  # of its start; an agent that has not joined by then never will
ALONE_MAX_S = 600.0  # without a word of Slurm, and without one of a supervisor
LETS_GO_WITHIN_S = 5.0  # the agent is dismissed by the supervisor
INSISTS_FOR_S = 300.0


@dataclass(slots=True)
class WantedRefill:
    """Is refill ``number`` of job ``seq`` wanted? Asked again and again."""

    paths: RunPaths
    disk: Disk
    scheduler: SlurmScheduler
    clock: Clock
    seq: int
    number: int
    token: str = ""  # the stay of the job, once known
    roster: tuple[str, ...] = ()  # its own nodes
    _replay: JournalReplay = field(init=False)
    _began_at: float = field(init=False)
    _heard_at: float = field(init=False)  # when Slurm or a supervisor last gave a sign
    _ask_at: float = float("-inf")
    _counter: tuple[int, int] = (0, 0)
    is_known: bool = False  # Slurm has said that the job runs, and the journal before that this refill is wanted

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._replay = JournalReplay(self.paths, self.disk, newest_only=True)
        self._began_at = self._heard_at = self.clock.now()

    def why_not(self) -> str:
        """Why it is over; "" if it is wanted, as far as is known."""
        now = self.clock.now()
        why = self._by_journal(now) or self._by_slurm(now)
        if why:
            return why
        if now > self._heard_at + ALONE_MAX_S:
            return f"neither Slurm nor a supervisor gave a sign in {ALONE_MAX_S:.0f} s"
        return ""

    def _by_journal(self, now: float) -> str:
        try:
            if self._replay.poll():
                self._heard_at = now
            state = self._replay.state()
            self._look_at_counter(state, now)
        except OSError:
            return ""  # not known; how long that may last is bounded by Slurm's word
        except RecordError as error:
            return f"the journal cannot be read: {error}"
        return "" if state is None else self._by_state(state, now)

    def _look_at_counter(self, state: RunState | None, now: float) -> None:
        counter = read_counter(self.disk, self.paths, state.term) if state is not None else None
        if state is not None and counter is not None and (state.term, counter.count) != self._counter:
            self._counter, self._heard_at = (state.term, counter.count), now

    def _by_state(self, state: RunState, now: float) -> str:
        if state.phase in TERMINAL:
            return f"the run has ended ({state.phase.value})"
        if state.seq != self.seq or state.ending.leaving or (self.token and state.job != self.token):
            return f"job {plain_job(self.token or state.job)} of the run is over"
        found: Refill | None = next((one for one in state.roster.refills if one.number == self.number), None)
        if found is None:
            return f"refill {self.number} is not wanted any more"
        if found.stage is not RefillStage.HERE and now > self._began_at + JOINS_WITHIN_S:
            return f"its agent has not joined the supervisor in {JOINS_WITHIN_S:.0f} s"
        self.token, self.roster = state.job, state.roster.expected
        return ""

    def _by_slurm(self, now: float) -> str:
        if not self.token or now < self._ask_at:
            return ""
        self._ask_at = now + ASK_EVERY_S
        try:
            facts = self.scheduler.job(plain_job(self.token))
            holder = JobClaims(self.paths, self.disk).holder(self.seq)
        except (SchedulerSilent, OSError):
            return ""
        self._heard_at = now
        if facts is None or not facts.runs or holder is None or holder.token != self.token:
            return f"job {plain_job(self.token)} is {facts.state if facts is not None else 'gone'} in Slurm"
        self.is_known = facts.restarts_count == holder.restart
        return "" if self.is_known else f"job {plain_job(self.token)} was requeued"


def claimed(disk: Disk, paths: RunPaths, number: int, mine: JobClaim) -> str:
    """Why this job is not refill ``number``; "" if it is. ``OSError``: not known; safe to ask again."""
    target = paths.refill(number)
    holder = _holder(disk, target)
    if holder is None:
        tag = temporary_tag(mine.host, mine.job, mine.pid, mine.start_ticks)
        try:
            link_whole(disk, paths.temporary(target, tag), target, msgspec.json.encode(mine) + b"\n")
        except OSError:
            if _holder(disk, target) is None:
                raise
        holder = _holder(disk, target)
    if holder == mine:
        return ""
    return f"refill {number} is " + (f"job {holder.job}" if holder is not None else "a job that is not known")


def _holder(disk: Disk, target: Path) -> JobClaim | None:
    try:
        return msgspec.json.decode(disk.read(target), type=JobClaim)
    except ABSENT:
        return None


def step_argv(
    spec: RunSpec,
    paths: RunPaths,
    wanted: WantedRefill,
    claim: JobClaim,
    allocation: Allocation,
    extra: tuple[str, ...],
) -> list[str]:
    """The command line of srun for this one node: a warden of the job that lacks one, in this refill's own place."""
    told = warden_spec(
        spec, paths, wanted.token, wanted.seq, "", roster=fold(wanted.roster or allocation.nodes), refill=wanted.number
    )
    told |= {"previous_died": "", "only_beside": False}
    words = [json.dumps(told), str(paths.root), msgspec.json.encode(claim).decode()]
    command = own_command("gangrun.entry.slurm_node", words, sys.executable)
    return step.argv(step.StepShape(allocation.nodes, allocation.cpus_per_task, extra), command)


def main(words: list[str]) -> int:
    """Until it is not wanted any more."""
    parser = argparse.ArgumentParser(prog="gangrun-refill")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--directory", default="", help="where the user's batch script stood at its gangrun run line")
    own, command = words, list[str]()
    if "--" in words:
        own, command = words[: words.index("--")], words[words.index("--") + 1 :]
    found = parser.parse_args(own)
    paths, variables = RunPaths(found.run_dir), environment.all_variables()
    disk, clock, tools = disk_of(paths), clock_of(), Tools(variables)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda _number, _frame: None)  # not SIG_IGN: srun would inherit that
    try:
        spec, submission = insist(lambda: (read_spec(disk, paths), read_submission(disk, paths)), _say)
        allocation = allocation_of(variables, processes.host_name())
        if insist(lambda: read_cancelled(disk, paths), _say, within_s=INSISTS_FOR_S) is not None:
            return _leave(EXIT_CANCELLED, "the run was cancelled: nothing is started")
        wanted = WantedRefill(paths, disk, SlurmScheduler(tools), clock, found.seq, found.number)
        if why := _before(wanted):
            return _leave(EXIT_ELSEWHERE, f"nothing is started: {why}")
        me = processes.read_proc(os.getpid())
        assert me is not None
        mine = JobClaim(found.seq, allocation.job, allocation.restart, allocation.host, me.pid, me.start_ticks)
        if why := insist(lambda: claimed(disk, paths, found.number, mine), _say, within_s=INSISTS_FOR_S):
            return _leave(EXIT_ELSEWHERE, f"nothing is started: {why}")
    except (RunDirError, SpecError, SubmissionError, OSError) as error:
        return _leave(EXIT_UNUSABLE, f"nothing is started: {error}")
    except (KeyError, NodesetError) as error:
        return _leave(EXIT_UNUSABLE, f"this is not the environment of a Slurm job: {error}")
    if command:
        spec = spec.with_line(JobLine(found.directory, tuple(command)))
    _say(f"run {spec.run}: job {allocation.job} brings {fold(allocation.nodes)} to job {plain_job(wanted.token)}")
    srun = step.Step(
        step_argv(spec, paths, wanted, mine, allocation, srun_options(submission)), variables, allocation.job, tools
    )
    return _leave(EXIT_ELSEWHERE, _stay(srun, wanted))


def _before(wanted: WantedRefill) -> str:
    """Why nothing may be started; "" once the journal and Slurm have both said that it is wanted."""
    pause, until = threading.Event(), wanted.clock.now() + INSISTS_FOR_S
    while True:
        if why := wanted.why_not():
            return why
        if wanted.is_known:
            return ""
        if wanted.clock.now() >= until:
            return "it is not known whether this refill is still needed"
        pause.wait(LOOK_EVERY_S)


def _stay(srun: step.Step, wanted: WantedRefill) -> str:
    """From the start of its node's processes to its end, in words."""
    pause, leaves_at, why = threading.Event(), float("inf"), ""
    srun.start()
    while srun.ended is None and wanted.clock.now() < leaves_at:
        pause.wait(LOOK_EVERY_S)
        if not why and (why := wanted.why_not()):
            leaves_at = wanted.clock.now() + LETS_GO_WITHIN_S
    if srun.ended is None:
        srun.kill()
    return why or f"its processes have ended: {'; '.join(srun.words[-3:]) or 'srun said nothing'}"


_VOICE = Voice()


def _say(sentence: str) -> None:
    _VOICE.say(f"gangrun: {sentence}")


def _leave(code: int, why: str) -> int:
    _say(why)
    return code
