"""How time is accounted for: what a second was spent on, how sure a share is.

The ledger of a real run and the forecast of a simulated one use the same words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class TimeUse(Enum):
    """What a second was spent on."""

    USEFUL = "useful"
    SAVING = "checkpoint stall"  # ranks stood still while a save took the state
    LOST = "lost"  # training that had to be done again
    QUEUE = "queue"
    START_UP = "start-up"  # until agents have joined, and until ranks run
    PREFLIGHT = "preflight"
    LOADING = "loading"  # until the checkpoint is chosen and verified
    COMPILE = "compile"  # from the start of all ranks to their first step: imports, loading, compiling
    NOTICING = "noticing"
    STOPPING = "stopping"
    FENCING = "fencing"
    WAITING = "waiting"  # for nodes, a back-off, a service
    IDLE_SPARE = "idle spare"
    UNUSABLE = "unusable"  # in the job, but lost or excluded


SURE_BY = 1.96  # standard deviations on each side: 95 %


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """A share, and the bounds between which it lies with 95 % confidence; None: there is too little to tell."""

    share: float
    low: float | None = None
    high: float | None = None


def share_of_cycles(cycles: Sequence[tuple[float, float]]) -> ShareEstimate:
    """The useful share of a run that begins anew after each recovery; ``cycles`` has (useful, whole) of each stretch.

    Stretches are independent of each other, so the share is a ratio of two means whose errors are known (the
    regenerative method). Fewer than ten stretches tell nothing about the error.
    """
    count, whole = len(cycles), math.fsum(length for _, length in cycles)
    if not whole:
        return ShareEstimate(0.0)
    share = math.fsum(useful for useful, _ in cycles) / whole
    if count < 10:
        return ShareEstimate(share)
    squares = math.fsum((useful - share * length) ** 2 for useful, length in cycles)
    off = SURE_BY * math.sqrt(squares * count / (count - 1)) / whole
    return ShareEstimate(share, max(0.0, share - off), min(1.0, share + off))
