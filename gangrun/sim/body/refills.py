"""Refills in the simulated scheduler: one-node jobs that bring a node to a job, and what the real ones do alone.

Their habits are those of ``scheduler``: a submission that succeeds and times out, a queue that is old or down, a refill
that never starts. The rules that must survive them: a refill is looked for before it is asked for again, its number is
claimed by link, and its batch script starts nothing, and leaves, where the journal or the scheduler shows that it is
not wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from gangrun.core.actions import CancelRefill, SubmitRefill
from gangrun.core.events import RefillEnded, RefillQueued, RefillUnknown, Stamped
from gangrun.core.model import TERMINAL, RefillStage, RunState
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.surroundings import Surroundings

QUEUE_S, ASK_AGAIN_S, WATCH_EVERY_S, LOOK_EVERY_S = 2.0, 1.0, 2.0, 3.0
LOOK_AGAIN_S, LOOK_FOR_S = 5.0, 30.0
LETS_GO_WITHIN_S, JOINS_WITHIN_S, KILL_WAIT_S = 5.0, 300.0, 30.0
TRIES_TO_BEGIN_COUNT = 300


class JobState(Enum):
    """As the queue shows it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


@dataclass(slots=True)
class Moods:
    """What is wrong with it, and until when; counts are of jobs that it will befall."""

    refuses_until: float = 0.0
    down_until: float = 0.0
    stale_until: float = 0.0
    times_out_count: int = 0
    never_count: int = 0
    held_until: float = 0.0
    no_refills_until: float = 0.0  # no node is free for one


@dataclass(slots=True)
class RefillJob:
    """One allocation of one node."""

    id: str
    number: int
    seq: int
    exclude: tuple[str, ...]
    submitted_at: float
    state: JobState = JobState.PENDING
    node: SimNode | None = None
    cancelled: bool = False
    began_at: float = 0.0
    over_since: float | None = None  # its batch script knows that it is not wanted


