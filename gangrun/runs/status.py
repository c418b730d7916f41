"""The status of a run: what ``status --json``, ``wait --json`` and ``run --json`` print, and what pages are drawn from.

Documented in docs/status-json.md, with its JSON schema in docs/json.schema.json: additions keep ``schema``, a change
of meaning raises it. All times are seconds since the epoch by the wall clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunPaths, read_metrics_fault, read_notifications
from gangrun.core.checkpoints.memory import with_fewer_copies
from gangrun.core.evidence import LOSS, NORM, SeenAlert, SeenAnomaly, SeenDataChange, SeenDivergence
from gangrun.core.model import TERMINAL, AttemptRecord, CheckpointRef, MemoryStep, Node, Phase, RunState
from gangrun.core.nodes.standing import active
from gangrun.core.nodeset import natural_sort
from gangrun.core.text import counted, is_save_time, json_number, step_or_none, step_words
from gangrun.errors import UserError
from gangrun.runs.figures import NOT_NUMBERS, GpuFigures, StandbyFigures, figures_of
from gangrun.runs.rank_output import lost_output
from gangrun.runs.recoveries import Recovery, recoveries_of
from gangrun.runs.saves import SavedOnDisk, SavesStatus, nothing_in, saves_status, state_figures, unjudged_on_disk
from gangrun.runs.snapshot import RunSnapshot, concerns_scheduler, read, with_queue
from gangrun.runs.state import run_state
from gangrun.runs.times import WallTimes, wall_now
from gangrun.wire.spec import RunSpec

SCHEMA = 1
TELLS_WITHIN_S = 60.0


class AttemptStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One start of all ranks."""

    number: int
    job: str
    nodes: tuple[str, ...]
    started: float
    ended: float | None
    outcome: str
    reason: str
    resumed_from_step: int | None
    resumed_from_save: float | None  # when it was saved, where a file tells no step
    last_step: int | None  # the highest that was seen in it, once it has ended


class ExcludedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the run may not use."""

    node: str
    reason: str
    since: float
    until: float


class RefillStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A one-node job that brings a node to the run's job."""

    number: int
    state: str  # asked, queued, here
    job: str | None  # the scheduler's number, once known
    waits: str  # why it waits in the queue, in the scheduler's words
    node: str | None  # that it brought


class DeviceTestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose devices are being tested, or passed their test; a node that failed it is excluded."""

    node: str
    state: str
    words: str


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that is known to be valid; of a run that has ended, the last one that it committed."""

    step: int | None  # null where the script overwrites one file, which tells no step
    path: str
    level: str
    seen: float | None


class MemoryProtection(msgspec.Struct, frozen=True, kw_only=True):
    """How many lost nodes the newest step in memory survives, whichever they are, and how many were asked for."""

    lost_nodes: int
    asked: int


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides, and where."""

    term: int
    node: str


class OwnerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds the run; ``alive`` is None if this host cannot tell."""

    job: str
    host: str
    pid: int
    alive: bool | None


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the run, in the words of the scheduler."""

    job: str
    seq: int | None
    state: str | None
    reason: str
    nodes: tuple[str, ...]
    partition: str | None
    end: float | None
    ended: bool
    held: bool


class SchedulerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler said just now; ``state`` and ``reason`` are those of the newest job."""

    state: str | None
    reason: str
    silent: str | None
    jobs: tuple[JobStatus, ...]


class RankGpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of one rank, as it was read last; ``clock_reasons`` are the bits of NVML. Null: it does not say."""

    gpu: int  # as its node counts
    busy_percent: int | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    clock_mhz: int | None
    clock_reasons: int | None
    power_w: int | None
    power_limit_w: int | None
    pcie_width: int | None
    pcie_generation: int | None
    temperature_c: int | None


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the newest attempt; ``state`` is that of its process, or how the rank ended."""

    rank: int
    node: str
    pid: int | None
    state: str
    step: int | None
    gpu: RankGpuStatus | None = None


