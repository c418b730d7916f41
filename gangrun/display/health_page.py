"""How health is shown: one node's checks, many nodes worst first with equal ones folded, ``--json``."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gangrun.core.nodeset import fold, natural_key, natural_sort
from gangrun.display.text import clean, styled, wrapped
from gangrun.errors import DONE, RUN_FAILED, UNKNOWN

if TYPE_CHECKING:
    from gangrun.health.framework.check import CheckVerdict, Finding

SCHEMA = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim", "excluded": "red"}
VERDICTS = ("ok", "warn", "fail", "unknown")
ORDER = ("excluded", "fail", "warn", "unknown", "ok")
SENTENCES_SHOWN_COUNT = 6  # of one group of nodes
LOST_AT_ONCE = 3
LATE = "no answer within"  # as whoever asks says it
REASON_MAX_CHARS = 200
SILENTLY = frozenset(
    {
        "dcgmi is not installed here",
        "no Lustre here",
        "these GPUs have no NVLink 5",
        "these GPUs have NVLink 5, which counts link errors in other counters",
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
NARROW_COLUMNS = 72  # less has no room for times and limits
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

    ``names``: what GPUs are called by the person who has to find them.
    """
    shown = [one for one in shown if everything_told or one.words not in SILENTLY]
    lost = _lost_at_once(shown)
    rows = [one for one in shown if everything_told or one.words not in lost]
    lines = _table(rows, columns, color=color) if rows else []
    for word in ("fail", "warn"):
        for finding in [finding for one in shown for finding in one.findings if finding.severity.value == word]:
            lines += ["", *_told(finding, columns, color)]
    lines += _named(shown, names or {}, columns)
    lines += _unknown(shown, lost, columns)
    return [*lines, *([""] if lines else []), _sum(verdicts)]


def _table(rows: Sequence[CheckVerdict], columns: int, *, color: bool) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_narrow = columns < NARROW_COLUMNS
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    if not is_narrow:
        table.add_column("time", no_wrap=True)
    table.add_column("reading", max_width=READING_MAX_CHARS, overflow="fold")
    if not is_narrow:
        table.add_column("limit", overflow="fold")
    for one in rows:
        word = one.severity.value
        cells = [one.check, clean(one.shown)] if is_narrow else [
            one.check, _took(one.took_s), clean(one.shown), clean(one.limit)
        ]  # fmt: skip
        table.add_row(Text(word, STYLES[word]), *map(Text, cells))
    console = Console(
        file=io.StringIO(), width=columns, color_system="standard" if color else None, force_terminal=color
    )
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def _unknown(shown: list[CheckVerdict], lost: set[str], columns: int) -> list[str]:
    """Each reason for which checks are unknown, with their names."""
    from gangrun.health.framework.check import FIRST_LOOK

    reasons: dict[str, list[str]] = {}
    for one in shown:
        if one.severity.value == "unknown":
            reasons.setdefault(one.words, []).append(one.check)
    lines = [""] if reasons else []
    for why, checks in reasons.items():
        many = len(checks) > NAMES_MAX_COUNT or (why in lost and _in_a_row(checks, shown))
        which = f"{len(checks)} checks ({checks[0]} to {checks[-1]})" if many else ", ".join(checks)
        hint = "; --over 30 looks twice" if why == FIRST_LOOK else ""
        lines += wrapped(clean(f"unknown: {which}: {why}{hint}"), columns, "", "  ")
    return lines


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _named(shown: list[CheckVerdict], names: Mapping[str, str], columns: int) -> list[str]:
    """Which cards these are: by number each program counts its own way."""
    places = [finding.place for one in shown for finding in one.findings if finding.severity.value in ("warn", "fail")]
    gpus = dict.fromkeys(match[0] for place in places if (match := re.match(r"gpu \d+", place)))
    known = [f"{gpu}: {names[gpu]}" for gpu in natural_sort(gpus) if gpu in names]
    return ["", *(line for one in known for line in wrapped(clean(one), columns, "", "  "))] if known else []


def _in_a_row(checks: list[str], shown: list[CheckVerdict]) -> bool:
    order = [one.check for one in shown]
    return order[order.index(checks[0]) : order.index(checks[-1]) + 1] == checks


def reason_of(verdicts: tuple[CheckVerdict, ...]) -> str:
    """What failed, on one line that a scheduler keeps as a node's reason."""
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
    counts = {word: sum(one.severity.value == word for one in verdicts) for word in VERDICTS}
    told = [f"{counts['ok']} ok"]
    told += [f"{counts[word]} {word}" for word in ("fail", "warn", "unknown") if counts[word]]
    late = dict.fromkeys(one.family for one in verdicts if one.words.startswith(LATE))
    silent = f"; no answer in time: {', '.join(late)}" if late else ""
    return f"{len(verdicts)} checks: {', '.join(told)}{silent}; {_means(verdicts)}"


def _means(verdicts: tuple[CheckVerdict, ...]) -> str:
    """What a run that began now would make of this node."""
    from gangrun.health.framework.evidence import as_evidence, bars_a_start

    if exit_code(verdicts) == UNKNOWN:
        return "this node could not be checked"
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


