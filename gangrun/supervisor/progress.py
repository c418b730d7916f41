"""What the ranks' samples say: steps, marks, stalls; and when to look for checkpoints.

Samples ride on beats. The hang watch itself is ``core.recovery.hang``; ``GangProgress`` says which samples it sees,
when it is asked, and what people are shown meanwhile.

``CheckpointPolling`` looks into the checkpoint directory now and then while ranks train, and every second while all
wait for a save, which ends as soon as that save is there. A flush is due when no new checkpoint has reached the disk
for ``flush_every_s``, whoever writes there, and memory has a newer step; and at once when ranks began from a step in
memory of which a lost node held a part, until the disk or all nodes have it or a newer one. One that goes on is never
asked for again: that would begin it anew.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gangrun.core.checkpoints.flush_to_disk import END_WITHIN_S
from gangrun.core.checkpoints.memory import with_fewer_copies
from gangrun.core.events import (
    AlertSeen,
    AnomalySeen,
    Event,
    FirstStepSeen,
    FlushDue,
    ProgressMarked,
    ProgressStalled,
    SelfCheckFailed,
    StepsTimed,
)
from gangrun.core.evidence import AlertKind, Anomaly, AnomalyKind, SelfChecks, StateFigures
from gangrun.core.model import Phase, RunState, StepTime
from gangrun.core.nodes import race
from gangrun.core.nodes.race import StepTimes
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.recovery import alerts
from gangrun.core.recovery.fill_rules import FillAlerts
from gangrun.core.recovery.gpu_rules import GpuUse, GpuWatch
from gangrun.core.recovery.hang import LONG_PHASES, HangWatch, Quiet, Stall
from gangrun.core.recovery.loss_rules import CALM_COUNT
from gangrun.core.recovery.pace_rules import PaceWatch
from gangrun.core.text import json_number
from gangrun.ports import Checkpoints
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.opening import RunFacts
from gangrun.wire.messages import RankSample

NEVER = float("inf")
RANKS_EVERY_S = 15.0
RANKS_PER_S = 100.0  # written to disk for people; 16,384 ranks take half a megabyte
HALTED_BEATS = 2.0
HALTED_FACTOR = 3.0  # a gang that makes no step for three of its longest recent intervals has halted
INTERVALS_COUNT = 16
STEPS_TELL_COUNT = 5  # so many steps tell the interval of a gang that this supervisor has not seen stepping
JUDGE_AGAIN_S = 1.0
RATE_OVER_S = 60.0
RATE_POINTS_MIN_COUNT = 3
PROTECT_AGAIN_S = 60.0  # after a write that failed
ANOMALY_BEATS = 1.5  # so long after the first rank tells of an anomaly all others have


class Rate:
    """How fast a count grows, over the last ``RATE_OVER_S``."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        """The count is so high by now; one that has not grown says nothing."""
        points = self._points
        if points and count <= points[-1][1]:
            return
        points.append((now, count))
        while len(points) > RATE_POINTS_MIN_COUNT and now - points[0][0] > RATE_OVER_S:
            points.popleft()

    def per_s(self, now: float) -> float | None:
        """None until enough is known. If nothing has come for long, the wait counts too."""
        if len(self._points) < RATE_POINTS_MIN_COUNT:
            return None
        (began_at, first), (newest_at, last) = self._points[0], self._points[-1]
        over_s, quiet_s = newest_at - began_at, now - newest_at
        if quiet_s > HALTED_FACTOR * over_s / (len(self._points) - 1):
            over_s += quiet_s
        return (last - first) / over_s if over_s > 0 else None


class GangFigures:
    """What ranks tell of their training, for people: the lowest rank that tells it is believed."""

    def __init__(self, total_steps: int = 0) -> None:
        """``total_steps``: as the user says, which counts more than what ranks tell; 0: not said."""
        self._asked_total_steps = total_steps
        self._loss_rank = self._norm_rank = sys.maxsize
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self._total_steps = self._tokens_count = -1
        self._steps, self._tokens = Rate(), Rate()

    def observe(self, readings: Sequence[RankSample], step: int, now: float) -> None:
        """One node's ranks; ``step``: the highest of the gang that is reported or printed."""
        for one in readings:
            if one.loss is not None and one.rank <= self._loss_rank:
                self._loss_rank, self._loss = one.rank, one.loss
            if one.grad_norm is not None and one.rank <= self._norm_rank:
                self._norm_rank, self._grad_norm = one.rank, one.grad_norm
            if one.total_steps >= 0:
                self._total_steps = max(self._total_steps, one.total_steps)
            if one.tokens_count >= 0:
                self._tokens_count = max(self._tokens_count, one.tokens_count)
        if step >= 0:
            self._steps.add(step, now)
        if self._tokens_count > 0:
            self._tokens.add(self._tokens_count, now)

    def add_state(self, told: StateFigures) -> None:
        """What a file of the framework tells counts where ranks tell nothing."""
        self._total_steps = max(self._total_steps, told.total_steps)
        self._loss = told.loss if self._loss_rank == sys.maxsize and told.loss is not None else self._loss

    @property
    def total_steps(self) -> int:
        """Of the whole run, as ranks or files tell; -1: they do not."""
        return self._total_steps

    @property
    def loss(self) -> float | None:
        """The newest that is known."""
        return self._loss

    def live(self, now: float) -> dict[str, Any]:
        """All that is known; the rest is missing."""
        figures = {
            "loss": json_number(self._loss),
            "grad_norm": json_number(self._grad_norm),
            "total_steps": self._asked_total_steps or (self._total_steps if self._total_steps > 0 else None),
            "steps_per_s": self._steps.per_s(now),
            "tokens": self._tokens_count if self._tokens_count > 0 else None,
            "tokens_per_s": self._tokens.per_s(now),
        }
        return {name: value for name, value in figures.items() if value is not None}


