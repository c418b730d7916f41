"""Who may become supervisor, and with which numbers: the rules of protocol sections 1 and 2.

The claim itself is link(2)'s business (``adapters.fs.terms``), the promises are the agents' (``agent.follow``); here is
only what must be true before either. The leases between old and new are in ``lease``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gangrun.core.model import Node
from gangrun.core.nodeset import natural_key
from gangrun.core.policy import Timing
from gangrun.core.text import counted

CANDIDATES_COUNT = 5
BACKOFF_MAX_S = 64.0


@dataclass(frozen=True, slots=True)
class ClaimRuling:
    """May a candidate claim the next term, and the sentence that says why."""

    allowed: bool
    sentence: str


def candidates(nodes: Mapping[str, Node], leader: str = "") -> tuple[str, ...]:
    """The five that acks name. The leader's own node first, for its warden knows first when the supervisor dies;
    then natural order, without those that could not answer, and those that a refill brought.
    """
    able = {name for name, node in nodes.items() if node.counts and node.silent_since is None}
    first = (leader,) if leader in able else ()
    others = heapq.nsmallest(CANDIDATES_COUNT - len(first), able.difference(first), key=natural_key)
    return (*first, *others)


def has_majority(promises: Collection[str], roster: Collection[str]) -> bool:
    """More than half of the roster in the last snapshot; promises of others do not count, nor do two of one node."""
    return 2 * len(set(promises) & set(roster)) > len(set(roster))


def may_claim(
    promises: Collection[str],
    roster: Collection[str],
    *,
    counter_still_s: float,
    own_writes_ok: bool,
    holder_down: bool,
    timing: Timing,
) -> ClaimRuling:
    """May the next term be claimed? ``promises``: nodes whose agents were unacked for T and promised themselves.

    ``counter_still_s``: how long the holder's counter file, opened anew each time, has not moved while this candidate's
    own writes to the same place worked (``own_writes_ok``). ``holder_down``: the scheduler says so of its node.
    """
    promised, total = len(set(promises) & set(roster)), len(set(roster))
    if has_majority(promises, roster):
        return ClaimRuling(True, f"{promised} of {counted(total, 'agent')} lost the supervisor and promised themselves")
    if holder_down:
        return ClaimRuling(True, "the scheduler says that the supervisor's node is down")
    if counter_still_s >= timing.counter_still_s and own_writes_ok:
        return ClaimRuling(
            True, f"the supervisor's counter stood still for {counter_still_s:.0f} s while our writes worked"
        )
    still = f"the supervisor's counter moved {counter_still_s:.0f} s ago"
    if not own_writes_ok:
        still = "our own writes fail, so a counter that stands still proves nothing"
    return ClaimRuling(False, f"only {promised} of {counted(total, 'agent')} promised themselves, and {still}")


def backoff_s(failures_count: int) -> float:
    """How long a candidate waits after its k-th failure in a row: 1, 2, 4 .. 64 s."""
    return 0.0 if failures_count < 1 else min(BACKOFF_MAX_S, 2.0 ** min(failures_count - 1, 60))
