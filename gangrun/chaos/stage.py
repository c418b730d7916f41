"""Where drills happen: a run that lives already, or a small run of one's own for each drill; and one drill on it.

A drill waits until the run trains, strikes, and follows the journal until the run has recovered or the SLA's time is
up. Then the strike is undone, whatever happened, and what is left behind is counted: processes of attempts that are
over, and jobs that nobody owns. A run of ``--local`` is ended after its drill, and nothing of it may stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_ranks
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.played_world import NotPossibleHere, PlayedDriver, also_at, mount_memory, own_mounts, unmount
from gangrun.chaos.kinds import DISK_FAULT_S, PASSES, DrillKind
from gangrun.chaos.plan import Drill, DrillPlan, noticed_limit_s
from gangrun.chaos.score import (
    DrillConclusion,
    DrillScore,
    LeftBehind,
    Rehearsal,
    Struck,
    concluded,
    is_over,
    scored,
)
from gangrun.chaos.strike import OwnWorld, Strike, belongs
from gangrun.config import environment
from gangrun.config.request import Request, resolved
from gangrun.core.model import TERMINAL, Phase, RunState
from gangrun.errors import UNKNOWN, UserError
from gangrun.launch.create import unmade
from gangrun.launch.local import begin
from gangrun.launch.stop import cancel
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
ENDS_WITHIN_S = 60.0
GONE_WITHIN_S = 10.0
DRIVEN = frozenset({DrillKind.XID, DrillKind.ECC})
MOUNT_BYTES = 48 * 1024 * 1024
SAMPLE_SHAPE = (
    "With --local each drill strikes a run of its own: three pretended hosts of one rank each, of which two are enough."
    " For xid and ecc it is one host with four played GPUs, two or three ranks and one spare GPU."
)
SAMPLE = Path(__file__).resolve().parent / "sample.py"
_HOSTS = {"nodes": "3", "min_nodes": "2", "nproc_per_node": "1", "local_hosts": True, "no_health": True}
_GPUS = {"nproc_per_node": "2:3", "spare_gpus": "1"}
_BOTH = {
    "max_restarts": "50", "hang_timeout": "8", "fence_after": "15", "trend_window": "20", "on_anomaly": "rollback",
    "name": "drill",
}  # fmt: skip


@dataclass(slots=True)
class Stage:
    """One run that is struck, as its directory tells it."""

    paths: RunPaths
    own: OwnWorld | None = None
    journal: JournalReplay = field(init=False)
    records: list[Record] = field(default_factory=list)

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
                known = (trained >= 0 or self.own is None) and self._has_noted_ranks(state.attempt.number)
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
        return lasting + len(set(_run_processes(reading.spec.run)) - below - {reading.owner.pid})


def _run_processes(run: str) -> Iterator[int]:
    """Each process on this machine that was started for this run: its environment or its command names the run."""
    for proc in processes.process_table().values():
        if belongs(proc.pid, run) and processes.is_alive(proc):
            yield proc.pid


def one_drill(number: int, stage: Stage, drill: Drill, say: Callable[[str], None]) -> DrillScore:
    """Strike, follow, undo, score."""
    stage.wait_until_it_trains(drill)
    strike = Strike(drill, read(stage.paths, timeline=True), stage.own)
    before = stage.rank_processes(strike.reading)
    with strike.undo:
        struck = strike.strike()
        say(f"drill {number}, {drill.kind.value}: {struck.words}")
        if drill.kind in PASSES:
            stage.let_pass(DISK_FAULT_S)
            strike.undo.close()
        found = stage.follow(drill, struck)
    left = LeftBehind(_settled(lambda: stage.orphans_count(before, struck.attempt)))
    return scored(number, stage.paths.run, drill, struck, found, left)


def _settled(count: Callable[[], int | None]) -> int | None:
    """The count, once it is 0 or did not become that: what was told to end needs a moment."""
    give_up_at = steady_now() + GONE_WITHIN_S
    while (found := count()) and steady_now() < give_up_at:
        pause(LOOK_EVERY_S)
    return found


# ---- a run that lives already ----------------------------------------------------------------------------------------


def rehearse_run(plan: DrillPlan, paths: RunPaths, say: Callable[[str], None]) -> Rehearsal:
    """All drills on a run of this user's, one after the other; ``UserError`` if it cannot be drilled."""
    _refuse_others(read(paths, scheduler=True), paths)
    stage, scores = Stage(paths), []
    for number, drill in enumerate(plan.drills, 1):
        one = one_drill(number, stage, drill, say)
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
        raise UserError("refused", f"{run} is about to lose its nodes, so it has no time to spare", "wait for its next job")


def _with_jobs(score: DrillScore, paths: RunPaths, drill: Drill) -> DrillScore:
    """With the jobs of a scheduled run that hold nodes beside the one that holds the run."""
    reading = read(paths, scheduler=True)
    if not reading.spec.is_scheduled or reading.queue is None or reading.queue.silent:
        return score
    ended = run_state(reading, wall_now()).ended
    leaked = max(0, len(reading.queue.active) - (0 if ended else 1 + _refills_count(reading)))
    return _with_leaks(score, leaked, drill)


