"""Is the gang hung? A table of each rank's signs of progress.

A sign is *told* (a step, output, a checkpoint) or *shown* (busy after idle, back from the kernel). A stall is a long
time without any sign **and** evidence: all ranks idle, or one stopped or stuck. Ranks that work without a word, in an
evaluation or a compilation, are not hung. How long is long is learnt from the run; whoever trains on after a rank has
ended may wait for it in vain, and gets the least. ``blame_hang`` names the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gangrun.core.evidence import RankObservation
from gangrun.core.policy import HangPolicy
from gangrun.core.recovery import standing
from gangrun.core.recovery.standing import GangScene, GangStand, Stand
from gangrun.core.text import counted

NEVER = float("inf")
CPU_WINDOW_S = 5.0
BUSY_FACTOR = 5.0  # busy is this many times what still counts as idle, so that no rate flickers between the two
STUCK_AFTER_S = 30.0  # in state D at every look for so long, not merely at one
STALE_AFTER_S = 10.0  # older readings of a node say nothing about now
LOOK_AGAIN_S = 5.0
LOOKS_PER_LIMIT = 4.0
STAND_AGAIN_S = 1.0
ASKS_PER_LIMIT = 8.0  # after this part of the limit without progress all ranks are looked at
SLACK_FACTOR = 2.0  # no limit is below twice an interval that the run has survived, whatever ended it


# Numbers of ``wire.progress.TrainingPhase``: an evaluation and a checkpoint may take long without a sign of progress.
LONG_PHASES = frozenset({3, 4})
STOPPED_STATES = frozenset({"T", "t"})


class RankSigns(Protocol):
    """A rank's newest sample; ``ports.RankReading`` and ``wire.messages.Reading`` are such."""

    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def phase(self) -> int: ...
    @property
    def slot_writes_count(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def cpu_s(self) -> float: ...
    @property
    def state(self) -> str: ...
    @property
    def is_sampled(self) -> bool: ...
    @property
    def stand(self) -> Stand | None: ...
    @property
    def moves(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Stall:
    """The gang is hung."""

    stalled_s: float
    limit_s: float
    observations: tuple[RankObservation, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """Not hung; look again at ``next_at``. ``sentence`` warns from half of the limit on, else ""."""

    next_at: float
    limit_s: float
    sentence: str = ""


def tells(was: RankSigns, now: RankSigns) -> bool:
    """Did a rank report a step, write to its progress page or print since?"""
    return now.step > was.step or now.slot_writes_count > was.slot_writes_count or now.output_bytes > was.output_bytes


@dataclass(slots=True)
class _Row:
    """One rank, as it was at the newest look."""

    node: str
    seen: RankSigns
    state_since: float
    window_at: float
    window_cpu_s: float
    cpu_rate: float = -1.0  # -1: not known yet
    idle: bool = False
    phase_since: float = 0.0


@dataclass(slots=True)
class _LongPhase:
    """What is known of one of ``LONG_PHASES``."""

    count: int = 0  # times that the last rank left it
    longest_s: float = 0.0  # that a rank was in it


class HangWatch:
    """One gang's signs of progress. ``begin`` at each attempt; what was learnt of the steady phase is kept."""

    def __init__(self, policy: HangPolicy, now: float) -> None:
        self.policy = policy
        self._usual_s = 0.0  # longest interval that ended with a word
        self._survived_s = 0.0  # longest interval that ended with any sign
        self._long_phases = {phase: _LongPhase() for phase in LONG_PHASES}
        self.begin(now)

    def begin(self, now: float) -> None:
        """A new attempt starts up."""
        self._rows: dict[int, _Row] = {}
        self._inside: dict[int, set[int]] = {phase: set() for phase in LONG_PHASES}  # the ranks that are in it
        self._of_node: dict[str, tuple[int, ...]] = {}
        self._heard_at: dict[str, float] = {}
        self._ended: set[int] = set()
        self._began_at = self._counts_from = now
        self._sign_at = now
        self._moved_at = -NEVER  # when a rank was last seen to issue collectives
        self._top_step = -1
        self._steps_count = 0  # times that the gang's step advanced
        self._told_count = 0
        self._intervals_count = 0
        self._suspended_at: float | None = None
        self._unfit = False  # this interval must not be learnt from
        self._asks_after_s = NEVER if self.policy.timeout_s == 0 else 0.0

    # ---- what comes in -------------------------------------------------------------------------------------------

    def observe(self, node: str, readings: Sequence[RankSigns], now: float, *, is_brief: bool = False) -> None:
        """The newest readings of all ranks that live on ``node``; whoever is no longer among them has ended.

        ``is_brief``: only of those that tell something new; all others live on as they were.
        """
        rows = self._rows
        for reading in readings:  # of thousands of ranks each second, nearly all as busy as before
            row = rows.get(reading.rank)
            if reading.moves:
                self._moved_at = now
            if row is not None:
                was, row.seen = row.seen, reading
                if (
                    reading.state != was.state
                    or reading.phase != was.phase
                    or now - row.window_at >= CPU_WINDOW_S
                    or reading.state in STOPPED_STATES
                ):
                    self._compare(row, was, reading, now)
                elif tells(was, reading):
                    self._told(reading, now)
                continue
            self._rows[reading.rank] = _Row(node, reading, now, now, reading.cpu_s, phase_since=now)
            self._ended.discard(reading.rank)
            if reading.phase in LONG_PHASES:
                self._inside[reading.phase].add(reading.rank)
            if reading.step >= 0 or reading.output_bytes > 0:
                self._told(reading, now)
        if is_brief:
            if node in self._heard_at:
                self._heard_at[node] = now
            return
        here = tuple([reading.rank for reading in readings])
        known = self._of_node.get(node, ())
        if here != known:
            for rank in set(known).difference(here):
                self._inside.get(self._rows.pop(rank).seen.phase, set()).discard(rank)
                self._ended.add(rank)
            self._of_node[node] = here
        if here:
            self._heard_at[node] = now
        else:
            self._heard_at.pop(node, None)

    def asks_for_all(self, now: float) -> bool:
        """May the gang be hung soon, so that no reading of any rank may be left out?"""
        return now - self._sign_at >= self._asks_after_s

    def note_checkpoint(self, now: float) -> None:
        """A newer checkpoint was committed: progress, whoever made it."""
        self._sign(now, told=True)

    def suspend(self, now: float) -> None:
        """Time does not count from here: the storage does not answer, so ranks may wait for it innocently."""
        if self._suspended_at is None:
            self._suspended_at = now

    def resume(self, now: float) -> None:
        """Time counts again."""
        if self._suspended_at is not None:
            self._sign_at += now - max(self._suspended_at, self._sign_at)
            self._suspended_at = None
            self._unfit = True
            self._counts_from = now

    def _compare(self, row: _Row, was: RankSigns, reading: RankSigns, now: float) -> None:
        shown = False
        if reading.state != was.state:
            row.state_since, shown = now, was.state == "D"
        if now - row.window_at >= CPU_WINDOW_S:
            shown = self._new_window(row, reading.cpu_s, now) or shown
        if tells(was, reading):
            self._told(reading, now)
        elif shown:
            self._sign(now, told=False)
        if reading.phase != was.phase:
            self._unfit |= reading.phase in LONG_PHASES or was.phase in LONG_PHASES
            self._new_phase(reading.rank, was.phase, reading.phase, now - row.phase_since)
            row.phase_since = now
        if reading.state in STOPPED_STATES:
            self._unfit = True

    def _new_phase(self, rank: int, left: int, entered: int, lasted_s: float) -> None:
        if left in LONG_PHASES:
            known, others = self._long_phases[left], self._inside[left]
            others.discard(rank)
            known.longest_s = max(known.longest_s, lasted_s)
            known.count += not others
        if entered in LONG_PHASES:
            self._inside[entered].add(rank)

    def _new_window(self, row: _Row, cpu_s: float, now: float) -> bool:
        """Judge the CPU window that ends now; True when the rank turned busy after it was idle."""
        row.cpu_rate = max(0.0, cpu_s - row.window_cpu_s) / (now - row.window_at)
        row.window_at, row.window_cpu_s = now, cpu_s
        if row.cpu_rate < self.policy.idle_cpu_rate:
            row.idle = True
        elif row.idle and row.cpu_rate >= BUSY_FACTOR * self.policy.idle_cpu_rate:
            row.idle = False
            return True
        return False

    def _told(self, reading: RankSigns, now: float) -> None:
        self._told_count += 1
        if now > self._sign_at:  # most ranks of a beat tell what the first one did
            self._sign(now, told=True)
        if reading.step > self._top_step:
            self._steps_count += self._top_step >= 0
            self._top_step = reading.step

    def _sign(self, now: float, told: bool) -> None:
        """Somebody made progress: the interval that ends here is one that this run survives."""
        interval_s = now - self._sign_at
        if interval_s <= 0:
            return
        self._sign_at = now
        self._intervals_count += 1
        # What passes before the first steps, or between the first words of a script without steps, is start-up.
        settled = self._top_step >= 0 or self._told_count > self.policy.samples_min_count
        if settled and not self._unfit:
            self._survived_s = max(self._survived_s, interval_s)
            if told:
                self._usual_s = max(self._usual_s, interval_s)
        self._unfit = any(self._inside.values())  # what a phase takes that may be long says nothing of steps

    # ---- what comes out ------------------------------------------------------------------------------------------

    @property
    def steady(self) -> bool:
        """Is start-up over? A few steps say so; where none are reported, output that went on for a while."""
        enough = self.policy.samples_min_count
        if self._top_step >= 0:
            return self._steps_count >= enough
        lasted_s = self._sign_at - self._began_at
        return self._told_count >= enough and self._intervals_count >= enough and lasted_s >= self.policy.steady_min_s

    def limit_s(self) -> float:
        """How long without any sign is too long, in the present phase; 0 where the watch is off."""
        policy = self.policy
        if policy.timeout_s is not None:
            limit_s = policy.timeout_s
        elif self._ended:  # no start-up lasts so long, and steps of those that are left say no more how long one takes
            limit_s = max(policy.steady_min_s, SLACK_FACTOR * self._survived_s)
        elif self.steady:
            learnt_s = min(policy.steady_max_s, max(policy.steady_min_s, policy.factor * self._usual_s))
            limit_s = max(learnt_s, SLACK_FACTOR * self._survived_s)
        else:
            limit_s = policy.startup_limit_s
        return max(limit_s, self._long_phase_s()) if limit_s else 0.0

    def _long_phase_s(self) -> float:
        """How long ranks may stand in an evaluation or a save, learnt from those before; 0: no rank is in one."""
        policy, longest_s = self.policy, 0.0
        for phase in (phase for phase, ranks in self._inside.items() if ranks):
            known = self._long_phases[phase]
            learnt_s = min(policy.steady_max_s, max(policy.long_phase_min_s, policy.factor * known.longest_s))
            is_known = known.count >= standing.KNOWN_COUNT
            limit_s = max(learnt_s, SLACK_FACTOR * known.longest_s) if is_known else policy.steady_max_s
            longest_s = max(longest_s, limit_s)
        return longest_s

    def judge(self, now: float) -> Stall | Quiet:
        """Hung or not, and when to look again."""
        if self._suspended_at is not None or not self._rows or self.policy.timeout_s == 0:
            return Quiet(NEVER, 0.0)
        limit_s = self.limit_s()
        self._asks_after_s = limit_s / ASKS_PER_LIMIT
        found = self._stand(limit_s, now)
        by_stands = self._stood(found, now) if found is not None else None
        if isinstance(by_stands, Stall):
            return by_stands
        by_signs = self._by_signs(limit_s, now)
        if found is not None and isinstance(by_signs, Stall):
            return replace(by_signs, observations=self._with_places(found))
        return by_signs if by_stands is None else by_stands

    def _by_signs(self, limit_s: float, now: float) -> Stall | Quiet:
        """By what ranks tell and show, which is all there is of a command that is not Python."""
        stalled_s = now - self._sign_at
        # A limit may shrink at any time (start-up ends, a long phase ends), so nobody sleeps until half of it.
        soon = now + max(1.0, (self.policy.timeout_s or self.policy.steady_min_s) / LOOKS_PER_LIMIT)
        if now < self._sign_at + limit_s / 2:
            return Quiet(min(soon, self._sign_at + limit_s / 2), limit_s)
        if not self.steady and self._moves_on(now, limit_s):
            return Quiet(soon, limit_s)  # it never said anything, and trains
        warning = f"no sign of progress for {stalled_s:.0f} s{self._at_step()}; counts as hung at {limit_s:.0f} s"
        if now < self._sign_at + limit_s:
            return Quiet(min(soon, self._sign_at + limit_s), limit_s, warning)
        unheard = self._unheard(now)
        if unheard:
            return Quiet(now + LOOK_AGAIN_S, limit_s, f"no sign of progress for {stalled_s:.0f} s; {unheard}")
        evidence = self._evidence(now, stalled_s)
        if not evidence:
            why = "but ranks are busy"
            return Quiet(
                now + LOOK_AGAIN_S, limit_s, f"no sign of progress for {stalled_s:.0f} s{self._at_step()}, {why}"
            )
        sentence = f"no sign of progress for {stalled_s:.0f} s{self._at_step()} (limit {limit_s:.0f} s) and {evidence}"
        return Stall(stalled_s, limit_s, self.observations(), sentence)

    def _moves_on(self, now: float, limit_s: float) -> bool:
        """Did a rank issue collectives within the limit? It may stand for seconds at the moment."""
        return now - self._moved_at < limit_s or any(row.seen.moves for row in self._rows.values())

    def _unheard(self, now: float) -> str:
        """Why nobody may be called hung: readings that say nothing of now."""
        stale = [node for node, at in self._heard_at.items() if now - at > STALE_AFTER_S]
        return f"{counted(len(stale), 'node')} sent no recent heartbeat, so no rank counts as hung" if stale else ""

    def _stand(self, limit_s: float, now: float) -> GangStand | None:
        """What the ranks' samplers say."""
        samples = [row.seen for row in self._rows.values()]
        if not any(seen.stand is not None for seen in samples):
            return None
        counts_for_s = now - self._counts_from
        scene = GangScene(self.policy, self.steady, bool(self._ended), self._long_phase_s(), limit_s, counts_for_s)
        return standing.judge(samples, scene)

    def _stood(self, found: GangStand, now: float) -> Stall | Quiet:
        nodes = {rank: row.node for rank, row in self._rows.items()}
        said = f"{standing.sentence(found, nodes)}{self._at_step()}"
        unheard = self._unheard(now)
        if not found.hung or unheard:
            limit = unheard or f"counts as hung if all ranks stand, at {found.limit_s:.0f} s"
            return Quiet(now + STAND_AGAIN_S, found.limit_s, f"{said}; {limit}")
        return Stall(found.decided_s, found.limit_s, self._with_places(found), f"{said} (limit {found.limit_s:.0f} s)")

    def _with_places(self, found: GangStand) -> tuple[RankObservation, ...]:
        return tuple(
            replace(seen, sign=found.sign if seen.rank in found.named else "", place=found.place_of(seen.rank))
            for seen in self.observations()
        )

    def _evidence(self, now: float, stalled_s: float) -> str:
        """What besides the time says that this is a hang; "" when nothing does."""
        rows = self._rows
        stopped = [rank for rank, row in rows.items() if row.seen.state in STOPPED_STATES]
        if stopped:
            return f"rank {min(stopped)} is stopped"
        idle_rate, in_kernel = self.policy.idle_cpu_rate, [rank for rank, row in rows.items() if row.seen.state == "D"]
        idle = [row for row in rows.values() if row.seen.state != "D" and 0 <= row.cpu_rate < idle_rate]
        stuck = [rank for rank in in_kernel if now - rows[rank].state_since >= STUCK_AFTER_S]
        if stuck:
            return f"rank {min(stuck)} is stuck in the kernel (state D)"
        if len(idle) == len(rows) and not self._moves_on(now, self.limit_s()):
            return "all ranks are idle"
        # Busy ranks may spin in a collective or work without a word. A script that used to speak is believed to be
        # hung in the end; the user's own time-out says when that is. One that never spoke cannot be told apart.
        said = self.policy.timeout_s is not None
        if self.steady and (said or stalled_s >= self.policy.steady_max_s):
            return "ranks are busy but report no progress"
        return ""

    def observations(self) -> tuple[RankObservation, ...]:
        """What is known of each rank, in rank order."""
        return tuple(
            RankObservation(rank, row.node, row.seen.state, row.seen.step, max(0.0, row.cpu_rate))
            for rank, row in sorted(self._rows.items())
        )

    def _at_step(self) -> str:
        step = max((row.seen.step for row in self._rows.values()), default=-1)
        return f" at step {step}" if step >= 0 else ""
