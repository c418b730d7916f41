"""One drill on a run, and all drills of a plan on a run that lives already.

A drill waits until the run trains, strikes, and follows the journal until the run has recovered or the SLA's time is
up. Then the strike is undone, whatever happened, and what is left behind is counted: processes of attempts that are
over, and jobs that nobody owns. If this process is killed, a child of it undoes the strike.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_ranks
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import TERMINAL, Phase, RunState
from gangrun.errors import UNKNOWN, UserError
from gangrun.launch.chaos.kinds import PASSES, PASSES_AFTER_S
from gangrun.launch.chaos.page import strike_line
from gangrun.launch.chaos.plan import Drill, DrillPlan, noticed_limit_s
from gangrun.launch.chaos.score import (
    DrillConclusion,
    DrillScore,
    LeftBehind,
    Rehearsal,
    SlaPoint,
    Struck,
    concluded,
    is_over,
    not_done,
    scored,
)
from gangrun.launch.chaos.strike import DrillStrike, OwnWorld, belongs
from gangrun.node import processes
from gangrun.runs.failures import rank_statuses
from gangrun.runs.follow import JournalReplay
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.status import status_of
from gangrun.runs.times import pause, steady_now, wall_now
from gangrun.wire.record import Record

LOOK_EVERY_S = 0.2
TRAINS_WITHIN_S = 180.0
QUIET_FOR_S = 2.0  # after it has recovered: what a strike brings late is seen too
GONE_WITHIN_S = 10.0


@dataclass(slots=True)
class Stage:
    """One run that is struck, as its directory tells it."""

    paths: RunPaths
    own: OwnWorld | None = None
    journal: JournalReplay = field(init=False)
    records: list[Record] = field(default_factory=list)
    left_count: int = 0  # processes that were still there when a run of one's own had ended

    def __post_init__(self) -> None:
        """Its eyes are its own."""
        self.journal = JournalReplay(self.paths, Disk())

    def look(self) -> RunState | None:
        """Read what is new."""
        self.records += self.journal.poll()
        return self.journal.state()

    def step(self) -> int:
        """The newest step that anything tells; -1: none."""
        step = status_of(read(self.paths), wall_now()).step
        return -1 if step is None else step

    def wait_until_it_trains(self, drill: Drill) -> None:
        """Until the drill is due and all ranks run; ``UserError`` if the run ends, or never trains."""
        give_up_at, due_at, trained = steady_now() + TRAINS_WITHIN_S, None, -1
        while True:
            state = self.look()
            self._refuse_ended(state)
            if state is not None and state.phase is Phase.RUNNING:
                trained = max(trained, self.step())
                tells_steps = self.own is not None and self.own.sample
                known = (trained >= 0 or not tells_steps) and self._has_noted_ranks(state.attempt.number)
                due_at = steady_now() + drill.after_s if due_at is None and known else due_at
                if known and (steady_now() >= (due_at or 0.0) if drill.at_step < 0 else trained >= drill.at_step):
                    return
            else:
                due_at = None
            if steady_now() >= give_up_at and not (drill.at_step > trained >= 0):
                reason = "" if state is None else f": {state.reason}"
                raise UserError("not yet", f"{self.paths.run} does not train{reason}", "", UNKNOWN)
            pause(LOOK_EVERY_S)

    def _has_noted_ranks(self, attempt: int) -> bool:
        """Has the supervisor written down which process each rank of this attempt is? It does so every few seconds."""
        noted = read_ranks(Disk(), self.paths)
        return noted is not None and noted.attempt == attempt

    def _refuse_ended(self, state: RunState | None) -> None:
        truth = run_state(read(self.paths), wall_now())
        if truth.over or (state is not None and state.phase in TERMINAL):
            why = f"has ended: {truth.state}, {truth.reason}" if truth.ended else "is run by no process any more"
            raise UserError("ended", f"{self.paths.run} {why}", "a drill needs a run that trains")

    def let_pass(self, for_s: float) -> None:
        """Follow the run for so long, whatever it does."""
        until = steady_now() + for_s
        while steady_now() < until:
            self.look()
            pause(LOOK_EVERY_S)

    def follow(self, drill: Drill, struck: Struck) -> DrillConclusion:
        """What the run makes of it, until it has recovered or the SLA's time is up."""
        limit_s = noticed_limit_s(drill.sla, drill.kind) + drill.sla.recovery_s
        give_up_at, quiet_until = steady_now() + limit_s, None
        while True:
            state = self.look()
            found = DrillConclusion() if state is None else concluded(self.records, state, struck)
            now = steady_now()
            if not is_over(drill, found):
                quiet_until = None
            elif quiet_until is None:
                quiet_until = now + QUIET_FOR_S
            over = state is not None and state.phase in TERMINAL
            if now >= (give_up_at if quiet_until is None else quiet_until) or (over and quiet_until is None):
                return found
            pause(LOOK_EVERY_S)

    def rank_processes(self, reading: RunSnapshot) -> tuple[processes.Proc, ...]:
        """The ranks' processes that are on this machine."""
        if reading.spec.is_scheduled:
            return ()
        found = (processes.read_proc(one.pid) for one in rank_statuses(reading) if one.pid is not None)
        return tuple(proc for proc in found if proc is not None)

    def orphans_count(self, before: tuple[processes.Proc, ...], attempt: int) -> int | None:
        """Ranks of the struck attempt that outlived it, and processes that are below no owner of the run; None if
        they would be on other machines.
        """
        reading, state = read(self.paths), self.look()
        if reading.spec.is_scheduled or reading.owner is None:
            return None
        over = state is not None and state.attempt.number > attempt
        lasting = sum(not processes.has_ended(proc.pid, proc.start_ticks) for proc in before) if over else 0
        below = {proc.pid for proc in processes.descendants([reading.owner.pid], processes.process_table())}
        return lasting + len(set(run_processes(reading.spec.run)) - below - {reading.owner.pid})


