"""A run's status as people read it.

One run is a page that fits a terminal, several are a table. All text in a status is foreign and is cleaned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

import msgspec

from gangrun.config import environment
from gangrun.core.nodeset import fold
from gangrun.core.text import counted
from gangrun.display.text import (
    clean,
    number_words,
    phase_word,
    rate_words,
    styled,
    table,
    welcomes_color,
    width,
    wrapped,
)
from gangrun.display.times import ago_words, clock_words, span_words, when_words
from gangrun.runs.figures import GpuFigures
from gangrun.runs.job_queue import REASONS
from gangrun.runs.saves import SavesStatus
from gangrun.runs.status import (
    AlertStatus,
    AttemptStatus,
    DeviceTestStatus,
    ExcludedNode,
    JobStatus,
    MemoryProtection,
    RankGpuStatus,
    RankStatus,
    RecoveryStatus,
    RefillStatus,
    Status,
    UnreadableRun,
)
from gangrun.runs.times import wall_now

LABEL_CHARS = 12
ATTEMPTS_SHOWN_COUNT = 6
EXCLUDED_SHOWN_COUNT = 8
RECOVERIES_SHOWN_COUNT = 3
SPAN_SHOWN_S = 0.005
RUNG_WORDS = {
    "restart": "restart in place", "move": "ranks changed places", "swap": "other nodes", "shrink": "fewer ranks",
    "grow": "more ranks", "requeue": "another job", "end": "the run ended",
}  # fmt: skip
QUIET_AFTER_S = 15.0  # the supervisor writes every 5 s: three times without is worth a word
WHERE_CHARS = 32
FAR_OFF_S = 30 * 86400.0  # a job without a limit ends in a year, as Slurm tells it


@dataclass(frozen=True, slots=True)
class PageFormat:
    """How the page is to look: the reader's moment, zone, columns, and whether colours are welcome."""

    now: float
    columns: int = 100
    color: bool = False
    zone: tzinfo | None = None


def look_now() -> PageFormat:
    """How to draw on this standard output."""
    return PageFormat(wall_now(), width(), welcomes_color(environment.all_variables()))


def page(status: Status, look: PageFormat) -> list[str]:
    """One run on one page."""
    lines = [state_line(status, look)]
    lines += wrapped(clean(status.reason), look.columns, "  ")
    for warning in warning_words(status, look):
        lines += [styled(line, "yellow", look.color) for line in wrapped(warning, look.columns, "  ! ")]
    lines.append("")
    for label, text in _facts(status, look):
        first = f"  {label.ljust(LABEL_CHARS)}"
        lines += wrapped(text, look.columns, first, " " * len(first))
    lines += excluded_lines(status.excluded, look)
    for one in status.refills:
        first = f"  {'refill'.ljust(LABEL_CHARS)}"
        lines += wrapped(refill_words(one), look.columns, first, " " * len(first))
    lines += _attempts(status, look)
    if status.recoveries:
        older = len(status.recoveries) - RECOVERIES_SHOWN_COUNT
        lines += ["", styled("  recoveries", "dim", look.color)]
        lines += recovery_lines(status.recoveries[-RECOVERIES_SHOWN_COUNT:], look)
        lines += [f"  and {older} before (gangrun explain has all)"] if older > 0 else []
    if status.ranks is not None:
        lines += ["", *_rank_lines(status.ranks, look)]
    lines += ["", *(styled(line, "dim", look.color) for line in wrapped(_next(status), look.columns, "  "))]
    return lines


def _rank_lines(ranks: Sequence[RankStatus], look: PageFormat) -> list[str]:
    if not ranks:
        return ["  no rank was started yet"]
    rows = [
        (str(one.rank), clean(one.node), str(one.pid or "-"), "-" if one.step is None else str(one.step), one.state)
        for one in ranks
    ]
    if all(one.gpu is None for one in ranks):
        return table(("rank", "node", "pid", "step", "state"), rows, look.columns)
    head = ("rank", "node", "pid", "step", "GPU", "busy", "memory", "clock", "power", "heat", "state")
    wide = [(*row[:-1], *_gpu_cells(one.gpu), row[-1]) for row, one in zip(rows, ranks, strict=True)]
    return table(head, wide, look.columns)