class SimRefills:
    """All refills of the run."""

    def __init__(self, world: Surroundings, scheduler: Any) -> None:
        """None yet."""
        self.world, self.scheduler = world, scheduler
        self.jobs: list[RefillJob] = []
        self.claims: dict[int, str] = {}
        self.looks_before_retry = self.looks_whether_wanted = True

    # ---- submit, find, cancel ----

    def submit(self, action: SubmitRefill) -> RefillJob | None:
        """A job in the queue; None where it was refused. The caller may never hear of it."""
        now, moods = self.world.timeline.now, self.scheduler.moods
        if now < moods.refuses_until:
            return None
        job = RefillJob(f"x{len(self.jobs)}", action.number, action.seq, action.exclude, now)
        self.jobs.append(job)
        if moods.never_count:
            moods.never_count -= 1
        else:
            self.world.timeline.at(max(now + QUEUE_S, moods.held_until), lambda: self._start(job))
        return job

    def newest(self, number: int) -> RefillJob | None:
        """The newest of that number, ended ones too. ``TimeoutError`` where the controller does not answer."""
        now, moods = self.world.timeline.now, self.scheduler.moods
        if now < moods.down_until:
            raise TimeoutError("the queue does not answer")
        seen = [
            job
            for job in self.jobs
            if job.number == number and (now >= moods.stale_until or job.submitted_at < moods.stale_until - 60.0)
        ]
        return max(seen, key=lambda job: job.state is not JobState.ENDED, default=None)

    def cancel(self, jobs: Iterable[RefillJob]) -> None:
        """What waits never starts; what runs is told to end, and killed after KillWait."""
        for job in jobs:
            job.cancelled = True
            if job.state is JobState.PENDING:
                self._end(job)
            elif job.state is JobState.RUNNING and job.node is not None:
                self.world.terminate(job.node, 15)
                self.world.timeline.after(KILL_WAIT_S, partial(self._end, job))

    def cancel_waiting(self) -> None:
        """``gangrun cancel``: those in the queue at once."""
        self.cancel([job for job in self.jobs if job.state is JobState.PENDING])

    def cancel_all(self) -> None:
        """And later all of them."""
        self.cancel([job for job in self.jobs if job.state is not JobState.ENDED])

    def end_all(self) -> None:
        """With the job they serve, if the controller answers."""
        if self.world.timeline.now >= self.scheduler.moods.down_until:
            self.cancel_all()

    def holds(self, name: str) -> bool:
        """Does this job have its node?"""
        return any(job.id == name and job.state is JobState.RUNNING for job in self.jobs)

    # ---- a refill's life ----

    def _start(self, job: RefillJob) -> None:
        now = self.world.timeline.now
        if job.state is not JobState.PENDING:
            return
        free = [n for n in self.world.nodes if n.up and not n.job and n.name not in job.exclude]
        if not free or now < self.scheduler.moods.no_refills_until:
            self.world.timeline.after(5.0, lambda: self._start(job))
            return
        job.state, job.node, job.began_at = JobState.RUNNING, free[-1], now
        job.node.job = job.id
        self._begin(job, TRIES_TO_BEGIN_COUNT)

    def _begin(self, job: RefillJob, tries_left_count: int) -> None:
        """The batch script: cancelled? wanted? claim the number. After an error it asks again."""
        node = job.node
        if job.state is not JobState.RUNNING or node is None or node.job != job.id:
            return
        served = self._served(job)
        try:
            if node.mount.trouble():
                raise OSError
            leaves = node.mount.cancelled() or bool(self._why_over(job))
        except OSError:
            leaves, served = False, ""
        if self.looks_whether_wanted and (leaves or not tries_left_count):
            self._end(job)
            return
        if self.looks_whether_wanted and not served:  # nobody answers: nothing is started yet
            self.world.timeline.after(ASK_AGAIN_S, lambda: self._begin(job, tries_left_count - 1))
            return
        if self.claims.setdefault(job.number, job.id) != job.id:
            self._end(job)
            return
        main = self.scheduler.jobs[-1]
        node.serves, node.refill = served or main.token, job.number
        self.world.checks.refill_began(job)
        node.begin_job(job.id, founder=False)
        self._watch(job)

    def _served(self, job: RefillJob) -> str:
        """The stay of the job that it is for, if the controller says that it runs; "" where it does not answer."""
        if self.world.timeline.now < self.scheduler.moods.down_until:
            return ""
        return next((main.token for main in self.scheduler.running() if main.seq == job.seq), "")

    def _why_over(self, job: RefillJob) -> str:
        """Why it is not wanted, "" if it is or nobody can tell."""
        state: RunState | None = self.world.newest_state()
        node, now = job.node, self.world.timeline.now
        assert node is not None
        if state is None:
            return "no journal"
        if state.phase in TERMINAL or state.ending.leaving or state.seq != job.seq:
            return "its job is over"
        wanted = next((one for one in state.roster.refills if one.number == job.number), None)
        if wanted is None:
            return "not wanted"
        if wanted.stage is not RefillStage.HERE and now > job.began_at + JOINS_WITHIN_S:
            return "it has not joined"
        served = self._served(job)
        answers = now >= self.scheduler.moods.down_until
        return "its job is gone" if answers and served != (node.serves or served or "-") else ""

    def _watch(self, job: RefillJob) -> None:
        node = job.node
        if job.state is not JobState.RUNNING or node is None or node.job != job.id:
            return
        now = self.world.timeline.now
        if self.looks_whether_wanted and job.over_since is None and not node.mount.trouble() and self._why_over(job):
            job.over_since = now
        if job.over_since is not None and now >= job.over_since + LETS_GO_WITHIN_S:
            self._end(job)
            return
        self.world.timeline.after(WATCH_EVERY_S, lambda: self._watch(job))

    def _end(self, job: RefillJob) -> None:
        """The allocation is over, and all that it had."""
        if job.state is JobState.ENDED:
            return
        job.state, node = JobState.ENDED, job.node
        if node is not None and node.job == job.id:
            if node.up:
                node.leave()
            node.job = ""
        self._free(node, job)
        self.world.timeline.after(0.0, self._look_whether_all_is_over)

    def _free(self, node: SimNode | None, job: RefillJob) -> None:
        if node is not None and node.refill == job.number:
            node.serves, node.refill = "", 0

    def _look_whether_all_is_over(self) -> None:
        self.world.timeline.stopped = self.world.is_over()

    def node_left(self, node: SimNode) -> None:
        """Its task ended, and srun with it: so does the refill."""
        for job in self.jobs:
            if job.node is node and node.job == job.id:
                self._end(job)

    def node_lost(self, node: SimNode) -> None:
        """The only node that it had."""
        for job in self.jobs:
            if job.node is node and node.job == job.id:
                self._end(job)