def run_processes(run: str) -> Iterator[int]:
    """Each process on this machine that was started for this run: its environment or its command names the run."""
    for proc in processes.process_table().values():
        if proc.pid != os.getpid() and belongs(proc.pid, run) and processes.is_alive(proc):
            yield proc.pid


def one_drill(number: int, stage: Stage, drill: Drill, say: Callable[[str], None]) -> DrillScore:
    """Strike, follow, undo, score."""
    stage.wait_until_it_trains(drill)
    strike = DrillStrike(drill, read(stage.paths, timeline=True), stage.own)
    before = stage.rank_processes(strike.reading)
    with strike.undo:  # of what was done before something failed, too
        struck = strike.strike()
        with guarded(strike.undo):
            say(strike_line(number, drill, struck))
            if drill.kind in PASSES:
                stage.let_pass(PASSES_AFTER_S)
        if drill.kind in PASSES:  # after the guard's end: it holds what keeps a silent file system mounted
            strike.undo.close()
        with guarded(strike.undo):
            found = stage.follow(drill, struck)
    left = LeftBehind(settled(lambda: stage.orphans_count(before, struck.attempt)))
    return scored(number, stage.paths.run, drill, struck, found, left)


@contextlib.contextmanager
def guarded(undo: ExitStack) -> Iterator[None]:
    """If this process is killed inside, a child of it undoes what it would have undone."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(write_fd)
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not os.read(read_fd, 1):  # nobody is left who could write
                undo.close()
        finally:
            os._exit(0)  # a forked child must never go on as its parent
    os.close(read_fd)
    try:
        yield
    finally:
        os.write(write_fd, b".")
        os.close(write_fd)
        os.waitpid(child, 0)


def settled(count: Callable[[], int | None]) -> int | None:
    """The count, once it is 0 or did not become that: what was told to end needs a moment."""
    give_up_at = steady_now() + GONE_WITHIN_S
    while (found := count()) and steady_now() < give_up_at:
        pause(LOOK_EVERY_S)
    return found


# ---- a run that lives already ----------------------------------------------------------------------------------------


def rehearse_run(plan: DrillPlan, paths: RunPaths, say: Callable[[str], None]) -> Rehearsal:
    """All drills on a run of this user's, one after the other; ``UserError`` if it cannot be drilled."""
    _refuse_others(read(paths, scheduler=True), paths)
    stage = Stage(paths)
    scores: list[DrillScore] = []
    for number, drill in enumerate(plan.drills, 1):
        try:
            one = one_drill(number, stage, drill, say)
        except UserError as error:
            if not scores:
                raise
            say(f"drill {number}, {drill.kind.value}: {error.message}")
            scores.append(not_done(number, paths.run, drill, error.message))
            continue
        scores.append(_with_jobs(one, paths, drill))
    return Rehearsal(seed=plan.seed, holds=all(one.holds for one in scores), drills=tuple(scores))


