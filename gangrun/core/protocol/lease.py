"""When a node counts as silent, when its lease ends, when it may be presumed empty: the laws of protocol section 2.

Letters as in ``docs/protocol.md``: L fence, S silence, K kill, P warden wake, D leader lease, T takeover, rho drift.
Instants of an agent and of a supervisor are on different clocks; each function says on whose clock it works.
``node/warden.py`` cannot import this (it is started by path); a test holds its rule against ``warden_must_kill``.
Heartbeats never go through ``lifecycle``: only a change, a node that falls silent or is heard again, becomes an event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gangrun.core.model import Placement, Savers
from gangrun.core.nodeset import natural_key
from gangrun.core.policy import Timing

OVERDUE_BEATS = 1.5  # without one for so long, others are asked about the node, which is not a suspect yet
SLOW_SILENCES = 3.0  # so many times S a node may be silent that is seen to live
ALL_HEARD_BEATS = 5.0  # a heartbeat may prove what is two beats old, and a few may be late
PROOF_COUNTERS = 3.0  # the holder's store looks for a seal with every write of the counter file
GAP_GRACE_S = 2.0  # one beat round trip for a warden that was paused


@dataclass(frozen=True, slots=True)
class KillRule:
    """Whether the warden kills now; what the deadline became, and whether that is a grace after a gap."""

    kill: bool
    deadline: float
    granted: bool = False


def lease_deadline(acked_send_time: float, timing: Timing) -> float:
    """Agent's clock. The lease runs from when the newest acked beat was *sent*: a late ack must not add to it."""
    return acked_send_time + timing.fence_after_s


def fence_wait_s(timing: Timing) -> float:
    """Law 1: how long after its last beat a node is empty at the latest, L(1 + rho) + K + P."""
    return timing.fence_after_s * (1 + timing.drift) + timing.kill_within_s + timing.warden_wake_s


def presumed_empty_at(last_beat: float, timing: Timing) -> float:
    """Supervisor's clock: the instant from which a node that says nothing holds no ranks (law 1)."""
    return last_beat + fence_wait_s(timing)


def presumed_empty_after_takeover(majority_promised_at: float, timing: Timing) -> float:
    """Supervisor's clock. The old leader may have acked until its own lease D ended, which the promises bound."""
    return presumed_empty_at(majority_promised_at + timing.leader_lease_s, timing)


def proof_lasts_s(timing: Timing) -> float:
    """For how long a supervisor that does not hear everybody may ack after it was last seen that nobody sealed it."""
    return PROOF_COUNTERS * timing.counter_every_s


def last_ack_after_seal_s(timing: Timing) -> float:
    """How long after a seal the sealed supervisor may still ack, if there is somebody whom it does not hear."""
    return proof_lasts_s(timing) * (1 + timing.drift)


def all_heard_within_s(timing: Timing) -> float:
    """How old what each agent's heartbeats prove may be, for a supervisor to say that it hears all of them."""
    return max(timing.silence_after_s, ALL_HEARD_BEATS * timing.beat_every_s)


def overdue_after_s(timing: Timing) -> float:
    """From when on a heartbeat is missed: time to ask others, so that their answer is there once S is over."""
    return min(timing.silence_after_s, OVERDUE_BEATS * timing.beat_every_s)


def slow_after_s(timing: Timing) -> float:
    """How long a node may be silent of which others say that it lives: slow, stopped, or cut off from us alone."""
    return SLOW_SILENCES * timing.silence_after_s


def unconfirmed_lasts_s(timing: Timing) -> float:
    """For how long a supervisor that hears everybody may ack after it was last seen that nobody sealed its term, or
    that the scheduler held this very job for running: a scheduler may have given up a job that it does not reach.
    """
    return max(timing.fence_after_s, proof_lasts_s(timing))


def last_ack_of_lost_job_s(timing: Timing) -> float:
    """How long after a seal from outside its job the sealed supervisor may still ack, whomever it hears."""
    return unconfirmed_lasts_s(timing) * (1 + timing.drift)