class GangAnomalies:
    """What agents found wrong with the loss, from all nodes: one event for what thousands of ranks see at once."""

    def __init__(self, attempt: int, settle_s: float) -> None:
        self.due_at = NEVER
        self._attempt, self._settle_s = attempt, settle_s
        self._first: dict[tuple[AnomalyKind, str], AnomalySeen] = {}  # in the stretch that runs, by kind and number
        self._ranks: dict[tuple[AnomalyKind, str], set[int]] = {}
        self._told: dict[tuple[AnomalyKind, str], bool] = {}  # as lasting?

    def observe(self, node: str, rank: int, anomaly: Anomaly, now: float) -> None:
        """One rank's newest of this kind, which each heartbeat repeats."""
        key = anomaly.kind, anomaly.what
        known = self._first.get(key)
        seen = AnomalySeen(self._attempt, rank, node, anomaly)
        if known is None or anomaly.since_step > known.anomaly.step + CALM_COUNT:
            self._first[key], self._ranks[key] = seen, {rank}
            self._told.pop(key, None)
        elif known.anomaly.since_step > anomaly.step + CALM_COUNT:
            return  # this rank has not come to the newest one
        else:
            self._ranks[key].add(rank)
            lasting = known.anomaly.lasting or anomaly.lasting
            leads = (anomaly.since_step, rank) <= (known.anomaly.since_step, known.rank)
            first = seen if leads else known
            self._first[key] = replace(first, anomaly=replace(first.anomaly, lasting=lasting))
        if self._told.get(key) is None or self._first[key].anomaly.lasting > self._told[key]:
            self.due_at = min(self.due_at, now + self._settle_s)

    def take(self, now: float) -> list[Event]:
        """What is to be recorded now: a rank that saw it earlier may have told it later."""
        if now < self.due_at:
            return []
        self.due_at = NEVER
        news: list[Event] = []
        for key, seen in self._first.items():
            told = self._told.get(key)
            if told is None or seen.anomaly.lasting > told:
                self._told[key] = seen.anomaly.lasting
                news.append(replace(seen, ranks_count=len(self._ranks[key])))
        return news


