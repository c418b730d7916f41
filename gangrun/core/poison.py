"""Whether a checkpoint poisons whoever loads it (room: core, which only decides).

A state may be whole to the last byte and yet lead every attempt that loads it into the same failure soon after: a
moment gone to infinity, a data position past the end. It is told by the same failure within a few steps of loading it,
again and again, and never in an attempt that loaded another one or began anew. Then it is set aside, and the one before
it is tried. Should that fail in the same way, it was the code, and what was set aside is put back.
Asked by ``blame`` and ``recovery``; ``checkpoint/store.py`` moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gangrun.core import repeats
from gangrun.core.model import Cause, CheckpointRef, Failure, Poisoned, RunState, Sighting, Verdict
from gangrun.core.policy import Policy

_CAUSES = frozenset({Cause.RANK_ERROR, Cause.SIGNAL})


@dataclass(frozen=True, slots=True)
class Load:
    """What an attempt had loaded. ``since_attempt``: up to that one it was another save, whatever its step."""

    step: int
    steps_told: bool  # the script reports its steps: none seen means that it did not get to any
    since_attempt: int = -1


def load_of(state: RunState) -> Load | None:
    """Of the newest attempt; None where it began at the beginning."""
    if state.resume is None:
        return None
    told = state.steps_told or state.attempt_step >= 0
    return Load(state.resume.step, told, max((one.attempt for one in state.poisoned), default=-1))


def times_count(
    verdict: Verdict, sightings: tuple[Sighting, ...], load: Load | None, attempt_step: int, policy: Policy
) -> int:
    """How often those who loaded this one failed like this, this time included; 0 where that need not be its fault.

    ``verdict`` is of the newest attempt, which ``sightings`` do not hold yet.
    """
    if load is None or verdict.cause not in _CAUSES or repeats.may_be_the_nodes(verdict.signature):
        return 0
    if not _soon(attempt_step, load, policy):
        return 0
    same = [sighting for sighting in sightings if sighting.signature == verdict.signature]
    for sighting in same:
        same_load = sighting.loaded_step == load.step and sighting.attempt > load.since_attempt
        if not same_load or not _soon(sighting.step, load, policy):
            return 0
        if sighting.step != attempt_step and repeats.is_weak(verdict.signature):
            return 0
    return 1 + len(same)


def _soon(step: int, load: Load, policy: Policy) -> bool:
    if step < 0:
        return load.steps_told and policy.poison_after_steps > 0
    return 0 <= step - load.step <= policy.poison_after_steps and policy.poison_after_steps > 0


def verdict(failed: Verdict, load: Load, times: int, policy: Policy) -> Verdict:
    """It is the checkpoint's: no node is suspected, and another try from another one may succeed."""
    sentence = (
        f"{failed.sentence}, {times} times the same within {policy.poison_after_steps} steps of loading step"
        f" {load.step}, and after no other load: step {load.step} is taken for poisoned"
    )
    return Verdict(Cause.POISONED, Failure.SCRIPT, (), (), failed.signature, sentence)


def condemn(state: RunState, judged: Verdict, traceback: str, policy: Policy) -> RunState:
    """The state whose next choice sets aside what the newest attempt loaded."""
    assert state.resume is not None
    times = sum(sighting.signature == judged.signature for sighting in state.budget.sightings)
    why = f"whoever loaded it failed in the same way within {policy.poison_after_steps} steps, {times} times"
    loaded, failed = state.resume, traceback or judged.sentence
    poison = Poisoned(loaded.step, loaded.path, judged.signature, state.attempt, why, failed, loaded.level)
    return replace(state, condemned=poison)


def to_set_aside(state: RunState) -> Poisoned | None:
    """What the next choice sets aside; nothing where a person says what to resume from."""
    return state.condemned if state.resume_request == "auto" else None


def set_aside(state: RunState) -> dict[str, Any]:
    """What changes once that choice was made."""
    now = to_set_aside(state)
    return {"condemned": None, "poisoned": (*state.poisoned, now) if now else state.poisoned, "cleared": ()}


def told(condemned: Poisoned) -> str:
    """Why, with the newest failure."""
    return f"step {condemned.step} is taken for poisoned ({condemned.why}: {condemned.failed})"


def cleared(state: RunState, judged: Verdict) -> tuple[RunState, str]:
    """The run ends of this failure: those that were set aside for it had no part in it and are put back."""
    innocent = [one for one in state.poisoned if one.signature == judged.signature]
    if not innocent:
        return state, ""
    guilty = tuple(one for one in state.poisoned if one not in innocent)
    names = " and ".join(f"step {one.step}" for one in innocent)
    words = f"; it is not the checkpoint's, so {names}, set aside for it, is put back"
    there = [CheckpointRef(one.step, one.path, one.level) for one in innocent]
    newest = max((*there, *([state.checkpoint] if state.checkpoint else [])), key=lambda one: one.step)
    return replace(state, poisoned=guilty, cleared=tuple(one.path for one in innocent), checkpoint=newest), words