def _gpu_cells(gpu: RankGpuStatus | None) -> tuple[str, ...]:
    if gpu is None:
        return ("-",) * 6
    used = None if gpu.memory_used_bytes is None else round(gpu.memory_used_bytes / (1 << 30))
    cells = ((gpu.gpu, ""), (gpu.busy_percent, " %"), (used, " GiB"), (gpu.clock_mhz, " MHz"), (gpu.power_w, " W"),
             (gpu.temperature_c, " °C"))  # fmt: skip
    return tuple("-" if value is None else f"{value}{unit}" for value, unit in cells)


def state_line(status: Status, look: PageFormat) -> str:
    """The run's state and names."""
    state = phase_word(status.state, look.color)
    name = styled(clean(status.name), "bold", look.color)
    left = " · ".join([state, *(["abandoned"] if status.abandoned else []), name])
    return f"{left}  {clean(status.run)}"


def warning_words(status: Status, look: PageFormat) -> list[str]:
    """What a person should know now."""
    told = []
    if status.abandoned:
        told.append(
            f"no process runs it any more: {_owner_words(status)}; gangrun resume {clean(status.run)} continues it"
        )
    elif (silent_s := _silent_s(status, look.now)) > QUIET_AFTER_S:
        told.append(f"the supervisor has written nothing for {span_words(silent_s)}")
    if status.warning:
        told.append(clean(status.warning))
    newest = status.attempts[-1].number if status.attempts else -1
    told += [clean(one.words) for one in status.anomalies if one.attempt == newest]
    told += [clean(one.words) for one in status.divergences if one.attempt == newest]
    told += [clean(one.words) for one in status.data_changes if one.attempt == newest]
    holding = [one for one in status.alerts if one.attempt == newest and one.until is None]
    told += [_alert_words(one, look) for one in holding if status.exit_code is None]
    if words := failure_words(status.saves, look.now):
        told.append(words)
    if (scheduler := status.scheduler) and scheduler.silent:
        words = f"Slurm does not answer ({clean(scheduler.silent)})"
        told.append(f"{words}: this page shows only what the run itself wrote")
    told += [clean(note) for note in status.notes]
    return told


def _alert_words(one: AlertStatus, look: PageFormat) -> str:
    found = f"; likely {'cause' if len(one.causes) == 1 else 'causes'}: {', '.join(one.causes)}" if one.causes else ""
    return clean(f"{one.words} (seen {ago_words(one.told, look.now)}){found}")


def _silent_s(status: Status, now: float) -> float:
    """How long the supervisor has written nothing; 0 if none is expected to write, as while the run waits for a job."""
    if status.exit_code is not None or not status.last_sign:
        return 0.0
    scheduler = status.scheduler
    writes = scheduler is None or bool(scheduler.silent) or any(job.nodes for job in scheduler.jobs)
    return now - status.last_sign if writes else 0.0


def _owner_words(status: Status) -> str:
    owner = status.owner
    if status.world == "slurm":
        return "Slurm has no job of this run"
    if owner is None:
        return "no process ever started it"
    return f"process {owner.pid} on {clean(owner.host)}, which ran it, is gone"


def _facts(status: Status, look: PageFormat) -> list[tuple[str, str]]:
    facts = [("where", _where(status))]
    if status.job is not None:
        facts.append(("job", _job(status, look)))
    attempts = status.attempts
    if attempts:
        since = attempts[0].started
        facts.append(("started", when_words(since, look.now, look.zone)))
    elif status.created:
        facts.append(("created", when_words(status.created, look.now, look.zone)))
    if status.exit_code is not None and status.updated:
        lasted = f", after {span_words(status.updated - attempts[0].started)}" if attempts else ""
        facts.append(("ended", when_words(status.updated, look.now, look.zone) + lasted))
    if status.failure:
        facts.append(("failure", clean(status.failure)))
    facts.append(("step", step_line(status)))
    if words := _training(status):
        facts.append(("training", words))
    if status.gpu is not None and status.exit_code is None:
        count = [str(status.gpu.count)] if status.gpu.count > 1 else []
        facts.append(("GPUs" if count else "GPU", ", ".join([*count, *gpu_words(status.gpu)])))
    facts.append(("checkpoint", _checkpoint(status, look)))
    if status.memory_step is not None:
        where = "on the nodes themselves" + memory_words(status.memory_bears)
        facts.append(("in memory", f"step {status.memory_step}, {where}"))
    if status.saves is not None:
        facts.append(("saves", clean(status.saves.interval_reason)))
    if status.restarts or len(attempts) > 1:
        lost = f"; {span_words(status.lost_s)} lost to failures" if status.lost_s >= 1 else ""
        facts.append(("restarts", str(status.restarts) + lost))
    if status.standbys is not None:
        where, size = clean(status.standbys.nodes), f"{status.standbys.memory_bytes / (1 << 30):.1f} GiB of memory"
        facts.append(("standbys", f"{status.standbys.count} on {where}, {size}; --no-warm keeps none"))
    if status.total_time_s is not None:
        words = f"{span_words(status.trained_s)} of {span_words(status.total_time_s)} used (--total-time)"
        facts.append(("total time", words))
    if status.debug_rank is not None:
        facts.append(("debugging", f"rank {status.debug_rank} has the terminal, so the hang watch is suspended"))
    if words := device_words(status.tests):
        facts.append(("devices", words))
    return facts