class GangAlerts:
    """What one attempt's speed and resources show, from all nodes: an event only for what changes."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._paces, self._growths = PaceWatch(policy.trends, now), FillAlerts(policy.trends)
        self.gpus = GpuWatch(policy.trends, now)
        self._adopted = False

    def observe(self, node: str, reading: RankSample, now: float) -> None:
        """One rank's newest sample, if it tells anything."""
        if reading.pace is not None:
            self._paces.observe(node, reading.rank, reading.pace, reading.tokens_count)
        if reading.gpu is not None:
            self.gpus.observe(node, reading.rank, reading.gpu, trains=reading.phase not in LONG_PHASES)
        if reading.growths:
            self._growths.observe(node, reading.rank, reading.growths, now, self.gpus.number(reading.rank))

    def advanced(self, step: int, now: float) -> None:
        """The gang is at a new step."""
        self._paces.advanced(step, now)

    @property
    def due_at(self) -> float:
        """When ``take`` has something to compare or to tell."""
        return min(self._paces.due_at, self._growths.due_at, self.gpus.due_at)

    def take(self, state: RunState, now: float) -> list[Event]:
        """What is to be recorded now."""
        if not self._adopted:
            self._adopted = True
            known = [one.alert for one in alerts.open_ones(state)]
            self._paces.adopt(known)
            self._growths.adopt(known, now)
            self.gpus.adopt(known)
        changes = [
            (self.gpus.explained(alert) if alert.kind is AlertKind.SLOW_RANK else alert, is_over)
            for alert, is_over in self._paces.take(now)
        ]
        changes += self.gpus.take(now, self._paces.slower, self._paces.stragglers)
        changes += self._growths.take(now)
        return [AlertSeen(state.attempt.number, alert, is_over) for alert, is_over in changes]


def gpu_figures(uses: Collection[GpuUse]) -> dict[str, Any]:
    """How all GPUs together are used; what none of them tells is missing."""
    busy = [use.busy_percent for use in uses if use.busy_percent >= 0]
    memory = [(use.memory_used_mib, use.memory_mib) for use in uses if use.memory_used_mib >= 0 and use.memory_mib > 0]
    power = [use.power_w for use in uses if use.power_w >= 0]
    used, whole = max(memory, key=lambda one: one[0] / one[1], default=(0, 0))
    figures = {
        "count": len(uses),
        "busy_percent": sum(busy) / len(busy) if busy else None,
        "busy_min_percent": min(busy, default=None),
        "memory_used_bytes": used << 20 if whole else None,
        "memory_bytes": whole << 20 if whole else None,
        "power_w": sum(power) if power else None,
        "temperature_c": max((use.temperature_c for use in uses if use.temperature_c >= 0), default=None),
        "slowed_count": sum(use.is_slowed for use in uses),
    }
    return {name: value for name, value in figures.items() if value is not None} if uses else {}


