"""A scheduler made of numbers, and the batch script that each of its jobs begins with.

Small but with the habits that hurt: sbatch that succeeds and times out, squeue that is old or down, a job that starts
twice, never, or under the same id again. The rules that must survive them (look for our comment before a retry, claim
``jobs/<seq>`` by link, nothing after ``cancelled``) are in ``SimJobs`` and ``SimScheduler.batch``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gangrun.core.actions import Action, CancelRefill, EndJob, SubmitRefill, SubmitSuccessor
from gangrun.core.events import ActDone, ActFailed, ActUnknown, NodeAbsent, Notice, NoticeKind, Stamped
from gangrun.core.model import TERMINAL, Phase
from gangrun.sim.body.node import SimNode
from gangrun.sim.body.refills import JobState, Moods, RefillJobs, SimRefills
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.body.surroundings import Surroundings
from gangrun.sim.engine.disk import Mount, SimJobClaim

ANSWERS_AFTER_S = 1.0
QUEUE_S, LOOK_AGAIN_S, LOOK_FOR_S, KILL_WAIT_S = 2.0, 5.0, 30.0, 30.0
SUPERVISOR_START_S, RESORTS_MAX_COUNT = 0.3, 4
ASK_AGAIN_S = 1.0
WARDEN_AGAIN_S, EMPTY_LOOK_S, EMPTY_WITHIN_S = 0.5, 0.25, 5.0
WARDENS_MAX_COUNT = 5  # of one node
WARDEN_KILLED = "its warden was killed by SIGKILL (9)"
WATCH_EVERY_S = 5.0


@dataclass(slots=True)
class Job:
    """One allocation."""

    id: str
    seq: int
    comment: str
    exclude: tuple[str, ...]
    state: JobState = JobState.PENDING
    restart: int = 0
    nodes: list[SimNode] = field(default_factory=list)
    taken: tuple[str, ...] = ()  # what it began with and does not have any more
    owned: bool = False  # its batch script passed the claim
    submitted_at: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    why: NoticeKind = NoticeKind.UNKNOWN  # it is being taken away
    wardens_count: dict[str, int] = field(default_factory=dict)  # node -> started again so often
    pid: int = 0  # of its batch script
    deaf_until: float = 0.0  # its srun was killed, so the batch script hears of no warden's end
    over: str = ""  # the newest stay whose step has ended, as its comment says

    @property
    def token(self) -> str:
        """What tells this stay from one before under the same id."""
        return f"{self.id}r{self.restart}" if self.restart else self.id


class SimScheduler:
    """All jobs of the run."""

    clears_nodes = True  # a warden begins once nothing of the last one lives
    has_places = True  # and once the last one is dead

    def __init__(self, world: Surroundings) -> None:
        """No job yet."""
        self.world = world
        self.jobs: list[Job] = []
        self.moods = Moods()
        self.refills = SimRefills(world, self)
        self.uses_link = True
        self.checks_cancelled = True
        self.looks_before_retry = True
        self.watch_of: Callable[[SimSupervisor, Job], Callable[[], object]] | None = None  # who sees the limit coming

    # ---- sbatch, squeue, scancel --------------------------------------------------------------------------------

    def submit(self, seq: int, exclude: tuple[str, ...]) -> Job | None:
        """A job in the queue; None where it was refused. The caller may never hear of it."""
        now = self.world.timeline.now
        if now < self.moods.refuses_until:
            return None
        job = Job(f"job{len(self.jobs)}", seq, f"gr:{self.world.run_id}:{seq}", exclude, submitted_at=now)
        self.jobs.append(job)
        if self.moods.never_count:
            self.moods.never_count -= 1
        else:
            self.world.timeline.at(max(now + QUEUE_S, self.moods.held_until), lambda: self.start(job))
        return job

    def squeue(self, comment: str) -> Job | None:
        """The newest job with this comment that the controller shows. ``TimeoutError`` where it does not answer."""
        now = self.world.timeline.now
        if now < self.moods.down_until:
            raise TimeoutError("squeue does not answer")
        seen = [
            job
            for job in self.jobs
            if job.comment == comment
            and job.state is not JobState.ENDED
            and (now >= self.moods.stale_until or job.submitted_at < self.moods.stale_until - 60.0)
        ]
        return seen[-1] if seen else None

    def scancel(self, job: Job) -> None:
        """SIGTERM to all, SIGKILL after KillWait; what waits in the queue never starts."""
        if job.state is JobState.PENDING:
            self._end(job)
        if job.state is not JobState.RUNNING:
            return
        self._terminate(job, NoticeKind.CANCEL)

    def _terminate(self, job: Job, why: NoticeKind) -> None:
        job.why = why
        for node in job.nodes:
            self.world.terminate(node, 15)
        self.world.timeline.after(KILL_WAIT_S, lambda: self.kill(job))

    def _limit(self, job: Job) -> None:
        stay, limit_s = job.restart, self.world.setup.time_limit_s

        def over() -> None:
            if job.state is JobState.RUNNING and job.restart == stay:
                self._terminate(job, NoticeKind.TIME_LIMIT)

        if limit_s:
            self.world.timeline.after(limit_s, over)

    def kill(self, job: Job) -> None:
        """The allocation is taken away."""
        if job.state is JobState.RUNNING:
            job.state = JobState.ENDED
            for node in job.nodes:
                if node.job == job.token:
                    node.leave()
            self._end(job)

    # ---- a job's life -------------------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """Nodes are there: the batch script runs."""
        if job.state is not JobState.PENDING:
            return
        free = [n for n in self.world.nodes if n.up and not n.job and n.name not in job.exclude]
        count = self.world.setup.job_nodes_count
        if len(free) < count:
            self.world.timeline.after(5.0, lambda: self.start(job))
            return
        job.state, job.began_at = JobState.RUNNING, self.world.timeline.now
        self._limit(job)
        job.nodes = free[:count]
        for node in job.nodes:
            node.job = job.token
        job.pid = self.world.new_pid()
        self.batch(job)

    def batch(self, job: Job) -> None:
        """What runs before srun: (a) cancelled? (b) claim the place in the sequence. After an error it asks again."""
        pid = job.pid
        try:
            self._begin(job, job.nodes[0].mount)
        except OSError:
            self.world.timeline.after(ASK_AGAIN_S, lambda: self._ask_again(job, pid))

    def _ask_again(self, job: Job, pid: int) -> None:
        if job.state is JobState.RUNNING and job.pid == pid and job.nodes[0].up:
            self.batch(job)

    def _begin(self, job: Job, mount: Mount) -> None:
        disk = self.world.disk
        if self.checks_cancelled and mount.cancelled():
            self._end(job)
            return
        if max(disk.job_claims, default=0) > job.seq:
            self._end(job)  # the run went on meanwhile
            return
        claim = disk.job_claims.get(job.seq)
        ours = claim is not None and claim.job == job.id and (claim.restart < job.restart or claim.pid == job.pid)
        if self.uses_link and claim is not None and not ours:
            self._end(job)
            return
        if claim is None or claim.pid != job.pid:
            mount.claim_job(job.seq, SimJobClaim(job.id, job.restart, self.world.timeline.now, job.pid))
        job.owned = True
        self.world.checks.job_began(job)
        for i, node in enumerate(job.nodes):
            node.begin_job(job.token, founder=i == 0)

    def requeue(self, job: Job) -> None:
        """``scontrol requeue``: everything dies, the same id waits again."""
        if job.state is JobState.RUNNING:
            job.state, job.owned = JobState.PENDING, False
            for node in job.nodes:
                if node.job == job.token:
                    node.leave()
            job.restart += 1
            self.world.timeline.after(QUEUE_S, lambda: self.start(job))

    def give_up(self, job: Job, for_s: float) -> None:
        """Its nodes do not answer: the same id waits again, and what lives on them is killed once they answer."""
        if job.state is not JobState.RUNNING or not self.world.setup.policy.can_requeue:
            return
        nodes, stay = job.nodes, job.token
        job.state, job.owned = JobState.PENDING, False
        job.restart += 1

        def reached_again() -> None:
            for node in nodes:
                if node.job == stay:
                    node.leave()

        self.world.timeline.after(QUEUE_S, lambda: self.start(job))
        self.world.timeline.after(for_s, reached_again)

    def take(self, node: SimNode) -> None:
        """It counts a good node as DOWN: its job goes on without it, and all of the job that runs there is killed."""
        job = self.job_of(node.job)
        if job is not None and job.state is JobState.RUNNING and len(job.nodes) > 1:
            job.nodes.remove(node)
            job.taken += (node.name,)
            node.leave()

    def runs(self, token: str) -> bool:
        """Does the controller answer, and say that this stay of a job has its nodes, and its step?"""
        job = self.job_of(token)
        answers = self.world.timeline.now >= self.moods.down_until
        return answers and job is not None and job.over != token and self.world.job_lives(token)

    def warden_killed(self, node: SimNode) -> None:
        """Srun tells the batch script of it, which starts another there."""
        job, after_s = self.job_of(node.job), WARDEN_AGAIN_S
        if job is None:
            node.leave()
        elif self.world.timeline.now >= job.deaf_until:
            self._place_is_free(job, node, after_s)

    def srun_killed(self, job: Job, for_s: float) -> None:
        """Wardens live on. The next srun's tasks wait beside them: each takes the place of one that is dead."""
        token = job.token
        job.deaf_until = max(job.deaf_until, self.world.timeline.now + for_s)

        def follow() -> None:
            if job.state is JobState.RUNNING and job.token == token and self.world.timeline.now >= job.deaf_until:
                for node in job.nodes:
                    if node.up and node.job == token and not (self.has_places and node.warden.alive):
                        self._place_is_free(job, node, 0.0)

        self.world.timeline.at(job.deaf_until, follow)

    def _place_is_free(self, job: Job, node: SimNode, after_s: float) -> None:
        """The next warden begins once nothing of the last one lives; where that takes too long, the task gives up."""
        token, dead = job.token, node.warden
        give_up_at = self.world.timeline.now + after_s + EMPTY_WITHIN_S

        def begin() -> None:
            if job.state is not JobState.RUNNING or node.job != token or not node.up or node.warden is not dead:
                return
            count = job.wardens_count[node.name] = job.wardens_count.get(node.name, 0) + 1
            if self._owner_is_gone(job) or count > WARDENS_MAX_COUNT:
                node.leave()
            else:
                node.begin_job(token, founder=node is job.nodes[0], previous_died=WARDEN_KILLED)

        def look() -> None:
            if not (self.clears_nodes and self.has_places and any(rank.alive for rank in node.ranks)):
                begin()
            elif self.world.timeline.now < give_up_at:
                self.world.timeline.after(EMPTY_LOOK_S, look)
            elif node.job == token and node.warden is dead:
                node.leave()

        self.world.timeline.after(after_s, look)

    def _owner_is_gone(self, job: Job) -> bool:
        """On a box without a scheduler the owner is the person's own process, which no node takes along."""
        return self.world.setup.policy.can_requeue and not job.nodes[0].up

    def node_left(self, node: SimNode) -> None:
        """Its task ended; with the last one the job ends, unless nobody has decided yet what is to follow."""
        job = self.job_of(node.job)
        node.job = ""
        if (
            job is not None
            and job.state is JobState.RUNNING
            and not any(n.up and n.job == job.token for n in job.nodes)
            and not self.last_resort(job)
        ):
            self._end(job)

    def lose_step(self, job: Job) -> None:
        """For srun all nodes of the job have left, whatever lives there."""
        if job.state is JobState.RUNNING:
            self.last_resort(job)

    def last_resort(self, job: Job) -> bool:
        """The batch script starts a supervisor beside it where all have left and the run still wants something.

        First the job's comment says that its step is over. Where that supervisor is killed, another is started.
        """
        host, state = job.nodes[0], self.world.newest_state()
        decided = state is not None and (
            state.seq > job.seq or (state.job == job.token and (state.ending.leaving or state.phase in TERMINAL))
        )
        if decided or not host.up or not job.owned:
            return False
        host.job = job.token
        self._decide_there(job, host, RESORTS_MAX_COUNT)
        return True

    def _decide_there(self, job: Job, host: SimNode, left_count: int) -> None:
        stay = job.token

        def here() -> bool:
            return job.state is JobState.RUNNING and host.job == stay == job.token

        def over(killed: bool) -> None:
            if here() and killed and host.up and left_count > 1:
                self._decide_there(job, host, left_count - 1)
            elif here():
                self.kill(job)

        def begin() -> None:
            if here() and host.up and self.world.timeline.now < self.moods.down_until:
                self.world.timeline.after(ASK_AGAIN_S, begin)
            elif here() and host.up:
                job.over = stay
                host.supervisors.append(self.world.new_supervisor(host, 0, (), 0.0, alone=over))

        self.world.timeline.after(SUPERVISOR_START_S, begin)

    def _end(self, job: Job) -> None:
        job.state = JobState.ENDED
        job.ended_at = self.world.timeline.now
        self.world.timeline.after(0.0, self._look_whether_all_is_over)
        for node in job.nodes:
            if node.job == job.token:
                node.job = ""

    def _look_whether_all_is_over(self) -> None:
        self.world.timeline.stopped = self.world.is_over()

    def job_of(self, name: str) -> Job | None:
        """By its id, or that of one of its stays."""
        return next((job for job in self.jobs if job.id == name.partition("r")[0]), None)

    def seq_of(self, name: str) -> int:
        """A job's place in the sequence."""
        job = self.job_of(name)
        return 0 if job is None else job.seq

    def running(self) -> list[Job]:
        """Jobs that hold nodes."""
        return [job for job in self.jobs if job.state is JobState.RUNNING]

    def port(self, supervisor: SimSupervisor) -> SimJobs:
        """The ``Jobs`` port of one supervisor."""
        return SimJobs(self, supervisor)