# ---- many nodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: what is wrong with it, as (verdict, check, sentence); or why it said nothing."""

    node: str
    wrong: tuple[tuple[str, str, str], ...] = ()
    verdicts: tuple[str, ...] = ()  # of all checks
    silent: str = ""
    excluded: str = ""  # why the run does not use it
    plain: dict[str, Any] = field(default_factory=dict)  # its own JSON

    @property
    def word(self) -> str:
        """The node in one word."""
        if self.excluded:
            return "excluded"
        seen = {verdict for verdict, _, _ in self.wrong} | set(self.verdicts)
        return next((word for word in ("fail", "warn", "ok") if word in seen), "unknown")


def nodes_page(nodes: Sequence[NodeReport], columns: int, *, color: bool) -> list[str]:
    """Groups of nodes that have the same wrong with them, the worst first; then one line of sum."""
    groups: dict[tuple[object, ...], list[NodeReport]] = {}
    for one in nodes:
        groups.setdefault((ORDER.index(one.word), _alike(one)), []).append(one)
    ordered = sorted(
        groups.items(), key=lambda item: (item[0][0], -len(item[1][0].wrong), natural_key(item[1][0].node))
    )
    lines: list[str] = []
    for _, alike in ordered:
        lines += _group(alike, columns, color)
    counts = {word: sum(one.word == word for one in nodes) for word in ORDER}
    told = [f"{count} {word}" for word, count in counts.items() if count]
    return [*lines, "", f"{len(nodes)} node{'s' * (len(nodes) != 1)}: {', '.join(told)}"]


def _alike(one: NodeReport) -> tuple[object, ...]:
    """What makes two nodes one line: the same checks with the same verdicts. Their figures differ."""
    return (one.silent, one.excluded, tuple(sorted({(verdict, check) for verdict, check, _ in one.wrong})))


def _group(alike: Sequence[NodeReport], columns: int, color: bool) -> list[str]:
    first, word = alike[0], alike[0].word
    names = fold(natural_sort(one.node for one in alike))
    count = f"  ({len(alike)} nodes)" if len(alike) > 1 else ""
    lines = wrapped(f"{word:8} {clean(names)}{count}", columns, "", " " * 9)
    lines[0] = styled(word, STYLES[word], color) + lines[0][len(word) :]
    told = [first.excluded] if first.excluded else []
    ordered = sorted(first.wrong, key=lambda row: ORDER.index(row[0]))
    told += [f"{verdict}  {sentence} ({check})" for verdict, check, sentence in ordered]
    told += [first.silent] if first.silent else []
    whose = f"{first.node}: " if len(alike) > 1 and first.wrong else ""
    for text in told[:SENTENCES_SHOWN_COUNT]:
        lines += wrapped(clean(whose + text), columns, " " * 9, " " * 15)
    more = len(told) - SENTENCES_SHOWN_COUNT
    return [*lines, *([f"{' ' * 9}and {more} more: gangrun health --json"] if more > 0 else [])]


def nodes_exit_code(nodes: Sequence[NodeReport]) -> int:
    """1: a node failed; 3: of some node nothing is known; else 0."""
    words = {one.word for one in nodes}
    if "fail" in words:
        return RUN_FAILED
    return UNKNOWN if "unknown" in words or not nodes else DONE


def nodes_as_plain(nodes: Sequence[NodeReport], **more: Any) -> dict[str, Any]:
    """``--json``; docs/health.md describes it."""
    return {
        "schema": SCHEMA,
        "exit_code": nodes_exit_code(nodes),
        **more,
        "nodes": [
            {
                "node": one.node,
                "verdict": one.word,
                "excluded": one.excluded,
                "silent": one.silent,
                "wrong": [{"verdict": v, "check": check, "sentence": words} for v, check, words in one.wrong],
                "checks": one.plain.get("checks", []),
            }
            for one in nodes
        ],
    }


def compared(nodes: Sequence[NodeReport]) -> list[NodeReport]:
    """The nodes, with a warning more for each thing in which they are not as most of the others."""
    from gangrun.health.framework.bounds import most_common

    kinds: dict[tuple[str, str], dict[str, str]] = {}
    for one in nodes:
        for check, kind, version in _versions(one):
            kinds.setdefault((check, kind), {})[one.node] = version
    more: dict[str, list[tuple[str, str, str]]] = {}
    for (check, kind), versions in kinds.items():
        common = most_common(versions.values())
        others = fold(node for node, version in versions.items() if version == common)
        for node, version in versions.items():
            if version != common:
                sentence = f"its {kind} is {version}, and that of {others} is {common}"
                more.setdefault(node, []).append(("warn", check, sentence))
    return [replace(one, wrong=(*one.wrong, *more.get(one.node, ()))) for one in nodes]


def _versions(one: NodeReport) -> Iterable[tuple[str, str, str]]:
    """What a node said, read with care: (check, kind, version)."""
    checks = one.plain.get("checks")
    for check in checks if isinstance(checks, list) else ():
        alike = check.get("alike") if isinstance(check, dict) else None
        if isinstance(alike, dict):
            yield from ((str(check.get("check")), str(kind), str(version)) for kind, version in alike.items())