class RecoveryParts(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one recovery; together they are its whole."""

    noticed_s: float = 0.0
    decided_s: float = 0.0
    stopped_s: float = 0.0
    fenced_s: float = 0.0
    waited_s: float = 0.0
    checked_s: float = 0.0
    chosen_s: float = 0.0
    started_s: float = 0.0
    first_step_s: float = 0.0


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery, from the failure to the first new step."""

    attempt: int
    next_attempt: int | None
    failed: float
    recovered: float | None
    rung: str | None
    whole_s: float
    parts: RecoveryParts
    lost_steps: int | None
    lost_gpu_s: float | None


class AnomalyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of bad losses or gradient norms; ``value`` is a word, since JSON has no NaN."""

    attempt: int
    rank: int
    node: str
    kind: str
    what: str
    value: str
    since_step: int
    step: int
    reports: int
    lasting: bool
    words: str


class DivergenceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that hold copies of the same weights compared them at a save, and they differed."""

    attempt: int
    step: int
    agreed_step: int | None  # of the newest save at which they agreed; null: none is known
    odd_ranks: tuple[int, ...]  # that differ from most; of two copies both; empty: no majority
    copies: int
    agreeing: int
    tensor: str  # the first that differed
    tensors: int
    words: str


class DataChangeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that were not what they had been when the checkpoint was saved that an attempt resumed from."""

    attempt: int
    compared: int
    changed: int
    samples: tuple[int, ...]  # the first of them, by index
    words: str


class AlertStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A slow rank, a training that became slower, or a node that runs out of something."""

    attempt: int
    kind: str
    node: str | None  # null: all of them
    rank: int | None
    since: float
    told: float  # when ``words`` were true
    until: float | None  # null: it holds, or its attempt ended with it
    share: float | None  # so much slower
    full: float | None  # when the limit would have been reached, as it was told
    per_s: float | None  # bytes, files or threads that come
    causes: tuple[str, ...]
    words: str


class Status(msgspec.Struct, kw_only=True):
    """One run. Every key is always there; what is not known is null."""

    schema: int = SCHEMA
    run: str
    name: str
    state: str
    world: str
    reason: str
    failure: str | None
    exit_code: int | None
    attempts: tuple[AttemptStatus, ...] = ()
    restarts: int = 0
    trained_s: float = 0.0  # all ranks ran so long, over all jobs
    total_time_s: float | None = None  # after which the run ends (--total-time); null: no limit
    excluded: tuple[ExcludedNode, ...] = ()
    refills: tuple[RefillStatus, ...] = ()
    tests: tuple[DeviceTestStatus, ...] = ()
    step: int | None = None
    loss: float | str | None = None  # "NaN" and the infinities are words: JSON has no such numbers
    grad_norm: float | str | None = None
    anomalies: tuple[AnomalyStatus, ...] = ()  # of loss and gradient norm, over all attempts
    divergences: tuple[DivergenceStatus, ...] = ()  # of weights that ranks compared (--sdc-check), over all attempts
    data_changes: tuple[DataChangeStatus, ...] = ()  # under resumed attempts (--data-checksums)
    alerts: tuple[AlertStatus, ...] = ()  # of speed and resources, over all attempts
    total_steps: int | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None  # until the last step, if nothing fails
    tokens: int | None = None
    tokens_per_s: float | None = None
    gpu: GpuFigures | None = None  # while ranks train on GPUs
    standbys: StandbyFigures | None = None  # that wait to become ranks after a failure
    phase: str | None = None  # of the script: train, eval, checkpoint or startup
    lost_s: float = 0.0  # to failures: work done again, and time without ranks
    log_step: int | None = None  # that ranks printed, if they report none
    checkpoint: CheckpointStatus | None = None
    debug_rank: int | None = None  # has a terminal, so the hang watch is suspended
    unjudged: str = ""  # if no checkpoint is known: what is in the directory that gangrun cannot judge
    no_checkpoint: str = ""  # if none is known: that the directory does not exist, or is empty
    memory_step: int | None = None
    memory_bears: MemoryProtection | None = None
    nodes: tuple[str, ...]
    world_size: int
    supervisor: SupervisorStatus | None = None
    owner: OwnerStatus | None
    job: str | None
    scheduler: SchedulerStatus | None
    created: float
    updated: float | None = None
    last_sign: float | None
    warning: str = ""
    saves: SavesStatus | None
    ranks: tuple[RankStatus, ...] | None = None
    recoveries: tuple[RecoveryStatus, ...] | None = None  # None: nobody asked for them, as they need the whole journal
    abandoned: bool
    directory: str
    notes: tuple[str, ...]


class UnreadableRun(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in ``status --all`` for a run that cannot be read: it must not hide the others."""

    run: str
    name: str
    reason: str
    state: str = "UNREADABLE"
    abandoned: bool = False
    nodes: tuple[str, ...] = ()
    step: int | None = None
    restarts: int = 0
    attempts: tuple[AttemptStatus, ...] = ()
    created: float = 0.0


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """What ``status --all --json`` prints, newest first."""

    schema: int = SCHEMA
    runs: tuple[Any, ...]  # Status or UnreadableRun; msgspec has no union of structs without a tag


def final_status(paths: RunPaths) -> str:
    """One JSON object on one line."""
    import json

    reading = read(paths, scheduler=True)
    return json.dumps(msgspec.to_builtins(with_recoveries(status_of(reading, wall_now()), reading)))


def status_of(reading: RunSnapshot, now: float, saved: SavedOnDisk | None = None) -> Status:
    """One run's status; ``now`` decides only whether a run that nobody took up counts as abandoned. ``saved``: what is
    known of checkpoint directories, where several runs are asked for.
    """
    spec, truth = reading.spec, run_state(reading, now)
    status = Status(
        run=spec.run, name=spec.name, world=spec.world, nodes=spec.nodes, world_size=_world_size(reading),
        state=truth.state, reason=truth.reason, failure=truth.failure, exit_code=truth.exit_code,
        total_time_s=spec.policy.total_time_s or None,
        abandoned=truth.abandoned, job=_newest_job(reading), scheduler=_scheduler(reading),
        owner=_owner(reading), debug_rank=spec.debug_rank,
        created=spec.created_wall, last_sign=reading.last_sign(), directory=str(reading.paths.root),
        saves=saves_status(spec.checkpoint.directory, spec.run),
        notes=(
            *_journal_notes(reading), *_without_room(reading), *lost_output(reading.paths), *_untold(reading),
            *_unserved(reading),
        ),
    )  # fmt: skip
    if reading.state is not None:
        _add_state(status, reading, reading.state, now)
    if truth.ended:
        status.warning, status.eta_s = "", None
        _add_last(status, reading, saved or SavedOnDisk())
    if status.checkpoint is None:
        status.unjudged = unjudged_on_disk(spec.checkpoint)
        status.no_checkpoint = nothing_in(spec.checkpoint.directory)
    return status


def _journal_notes(reading: RunSnapshot) -> Iterator[str]:
    for note in reading.notes:
        yield f"the journal could not be read in full: {note}"


ROOM_MIN_BYTES = 64 << 10  # less does not take what a supervisor writes in a minute


def _without_room(reading: RunSnapshot) -> Iterator[str]:
    """While a run goes on: the file system of its directory takes no more."""
    if reading.ended:
        return
    with contextlib.suppress(OSError):  # a page that shows less is better than none
        free_bytes = Disk().free_bytes(reading.paths.root)
        if free_bytes < ROOM_MIN_BYTES:
            yield f"the file system of {reading.paths.root} is full: nothing new is recorded until somebody frees space"


def _untold(reading: RunSnapshot) -> Iterator[str]:
    """Notifications that no service took."""
    if reading.spec.notify.services:
        log = read_notifications(Disk(), reading.paths)
        if log.failed:
            yield f"{counted(log.failed, 'notification')} could not be sent: {log.why}"


def _unserved(reading: RunSnapshot) -> Iterator[str]:
    """While a run goes on: its figures for Prometheus are not served, and why."""
    is_asked = reading.spec.metrics.port is not None and not reading.ended
    if is_asked and (why := read_metrics_fault(Disk(), reading.paths)):
        yield f"no figures for Prometheus: {why}; it is tried again every few seconds"


def _unknown_resume(reading: RunSnapshot, state: RunState, live: Mapping[str, Any], now: float) -> Iterator[str]:
    """Said once the script has had time to tell its first step."""
    resume, newest = state.attempt.resume, state.attempts[-1] if state.attempts else None
    known = (state.attempt.step, live.get("step"), live.get("log_step"))
    if resume is None or newest is None or any(isinstance(one, int) and one >= 0 for one in known):
        return
    if state.phase not in {*TERMINAL, Phase.RUNNING}:
        return
    if now - WallTimes.of(reading.records).wall(newest.started) > TELLS_WITHIN_S:
        steps = step_words(resume.step)
        yield f"whether the script resumed from {steps} is not known: it reports, prints and writes no step"


def _add_written(status: Status, spec: RunSpec) -> None:
    """What the framework's own files say of a run whose ranks reported no step: its last save is the newest news."""
    told = state_figures(spec.checkpoint.directory, spec.created_wall)
    if told is not None and told.step > (-1 if status.log_step is None else status.log_step):
        status.log_step = told.step
        status.total_steps = status.total_steps or (told.total_steps if told.total_steps > 0 else None)
        status.loss = status.loss if told.loss is None else json_number(told.loss)


def _add_last(status: Status, reading: RunSnapshot, saved: SavedOnDisk) -> None:
    """What a run that has ended did last: its supervisor need not have seen it."""
    spec, ended = reading.spec, status.last_sign or 0.0
    told_at_end = reading.state is not None and reading.state.attempt.loss is not None
    if status.step is None and spec.checkpoint.directory:
        _add_written(status, spec)
    if reading.live is not None and reading.live.live.get("step") != status.step:  # they are those of an earlier step
        status.grad_norm = None
        status.loss = status.loss if told_at_end else None
        for one in status.anomalies:  # but of these the last step, or no step at all, is known
            is_last = one.attempt == status.attempts[-1].number and (status.step is None or one.step >= status.step)
            if is_last and one.value in NOT_NUMBERS:
                setattr(status, _FIGURES[one.what], one.value)
    if not spec.checkpoint.directory or not status.attempts:
        return
    found = saved.newest(spec.checkpoint, spec.created_wall, ended)
    newest = reading.state.checkpoints.newest if reading.state is not None else None
    if found is not None and (newest is None or found[0] > newest.step):
        step, path, at = found
        status.checkpoint = CheckpointStatus(step=step_or_none(step), path=path, level="unread", seen=at)
        if newest is not None and status.step == newest.step and step_or_none(step) is not None:
            status.step = step  # of a script whose steps are those that it saves


def _add_state(status: Status, reading: RunSnapshot, state: RunState, now: float) -> None:
    """What a supervisor wrote."""
    walls, fresh = WallTimes.of(reading.records), _fresh(reading, state)
    status.attempts = tuple(attempt_status(attempt, walls.wall) for attempt in state.attempts)
    status.restarts = state.budget.total_count
    status.trained_s = _trained_s(state, walls, status.last_sign or 0.0)
    status.excluded = tuple(
        ExcludedNode(node=node, reason=why.reason, since=walls.wall(why.since), until=walls.wall(why.until))
        for node, why in sorted(active(state.health.excluded, state.updated_at).items())
    )
    status.refills = tuple(
        RefillStatus(
            number=one.number, state=one.stage.value, job=one.job or None, waits=one.waits, node=one.node or None
        )
        for one in state.roster.refills
    )
    status.tests = tuple(device_tests(state.roster.nodes))
    status.step = _step(state, fresh)
    if status.step is None:
        newest = fresh.get("log_step")
        printed = max(state.checkpoints.logged_step, newest if isinstance(newest, int) else -1)
        status.log_step = printed if printed >= 0 else None
    newest = status.log_step if status.step is None else status.step
    figures = figures_of(fresh, newest, state.attempt, ended=state.phase in TERMINAL)
    for name in figures.__struct_fields__:
        setattr(status, name, getattr(figures, name))
    status.anomalies = tuple(map(_anomaly, state.anomalies))
    status.divergences = tuple(map(_divergence, state.divergences))
    status.data_changes = tuple(map(_data_change, state.data_changes))
    status.alerts = tuple(_alert(one, state, walls.wall) for one in state.alerts)
    status.lost_s = lost_s(state.attempts)
    status.checkpoint = _checkpoint(state.checkpoints.newest, reading)
    status.memory_step = memory_step(reading, state)
    status.memory_bears = None if status.memory_step is None else _memory_protection(reading, state)
    status.nodes = tuple(natural_sort(state.roster.nodes)) or reading.spec.nodes
    status.world_size = state.attempt.placement.world_size if state.attempt.placement else status.world_size
    status.supervisor = SupervisorStatus(term=state.term, node=reading.claim.node if reading.claim else "")
    status.notes = (*status.notes, *_unknown_resume(reading, state, fresh, now))
    status.updated = walls.wall(state.updated_at) if state.updated_at else None
    status.warning = str(fresh.get("warning", ""))


def _trained_s(state: RunState, walls: WallTimes, last_sign: float) -> float:
    since = state.training.running_since
    return state.training.trained_s + (0.0 if since is None else max(0.0, last_sign - walls.wall(since)))


_FIGURES = {LOSS: "loss", NORM: "grad_norm"}


def _anomaly(seen: SeenAnomaly) -> AnomalyStatus:
    from gangrun.core.recovery.anomalies import past_words  # most runs have none, and do not wait for it

    one = seen.anomaly
    return AnomalyStatus(
        attempt=seen.attempt, rank=seen.rank, node=seen.node, kind=one.kind.value, what=one.what, value=one.value,
        since_step=one.since_step, step=one.step, reports=one.count, lasting=one.lasting, words=past_words(seen),
    )  # fmt: skip


def _divergence(seen: SeenDivergence) -> DivergenceStatus:
    from gangrun.core.recovery.self_checks import past_words  # most runs have none, and do not wait for it

    one = seen.divergence
    return DivergenceStatus(
        attempt=seen.attempt, step=one.step, agreed_step=one.agreed_step if one.agreed_step >= 0 else None,
        odd_ranks=one.odd, copies=one.copies_count, agreeing=one.agreeing_count, tensor=one.name,
        tensors=one.tensors_count, words=past_words(one),
    )  # fmt: skip


def _data_change(seen: SeenDataChange) -> DataChangeStatus:
    from gangrun.core.recovery.self_checks import change_words  # likewise

    one = seen.change
    return DataChangeStatus(
        attempt=seen.attempt, compared=one.compared_count, changed=one.changed_count, samples=one.samples,
        words=change_words(one),
    )  # fmt: skip


def _alert(seen: SeenAlert, state: RunState, wall: Callable[[float], float]) -> AlertStatus:
    from gangrun.core.recovery import alerts  # most runs have none, and do not wait for it

    one, holds = seen.alert, seen in alerts.open_ones(state) and state.phase not in TERMINAL
    return AlertStatus(
        attempt=seen.attempt, kind=one.kind.value, node=one.node or None, rank=one.rank if one.rank >= 0 else None,
        since=wall(seen.at), told=wall(seen.told_at), until=None if seen.until is None else wall(seen.until),
        share=one.share or None,
        full=wall(seen.told_at + one.in_s) if one.per_s else None, per_s=one.per_s or None,
        causes=alerts.causes(state, seen), words=alerts.told(seen) if holds else alerts.past_words(seen),
    )  # fmt: skip


def _newest_job(reading: RunSnapshot) -> str | None:
    if not reading.spec.is_scheduled:
        return None
    if reading.queue is not None and reading.queue.newest is not None:
        return reading.queue.newest.job
    if reading.owner is not None:
        return reading.owner.job
    return job_number(reading.state.job) if reading.state is not None else None


def job_number(token: str) -> str:
    """The scheduler's number of a job from what a run calls one stay of it (``12r1.2``); another token as it is."""
    number = token.partition("r")[0]
    return number if number.isdecimal() else token


def _scheduler(reading: RunSnapshot) -> SchedulerStatus | None:
    queue = reading.queue
    if queue is None:
        return None
    jobs = tuple(
        JobStatus(
            job=job.job, seq=job.seq, state=job.state or None, reason=job.reason, nodes=job.nodes,
            partition=job.partition or None, end=job.end_wall, ended=job.ended, held=bool(job.held),
        )
        for job in queue.jobs
    )  # fmt: skip
    newest = jobs[-1] if jobs else None
    return SchedulerStatus(
        state=newest.state if newest else None, reason=newest.reason if newest else "",
        silent=queue.silent or None, jobs=jobs,
    )  # fmt: skip


def _owner(reading: RunSnapshot) -> OwnerStatus | None:
    owner = reading.owner
    if owner is None:
        return None
    return OwnerStatus(job=owner.job, host=owner.host, pid=owner.pid, alive=reading.owner_alive)


def _world_size(reading: RunSnapshot) -> int:
    spec = reading.spec
    return (spec.nodes_count or len(spec.nodes)) * spec.slots_per_node * spec.ranks_per_slot


def attempt_status(attempt: AttemptRecord, wall: Callable[[float], float]) -> AttemptStatus:
    """``wall`` turns moments of the run's clock into those of the wall's."""
    step = attempt.resumed_from_step
    timed = step is not None and is_save_time(step)
    return AttemptStatus(
        number=attempt.number,
        job=job_number(attempt.job),
        nodes=attempt.nodes,
        started=wall(attempt.started),
        ended=None if attempt.ended is None else wall(attempt.ended),
        outcome=attempt.outcome or ("running" if attempt.nodes else "starting"),
        reason=attempt.reason,
        resumed_from_step=None if timed else step,
        resumed_from_save=step / 1000 if timed and step is not None else None,
        last_step=attempt.last_step if attempt.last_step >= 0 else None,
    )


def lost_s(attempts: Sequence[AttemptRecord]) -> float:
    """Seconds that failures have cost: steps that were trained again, and the time between two attempts.

    Of an attempt counts the share of its steps that the next one had to do again; all of it, if it brought the run no
    farther. What a person cancelled and resumed has cost only its steps.
    """
    lost = 0.0
    for one, after in pairwise(attempts):
        if one.ended is None:
            continue
        if one.outcome != "cancelled":
            lost += max(0.0, after.started - one.ended)
        lost += max(0.0, one.ended - one.started) * redone_share(one, went_on_from(after))
    return lost


def went_on_from(attempt: AttemptRecord) -> int | None:
    """The step whose state an attempt began with. If nobody told it a checkpoint, its first step says where it began;
    None: at the beginning, as far as is known.
    """
    if attempt.resumed_from_step is None and attempt.first_told > 0:
        return attempt.first_told - 1
    return attempt.resumed_from_step


def redone_share(one: AttemptRecord, resumed_step: int | None) -> float:
    """The share of an attempt that has ended which an attempt that goes on from there has to do again."""
    ended = one.started if one.ended is None else one.ended
    lasted_s = max(0.0, ended - one.started)
    if resumed_step is not None and is_save_time(resumed_step):
        return min(1.0, max(0.0, ended - resumed_step / 1000) / lasted_s) if lasted_s else 0.0
    began, kept = (-1 if step is None or is_save_time(step) else step for step in (went_on_from(one), resumed_step))
    done = max(one.last_step, one.last_told, kept)
    return 1 - max(0, kept - began) / (done - began) if done > began else 1.0


def recovery_statuses(run: RunSnapshot) -> tuple[RecoveryStatus, ...]:
    """Every recovery of the run; the snapshot must have all records."""
    walls = WallTimes.of(run.records)
    return tuple(recovery_status(one, walls.wall) for one in recoveries_of(run.records))


def recovery_status(one: Recovery, wall: Callable[[float], float]) -> RecoveryStatus:
    """``wall`` turns moments of the run's clock into those of the wall's."""
    return RecoveryStatus(
        attempt=one.attempt, next_attempt=one.next_attempt, failed=wall(one.began_ms / 1000),
        recovered=None if one.ended_ms is None else wall(one.ended_ms / 1000),
        rung=None if one.rung is None else one.rung.value, whole_s=one.whole_ms / 1000,
        parts=RecoveryParts(**{f"{part.value}_s": ms / 1000 for part, ms in one.parts_ms.items()}),
        lost_steps=one.lost_steps_count,
        lost_gpu_s=None if one.lost_gpu_s is None else round(one.lost_gpu_s, 3),
    )  # fmt: skip


def with_recoveries(status: Status, reading: RunSnapshot) -> Status:
    """The status with every recovery, for which the journal is read anew if ranks were ever started again."""
    restarted = len(status.attempts) > 1 or status.restarts > 0
    again = read(reading.paths, timeline=True) if restarted else None
    status.recoveries = () if again is None else recovery_statuses(again)
    return status


def device_tests(nodes: Mapping[str, Node]) -> Iterator[DeviceTestStatus]:
    """Nodes whose devices are being tested or passed their test, by name."""
    for name in natural_sort(nodes):
        node = nodes[name]
        if node.trial or node.tested:
            yield DeviceTestStatus(
                node=name, state="testing" if node.trial else "passed", words=node.trial or node.tested
            )


def _step(state: RunState, live: Mapping[str, Any]) -> int | None:
    """The newest step of this attempt; before its first one, the highest that any attempt got to."""
    newest = live.get("step")
    step = max(state.attempt.step, newest if isinstance(newest, int) else -1)
    step = step if step >= 0 else state.checkpoints.observed_step
    return step if step >= 0 else None


def newest_step(reading: RunSnapshot, state: RunState) -> int:
    """Of the newest attempt, reported or printed; -1: none."""
    fresh = _fresh(reading, state)
    live = [one for one in (fresh.get("step"), fresh.get("log_step")) if isinstance(one, int)]
    return max(state.attempt.step, state.attempt.printed_step, *live, -1)


def _fresh(reading: RunSnapshot, state: RunState) -> Mapping[str, Any]:
    """The newest figures, if they are of the newest attempt."""
    live: Mapping[str, Any] = reading.live.live if reading.live else {}
    return live if live.get("attempt", state.attempt.number) == state.attempt.number else {}


def memory_step(reading: RunSnapshot, state: RunState) -> int | None:
    """The newest step that is whole in the nodes' memory; None if there is none, or no longer."""
    step, base = _fresh(reading, state).get("kept_step"), _base(state)
    if state.phase in TERMINAL:
        return None
    return step if isinstance(step, int) and step >= 0 else base.step if base else None


def _base(state: RunState) -> MemoryStep | None:
    """The step in memory that the newest attempt began from, as long as the disk has none that is as new."""
    base = state.attempts[-1].memory if state.attempts else None
    return base if base is not None and base.step > state.checkpoints.disk_step else None


def _memory_protection(reading: RunSnapshot, state: RunState) -> MemoryProtection | None:
    """None if the supervisor does not tell."""
    live, spec = _fresh(reading, state), reading.spec
    found = live.get("kept_losses_count")
    if live.get("kept_step", -1) < 0:
        found = 0 if with_fewer_copies(state.attempts) is not None else None
    parity = spec.checkpoint.memory_parity.partition("+")[2]
    asked = int(parity) if parity else min(1, max(0, (spec.nodes_count or len(spec.nodes)) - 1))
    return MemoryProtection(lost_nodes=found, asked=asked) if isinstance(found, int) else None


def _checkpoint(ref: CheckpointRef | None, reading: RunSnapshot) -> CheckpointStatus | None:
    if ref is None:
        return None
    seen = next((r.wall for r in reversed(reading.records) if _names(r.kind, r.event, ref.step)), None)
    return CheckpointStatus(step=step_or_none(ref.step), path=ref.path, level=ref.level.value, seen=seen)


def _names(kind: str, event: Mapping[str, Any], step: int) -> bool:
    checkpoint = event.get("checkpoint")
    return kind == "CheckpointSeen" and isinstance(checkpoint, dict) and checkpoint.get("step") == step


def statuses_of(entries: Sequence[IndexEntry]) -> list[Status | UnreadableRun]:
    """Ask the scheduler once for all runs, and read anew those that this concerns: a journal's word is newer."""
    found = [_read_or_why(entry) for entry in entries]
    if any(isinstance(one, RunSnapshot) and concerns_scheduler(one) for one in found):
        from gangrun.runs.jobs import queue_of_each

        queue = queue_of_each()
        for k, one in enumerate(found):
            if isinstance(one, RunSnapshot) and concerns_scheduler(one):
                again = _read_or_why(entries[k])
                if isinstance(again, RunSnapshot):
                    again = with_queue(again, queue(again.paths, again.spec.run, again.owner))
                found[k] = again
    saved = SavedOnDisk()
    return [status_of(one, wall_now(), saved) if isinstance(one, RunSnapshot) else one for one in found]


def _read_or_why(entry: IndexEntry) -> RunSnapshot | UnreadableRun:
    try:
        return read(RunPaths(Path(entry.path)))
    except UserError as error:
        why = error.message
    except OSError as error:
        why = f"{error.strerror or error} ({error.filename or entry.path})"
    return UnreadableRun(run=entry.run, name=entry.name, reason=why)
