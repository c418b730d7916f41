"""A gang that is smaller than it was asked for grows again, at a checkpoint.

A node that returned, is heard again or joined late holds no ranks until it has passed its checks. Then all ranks are
asked to save, and once a checkpoint is there they are stopped and started on more nodes, as in a planned replacement:
no restart is charged, and what breaks meanwhile is judged as ever. A script that saves when asked repeats the steps
after its last save: mostly none.

Each growth costs a stop and a start of all ranks. So a gang that was just started is left alone (``grow_every_s``), and
nobody grows who would not win the cost back before the job's time limit or the end of the training: a gang that is
larger by a share of S saves S of the time that is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangrun.core.actions import Decision, SaveGang
from gangrun.core.machine import total_time
from gangrun.core.machine.transitions import stay, stop_all
from gangrun.core.model import After, Outcome, Phase, Placement, RunState
from gangrun.core.nodes import placement, planned_replacement, standing
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.text import counted, known_step

STOP_COST_S = 30.0  # to save, to stop and to choose the checkpoint
READY_COST_S = 120.0  # from the launch to the first step, of a script that tells no steps


@dataclass(frozen=True, slots=True)
class LargerGang:
    """On which nodes all ranks would run, and which of them are new."""

    before: Placement
    after: Placement

    @property
    def coming(self) -> tuple[str, ...]:
        """The nodes that hold no ranks yet."""
        return tuple(name for name in self.after.nodes if not self.before.holds(name))

    @property
    def told(self) -> str:
        """What changes, in words."""
        return f"the run grows from {self.before.world_size} to {counted(self.after.world_size, 'rank')}"


def possible(state: RunState, now: float, policy: Policy) -> LargerGang | None:
    """How the gang could grow now, with nodes that have proven themselves and nothing against them; None: it cannot."""
    before = state.attempt.placement
    if before is None or policy.observe or not policy.grow_every_s or len(before.nodes) >= state.shape.nodes_count:
        return None
    good = planned_replacement.proven(state, before)
    placed = placement.place(good, standing.active(state.health.excluded, now), state.shape, prefer=before)
    if not isinstance(placed, Placement) or placed.world_size <= before.world_size:
        return None
    return LargerGang(before, placed) if set(before.nodes) <= set(placed.nodes) else None


def announced(before: RunState, decision: Decision, now: float, policy: Policy) -> Decision:
    """RUNNING: if the gang can grow since this event, all ranks are asked to save now, or people read when they are."""
    state = decision.state
    if decision.outcome is not Outcome.APPLIED or state.phase is not Phase.RUNNING:
        return decision
    growth = possible(state, now, policy)
    if growth is None or possible(before, now, policy) == growth:
        return decision
    wait_s = _started_at(state) + policy.grow_every_s - now
    if wait_s > 0:
        told = f"{growth.told} at a checkpoint, in {wait_s:.0f} s at the earliest (--grow-every)"
        return stay(state, f"{decision.reason}; {told}", *decision.actions, loud=True)
    told = f"{growth.told} at the next checkpoint; asking all ranks to save now"
    save = SaveGang(state.attempt.number, "")
    return stay(state, f"{decision.reason}; {told}", *decision.actions, save, loud=True)


def at_checkpoint(decision: Decision, now: float, policy: Policy, job_left_s: float | None) -> Decision:
    """RUNNING, and a newer checkpoint is there: stop, and start on more nodes, if there are any and it pays.

    ``job_left_s``: until the time limit of this job; None: it has none, or nobody knows it.
    """
    state = decision.state
    if state.phase is not Phase.RUNNING or planned_replacement.is_busy(decision, now):
        return decision
    growth = possible(state, now, policy)
    if growth is None:
        return decision
    if why_not := _why_not(state, growth, now, policy, job_left_s):
        reason = f"{decision.reason}; {fold(growth.coming)} is free and stays so: {why_not}"
        return replace(decision, reason=reason)
    reason = f"{decision.reason}; {fold(growth.coming)} is free again: {growth.told}; the script is asked to save first"
    return stop_all(state, now, policy, After.MOVE, reason, checkpoint_first=True)


def _started_at(state: RunState) -> float:
    return state.attempts[-1].started


def _why_not(state: RunState, growth: LargerGang, now: float, policy: Policy, job_left_s: float | None) -> str:
    wait_s = _started_at(state) + policy.grow_every_s - now
    if wait_s > 0:
        return f"all ranks were started less than {policy.grow_every_s:g} s ago (--grow-every)"
    share = 1 - growth.before.world_size / growth.after.world_size
    cost_s = STOP_COST_S + (state.attempt.ready_s or READY_COST_S)
    ends = {
        "the job's time limit": job_left_s,
        "the end of the training": _training_left_s(state, now, policy),
        "the end of the run's total time": total_time.left_s(state, now, policy),
    }
    for what, left_s in ends.items():
        if left_s is not None and share * left_s <= cost_s:
            saved = f"{counted(growth.after.world_size, 'rank')} would save {share * left_s:.0f} s"
            return f"{what} is {left_s:.0f} s away, in which {saved}, and the restart costs about {cost_s:.0f} s"
    return ""


def _training_left_s(state: RunState, now: float, policy: Policy) -> float | None:
    """By the pace of this attempt; None if nobody knows the last step, or ranks tell no steps."""
    last = policy.total_steps or state.attempt.total_steps
    resumed = max(0, known_step(state.attempt.resume.step)) if state.attempt.resume else 0
    done = state.attempt.step - resumed
    if last <= 0 or done <= 0:
        return None
    return max(0, last - state.attempt.step) * (now - _started_at(state)) / done