class RefillJobs:
    """What ``ports.Jobs`` does with refills, for one supervisor."""

    def __init__(self, refills: SimRefills, supervisor: Any) -> None:
        """Nothing is watched."""
        self._refills, self._supervisor = refills, supervisor
        self._told: dict[int, tuple[str, str | None]] = {}
        self._dropped: set[int] = set()
        self._looks = False

    def submit(self, action: SubmitRefill | CancelRefill) -> None:
        """Of a cancel nothing is answered."""
        if isinstance(action, CancelRefill):
            self._told.pop(action.number, None)
            self._dropped.add(action.number)
            self._cancel(action, self._supervisor.timeline.now + LOOK_FOR_S)
            return
        self._try(action, self._supervisor.timeline.now + LOOK_FOR_S)

    def _later(self, for_s: float, what: object) -> None:
        supervisor = self._supervisor
        supervisor.timeline.after(for_s, lambda: supervisor.when_awake(what))

    def _cancel(self, action: CancelRefill, until: float) -> None:
        now, moods = self._supervisor.timeline.now, self._refills.scheduler.moods
        if now < moods.down_until:
            if now < until:
                self._later(LOOK_AGAIN_S, lambda: self._cancel(action, until))
            return
        self._refills.cancel([job for job in self._refills.jobs if job.number == action.number])

    def _post(self, event: RefillQueued | RefillEnded | RefillUnknown) -> None:
        self._supervisor.post(Stamped(event))

    def _try(self, action: SubmitRefill, until: float) -> None:
        refills, now = self._refills, self._supervisor.timeline.now
        number, again = action.number, lambda: self._try(action, until)
        if number in self._dropped:
            return
        if action.job:  # whether it still is there a look tells, as soon as the scheduler answers
            self._told.setdefault(number, (action.job, None))
            self._look()
            return
        found = None
        if refills.looks_before_retry:
            try:
                found = refills.newest(number)
            except TimeoutError as error:
                if now >= until:
                    self._post(RefillUnknown(number, str(error)))
                else:
                    self._later(LOOK_AGAIN_S, again)
                return
        if found is not None:
            self._tell(found)
            return
        job = refills.submit(action)
        if job is None:
            self._post(RefillEnded(number, "the submission was refused"))
            return
        refills.world.checks.refill_submitted(job)
        if refills.scheduler.moods.times_out_count:
            refills.scheduler.moods.times_out_count -= 1
            self._later(LOOK_AGAIN_S, again)
        else:
            self._tell(job)

    def _tell(self, job: RefillJob) -> None:
        """What became of it, if that is new; and look again."""
        if job.state is JobState.ENDED:
            self._told.pop(job.number, None)
            self._post(RefillEnded(job.number, f"{job.id} ended", cancelled=job.cancelled))
            return
        said = (job.id, "Resources" if job.state is JobState.PENDING else "")
        if self._told.get(job.number) != said:
            self._told[job.number] = said
            self._post(RefillQueued(job.number, *said))
        if not self._looks:
            self._looks = True
            self._later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._looks = False
        if self._told and self._supervisor.timeline.now < self._refills.scheduler.moods.down_until:
            self._looks = True
            self._later(LOOK_EVERY_S, self._look)
            return
        for number, (name, _) in list(self._told.items()):
            self._tell(next(job for job in self._refills.jobs if (job.number, job.id) == (number, name)))
