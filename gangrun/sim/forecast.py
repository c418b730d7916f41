"""What a way to train would make of months on thousands of nodes: the real decisions in a world without agents.

How it works: ``LightWorld`` feeds ``core.machine.lifecycle.step`` with events, one at a time, from a queue of moments
in milliseconds, and performs each action by putting its outcome into the queue. Who is blamed, which nodes are
excluded, whether the budget allows a restart, where ranks are placed and when another job is asked for is decided as in
a real run. Heartbeats, agents, messages and files are left out, and so is training: between two failures it is one
formula. Each millisecond is in one class of ``TimeUse``, as in a ledger, so that the classes sum to the whole.

Simplified: a node is one slot with one rank; all nodes of a job join at one moment; supervisors do not die; a node that
was lost comes back in the next job only; a failure of ranks has a cause of its own each time; storage that does not
answer halts training; nothing but a failure ends a job.

``by_hand`` meets the same failures as most people do: torchrun restarts ranks, and a person or the scheduler the job.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gangrun.core import actions as a
from gangrun.core import events as e
from gangrun.core.evidence import ErrorReport, NodeFinding, RankExit
from gangrun.core.machine.lifecycle import step
from gangrun.core.machine.succession import first_state
from gangrun.core.model import TERMINAL, CheckpointRef, Level, Node, Outcome, Phase, Rung, RunState, Shape, StartStage
from gangrun.core.nodes.quarantine import comes_back
from gangrun.core.policy import Policy
from gangrun.core.recovery.choose import left_out
from gangrun.planning.accounts import ShareEstimate, TimeUse, share_of_cycles
from gangrun.planning.plan import BY_HAND_S, NOTICING_BY_HAND_S
from gangrun.sim.failure_tables import MS, TAKES_NODE, FailureKind, FailureTable, Strike, strikes_of

SILENT_AFTER_S = 2.0
ATTEMPTS_MAX_COUNT = 16  # that the state keeps: older ones bear on no decision, and each decision goes through all
LOOK_AGAIN_MS = 60 * MS  # for enough nodes, if no repair is known to end


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train: its name, how many spares it has, how often it saves. ``by_hand``: without gangrun."""

    name: str
    spares_count: int
    interval_s: float
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """What all ways have in common. ``stall_s``: the pause for a save; ``persist_s``: until it is of use."""

    table: FailureTable
    nodes_count: int
    gpus_per_node: int
    span_s: float
    stall_s: float
    persist_s: float
    seed: int


@dataclass(slots=True)
class Tally:
    """What one simulated stretch of time came to, in milliseconds."""

    uses: Counter[TimeUse] = field(default_factory=Counter)
    rungs: Counter[Rung] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)  # of what stopped the ranks
    attempts_count: int = 0
    excluded: set[str] = field(default_factory=set)
    cycles: list[tuple[float, float]] = field(default_factory=list)  # useful and whole, from step to step
    _told: tuple[int, int] = (0, 0)  # of the classes, what is in ``cycles``

    def end_cycle(self) -> None:
        """All ranks step again: what follows does not depend on what was."""
        now = self.uses[TimeUse.USEFUL], self.uses.total()
        if now[1] > self._told[1]:
            self.cycles.append((now[0] - self._told[0], now[1] - self._told[1]))
            self._told = now


@dataclass(frozen=True, slots=True)
class WayResult:
    """What a way came to over all rounds."""

    way: Way
    useful: ShareEstimate
    shares: dict[str, float]  # of the time, by class; they sum to 1
    whole_s: float
    failures_count: int  # that stopped the ranks
    causes: dict[str, int]
    recoveries: dict[str, int]  # by rung; "end": a person had to resume the run
    restarts_count: int
    excluded_count: int  # nodes, the mean over the rounds
    lost_gpu_h: float  # of all GPUs, spares too, what was not useful training; the mean over the rounds


def compared(ground: Ground, ways: Sequence[Way], rounds_count: int) -> tuple[WayResult, ...]:
    """Each way in the same rounds: the failures of a round do not depend on the way."""
    spares = max(way.spares_count for way in ways)
    free = round(ground.table.free_nodes_share * ground.nodes_count)
    cluster, span_ms = ground.nodes_count + spares + free, round(ground.span_s * MS)
    tallies: list[list[Tally]] = [[] for _ in ways]
    for number in range(rounds_count):
        strikes = strikes_of(ground.table, cluster, span_ms, f"{ground.seed}/{number}")
        for way, found in zip(ways, tallies, strict=True):
            world: LightWorld | HandWorld
            if way.by_hand:
                world = HandWorld(ground, way, cluster)
            else:
                world = LightWorld(ground, way, cluster, f"{ground.seed}/{number}")
            found.append(world.run(strikes, span_ms))
    return tuple(_result(ground, way, found) for way, found in zip(ways, tallies, strict=True))