_PHASES = {"eval": ", evaluating", "checkpoint": ", saving", "startup": ", starting up"}


def step_line(status: Status) -> str:
    """The newest step, of how many, how fast and until when."""
    newest = status.log_step if status.step is None else status.step
    if newest is None:
        return "none seen yet"
    told = f"{newest}" + ("" if status.total_steps is None else f" of {status.total_steps}")
    told += " (from the log)" if status.step is None else ""
    told += _PHASES.get(status.phase or "", "")
    if status.exit_code is None and status.steps_per_s is not None:
        told += f", {rate_words(status.steps_per_s, 'step')}"
    return told + ("" if status.eta_s is None else f", done in {span_words(status.eta_s)}")


def gpu_words(gpu: GpuFigures) -> list[str]:
    """How GPUs are used: ``93 % busy``, ``at most 61 of 80 GiB``, ..."""
    told = [] if gpu.busy_percent is None else [f"{gpu.busy_percent:.0f} % busy"]
    if told and gpu.count > 1 and gpu.busy_min_percent is not None:
        told[0] += f" (least {gpu.busy_min_percent} %)"
    if gpu.memory_used_bytes is not None and gpu.memory_bytes:
        most = "at most " if gpu.count > 1 else ""
        told.append(f"{most}{gpu.memory_used_bytes / (1 << 30):.3g} of {gpu.memory_bytes / (1 << 30):.3g} GiB used")
    if gpu.power_w is not None:
        told.append(f"{gpu.power_w} W" if gpu.power_w < 10_000 else f"{gpu.power_w / 1000:.3g} kW")
    if gpu.temperature_c is not None:
        told.append(f"{gpu.temperature_c} °C")
    if gpu.slowed_count:
        told.append(f"{gpu.slowed_count} slowed down")
    return told


def _training(status: Status) -> str:
    """What the script tells beside its step."""
    told = [] if status.loss is None else [f"loss {number_words(status.loss, 5)}"]
    if status.grad_norm is not None:
        told.append(f"gradient norm {number_words(status.grad_norm)}")
    if status.exit_code is None and status.tokens_per_s is not None:
        told.append(rate_words(status.tokens_per_s, "token"))
    return ", ".join(told)


def _where(status: Status) -> str:
    nodes = clean(fold(status.nodes)) or "no node yet"
    ranks = status.world_size
    supervisor = status.supervisor
    who = f"; supervisor #{supervisor.term}" if supervisor else ""
    on = f" on {clean(supervisor.node)}" if supervisor and supervisor.node else ""
    return f"{nodes}, {ranks} rank{'' if ranks == 1 else 's'}{who}{on}"


def _job(status: Status, look: PageFormat) -> str:
    """The newest job, and those before it that are still there."""
    scheduler = status.scheduler
    if scheduler is None or not scheduler.jobs:
        return clean(status.job)
    there = [job for job in scheduler.jobs if not job.ended] or scheduler.jobs[-1:]
    return "; ".join(_one_job(job, look) for job in there)


def _one_job(job: JobStatus, look: PageFormat) -> str:
    reason = f" ({clean(job.reason)})" if job.reason else ""
    on = f" on {clean(fold(job.nodes))}" if job.nodes and not job.ended else ""
    until = ""
    if job.end is not None and job.nodes and job.end - look.now < FAR_OFF_S:
        word = "since" if job.ended else "until at most"
        until = f", {word} {when_words(job.end, look.now, look.zone)}"
    where = f", partition {clean(job.partition)}" if job.partition else ""
    return f"{clean(job.job)} {clean(job.state or 'forgotten by Slurm').lower()}{reason}{on}{until}{where}"


