"""How our own processes speak to whoever owns them: whole lines on stderr, which the owner's pipe takes.

Nothing may wait or break here: the pipe is full when its owner is stopped, and gone when its owner is. An urgent line
is shown to the person in front of ``gangrun run`` at once: the journal, by which all else is told, may be what fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

URGENT = "!] "
STORAGE = "the run directory "  # how every sentence about storage that fails begins


def tell(who: str, sentence: str, *, urgent: bool = False) -> None:
    """One line; lost where nobody can take it."""
    line = f"[{who}{URGENT if urgent else '] '}{sentence}\n"
    try:
        os.write(2, line.encode("utf-8", "backslashreplace"))
    except OSError:
        return


def tell_dropped(who: str, dropped: Mapping[str, int]) -> None:
    """At the end: how much came over the wire that was not believed, if anything did."""
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(dropped.items()) if count)
    if counted:
        tell(who, f"dropped on the wire: {counted}")


def urgent_part(line: str) -> str:
    """The sentence of an urgent line; "" for any other."""
    who, mark, sentence = line.partition(URGENT)
    return sentence if mark and who.startswith("[") and " " not in who else ""
