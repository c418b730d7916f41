"""Many nodes on one page, worst first, equal ones folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gangrun.core.nodeset import fold, natural_key, natural_sort
from gangrun.display.health_page import SCHEMA, STYLES
from gangrun.display.text import clean, styled, wrapped
from gangrun.errors import DONE, RUN_FAILED, UNKNOWN

ORDER = ("excluded", "fail", "warn", "unknown", "ok")
STYLE_OF = {**STYLES, "excluded": "red"}
SENTENCES_SHOWN_COUNT = 6


@dataclass(frozen=True, slots=True)
class Said:
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


def page(nodes: Sequence[Said], columns: int, *, color: bool) -> list[str]:
    """Groups of nodes that have the same wrong with them, the worst first; then one line of sum."""
    groups: dict[tuple[object, ...], list[Said]] = {}
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


def _alike(one: Said) -> tuple[object, ...]:
    """What makes two nodes one line: the same checks with the same verdicts. Their figures differ."""
    return (one.silent, one.excluded, tuple(sorted({(verdict, check) for verdict, check, _ in one.wrong})))


def _group(alike: Sequence[Said], columns: int, color: bool) -> list[str]:
    first, word = alike[0], alike[0].word
    names = fold(natural_sort(one.node for one in alike))
    count = f"  ({len(alike)} nodes)" if len(alike) > 1 else ""
    lines = wrapped(f"{word:8} {clean(names)}{count}", columns, "", " " * 9)
    lines[0] = styled(word, STYLE_OF[word], color) + lines[0][len(word) :]
    told = [first.excluded] if first.excluded else []
    ordered = sorted(first.wrong, key=lambda row: ORDER.index(row[0]))
    told += [f"{verdict}  {sentence} ({check})" for verdict, check, sentence in ordered]
    told += [first.silent] if first.silent else []
    whose = f"{first.node}: " if len(alike) > 1 and first.wrong else ""
    for text in told[:SENTENCES_SHOWN_COUNT]:
        lines += wrapped(clean(whose + text), columns, " " * 9, " " * 15)
    more = len(told) - SENTENCES_SHOWN_COUNT
    return [*lines, *([f"{' ' * 9}and {more} more: gangrun health --json"] if more > 0 else [])]


def exit_code(nodes: Sequence[Said]) -> int:
    """1: a node failed; 3: of some node nothing is known; else 0."""
    words = {one.word for one in nodes}
    if "fail" in words:
        return RUN_FAILED
    return UNKNOWN if "unknown" in words or not nodes else DONE


def as_plain(nodes: Sequence[Said], **more: Any) -> dict[str, Any]:
    """``--json``; docs/health.md describes it."""
    return {
        "schema": SCHEMA,
        "exit_code": exit_code(nodes),
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
