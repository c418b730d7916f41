"""This job's own end, seen coming: the time limit, maintenance, a preemption, and why SIGTERM came.

A thread that asks Slurm every ten seconds, and at once when an agent was signalled. What it finds it posts as
``core.events.Notice``: each kind once, and an answer whenever it was asked. A node that Slurm takes out of the job (it
counts the node as DOWN, whether it is or not) is posted once, as ``NodeAbsent``. When the job ends is by the
controller's clock, which is asked too, and from one answer to the next BOOTTIME counts. The wall clock of this node
stands in only where Slurm answers, but does not show the controller's.

Maintenance is a reservation (flag MAINT) of nodes of this job that begins while the job runs. Slurm kills nobody then,
but an administrator will: it counts as a time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from gangrun.adapters.slurm.scheduler import Controller, JobFacts, Maintenance, SchedulerSilent, SlurmScheduler
from gangrun.core.events import NodeAbsent, Notice, NoticeKind, Stamped
from gangrun.core.nodeset import fold
from gangrun.ports import Clock

FIRST_LOOK_S = 1.0
LOOK_EVERY_S = 10.0
CONTROLLER_EVERY_S = 60.0
MAINTENANCE_EVERY_S = 30.0
CONTROLLER_TRIES_COUNT = 3  # then this node's own wall clock has to do
TRIES_COUNT = 4  # of a definite answer that tells nothing: a signal can be there before the state
TRY_EVERY_S = 0.3
ANSWER_WITHIN_S = 3.0
NEVER = float("inf")
UNLIMITED_S = 365 * 24 * 3600.0


class Bell(Protocol):
    """What of ``threading.Event`` is used here."""

    def set(self) -> None:
        """Wake whoever waits."""

    def clear(self) -> None:
        """Forget that it rang."""

    def is_set(self) -> bool:
        """Has it rung?"""

    def wait(self, timeout: float | None = None) -> bool:
        """Until it rings; False after ``timeout`` seconds."""


class JobWatch(threading.Thread):
    """``turn`` waits for what is due and does it; the thread turns until ``close``."""

    def __init__(
        self,
        scheduler: SlurmScheduler,
        *,
        run: str,
        job: str,
        restarts_count: int,
        launch: int = 0,
        lead_s: Callable[[float], float],
        post: Callable[[Stamped], None],
        clock: Clock,
        say: Callable[[str], None] = lambda sentence: None,
        bells: Callable[[], Bell] = threading.Event,
        nodes: tuple[str, ...] = (),
        save_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``lead_s``: so long before the time limit the ranks must begin to save (at most half of the job's time), by
        what saves take. ``save_s``: what the newest one took; 0: not known.
        ``nodes``: those that the job began with; of each that Slurm takes out of it is told.
        """
        super().__init__(name="slurm-watch", daemon=True)
        self.facts: JobFacts | None = None  # as last seen; replaced, never changed
        self.runs_at = -NEVER  # when Slurm was last asked and said that this stay of the job runs
        self.looked_at = -NEVER  # when Slurm was last asked and answered, and what it said of nodes has been posted
        self._scheduler, self._run, self._job, self._lead_of = scheduler, run, job, lead_s
        self._measured, self._save_s = save_s, 0.0  # the longest save that was seen
        self._restarts_count, self._launch = restarts_count, launch
        self._post, self._clock, self._say = post, clock, say
        self._wake, self._over = bells(), bells()
        self._asked_at: float | None = None
        self._guard = threading.Lock()
        self._told: set[NoticeKind] = set()
        self._end_wall: float | None = None  # as Slurm shows it
        self._maintenance: Maintenance | None = None  # the next one on nodes of this job
        self._maintenance_at = clock.now() + FIRST_LOOK_S  # when it is asked for again
        self._controller = Controller()
        self._wall_at_zero: float | None = None  # what the controller's clock showed when ours was 0
        self._no_clock_count = 0  # looks at which Slurm answered, and did not show the controller's clock
        self._look_at = self._controller_at = clock.now() + FIRST_LOOK_S
        self._silent = ""
        self._nodes = nodes

    # ---- from other threads ----

    def look(self) -> None:
        """Ask Slurm at once how the job stands."""
        self._look_at = self._clock.now()
        self._wake.set()

    def left_s(self) -> float | None:
        """Until the time limit or maintenance, by the looks so far; None: nothing ends it, or nobody knows when."""
        return self._left_s(self._end()[1])

    def ask_why(self) -> None:
        """SIGTERM has reached an agent: find out why, and post it. Asked again before the answer, it is one answer."""
        with self._guard:
            if self._asked_at is None:
                self._asked_at = self._clock.now()
        self._wake.set()

    def close(self) -> None:
        """Post nothing from now on: this job's end is decided, and Slurm would show it as a cancel."""
        self._over.set()
        self._wake.set()

    # ---- the thread ----

    def run(self) -> None:
        """Turn until ``close``."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Wait until something is due or asked, and see to it; False once over."""
        self._wake.wait(max(0.0, self._due() - self._clock.now()))
        self._wake.clear()
        if self._over.is_set():
            return False
        with self._guard:
            asked_at, self._asked_at = self._asked_at, None
        if asked_at is not None:
            self._tell_why(asked_at)
        elif self._clock.now() >= self._look_at:
            self._look()
        self._judge_end()
        return not self._over.is_set()

    def _due(self) -> float:
        kind, end_wall = self._end()
        left_s = self._left_s(end_wall)
        if left_s is None or kind in self._told:
            return self._look_at
        return min(self._look_at, self._clock.now() + left_s - self._lead())

    def _look(self) -> None:
        asked_at = self._clock.now()
        self._look_at = asked_at + LOOK_EVERY_S
        facts, answered = self._seen()
        if facts is not None and facts.runs and facts.nodes and facts.restarts_count == self._restarts_count:
            self._tell_taken(facts.nodes)
        if answered:
            self.looked_at = asked_at
        self._save_s = max(self._save_s, self._measured())
        if facts is not None and facts.runs and self._clock.now() >= self._maintenance_at:
            self._look_for_maintenance(facts)
        if answered and self._clock.now() >= self._controller_at:
            self._set_clock()
            if self._wall_at_zero is None:
                self._do_without_clock()
            else:
                self._controller_at = self._clock.now() + CONTROLLER_EVERY_S
        if facts is not None and facts.runs and facts.preempted:
            self._tell(NoticeKind.PREEMPTION, self._grace_s(facts))

    def _look_for_maintenance(self, facts: JobFacts) -> None:
        """What had begun before this job did was known to Slurm when it started the job here."""
        self._maintenance_at = self._clock.now() + MAINTENANCE_EVERY_S
        known, since = self._scheduler.maintenance(), facts.start_wall or 0.0
        if known is not None:
            ours = [one for one in known if one.start_wall > since and not set(one.nodes).isdisjoint(facts.nodes)]
            self._maintenance = min(ours, key=lambda one: one.start_wall, default=None)

    def _end(self) -> tuple[NoticeKind, float | None]:
        """What ends this job's time here first, and when by the controller's clock; None: nothing is known to."""
        if self._maintenance is not None and self._maintenance.start_wall < (self._end_wall or NEVER):
            return NoticeKind.MAINTENANCE, self._maintenance.start_wall
        return NoticeKind.TIME_LIMIT, self._end_wall

    def _tell_taken(self, left: tuple[str, ...]) -> None:
        if self._over.is_set():
            return
        for node in [node for node in self._nodes if node not in left]:
            why = f"Slurm took {node} out of job {self._job}"
            self._post(Stamped(NodeAbsent(node, why, scheduler=True, taken=True)))
        self._nodes = tuple(node for node in self._nodes if node in left)

    def _do_without_clock(self) -> None:
        self._no_clock_count += 1
        if self._no_clock_count == CONTROLLER_TRIES_COUNT:
            self._wall_at_zero = self._clock.wall() - self._clock.now()
            self._say("scontrol show config does not tell Slurm's time: the time limit is judged by this node's clock")

    def _set_clock(self) -> None:
        """Also where the controller's was set meanwhile: it ends the job by it."""
        asked_at, found = self._clock.now(), self._scheduler.controller()
        if found.wall is not None:
            self._controller, self._wall_at_zero = found, found.wall - asked_at

    def _seen(self) -> tuple[JobFacts | None, bool]:
        """The job as Slurm shows it now, and whether Slurm answered."""
        asked_at = self._clock.now()
        try:
            facts = self._scheduler.job(self._job, within_s=ANSWER_WITHIN_S)
        except SchedulerSilent as error:
            if self._silent != str(error):
                self._silent = str(error)
                self._say(f"Slurm does not say how job {self._job} stands: {error}")
            return None, False
        self._silent = ""
        if facts is not None:
            self.facts = facts
            if facts.stay_runs(self._run, self._restarts_count, self._launch):
                self.runs_at = asked_at
            if facts.runs and not facts.preempted:
                self._end_wall = facts.end_wall
        return facts, True

    def _lead(self) -> float:
        """Not more than half of the time that the job was given, or a short one would never train."""
        start_wall, (_, end_wall) = self.facts.start_wall if self.facts is not None else None, self._end()
        if start_wall is None or end_wall is None:
            return self._lead_of(self._save_s)
        return min(self._lead_of(self._save_s), (end_wall - start_wall) / 2)

    def _judge_end(self) -> None:
        kind, end_wall = self._end()
        left_s = self._left_s(end_wall)
        if left_s is None or left_s > self._lead():
            return
        if kind is NoticeKind.MAINTENANCE and self._maintenance is not None:
            about = f"reservation {self._maintenance.name} on {fold(self._maintenance.nodes)}"
            self._tell(kind, max(self._lead(), left_s), about)  # a save may end a little after it has begun
        else:
            self._tell(kind, max(0.0, left_s))

    def _left_s(self, wall: float | None) -> float | None:
        """Until then by the controller's clock; None where either is not known."""
        if wall is None or self._wall_at_zero is None:
            return None
        return wall - self._wall_at_zero - self._clock.now()

    def _grace_s(self, preempted: JobFacts) -> float:
        """Of a job without a time limit Slurm does not always show the end that a preemption sets."""
        end_wall = preempted.end_wall
        if end_wall is None and preempted.preempt_wall is not None:
            grace_s = self._scheduler.grace_time_s(preempted.partition)
            end_wall = None if grace_s is None else preempted.preempt_wall + grace_s
        left_s = self._left_s(end_wall)
        return self._controller.kill_wait_s if left_s is None else max(0.0, left_s)

    def _until_limit_s(self) -> float:
        left_s = self._left_s(self._end_wall)
        return UNLIMITED_S if left_s is None else max(0.0, left_s)

    # ---- why ----

    def _tell_why(self, asked_at: float) -> None:
        """Look until it shows. A Slurm that is silent is asked for a third of the grace, one that knows nothing four
        times: then a signal is a signal, and means stop.
        """
        if self._wall_at_zero is None:
            self._set_clock()
        kill_wait_s = self._controller.kill_wait_s
        kind, facts, blank_count = NoticeKind.UNKNOWN, None, 0
        while True:
            facts, answered = self._seen()
            kind = why_terminated(self._left_s(self._end_wall), self._restarts_count, facts)
            blank_count += answered
            spent = blank_count >= TRIES_COUNT or self._clock.now() - asked_at >= kill_wait_s / 3
            if kind is not NoticeKind.UNKNOWN or spent or self._over.wait(TRY_EVERY_S):
                break
        grace_s = max(0.0, kill_wait_s - (self._clock.now() - asked_at))
        if facts is not None and facts.runs:  # nobody kills it yet
            grace_s = self._grace_s(facts) if facts.preempted else max(grace_s, self._until_limit_s())
        self._told.discard(kind)  # who asks waits for an answer, be it the same
        self._tell(kind, grace_s)

    def _tell(self, kind: NoticeKind, grace_s: float, about: str = "") -> None:
        if kind not in self._told and not self._over.is_set():
            self._told.add(kind)
            self._post(Stamped(Notice(kind, grace_s, save_s=self._save_s, about=about)))


