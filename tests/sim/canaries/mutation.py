"""How a rule is taken out (room: tests of sim): real functions and attributes are replaced, and put back.

Nothing in gangrun has a switch for this. A mutant is a function that returns what to replace by what; ``@mutant`` says
which rule of ``docs/protocol.md`` that takes out, in which section it stands and which invariants notice.
Next: ``terms``, ``leases``, ``saves``, ``events``, ``judgement`` and ``jobs``, one file of mutants each; ``worlds``,
where they show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Swap = tuple[object, str, Any]
Swaps = tuple[Swap, ...]


@contextlib.contextmanager
def swapped(*swaps: Swap) -> Iterator[None]:
    """Each (owner, name) is the given value inside, and what it was outside."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in swaps]
    try:
        for owner, name, value in swaps:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


@dataclass(frozen=True)
class Mutant:
    """A rule taken out; ``breaks`` are the invariants that may notice."""

    name: str
    rule: str
    section: str
    what: str  # what the mutant does instead
    swaps: Callable[[], Swaps]
    breaks: tuple[str, ...]
    given: str = ""  # another mutant: with that one in as well the rule shows, without it that one covers

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the rule is out."""
        return swapped(*self.swaps())

    def without(self) -> contextlib.AbstractContextManager[None]:
        """Inside, all is as it should be but for what covers the rule."""
        return MUTANTS[self.given].installed() if self.given else contextlib.nullcontext()


MUTANTS: dict[str, Mutant] = {}


def mutant(
    rule: str, section: str, *breaks: str, given: str = ""
) -> Callable[[Callable[[], Swaps]], Callable[[], Swaps]]:
    """Enter a mutant under its function's name; its docstring says what it does instead.

    ``given``: a rule that covers this one. The world then has that one out in both runs, with and without this one.
    """

    def register(swaps: Callable[[], Swaps]) -> Callable[[], Swaps]:
        name, what = swaps.__name__, " ".join((swaps.__doc__ or "").split())
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, rule, section, what, swaps, breaks, given)
        return swaps

    return register