def _checkpoint(status: Status, look: PageFormat) -> str:
    checkpoint = status.checkpoint
    if checkpoint is None:
        strange = f"none that gangrun can judge: {clean(status.unjudged)}" if status.unjudged else ""
        return strange or (f"none: {clean(status.no_checkpoint)}" if status.no_checkpoint else "none known")
    seen = f", seen {ago_words(checkpoint.seen, look.now)}" if checkpoint.seen else ""
    step = "step not known" if checkpoint.step is None else f"step {checkpoint.step}"
    return f"{step}, {checkpoint.level}{seen}, {clean(checkpoint.path)}"


def device_words(tests: Sequence[DeviceTestStatus]) -> str:
    """Which devices were tested, on one line; "" if none were."""
    passed = [one for one in tests if one.state == "passed"]
    testing = [f"{clean(one.node)} is being tested ({clean(one.words)})" for one in tests if one.state != "passed"]
    if len(passed) == 1:
        testing.insert(0, f"{clean(passed[0].node)} passed the test: {clean(passed[0].words)}")
    elif passed:
        testing.insert(0, f"{clean(fold([one.node for one in passed]))} passed the test")
    return "; ".join(testing)


def memory_words(protection: MemoryProtection | None) -> str:
    """How many lost nodes a step in memory survives, as the end of a sentence; "" if there is only one node."""
    if protection is None or (not protection.asked and not protection.lost_nodes):
        return ""
    count, asked = protection.lost_nodes, protection.asked
    told = "no lost node" if not count else "any lost node" if count == 1 else f"any {count} lost nodes"
    return f"; survives {told}" + (f" (degraded: {asked} asked for)" if count < asked else "")


def failure_words(saves: SavesStatus | None, now: float) -> str:
    """What to warn of; "" while saves succeed."""
    if saves is None or saves.failed is None:
        return ""
    failed = saves.failed
    row = f" ({failed.in_a_row} saves in a row failed)" if failed.in_a_row > 1 else ""
    return f"the newest save failed {ago_words(failed.at, now)}: {clean(failed.why)}{row}"


def refill_words(refill: RefillStatus) -> str:
    """Where one refill is, and what it waits for."""
    if refill.node is not None:
        return f"{refill.number}: job {refill.job or '?'} brought {clean(refill.node)}"
    if refill.job is None:
        return f"{refill.number}: Slurm is being asked for one node more"
    if not refill.waits:
        return f"{refill.number}: job {refill.job} has its node, whose agent has not joined yet"
    meaning = REASONS.get(refill.waits, "")
    why = f"{refill.waits}: {meaning}" if meaning else refill.waits
    return f"{refill.number}: job {refill.job} waits in the queue for one node ({clean(why)})"


def excluded_lines(excluded: Sequence[ExcludedNode], look: PageFormat) -> list[str]:
    """Which nodes the run may not use, why, and until when."""
    lines = []
    for one in excluded[:EXCLUDED_SHOWN_COUNT]:
        until = f"until {clock_words(one.until, look.now, look.zone)} ({ago_words(one.until, look.now)})"
        text = f"{clean(one.node)} {until}: {clean(one.reason)}"
        lines += wrapped(text, look.columns, f"  {'excluded'.ljust(LABEL_CHARS)}", " " * (LABEL_CHARS + 4))
    if len(excluded) > EXCLUDED_SHOWN_COUNT:
        lines.append(f"  {' ' * LABEL_CHARS}and {len(excluded) - EXCLUDED_SHOWN_COUNT} more (--json has all)")
    return lines


def recovery_lines(recoveries: Sequence[RecoveryStatus], look: PageFormat) -> list[str]:
    """Each recovery: between which attempts, by what, how long by part, and what was lost."""
    lines = []
    for one in recoveries:
        after = "?" if one.next_attempt is None else str(one.next_attempt)
        between = f"attempt {one.attempt}" if one.rung == "end" else f"attempt {one.attempt} → {after}"
        first = f"  {between.ljust(LABEL_CHARS + 3)}"
        lines += wrapped(clean(recovery_words(one)), look.columns, first, " " * len(first))
    return lines


