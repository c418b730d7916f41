"""The next job of the run, asked for exactly once. ``ports.Jobs`` in a thread of its own.

Looking, submitting and looking again take up to a minute, so the answer comes by mail. What nobody can know is said
as ``ActUnknown``: a request that timed out may have made a job, which the next look finds by its comment.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.submission import SbatchRefused, Unfit, Unknown
from gangrun.core.actions import Action, SubmitSuccessor
from gangrun.core.events import ActDone, ActFailed, ActUnknown, Stamped
from gangrun.core.nodeset import fold
from gangrun.ports import Clock
from gangrun.wire.submission import comment

LOOK_EVERY_S = 2.0
LOOK_FOR_S = 30.0  # what sbatch made although it timed out shows in the queue by then
EXCLUDE_FOR_S = 5.0  # after a requeue of its own this process has KillWait to live, at times 5 s
REPOINT_FOR_S = 5.0
ASK = SubmitSuccessor.__name__

Outcome = ActDone | ActFailed | ActUnknown
Wait = Callable[[float], bool]  # up to so many seconds; True: over, give up
Asked = TypeVar("Asked")


class Submit(Protocol):
    """``BatchExecutor.submit_job``."""

    def __call__(self, seq: int, exclude: Sequence[str], dependency: str) -> str:
        """The job id; ``SbatchRefused``: none was made; ``Unknown``: one may have been."""


class GaveUp(Exception):
    """This process is leaving: nobody waits for the answer."""


class AskingThread(Generic[Asked]):
    """Asks Slurm what is put into its queue, one after the other, in a thread of its own; None ends it, or a look."""

    def __init__(self, name: str, wait: Wait | None) -> None:
        """Nothing is asked before ``start``. ``wait``: instead of one that ``close`` ends."""
        self._over = threading.Event()
        self._wait: Wait = wait if wait is not None else self._over.wait
        self._queue: SimpleQueue[Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self, within_s: float = 1.0) -> None:
        """Give up what is under way, as soon as the tool that runs has ended."""
        self._over.set()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _work(self) -> None:
        raise NotImplementedError

    def _pause(self, for_s: float) -> None:
        if self._wait(for_s):
            raise GaveUp


class SlurmJobs(AskingThread[tuple[tuple[int, int], SubmitSuccessor]]):
    """Answers each act once, whoever asks how often. ``perform`` is the work, ``start`` gives it its thread."""

    def __init__(
        self,
        scheduler: SlurmScheduler,
        submit: Submit,
        *,
        run: str,
        job_name: str,
        job: str,
        restarts_count: int,
        post: Callable[[Stamped], None],
        cancelled: Callable[[], bool],
        all_heard: Callable[[], bool],
        clock: Clock,
        same_job: bool = False,
        user_exclude: Sequence[str] = (),
        wait: Wait | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``all_heard``: does every node of this job answer? ``same_job``: requeue this job instead of submitting one
        more; only then ``user_exclude`` matters.
        """
        super().__init__("slurm-jobs", wait)
        self._scheduler, self._submit = scheduler, submit
        self._run, self._job_name, self._job, self._restarts_count = run, job_name, job, restarts_count
        self._post, self._cancelled, self._all_heard, self._clock = post, cancelled, all_heard, clock
        self._requeues, self._user_exclude, self._say = same_job, tuple(user_exclude), say
        self._answers: dict[tuple[int, int], Outcome | None] = {}  # None: being worked on
        self._guard = threading.Lock()

    # ---- the port ----

    def submit(self, act: tuple[int, int], action: Action) -> None:
        """Answer with ``ActDone``, ``ActFailed`` or ``ActUnknown``; the same act asked again gets the same answer."""
        if not isinstance(action, SubmitSuccessor):
            self._post(Stamped(ActFailed(act, type(action).__name__, "this is nothing that Slurm could be asked")))
            return
        with self._guard:
            known = act in self._answers
            answer = self._answers.get(act)
            self._answers[act] = answer
        if answer is not None:
            self._post(Stamped(answer))
        elif not known:
            self._queue.put((act, action))

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            act, action = asked
            try:
                outcome = self.perform(act, action)
            except GaveUp:
                return
            except Exception as error:  # noqa: BLE001 # the thread must outlive a surprise, and the core needs an answer
                outcome = ActUnknown(act, ASK, f"{type(error).__name__}: {error}")
            with self._guard:
                self._answers[act] = outcome
            self._post(Stamped(outcome))

    # ---- the work ----

    def perform(self, act: tuple[int, int], action: SubmitSuccessor) -> Outcome:
        """Ask Slurm for job ``action.seq``; takes as long as it takes. ``GaveUp`` once ``close`` was called."""
        if self._cancelled():
            return ActFailed(act, ASK, "the run is cancelled")
        return (self._same_job if self._requeues else self._resubmit)(act, action)

    def _resubmit(self, act: tuple[int, int], action: SubmitSuccessor) -> Outcome:
        try:
            made = self._find(action.seq)
            if made is not None:
                self._say(f"job {made.job} is job {action.seq} of this run already ({made.state}): taken as it is")
                return self._done(act, made.job)
            if self._cancelled():  # looking may have taken long
                return ActFailed(act, ASK, "the run is cancelled")
            dependency = f"afterany:{self._job}" if self._all_heard() else ""
            booted = self._booted(action)
            job = self._submit(action.seq, [one for one in action.exclude if one not in booted], dependency)
        except (SbatchRefused, Unfit, SchedulerRefused) as error:
            return ActFailed(act, ASK, str(error))
        except Unknown as error:
            return self._look_again(act, action.seq, str(error))
        except (SchedulerSilent, OSError) as error:  # not looked, not asked; an earlier request may still be under way
            return ActUnknown(act, ASK, str(error))
        self._say(f"job {job} is submitted as job {action.seq} of this run")
        return replace(done, booted=booted) if isinstance(done := self._done(act, job), ActDone) else done

    def _look_again(self, act: tuple[int, int], seq: int, words: str) -> Outcome:
        until = self._clock.now() + LOOK_FOR_S
        while True:
            try:
                made = self._find(seq)
            except (SchedulerSilent, SchedulerRefused) as error:
                made, words = None, f"{words}; {error}" if str(error) not in words else words
            if made is not None:
                self._say(f"job {made.job} was made although sbatch did not say so ({words})")
                return self._done(act, made.job)
            if self._cancelled():
                return ActFailed(act, ASK, "the run is cancelled")
            if self._clock.now() >= until:
                return ActUnknown(act, ASK, f"{words}; no job {seq} of this run in the queue {LOOK_FOR_S:.0f} s later")
            self._pause(LOOK_EVERY_S)

    def _find(self, seq: int) -> JobFacts | None:
        """The job that is ``seq``; of several one that lives, and of those the oldest. Its claim settles the rest."""
        mark = comment(self._run, seq)
        found = [job for job in self._scheduler.jobs_named(self._job_name) if job.comment == mark]
        if len(found) > 1:
            self._say(f"jobs {', '.join(job.job for job in found)} all are job {seq} of this run; one will hold it")
        return min(found, key=lambda job: (job.ended, _number(job.job)), default=None)

    def _done(self, act: tuple[int, int], job: str) -> Outcome:
        if self._cancelled():  # the mark came while sbatch ran: its maker may have looked too early to see the job
            try:
                self._scheduler.cancel((job,))
            except (SchedulerSilent, SchedulerRefused) as error:
                self._say(f"job {job} of the cancelled run could not be cancelled: {error}")
            return ActFailed(act, ASK, "the run is cancelled")
        repoint(self._scheduler, self._job, job, self._clock, self._say)
        return ActDone(act, ASK)

    # ---- the same job again ----

    def _same_job(self, act: tuple[int, int], action: SubmitSuccessor) -> Outcome:
        """Requeue this job, then change what it excludes: a running job refuses that, one on its way back does not."""
        until = self._clock.now() + LOOK_FOR_S
        while True:
            try:
                if not self._is_requeued():  # by Slurm itself it may be, or by a request that nobody answered
                    self._scheduler.requeue(self._job)
                break
            except SchedulerRefused as error:
                return ActFailed(act, ASK, str(error))
            except SchedulerSilent as error:
                if self._clock.now() >= until:
                    return ActUnknown(act, ASK, str(error))
            self._pause(LOOK_EVERY_S)
        self._say(f"job {self._job} is requeued")
        booted = self._booted(action)
        self._exclude((*self._user_exclude, *(one for one in action.exclude if one not in booted)))
        return ActDone(act, ASK, same_job=True, booted=booted)

    def _booted(self, action: SubmitSuccessor) -> tuple[str, ...]:
        """Those that are left out until they have booted, and have."""
        now = self._scheduler.controller().wall if action.if_booted else None  # our own clock may be hours wrong
        return () if now is None else self._scheduler.booted_since({n: now - ago_s for n, ago_s in action.if_booted})

    def _is_requeued(self) -> bool:
        facts = self._scheduler.job(self._job)
        return facts is not None and facts.restarts_count > self._restarts_count

    def _exclude(self, nodes: Sequence[str]) -> None:
        """Best effort: the next start looks at the nodes that it was given, and sees one that should not be there."""
        until = self._clock.now() + EXCLUDE_FOR_S
        while True:
            try:
                self._scheduler.set_excluded(self._job, tuple(dict.fromkeys(nodes)))
                return
            except (SchedulerSilent, SchedulerRefused) as error:
                if self._clock.now() >= until:
                    self._say(f"job {self._job} could not be told to avoid {fold(nodes)}: {error}")
                    return
            self._pause(0.3)


