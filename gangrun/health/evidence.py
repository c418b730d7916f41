"""What a node's findings are worth as evidence about a failure (room: health; pure): the door to ``core.blame``.

Only what failed, and is not the program's, counts against a node. Warnings go along for the story; what is unknown
says nothing and is no evidence at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangrun.core import model
from gangrun.health.check import CauseClass, Finding, Severity, Verdict


def as_evidence(node: str, verdicts: Iterable[Verdict], at: float) -> tuple[model.Finding, ...]:
    """Findings in the core's words; ``at``: seconds on the run clock."""
    found = (finding for verdict in verdicts for finding in verdict.findings)
    return tuple(
        model.Finding(node, finding.check, is_fatal(finding), finding.sentence, at)
        for finding in found
        if finding.severity in (Severity.WARN, Severity.FAIL)
    )


def is_fatal(finding: Finding) -> bool:
    """May the gang not stay on this node?"""
    return finding.severity is Severity.FAIL and finding.cause is not CauseClass.APPLICATION
