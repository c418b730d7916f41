"""Draws docs/lifecycle.md from gangrun/core/machine/lifecycle.py:  python docs/draw_lifecycle.py [--check]."""

import sys
from pathlib import Path

from gangrun.core.machine.lifecycle import TABLE, Late, Refusal, next_phases
from gangrun.core.model import TERMINAL, Phase

PAGE = Path(__file__).parent / "lifecycle.md"
HEAD = """# The life of a run

Drawn by `docs/draw_lifecycle.py` from the table in `gangrun/core/machine/lifecycle.py`; a test keeps the two equal.

A run begins in PENDING and ends in SUCCEEDED, FAILED, CANCELLED or TIME_UP. Every other phase has a deadline or a named
outside event that ends it. Nothing starts ranks but STARTING, and nothing leaves STOPPING before every rank is proven
gone.

<!-- not run: a diagram -->
```mermaid
stateDiagram-v2
    [*] --> PENDING
"""


def diagram() -> str:
    """The moves between phases with the events that cause them, as a mermaid diagram's lines."""
    lines = []
    for before, row in TABLE.items():
        for after in Phase:
            causes = sorted(kind.__name__ for kind in row if after in next_phases(before, kind))
            if causes:
                lines.append(f"    {before.value} --> {after.value}: {', '.join(causes)}")
    ends = [f"    {phase.value} --> [*]" for phase in Phase if phase in TERMINAL]
    return "\n".join([*lines, *ends])


def table() -> str:
    """What each event means in each phase: handled, ignored as late, or refused."""
    phases = list(Phase)
    rows = ["| event | " + " | ".join(phase.value for phase in phases) + " |", "|---" * (len(phases) + 1) + "|"]
    for kind in sorted(TABLE[Phase.PENDING], key=lambda kind: kind.__name__):
        cells = []
        for phase in phases:
            entry = TABLE[phase][kind]
            cells.append("late" if isinstance(entry, Late) else "refused" if isinstance(entry, Refusal) else "**yes**")
        rows.append(f"| {kind.__name__} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def page() -> str:
    """The whole page."""
    return (
        f"{HEAD}{diagram()}\n```\n\n## Every event in every phase\n\n"
        "**yes**: it has a handler. *late*: it can come and means nothing any more, so it is journalled as ignored.\n"
        "*refused*: it cannot come; it is journalled with the reason and changes nothing.\n\n"
        f"{table()}\n"
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/lifecycle.md is stale: python docs/draw_lifecycle.py")
    PAGE.write_text(page())
