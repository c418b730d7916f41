"""How often the gang may be restarted, and after how long.

Each cause has its own count since the last progress; progress alone refills it, never time. Progress is a valid
checkpoint above every one before it, or a step that no attempt had reached. Attempts that resume from one checkpoint
and fall at steps 16, 24 and 37 make progress each time; attempts that all fall at step 16 make none after the first.

What nodes or services share may pass, or never have worked. So a run that has made no progress at all gets half the
tries for it, with longer pauses between them; one that has gets all of them.
Called by ``lifecycle`` after each verdict.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

from gangrun.core.model import Budget, Cause, Cure, Sighting, Verdict
from gangrun.core.policy import Policy
from gangrun.core.text import is_save_time

TOTAL_FACTOR = 3  # all causes together, since the last progress, as a multiple of the limit of one
LENIENT_FACTOR = 2
LENIENT = frozenset(
    {Cause.VICTIMS_ONLY, Cause.AGENT_DIED, Cause.NODE_SILENT, Cause.HARDWARE, Cause.NETWORK}
    | {Cause.SERVICE, Cause.PORT, Cause.STORAGE}
)
UNPROVEN = frozenset({Cause.VICTIMS_ONLY, Cause.NETWORK, Cause.SERVICE, Cause.PORT, Cause.STORAGE})
JITTER_SHARE = 0.2
SIGHTINGS_MAX_COUNT = 32
FREE_STARTS = "free starts"  # nobody's fault: counted beside the causes, and not with them


JOBS = "jobs"  # asked for since the last progress: counted beside the causes too


@dataclass(frozen=True, slots=True)
class Ruling:
    """May the gang start again, after how long, and the sentence that says so."""

    allowed: bool
    backoff_s: float
    sentence: str


def limit_count(cause: Cause, policy: Policy, *, is_proven: bool = True) -> int:
    """Restarts for one cause without progress. What is not the script's gets twice as many, but for what may never have
    worked, before the run's first progress.
    """
    is_lenient = cause in LENIENT and (is_proven or cause not in UNPROVEN)
    return policy.restarts_max_count * (LENIENT_FACTOR if is_lenient else 1)


def charge(
    budget: Budget, verdict: Verdict, attempt: int, step: int, policy: Policy, run: str = "", loaded_step: int = -1
) -> tuple[Budget, Ruling]:
    """Count one more restart for the verdict's cause and remember what was seen; a refused one is not counted."""
    remembered = remember(budget, sighting_of(verdict, attempt, step, loaded_step))
    if verdict.final:
        return remembered, Ruling(False, 0.0, "no other node and no other try would cure this")
    key = verdict.cause.value
    used = budget.used.get(key, 0)
    is_proven = budget.mark >= 0
    limit = limit_count(verdict.cause, policy, is_proven=is_proven)
    since = f"since step {budget.mark}" if budget.mark >= 0 else "without any progress"
    if used >= limit:
        spent = f"no restart is left for this cause ({key}): {used} of {limit} spent {since}"
        return remembered, Ruling(False, 0.0, spent)
    total, total_limit = spent_count(budget), TOTAL_FACTOR * policy.restarts_max_count
    if total >= total_limit:
        spent = f"no restart is left: {total} of {total_limit} spent over all causes {since}"
        return remembered, Ruling(False, 0.0, spent)
    passes = verdict.cure is Cure.WAIT  # then even the first try is not made at once
    wait_s = backoff_s(used + 1 + passes, policy, run, attempt)
    if verdict.cause in UNPROVEN and not is_proven:
        wait_s = min(policy.backoff_max_s, wait_s * policy.unproven_backoff_factor)
    after = replace(remembered, used={**budget.used, key: used + 1}, total_count=budget.total_count + 1)
    when = f" in {wait_s:.1f} s" if wait_s else ""
    return after, Ruling(True, wait_s, f"restart {used + 1} of {limit} for this cause ({key}) {since}{when}")


def charge_job(budget: Budget, policy: Policy) -> tuple[Budget, Ruling]:
    """Count one more job; a run that comes no farther in any of them must not go round for ever."""
    used, limit = budget.used.get(JOBS, 0), LENIENT_FACTOR * max(1, policy.restarts_max_count)
    since = f"since step {budget.mark}" if budget.mark >= 0 else "without any progress"
    if used >= limit:
        return budget, Ruling(False, 0.0, f"no other job is asked for: {used} of {limit} spent {since}")
    charged = replace(budget, used={**budget.used, JOBS: used + 1})
    return charged, Ruling(True, 0.0, f"job {used + 1} of {limit} {since}")


def spent_count(budget: Budget) -> int:
    """Restarts over all causes since the last progress, without those that were free of charge."""
    return sum(count for key, count in budget.used.items() if key not in {FREE_STARTS, JOBS})


def backoff_s(failures_count: int, policy: Policy, run: str, attempt: int) -> float:
    """Nothing before the first restart, then doubling; the jitter is the run's own, so replay gives the same."""
    if failures_count < 2:
        return 0.0
    doubled = policy.backoff_first_s * 2.0 ** min(failures_count - 2, 60)
    share = zlib.crc32(f"{run}/{attempt}".encode()) / 0xFFFFFFFF  # hash() differs between processes
    return min(policy.backoff_max_s, doubled * (1 - JITTER_SHARE + 2 * JITTER_SHARE * share))


def refill(budget: Budget, step: int, known_step: int) -> Budget:
    """All counts back to zero if ``step`` is above ``known_step``, the highest of its kind: valid checkpoint's or
    observed one. What was seen to fail is remembered.
    """
    return replace(budget, used={}, mark=max(budget.mark, step)) if step > known_step else budget


def reach(budget: Budget, step: int, best_step: int) -> Budget:
    """``refill`` by a valid checkpoint. No attempt comes back to failures at lower steps, so they are forgotten; of a
    checkpoint whose step is not known it cannot be told which these are.
    """
    if is_save_time(step):
        return replace(budget, used={}, mark=max(budget.mark, 0)) if step > best_step else budget
    return forget(refill(budget, step, best_step), step) if step > best_step else budget


def forget(budget: Budget, step: int) -> Budget:
    """The budget without failures that were seen below ``step``: the code got past them."""
    return replace(budget, sightings=tuple(sighting for sighting in budget.sightings if sighting.step >= step))


def sighting_of(verdict: Verdict, attempt: int, step: int, loaded_step: int = -1) -> Sighting | None:
    """What to remember of a failure so as to know it when it comes again; None where nothing could repeat."""
    if not verdict.signature:
        return None
    return Sighting(verdict.signature, attempt, step, verdict.suspects or verdict.blamed, loaded_step)


def remember(budget: Budget, sighting: Sighting | None) -> Budget:
    """Keep a sighting; the oldest go first."""
    if sighting is None:
        return budget
    return replace(budget, sightings=(*budget.sightings, sighting)[-SIGHTINGS_MAX_COUNT:])