def _result(ground: Ground, way: Way, rounds: Sequence[Tally]) -> WayResult:
    uses, rungs, causes = Counter[TimeUse](), Counter[Rung](), Counter[str]()
    for one in rounds:
        uses.update(one.uses)
        rungs.update(one.rungs)
        causes.update(one.causes)
    whole, useful, count = uses.total(), uses[TimeUse.USEFUL], len(rounds)
    held = whole * (ground.nodes_count + way.spares_count) - useful * ground.nodes_count
    return WayResult(
        way=way,
        useful=share_of_cycles([cycle for one in rounds for cycle in one.cycles]),
        shares={use.value: uses[use] / whole for use in TimeUse if uses[use]},
        whole_s=whole / MS,
        failures_count=causes.total(),
        causes=dict(causes.most_common()),
        recoveries={rung.value: rungs[rung] for rung in Rung if rungs[rung]},
        restarts_count=sum(one.attempts_count - 1 for one in rounds),
        excluded_count=round(sum(len(one.excluded) for one in rounds) / count),
        lost_gpu_h=held * ground.gpus_per_node / MS / 3600 / count,
    )


class Training:
    """From the first step of an attempt until something stops it: a save after every interval, counted by a formula."""

    def __init__(self, way: Way, ground: Ground) -> None:
        self._interval_ms = max(1, round(way.interval_s * MS))
        self._stall_ms, self._persist_ms = round(ground.stall_s * MS), round(ground.persist_s * MS)
        self.saved_ms = 0  # training that is in the newest checkpoint
        self.top_ms = 0  # training that some attempt had reached

    def stopped_after(self, took_ms: int, *, saves: bool = False) -> dict[TimeUse, int]:
        """What became of so long; ``saves``: the ranks saved all before they stopped."""
        round_ms = self._interval_ms + self._stall_ms
        rounds, rest = divmod(took_ms, round_ms)
        trained = rounds * self._interval_ms + min(rest, self._interval_ms)
        kept = max(0, took_ms - self._persist_ms) // round_ms * self._interval_ms
        kept = trained if saves else kept
        self.top_ms = self.saved_ms + trained
        self.saved_ms += kept
        return {TimeUse.USEFUL: kept, TimeUse.LOST: trained - kept, TimeUse.SAVING: took_ms - trained}


class Machines:
    """The nodes of the cluster: which of them work, and since which boot."""

    def __init__(self, count: int) -> None:
        self._up_at = [0] * count
        self.boots = [0] * count

    def is_up(self, node: int, now: int) -> bool:
        """Does it work?"""
        return self._up_at[node] <= now

    def fall(self, node: int, until_ms: int, *, boots: bool = True) -> None:
        """It does not work until then; mostly it has booted by then."""
        self._up_at[node] = until_ms
        self.boots[node] += boots

    def free(self, count: int, now: int, without: Iterable[int] = ()) -> list[int]:
        """The first so many that work; fewer if there are no more."""
        out = set(without)
        return [node for node, up_at in enumerate(self._up_at) if up_at <= now and node not in out][:count]

    def next_repair(self, now: int) -> int:
        """When the next node is back."""
        return min((up_at for up_at in self._up_at if up_at > now), default=now + LOOK_AGAIN_MS)


def hit(strike: Strike, count: int) -> range:
    """The nodes that a failure hits: an outage takes all behind one switch."""
    size = strike.cause.nodes_count
    first = strike.node // size * size
    return range(first, min(first + size, count)) if size > 1 else range(strike.node, strike.node + 1)


