"""Devices put to work beside the best that they have shown on this node, which is kept for the next time.

For nodes on which no rank runs. Used by ``gangrun health --active`` and, at a run's gate, by ``health_watch``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gangrun.core.nodes.device_test import THOROUGH
from gangrun.health.active import devices
from gangrun.health.active.devices import best_of
from gangrun.health.framework.check import Severity
from gangrun.health.framework.rounds import CheckFamily, Rounds
from gangrun.health.gpu import dcgm
from gangrun.launch.health_questions import baseline_of, keep_baseline

if TYPE_CHECKING:
    from gangrun.health.framework.check import CheckVerdict, HealthPolicy
    from gangrun.health.framework.rounds import Surroundings
    from gangrun.ports import Clock

LEAST_S = 5.0  # a test for which less time is left is not begun
EXACT = {"active_gemm": "", "active_memory": " of memory"}  # all of these must be known, or nothing is proven


@dataclass(frozen=True, slots=True)
class Worked:
    """What came out: every verdict, what was done and came out right ("" where not all of it did), and why not."""

    verdicts: tuple[CheckVerdict, ...]
    tested: str = ""
    untested: str = ""


def measured(
    families: Iterable[CheckFamily], around: Surroundings, policy: HealthPolicy, node: str, clock: Clock
) -> tuple[tuple[CheckVerdict, ...], str]:
    """Every check of these families once; and why their best could not be kept, or ""."""
    before, why_not = baseline_of(node), ""
    rounds = Rounds(families, around, policy, clock)
    rounds.begin_from([before] if before is not None else [])
    verdicts = rounds.look()
    for now in rounds.readings():
        if now.family == devices.NAME and now is not before:
            why_not = keep_baseline(node, best_of(now, before))
    return verdicts, why_not


def at_the_gate(
    tests: str, until: float, around: Surroundings, policy: HealthPolicy, node: str, clock: Clock, off: frozenset[str]
) -> Worked:
    """The quick tests, and DCGM's own where they are to be thorough; what is not done at ``until`` is unknown."""
    began = clock.now()
    verdicts: tuple[CheckVerdict, ...] = ()
    making: list[Callable[[float], CheckFamily]] = [devices.quick, *([dcgm.short_test] if tests == THOROUGH else [])]
    for make in making:
        left_s = until - clock.now()
        if left_s < LEAST_S:
            break
        family = make(left_s)
        family = replace(family, checks=tuple(one for one in family.checks if one.name not in off))
        verdicts += measured([family], around, policy, node, clock)[0]
    return summed_up(verdicts, clock.now() - began)


def summed_up(verdicts: tuple[CheckVerdict, ...], took_s: float) -> Worked:
    """In words. A device is proven only by results that are known to the bit."""
    by_name = {one.check: one for one in verdicts}
    told = []
    for name, of_what in EXACT.items():
        one = by_name.get(name)
        if one is None or one.severity is Severity.UNKNOWN:
            return Worked(verdicts, "", one.words if one is not None else "there was no time for it, or it is off")
        told.append(one.shown + of_what)
    bad = next((one.words for one in verdicts if one.severity is Severity.FAIL), "")
    if bad:
        return Worked(verdicts, "", bad)
    dcgm_says = by_name.get("dcgm_test")
    if dcgm_says is not None and dcgm_says.severity is not Severity.UNKNOWN:
        told.append(f"DCGM's test: {dcgm_says.shown}")
    return Worked(verdicts, f"{', '.join(told)}, in {took_s:.0f} s")