class SimJobs:
    """The ``Jobs`` port: submits each successor once, whatever sbatch says of it."""

    def __init__(self, scheduler: SimScheduler, supervisor: SimSupervisor) -> None:
        """For one supervisor's process."""
        self.scheduler = scheduler
        self.supervisor = supervisor
        self.stay = supervisor.node.job
        self._looked_at = -math.inf
        self._refills = RefillJobs(scheduler.refills, supervisor)
        job = scheduler.job_of(supervisor.node.job)
        if job is not None and scheduler.watch_of is not None:
            self._turn(scheduler.watch_of(supervisor, job))

    def _turn(self, watch: Callable[[], object]) -> None:
        watch()
        self.supervisor.timeline.after(WATCH_EVERY_S, lambda: self.supervisor.when_awake(lambda: self._turn(watch)))

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """Look for our comment, adopt what is there, else sbatch; a timeout is unknown, so look again."""
        if isinstance(action, SubmitRefill | CancelRefill):
            self.supervisor.boundary(f"before {type(action).__name__} of {action.number}")
            self.scheduler.world.checks.performs(act[0], type(action).__name__, action.number)
            self._refills.submit(action)
            return
        assert isinstance(action, SubmitSuccessor)
        self.supervisor.boundary(f"before submit of {action.seq}")
        self.scheduler.world.checks.performs(act[0], "submit", action.seq)
        what = SubmitSuccessor.__name__
        self._try(act, action, what, self.supervisor.timeline.now + LOOK_FOR_S)

    def ask_why(self) -> None:
        """Squeue and scontrol take their time."""
        self.supervisor.timeline.after(ANSWERS_AFTER_S, lambda: self.supervisor.when_awake(self._answer))

    def look(self) -> None:
        """The same."""
        asked_at = self.supervisor.clock.now()
        self.supervisor.timeline.after(
            ANSWERS_AFTER_S, lambda: self.supervisor.when_awake(lambda: self._tell_taken(asked_at))
        )

    def _tell_taken(self, asked_at: float) -> None:
        job = self.scheduler.job_of(self.supervisor.node.job)
        if job is not None and self.supervisor.timeline.now >= self.scheduler.moods.down_until:
            for node in job.taken:
                self.supervisor.post(Stamped(NodeAbsent(node, f"taken out of {job.id}", scheduler=True, taken=True)))
            self._looked_at = asked_at

    def looked_at(self) -> float:
        """``ports.Jobs.looked_at``."""
        return self._looked_at

    def _answer(self) -> None:
        job = self.scheduler.job_of(self.supervisor.node.job)
        if job is not None and self.supervisor.timeline.now >= self.scheduler.moods.down_until:
            self.supervisor.post(Stamped(Notice(job.why, KILL_WAIT_S - ANSWERS_AFTER_S)))

    def end(self, act: tuple[int, int], action: EndJob, lost: tuple[str, ...]) -> None:
        """The mark, where the run is cancelled; the job ends with its last node."""
        del lost
        if action.phase is Phase.CANCELLED:
            self.scheduler.world.mark_cancelled()
        self.scheduler.refills.end_all()
        self.supervisor.post(Stamped(ActDone(act, EndJob.__name__)))

    def runs_at(self) -> float:
        """As the controller says now."""
        return self.supervisor.clock.now() if self.scheduler.runs(self.stay) else -math.inf

    def left_s(self) -> float | None:
        """As the controller would say now."""
        job, limit_s = self.scheduler.job_of(self.supervisor.node.job), self.scheduler.world.setup.time_limit_s
        if job is None or not limit_s:
            return None
        return job.began_at + limit_s - self.supervisor.timeline.now

    def _try(self, act: tuple[int, int], action: SubmitSuccessor, what: str, until: float) -> None:
        scheduler, supervisor = self.scheduler, self.supervisor
        timeline = supervisor.timeline
        again = lambda: supervisor.when_awake(lambda: self._try(act, action, what, until))  # noqa: E731
        found = None
        if scheduler.looks_before_retry:
            try:
                found = scheduler.squeue(f"gr:{scheduler.world.run_id}:{action.seq}")
            except TimeoutError as error:
                if timeline.now >= until:
                    supervisor.post(Stamped(ActUnknown(act, what, str(error))))
                else:
                    timeline.after(LOOK_AGAIN_S, again)
                return
        if found is not None:
            supervisor.post(Stamped(ActDone(act, what)))
            return
        since = {node: timeline.now - ago_s for node, ago_s in action.if_booted}
        booted = [n.name for n in scheduler.world.nodes if n.booted_at > since.get(n.name, float("inf"))]
        job = scheduler.submit(action.seq, tuple(node for node in action.exclude if node not in booted))
        scheduler.world.checks.submitted(action.seq)
        if job is not None and scheduler.moods.times_out_count:
            scheduler.moods.times_out_count -= 1
            timeline.after(LOOK_AGAIN_S, again)
        elif job is None:
            supervisor.post(Stamped(ActFailed(act, what, "sbatch: error: refused")))
        else:
            supervisor.post(Stamped(ActDone(act, what, booted=tuple(booted))))
