"""The training time of a run over all its jobs, and the end once the user's total is used (``--total-time``).

The clock runs while all ranks run: from the launch to the decision that stops them, so in RUNNING and in no other
phase. Loading, saving and steps that are done again count; the queue, checks, starts, stops and waits do not. Of a job
that went away with its supervisor only what the journal shows counts: up to its last record.

When the total is used the timer ``TIMER`` is due: the ranks save and stop, and the run ends as TIME_UP. A run that is
down when so little is left asks for no further job and starts nothing (``end``).
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.actions import Decision
from gangrun.core.events import Event, ResumeRequested, TermTaken
from gangrun.core.machine.transitions import finish, with_deadline
from gangrun.core.model import Outcome, Phase, RunState, TrainingTime
from gangrun.core.policy import Policy
from gangrun.core.text import step_words, time_words

TIMER = "total"
LEAST_S = 1.0  # nothing is started for less


def trained_s(state: RunState, now: float) -> float:
    """How long all ranks have run so far, over all jobs."""
    since = state.training.running_since
    return state.training.trained_s + (0.0 if since is None else max(0.0, now - since))


def left_s(state: RunState, now: float, policy: Policy) -> float | None:
    """Until the total is used, if all ranks run on; None: there is no total."""
    return policy.total_time_s - trained_s(state, now) if policy.total_time_s else None


def is_used(state: RunState, now: float, policy: Policy) -> bool:
    """Is too little left to start anything for?"""
    remaining_s = left_s(state, now, policy)
    return remaining_s is not None and remaining_s < LEAST_S


def words(policy: Policy) -> str:
    """That the total is used, as people read it."""
    return f"all ranks have run for {time_words(policy.total_time_s)}, the run's total time (--total-time)"


def end(state: RunState, now: float, policy: Policy, why: str = "") -> Decision:
    """The run ends here, unfinished and saved; no other job is asked for."""
    newest, reason = state.checkpoints.newest, f"{why}; {words(policy)}" if why else words(policy)
    kept = f"its newest checkpoint is of {step_words(newest.step)}" if newest else "no checkpoint of it is known"
    told = f"{reason}; the run ends, and {kept}; gangrun resume gives it as much time again"
    return finish(state, Phase.TIME_UP, now, told)


def counted(before: RunState, event: Event, decision: Decision, now: float, policy: Policy) -> Decision:
    """The decision whose state has counted the time so far, with the timer if all ranks begin to run."""
    after = decision.state
    was_running, runs = before.phase is Phase.RUNNING, after.phase is Phase.RUNNING
    if was_running is runs or decision.outcome is not Outcome.APPLIED:
        return decision
    if runs:
        after = replace(after, training=replace(after.training, running_since=now))
        remaining_s = left_s(after, now, policy)
        after = after if remaining_s is None else with_deadline(after, TIMER, now + max(0.0, remaining_s))
        return replace(decision, state=after)
    gone = isinstance(event, ResumeRequested) or (isinstance(event, TermTaken) and _is_left(before, event))
    until = before.updated_at if gone else now
    return replace(decision, state=replace(after, training=TrainingTime(trained_s(before, until))))


def _is_left(state: RunState, event: TermTaken) -> bool:
    """Had the last supervisor's job, or all that lived in it, ended when this one began?"""
    return event.alone or event.job != state.job