def repoint(scheduler: SlurmScheduler, old: str, new: str, clock: Clock, say: Callable[[str], None]) -> None:
    """Jobs that wait for ``old`` to end well wait for ``new``; where that fails it is said, no more."""
    until = clock.now() + REPOINT_FOR_S
    try:
        for other in scheduler.dependents_of(old):
            if clock.now() >= until:
                say(f"no time left to let job {other.job} wait for job {new}")
                continue
            scheduler.set_dependency(other.job, repointed(other.dependency, old, new))
            say(f"job {other.job} waited for job {old}; now it waits for job {new}")
    except (SchedulerSilent, SchedulerRefused) as error:
        say(f"jobs that wait for job {old} could not be made to wait for job {new}: {error}")


def repointed(dependency: str, old: str, new: str) -> str:
    """A dependency as Slurm shows it, as it takes it, with ``afterok`` on ``new`` instead of ``old``."""
    plain = re.sub(r"\([^)]*\)", "", dependency)
    pieces = re.split(r"([,?])", plain)
    return "".join(_term(piece, old, new) for piece in pieces)


def _term(piece: str, old: str, new: str) -> str:
    kind, *ids = piece.split(":")
    return ":".join((kind, *(new if kind == "afterok" and job == old else job for job in ids)))


def _number(job: str) -> int:
    found = re.match(r"[0-9]+", job)
    return int(found.group()) if found else 0


def end_allocation(scheduler: SlurmScheduler, job: str, *, clock: Clock, wait: Wait, within_s: float = 30.0) -> str:
    """Give the nodes back where no batch script is left to do it by ending. "" once Slurm shows it, else why not.

    As far as Slurm is concerned the job was cancelled: the record that a supervisor of ours ended it comes before.
    """
    until = clock.now() + within_s
    words = f"Slurm took the scancel of job {job}, but still shows it after {within_s:.0f} s"
    while True:
        try:
            facts = scheduler.job(job)
            if facts is None or facts.ended or facts.state == "COMPLETING":
                return ""
            scheduler.cancel((job,))
        except (SchedulerSilent, SchedulerRefused) as error:
            words = f"job {job} could not be ended: {error}"
        if clock.now() >= until or wait(1.0):
            return words
