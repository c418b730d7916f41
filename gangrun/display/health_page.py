"""How verdicts are shown: a table, sentences, one line of sum, ``--json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.core.nodeset import natural_sort
from gangrun.display.text import clean, styled, table, wrapped
from gangrun.errors import DONE, RUN_FAILED, UNKNOWN
from gangrun.health.framework.check import FIRST_LOOK

if TYPE_CHECKING:
    from gangrun.health.framework.check import CheckVerdict, Finding

SCHEMA = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
LOST_AT_ONCE = 3
LATE = "no answer within"  # as whoever asks says it
REASON_MAX_CHARS = 200
SILENTLY = frozenset(
    {
        "dcgmi is not installed here",
        "no Lustre here",
        "these GPUs have no NVLink 5",
        "these GPUs have NVLink 5, which counts in other ways",
        "these GPUs make no such repairs",
        "these GPUs retire no pages",
    }
)  # what nobody has to have
CURES = {
    "restart": "the program started again",
    "reset": "a reset",
    "reboot": "a reboot",
    "rma": "to be replaced",
    "admin": "an administrator",
}
READING_MAX_CHARS = 40  # on one line of the table
NAMES_MAX_COUNT = 8  # of checks that are unknown for one reason


def exit_code(verdicts: tuple[CheckVerdict, ...]) -> int:
    """1: something failed; 3: nobody knows anything; else 0."""
    seen = {one.severity.value for one in verdicts}
    if "fail" in seen:
        return RUN_FAILED
    return DONE if seen & {"ok", "warn"} else UNKNOWN


def page(
    shown: list[CheckVerdict],
    verdicts: tuple[CheckVerdict, ...],
    columns: int,
    *,
    color: bool,
    everything_told: bool = False,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """The table, what is wrong in sentences, the worst first, why the rest is unknown, and what a run would make of it.

    ``names``: what GPUs are called by those who have to find them.
    """
    shown = [one for one in shown if everything_told or one.words not in SILENTLY]
    lost = _lost_at_once(shown)
    rows = [
        (one.severity.value, one.check, _took(one.took_s), clean(one.shown), clean(one.limit))
        for one in shown
        if everything_told or one.words not in lost
    ]
    lines = table(("", "check", "time", "reading", "limit"), rows, columns, "", {3: READING_MAX_CHARS}) if rows else []
    lines = [_coloured(line, color) for line in lines]
    for word in ("fail", "warn"):
        for finding in [finding for one in shown for finding in one.findings if finding.severity.value == word]:
            lines += ["", *_told(finding, columns, color)]
    lines += _named(shown, names or {}, columns)
    reasons: dict[str, list[str]] = {}
    for one in shown:
        if one.severity.value == "unknown":
            reasons.setdefault(one.words, []).append(one.check)
    if reasons:
        lines.append("")
    for why, checks in reasons.items():
        many = len(checks) > NAMES_MAX_COUNT or (why in lost and _in_a_row(checks, shown))
        which = f"{len(checks)} checks ({checks[0]} to {checks[-1]})" if many else ", ".join(checks)
        hint = "; --over 30 looks twice" if why == FIRST_LOOK else ""
        lines += wrapped(clean(f"unknown: {which}: {why}{hint}"), columns, "", "  ")
    return [*lines, *([""] if lines else []), _sum(verdicts)]


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _named(shown: list[CheckVerdict], names: Mapping[str, str], columns: int) -> list[str]:
    """Which cards these are: by number each program counts its own way."""
    places = [finding.place for one in shown for finding in one.findings if finding.severity.value in ("warn", "fail")]
    gpus = dict.fromkeys(match[0] for place in places if (match := re.match(r"gpu \d+", place)))
    told = [
        line
        for gpu in natural_sort(gpus)
        if gpu in names
        for line in wrapped(clean(f"{gpu}: {names[gpu]}"), columns, "", "  ")
    ]
    return ["", *told] if told else []


def _in_a_row(checks: list[str], shown: list[CheckVerdict]) -> bool:
    order = [one.check for one in shown]
    return order[order.index(checks[0]) : order.index(checks[-1]) + 1] == checks


def reason_of(verdicts: tuple[CheckVerdict, ...]) -> str:
    """What failed, on one line that Slurm keeps as a node's reason."""
    told = "; ".join(clean(f"{one.check}: {one.words}") for one in verdicts if one.severity.value == "fail")
    return told if len(told) <= REASON_MAX_CHARS else told[: REASON_MAX_CHARS - 3] + "..."


def _lost_at_once(shown: list[CheckVerdict]) -> set[str]:
    """Reasons for which so many checks are unknown that one line for all says more than a row for each."""
    reasons = [one.words for one in shown if one.severity.value == "unknown"]
    return {why for why in reasons if reasons.count(why) > LOST_AT_ONCE}


def _coloured(line: str, color: bool) -> str:
    word = line.split(" ", 1)[0]
    return styled(word, STYLES[word], color) + line[len(word) :] if word in STYLES else line


def _told(finding: Finding, columns: int, color: bool) -> list[str]:
    word = finding.severity.value
    cure = "" if finding.needs.value == "none" else f"; needs {CURES[finding.needs.value]}"
    whose = f"{finding.cause.value}{cure}; counts {finding.sticky.value}"
    lines = wrapped(clean(f"{word}  {finding.sentence} ({finding.check}: {whose})"), columns, "", "      ")
    return [_coloured(line, color) for line in lines]


def _sum(verdicts: tuple[CheckVerdict, ...]) -> str:
    counts = {word: sum(one.severity.value == word for one in verdicts) for word in STYLES}
    told = [f"{counts['ok']} ok"]
    told += [f"{counts[word]} {word}" for word in ("fail", "warn", "unknown") if counts[word]]
    late = dict.fromkeys(one.family for one in verdicts if one.words.startswith(LATE))
    silent = f"; no answer in time: {', '.join(late)}" if late else ""
    return f"{len(verdicts)} checks: {', '.join(told)}{silent}; {_means(verdicts)}"


def _means(verdicts: tuple[CheckVerdict, ...]) -> str:
    """What a run that began now would make of this node."""
    from gangrun.health.framework.evidence import as_evidence, bars_a_start

    if exit_code(verdicts) == UNKNOWN:
        return "nothing is known of this node"
    found = as_evidence("", verdicts, 0.0)
    if any(map(bars_a_start, found)):
        return "no run would use this node"
    if any(one.poor for one in found):
        return "a run would use this node last"
    return "a run would use this node"


def as_plain(verdicts: tuple[CheckVerdict, ...], node: str) -> dict[str, Any]:
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
                "took_s": round(one.took_s, 4),
                "findings": [_plain_finding(finding) for finding in one.findings],
                "alike": dict(one.alike),
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