class GangProgress:
    """One gang's steps, as seen from the supervisor."""

    def __init__(self, policy: Policy, now: float, total_steps: int = 0) -> None:
        """``total_steps``: of the whole run, as the user says; 0: not said."""
        self._total_steps = total_steps
        self.warning = ""  # what the hang watch would tell people now
        self._policy = policy
        self._watch = HangWatch(policy.hang, now)
        self._attempt = -1
        self._started_at = now
        self._judge_at = NEVER
        self._told_until = -NEVER  # a stall was told, and is told again then
        self._suspended = False
        self._reset(now)

    def _reset(self, now: float) -> None:
        self.warning = ""
        self._samples: dict[str, Mapping[int, RankSample]] = {}  # by node, as of its newest beat
        self._ranks_at = now
        self._top = self._first = self._printed = self._printed_told = self._written = -1
        self._printed_first: tuple[int, int] | None = None  # and of how many steps; of the rank that told it first
        self._first_told = False
        self._anomalies = GangAnomalies(self._attempt, ANOMALY_BEATS * self._policy.timing.beat_every_s)
        self._alerts = GangAlerts(self._policy, now)
        self._blocks = StepTimes(self._policy.trends) if self._policy.race_stragglers else None
        self._raced = False  # the steps that a race waits for were told
        self._checks: dict[int, SelfChecks] = {}  # of each rank whose checks found something, as it was told last
        self._checks_due: list[Event] = []
        self._kept = -1, 0  # the newest step in memory, and how many lost nodes it bears
        self._figures = GangFigures(self._total_steps)
        self._advanced_at: float | None = None
        self._intervals: deque[float] = deque(maxlen=INTERVALS_COUNT)
        self._marked = -1
        self._mark_at = now + self._policy.progress_mark_every_s

    def begin(self, attempt: int, started_at: float, now: float) -> None:
        """All ranks of ``attempt``, which was begun at ``started_at``, live (or were found alive)."""
        if attempt == self._attempt:
            return
        self._attempt, self._started_at = attempt, started_at
        self._reset(now)
        self._watch.begin(now)
        if self._suspended:
            self._watch.suspend(now)
        self._judge_at = now + JUDGE_AGAIN_S
        self._told_until = -NEVER

    def end(self) -> None:
        """No gang runs: nothing to judge."""
        self._attempt = -1
        self._judge_at = NEVER

    def suspend(self, now: float) -> None:
        """The storage does not answer: ranks may wait for it."""
        self._suspended = True
        self._watch.suspend(now)

    def resume(self, now: float) -> None:
        """The storage answers again: ranks that waited for it get the whole limit anew."""
        self._suspended = False
        self._watch.resume(now)
        self._watch.note_checkpoint(now)
        if self._attempt >= 0:
            self._judge_at = now + JUDGE_AGAIN_S

    def asks_for_all(self, now: float) -> bool:
        """Are agents to tell of all ranks with each heartbeat?"""
        return self._watch.asks_for_all(now)

    def note_checkpoint(self, now: float) -> None:
        """A newer checkpoint is progress too."""
        self._watch.note_checkpoint(now)

    def observe(self, row: Row, now: float) -> None:
        """The readings of one beat, or all that are known if nothing of the node was read in this attempt."""
        if row.attempt != self._attempt:
            return
        is_brief, readings = row.is_brief, row.readings
        if not is_brief or self._samples.get(row.node) is not row.samples:
            is_brief, readings = False, tuple(row.samples.values())
            self._samples[row.node] = row.samples
        self._watch.observe(row.node, readings, now, is_brief=is_brief)
        if not readings:
            return
        top = readings[0].step
        newest_kept, known_first, printed = self._kept[0], self._first, self._printed
        for reading in readings:  # once, with few words: there may be 80,000 in a second at 10,000 agents
            step, first = reading.step, reading.first_step
            if reading.stand is not None:  # the watch sleeps for longer while all ranks move
                self._judge_at = min(self._judge_at, max(now + JUDGE_AGAIN_S, self._told_until))
            if first < 0:
                first = step
            if first >= 0 and not 0 <= known_first <= first:
                known_first = first
            top = max(top, step)
            if reading.kept_step >= newest_kept and reading.kept_step >= 0:
                self._kept = max(self._kept, (reading.kept_step, reading.kept_losses_count))
                newest_kept = self._kept[0]
            if reading.log_step >= 0:
                self._printed = max(self._printed, reading.log_step)
                if reading.log_first_step >= 0 and self._printed_first is None:
                    self._printed_first = reading.log_first_step, reading.total_steps
            if (
                reading.anomalies or reading.pace is not None or reading.growths
                or reading.gpu is not None or reading.checks is not None
            ):  # fmt: skip
                self._observe_signals(row.node, reading, now)
        self._first = known_first
        self._note_steps(readings, top, printed, now)

    def _note_steps(self, readings: Sequence[RankSample], top: int, printed: int, now: float) -> None:
        """What one node's samples say of the gang's steps: the highest, and what was printed before."""
        self._figures.observe(readings, max(top, self._top) if max(top, self._top) >= 0 else self._printed, now)
        if top > self._top:
            if self._advanced_at is not None:
                self._intervals.append((now - self._advanced_at) / (top - self._top if self._top >= 0 else 1))
            self._top = top
            self._advanced_at = now
            self._note_step(top, now)
        elif self._top < 0 and self._printed > printed:
            self._note_step(self._printed, now)

    def _note_step(self, step: int, now: float) -> None:
        self._alerts.advanced(step, now)
        if self._blocks is not None:
            self._blocks.advanced(step, now)

    @property
    def step_time(self) -> StepTime | None:
        """Of the newest steps; None: nobody races stragglers, or too few are known."""
        return None if self._blocks is None or self._attempt < 0 else self._blocks.newest()

    def _race_time(self, state: RunState) -> StepTime | None:
        """Of the first steps on the node that took a slow one's place, once they are as many as before."""
        if self._blocks is None or self._raced or state.attempt.number != self._attempt:
            return None
        count = race.wanted_count(state)
        return self._blocks.first(count) if count else None

    def _observe_signals(self, node: str, reading: RankSample, now: float) -> None:
        for anomaly in reading.anomalies:
            self._anomalies.observe(node, reading.rank, anomaly, now)
        self._alerts.observe(node, reading, now)
        if reading.checks is not None and reading.checks != self._checks.get(reading.rank):
            self._checks[reading.rank] = reading.checks
            self._checks_due.append(SelfCheckFailed(self._attempt, reading.rank, node, reading.checks))

    @property
    def kept_step(self) -> int:
        """The newest step that is whole in the nodes' memory, as ranks say; -1: none."""
        return self._kept[0]

    @property
    def stepped_at(self) -> float | None:
        """When the gang was first seen at its newest step; None: it has reported none."""
        return self._advanced_at

    def halted(self, now: float) -> bool | None:
        """Has the gang stopped stepping? None: it reports no steps, or too few, so nobody knows."""
        if self._advanced_at is None:
            return None
        steps_count = self._top - max(0, self._first)
        if len(self._intervals) >= 2:
            interval_s = max(self._intervals)
        elif steps_count >= STEPS_TELL_COUNT:  # of a gang that was adopted: its mean since it was started
            interval_s = (self._advanced_at - self._started_at) / steps_count
        else:
            return None
        return now - self._advanced_at >= max(
            HALTED_BEATS * self._policy.timing.beat_every_s, HALTED_FACTOR * interval_s
        )

    def next_at(self, state: RunState) -> float:
        """When ``tick`` has something to say."""
        if state.phase is not Phase.RUNNING:
            return NEVER
        if self.first_step_due or self._unreported_first_due:
            return -NEVER
        if self._prints_first or self._checks_due or self._race_time(state) is not None:
            return -NEVER
        marks = self._top > self._marked or self._prints_farther
        return min(self._judge_at, self._mark_at if marks else NEVER, self._anomalies.due_at, self._alerts.due_at)

    def tick(self, state: RunState, now: float) -> list[Event]:
        """Whatever the steps ask to be recorded."""
        if state.phase is not Phase.RUNNING or state.attempt.number != self._attempt:
            return []
        told: list[Event] = []
        if self._unreported_first_due:
            self._first_told = True
            if self._written >= 0:
                told.append(FirstStepSeen(state.attempt.number, self._written, written=True))
            elif self._printed_first is not None:
                told.append(FirstStepSeen(state.attempt.number, self._printed_first[0], True, self._printed_first[1]))
        if self.first_step_due:
            self._marked = self._first
            if state.attempt.step < 0:
                told.append(FirstStepSeen(state.attempt.number, self._marked))
        if now >= self._mark_at and self._top > self._marked:
            self._marked = self._top
            self._mark_at = now + self._policy.progress_mark_every_s
            told.append(self._mark(self._top, printed=False))
        if self._prints_first or (now >= self._mark_at and self._prints_farther):
            self._printed_told = self._printed
            self._mark_at = now + self._policy.progress_mark_every_s
            told.append(self._mark(self._printed, printed=True))
        told.extend(self._anomalies.take(now))
        told.extend(self._checks_due)
        self._checks_due = []
        told.extend(self._alerts.take(state, now))
        if (timed := self._race_time(state)) is not None:
            self._raced = True
            told.append(StepsTimed(self._attempt, timed.step_s, timed.steps_count))
        if now >= self._judge_at:
            told.extend(self._judged(state, now))
        return told

    def _mark(self, step: int, *, printed: bool) -> ProgressMarked:
        figures = self._figures
        return ProgressMarked(self._attempt, step, printed, figures.total_steps, json_number(figures.loss))

    @property
    def _prints_farther(self) -> bool:
        """Did ranks that report no step print one that was not told yet?"""
        return self._top < 0 and self._printed > self._printed_told

    def note_state(self, told: StateFigures | None, now: float) -> None:
        """What the framework's own files tell of this attempt, for ranks that neither report nor print steps."""
        if told is None or self._attempt < 0:
            return
        self._figures.add_state(told)
        if self._top < 0 and (self._printed < 0 or self._written >= 0) and told.step > self._printed:
            self._printed = self._written = told.step
            self._figures.observe((), told.step, now)

    @property
    def _unreported_first_due(self) -> bool:
        """Did ranks that report no step print or write one, and was the first not told yet?"""
        return self._top < 0 and not self._first_told and (self._written >= 0 or self._printed_first is not None)

    @property
    def _prints_first(self) -> bool:
        """The same, and none was told in this attempt: that is when it trains again."""
        return self._prints_farther and self._printed_told < 0

    @property
    def first_step_due(self) -> bool:
        """A step was reported and none was told yet."""
        return self._top >= 0 and self._marked < 0

    def _judged(self, state: RunState, now: float) -> list[Event]:
        verdict = self._watch.judge(now)
        match verdict:
            case Quiet():
                self.warning = verdict.sentence
                self._judge_at = NEVER if verdict.next_at == NEVER else max(verdict.next_at, now + JUDGE_AGAIN_S)
                if not any(self._samples.values()):
                    self._judge_at = min(self._judge_at, now + JUDGE_AGAIN_S)
                return []
            case Stall():
                self.warning = verdict.sentence
                again_s = verdict.stalled_s if self._policy.observe else 0.0  # nobody ends it: told ever more seldom
                # again only if nothing came of it
                self._judge_at = self._told_until = now + max(self._policy.stop_within_s, again_s)
                return [ProgressStalled(state.attempt.number, verdict.stalled_s, verdict.limit_s, verdict.observations)]

    def _ranks(self, now: float) -> dict[str, Any]:
        """Rank, pid, state and step of every rank by node, and its GPU, now and then: many ranks are a large file."""
        if now < self._ranks_at or not self._samples:
            return {}
        found = {
            node: [(one.rank, one.pid, one.state, one.step) for one in samples.values()]
            for node, samples in self._samples.items()
        }
        self._ranks_at = now + max(RANKS_EVERY_S, sum(map(len, found.values())) / RANKS_PER_S)
        return {"ranks": found, "rank_gpus": self._alerts.gpus.newest()}

    def live(
        self, state: RunState, now: float, heard_count: int, standbys: Mapping[str, tuple[int, int]]
    ) -> dict[str, Any]:
        """The newest figures, for whoever looks at the run. ``standbys``: by node, how many and their bytes."""
        gpus = gpu_figures(self._alerts.gpus.newest().values())
        known = [samples for samples in self._samples.values() if samples]
        return {
            **self._ranks(now),
            **({"gpu": gpus} if gpus else {}),
            **({"standbys": _standby_figures(standbys)} if standbys else {}),
            "at": now,
            "phase": state.phase.value,
            "attempt": state.attempt.number,
            "step": self._top if self._top >= 0 else state.attempt.step,
            **({"log_step": self._printed} if self._top < 0 <= self._printed else {}),
            **self._figures.live(now),
            "kept_step": self._kept[0],
            "kept_losses_count": self._kept[1],
            "slot_phase": max((next(iter(samples.values())).phase for samples in known), default=0),
            "agents_heard_count": heard_count,
            "warning": self.warning,
        }