def _refuse_others(reading: RunSnapshot, paths: RunPaths) -> None:
    """Whose run is it, does it live, and can it take a failure?"""
    run, owner_uid = reading.spec.run, os.stat(paths.machine).st_uid
    if owner_uid != os.getuid():
        words = f"{run} belongs to {reading.spec.created_by}; only the owner of a run may drill it"
        raise UserError("refused", words, "gangrun chaos --local strikes a run of your own")
    truth = run_state(reading, wall_now())
    if truth.over:
        why = f"has ended: {truth.state}" if truth.ended else "is run by no process any more"
        raise UserError("ended", f"{run} {why}", "a drill needs a run that trains; gangrun chaos --local starts one")
    if not reading.spec.is_scheduled and reading.owner_alive is None:
        host = "another machine" if reading.owner is None else reading.owner.host
        raise UserError("refused", f"{run} is on {host}", f"run gangrun chaos on {host}")
    policy = reading.spec.policy
    if policy.observe or policy.restarts_max_count == 0:
        why = "only observes (--observe)" if policy.observe else "allows no restart (--max-restarts 0)"
        raise UserError("refused", f"{run} {why}, so a drill would end it", "drill a run that may restart")
    gone_at = None if reading.state is None else reading.state.ending.gone_at
    if gone_at is not None:
        raise UserError(
            "refused", f"{run} is about to lose its nodes, so it has no time to spare", "wait for its next job"
        )


def _with_jobs(score: DrillScore, paths: RunPaths, drill: Drill) -> DrillScore:
    """With the jobs of a scheduled run that hold nodes beside the one that holds the run."""
    count = settled(lambda: _leaked_count(read(paths, scheduler=True)))
    return score if count is None else with_leaks(score, count, drill)


def _leaked_count(reading: RunSnapshot) -> int | None:
    if not reading.spec.is_scheduled or reading.queue is None or reading.queue.silent:
        return None
    if run_state(reading, wall_now()).ended:
        return len(reading.queue.active)
    refills_count = 0 if reading.state is None else len(reading.state.roster.refills)
    return max(0, len(reading.queue.active) - 1 - refills_count)


def with_leaks(score: DrillScore, count: int, drill: Drill) -> DrillScore:
    """The score with the allocations that were counted."""
    new = with_count(score, "leaked allocations", count, drill.sla.leaked_allocations_count)
    return msgspec.structs.replace(new, leaked_allocations=count)


def with_count(score: DrillScore, name: str, count: int, most: int) -> DrillScore:
    """The score with one point judged anew."""
    points = tuple(
        SlaPoint(name=one.name, limit=one.limit, measured=str(count), holds=count <= most) if one.name == name else one
        for one in score.points
    )
    return msgspec.structs.replace(score, points=points, holds=all(one.holds is not False for one in points))
