"""Whether a run whose ranks all ended is finished.

An exit code of 0 does not prove it: Lightning, Megatron, NeMo and the Trainer's save on a signal leave with 0 when they
are asked to stop. So the step is compared with the goal: the step that ranks reported or resumed from; else how far
they may have come by the lines that they printed. The user's goal (``--total-steps``) binds. Where only the script
names one, a script that ends before it may do so on purpose (early stopping): that counts as the end, unless somebody
had asked its node to stop. Nor does a crash disprove it, once the script has ended: native threads of torch may abort a
process whose work is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangrun.core.evidence import RankExit
from gangrun.core.machine.transitions import WHY, at_log_step, at_step
from gangrun.core.model import RunState
from gangrun.core.policy import Policy
from gangrun.core.recovery.error_rules import SHELL_SIGNAL_BASE
from gangrun.core.text import all_of, known_step

CRASHES = (4, 6, 7, 8, 11)  # ILL, ABRT, BUS, FPE, SEGV
ABORTED = 6
OF_A_THREAD = "terminate called without an active exception"  # that nobody had joined when the process wound up


@dataclass(frozen=True, slots=True)
class Completion:
    """Whether it is the end, and the sentence that says why. ``doubtful``: news of a stop may be on its way."""

    finished: bool
    sentence: str
    doubtful: bool = False


def completion(state: RunState, policy: Policy) -> Completion:
    """Of a run whose ranks have all finished."""
    own = state.attempt.total_steps
    if state.attempt.step < 0 and state.attempt.reach < 0 and _known(state) < own - 1:
        own = -1  # nobody has told how far it got
    assert state.attempt.placement is not None
    ranks = all_of(state.attempt.placement.world_size, "rank")
    asked = WHY in state.timers.deadlines
    if policy.total_steps or own > 0:
        end = _measured(state, policy.total_steps or own, ranks)
        if policy.total_steps or end.finished:
            return end
        if asked:
            return Completion(False, f"{end.sentence}: a node was told to end")
        step = _done(state)
        why = f"gangrun had not asked it to stop, so the script ended by itself before the {own} steps that it named"
        hint = f"--total-steps {own} would have made gangrun restart it"
        return Completion(True, f"{ranks} finished at step {step}: {why} ({hint}){_crash_words(state)}", doubtful=True)
    if asked:
        why = "just after a node was told to end; how many steps the run has is not known (--total-steps)"
        return Completion(False, f"{ranks} ended with exit code 0 {why}, so it is not taken for finished")
    at = f" at step {state.attempt.step}" if state.attempt.step >= 0 else ""
    return Completion(True, f"{ranks} finished{at}{_crash_words(state)}")


def reached_goal(state: RunState, policy: Policy) -> bool:
    """Did all ranks end with 0 at the last step? Whoever stopped them came too late."""
    placed, goal = state.attempt.placement, policy.total_steps or state.attempt.total_steps
    all_ended = placed is not None and len(state.attempt.finished) >= placed.world_size
    return all_ended and goal > 0 and _known(state) >= goal - 1


def _measured(state: RunState, goal: int, ranks: str) -> Completion:
    """By the goal: steps may be counted from 0, and what is printed from 1 in each attempt."""
    step, crashed = _known(state), _crash_words(state)
    ended = f"{ranks} ended with exit code 0"
    if step >= goal - 1:
        return Completion(True, f"{ranks} finished at step {step} of {goal}{crashed}")
    if state.attempt.step >= 0:
        return Completion(False, f"{ended} at step {state.attempt.step} of {goal}, so the run is not finished")
    if state.attempt.reach >= 0:
        reach = _done(state)
        if reach < goal - 1:
            return Completion(False, f"{ended} at step {reach} of {goal} at most (from the log), so the run goes on")
        if goal - 1 <= state.checkpoints.logged_step <= goal:
            step = state.checkpoints.logged_step
            return Completion(True, f"{ranks} finished at step {step} of {goal} (from the log){crashed}")
        return Completion(True, f"{ranks} finished; their log does not contradict {goal} steps{crashed}")
    why = f"exit code 0 is taken for the end, as no step was seen to compare with {goal}"
    return Completion(True, f"{ranks} finished: {why}{crashed}")


def _known(state: RunState) -> int:
    """The highest step that is sure."""
    resumed = known_step(state.attempt.resume.step) if state.attempt.resume else -1
    return max(state.attempt.step, resumed, known_step(state.checkpoints.disk_step))


def _done(state: RunState) -> int:
    """The highest step that may have been done."""
    if state.attempt.step >= 0 or state.attempt.reach < 0:
        return _known(state)
    resumed = known_step(state.attempt.resume.step) if state.attempt.resume else -1
    return state.attempt.reach + max(0, resumed)


def _crash_words(state: RunState) -> str:
    count = state.attempt.crashed_count
    if not count:
        return ""
    who = "1 process" if count == 1 else f"{count} processes"
    return f"; then {who} crashed on the way out, after the training, so nothing is lost"


def crashed_after_its_end(state: RunState, died: RankExit, policy: Policy) -> bool:
    """Had this rank done all when its process crashed? Python said so, or it was at its last step and died of a thread
    that nobody had joined, which happens when a process winds up.
    """
    number = died.signal or max((died.code or 0) - SHELL_SIGNAL_BASE, 0)
    if died.by_us or died.oom_kill or died.error is not None or number not in CRASHES:
        return False
    if died.script_ended:
        return True
    goal = policy.total_steps or max(died.total_steps, state.attempt.total_steps)
    step = max(died.step, died.log_step) if died.step < 0 else died.step
    done = max(step, state.attempt.step)
    return number == ABORTED and 0 < goal <= done + 1 and any(OF_A_THREAD in line for line in died.tail)


def with_last_figures(
    state: RunState, rank: int, step: int, log_step: int, total_steps: int, loss: float | str | None
) -> RunState:
    """The state that knows what a rank told of its training before it ended."""
    state = at_log_step(at_step(state, step), log_step)
    attempt = state.attempt
    if total_steps > attempt.total_steps:
        attempt = replace(attempt, total_steps=total_steps)
    if loss is not None and (attempt.loss is None or rank <= attempt.loss_rank):
        attempt = replace(attempt, loss=loss, loss_rank=rank)
    return state if attempt is state.attempt else replace(state, attempt=attempt)
