"""A world made of numbers: nodes, disk, network, scheduler, and what goes wrong with them.

``World(setup, plan, seed).run()`` drives the real core, the real supervisor loop and the real agent brains through a
fault plan, under one virtual clock, and checks the invariants on the way. Same seed, same story, to the last record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gangrun.core.model import Phase, RunState
from gangrun.sim.body.gang import GangHooks, SimGang, SimRank
from gangrun.sim.cluster import Cluster
from gangrun.sim.engine.clock import EPOCH_S
from gangrun.sim.engine.process import Probe
from gangrun.sim.faults import FaultPlan, injure
from gangrun.sim.invariants import Checker
from gangrun.sim.setup import Setup
from gangrun.wire import record as wire_record

SETTLE_S = 900.0
STEADY_S = 5.0


@dataclass(slots=True)
class WorldOutcome:
    """What came of a world."""

    seed: int
    state: RunState | None
    took_s: float
    events_count: int
    steps: int
    gangs: tuple[tuple[int, int, int], ...] = field(default=())  # (term, attempt, highest step) in order of birth
    notes: tuple[str, ...] = ()


class World(Cluster):
    """Everything that is simulated, from the first job to the end of the run."""

    def __init__(
        self, setup: Setup, plan: FaultPlan | None = None, seed: int = 0, *, probe: Probe | None = None
    ) -> None:
        """Nothing runs yet. ``probe`` sees every boundary of every supervisor."""
        super().__init__(setup, seed, probe)
        self.plan = plan or FaultPlan()
        self.checks = self.checker = Checker(self, self.plan)
        self.watched = GangHooks(self.checker.stepping, self.gang_changed, self._joined)
        self.disk.on_ticket = self.checker.ticket
        self.disk.on_record = self.checker.record
        self.checkpoint_fs.on_commit = self.checker.committed
        self.checkpoint_fs.on_replaced = self.checker.replaced
        self.checkpoint_fs.on_moved = self.checker.moved
        self.memory.on_release = self.checker.released

    def _joined(self, gang: SimGang, rank: SimRank) -> None:
        self.checker.joined(gang, rank)
        self.slow_down(gang, rank)
        self.rank_failures.joined(gang)

    # ---- running ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first job is submitted, and every fault of the plan is due."""
        self.scheduler.submit(0, ())
        self._expect_faults()
        self.timeline.after(30.0, self._owners)

    def _expect_faults(self) -> None:
        for fault in self.plan:
            self.timeline.at(fault.at_s, lambda fault=fault: injure(self, fault))  # type: ignore[misc]

    def arm(self, plan: FaultPlan, seed: int) -> None:
        """These faults from now on, and chance from this seed; a world that has not begun yet begins."""
        self.plan, self.seed = plan.shifted(self.timeline.now), seed
        self.checker.plan = self.plan
        self.rng.seed(f"world {seed}")
        if self.scheduler.jobs:
            self._expect_faults()
        else:
            self.start()

    def run(self, settle_s: float = SETTLE_S, *, until_steady: bool = False) -> WorldOutcome:
        """To the end of the run, or until it had ``settle_s`` after the last fault to get there.

        ``until_steady``: a gang that steps undisturbed again after the last fault is enough.
        """
        if not self.scheduler.jobs:
            self.start()
        end = self.plan.over_at_s + settle_s
        while until_steady and not self.timeline.stopped and self.timeline.now < end and not self._steady():
            self.run_until(min(end, max(self.timeline.now, self.plan.over_at_s) + STEADY_S))
        self.run_until(self.timeline.now if until_steady else end)
        self.checker.at_the_end()
        return self.outcome()

    def _steady(self) -> bool:
        """Faults are over, nobody is a suspect, and all ranks have stepped for a while."""
        holder = self.holder()
        if self.timeline.now <= self.plan.over_at_s or holder is None or holder.loop is None:
            return False
        if holder.loop.state.phase is not Phase.RUNNING or holder.loop.silence.suspects:
            return False
        return any(gang.stepping and gang.steady_s() >= STEADY_S for gang in self.gangs)

    def run_until(self, until: float) -> None:
        """Let the world go on."""
        self.timeline.run_until(until)

    def _owners(self) -> None:
        self.checker.owners()
        self.timeline.after(30.0, self._owners)

    def outcome(self) -> WorldOutcome:
        """What came of it so far."""
        return WorldOutcome(
            seed=self.seed,
            state=self.newest_state(),
            took_s=self.timeline.now,
            events_count=self.timeline.events_count,
            steps=max((gang.step() for gang in self.gangs), default=0),
            gangs=tuple((*gang.name, gang.step()) for gang in self.gangs if gang.members),
            notes=tuple(self.checker.refused),
        )

    def newest_state(self) -> RunState | None:
        """What a reader of the journal sees now."""
        if not any(line.torn for lines in self.disk.journals.values() for line in lines):
            return self.checker.replayed()
        records = [record for term in sorted(self.disk.journals) for record in self.disk.readable(term)[0]]
        return wire_record.replay(records)

    def story(self) -> str:
        """For failure messages: where, what went wrong before, the last records, and how to see it again."""
        return self.checker.story()

    @property
    def began_at(self) -> float:
        """Wall time when nothing had happened yet, on hosts whose clocks are right."""
        return EPOCH_S
