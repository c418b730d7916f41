"""Devices at work: known arithmetic, memory patterns, speeds against the node's own best, which is kept between runs.

One child for each GPU, or for the CPU if there is none; a second one there, so that it has a partner to add up with.
What a test could not finish is unknown: only a wrong result, a device that refuses to work and a speed that fell count.
``device_child`` does the work. A device, driver or torch that changed begins a new best. A speed below the policy's
share is not taken in, so that a node does not grow slow unseen; a better one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gangrun.health.framework.bounds import Bound, BoundMeasure, Rows, far_below, words_of
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Finding,
    Needs,
    NodeFacts,
    Reading,
    Scope,
    Severity,
    Sticky,
    Value,
)  # fmt: skip
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings

NAME, NODE, CPU = "active", "node", "cpu"
QUICK, DEEP = "quick", "deep"
WITHIN_S = {QUICK: 55.0, DEEP: 570.0}
ENDS_BEFORE_S = 3.0  # who starts the children is given so much more than they are
NOT_ASKED = "not measured"
PERCENT = 100
IDLE_LOAD_SHARE = 0.3  # processes that want to run, for each CPU
SAME = ("device", "driver", "torch", "allreduce_ranks")
SPEEDS = ("gemm_tflops", "memory_gbps", "h2d_gbps", "d2h_gbps", "allreduce_gbps")
ASKED_ONLY_S = 3600.0  # never while ranks run; after a failure, and when somebody asks


def _reads(how: str, within_s: float) -> Callable[[HealthSurroundings], NodeFacts]:
    return lambda around: around.probes.ask(NAME, (how, f"{within_s - ENDS_BEFORE_S:g}"), within_s)


def best_of(now: Reading, before: Reading | None) -> Reading:
    """What is kept after this reading: the best of both, place by place."""
    values: dict[str, Mapping[str, Value]] = dict(before.facts.values) if before is not None else {}
    for place in now.facts.values:
        measured = {name: speed for name in SPEEDS if (speed := now.facts.number(place, name)) is not None}
        if not measured:
            continue
        identity = {name: v for name in SAME if (v := now.facts.get(place, name)) is not None}
        old = values.get(place, {})
        same = all(old.get(name) == identity.get(name) for name in SAME)
        best: dict[str, Value] = {}
        for name in SPEEDS:
            both = [v for v in (old.get(name) if same else None, measured.get(name)) if isinstance(v, (int, float))]
            if both:
                best[name] = max(both)
        values[place] = {**identity, **best}
    return Reading(now.family, now.at, now.boot_id, NodeFacts(values))


def _found(look: CheckLook, severity: Severity, place: str, sentence: str, new: Value, old: Value | None = None, *,
           needs: Needs) -> Finding:  # fmt: skip
    """Only what failed is the hardware's for sure."""
    cause = CauseClass.HARDWARE if severity is FAIL else CauseClass.EITHER
    return look.found(severity, place, sentence, new, old, needs, cause, Sticky.BOOT)


STARTS = Bound("unusable", 0, FAIL, "the device takes no work", measure=BoundMeasure.WORD, needs=Needs.RESET)
WRONG_SUM = Bound("gemm_mismatches", 0, FAIL, "number of wrong results in products whose result is known",
                  "Do not train on this device", needs=Needs.RMA, good=0)  # fmt: skip
WRONG_WORDS = Bound("memory_mismatches", 0, FAIL, "number of memory words that are not what was written",
                    "Do not train on this device", needs=Needs.RMA, good=0)  # fmt: skip


def judge_arithmetic(look: CheckLook) -> CheckOutcome:
    """Is what a device multiplies right, bit for bit?"""
    products = sum(look.number(place, "gemm_products") or 0 for place in look.numbers("gemm_mismatches"))
    return Rows((WRONG_SUM,), "0 wrong", f"{{total}} wrong in {products:.0f} products")(look)


def judge_memory(look: CheckLook) -> CheckOutcome:
    """Does memory hold what was written?"""
    tested = sum(count for place, count in look.numbers("memory_bytes_tested").items() if place != NODE)
    return Rows((WRONG_WORDS,), "0 wrong", f"{{total}} wrong in {tested / 1e9:.1f} GB")(look)