class LightWorld:
    """One run under gangrun's decisions. Moments are whole milliseconds."""

    def __init__(self, ground: Ground, way: Way, cluster_count: int, seed: str) -> None:
        shape = Shape(ground.nodes_count, ground.nodes_count, 1, 1)
        self.ground, self.way, self.took = ground, way, ground.table.recovery
        self.policy = Policy(can_requeue=True)
        self.machines, self.names = Machines(cluster_count), [f"n{node:05d}" for node in range(cluster_count)]
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.tally, self.training = Tally(), Training(way, ground)
        self.now = 0
        self.state: RunState = first_state(RunState(run="forecast", shape=shape), 0.0, self.policy)
        self._rng = random.Random(f"queue {seed}")
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._generation = 0  # of deadlines, up to which they are in the queue
        self._job, self._members = 0, set[int]()  # 0 members: no job holds nodes
        self._held: frozenset[int] = frozenset()  # nodes that hold ranks, alive or not
        self._since: int | None = None  # all ranks step; None: they do not
        self._halted_ms = 0  # of that, storage did not answer
        self._storage_until = 0
        self._sick: dict[int, Strike] = {}  # nodes of this job that work no more, and whose agents say so
        self._broken = False  # something fell, which gangrun may not have noticed yet
        self._began: tuple[int, frozenset[int]] | None = None  # a recovery: in which job, which nodes had ranks
        self._mark, self._use = 0, TimeUse.START_UP
        self._ended_by_hand = False

    def run(self, strikes: Sequence[Strike], span_ms: int) -> Tally:
        """Let everything happen that does up to ``span_ms``."""
        for strike in strikes:
            self._at(strike.at_ms, partial(self._struck, strike))
        self._job_begins()
        while self._queue and self._queue[0][0] <= span_ms:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = span_ms
        self._halt(saves=True)  # what is trained so far is not lost because the forecast ends
        self._account()
        self.tally.end_cycle()
        return self.tally

    # ---- time ----

    def _at(self, when: int, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (max(when, self.now), self._order, act))

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._at(self.now + round(delay_s * MS), act)

    def _in_job(self, delay_s: float, event: Callable[[], e.Event | None]) -> None:
        """An event of this job, if there still is one then and the job is still the same."""
        job = self._job

        def due() -> None:
            if job == self._job and self._members and (found := event()) is not None:
                self._tell(found)

        self._after(delay_s, due)

    def _account(self) -> None:
        """Nothing has changed since the last time, so all of it is of one class. Training counts when it stops."""
        if self._since is None:
            self.tally.uses[self._use] += self.now - self._mark
            self._mark = self.now

    def _use_now(self) -> TimeUse:
        if not self._members:
            return TimeUse.QUEUE
        launching = self.state.underway.stage is StartStage.LAUNCHING
        match self.state.phase:
            case Phase.PENDING:
                return TimeUse.START_UP
            case Phase.CHECKING:
                return TimeUse.PREFLIGHT
            case Phase.STARTING:
                return TimeUse.START_UP if launching else TimeUse.LOADING
            case Phase.RUNNING:
                return TimeUse.NOTICING if self._broken else TimeUse.COMPILE
            case Phase.STOPPING:
                return TimeUse.STOPPING
            case _:
                return TimeUse.WAITING

    # ---- the core ----

    def _tell(self, event: e.Event) -> None:
        """One event through the real decisions; what they ask for is done."""
        self._account()
        before = self.state
        decision = step(before, e.Stamped(event), self.now / MS, self.policy)
        self.state = decision.state
        if decision.outcome is Outcome.APPLIED:
            if self.state.health.excluded is not before.health.excluded:
                self.tally.excluded.update(self.state.health.excluded)
            for name, due in self.state.timers.deadlines.items():
                if due.generation > self._generation:
                    self._at(math.ceil(due.at * MS), partial(self._due, name, due.generation))
            self._generation = max(self._generation, self.state.timers.generation)
            if len(self.state.attempts) > 2 * ATTEMPTS_MAX_COUNT:
                self.state = replace(self.state, attempts=self.state.attempts[-ATTEMPTS_MAX_COUNT:])
            for action in decision.actions:
                self._perform(action)
        self._use = self._use_now()

    def _due(self, name: str, generation: int) -> None:
        deadline = self.state.timers.deadlines.get(name)
        if deadline is not None and deadline.generation == generation and self._members:  # else no supervisor lives
            self._tell(e.DeadlinePassed(name, generation))

    def _perform(self, action: a.Action) -> None:
        took = self.took
        match action:
            case a.CheckNodes(nodes):
                for name in nodes:
                    self._in_job(took.preflight, partial(self._checked, name))
            case a.SealAttempts(attempt):
                stalled_s = max(0, self._storage_until - self.now) / MS
                self._in_job(stalled_s, lambda: e.AttemptSealed(attempt))
            case a.ChooseResume(attempt):
                self._in_job(took.choose, lambda: e.ResumeChosen(attempt, self._newest(), "the newest checkpoint"))
            case a.StartGang(attempt, placement):
                self.tally.attempts_count += 1
                self._held = frozenset(self.numbers[name] for name in placement.nodes)
                self._broken = False
                self._in_job(took.start, lambda: self._started(attempt))
            case a.StopGang(attempt, checkpoint_first=saves):
                self._stop(attempt, saves=saves)
            case a.TakeStacks(attempt):
                self._in_job(1.0, lambda: e.StacksTaken(attempt, ()))
            case a.SubmitSuccessor():
                self._in_job(took.submit, lambda: e.ActDone((0, 0), a.SubmitSuccessor.__name__))
            case a.EndJob(phase):
                self._job_ends(by_hand=phase in TERMINAL)
            case _:  # asks for a save, a probe or memory: nothing that this world has
                pass

    def _checked(self, name: str) -> e.Event | None:
        return e.NodeChecked(name, True) if self.machines.is_up(self.numbers[name], self.now) else None

    def _newest(self) -> CheckpointRef | None:
        return CheckpointRef(self.training.saved_ms, "", Level.VERIFIED) if self.training.saved_ms else None

    # ---- ranks ----

    def _started(self, attempt: int) -> e.Event | None:
        if attempt != self.state.attempt.number:
            return None
        if down := [node for node in self._held if not self.machines.is_up(node, self.now)]:
            self._broken = True
            for node in down:  # one that does not answer is found silent
                if node in self._sick:
                    self._in_job(self.took.notice_device, partial(self._finding, node))
            return None
        self._in_job(self.took.first_step, lambda: self._stepped(attempt))
        return e.GangStarted(attempt)

    def _stepped(self, attempt: int) -> e.Event | None:
        if attempt != self.state.attempt.number or self.state.phase is not Phase.RUNNING or self._broken:
            return None
        self._account()
        if self._began is not None:
            self.tally.rungs[self._rung(*self._began)] += 1
            self._began = None
        self.tally.end_cycle()
        self._since, self._halted_ms, self._ended_by_hand = self.now, max(0, self._storage_until - self.now), False
        return e.FirstStepSeen(attempt, self.training.saved_ms + 1)

    def _rung(self, job: int, nodes: frozenset[int]) -> Rung:
        if self._ended_by_hand:
            return Rung.END
        if job != self._job:
            return Rung.REQUEUE
        return Rung.RESTART if nodes == self._held else Rung.SWAP

    def _halt(self, *, saves: bool = False) -> None:
        """Ranks step no more: now it is known what of their training counts."""
        if self._since is None:
            return
        waited = min(self._halted_ms, self.now - self._since)
        self.tally.uses[TimeUse.WAITING] += waited
        self.tally.uses.update(self.training.stopped_after(self.now - self._since - waited, saves=saves))
        self._since, self._mark = None, self.now

    def _break(self, strike: Strike) -> None:
        """Something that the ranks need is gone."""
        if self._broken or not self._held:
            return
        self._account()
        self._halt()
        self._broken, self._use = True, TimeUse.NOTICING
        self._recovers(strike.cause.cause)

    def _recovers(self, cause: str) -> None:
        self.tally.causes[cause] += 1
        if self._began is None:
            self._began = self._job, self._held

    def _stop(self, attempt: int, *, saves: bool) -> None:
        """All ranks are stopped; with a save before it if that was asked for and no rank is gone."""
        saves = saves and not self._broken
        if self._began is None:
            self._began = self._job, self._held
        self._halt(saves=saves)
        self._broken = True
        save_s = self.ground.stall_s + self.ground.persist_s if saves else 0.0
        self._in_job(save_s + self.took.stop, lambda: self._stopped(attempt))

    def _stopped(self, attempt: int) -> e.Event | None:
        if self.state.attempt.number != attempt or self.state.phase is not Phase.STOPPING:
            return None
        self._tell(e.ProgressMarked(attempt, self.training.top_ms))
        if (newest := self._newest()) is not None:
            self._tell(e.CheckpointSeen(newest))
        self._held = frozenset()
        return e.GangStopped(attempt)

    # ---- jobs ----

    def _job_ends(self, *, by_hand: bool) -> None:
        wait_s = self._rng.expovariate(1 / self.ground.table.queue_wait_s) if self.ground.table.queue_wait_s else 0.0
        self._ended_by_hand = self._ended_by_hand or by_hand
        self._members, self._sick = set(), {}
        self._after(wait_s + (BY_HAND_S if by_hand else 0.0), self._job_begins)

    def _job_begins(self) -> None:
        """The scheduler has enough nodes for the next job; else it looks again when one more is repaired."""
        now_s, wanted = self.now / MS, self.ground.nodes_count + self.way.spares_count
        entries = self.state.health.excluded
        out = [n for n in left_out(self.state, now_s) if not comes_back(entries.get(n), self._boot(self.numbers[n]))]
        nodes = self.machines.free(wanted, self.now, (self.numbers[name] for name in out))
        if len(nodes) < wanted:
            self._at(min(self.machines.next_repair(self.now), self.now + 10 * LOOK_AGAIN_MS), self._job_begins)
            return
        self._account()
        self._job += 1
        self._members = set(nodes)
        if self.state.phase in TERMINAL:
            self._tell(e.ResumeRequested("a person", f"job {self._job}", self.state.seq + 1))
        self._tell(e.TermTaken(self._job, f"job {self._job}", (), (), self.state.attempt.number))
        self._in_job(self.took.join, self._join)

    def _join(self) -> None:
        """All nodes join at one moment. Those that the core has nothing to say about are put into its roster."""
        names = [self.names[node] for node in sorted(self._members)]
        plain = [name for name in names if name not in self.state.health.excluded]
        known = {name: Node(name, self._boot(self.numbers[name]), self._boot(self.numbers[name]), 1, checked=True)
                 for name in plain[1:]}  # fmt: skip
        self.state = replace(self.state, roster=replace(self.state.roster, nodes=known))
        for name in [*(name for name in names if name in self.state.health.excluded), *plain[:1]]:
            boot = self._boot(self.numbers[name])
            self._tell(e.AgentJoined(name, boot, boot, 1))
        for node in sorted(self._members):
            if not self.machines.is_up(node, self.now):
                self._silent(node)

    def _boot(self, node: int) -> str:
        return f"{node}-{self.machines.boots[node]}"

    # ---- what goes wrong ----

    def _struck(self, strike: Strike) -> None:
        kind, ends = strike.cause.kind, self.now + strike.lasts_ms
        if kind is FailureKind.STORAGE:
            self._storage_stalls(ends)
            return
        for node in hit(strike, len(self.names)):
            if not self.machines.is_up(node, self.now):
                continue
            holds = node in self._held
            if kind in TAKES_NODE:
                self._fall(node, strike, ends)
            elif holds and not self._broken and self.state.phase is Phase.RUNNING:
                self._break(strike)
                if kind is FailureKind.RANK:
                    self._in_job(self.took.notice_rank, partial(self._rank_exit, node))
                else:
                    self._in_job(self.took.notice_hang, partial(self._stalled, self.state.attempt.number))

    def _fall(self, node: int, strike: Strike, ends: int) -> None:
        """A node, or a device of it, fails."""
        kind, returns = strike.cause.kind, strike.cause.kind is FailureKind.OUTAGE
        self.machines.fall(node, ends, boots=not returns)
        if node not in self._members:
            return
        if kind is not FailureKind.WEAK and node in self._held:
            self._break(strike)
        if kind in {FailureKind.NODE, FailureKind.OUTAGE}:
            self._silent(node)
            if returns:
                self._in_job(max(strike.lasts_ms / MS, self.took.notice_node + 1), lambda: self._back(node))
            return
        self._sick[node] = strike

        def found() -> e.Event:
            if kind is FailureKind.WEAK and node in self._held and not self._broken:
                self._recovers(strike.cause.cause)
            return self._finding(node)

        self._in_job(self.took.notice_device, found)

    def _finding(self, node: int) -> e.Event:
        """The agent of the node tells what is wrong with it, as long as the node has not booted."""
        name, cause = self.names[node], self._sick[node].cause
        check = "gpu_lost" if cause.kind is FailureKind.DEVICE else "gpu_ecc"
        return e.FindingRaised(NodeFinding(name, check, True, f"{name}: {cause.cause}", self.now / MS, until_boot=True))

    def _silent(self, node: int) -> None:
        since, name = self.now / MS, self.names[node]
        lost_s = self.took.notice_node
        self._in_job(min(lost_s, SILENT_AFTER_S), lambda: e.NodeSilent(name, since))
        self._in_job(lost_s, lambda: e.NodeLost(name, since, "no other node reaches its host"))

    def _back(self, node: int) -> e.Event | None:
        return e.NodeHeard(self.names[node]) if self.machines.is_up(node, self.now) else None

    def _stalled(self, attempt: int) -> e.Event:
        waited_s = self.took.notice_hang
        return e.ProgressStalled(attempt, waited_s, waited_s, ())

    def _rank_exit(self, node: int) -> e.Event:
        placement, attempt = self.state.attempt.placement, self.state.attempt.number
        assert placement is not None
        rank, label = placement.nodes.index(self.names[node]), f"failure {self.tally.causes.total()}"
        error = ErrorReport("RuntimeError", label, label, f"RuntimeError: {label}")
        died = RankExit(
            rank, self.names[node], code=1, error=error, at=self.now / MS, step=max(1, self.training.top_ms)
        )
        return e.RankExited(attempt, died)

    def _storage_stalls(self, ends: int) -> None:
        """Training stands still, and nothing can be sealed."""
        begins = max(self.now, self._storage_until)
        if ends <= begins:
            return
        self._halted_ms += ends - begins if self._since is not None else 0
        self._storage_until = ends
        if self._members:
            self._tell(e.StoreStalled(self.now / MS))
            self._in_job((ends - self.now) / MS, lambda: self._storage_back(ends))

    def _storage_back(self, ends: int) -> e.Event | None:
        return e.StoreBack((ends - self.now) / MS) if ends == self._storage_until else None