def _refills_count(reading: RunSnapshot) -> int:
    return 0 if reading.state is None else len(reading.state.roster.refills)


def _with_leaks(score: DrillScore, count: int, drill: Drill) -> DrillScore:
    most = drill.sla.leaked_allocations_count
    points = tuple(
        type(one)(name=one.name, limit=one.limit, measured=str(count), holds=count <= most)
        if one.name == "leaked allocations" else one
        for one in score.points
    )  # fmt: skip
    return _changed(score, points=points, leaked_allocations=count)


def _changed(score: DrillScore, **changes: object) -> DrillScore:
    new: DrillScore = msgspec.structs.replace(score, **changes)
    return msgspec.structs.replace(new, holds=all(one.holds is not False for one in new.points))


# ---- runs of one's own -----------------------------------------------------------------------------------------------


def rehearse_local(plan: DrillPlan, command: tuple[str, ...], say: Callable[[str], None]) -> Rehearsal:
    """Each drill on a small run of its own, on this machine. Nothing of it stays."""
    if plan.kinds & PASSES:
        try:
            own_mounts()
        except NotPossibleHere as error:
            kinds = ", ".join(sorted(kind.value for kind in plan.kinds & PASSES))
            raise UserError("refused", f"{kinds} cannot be done here: {error.strerror}", "leave them out") from error
    scores = []
    for number, drill in enumerate(plan.drills, 1):
        with own_run(drill, command) as stage:
            one = one_drill(number, stage, drill, say)
        left = _settled(lambda: len(list(_run_processes(stage.paths.run))))  # noqa: B023
        score = _with_leaks(one, 0, drill)  # without a scheduler there is nothing to leak
        scores.append(_with_orphans(score, (score.orphans or 0) + (left or 0), drill))
    return Rehearsal(seed=plan.seed, holds=all(one.holds for one in scores), drills=tuple(scores))


def _with_orphans(score: DrillScore, count: int, drill: Drill) -> DrillScore:
    points = tuple(
        type(one)(name=one.name, limit=one.limit, measured=str(count), holds=count <= drill.sla.orphans_count)
        if one.name == "orphans" else one
        for one in score.points
    )  # fmt: skip
    return _changed(score, points=points, orphans=count)


@contextlib.contextmanager
def own_run(drill: Drill, command: tuple[str, ...]) -> Iterator[Stage]:
    """A small run that trains ``command``, or the sample script; ended and removed at the end."""
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="gangrun-drill-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        runs, drill_folder, checkpoints = (folder / name for name in ("runs", "drill", "checkpoints"))
        for one in (runs, drill_folder):
            one.mkdir(mode=0o700)
        view, driver, has_mounts = runs, None, drill.kind in PASSES
        if has_mounts:
            view = folder / "view"
            view.mkdir()
            mount_memory(runs, MOUNT_BYTES)
            undo.callback(_unmount, runs)
            also_at(runs, view)
            undo.callback(_unmount, view)
        if drill.kind in DRIVEN:
            driver = PlayedDriver(drill_folder, gpus_count=4)
            try:
                driver.build()
            except NotPossibleHere as error:
                raise UserError("refused", f"{drill.kind.value} cannot be done here: {error.strerror}", "") from error
        more = {} if driver is None else driver.environment()
        variables = {**environment.all_variables(), "GANGRUN_DRILL_DIR": str(drill_folder), **more}
        words = command or (str(SAMPLE), str(checkpoints))
        flags = {**_BOTH, **(_GPUS if driver else _HOSTS), "runs_dir": str(runs)}
        if not command:
            flags["checkpoint_dir"] = str(checkpoints)
        wish = resolved(Request(words=words, flags=flags, here=True), variables)
        begun = begin(wish)
        paths = replace(begun, root=view / begun.run)
        undo.callback(_forget, begun)
        undo.callback(_end, paths)
        yield Stage(paths, OwnWorld(drill_folder, begun.root, not command, driver, has_mounts))


def _unmount(folder: Path) -> None:
    with contextlib.suppress(OSError):
        unmount(folder)


def _forget(paths: RunPaths) -> None:
    unmade(Disk(), paths)


def _end(paths: RunPaths) -> None:
    """End the run; if it does not end in time, its owner is killed, and all that it has with it."""
    reading = read(paths)
    with contextlib.suppress(UserError):
        cancel(reading, ENDS_WITHIN_S, lambda words: None, waits=True, now=True)
    owner = reading.owner
    if owner is not None:
        proc = processes.read_proc(owner.pid)
        if proc is not None and proc.start_ticks == owner.start_ticks:
            give_up_at = steady_now() + GONE_WITHIN_S
            while not processes.has_ended(owner.pid, owner.start_ticks) and steady_now() < give_up_at:
                pause(LOOK_EVERY_S)
            processes.kill(proc, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(owner.pid, 0)