def _standby_figures(standbys: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    count, memory_bytes = (sum(column) for column in zip(*standbys.values(), strict=True))
    return {"count": count, "memory_bytes": memory_bytes, "nodes": fold(standbys)}


SAVING_EVERY_S = 1.0


class CheckpointPolling:
    """One supervisor's; without looks or flushes where the facts say that there is no directory or no memory."""

    def __init__(
        self, checkpoints: Checkpoints, facts: RunFacts, state: RunState, now: float, progress: GangProgress
    ) -> None:
        self._checkpoints, self._every_s, self._progress = checkpoints, facts.checkpoint.looks_every_s, progress
        self._flush_every_s = facts.checkpoint.flushes_every_s
        self._at = now
        self._flush_at = now + self._flush_every_s
        self._protect_at = now  # a step with fewer copies than it had is written then
        self._writes_until = now  # at the latest
        if state.underway.saving:
            self._await_save(now)

    def follow(self, before: RunState, state: RunState, now: float) -> None:
        """Keep in step with the state."""
        if state.phase is Phase.RUNNING and (
            before.phase is not Phase.RUNNING or state.attempt.number != before.attempt.number
        ):
            self._at = now + self._every_s
            self._flush_at = now + self._flush_every_s
            self._protect_at = self._writes_until = now
        if state.checkpoints.disk_step > before.checkpoints.disk_step:
            self._flush_at = now + self._flush_every_s
        if state.underway.saving and not before.underway.saving:
            self._await_save(now)

    def look_soon(self, now: float) -> None:
        """Ranks have just saved."""
        self._at = min(self._at, now)

    def _await_save(self, now: float) -> None:
        if self._every_s > 0:
            self._checkpoints.await_save()
            self._at = now + min(self._every_s, SAVING_EVERY_S)

    def due(self, state: RunState) -> float:
        """When to look next, or to have something written down."""
        looks = self._every_s > 0 and (state.underway.saving or state.phase is Phase.RUNNING)
        return min(self._at if looks else NEVER, self._flush_due(state), self._protection_due(state))

    def _flush_due(self, state: RunState) -> float:
        return max(self._flush_at, self._writes_until) if self._flush_every_s > 0 and _trains_on(state) else NEVER

    def _protection_due(self, state: RunState) -> float:
        base = state.attempts[-1].memory if state.attempts and _trains_on(state) else None
        if base is None or base.step <= max(state.checkpoints.disk_step, self._progress.kept_step):
            return NEVER  # asked in each turn, so who holds it is compared only now
        return NEVER if with_fewer_copies(state.attempts) is None else max(self._protect_at, self._writes_until)

    def look(self, state: RunState, now: float) -> list[Event]:
        """Look, if it is time to; what is to be written down."""
        if self._every_s > 0 and (state.underway.saving or state.phase is Phase.RUNNING) and now >= self._at:
            self._at = now + (min(self._every_s, SAVING_EVERY_S) if state.underway.saving else self._every_s)
            self._checkpoints.look(state.checkpoints.disk_step)
            self._progress.note_state(self._checkpoints.figures(), now)
        if now >= self._protection_due(state):
            base = state.attempts[-1].memory
            assert base is not None
            return self._asked_for(state, base.step, now)
        if now < self._flush_due(state):
            return []
        step = self._progress.kept_step
        if step <= state.checkpoints.disk_step:
            self._flush_at = now + min(self._flush_every_s, SAVING_EVERY_S)  # as soon as there is one
            return []
        return self._asked_for(state, step, now)

    def _asked_for(self, state: RunState, step: int, now: float) -> list[Event]:
        self._flush_at, self._writes_until = now + self._flush_every_s, now + END_WITHIN_S
        return [FlushDue(state.attempt.number, step)]

    def brought(self, now: float) -> None:
        """A write is over, or has failed; how soon the next one may be due. What is on disk is looked at first."""
        self._writes_until = now
        self._flush_at = max(self._flush_at, now + self._every_s)
        self._protect_at = now + PROTECT_AGAIN_S
        self.look_soon(now)


def _trains_on(state: RunState) -> bool:
    return state.phase is Phase.RUNNING and state.store_stalled_since is None
