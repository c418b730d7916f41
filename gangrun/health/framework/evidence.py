"""What a node's findings are worth as evidence about a failure, and which of them are worth telling.

Only what failed, and is not the program's, counts against a node; hardware that is merely poor makes the gang prefer
another node if one is free. Warnings go along for the story; what is unknown says nothing and is no evidence at all.
A node is looked at every few seconds for weeks, and its findings are events that are kept for ever: a finding that
holds is told once, and one that comes and goes is told again only after it was gone for a while. What follows from a
check's name stands in ``core.evidence.CHECK_TRAITS``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangrun.core.evidence import DriverReport, NodeFinding, traits_of
from gangrun.health.framework.check import (
    FAIL,
    SEVERITIES,
    WARN,
    CauseClass,
    CheckVerdict,
    Finding,
    Needs,
    Scope,
    Sticky,
)  # fmt: skip

DEVICES = frozenset({Scope.GPU, Scope.LINK, Scope.PORT})
NOT_ITS_OWN = frozenset({CauseClass.APPLICATION, CauseClass.ELSEWHERE})
QUIET_S = 600.0


def as_evidence(node: str, verdicts: Iterable[CheckVerdict], at: float) -> tuple[NodeFinding, ...]:
    """Findings in the core's words; ``at``: seconds on the run clock."""
    found = (finding for verdict in verdicts for finding in verdict.findings)
    return tuple(in_core(node, one, at) for one in found if one.severity in (WARN, FAIL))


def in_core(node: str, finding: Finding, at: float, report: DriverReport | None = None) -> NodeFinding:
    """One finding in the core's words; ``report``: the driver's, if it comes of one."""
    fatal = is_fatal(finding)
    until_boot = fatal and finding.sticky is Sticky.BOOT
    return NodeFinding(
        node,
        finding.check,
        fatal,
        finding.sentence,
        at,
        is_poor(finding),
        "" if finding.needs is Needs.NONE else finding.needs.value,
        finding.place,
        until_boot,
        until_boot and finding.needs is Needs.RESET and traits_of(finding.check).shows_reset,
        report=report,
    )


def is_fatal(finding: Finding) -> bool:
    """May the gang not stay on this node? What may be a file server's or a set-up's is never the node's alone."""
    if finding.severity is not FAIL or finding.cause in NOT_ITS_OWN or finding.beside:
        return False
    if finding.scope is Scope.NODE:
        return finding.cause is not CauseClass.CONFIG
    return finding.scope in DEVICES


def bars_a_start(found: NodeFinding) -> bool:
    """May no gang start on this node? If one runs already, a poor node is left at its next checkpoint."""
    return found.fatal or (found.poor and traits_of(found.check).asks_for_itself)


def is_poor(finding: Finding) -> bool:
    """Would another node be better, if one is free?"""
    if is_fatal(finding) or finding.cause in NOT_ITS_OWN or finding.beside:
        return False
    if finding.severity is FAIL:
        return True
    return finding.severity is WARN and finding.scope in DEVICES and finding.cause is not CauseClass.CONFIG


def travels(finding: Finding) -> bool:
    """Is it worth an event of the run? How all nodes of a site are set up is told by ``gangrun health``."""
    warns = finding.severity is WARN and finding.cause is not CauseClass.CONFIG
    return finding.severity is FAIL or (warns and not traits_of(finding.check).of_the_site)


class News:
    """Remembers what was told, by check and place, and whether it counts against the device in that place."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, bool], tuple[tuple[int, bool, int], float]] = {}

    def fresh(self, found: Iterable[Finding], now: float) -> list[Finding]:
        """Those of ``found`` that were not told yet, or that are worse than what was told."""
        told = []
        for finding in found:
            key = finding.check, finding.place, finding.cause in NOT_ITS_OWN
            doubled = finding.devices_count.bit_length()  # not for each single one that comes along
            weight = SEVERITIES.index(finding.severity), is_fatal(finding), doubled
            before, seen_at = self._told.get(key, ((-1, False, 0), now))
            if now - seen_at > QUIET_S or weight > before:
                told.append(finding)
                before = weight
            self._told[key] = (before, now)
        return told

    def forget(self) -> None:
        """Tell everything again: an agent asks that has heard nothing."""
        self._told.clear()
