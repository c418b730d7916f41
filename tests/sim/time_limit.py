"""The real watch of a job's time limit in a simulated world, whose time is that of Slurm's controller."""

from __future__ import annotations

from collections.abc import Callable

from gangrun.adapters.slurm.scheduler import Controller, JobFacts, Maintenance, SchedulerSilent
from gangrun.adapters.slurm.watch import JobWatch
from gangrun.core.events import Notice, Stamped
from gangrun.sim import World
from gangrun.sim.body.refills import JobState
from gangrun.sim.body.scheduler import KILL_WAIT_S, Job, SimScheduler
from gangrun.sim.body.supervisor import SimSupervisor
from gangrun.sim.engine.clock import EPOCH_S

STOPS_WITHIN_S = 5.0
SLACK_S = 30.0  # drift, and how often the watch turns


class Bell:
    """Waits for nobody: the timeline says when the watch turns."""

    def __init__(self) -> None:
        self._rung = False

    def set(self) -> None:
        self._rung = True

    def clear(self) -> None:
        self._rung = False

    def is_set(self) -> bool:
        return self._rung

    def wait(self, timeout: float | None = None) -> bool:
        return self._rung


class SimController:
    """What the watch asks of Slurm."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self._scheduler = scheduler

    def controller(self) -> Controller:
        now = self._scheduler.world.timeline.now
        return Controller(KILL_WAIT_S, EPOCH_S + now if now >= self._scheduler.moods.down_until else None)

    def maintenance(self) -> tuple[Maintenance, ...]:
        """No administrator of this world announces any."""
        return ()

    def job(self, name: str, *, within_s: float) -> JobFacts | None:
        scheduler, job = self._scheduler, self._scheduler.job_of(name)
        if scheduler.world.timeline.now < scheduler.moods.down_until or job is None:
            raise SchedulerSilent(f"scontrol does not answer within {within_s:g} s")
        start_wall = EPOCH_S + job.began_at
        state = "RUNNING" if job.state is JobState.RUNNING else "COMPLETING"
        return JobFacts(
            job=name, state=state, restarts_count=job.restart, start_wall=start_wall,
            end_wall=start_wall + scheduler.world.setup.time_limit_s,
        )  # fmt: skip


def watched(world: World, *, measured: bool = False) -> World:
    """Each supervisor of this world sees the time limit of its job coming, and is told of it when it should be.

    ``measured``: what a save takes is known.
    """
    scheduler = world.scheduler

    def watch_of(supervisor: SimSupervisor, job: Job) -> Callable[[], object]:
        def post(stamped: Stamped) -> None:
            assert isinstance(stamped.event, Notice)
            told_s = stamped.event.grace_s
            left_s = job.began_at + world.setup.time_limit_s - supervisor.timeline.now
            if abs(told_s - left_s) > SLACK_S:
                world.checker.broken("I14", f"{job.id} is told that it has {told_s:.0f} s left, and has {left_s:.0f}")
            supervisor.post(stamped)

        policy, controller = supervisor.policy, SimController(scheduler)
        watch = JobWatch(
            controller, run="r", job=job.id, restarts_count=job.restart,  # type: ignore[arg-type]
            lead_s=lambda save_s: policy.lead_s(save_s) + policy.stop_grace_s + STOPS_WITHIN_S,
            save_s=lambda: world.setup.script.save_s if measured else 0.0,
            post=post, clock=supervisor.clock, bells=Bell,
        )  # fmt: skip
        return watch.turn

    scheduler.watch_of = watch_of
    return world
