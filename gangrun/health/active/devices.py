"""Devices at work: known arithmetic, memory patterns, speeds against the node's own baseline.

One child for each GPU, or for the CPU where there is none; a second one there, so that there is somebody to add up
with. What a test could not finish is unknown: only a wrong result, a device that refuses to work and a speed that fell
count. ``device_child`` does the work, ``baseline`` keeps the best that was seen.
"""

from __future__ import annotations

from statistics import median

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Facts,
    Finding,
    Needs,
    Outcome,
    Reading,
    Scope,
    Severity,
    Sticky,
)
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings

NAME, NODE, CPU = "active", "node", "cpu"
QUICK, DEEP = "quick", "deep"
WITHIN_S = {QUICK: 55.0, DEEP: 570.0}
ENDS_BEFORE_S = 3.0  # the one who starts the children is given so much more than they are
NOT_ASKED = "not measured"
PERCENT = 100
IDLE_LOAD_SHARE = 0.3  # processes that want to run, for each CPU


def read(around: Surroundings) -> Facts:
    """The quick tests."""
    return _asked(around, QUICK, WITHIN_S[QUICK])


def read_deep(around: Surroundings) -> Facts:
    """The same for minutes, and with most of the memory."""
    return _asked(around, DEEP, WITHIN_S[DEEP])


def _asked(around: Surroundings, how: str, within_s: float) -> Facts:
    return around.probes.ask(NAME, (how, f"{within_s - ENDS_BEFORE_S:g}"), within_s)


def devices(now: Reading) -> tuple[str, ...]:
    """Places that were put to work."""
    return tuple(place for place in now.facts.values if place == CPU or place.startswith("gpu "))


def _finding(check: str, place: str, severity: Severity, sentence: str, evidence: Evidence, needs: Needs) -> Finding:
    scope = Scope.GPU if place.startswith("gpu ") else Scope.NODE
    cause = CauseClass.HARDWARE if severity is Severity.FAIL else CauseClass.EITHER
    return Finding(check, scope, place, severity, cause, needs, Sticky.BOOT, evidence, sentence)


