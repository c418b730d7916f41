"""What a node's findings are worth as evidence about a failure: the door to ``core.blame``.

Only what failed, and is not the program's, counts against a node; hardware that is merely poor makes the gang prefer
another node where one is free. Warnings go along for the story; what is unknown says nothing and is no evidence at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangrun.core import model
from gangrun.health.framework.check import CauseClass, Finding, Needs, Scope, Severity, Sticky, Verdict

DEVICES = frozenset({Scope.GPU, Scope.LINK, Scope.PORT})
SHOWS_RESET = frozenset({"gpu_recovery", "gpu_ecc", "gpu_lost"})  # the driver says it until it has reset the GPU
NOT_ITS_OWN = frozenset({CauseClass.APPLICATION, CauseClass.ELSEWHERE})
BARS_A_START = frozenset({"gpu_recovery"})  # a GPU that asks to be drained would stop the gang soon after its start


def as_evidence(node: str, verdicts: Iterable[Verdict], at: float) -> tuple[model.Finding, ...]:
    """Findings in the core's words; ``at``: seconds on the run clock."""
    found = (finding for verdict in verdicts for finding in verdict.findings)
    return tuple(in_core(node, one, at) for one in found if one.severity in (Severity.WARN, Severity.FAIL))


def in_core(node: str, finding: Finding, at: float, report: model.DriverReport | None = None) -> model.Finding:
    """One finding in the core's words; ``report``: the driver's, where it comes of one."""
    needs = "" if finding.needs is Needs.NONE else finding.needs.value
    fatal = is_fatal(finding)
    until_boot = fatal and finding.sticky is Sticky.BOOT
    shows_reset = until_boot and finding.needs is Needs.RESET and finding.check in SHOWS_RESET
    return model.Finding(
        node,
        finding.check,
        fatal,
        finding.sentence,
        at,
        is_poor(finding),
        needs,
        finding.place,
        until_boot,
        shows_reset,
        report=report,
    )


def is_fatal(finding: Finding) -> bool:
    """May the gang not stay on this node? What may be a file server's or a set-up's is never the node's alone."""
    if finding.severity is not Severity.FAIL or finding.cause in NOT_ITS_OWN or finding.beside:
        return False
    if finding.scope is Scope.NODE:
        return finding.cause is not CauseClass.CONFIG
    return finding.scope in DEVICES


def bars_a_start(found: model.Finding) -> bool:
    """May no gang start on this node? Where one runs already, what is poor waits for its next checkpoint."""
    return found.fatal or (found.poor and found.check in BARS_A_START)


def is_poor(finding: Finding) -> bool:
    """Would another node be better, where one is free?"""
    if is_fatal(finding) or finding.cause in NOT_ITS_OWN or finding.beside:
        return False
    if finding.severity is Severity.FAIL:
        return True
    hardware = finding.scope in DEVICES and finding.cause is not CauseClass.CONFIG
    return finding.severity is Severity.WARN and hardware