def fence_after_seal_s(timing: Timing) -> float:
    """How long after a seal from outside their job ranks may live by a lease that the sealed supervisor renewed."""
    return last_ack_of_lost_job_s(timing) + timing.leader_lease_s + fence_wait_s(timing)


def fragment_allows(
    *,
    silent: Collection[str],
    placement: Placement,
    dead_ranks: Collection[int],
    sealed: bool,
    replica_ranks_count: int,
    savers: Savers,
) -> bool:
    """May the next attempt start before law 1 allows? A gang cannot step without all its ranks.

    ``dead_ranks``: confirmed dead, not merely silent. ``replica_ranks_count``: consecutive ranks that can complete a
    step without the others; 0: only all ranks together can. The silent nodes must hold neither such a group, nor a
    rank whose late writes only its lease keeps from the next attempt's checkpoints.
    """
    held = {
        rank
        for seat in placement.seats
        if seat.slot.node in silent
        for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count)
    }
    if not held:
        return True
    confirmed = any(rank not in held for rank in dead_ranks)
    whole_copy = _holds_whole_replica(held, placement.world_size, replica_ranks_count)
    saves = savers is Savers.ALL or (savers is Savers.RANK0 and 0 in held)
    return confirmed and sealed and not whole_copy and not saves


def _holds_whole_replica(held: Collection[int], world_size: int, replica_ranks_count: int) -> bool:
    size = replica_ranks_count or world_size
    return any(
        all(rank in held for rank in range(first, first + size)) for first in range(0, world_size - size + 1, size)
    )


def leader_lease_ends_at(acked_at: Mapping[str, float], roster_count: int, timing: Timing) -> float | None:
    """Supervisor's clock: the last instant at which more than half of the roster's beats have been acked within D, if
    no more beats come (law 3); None: there was none. ``acked_at``: per agent, when its newest acked beat *arrived*.
    """
    newest_first = sorted(acked_at.values(), reverse=True)
    need = roster_count // 2 + 1
    return newest_first[need - 1] + timing.leader_lease_s if len(newest_first) >= need else None


def warden_must_kill(deadline: float, now: float, last_wake: float, timing: Timing, granted: bool = False) -> KillRule:
    """Warden's clock. Time alone is not the fence: after a gap of its own of more than L/3 the whole machine may have
    been paused, so the agent gets one beat round trip to renew. ``granted``: this deadline is already such a grace;
    it comes once, or a starved warden would never kill.
    """
    if now < deadline:
        return KillRule(False, deadline, granted)
    if now - last_wake > timing.fence_after_s / 3 and not granted:
        return KillRule(False, now + GAP_GRACE_S, True)
    return KillRule(True, deadline, granted)


NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Liveness:
    """What changed since the last look, and when to look again if nothing else happens."""

    newly_silent: tuple[tuple[str, float], ...]  # (node, last heard), longest silent first
    newly_heard: tuple[str, ...]
    next_at: float


def judge_silence(heard: Mapping[str, float], silent: Collection[str], now: float, after_s: float) -> Liveness:
    """Who sent no beat for ``after_s``. ``silent``: those already reported, so that each change is told once.

    A node is silent from the very instant ``heard + after_s`` on, which is also what ``next_at`` says: a caller that
    sleeps until then finds the change, never an instant too early.
    """
    if not silent:  # the common case costs one pass in C
        oldest = min(heard.values(), default=NEVER)
        if oldest + after_s > now:
            return Liveness((), (), oldest + after_s)
    known = frozenset(silent)
    fell: list[tuple[str, float]] = []
    back: list[str] = []
    oldest = NEVER
    for node, at in heard.items():
        if at + after_s <= now:
            if node not in known:
                fell.append((node, at))
        else:
            if node in known:
                back.append(node)
            if at < oldest:  # noqa: PLR1730 - a call to min() each would double the cost
                oldest = at
    fell.sort(key=lambda item: (item[1], natural_key(item[0])))
    return Liveness(tuple(fell), tuple(sorted(back, key=natural_key)), oldest + after_s)