class HandWorld:
    """The same failures without gangrun: torchrun restarts ranks that fail, and a person the job."""

    def __init__(self, ground: Ground, way: Way, cluster_count: int) -> None:
        self.ground, self.took = ground, ground.table.recovery
        self.machines, self.tally, self.training = Machines(cluster_count), Tally(), Training(way, ground)
        self._count = cluster_count

    def run(self, strikes: Sequence[Strike], span_ms: int) -> Tally:
        """Let everything happen that does up to ``span_ms``."""
        nodes, tally, wanted = set(range(self.ground.nodes_count)), self.tally, self.ground.nodes_count
        tally.attempts_count += 1
        steps_at = self._restarts(0, span_ms, 0.0, self.took.join)
        halted = 0
        for strike in strikes:
            now, kind = strike.at_ms, strike.cause.kind
            fallen = [node for node in hit(strike, self._count) if self.machines.is_up(node, now)]
            holds = [node for node in fallen if node in nodes]
            if kind in TAKES_NODE:
                for node in fallen:
                    self.machines.fall(node, now + strike.lasts_ms)
            if kind is FailureKind.STORAGE and now >= steps_at:
                halted += min(strike.lasts_ms, span_ms - now)
            if now < steps_at or not holds or kind is FailureKind.STORAGE:
                continue  # what fails while nobody trains is replaced with the rest
            halted = min(halted, now - steps_at)
            tally.uses[TimeUse.WAITING] += halted
            tally.uses.update(self.training.stopped_after(now - steps_at - halted))
            halted = 0
            tally.causes[strike.cause.cause] += 1
            tally.attempts_count += 1
            if kind is FailureKind.RANK:
                tally.rungs[Rung.RESTART] += 1
                steps_at = self._restarts(now, span_ms, self.took.notice_rank, 0.0)
            elif kind is FailureKind.HANG:
                tally.rungs[Rung.RESTART] += 1
                steps_at = self._restarts(now, span_ms, NOTICING_BY_HAND_S, 0.0)
            else:
                tally.rungs[Rung.REQUEUE] += 1
                by_hand_s = BY_HAND_S + self.ground.table.queue_wait_s
                nodes = set(self.machines.free(wanted, now + round((NOTICING_BY_HAND_S + by_hand_s) * MS)))
                steps_at = self._restarts(now, span_ms, NOTICING_BY_HAND_S, by_hand_s)
            if steps_at <= span_ms:
                tally.end_cycle()
        if steps_at < span_ms:
            halted = min(halted, span_ms - steps_at)
            tally.uses[TimeUse.WAITING] += halted
            tally.uses.update(self.training.stopped_after(span_ms - steps_at - halted, saves=True))
        tally.end_cycle()
        return tally

    def _restarts(self, now: int, span_ms: int, notice_s: float, queue_s: float) -> int:
        """When the ranks step again. Only what lies within the time counts."""
        took = self.took
        parts = (
            (TimeUse.NOTICING, notice_s),
            (TimeUse.STOPPING, took.stop if now else 0.0),
            (TimeUse.QUEUE, queue_s),
            (TimeUse.LOADING, took.choose),
            (TimeUse.START_UP, took.start),
            (TimeUse.COMPILE, took.first_step),
        )
        for use, seconds in parts:
            ends = now + round(seconds * MS)
            self.tally.uses[use] += max(0, min(ends, span_ms) - min(now, span_ms))
            now = ends
        return now
