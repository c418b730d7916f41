"""Whether a checkpoint poisons whoever loads it.

A state may be whole to the last byte and yet lead every attempt that loads it into the same failure soon after: a
moment gone to infinity, a data position past the end. It is told by the same failure within a few steps of loading it,
again and again, and never in an attempt that loaded another one or began anew. Then it is set aside, and the one before
it is tried. Should that fail in the same way, it was the code, and what was set aside is put back: unless it can only
be poisoned too, as what went wrong may have been saved more than once before it showed (``_poisoned_too``).
Asked by ``blame`` and ``recovery``; ``checkpoint/store.py`` moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from gangrun.core.model import (
    AttemptRecord,
    Cause,
    CheckpointRef,
    Cure,
    Failure,
    Poisoned,
    RunState,
    SavedProgress,
    Sighting,
    Verdict,
)
from gangrun.core.policy import Policy
from gangrun.core.recovery import signatures
from gangrun.core.text import listed, step_words

SET_ASIDE_MAX_COUNT = 3  # in a row: a fourth is not tried for it, as by then something else is likelier
WHOLE_STEPS_COUNT = 2  # so many steps after a load at least one was made in full, whenever the script tells of it
_CAUSES = frozenset({Cause.RANK_ERROR, Cause.SIGNAL})
_DAMAGED = signatures.rule_signature("damaged-file", Cure.ONCE, None)  # it may be this file


@dataclass(frozen=True, slots=True)
class Load:
    """What an attempt had loaded. ``since_attempt``: up to that one it was another save, whatever its step."""

    step: int
    steps_told: bool  # the script reports its steps: none seen means that it did not get to any
    since_attempt: int = -1
    newer: tuple[Poisoned, ...] = ()  # that were set aside
    attempts: tuple[AttemptRecord, ...] = ()  # before this one, and how far they came
    is_on_disk: bool = True  # what is in memory only cannot be set aside: the next attempt loads it from the disk


def load_of(state: RunState) -> Load | None:
    """Of the newest attempt; None if it began at the beginning."""
    resume = state.attempt.resume
    if resume is None:
        return None
    told = state.checkpoints.steps_told or state.attempt.step >= 0
    newer = tuple(one for one in state.checkpoints.poisoned if one.step > resume.step)
    since = max((one.attempt for one in state.checkpoints.poisoned), default=-1)
    return Load(resume.step, told, since, newer, _as_far_as_known(state.attempts), resume.memory is None)


def _as_far_as_known(attempts: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
    """Who was lost may have come farther than it was seen: to what the next one loaded, at least."""
    launched = [one for one in attempts if one.nodes]
    return tuple(
        replace(one, last_step=max(one.last_step, _began_at(later))) if _began_at(later) > _began_at(one) else one
        for one, later in pairwise(launched)
    )


def times_count(
    verdict: Verdict, sightings: tuple[Sighting, ...], load: Load | None, attempt_step: int, policy: Policy
) -> int:
    """How often those who loaded this one, or one that was set aside for the same, failed like this, this time
    included; 0 where that need not be its fault.

    ``verdict`` is of the newest attempt, which ``sightings`` do not hold yet.
    """
    may_be_its = verdict.cause in _CAUSES or verdict.signature == _DAMAGED
    if load is None or not may_be_its or signatures.may_be_the_nodes(verdict.signature):
        return 0
    if not _soon(attempt_step, load.step, load, policy) or len(load.newer) >= SET_ASIDE_MAX_COUNT:
        return 0
    same = [sighting for sighting in sightings if sighting.signature == verdict.signature]
    after = _steps_after(attempt_step, load.step)
    for sighting in same:
        known = _of_this_load(sighting, load) or _of_a_poisoned_one(sighting, load)
        if not known and not _of_the_same_state(sighting, load, attempt_step, policy):
            return 0
        if not _soon(sighting.step, sighting.loaded_step, load, policy):
            return 0
        if _steps_after(sighting.step, sighting.loaded_step) != after and signatures.is_weak(verdict.signature):
            return 0
    before = [sighting for sighting in same if _of_a_poisoned_one(sighting, load)]
    if before and not _poisoned_too(load, before, attempt_step, policy):
        return 0
    return 1 + len(same)


def _soon(step: int, loaded_step: int, load: Load, policy: Policy) -> bool:
    if step < 0:
        return load.steps_told and policy.poison_after_steps > 0
    return 0 <= step - loaded_step <= policy.poison_after_steps and policy.poison_after_steps > 0


def _steps_after(step: int, loaded_step: int) -> int:
    return step - loaded_step if step >= 0 else -1


def _of_this_load(sighting: Sighting, load: Load) -> bool:
    return sighting.loaded_step == load.step and sighting.attempt > load.since_attempt


def _of_a_poisoned_one(sighting: Sighting, load: Load) -> bool:
    """Had that attempt loaded one that was set aside for this very failure?"""
    return any(
        one.signature == sighting.signature
        and one.first_step <= sighting.loaded_step <= one.step
        and sighting.attempt <= one.attempt
        for one in load.newer
    )


def _of_the_same_state(sighting: Sighting, load: Load, attempt_step: int, policy: Policy) -> bool:
    """Did that attempt save what was loaded now, on its way to the failure, which came no later now? Then both had the
    same state; where another attempt has passed that step, so that it is not the step's data or code.
    """
    fell_at = max(attempt_step, load.step)
    saved_by_it = sighting.loaded_step < load.step <= sighting.step and sighting.attempt > load.since_attempt
    return saved_by_it and fell_at <= sighting.step and _passed(fell_at, _did_well(load, policy))


def _did_well(load: Load, policy: Policy) -> list[AttemptRecord]:
    """Attempts that came farther than a failure after a load may be the checkpoint's."""
    return [one for one in load.attempts if one.last_step - _began_at(one) > policy.poison_after_steps]