LIMIT_SLACK_S = 1.0  # Slurm tells whole seconds
NODES_FAILED = frozenset({"NODE_FAIL", "BOOT_FAIL"})
OUR_COMMENT = "gr:"


def why_terminated(known_left_s: float | None, known_restarts: int, facts: JobFacts | None) -> NoticeKind:
    """The kind of notice; ``UNKNOWN`` means stop, and for a job that runs on also that it may be too early to tell.

    ``known_left_s``: until the planned end as last seen while the job ran: on its way out Slurm shows the real one.
    """
    if facts is None:
        return NoticeKind.UNKNOWN
    if facts.restarts_count > known_restarts:
        return NoticeKind.REQUEUE  # by an admin, or by a preemption without grace: the same job will start again
    if facts.preempted or facts.state == "PREEMPTED":
        return NoticeKind.PREEMPTION
    if facts.reason == "TimeLimit" or facts.state in {"TIMEOUT", "DEADLINE"}:
        return NoticeKind.TIME_LIMIT
    if not _by_itself(facts) and known_left_s is not None and known_left_s <= LIMIT_SLACK_S:
        return NoticeKind.TIME_LIMIT
    if facts.state in NODES_FAILED or (_by_itself(facts) and not facts.runs and (facts.exit_signal or _is_ours(facts))):
        return NoticeKind.BATCH_DIED  # killed, not by Slurm; or ours, which ends only once all is decided
    if facts.state == "CANCELLED" or (facts.state == "COMPLETING" and not _by_itself(facts)):
        return NoticeKind.CANCEL
    return NoticeKind.UNKNOWN  # it runs: a signal without an end (``scancel -s TERM``). Or its batch script broke


def _is_ours(facts: JobFacts) -> bool:
    """Submitted by gangrun? What a user's own script does as it ends is what he wants."""
    return facts.comment.startswith(OUR_COMMENT)


def _by_itself(facts: JobFacts) -> bool:
    """Did the batch script end it? Then Slurm gives a reason (NonZeroExitCode, JobLaunchFailure, RaisedSignal)."""
    return facts.exit_code > 0 or (not facts.runs and facts.reason != "")
