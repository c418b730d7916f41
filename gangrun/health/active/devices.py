"""Devices at work: known arithmetic, memory patterns, speeds against the node's own best, which is kept between runs.

One child for each GPU, or for the CPU if there is none; a second one there, so that it has a partner to add up with.
What a test could not finish is unknown: only a wrong result, a device that refuses to work and a speed that fell count.
``device_child`` does the work. A device, driver or torch that changed begins a new best. A speed below the policy's
share is not taken in, so that a node does not grow slow unseen; a better one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gangrun.health.framework.bounds import far_below
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
    """Of a GPU, or of the node if it is a CPU's. Only what failed is the hardware's for sure."""
    cause = CauseClass.HARDWARE if severity is FAIL else CauseClass.EITHER
    one = look.found(severity, place, sentence, new, old, needs, cause, Sticky.BOOT)
    return one if place.startswith("gpu ") else replace(one, scope=Scope.NODE)


def judge_starts(look: CheckLook) -> CheckOutcome:
    """Does every device take work at all?"""
    started_count = len(look.facts.places_with("usable"))
    refused = {place: str(look.facts.get(place, "unusable")) for place in look.facts.places_with("unusable")}
    found = tuple(
        _found(look, FAIL, place, f"{place} takes no work: {words}", words, needs=Needs.RESET)
        for place, words in refused.items()
    )
    if not started_count and not found:
        return look.unknown("all work", "usable")
    return CheckOutcome(f"{started_count} of {started_count + len(found)} work", "all work", found)


def _exact(look: CheckLook, wrong_name: str, what: str, shown: str) -> CheckOutcome:
    """One wrong number is a broken device."""
    wrong = look.numbers(wrong_name)
    if not wrong:
        return look.unknown("0 wrong", wrong_name)
    found = tuple(
        _found(look, FAIL, place, f"{place} {what.format(count=f'{count:.0f}')}", count, 0, needs=Needs.RMA)
        for place, count in wrong.items()
        if count > 0
    )
    return CheckOutcome(f"{sum(wrong.values()):.0f} wrong in {shown}", "0 wrong", found)


def judge_arithmetic(look: CheckLook) -> CheckOutcome:
    """Is what a device multiplies right, bit for bit?"""
    what = "computed {count} numbers wrong in products whose result is known: do not train on it"
    products = sum(look.number(place, "gemm_products") or 0 for place in look.numbers("gemm_mismatches"))
    return _exact(look, "gemm_mismatches", what, f"{products:.0f} products")


def judge_memory(look: CheckLook) -> CheckOutcome:
    """Does memory hold what was written?"""
    what = "read back {count} words of memory that are not what was written"
    tested = sum(count for place, count in look.numbers("memory_bytes_tested").items() if place != NODE)
    return _exact(look, "memory_mismatches", what, f"{tested / 1e9:.1f} GB")


def _speed(look: CheckLook, names: Mapping[str, str], unit: str) -> CheckOutcome:
    """Each speed beside what this device reached before, and beside the same GPUs of this node."""
    limit = f">= {look.policy.active_share * PERCENT:.0f} % of its best"
    found, told, compared = [], [], False
    for name, words in names.items():
        speeds = look.numbers(name)
        if speeds:
            told.append(f"{min(speeds.values()):.3g}")
        slower, middle = far_below(speeds, look.policy.active_share, 3)
        for place, speed in speeds.items():
            best, told_of = _best(look, place, name), f"{words.format(place=place)} at {speed:.3g} {unit}"
            compared = compared or best is not None
            if best is not None and speed < look.policy.active_share * best:
                sentence = f"{told_of}, {speed / best * PERCENT:.0f} % of the {best:.3g} seen before"
                severity = _how_bad(look, speed / best)
                found.append(_found(look, severity, place, sentence, speed, best, needs=Needs.ADMIN))
            elif place in slower:
                sentence = f"{told_of} while the GPUs beside it reach {middle:.3g} {unit}"
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


def judge_arithmetic_speed(look: CheckLook) -> CheckOutcome:
    """How fast are products?"""
    return _speed(look, {"gemm_tflops": "{place} multiplies"}, "TFLOP/s")


def judge_bandwidth(look: CheckLook) -> CheckOutcome:
    """How fast is a device's own memory?"""
    return _speed(look, {"memory_gbps": "memory of {place} copies"}, "GB/s")


def judge_copies(look: CheckLook) -> CheckOutcome:
    """How fast do bytes get to a GPU and back?"""
    outcome = _speed(look, {"h2d_gbps": "copies to {place} run", "d2h_gbps": "copies from {place} run"}, "GB/s")
    if not any(place.startswith("gpu ") for place in look.facts.values):
        return CheckOutcome("-", outcome.limit, unknown="no GPU was tested")
    return outcome


def judge_sum(look: CheckLook) -> CheckOutcome:
    """How fast, and how right, do all devices of this node add up?"""
    outcome = _speed(look, {"allreduce_gbps": "an all-reduce inside this node runs"}, "GB/s")
    wrong = look.number(NODE, "allreduce_mismatches")
    if not wrong:
        return outcome
    sentence = f"an all-reduce inside this node got {wrong:.0f} numbers wrong: a link or a device changes data"
    bad = _found(look, FAIL, NODE, sentence, wrong, 0, needs=Needs.RMA)
    return CheckOutcome(outcome.shown, outcome.limit, (bad, *outcome.findings))


def _why_not(look: CheckLook, name: str) -> str:
    return look.facts.why_missing(name) or NOT_ASKED


DEVICE = CheckSubject(Scope.GPU, CauseClass.HARDWARE, Needs.ADMIN, Sticky.BOOT, why_not=_why_not)


def _check(name: str, asks: str, judge: Callable[[CheckLook], CheckOutcome], proves: str | None = None) -> Check:
    return Check(name, NAME, asks, judge, ASKED_ONLY_S, DEVICE, proves)


CHECKS = (
    _check("active_starts", "every device takes work", judge_starts),
    _check("active_gemm", "devices multiply right, bit for bit", judge_arithmetic, ""),
    _check("active_gemm_speed", "and as fast as ever", judge_arithmetic_speed),
    _check("active_memory", "memory holds what was written", judge_memory, " of memory"),
    _check("active_bandwidth", "memory is as fast as ever", judge_bandwidth),
    _check("active_copies", "the way to GPUs and back is as fast as ever", judge_copies),
    _check("active_allreduce", "devices of the node add up, right and fast", judge_sum),
)


def family(how: str, within_s: float) -> CheckFamily:
    """The tests, quick or deep, with only so much time."""
    return CheckFamily(NAME, within_s + 2.0, _reads(how, within_s), CHECKS)


FAMILY = family(QUICK, WITHIN_S[QUICK])
DEEP_FAMILY = family(DEEP, WITHIN_S[DEEP])


def quick(left_s: float) -> CheckFamily:
    """The quick tests if there is only so much time."""
    return family(QUICK, min(WITHIN_S[QUICK], left_s))
