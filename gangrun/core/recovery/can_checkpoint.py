"""Whether ranks can still save when hardware broke under them.

What is about to be lost still computes, so all ranks are told to save at once, for as long as policy gives. A GPU that
is gone computes nothing more: its ranks hang or fall, the others would wait for them until the time is over.
"""

from __future__ import annotations

from gangrun.core.model import Finding, traits_of

# The driver has taken the GPU from every program on it: memory lost, off the bus, its own processors halted.
LOST_XIDS = frozenset({46, 48, 62, 79, 95, 119, 120, 140, 158, 167})


def can_save(found: Finding) -> bool:
    """May a save that all ranks take part in succeed after this?"""
    if traits_of(found.check).is_lost:
        return False
    return found.report is None or found.report.number not in LOST_XIDS


def told(found: Finding) -> str:
    """What is done about it, in words."""
    if can_save(found):
        return "saving first, as it still computes"
    return "stopping at once, as its ranks cannot save any more"
