"""How verdicts are shown: a table, sentences, one line of sum, ``--json`` (room: cli; values in, text out)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangrun.cli.errors import DONE, RUN_FAILED, UNKNOWN
from gangrun.cli.terminal import clean, styled, table, wrapped

if TYPE_CHECKING:
    from gangrun.health.check import Finding, Verdict

SCHEMA = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
LOST_AT_ONCE = 3
REASON_MAX_CHARS = 200
SILENTLY = frozenset({"dcgmi is not installed here", "no Lustre here"})  # what nobody has to have


def exit_code(verdicts: tuple[Verdict, ...]) -> int:
    """1: something failed; 3: nobody knows anything; else 0."""
    seen = {one.severity.value for one in verdicts}
    if "fail" in seen:
        return RUN_FAILED
    return DONE if seen & {"ok", "warn"} else UNKNOWN


def page(
    shown: list[Verdict], verdicts: tuple[Verdict, ...], columns: int, *, color: bool, everything_told: bool = False
) -> list[str]:
    """The table, the sentences of what is wrong, why the rest is unknown, and one line of sum."""
    shown = [one for one in shown if everything_told or one.words not in SILENTLY]
    lost = _lost_at_once(shown)
    rows = [
        (one.severity.value, one.check, clean(one.shown), clean(one.limit))
        for one in shown
        if everything_told or one.words not in lost
    ]
    lines = table(("", "check", "reading", "limit"), rows, columns, "") if rows else []
    lines = [_coloured(line, color) for line in lines]
    for one in shown:
        for finding in one.findings:
            if finding.severity.value in ("warn", "fail"):
                lines += ["", *_told(finding, columns, color)]
    reasons: dict[str, list[str]] = {}
    for one in shown:
        if one.severity.value == "unknown":
            reasons.setdefault(one.words, []).append(one.check)
    if reasons:
        lines.append("")
    for why, checks in reasons.items():
        names = f"{len(checks)} checks ({checks[0]} to {checks[-1]})" if why in lost else ", ".join(checks)
        lines += wrapped(clean(f"unknown: {names}: {why}"), columns, "", "  ")
    return [*lines, *([""] if lines else []), _sum(verdicts)]


def reason_of(verdicts: tuple[Verdict, ...]) -> str:
    """What failed, on one line that Slurm keeps as a node's reason."""
    told = "; ".join(clean(f"{one.check}: {one.words}") for one in verdicts if one.severity.value == "fail")
    return told if len(told) <= REASON_MAX_CHARS else told[: REASON_MAX_CHARS - 3] + "..."


def _lost_at_once(shown: list[Verdict]) -> set[str]:
    """Reasons for which so many checks are unknown that one line for all says more than a row for each."""
    reasons = [one.words for one in shown if one.severity.value == "unknown"]
    return {why for why in reasons if reasons.count(why) > LOST_AT_ONCE}


def _coloured(line: str, color: bool) -> str:
    word = line.split(" ", 1)[0]
    return styled(word, STYLES[word], color) + line[len(word) :] if word in STYLES else line


def _told(finding: Finding, columns: int, color: bool) -> list[str]:
    word = finding.severity.value
    cure = "" if finding.needs.value == "none" else f"; needs: {finding.needs.value}"
    whose = f"{finding.cause.value}{cure}; counts {finding.sticky.value}"
    lines = wrapped(clean(f"{word}  {finding.sentence} ({finding.check}: {whose})"), columns, "", "      ")
    return [_coloured(line, color) for line in lines]


def _sum(verdicts: tuple[Verdict, ...]) -> str:
    counts = {word: sum(one.severity.value == word for one in verdicts) for word in STYLES}
    told = [f"{counts['ok']} ok"]
    told += [f"{counts[word]} {word}" for word in ("fail", "warn", "unknown") if counts[word]]
    return f"{len(verdicts)} checks: {', '.join(told)}"


def as_plain(verdicts: tuple[Verdict, ...], node: str) -> dict[str, Any]:
    """``--json``; docs/health.md describes it."""
    return {
        "schema": SCHEMA,
        "exit_code": exit_code(verdicts),
        "node": node,
        "checks": [
            {
                "check": one.check,
                "family": one.family,
                "verdict": one.severity.value,
                "reading": one.shown,
                "limit": one.limit,
                "words": one.words,
                "findings": [_plain_finding(finding) for finding in one.findings],
            }
            for one in verdicts
        ],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "scope": finding.scope.value,
        "place": finding.place,
        "severity": finding.severity.value,
        "cause": finding.cause.value,
        "needs": finding.needs.value,
        "sticky": finding.sticky.name.lower(),
        "old": finding.evidence.old,
        "new": finding.evidence.new,
        "over_s": finding.evidence.over_s,
        "sentence": finding.sentence,
    }
