"""What a supervisor has of Slurm: successors, this job's end, who is absent.

In a box's world none of this is there; ``supervisor`` asks ``side_of`` which of the two it is in.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.adapters.fs.run_dir import RunPaths, mark_cancelled, read_cancelled, read_submission
from gangrun.adapters.net.router import QueueMailbox
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.jobs import SlurmJobs, end_allocation
from gangrun.adapters.slurm.refills import SlurmRefills
from gangrun.adapters.slurm.scheduler import SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.watch import JobWatch
from gangrun.config import environment
from gangrun.core import events
from gangrun.core.actions import Action, CancelRefill, EndJob, SubmitRefill
from gangrun.core.events import ActDone, ActFailed, Stamped
from gangrun.core.model import Phase
from gangrun.core.nodeset import NodesetError, unfold
from gangrun.core.policy import Policy
from gangrun.launch.slurm_batch_job import Absent, AbsentWatch
from gangrun.runs.saves import read_saves
from gangrun.wire.submission import Requeue, Submission, comment

if TYPE_CHECKING:
    from gangrun.launch.executor import BatchExecutor

LEAD_SLACK_S = 15.0
DOWN_WITHIN_S = 5.0


@dataclass(slots=True)
class SlurmSide:
    """``ports.Jobs`` for one stay of one job, with the threads that watch Slurm and the job's launcher."""

    paths: RunPaths
    disk: Disk
    clock: SystemClock
    mailbox: QueueMailbox
    claim: JobClaim
    submission: Submission
    scheduler: SlurmScheduler
    jobs: SlurmJobs
    refills: SlurmRefills | None  # None: this run asks for none
    watch: JobWatch
    absent: AbsentWatch
    say: Callable[[str], None]

    @property
    def ask_why(self) -> Callable[[], None]:
        """For the loop, when an agent was told to end."""
        return self.watch.ask_why

    def start(self) -> None:
        """Begin to watch and to answer."""
        self.jobs.start()
        if self.refills is not None:
            self.refills.start()
        self.watch.start()
        self.absent.start()

    def close(self) -> None:
        """Nothing more is asked or posted."""
        self.watch.close()
        self.absent.over.set()
        if self.refills is not None:
            self.refills.close()
        self.jobs.close()

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """``ports.Jobs.submit``."""
        if not isinstance(action, SubmitRefill | CancelRefill):
            self.jobs.submit(act, action)
        elif self.refills is not None:
            self.refills.submit(action)

    def look(self) -> None:
        """``ports.Jobs.look``."""
        self.watch.look()

    def looked_at(self) -> float:
        """``ports.Jobs.looked_at``."""
        return self.watch.looked_at

    def runs_at(self) -> float:
        """``ports.Jobs.runs_at``."""
        return self.watch.runs_at

    def left_s(self) -> float | None:
        """``ports.Jobs.left_s``."""
        return self.watch.left_s()

    def end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        """``ports.Jobs.end``: the batch script ends the job, unless its host is gone."""
        self.watch.close()
        threading.Thread(target=self._end, args=(act, action, lost), name="end job", daemon=True).start()

    def _end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        why = self._mark(action.reason) if action.phase is Phase.CANCELLED else ""
        if self.refills is not None:
            self.refills.end_all()
        if self.claim.host in lost and self._is_ours() and not self._comes_back(action):
            self.say(f"{self.claim.host}, which held the batch script, is gone: ending job {self.claim.job} from here")
            wait = threading.Event().wait
            why = end_allocation(self.scheduler, self.claim.job, clock=self.clock, wait=wait) or why
        kind = type(action).__name__
        self.mailbox.post(Stamped(ActFailed(act, kind, why) if why else ActDone(act, kind)))

    def _comes_back(self, action: EndJob) -> bool:
        """Is this very job the next one? Then Slurm ends it, and to cancel it would be to cancel the run."""
        return action.phase is Phase.PENDING and self.submission.requeue is Requeue.SAME_JOB

    def mark_cancel(self, by: str) -> None:
        """For the loop: whoever cancels, the mark is left at once, as all of the job may be killed any moment."""
        threading.Thread(target=self._mark, args=(by,), name="cancel mark", daemon=True).start()

    def _mark(self, by: str) -> str:
        try:
            mark_cancelled(self.disk, self.paths, by, self.clock.wall())
        except OSError as error:
            return f"the cancel could not be marked: {error.strerror or error}"
        return ""

    def _is_ours(self) -> bool:
        """Was it submitted by gangrun? What a user holds, he gives back himself."""
        facts = self.watch.facts
        return facts is not None and facts.comment == comment(self.paths.run, self.claim.seq)


