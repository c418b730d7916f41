"""The contract's words in the simulated world: virtual seconds, the real core, loop and agents' brains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gangrun.adapters.fs.run_dir import CancelMark, RunPaths
from gangrun.core.events import ResumeRequested
from gangrun.core.model import Shape
from gangrun.core.policy import HangPolicy, Policy, Timing
from gangrun.display.explain_page import explained, page
from gangrun.display.status_page import PageFormat
from gangrun.runs.snapshot import RunSnapshot
from gangrun.runs.status import status_of
from gangrun.sim import Behaviour, Fault, Kind, Script, Setup, World
from gangrun.sim.body.gang import SimGang, SimRank
from gangrun.sim.engine.clock import EPOCH_S
from gangrun.sim.engine.process import SimProcess
from gangrun.sim.faults import injure
from gangrun.wire.record import Record, replay
from gangrun.wire.spec import RunSpec
from tests.contract.driver import Does, How, Injection, Scenario, Status, Stepped

PATIENCE = 20.0  # virtual seconds for each second of a deadline: they cost nothing, and steps take longer
LOOK_EVERY_S, LAUNCH_LOOK_S = 0.05, 0.0005
FOR_EVER_S = 1e9


@dataclass(slots=True)
class _Stretch:
    """A gang stepped from an instant on, from a step on, to another one."""

    gang: SimGang
    since: float
    first: float
    last: float | None = None


class SimDriver:
    """One run in the simulated world."""

    name = "sim"
    cannot: Mapping[Injection, str] = {}

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.folder = folder
        self.world = World(_setup(scenario), seed=1)
        self._stretches: list[_Stretch] = []
        watched = self.world.watched
        self._stepping, self._changed = watched.stepping, watched.changed
        watched.stepping, watched.changed = self._began, self._stood

    def start(self) -> None:
        self.world.start()

    # ---- what the ranks did: exact, from when each gang stepped ----

    def _began(self, gang: SimGang) -> None:
        self._stretches.append(_Stretch(gang, self.world.timeline.now, gang._progress.step))
        self._stepping(gang)

    def _stood(self, gang: SimGang) -> None:
        for stretch in self._stretches:
            if stretch.gang is gang and stretch.last is None:
                stretch.last = gang._progress.step
        self._changed(gang)

    def steps(self) -> list[Stepped]:
        rows = []
        for stretch in self._stretches:
            gang = stretch.gang
            last = gang.step() if stretch.last is None else stretch.last
            for step in range(int(stretch.first + 1e-9) + 1, int(last + 1e-9) + 1):
                at = stretch.since + (step - stretch.first) * gang.script.step_s
                rows += [Stepped(at, gang.name[1], step, rank.rank, rank.pid) for rank in gang.members.values()]
        return sorted(rows)

    def alive(self, process: int) -> bool:
        everybody: list[SimProcess] = [*self._ranks(), *self.world.supervisors]
        return any(one.alive for one in everybody if one.pid == process)

    def ranks(self) -> dict[int, int]:
        return {rank.rank: rank.pid for rank in self._ranks()}

    def _ranks(self) -> list[SimRank]:
        return [rank for node in self.world.nodes for rank in node.ranks if rank.alive]

    # ---- what people see: the very code of the command line, on the simulated disk ----

    def _records(self) -> list[Record]:
        disk = self.world.disk
        return [record for term in sorted(disk.journals) for record in disk.readable(term)[0]]

    def _reading(self) -> RunSnapshot:
        records, disk = self._records(), self.world.disk
        state = replay(records)
        claim = disk.claims[state.term][1] if state is not None and state.term in disk.claims else None
        mark = None if disk.cancelled_at is None else CancelMark("a person", EPOCH_S + disk.cancelled_at)
        paths = RunPaths(Path("/sim") / self.world.run_id)
        return RunSnapshot(paths, self._spec(), state, tuple(records), (), None, claim, None, None, mark)

    def _spec(self) -> RunSpec:
        shape = self.world.setup.shape
        return RunSpec(
            run=self.world.run_id, name="contract", world="local", command=("train.py",), python=True,
            working_directory="/sim", nodes=tuple(node.name for node in self.world.nodes),
            nodes_min_count=shape.nodes_min_count, slots_per_node=shape.slots_per_node,
            ranks_per_slot=shape.ranks_per_slot, policy=self.world.setup.policy, created_wall=EPOCH_S,
        )  # fmt: skip

    def status(self) -> Status:
        found: Status = msgspec.json.decode(
            msgspec.json.encode(status_of(self._reading(), EPOCH_S + self.world.timeline.now))
        )
        return found

    def explain(self) -> str:
        look = PageFormat(EPOCH_S + self.world.timeline.now, columns=200)
        return " ".join(" ".join(page(explained(self._reading(), look.now), look)).split())

    def node(self, index: int) -> str:
        return self.world.nodes[index].name

    # ---- time ----

    def wait(self, what: str, condition: Callable[[Status], bool], deadline_s: float = 60.0) -> Status:
        self.wait_until(what, lambda: condition(self.status()), deadline_s)
        return self.status()

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        def there() -> bool:
            return any(s.gang.name[1] >= attempt and s.gang.step() >= step for s in self._stretches)

        self.wait_until(f"step {step} of attempt {attempt}", there)

    def wait_for_launch(self, attempt: int = 0) -> None:
        def there() -> bool:
            return any(rank.of[1] >= attempt for rank in self._ranks())

        self._wait(f"the launch of attempt {attempt}", there, 60.0, LAUNCH_LOOK_S)

    def wait_until(self, what: str, condition: Callable[[], object], deadline_s: float = 60.0) -> None:
        self._wait(what, condition, deadline_s, LOOK_EVERY_S)

    def _wait(self, what: str, condition: Callable[[], object], deadline_s: float, every_s: float) -> None:
        timeline = self.world.timeline
        give_up_at = timeline.now + deadline_s * PATIENCE
        while not condition():
            if timeline.now >= give_up_at or (timeline.stopped and self.world.is_over()):
                raise AssertionError(f"waited in vain: {what}\n{self.told()}")
            timeline.run_until(timeline.now + every_s)

    def pass_time(self, for_s: float) -> None:
        self.world.run_until(self.world.timeline.now + for_s)

    def end(self, deadline_s: float = 120.0) -> int:
        self._wait("the end", self.world.is_over, deadline_s, 1.0)
        self.world.checker.at_the_end()
        code = self.status()["exit_code"]
        assert isinstance(code, int), self.told()
        return code

    # ---- harm ----

    def _injure(self, kind: Kind, *, node: int = 0, rank: int = 0, for_s: float = 0.0, amount: float = 0.0) -> None:
        injure(self.world, Fault(self.world.timeline.now, kind, node, rank, for_s, amount))

    def _holder(self) -> int:
        holder = self.world.holder()
        assert holder is not None, self.told()
        return holder.node.index

    def kill_rank(self, rank: int) -> None:
        self._injure(Kind.KILL_RANK, rank=rank)

    def kill_agent(self, node: int) -> None:
        self._injure(Kind.KILL_AGENT, node=node)

    def kill_warden(self, node: int) -> None:
        self._injure(Kind.KILL_WARDEN, node=node)

    def kill_supervisor(self) -> None:
        self._injure(Kind.KILL_SUPERVISOR, node=self._holder())

    def pause_supervisor(self) -> int:
        holder = self.world.holder()
        assert holder is not None, self.told()
        self._injure(Kind.PAUSE_SUPERVISOR, node=holder.node.index, for_s=FOR_EVER_S)
        return holder.pid

    def wake(self, process: int) -> None:
        self._wake(next(one for one in self.world.supervisors if one.pid == process))

    def _wake(self, process: SimProcess) -> None:
        process.paused_until = self.world.timeline.now
        process._woken()

    def reboot_node(self, node: int) -> None:
        self._injure(Kind.REBOOT_NODE, node=node, for_s=0.5)

    def freeze_node(self, node: int) -> None:
        self._injure(Kind.SUSPEND_NODE, node=node, for_s=FOR_EVER_S)

    def thaw_node(self, node: int) -> None:
        host = self.world.nodes[node]
        host.stopped_until = self.world.timeline.now
        for process in [*host.processes(), *host.ranks]:
            self._wake(process)
        for rank in host.ranks:
            if rank.gang is not None:
                rank.gang.update()

    def cancel(self) -> None:
        self.world.cancel()

    def resume(self) -> None:
        """As the command does: the mark goes, and one more job takes the run up again."""
        world = self.world
        assert world.is_over(), "a run that goes on is left alone"
        world.disk.cancelled_at, world.timeline.stopped = None, False
        seq = max(job.seq for job in world.scheduler.jobs) + 1
        job = world.scheduler.submit(seq, ())
        assert job is not None
        world.resumed[job.id] = ResumeRequested("a person", job.id, seq)

    def tear_newest_checkpoint(self) -> int:
        newest = self.world.checkpoint_fs.newest_valid()
        assert newest is not None, self.told()
        self._injure(Kind.TEAR_CHECKPOINT)
        return newest.step

    def jump_wall(self, by_s: float) -> None:
        for node in self.world.nodes:
            self._injure(Kind.WALL_JUMP, node=node.index, amount=by_s)

    def close(self) -> None:
        """Nothing is real."""

    def told(self) -> str:
        return self.world.story()


def _setup(scenario: Scenario) -> Setup:
    shape = Shape(scenario.nodes, scenario.min_nodes or scenario.nodes, scenario.ranks_per_node, 1)
    policy = Policy(
        timing=replace(Timing(), silence_after_s=scenario.silence_after_s, fence_after_s=scenario.fence_after_s),
        hang=HangPolicy(timeout_s=scenario.hang_timeout_s),
        restarts_max_count=scenario.max_restarts,
    )
    script = Script(
        step_s=0.1,
        steps_count=scenario.steps,
        checkpoint_every_count=scenario.checkpoint_every,
        victims_after_s=0.0,
        behaviours=tuple(_behaviour(one) for one in scenario.does),
    )
    return Setup(shape, policy, script, label=f"--nodes {scenario.nodes}")


def _behaviour(does: Does) -> Behaviour:
    made = Behaviour(does.step, does.rank, attempts=does.attempts)
    match does.how:
        case How.EXIT:
            return replace(made, code=does.code)
        case How.RAISE:
            return replace(made, code=1, signature="RuntimeError at train.py:1 in step")
        case How.KILL:
            return replace(made, signal=9)
        case How.HANG:
            return replace(made, hang=True)
