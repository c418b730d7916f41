"""Virtual ranks, stepping together.

A ``SimGang`` is what a rendezvous at one address and port makes of ranks: it steps while all of them live, run and
reach each other. Steps are not events: how far it is follows from since when it steps; only milestones (a checkpoint,
something that the ``Script`` does, the end) are due at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gangrun.core.evidence import Divergence, ErrorReport, RankExit, SelfChecks
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.recovery.pace_rules import Pace
from gangrun.core.recovery.self_checks import vote
from gangrun.sim.body.checkpoints import CheckpointFs, Name
from gangrun.sim.engine.clock import NodeClock, Scheduled, Timeline
from gangrun.sim.engine.process import SimProcess
from gangrun.wire.messages import LiveRank, RankSample
from gangrun.wire.progress import HOLD_MAX_S

STEPPING = 2
HEALTHY_GPU = GpuUse(0, 97, 60_000, 81_559, 1980, 0, 650, 700, 16, 5, 61)
HW_THERMAL_SLOWDOWN = 0x48
OWN_SHARE = 0.9  # of a step, in which a rank does not wait for others


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the script does to itself: at ``step``, on ``rank``, in these attempts (None: in every one)."""

    step: int
    rank: int = 0
    code: int | None = None  # exits with it
    signal: int | None = None  # or dies of it
    hang: bool = False
    attempts: frozenset[int] | None = frozenset({0})
    signature: str = ""  # of the traceback, "" for none


@dataclass(frozen=True, slots=True)
class Script:
    """The training script as the simulator runs it."""

    step_s: float = 1.0
    startup_s: float = 1.0
    steps_count: int = 60
    checkpoint_every_count: int = 10
    memory_every_count: int = 0  # steps between saves to the nodes' memory; 0: none
    save_s: float = 0.3
    foreign: bool = False  # saves under the final name by itself
    saves_when_asked: bool = False  # all ranks save a step together when they are told to, and train on
    victims_after_s: float = 3.0  # a peer of a dead rank fails with a collective error; 0: never
    behaviours: tuple[Behaviour, ...] = ()
    on_gpus: bool = False  # NCCL's collectives: which rank waits shows nowhere, and what GPUs say of themselves is told


@dataclass(frozen=True, slots=True)
class WrittenError:
    """What a rank wrote as it failed: lines of stderr, or an exception; ``at`` by its node's clock, 0.0: nothing."""

    lines: tuple[str, ...]
    error: ErrorReport | None
    at: float


class Host(Protocol):
    """The node as its ranks see it."""

    name: str
    index: int
    clock: NodeClock
    slowness: float

    def rank_ended(self, rank: SimRank, code: int | None, signal: int | None, *, error: ErrorReport | None) -> None:
        """Waitpid returned."""


class SimRank(SimProcess):
    """One training process."""

    def __init__(self, timeline: Timeline, host: Host, rank: int, name: Name, pid: int) -> None:
        """Just forked, of that (term, attempt)."""
        super().__init__(timeline, f"rank {rank} of attempt {name[1]} on {host.name}", pid)
        self.host = host
        self.rank = rank
        self.of = name
        self.gang: SimGang | None = None
        self.agent: object = None  # whose child it is
        self.stuck_until = 0.0
        self.oom = False
        self.words: WrittenError | None = None
        self.failing = False  # it comes to no collective any more

    def live(self) -> LiveRank:
        """As an inventory lists it."""
        return LiveRank(self.rank, self.pid, self.start_ticks)

    @property
    def stuck(self) -> bool:
        """The kernel holds it: no signal takes, and it does nothing."""
        return self.timeline.now < self.stuck_until

    @property
    def is_orphan(self) -> bool:
        """The agent that forked it is dead."""
        return isinstance(self.agent, SimProcess) and not self.agent.alive

    @property
    def letter(self) -> str:
        """Its /proc state."""
        if self.stuck:
            return "D"
        return "R" if self.awake else "T"


@dataclass(slots=True)
class GangHooks:
    """What the world is told of all gangs."""

    stepping: Callable[[SimGang], None] = lambda gang: None
    changed: Callable[[SimGang], None] = lambda gang: None
    joined: Callable[[SimGang, SimRank], None] = lambda gang, rank: None