def _passed(step: int, attempts: list[AttemptRecord]) -> bool:
    return any(_began_at(one) < step < one.last_step for one in attempts)


def _began_at(attempt: AttemptRecord) -> int:
    return -1 if attempt.resumed_from_step is None else attempt.resumed_from_step


def _poisoned_too(load: Load, before: list[Sighting], attempt_step: int, policy: Policy) -> bool:
    """Newer ones were set aside for this failure. Who loaded this one fell sooner than any of those did, and of the
    attempts that did well,

    - one had passed the step at which it fell, so it is not that step's data or code; and who fell now made a whole
      step first, so it is not the loading;
    - or one had loaded a checkpoint, so it is not the loading either.

    But if one had loaded this very one, or it fell at the same step as before or later, it is something else.
    """
    fell_at = max(attempt_step, load.step)
    if fell_at >= min(max(one.step, one.loaded_step) for one in before):
        return False
    did_well = _did_well(load, policy)
    if any(one.resumed_from_step == load.step for one in did_well):
        return False
    loading_works = any(one.resumed_from_step is not None for one in did_well)
    return loading_works or (_passed(fell_at, did_well) and fell_at - load.step >= WHOLE_STEPS_COUNT)


def verdict(failed: Verdict, load: Load, times: int, policy: Policy) -> Verdict:
    """It is the checkpoint's: no node is suspected, and another try from another one may succeed."""
    newer = [step_words(one.step) for one in load.newer if one.signature == failed.signature]
    soon, loaded = f"within {policy.poison_after_steps} steps of loading", step_words(load.step)
    if newer:
        sentence = (
            f"{failed.sentence}; the run failed in this way {soon} {loaded}, and before that {listed(newer)},"
            f" each time after fewer steps, while other attempts did well: {loaded} counts as poisoned too"
        )
    else:
        sentence = (
            f"{failed.sentence}; the run failed in this way {times} times {soon} {loaded}, and never after"
            f" loading another checkpoint: {loaded} counts as poisoned"
        )
    return Verdict(Cause.POISONED, Failure.SCRIPT, (), (), failed.signature, sentence)


def condemn(state: RunState, judged: Verdict, traceback: str, policy: Policy) -> RunState:
    """The state whose next choice sets aside what the newest attempt loaded."""
    load = load_of(state)
    assert state.attempt.resume is not None
    assert load is not None
    same = [one for one in state.budget.sightings if one.signature == judged.signature]
    family = [one for one in same if not _of_a_poisoned_one(one, load)]
    times, since = len(family), min(one.loaded_step for one in family)
    often = f"{times} times" if times > 1 else "once, as it did with newer checkpoints"
    why = f"every attempt that loaded it failed in the same way within {policy.poison_after_steps} steps, {often}"
    loaded, failed = state.attempt.resume, traceback or judged.sentence
    number = state.attempt.number
    poison = Poisoned(loaded.step, loaded.path, judged.signature, number, why, failed, loaded.level, since)
    return replace(state, checkpoints=replace(state.checkpoints, condemned=poison))


def to_set_aside(state: RunState) -> Poisoned | None:
    """What the next choice sets aside; nothing where a person says what to resume from."""
    return state.checkpoints.condemned if state.checkpoints.resume_request == "auto" else None


def set_aside(state: RunState) -> SavedProgress:
    """The checkpoints once that choice was made."""
    now, before = to_set_aside(state), state.checkpoints
    return replace(before, condemned=None, poisoned=(*before.poisoned, now) if now else before.poisoned, cleared=())


def told(condemned: Poisoned) -> str:
    """Why, with the newest failure."""
    if not condemned.signature:  # of no single checkpoint: all from there on
        return f"every checkpoint from step {condemned.step} on counts as spoilt ({condemned.failed})"
    return f"{step_words(condemned.step)} counts as poisoned ({condemned.why}: {condemned.failed})"


def cleared(state: RunState, signature: str) -> tuple[RunState, str]:
    """The run ends of this failure: those that were set aside for it are put back, as nothing shows that it is them;
    but not where the run, without them, came past the steps at which it failed.
    """
    sightings = [one for one in state.budget.sightings if one.signature == signature]
    still_open = {(one.loaded_step, one.attempt) for one in sightings}  # progress forgets the others
    saved = state.checkpoints
    innocent = [one for one in saved.poisoned if one.signature == signature and (one.step, one.attempt) in still_open]
    if not innocent:
        return state, ""
    guilty = tuple(one for one in saved.poisoned if one not in innocent)
    names = listed([step_words(one.step) for one in innocent])
    words = f"; no checkpoint is shown to be the cause, so {names}, which gangrun had set aside, is put back"
    there = [CheckpointRef(one.step, one.path, one.level) for one in innocent]
    newest = max((*there, *([saved.newest] if saved.newest else [])), key=lambda one: one.step)
    saved = replace(saved, poisoned=guilty, cleared=tuple(one.path for one in innocent), newest=newest)
    return replace(state, checkpoints=saved), words
