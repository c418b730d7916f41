"""Sets of node names as people write them, ``tiger[1-30,35]``.

``fold`` is for sentences, ``unfold`` for what a user or a scheduler wrote, ``natural_key`` for the order of the roster
(tiger2 before tiger10).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

NAMED_MAX_COUNT = 256  # a sentence counts more nodes than that instead of naming them
EXPANSION_MAX_COUNT = 100_000  # a typo such as n[1-999999999] must not eat the memory

_DIGITS = re.compile(r"([0-9]+)")
_LAST_NUMBER = re.compile(r"(?s)(.*?)([0-9]+)([^0-9]*)\Z")
_BRACKETS = frozenset("[],")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z")


class NodesetError(ValueError):
    """Text that is no set of nodes; the message says where it goes wrong."""


@lru_cache(maxsize=1 << 16)  # the same few thousand names are sorted over and over
def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which numbers inside names count as numbers; total, so no two names are equal under it."""
    parts = [(int(part), part) if index % 2 else (-1, part) for index, part in enumerate(_DIGITS.split(name))]
    return tuple(parts)


def natural_sort(names: Iterable[str]) -> list[str]:
    """Names in roster order."""
    return sorted(names, key=natural_key)


def fold(names: Iterable[str]) -> str:
    """Fold names into ranges over their last number; duplicates vanish, order is natural."""
    groups: dict[tuple[str, str], list[str]] = {}
    plain: dict[str, None] = {}
    for name in natural_sort(set(names)):
        parts = _around_number(name)
        if parts is None:
            plain[name] = None
        else:
            head, number, tail = parts
            groups.setdefault((head, tail), []).append(number)
    folded = [_folded(head, numbers, tail) for (head, tail), numbers in groups.items()]
    return ",".join(natural_sort([*folded, *plain]))


def named(names: Collection[str]) -> str:
    """The names folded, or how many they are: one sentence of each of thousands of nodes that names all others would
    cost the square of their number, in the journal too.
    """
    return fold(names) if len(names) <= NAMED_MAX_COUNT else f"{len(names)} nodes"


def fold_in_order(names: Sequence[str]) -> tuple[str, ...] | None:
    """Folded lists that unfold to these names in this order, each for names in natural order.

    None if they would unfold to others, as of a name that has a comma.
    """
    parts: list[list[str]] = []
    last = natural_key("")
    for name in names:
        key = natural_key(name)
        if not parts or key < last:
            parts.append([])
        parts[-1].append(name)
        last = key
    lists = tuple(map(fold, parts))
    try:
        return lists if unfold(",".join(lists)) == tuple(names) else None
    except NodesetError:
        return None


@lru_cache(maxsize=1 << 16)
def _around_number(name: str) -> tuple[str, str, str] | None:
    """What stands before the last number, it, and what follows; None for a name that cannot be folded."""
    match = _LAST_NUMBER.match(name)
    if match is None or not _BRACKETS.isdisjoint(name):
        return None
    head, number, tail = match.groups()
    return head, number, tail


def _folded(head: str, numbers: list[str], tail: str) -> str:
    if len(numbers) == 1:
        return f"{head}{numbers[0]}{tail}"
    spans: list[tuple[str, str]] = []
    for number in numbers:
        if spans and _follows(spans[-1][1], number):
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    told = ",".join(first if first == last else f"{first}-{last}" for first, last in spans)
    return f"{head}[{told}]{tail}"


def _follows(last: str, number: str) -> bool:
    """Is ``number`` what counting on from ``last`` with its zero padding gives?"""
    return str(int(last) + 1).zfill(len(last)) == number and (len(last) == len(number) or last[0] != "0")


def unfold(text: str) -> tuple[str, ...]:
    """Names in the order written, each once. Any number of bracket groups in a name, as schedulers write them."""
    names: dict[str, None] = {}
    for part in _split(text):
        for name in _expanded(part, text):
            names[name] = None
            if len(names) > EXPANSION_MAX_COUNT:
                raise NodesetError(f"{text!r} stands for more than {EXPANSION_MAX_COUNT} nodes")
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth, start = 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
        if depth not in (0, 1):
            raise NodesetError(f"{text!r}: brackets do not match at character {index + 1}")
    if depth:
        raise NodesetError(f"{text!r}: a bracket is not closed")
    if text.strip():
        yield text[start:].strip()


def _expanded(part: str, text: str) -> Iterator[str]:
    if not part:
        raise NodesetError(f"{text!r}: a name is missing between two commas")
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    tails = list(_expanded(tail, text)) if tail else [""]
    for piece in inside.split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise NodesetError(f"{text!r}: {piece!r} is neither a number nor a range")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise NodesetError(f"{text!r}: the range {piece!r} runs backwards")
        if int(last) - int(first) >= EXPANSION_MAX_COUNT:
            raise NodesetError(f"{text!r} stands for more than {EXPANSION_MAX_COUNT} nodes")
        for number in range(int(first), int(last) + 1):
            for end in tails:
                yield f"{head}{number:0{len(first)}d}{end}"
