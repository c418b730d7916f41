"""Figures of a run as Prometheus takes them: names, kinds, and the text.

Base units, ``_total`` for what only grows, one ``run`` label on each series; what is not known has no series. All of it
comes from the run directory, so counters go on over supervisors, jobs and restarts of the reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, read_notifications
from gangrun.core.machine.transitions import may_hold_ranks
from gangrun.core.model import Phase, RunState
from gangrun.core.nodes.standing import active
from gangrun.planning.accounts import TimeUse
from gangrun.runs.figures import GpuFigures
from gangrun.runs.follow import JournalReplay
from gangrun.runs.report import report_of
from gangrun.runs.snapshot import RunSnapshot, snapshot_of, spec_of
from gangrun.runs.status import Status, recovery_statuses, status_of
from gangrun.wire.record import Record

GAUGE, COUNTER = "gauge", "counter"
METRICS: dict[str, tuple[str, str]] = {
    "gangrun_run_info": (GAUGE, "The run: its name, world and newest job. Always 1."),
    "gangrun_run_state": (GAUGE, "1 for the state in which the run is, 0 for the others."),
    "gangrun_run_abandoned": (GAUGE, "1 if no process runs it any more, so that it will not end by itself."),
    "gangrun_run_created_timestamp_seconds": (GAUGE, "When the run was submitted."),
    "gangrun_run_last_sign_timestamp_seconds": (GAUGE, "When its supervisor last wrote anything."),
    "gangrun_attempt": (GAUGE, "Number of the newest attempt; the first is 0."),
    "gangrun_supervisor_term": (GAUGE, "Number of the newest supervisor."),
    "gangrun_ranks": (GAUGE, "Ranks of the newest attempt."),
    "gangrun_step": (GAUGE, "Newest step that was reported or printed."),
    "gangrun_goal_steps": (GAUGE, "Steps of the whole run."),
    "gangrun_steps_per_second": (GAUGE, "Rate of steps."),
    "gangrun_eta_seconds": (GAUGE, "Time to the last step if nothing fails."),
    "gangrun_loss": (GAUGE, "Newest loss."),
    "gangrun_gradient_norm": (GAUGE, "Newest norm of the gradients."),
    "gangrun_tokens_total": (COUNTER, "Tokens trained on, as the script reports them."),
    "gangrun_gpus": (GAUGE, "GPUs of the newest attempt that were read."),
    "gangrun_gpu_busy_ratio": (GAUGE, "Mean share of time for which GPUs were busy."),
    "gangrun_gpu_memory_used_ratio": (GAUGE, "Used memory of the fullest GPU."),
    "gangrun_gpu_power_watts": (GAUGE, "Power of all GPUs."),
    "gangrun_gpu_slowed": (GAUGE, "GPUs whose clock heat, a power brake or their hardware hold down."),
    "gangrun_restarts_total": (COUNTER, "Attempts that another one followed, by what ended them."),
    "gangrun_recoveries_total": (COUNTER, "Recoveries that are over, by the means."),
    "gangrun_recovery_seconds_total": (COUNTER, "Time of recoveries, by part."),
    "gangrun_lost_steps_total": (COUNTER, "Steps that had to be trained again."),
    "gangrun_lost_gpu_seconds_total": (COUNTER, "GPU time of recoveries and of steps trained again."),
    "gangrun_lost_seconds_total": (COUNTER, "Time of the run that was not useful training, by class."),
    "gangrun_useful_seconds": (GAUGE, "Useful training; falls if a failure takes some of it back."),
    "gangrun_goodput_ratio": (GAUGE, "Useful training over all of the run's time, from 0 to 1."),
    "gangrun_node_seconds_total": (COUNTER, "Time of all nodes that jobs of the run held."),
    "gangrun_nodes": (GAUGE, "Nodes by state: training, spare, away, excluded."),
    "gangrun_checkpoint_step": (GAUGE, "Step of the newest valid checkpoint on disk."),
    "gangrun_checkpoint_age_seconds": (GAUGE, "Age of that checkpoint."),
    "gangrun_memory_checkpoint_step": (GAUGE, "Step of the newest checkpoint in memory."),
    "gangrun_anomalies_total": (COUNTER, "Stretches of bad losses or gradient norms, by figure."),
    "gangrun_failed_notifications_total": (COUNTER, "Messages that no service took."),
}
Sample = tuple[str, Mapping[str, str], float | str | None]  # name, labels but for the run, value; None: not known


@dataclass(slots=True)
class MetricsReader:
    """One run, read as often as its figures are asked for: only what the journal gained is read each time."""

    paths: RunPaths
    _journal: JournalReplay = field(init=False)
    _records: list[Record] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is read yet."""
        self._begin()

    def _begin(self) -> None:
        self._journal, self._records = JournalReplay(self.paths, Disk()), []

    def text(self, now: float) -> str:
        """All figures in Prometheus' text format; ``OSError``, ``UserError``: the run cannot be read."""
        try:
            self._records += self._journal.poll()
        except OSError:
            self._begin()
            raise
        spec = spec_of(self.paths, Disk())
        run = snapshot_of(self.paths, spec, self._journal.state(), tuple(self._records), self._journal.notes())
        return text_of(spec.run, samples_of(run, now))


