"""Refills: one-node jobs that bring a node to this supervisor's job. Part of ``ports.Jobs``, in a thread of its own.

Each is known by its comment, which holds its number. Before it is asked for, and after a request that nobody answered,
it is looked for by that comment. Each is watched until it is over, and what becomes of it comes by mail. What cannot be
cancelled leaves by itself: its batch script reads in the journal that it is not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Protocol

from gangrun.adapters.slurm.jobs import LOOK_FOR_S, AskingThread, GaveUp, Wait
from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.submission import SbatchRefused, Unfit, Unknown
from gangrun.adapters.slurm.watch import why_terminated
from gangrun.core.actions import CancelRefill, SubmitRefill
from gangrun.core.events import NoticeKind, RefillEnded, RefillQueued, RefillUnknown, Stamped
from gangrun.ports import Clock
from gangrun.wire.submission import refill_name, refill_of

LOOK_EVERY_S = 3.0
PAUSE_S = 2.0
END_WITHIN_S = 8.0
MISSES_MAX_COUNT = 2  # looks in a row that do not show it
NOT_YET = "Slurm has not looked at it yet"

RefillOutcome = RefillQueued | RefillUnknown | RefillEnded


class SubmitOneNode(Protocol):
    """``BatchExecutor.submit_refill``."""

    def __call__(self, seq: int, number: int, exclude: Sequence[str], left_s: float | None) -> str:
        """The job id; ``SbatchRefused``: none was made; ``Unknown``: one may have been.

        ``left_s``: until the time limit of this supervisor's job; None: nothing ends it, or nobody knows when.
        """


@dataclass(slots=True)
class WatchedRefill:
    """A refill that is there, and what was told of it."""

    job: str
    waits: str | None = None  # what was told of why it waits; None: nothing was
    misses_count: int = 0


class SlurmRefills(AskingThread[SubmitRefill | CancelRefill]):
    """``turn`` is the work, ``start`` gives it its thread."""

    def __init__(
        self,
        scheduler: SlurmScheduler,
        submit: SubmitOneNode,
        *,
        run: str,
        job_name: str,
        post: Callable[[Stamped], None],
        cancelled: Callable[[], bool],
        clock: Clock,
        job_left_s: Callable[[], float | None],
        why_not: str = "",
        wait: Wait | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``why_not``: why none can be had, "" if one can. ``job_left_s``: ``JobWatch.left_s``."""
        super().__init__("slurm-refills", wait)
        self._scheduler, self._submit, self._run, self._name = scheduler, submit, run, refill_name(job_name)
        self._post, self._cancelled, self._clock, self._why_not, self._say = post, cancelled, clock, why_not, say
        self._job_left_s = job_left_s
        self._watched: dict[int, WatchedRefill] = {}
        self._ends = False  # all refills are being ended: another thread says so

    def submit(self, action: SubmitRefill | CancelRefill) -> None:
        """``ports.Jobs.submit`` of these two. The same number asked for again is looked up, never made twice."""
        self._queue.put(action)

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                action = self._queue.get(timeout=LOOK_EVERY_S)
            except Empty:
                action = None
            if self._over.is_set():
                return
            try:
                outcomes = self.turn(action)
            except GaveUp:
                return
            except Exception as error:  # noqa: BLE001 # the thread must outlive a surprise, and the core needs an answer
                words = f"{type(error).__name__}: {error}"  # no RefillUnknown: it would be asked for again at once
                outcomes = [RefillEnded(action.number, words)] if isinstance(action, SubmitRefill) else []
                self._say(f"refills: {words}")
            for outcome in outcomes:
                self._post(Stamped(outcome))

    # ---- the work ----

    def turn(self, action: SubmitRefill | CancelRefill | None) -> list[RefillOutcome]:
        """One act, or a look at all that are there; takes as long as it takes. ``GaveUp`` once ``close`` was called."""
        match action:
            case SubmitRefill(job="") if action.number not in self._watched:
                return [self._ask(action)]
            case SubmitRefill():  # known to be there: whether it still is a look tells, as soon as Slurm answers
                self._watched.setdefault(action.number, WatchedRefill(action.job))
                return self._look()
            case CancelRefill():
                self._cancel(action)
                return []
            case None:
                return self._look()

    def _ask(self, action: SubmitRefill) -> RefillOutcome:
        number = action.number
        if why_not := self._why_not or self._why_over():
            return RefillEnded(number, why_not, cancelled=True)
        try:
            found = self._find(number)
            if found is not None:
                return self._seen(number, found)
            if why_over := self._why_over():  # looking may have taken long
                return RefillEnded(number, why_over, cancelled=True)
            job = self._submit(action.seq, number, action.exclude, self._job_left_s())
        except (SbatchRefused, Unfit, SchedulerRefused) as error:
            return RefillEnded(number, f"Slurm refused it: {error}")
        except (Unknown, SchedulerSilent, OSError) as error:
            return self._look_again(number, str(error))
        self._say(f"job {job} is submitted as refill {number} of this run")
        return self._made(number, job)

    def _made(self, number: int, job: str) -> RefillOutcome:
        if why_over := self._why_over():  # since sbatch began: whoever ended all may have looked too early to see it
            try:
                self._scheduler.cancel((job,))
            except (SchedulerSilent, SchedulerRefused) as error:
                self._say(f"job {job} could not be cancelled, and leaves by itself: {error}")
            return RefillEnded(number, why_over, cancelled=True)
        self._watched[number] = WatchedRefill(job, NOT_YET)
        return RefillQueued(number, job, NOT_YET)

    def _why_over(self) -> str:
        if self._cancelled():
            return "the run is cancelled"
        return "its job ends" if self._ends else ""

    def _look_again(self, number: int, words: str) -> RefillOutcome:
        until = self._clock.now() + LOOK_FOR_S
        while True:
            try:
                found = self._find(number)
            except (SchedulerSilent, SchedulerRefused):
                found = None
            if found is not None:
                self._say(f"job {found.job} was made although sbatch did not say so ({words})")
                return self._made(number, found.job) if not found.ended else self._seen(number, found)
            if self._clock.now() >= until:
                return RefillUnknown(number, f"{words}; no such job in the queue {LOOK_FOR_S:.0f} s later")
            self._pause(PAUSE_S)

    def _all(self) -> list[tuple[int, JobFacts]]:
        """Every refill of this run that Slurm remembers."""
        marked = [(refill_of(job.comment), job) for job in self._scheduler.jobs_named(self._name)]
        return [(mark[1], job) for mark, job in marked if mark is not None and mark[0] == self._run]

    def _find(self, number: int) -> JobFacts | None:
        """Of several one that lives. Its claim settles the rest."""
        found = [job for mark, job in self._all() if mark == number]
        return min(found, key=lambda job: (job.ended, len(job.job), job.job), default=None)

    def _seen(self, number: int, facts: JobFacts) -> RefillOutcome:
        """How it stands."""
        if facts.ended or facts.state == "COMPLETING":
            self._watched.pop(number, None)
            return RefillEnded(number, f"job {facts.job} ended ({facts.state})", cancelled=self._was_cancelled(facts))
        waits = (facts.reason or NOT_YET) if facts.state == "PENDING" else ""
        self._watched[number] = WatchedRefill(facts.job, waits)
        return RefillQueued(number, facts.job, waits)

    def _was_cancelled(self, seen: JobFacts) -> bool:
        try:
            facts = self._scheduler.job(seen.job) or seen
        except SchedulerSilent:
            facts = seen
        return why_terminated(None, 0, facts) is NoticeKind.CANCEL

    def _look(self) -> list[RefillOutcome]:
        if not self._watched:
            return []
        try:
            found = self._all()
        except (SchedulerSilent, SchedulerRefused):
            return []
        told: list[RefillOutcome] = []
        for number, watched in list(self._watched.items()):
            facts = next((job for mark, job in found if mark == number and job.job == watched.job), None)
            if facts is None:
                watched.misses_count += 1
                if watched.misses_count >= MISSES_MAX_COUNT:
                    del self._watched[number]
                    told.append(RefillEnded(number, f"job {watched.job} is not in the queue any more"))
                continue
            outcome = self._seen(number, facts)
            if not isinstance(outcome, RefillQueued) or outcome.waits != watched.waits:
                told.append(outcome)
        return told

    def _cancel(self, action: CancelRefill) -> None:
        self._watched.pop(action.number, None)
        until = self._clock.now() + LOOK_FOR_S
        while True:
            try:
                jobs = [job.job for mark, job in self._all() if mark == action.number and not job.ended]
                self._scheduler.cancel(jobs)
            except (SchedulerSilent, SchedulerRefused) as error:
                words = str(error)
            else:
                self._say(f"refill {action.number} is cancelled ({', '.join(jobs) or 'no job of it'}): {action.reason}")
                return
            if self._clock.now() >= until:
                self._say(f"refill {action.number} could not be cancelled, and leaves by itself: {words}")
                return
            self._pause(PAUSE_S)

    def end_all(self) -> None:
        """No refill of this run is left in the queue, or with nodes: as far as Slurm answers soon. From any thread."""
        self._ends = True
        until = self._clock.now() + END_WITHIN_S
        while True:
            try:
                self._scheduler.cancel([job.job for _, job in self._all() if not job.ended])
            except (SchedulerSilent, SchedulerRefused) as error:
                words = str(error)
            else:
                return
            if self._clock.now() >= until or self._over.wait(PAUSE_S):
                self._say(f"refills could not be cancelled, and leave by themselves: {words}")
                return