def recovery_words(one: RecoveryStatus) -> str:
    """``restart in place, 0.66 s (noticed 0.02 s, stopped 0.40 s, ...); 3 steps and 9.3 GPU-seconds lost``."""
    spans = msgspec.structs.asdict(one.parts)
    parts = [
        f"{name.removesuffix('_s').replace('_', ' ')} {exact_words(span)}"
        for name, span in spans.items()
        if span >= SPAN_SHOWN_S
    ]
    means = "not over yet" if one.rung is None else RUNG_WORDS.get(one.rung, one.rung)
    told = f"{means}, {exact_words(one.whole_s)}"
    lost = [] if one.lost_steps is None else [counted(one.lost_steps, "step")]
    lost += [] if one.lost_gpu_s is None else [f"{amount_words(one.lost_gpu_s)} GPU-seconds"]
    return told + (f" ({', '.join(parts)})" if parts else "") + (f"; {' and '.join(lost)} lost" if lost else "")


def amount_words(amount: float) -> str:
    """``9.31``, ``1250``."""
    return f"{amount:.3g}" if amount < 100 else f"{amount:.0f}"


def exact_words(seconds: float) -> str:
    """``0.66 s``; minutes and hours in words."""
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 100 else span_words(seconds)


def _attempts(status: Status, look: PageFormat) -> list[str]:
    attempts = status.attempts
    if not attempts:
        return []
    shown = attempts[-ATTEMPTS_SHOWN_COUNT:]
    until = status.last_sign if status.abandoned and status.last_sign else look.now
    rows = [_attempt(one, until, status.reason, look) for one in shown]
    lines = ["", *table(("attempt", "began", "lasted", "from step", "outcome"), rows, look.columns)]
    lines[1] = styled(lines[1], "dim", look.color)
    if len(attempts) > len(shown):
        lines.append(f"  and {len(attempts) - len(shown)} before (--json has all)")
    return lines


def _attempt(one: AttemptStatus, until: float, told_above: str, look: PageFormat) -> tuple[str, ...]:
    ended = one.ended if one.ended is not None else until
    lasted = span_words(ended - one.started)
    known = "-" if one.resumed_from_save is None else "not known"
    origin = known if one.resumed_from_step is None else str(one.resumed_from_step)
    outcome = clean(one.outcome)
    told = f"{outcome}: {clean(one.reason)}" if one.reason else outcome
    if one.reason and one.reason == told_above:
        told = f"{outcome} (reason above)"
    return str(one.number), clock_words(one.started, look.now, look.zone), lasted, origin, told


def _next(status: Status) -> str:
    run = clean(status.run)
    if status.job is not None and not status.attempts:
        place = f"{clean(status.directory)}/logs/job-{clean(status.job)}.out"
        return f"gangrun explain {run} shows every decision; once the job has begun, its output is in {place}"
    if status.state == "FAILED":
        return f"gangrun logs --errors {run} shows which rank failed first; gangrun explain {run} shows every decision"
    return f"gangrun explain {run} shows every decision; the run directory is {clean(status.directory)}"


def overview(statuses: Sequence[Status | UnreadableRun], look: PageFormat) -> list[str]:
    """Several runs, one line each; the caller has them newest first."""
    head = ("run", "name", "state", "where", "step", "restarts", "began", "reason")
    rows = [_line(status, look) for status in statuses]
    plain = table(head[:-1], [row[:-1] for row in rows], 10_000, "")
    room = look.columns - max(len(line) for line in plain) - 2
    if room < 24:  # a sentence needs some room, or it is left to the page of the run
        lines = plain
    else:
        width = max(len(line) for line in plain)
        reasons = [head[-1], *(row[-1] for row in rows)]
        pairs = zip(plain, reasons, strict=True)
        lines = [f"{line.ljust(width)}  {_cut(reason, room)}".rstrip() for line, reason in pairs]
    lines[0] = styled(lines[0], "dim", look.color)
    return lines


def _line(status: Status | UnreadableRun, look: PageFormat) -> tuple[str, ...]:
    state = "ABANDONED" if status.abandoned else status.state
    began = status.attempts[0].started if status.attempts else status.created
    return (
        clean(status.run),
        _cut(clean(status.name), WHERE_CHARS),
        clean(state),
        _cut(clean(fold(status.nodes)), WHERE_CHARS),
        "-" if status.step is None else str(status.step),
        str(status.restarts),
        ago_words(began, look.now) if began else "-",
        clean(status.reason),
    )


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: max(chars - 1, 1)] + "…"