def side_of(
    paths: RunPaths,
    disk: Disk,
    clock: SystemClock,
    mailbox: QueueMailbox,
    policy: Policy,
    directory: str,
    claim: JobClaim,
    all_heard: Callable[[], bool],
    say: Callable[[str], None],
    roster: tuple[str, ...],
) -> SlurmSide:
    """Everything put together, nothing started. ``directory``: that of the checkpoints."""
    submission = read_submission(disk, paths)
    tools = Tools(environment.all_variables())
    scheduler = SlurmScheduler(tools)

    def executor() -> BatchExecutor:
        """One for each request, as two threads ask; submitit is loaded by then."""
        from gangrun.launch.executor import BatchExecutor

        return BatchExecutor(paths, submission, tools)

    def absent(node: Absent) -> None:
        mailbox.post(Stamped(events.NodeAbsent(node.node, node.why, node.scheduler)))

    jobs = SlurmJobs(
        scheduler, lambda *asked: executor().submit_job(*asked), run=paths.run, job_name=submission.job_name,
        job=claim.job,
        restarts_count=claim.restart, post=mailbox.post, all_heard=all_heard, clock=clock, say=say,
        cancelled=lambda: read_cancelled(disk, paths) is not None,
        same_job=submission.requeue is Requeue.SAME_JOB,
        user_exclude=_names(submission.exclude),
    )  # fmt: skip

    def lead_s(save_s: float) -> float:
        return policy.lead_s(save_s) + policy.stop_grace_s + LEAD_SLACK_S

    def save_s() -> float:
        told = read_saves(directory, paths.run)
        return 0.0 if told is None else told.persist_s

    watch = JobWatch(
        scheduler, run=paths.run, job=claim.job, restarts_count=claim.restart, launch=claim.launch, lead_s=lead_s,
        post=mailbox.post, clock=clock, say=say, nodes=roster,
        save_s=save_s,
    )  # fmt: skip

    refills = None
    if policy.refill_wait_s is not None:
        resubmits = submission.requeue is Requeue.RESUBMIT
        refills = SlurmRefills(
            scheduler, lambda *asked: executor().submit_refill(*asked), run=paths.run, job_name=submission.job_name,
            post=mailbox.post, clock=clock,
            cancelled=lambda: read_cancelled(disk, paths) is not None, say=say, job_left_s=watch.left_s,
            why_not="" if resubmits else "this run submits no jobs of its own",
        )  # fmt: skip
    watcher = AbsentWatch(paths, disk, claim.token, absent)
    return SlurmSide(paths, disk, clock, mailbox, claim, submission, scheduler, jobs, refills, watch, watcher, say)


def _names(text: str) -> tuple[str, ...]:
    try:
        return unfold(text)
    except NodesetError:
        return (text,)  # Slurm took it once, and may again


def is_down(node: str) -> bool:
    """Does Slurm say that a node is down? Where it does not answer in time, it does not."""
    try:
        return SlurmScheduler(Tools(environment.all_variables()), DOWN_WITHIN_S).is_down(node)
    except (SchedulerSilent, SchedulerRefused):
        return False


def survive_signals() -> None:
    """Slurm tells every process of a step that its end has come. What that means is asked of Slurm, not concluded."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda _number, _frame: None)
