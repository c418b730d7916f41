"""The status of a run as plain values: what ``status --json``, ``wait --json`` and ``run --json`` print.

Documented in docs/status-json.md: additions keep ``schema``, a change of meaning raises it. All times are seconds
since the epoch by the wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import TERMINAL, AttemptRecord, CheckpointRef, RunState
from gangrun.core.nodes.quarantine import active
from gangrun.core.nodeset import natural_sort
from gangrun.display.times import WallTimes, wall_now
from gangrun.runs import tested_nodes
from gangrun.runs.memory_protection import bears
from gangrun.runs.saves import as_json, read_saves
from gangrun.runs.snapshot import Reading, read
from gangrun.runs.state import truth_of

if TYPE_CHECKING:
    from gangrun.display.queue_words import RunJob

SCHEMA = 1


def final_status(paths: RunPaths) -> str:
    """One JSON object on one line."""
    import json

    return json.dumps(status_of(read(paths, slurm=True), wall_now()))


def status_of(reading: Reading, now: float) -> dict[str, Any]:
    """One run's status; ``now`` decides only whether a run that nobody took up counts as abandoned."""
    status = _skeleton(reading)
    if reading.state is not None:
        status.update(_of_state(reading, reading.state))
    truth = truth_of(reading, now)
    status.update(
        state=truth.state, reason=truth.reason, failure=truth.failure, exit_code=truth.exit_code,
        abandoned=truth.abandoned, job=_newest_job(reading), scheduler=_scheduler(reading),
    )  # fmt: skip
    if truth.ended:
        status["warning"] = ""
    return status


def _newest_job(reading: Reading) -> str | None:
    if reading.spec.world != "slurm":
        return None
    if reading.queue is not None and reading.queue.newest is not None:
        return reading.queue.newest.job
    if reading.owner is not None:
        return reading.owner.job
    return _job_number(reading.state.job) if reading.state is not None else None


def _job_number(token: str) -> str:
    """Slurm's number of a job from what a run calls one stay of it (``12r1.2``); another token as it is."""
    number = token.partition("r")[0]
    return number if number.isdecimal() else token


def _scheduler(reading: Reading) -> dict[str, Any] | None:
    queue = reading.queue
    if queue is None:
        return None
    newest = queue.newest
    return {
        "state": newest.state or None if newest else None,
        "reason": newest.reason if newest else "",
        "silent": queue.silent or None,
        "jobs": [_job(job) for job in queue.jobs],
    }


def _job(job: RunJob) -> dict[str, Any]:
    return {
        "job": job.job,
        "seq": job.seq,
        "state": job.state or None,
        "reason": job.reason,
        "nodes": list(job.nodes),
        "partition": job.partition or None,
        "end": job.end_wall,
        "ended": job.ended,
        "held": bool(job.held),
    }


def _skeleton(reading: Reading) -> dict[str, Any]:
    spec, owner = reading.spec, reading.owner
    return {
        "schema": SCHEMA,
        "run": spec.run,
        "name": spec.name,
        "state": "PENDING",
        "world": spec.world,
        "reason": "",
        "failure": None,
        "exit_code": None,
        "attempts": [],
        "restarts": 0,
        "excluded": [],
        "tests": [],
        "step": None,
        "loss": None,
        "checkpoint": None,
        "memory_step": None,
        "memory_bears": None,
        "nodes": list(spec.nodes),
        "world_size": _world_size(reading),
        "supervisor": None,
        "owner": None
        if owner is None
        else {"job": owner.job, "host": owner.host, "pid": owner.pid, "alive": reading.owner_alive},
        "job": None,
        "scheduler": None,
        "created": spec.created_wall,
        "updated": None,
        "last_sign": reading.last_sign(),
        "warning": "",
        "saves": as_json(read_saves(spec.checkpoint.directory, spec.run)),
        "abandoned": False,
        "directory": str(reading.paths.root),
        "notes": list(reading.notes),
    }


def _world_size(reading: Reading) -> int:
    spec = reading.spec
    return (spec.nodes_count or len(spec.nodes)) * spec.slots_per_node * spec.ranks_per_slot


def _of_state(reading: Reading, state: RunState) -> dict[str, Any]:
    walls = WallTimes.of(reading.records)
    fresh = _fresh(reading, state)
    loss, warning = fresh.get("loss"), fresh.get("warning", "")
    return {
        "attempts": [_attempt(attempt, walls) for attempt in state.attempts],
        "restarts": state.budget.total_count,
        "excluded": [
            {"node": node, "reason": why.reason, "since": walls.wall(why.since), "until": walls.wall(why.until)}
            for node, why in sorted(active(state.excluded, state.updated_at).items())
        ],
        "tests": tested_nodes.as_json(state.nodes),
        "step": _step(state, fresh),
        "loss": float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None,
        "checkpoint": _checkpoint(state.checkpoint, reading),
        "memory_step": memory_step(reading, state),
        "memory_bears": None if memory_step(reading, state) is None else bears(fresh, reading.spec),
        "nodes": natural_sort(state.nodes) or list(reading.spec.nodes),
        "world_size": state.placement.world_size if state.placement else _world_size(reading),
        "supervisor": {"term": state.term, "node": reading.claim.node if reading.claim else ""},
        "updated": walls.wall(state.updated_at) if state.updated_at else None,
        "warning": str(warning),
    }


def _attempt(attempt: AttemptRecord, walls: WallTimes) -> dict[str, Any]:
    running = "running" if attempt.nodes else "starting"
    return {
        "number": attempt.number,
        "job": _job_number(attempt.job),
        "nodes": list(attempt.nodes),
        "started": walls.wall(attempt.started),
        "ended": None if attempt.ended is None else walls.wall(attempt.ended),
        "outcome": attempt.outcome or running,
        "reason": attempt.reason,
        "resumed_from_step": attempt.resumed_from_step,
    }


def _step(state: RunState, live: Mapping[str, Any]) -> int | None:
    """The newest step of this attempt; before its first one, the highest that any attempt got to."""
    newest = live.get("step")
    step = max(state.attempt_step, newest if isinstance(newest, int) else -1)
    step = step if step >= 0 else state.observed_step
    return step if step >= 0 else None


def _fresh(reading: Reading, state: RunState) -> Mapping[str, Any]:
    """The newest figures, if they are of the newest attempt."""
    live: Mapping[str, Any] = reading.live.live if reading.live else {}
    return live if live.get("attempt", state.attempt) == state.attempt else {}


def memory_step(reading: Reading, state: RunState) -> int | None:
    """The newest step that is whole in the nodes' memory; None where there is none, or no longer."""
    step = _fresh(reading, state).get("kept_step")
    return step if state.phase not in TERMINAL and isinstance(step, int) and step >= 0 else None


def _checkpoint(ref: CheckpointRef | None, reading: Reading) -> dict[str, Any] | None:
    if ref is None:
        return None
    seen = next((r.wall for r in reversed(reading.records) if _names(r.kind, r.event, ref.step)), None)
    return {"step": ref.step, "path": ref.path, "level": ref.level.value, "seen": seen}


def _names(kind: str, event: Mapping[str, Any], step: int) -> bool:
    checkpoint = event.get("checkpoint")
    return kind == "CheckpointSeen" and isinstance(checkpoint, dict) and checkpoint.get("step") == step