def judge_starts(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does every device take work at all?"""
    del before, policy
    refused = {place: now.facts.get(place, "unusable") for place in now.facts.places_with("unusable")}
    started_count = len(now.facts.places_with("usable"))
    found = tuple(
        _finding(
            "active_starts", place, Severity.FAIL, f"{place} takes no work: {words}", Evidence(str(words)), Needs.RESET
        )
        for place, words in refused.items()
    )
    if not started_count and not found:
        return Outcome("-", "all work", unknown=now.facts.why_missing("usable") or NOT_ASKED)
    return Outcome(f"{started_count} of {started_count + len(found)} work", "all work", found)


def _exact(now: Reading, check: str, wrong_name: str, done_name: str, what: str, shown: str) -> Outcome:
    wrong = {place: count for place in now.facts.places_with(wrong_name)
             if (count := now.facts.number(place, wrong_name)) is not None}  # fmt: skip
    if not wrong:
        return Outcome("-", "0 wrong", unknown=now.facts.why_missing(wrong_name) or NOT_ASKED)
    found = tuple(
        _finding(
            check, place, Severity.FAIL, f"{place} {what.format(count=f'{count:.0f}')}", Evidence(count, 0), Needs.RMA
        )
        for place, count in wrong.items()
        if count > 0
    )
    done = sum(now.facts.number(place, done_name) or 0 for place in wrong)
    return Outcome(f"{sum(wrong.values()):.0f} wrong in {shown.format(done=done)}", "0 wrong", found)


def judge_arithmetic(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is what a device multiplies right, bit for bit? One wrong number is a broken device."""
    del before, policy
    what = "computed {count} numbers wrong in products whose result is known: do not train on it"
    return _exact(now, "active_gemm", "gemm_mismatches", "gemm_products", what, "{done:.0f} products")


def judge_memory(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does memory hold what was written?"""
    del before, policy
    gigabytes = sum(now.facts.number(place, "memory_bytes_tested") or 0 for place in devices(now)) / 1e9
    what = "read back {count} words of memory that are not what was written"
    shown = f"{gigabytes:.1f} GB"
    return _exact(now, "active_memory", "memory_mismatches", "memory_passes", what, shown)


def _speed(
    now: Reading,
    before: Reading | None,
    policy: HealthPolicy,
    check: str,
    names: tuple[tuple[str, str], ...],
    unit: str,
) -> Outcome:
    """Each speed beside what this device reached before, and beside the same GPUs of this node."""
    limit = f">= {policy.active_share * PERCENT:.0f} % of its best"
    found, told, compared = [], [], False
    for name, words in names:
        speeds = {place: v for place in now.facts.places_with(name) if (v := now.facts.number(place, name)) is not None}
        if not speeds:
            continue
        told.append(f"{min(speeds.values()):.3g}")
        middle = median(speeds.values())
        for place, speed in speeds.items():
            best, told_of = _best(now, before, place, name), f"{words.format(place=place)} at"
            compared = compared or best is not None
            if best is not None and speed < policy.active_share * best:
                severity = _how_bad(now, speed / best, policy)
                sentence = f"{told_of} {speed:.3g} {unit}, {speed / best * PERCENT:.0f} % of the {best:.3g} seen before"
                found.append(_finding(check, place, severity, sentence, Evidence(speed, best), Needs.ADMIN))
            elif len(speeds) > 2 and speed < policy.active_share * middle:
                sentence = f"{told_of} {speed:.3g} {unit} while the GPUs beside it reach {middle:.3g} {unit}"
                found.append(_finding(check, place, Severity.FAIL, sentence, Evidence(speed, middle), Needs.ADMIN))
    if not told:
        return Outcome("-", limit, unknown=now.facts.why_missing(names[0][0]) or NOT_ASKED)
    first = "" if compared else ", its first"
    return Outcome(f"{' / '.join(told)} {unit}{first}", limit, tuple(found))


def _how_bad(now: Reading, share: float, policy: HealthPolicy) -> Severity:
    """A GPU is ours alone. A CPU works for others too: only less than half of its speed, while idle, is a fault."""
    if now.facts.number(NODE, "gpus"):
        return Severity.FAIL
    load, cpus = now.facts.number(NODE, "load"), now.facts.number(NODE, "cpus")
    idle = load is not None and cpus is not None and load <= IDLE_LOAD_SHARE * cpus
    return Severity.FAIL if idle and share < policy.active_share_cpu else Severity.WARN


def _best(now: Reading, before: Reading | None, place: str, name: str) -> float | None:
    """What the same device reached before under the same driver and torch; None where there is nothing to compare."""
    if before is None:
        return None
    if any(now.facts.get(place, key) != before.facts.get(place, key) for key in SAME):
        return None
    best = before.facts.number(place, name)
    return best if best is not None and best > 0 else None


SAME = ("device", "driver", "torch", "allreduce_ranks")


def judge_arithmetic_speed(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How fast are products?"""
    return _speed(now, before, policy, "active_gemm_speed", (("gemm_tflops", "{place} multiplies"),), "TFLOP/s")


def judge_bandwidth(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How fast is a device's own memory?"""
    return _speed(now, before, policy, "active_bandwidth", (("memory_gbps", "memory of {place} copies"),), "GB/s")


def judge_copies(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How fast do bytes get to a GPU and back?"""
    names = (("h2d_gbps", "copies to {place} run"), ("d2h_gbps", "copies from {place} run"))
    if not any(place.startswith("gpu ") for place in devices(now)):
        return Outcome("-", f">= {policy.active_share * PERCENT:.0f} % of its best", unknown="no GPU was tested")
    return _speed(now, before, policy, "active_copies", names, "GB/s")


def judge_sum(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """How fast, and how right, do all devices of this node add up?"""
    wrong = now.facts.number(NODE, "allreduce_mismatches")
    names = (("allreduce_gbps", "an all-reduce inside this node runs"),)
    outcome = _speed(now, before, policy, "active_allreduce", names, "GB/s")
    if not wrong:
        return outcome
    sentence = f"an all-reduce inside this node got {wrong:.0f} numbers wrong: a link or a device changes data"
    bad = _finding("active_allreduce", NODE, Severity.FAIL, sentence, Evidence(wrong, 0), Needs.RMA)
    return Outcome(outcome.shown, outcome.limit, (bad, *outcome.findings))


ASKED_ONLY_S = 3600.0  # never while ranks run; after a failure, and when somebody asks
CHECKS = (
    Check("active_starts", NAME, "every device takes work", judge_starts, ASKED_ONLY_S),
    Check("active_gemm", NAME, "devices multiply right, bit for bit", judge_arithmetic, ASKED_ONLY_S),
    Check("active_gemm_speed", NAME, "and as fast as ever", judge_arithmetic_speed, ASKED_ONLY_S),
    Check("active_memory", NAME, "memory holds what was written", judge_memory, ASKED_ONLY_S),
    Check("active_bandwidth", NAME, "memory is as fast as ever", judge_bandwidth, ASKED_ONLY_S),
    Check("active_copies", NAME, "the way to GPUs and back is as fast as ever", judge_copies, ASKED_ONLY_S),
    Check("active_allreduce", NAME, "devices of the node add up, right and fast", judge_sum, ASKED_ONLY_S),
)
FAMILY = Family(NAME, WITHIN_S[QUICK] + 2.0, read, CHECKS)
DEEP_FAMILY = Family(NAME, WITHIN_S[DEEP] + 2.0, read_deep, CHECKS)


def quick(left_s: float) -> Family:
    """The quick tests where there is only so much time."""
    within_s = min(WITHIN_S[QUICK], left_s)
    return Family(NAME, within_s + 2.0, lambda around: _asked(around, QUICK, within_s), CHECKS)