@dataclass(slots=True)
class _Progress:
    step: float = 0.0
    first_step: int = 0
    has_stepped: bool = False
    since: float | None = None  # stepping since
    own_s: float = 0.0  # before that, for which a rank that is not slow did not wait
    slow_own_s: dict[int, float] = field(default_factory=dict)  # the same of ranks that are, or were
    saved_step: int = -1
    keeps_step: int = -1
    did: set[int] = field(default_factory=set)


class SimGang:
    """All ranks that met at one address and port."""

    def __init__(
        self,
        timeline: Timeline,
        script: Script,
        fs: CheckpointFs,
        world_size: int,
        resume_step: int,
        hooks: GangHooks,
    ) -> None:
        """Nobody is there yet."""
        self.timeline = timeline
        self.script = script
        self.fs = fs
        self.world_size = world_size
        self.hooks = hooks
        self.members: dict[int, SimRank] = {}
        self.alive_count = 0
        self.hung = False
        self.fresh = True  # has not made a step yet
        self.reachable: Callable[[SimGang], bool] = lambda gang: True
        self.keep: Callable[[SimGang, int], None] = lambda gang, step: None
        self.kept_step = -1  # newest in the nodes' memory, as its ranks know
        self.slow: dict[int, float] = {}  # rank -> so many times as long its own work takes
        self.corrupted: dict[int, int] = {}  # rank -> what its weights are, if they are not as all others'
        self.divergence: Divergence | None = None  # as rank 0 found it at the newest save
        self._agreed_step = resume_step
        self.asked: dict[str, int] = {}  # node -> the step that its ranks were told to save
        self._holding: dict[str, int] = {}  # node -> the step after which its ranks wait for that word
        self._waits = False  # some of them do
        self._progress = _Progress(step=float(max(0, resume_step)), first_step=max(0, resume_step))
        self.whole_since = 0.0
        self._ready_at = 0.0
        self._due: Scheduled | None = None

    @property
    def name(self) -> Name:
        """(term, attempt) of its first member."""
        return next(iter(self.members.values())).of

    @property
    def whole(self) -> bool:
        """Every rank lives."""
        return self.alive_count == self.world_size == len(self.members)

    @property
    def stepping(self) -> bool:
        """Completes steps now."""
        return self._progress.since is not None

    @property
    def starting(self) -> bool:
        """Every rank lives, and has not come to its first step."""
        return self.whole and self.timeline.now < self._ready_at

    def steady_s(self) -> float:
        """For how long it has stepped without a break."""
        return 0.0 if self._progress.since is None else self.timeline.now - self._progress.since

    def step(self) -> int:
        """The newest step that is complete."""
        done = self._progress
        moved = 0.0 if done.since is None else (self.timeline.now - done.since) / self.step_s
        return int(done.step + moved + 1e-9)

    def join(self, rank: SimRank) -> None:
        """One more rank is up."""
        self.members[rank.rank] = rank
        self.alive_count += 1
        rank.gang = self
        self.hooks.joined(self, rank)
        if self.whole:
            self.whole_since = self.timeline.now
            self._ready_at = self.timeline.now + self.script.startup_s
            self.timeline.at(self._ready_at, self.update)

    def left(self, rank: SimRank) -> None:
        """One rank fell: the others wait in a collective, and in time one of them fails for it."""
        self.alive_count -= 1
        self.update()
        if self.script.victims_after_s and self.alive_count > 0:
            self.timeline.after(self.script.victims_after_s, lambda: self._victim(rank.rank))

    def _victim(self, of: int) -> None:
        rank = self.members.get((of + 1) % self.world_size)
        if rank is not None and rank.awake and not rank.failing and not self.stepping and rank.letter == "R":
            error = ErrorReport("DistBackendError", f"peer {of} is gone", "collective", "...", collective=True)
            rank.host.rank_ended(rank, 1, None, error=error)

    def update(self) -> None:
        """Something changed: does it step?"""
        now = self.timeline.now
        going = (
            self.whole
            and not self.hung
            and not self._waits
            and now >= self._ready_at
            and all(rank.letter == "R" for rank in self.members.values())
            and self.reachable(self)
        )
        done = self._progress
        if going and done.since is None:
            done.since, done.has_stepped = now, True
            self.hooks.stepping(self)
            self.fresh = False
            self._plan()
        elif not going and done.since is not None:
            self._settle(now)
            done.since = None
            if self._due is not None:
                self._due.cancel()
            self.hooks.changed(self)

    def _settle(self, now: float) -> None:
        """Count what it has done so far, since from here on it goes otherwise."""
        done = self._progress
        if done.since is None:
            return
        span_s = now - done.since
        done.step += span_s / self.step_s
        per_factor_s = OWN_SHARE * span_s * self.script.step_s / self.step_s
        done.own_s += per_factor_s
        for rank, factor in self.slow.items():
            done.slow_own_s[rank] += factor * per_factor_s
        done.since = now

    @property
    def step_s(self) -> float:
        """How long one step takes: all wait for the slowest rank."""
        return self.script.step_s * max(self.slow.values(), default=1.0)

    def slow_down(self, rank: int, factor: float) -> None:
        """From now on this rank takes ``factor`` times as long for its own work; 1.0: as long as the others."""
        self._settle(self.timeline.now)
        self.slow[rank] = factor
        self._progress.slow_own_s.setdefault(rank, self._progress.own_s)
        if self._due is not None and self.stepping:
            self._due.cancel()
            self._plan()

    def _pace(self, rank: int) -> Pace | None:
        """Told of while some rank is slow. All ranks but the slow ones wait for part of each step."""
        if not self.slow:
            return None
        done, now = self._progress, self.timeline.now
        self._settle(now)
        own_s = done.own_s if self.script.on_gpus else done.slow_own_s.get(rank, done.own_s)
        return Pace(round(1000 * now), round(1000 * own_s), self.step())

    def _gpu(self, rank: int) -> GpuUse | None:
        """A slow rank's is throttled."""
        if not self.script.on_gpus or not self.stepping:
            return None
        factor = self.slow.get(rank, 1.0)
        return HEALTHY_GPU._replace(
            clock_mhz=round(HEALTHY_GPU.clock_mhz / factor), reasons=HW_THERMAL_SLOWDOWN if factor > 1 else 0
        )

    def ask(self, node: str, step: int) -> None:
        """One node's ranks are told to save this step, or their next one if they have done it."""
        holds = self._holding.pop(node, -1)
        self.asked[node] = max(step, self.step() + (0 if self._waits and holds == self.step() else 1))
        self._go_on()

    def hold(self, node: str) -> int:
        """One node's ranks wait after their next step, for some seconds at most; the newest one that is done."""
        step = self._holding[node] = self.step() + 1
        self.timeline.after(HOLD_MAX_S, lambda: self._let_go(node, step))
        self._go_on()
        return self.step()

    def _let_go(self, node: str, step: int) -> None:
        if self._holding.get(node) == step:
            del self._holding[node]
            self._go_on()

    def _go_on(self) -> None:
        if self._waits and self.step() not in self._holding.values():
            self._waits = False
            self.update()
        elif self._due is not None and self.stepping:
            self._due.cancel()
            self._plan()

    def _save_as_asked(self, step: int) -> None:
        """A save of all ranks: those that were told of another step, or of none yet, train on, and all of them wait."""
        agreed = {self.asked.get(rank.host.name) for rank in self.members.values()} == {step}
        self.asked = {}
        if agreed:
            self._save(step)
        else:
            self.hung = True
            self.update()

    def _milestone(self) -> int:
        """The next step at which anything happens."""
        script, at = self.script, self.step()
        every = script.checkpoint_every_count
        found = [script.steps_count, *self.asked.values(), *self._holding.values()]
        if every:
            found.append((max(at, self._progress.saved_step) // every + 1) * every)
        if script.memory_every_count:
            every = script.memory_every_count
            found.append((max(at, self._progress.keeps_step) // every + 1) * every)
        for i, behaviour in enumerate(script.behaviours):
            if i not in self._progress.did and behaviour.step >= at and self._applies(behaviour):
                found.append(behaviour.step)
        return min(found)

    def _applies(self, behaviour: Behaviour) -> bool:
        return behaviour.attempts is None or self.name[1] in behaviour.attempts

    def _plan(self) -> None:
        done = self._progress
        assert done.since is not None
        step = self._milestone()
        when = done.since + (step - done.step) * self.step_s
        self._due = self.timeline.at(when, lambda: self._reached(step))

    def _reached(self, step: int) -> None:
        done = self._progress
        for i, behaviour in enumerate(self.script.behaviours):
            if behaviour.step == step and i not in done.did and self._applies(behaviour):
                done.did.add(i)
                self._do(behaviour)
                if done.since is None:
                    return
        if step in self._holding.values():
            self._waits = True
            self.update()
            return
        if step in self.asked.values():
            self._save_as_asked(step)
            if done.since is None:
                return
        if step >= self.script.steps_count:
            for rank in list(self.members.values()):
                rank.host.rank_ended(rank, 0, None, error=None)
            return
        every = self.script.checkpoint_every_count
        if every and step % every == 0 and step > done.saved_step:
            done.saved_step = step
            self._save(step)
        elif self.script.memory_every_count and step % self.script.memory_every_count == 0 and step > done.keeps_step:
            done.keeps_step = step
            self.keep(self, step)
        self._plan()

    def _do(self, behaviour: Behaviour) -> None:
        if behaviour.hang:
            self.hung = True
            self.update()
            return
        rank = self.members[behaviour.rank % self.world_size]
        error = None
        if behaviour.signature:
            error = ErrorReport("RuntimeError", "boom", behaviour.signature, "Traceback ...", collective=False)
        rank.host.rank_ended(rank, behaviour.code, behaviour.signal, error=error)

    def _save(self, step: int) -> None:
        """Rank 0 writes beside the training, and commits when it is done, however long it was stopped meanwhile."""
        writer, name = self.members[0], self.members[0].of
        self._compare(step)
        if not self.fs.begin(name, step):
            return

        def close() -> None:
            if writer.timeline.now >= writer.stuck_until:
                self.fs.commit(name, step)

        self.timeline.after(self.script.save_s, lambda: writer.when_awake(close))

    def _compare(self, step: int) -> None:
        """Ranks compare their weights at a save."""
        sums = {rank: (self.corrupted.get(rank, 0),) for rank in self.members} if self.corrupted else {}
        found = vote(sums, ("weight",), step=step, agreed_step=self._agreed_step)
        if found is None:
            self._agreed_step = step
        else:
            self.divergence = found

    def checks(self, rank: SimRank) -> SelfChecks | None:
        """What rank 0 tells of it."""
        return SelfChecks(self.divergence) if self.divergence is not None and rank.rank == 0 else None

    def reading(self, rank: SimRank) -> RankSample:
        """What the agent samples of one of its ranks."""
        step = self.step() if self._progress.has_stepped else -1
        busy = float(step + 1) + self.timeline.now if self.stepping else 0.0
        letter = "S" if self.hung else rank.letter
        first = self._progress.first_step if self._progress.has_stepped else -1
        return RankSample(
            rank.rank, step, STEPPING, max(0, step), 0, busy, letter, first, kept_step=self.kept_step,
            pace=self._pace(rank.rank), gpu=self._gpu(rank.rank), checks=self.checks(rank),
        )  # fmt: skip


def exit_of(
    rank: SimRank,
    code: int | None,
    signal: int | None,
    at: float,
    error: ErrorReport | None,
    remarks: tuple[str, ...] = (),
) -> RankExit:
    """How a rank ended, as its agent reports it. ``remarks``: lines that it had written before."""
    words = rank.words or WrittenError((), error, 0.0)
    return RankExit(
        rank=rank.rank,
        node=rank.host.name,
        code=code,
        signal=signal,
        oom_kill=rank.oom,
        by_us=False,
        error=words.error or error,
        at=at,
        step=rank.gang.reading(rank).step if rank.gang is not None else -1,
        tail=(*remarks, *words.lines),
        written_at=words.at,
        checks=rank.gang.checks(rank) if rank.gang is not None else None,
    )