def samples_of(run: RunSnapshot, now: float) -> Iterator[Sample]:
    """The figures of a run whose snapshot has all records."""
    status = status_of(run, now)
    labels = {"name": status.name, "world": status.world, "job": status.job or ""}
    yield "gangrun_run_info", labels, 1
    for phase in Phase:
        yield "gangrun_run_state", {"state": phase.value}, int(status.state == phase.value)
    yield "gangrun_run_abandoned", {}, int(status.abandoned)
    yield "gangrun_run_created_timestamp_seconds", {}, status.created
    yield "gangrun_run_last_sign_timestamp_seconds", {}, status.last_sign
    yield from _of_training(status, now)
    if run.state is not None:
        yield from _of_failures(run, status)
        yield from _of_time(run)
        for where, count in node_counts(run.state).items():
            yield "gangrun_nodes", {"state": where}, count
    if run.spec.notify.services:
        yield "gangrun_failed_notifications_total", {}, read_notifications(Disk(), run.paths).failed


def _of_training(status: Status, now: float) -> Iterator[Sample]:
    yield "gangrun_attempt", {}, status.attempts[-1].number if status.attempts else None
    yield "gangrun_supervisor_term", {}, status.supervisor.term if status.supervisor else None
    yield "gangrun_ranks", {}, status.world_size
    yield "gangrun_step", {}, status.log_step if status.step is None else status.step
    yield "gangrun_goal_steps", {}, status.total_steps
    yield "gangrun_steps_per_second", {}, status.steps_per_s
    yield "gangrun_eta_seconds", {}, status.eta_s
    yield "gangrun_loss", {}, status.loss
    yield "gangrun_gradient_norm", {}, status.grad_norm
    yield "gangrun_tokens_total", {}, status.tokens
    if status.gpu is not None:
        yield from _of_gpus(status.gpu)
    saved = status.checkpoint
    yield "gangrun_checkpoint_step", {}, None if saved is None else saved.step
    yield "gangrun_checkpoint_age_seconds", {}, max(0.0, now - saved.seen) if saved and saved.seen else None
    yield "gangrun_memory_checkpoint_step", {}, status.memory_step


def _of_gpus(gpu: GpuFigures) -> Iterator[Sample]:
    yield "gangrun_gpus", {}, gpu.count
    yield "gangrun_gpu_busy_ratio", {}, None if gpu.busy_percent is None else gpu.busy_percent / 100
    used, memory = gpu.memory_used_bytes, gpu.memory_bytes
    yield "gangrun_gpu_memory_used_ratio", {}, used / memory if used is not None and memory else None
    yield "gangrun_gpu_power_watts", {}, gpu.power_w
    yield "gangrun_gpu_slowed", {}, gpu.slowed_count


def _of_failures(run: RunSnapshot, status: Status) -> Iterator[Sample]:
    causes = [one.outcome for one in status.attempts[:-1]]
    for cause in dict.fromkeys(causes):
        yield "gangrun_restarts_total", {"cause": cause}, causes.count(cause)
    over = [one for one in recovery_statuses(run) if one.recovered is not None and one.next_attempt is not None]
    rungs = [one.rung or "" for one in over]
    for rung in dict.fromkeys(rungs):
        yield "gangrun_recoveries_total", {"rung": rung}, rungs.count(rung)
    for part in over[0].parts.__struct_fields__ if over else ():
        took_s = sum(getattr(one.parts, part) for one in over)
        yield "gangrun_recovery_seconds_total", {"part": part.removesuffix("_s")}, took_s
    yield "gangrun_lost_steps_total", {}, sum(one.lost_steps or 0 for one in over)
    yield "gangrun_lost_gpu_seconds_total", {}, sum(one.lost_gpu_s or 0.0 for one in over)
    whats = [one.what for one in status.anomalies]
    for what in dict.fromkeys(whats):
        yield "gangrun_anomalies_total", {"figure": what}, whats.count(what)


def _of_time(run: RunSnapshot) -> Iterator[Sample]:
    report = report_of(run, None, None)
    spent = {one.use: one.run_s for one in report.uses}
    for use in TimeUse:
        if use is not TimeUse.USEFUL:
            words = use.value.replace(" ", "_").replace("-", "_")
            yield "gangrun_lost_seconds_total", {"class": words}, spent.get(use.value, 0.0)
    yield "gangrun_useful_seconds", {}, spent.get(TimeUse.USEFUL.value, 0.0)
    yield "gangrun_goodput_ratio", {}, report.ettr
    yield "gangrun_node_seconds_total", {}, report.node_s


def node_counts(state: RunState) -> dict[str, int]:
    """The nodes of the job in exactly one state each, and those that the run may not use."""
    excluded = active(state.health.excluded, state.updated_at)
    placed = state.attempt.placement.nodes if state.attempt.placement and may_hold_ranks(state) else ()
    found = {"training": 0, "spare": 0, "away": 0, "excluded": len(excluded)}
    for name, node in state.roster.nodes.items():
        if name not in excluded:
            found["away" if node.away else "training" if name in placed else "spare"] += 1
    return found


def text_of(run: str, samples: Iterator[Sample]) -> str:
    """Prometheus' text format, the series of each name together below what the name means."""
    series: dict[str, list[str]] = {}
    for name, labels, value in samples:
        if value is not None:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"run": run, **labels}.items())
            series.setdefault(name, []).append(f"{name}{{{shown}}} {_number(float(value))}")
    lines = []
    for name, (kind, about) in METRICS.items():
        if name in series:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *series[name]]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)