def _speed(names: Mapping[str, str], unit: str, look: CheckLook) -> CheckOutcome:
    """Each speed beside what this device reached before, and beside the same GPUs of this node."""
    limit = f">= {look.policy.active_share * PERCENT:.0f} % of its best"
    found, told, compared = [], [], False
    for name, words in names.items():
        speeds = look.numbers(name)
        if speeds:
            told.append(f"{words_of('', min(speeds.values()))}")
        slower, middle = far_below(speeds, look.policy.active_share, 3)
        for place, speed in speeds.items():
            best, told_of = _best(look, place, name), f"{words.format(place=place)} at {words_of('', speed)} {unit}"
            compared = compared or best is not None
            if best is not None and speed < look.policy.active_share * best:
                sentence = f"{told_of}, {speed / best * PERCENT:.0f} % of the {words_of('', best)} seen before"
                severity = _how_bad(look, speed / best)
                found.append(_found(look, severity, place, sentence, speed, best, needs=Needs.ADMIN))
            elif place in slower:
                sentence = f"{told_of} while the GPUs beside it reach {words_of('', middle)} {unit}"
                found.append(_found(look, FAIL, place, sentence, speed, middle, needs=Needs.ADMIN))
    if not told:
        return look.unknown(limit, *names)
    first = "" if compared else ", its first"
    return CheckOutcome(f"{' / '.join(told)} {unit}{first}", limit, tuple(found))


def _how_bad(look: CheckLook, share: float) -> Severity:
    """A GPU is ours alone. A CPU works for others too: only less than half of its speed, while idle, is a fault."""
    if look.number(NODE, "gpus"):
        return FAIL
    load, cpus = look.number(NODE, "load"), look.number(NODE, "cpus")
    idle = load is not None and cpus is not None and load <= IDLE_LOAD_SHARE * cpus
    return FAIL if idle and share < look.policy.active_share_cpu else WARN


def _best(look: CheckLook, place: str, name: str) -> float | None:
    """What the same device reached before under the same driver and torch; None if there is nothing to compare."""
    if look.before is None or any(look.facts.get(place, key) != look.before.facts.get(place, key) for key in SAME):
        return None
    best = look.before.facts.number(place, name)
    return best if best is not None and best > 0 else None


def judge_copies(look: CheckLook) -> CheckOutcome:
    """How fast do bytes get to a GPU and back?"""
    outcome = _speed({"h2d_gbps": "copies to {place} run", "d2h_gbps": "copies from {place} run"}, "GB/s", look)
    if not any(place.startswith("gpu ") for place in look.facts.values):
        return CheckOutcome("-", outcome.limit, unknown="no GPU was tested")
    return outcome


def judge_sum(look: CheckLook) -> CheckOutcome:
    """How fast, and how right, do all devices of this node add up?"""
    outcome = _speed({"allreduce_gbps": "an all-reduce inside this node runs"}, "GB/s", look)
    wrong = look.number(NODE, "allreduce_mismatches")
    if not wrong:
        return outcome
    sentence = f"an all-reduce inside this node got {wrong:.0f} numbers wrong: a link or a device changes data"
    bad = _found(look, FAIL, NODE, sentence, wrong, 0, needs=Needs.RMA)
    return CheckOutcome(outcome.shown, outcome.limit, (bad, *outcome.findings))


def _why_not(look: CheckLook, name: str) -> str:
    return look.facts.why_missing(name) or NOT_ASKED


DEVICE = CheckSubject(
    Scope.GPU, CauseClass.HARDWARE, Needs.ADMIN, Sticky.BOOT, why_not=_why_not,
    scope_at=lambda place: Scope.GPU if place.startswith("gpu ") else Scope.NODE,
)  # fmt: skip


ANSWERED = {"usable", "unusable"}
STARTED = replace(
    DEVICE, places=lambda look, _: tuple(p for p, names in look.facts.values.items() if ANSWERED & names.keys())
)


def _check(name: str, asks: str, judge: Callable[[CheckLook], CheckOutcome], proves: str | None = None) -> Check:
    return Check(name, NAME, asks, judge, ASKED_ONLY_S, DEVICE, proves)


CHECKS = (
    Check("active_starts", NAME, "every device takes work", Rows((STARTS,), "all work", "{good} of {count} work"),
          ASKED_ONLY_S, STARTED),
    _check("active_gemm", "devices multiply right, bit for bit", judge_arithmetic, ""),
    _check("active_gemm_speed", "and as fast as before",
           partial(_speed, {"gemm_tflops": "{place} multiplies"}, "TFLOP/s")),
    _check("active_memory", "memory holds what was written", judge_memory, " of memory"),
    _check("active_bandwidth", "memory is as fast as it was before",
           partial(_speed, {"memory_gbps": "memory of {place} copies"}, "GB/s")),
    _check("active_copies", "the way to GPUs and back is as fast as it was before", judge_copies),
    _check("active_allreduce", "devices of the node add up, right and fast", judge_sum),
)  # fmt: skip


def family(how: str, within_s: float) -> CheckFamily:
    """The tests, quick or deep, with only so much time."""
    return CheckFamily(NAME, within_s + 2.0, _reads(how, within_s), CHECKS)


FAMILY = family(QUICK, WITHIN_S[QUICK])
DEEP_FAMILY = family(DEEP, WITHIN_S[DEEP])


def quick(left_s: float) -> CheckFamily:
    """The quick tests if there is only so much time."""
    return family(QUICK, min(WITHIN_S[QUICK], left_s))
