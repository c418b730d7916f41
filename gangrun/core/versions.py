"""Large parts of the state that change a little with each event: a table by name, and a set of rank numbers.

Theory of operation. A state never changes, so each event makes a new one, and with thousands of nodes a copy of a table
per event costs the square of their number, in time and in memory. A ``Table`` hands its dict to its successor instead.
It keeps what was there before the one change, and makes a copy of its own if somebody reads it again. So the newest
version is as fast as a dict, older ones are small, and what changed between two neighbours is known (``changed``).
How many entries pass a test is asked after each change too: the newest version knows it without a look at all of them
(``count``). One thread makes the versions of one table and reads them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from itertools import chain, compress
from operator import ne
from typing import Any, TypeVar

V = TypeVar("V")
ABSENT: Any = object()


class Table(Mapping[str, V]):
    """An immutable mapping whose successor costs no copy."""

    __slots__ = ("counts", "held", "key", "later", "was")

    def __init__(self, entries: Mapping[str, V]) -> None:
        """A version without a predecessor; it copies the entries."""
        self.held: dict[str, V] | None = dict(entries)
        self.counts: dict[Callable[[V], bool], int] = {}
        self.later: Table[V] | None = None
        self.key = ""
        self.was: V = ABSENT

    def changed_to(self, key: str, value: V) -> Table[V]:
        """The next version, with one entry added or replaced."""
        held = self._entries()
        newer: Table[V] = Table.__new__(Table)
        was = held.get(key, ABSENT)
        newer.held, newer.later, newer.key, newer.was = held, None, "", ABSENT
        newer.counts, self.counts = self.counts, {}
        for test, count in newer.counts.items():
            newer.counts[test] = count + test(value) - (was is not ABSENT and test(was))
        self.held, self.later, self.key, self.was = None, newer, key, was
        held[key] = value
        return newer

    def count(self, test: Callable[[V], bool]) -> int:
        """How many entries pass a pure function of one entry; later versions go on from here."""
        if test not in self.counts:
            self.counts[test] = sum(map(test, self._entries().values()))
        return self.counts[test]

    def changed_in(self, newer: Mapping[str, V]) -> dict[str, V] | None:
        """What was there (``ABSENT`` if nothing) before each change up to a later version; None if it is not one."""
        was: dict[str, V] = {}
        at: Table[V] | None = self
        while at is not None and at is not newer:
            was.setdefault(at.key, at.was)
            at = at.later
        return None if at is None else was

    def _entries(self) -> dict[str, V]:
        if self.held is None:
            path: list[Table[V]] = []
            at = self
            while at.held is None:
                path.append(at)
                assert at.later is not None, "a version without entries has a successor"
                at = at.later
            held = dict(at.held)
            for older in reversed(path):
                if older.was is ABSENT:
                    del held[older.key]
                else:
                    held[older.key] = older.was
            self.held = held
        return self.held

    def __getitem__(self, key: str) -> V:
        return self._entries()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __repr__(self) -> str:
        return repr(self._entries())

    def keys(self) -> KeysView[str]:
        """As a dict has them; so are the next two."""
        return self._entries().keys()

    def values(self) -> ValuesView[V]:
        """In the order in which keys were added."""
        return self._entries().values()

    def items(self) -> ItemsView[str, V]:
        """In the order in which keys were added."""
        return self._entries().items()

    def get(self, key: str, default: Any = None) -> Any:
        """The entry, or the default."""
        return self._entries().get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._entries()


def with_entries(table: Mapping[str, V], changed: Mapping[str, V]) -> Mapping[str, V]:
    """The mapping with these entries added or replaced."""
    newer = table if isinstance(table, Table) else Table(table)
    for key, value in changed.items():
        newer = newer.changed_to(key, value)
    return newer


def count(table: Mapping[str, V], test: Callable[[V], bool]) -> int:
    """How many entries pass the test, a named function; a ``Table`` remembers it."""
    return table.count(test) if isinstance(table, Table) else sum(map(test, table.values()))


class Ranks(AbstractSet[int]):
    """A set of rank numbers as ranges, ``spans`` of first and last in ascending order; neighbours are joined."""

    __slots__ = ("count", "spans")

    def __init__(self, spans: tuple[tuple[int, int], ...] = ()) -> None:
        """The spans must be in order and apart; ``of`` takes any numbers."""
        self.spans = spans
        self.count = sum(last - first + 1 for first, last in spans)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranks:
        """The set of these numbers."""
        spans: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if spans and spans[-1][1] == number - 1:
                spans[-1] = spans[-1][0], number
            else:
                spans.append((number, number))
        return cls(tuple(spans))

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> Any:
        return cls.of(it)

    def since(self, older: Ranks) -> Ranks | None:
        """The numbers that are not in an older set; None if that has others."""
        both = min(len(older.spans), len(self.spans))
        same = next(compress(range(both), map(ne, older.spans, self.spans)), both)
        before, now = deque(older.spans[same:]), self.spans[same:]
        came: list[tuple[int, int]] = []
        for first, last in now:
            at = first
            while before and before[0][0] <= last:
                known_first, known_last = before.popleft()
                if known_first < at or known_last > last:
                    return None
                if at < known_first:
                    came.append((at, known_first - 1))
                at = known_last + 1
            if at <= last:
                came.append((at, last))
        return None if before else Ranks(tuple(came))

    def added(self, number: int) -> Ranks:
        """The set with one number more."""
        if number in self:
            return self
        spans, at = self.spans, bisect_right(self.spans, (number, number))
        first, last, begin, end = number, number, at, at
        if at and spans[at - 1][1] == number - 1:
            first, begin = spans[at - 1][0], at - 1
        if at < len(spans) and spans[at][0] == number + 1:
            last, end = spans[at][1], at + 1
        newer = Ranks.__new__(Ranks)
        newer.spans, newer.count = (*spans[:begin], (first, last), *spans[end:]), self.count + 1
        return newer

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self.spans, number, key=_first) - 1
        return at >= 0 and number <= self.spans[at][1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.spans)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return self.spans == other.spans if isinstance(other, Ranks) else super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"Ranks({self.spans})"


def _first(span: tuple[int, int]) -> int:
    return span[0]
