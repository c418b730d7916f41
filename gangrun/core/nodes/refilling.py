"""How many nodes of a job are missing, and how many refills are to bring them (rung 4).

A refill is a one-node job of the run. It is wanted only while nodes are missing and no spare is left: never more of
them than missing nodes. What is asked of the scheduler for it is in ``machine.refills``.
"""

from __future__ import annotations

from collections.abc import Collection

from gangrun.core.model import After, Phase, Refill, RefillStage, RunState
from gangrun.core.nodes import standing
from gangrun.core.nodes.standing import StandingKind
from gangrun.core.policy import Policy

FAILURES_MAX_COUNT = 3  # in a row, in one job; then one is asked for now and then
PAUSE_S = 600.0
_GONE = frozenset({StandingKind.EXCLUDED, StandingKind.TAKEN, StandingKind.BROKEN, StandingKind.TOO_SMALL})


def held(state: RunState, now: float) -> tuple[str, ...]:
    """The nodes that the job has and that may be used, now or soon. A silent one may be heard again."""
    nodes = state.roster.nodes
    return tuple(
        name for name, one in standing.standings(state, now).items() if one.kind not in _GONE and not nodes[name].lost
    )


def missing_count(state: RunState, held_count: int) -> int:
    """How many nodes fewer than the job began with are ``held``."""
    return max(0, max(len(state.roster.expected), state.shape.nodes_count) - held_count)


def wanted_count(state: RunState, policy: Policy, held_count: int) -> int:
    """How many refills may be on their way: none while a spare is left, nor where the job or the run ends.

    ``held_count``: of the nodes that are ``held``. To judge thousands of nodes takes most of the time of a decision,
    so whoever has them does not do it again.
    """
    ending, underway = state.ending, state.underway
    ends = ending.leaving or ending.cancelled_by or ending.gone_at is not None or state.roster.alone
    if policy.refill_wait_s is None or not policy.can_requeue or policy.observe or ends:
        return 0
    if underway.submitting or underway.bringing is not None or underway.after in _LAST:
        return 0
    if held_count > state.shape.nodes_count:
        return 0
    return missing_count(state, held_count)


_LAST = frozenset({After.SUCCEED, After.CANCEL, After.REQUEUE, After.RETURN})


def on_their_way(state: RunState) -> tuple[Refill, ...]:
    """Refills whose nodes have not joined."""
    return tuple(one for one in state.roster.refills if one.stage is not RefillStage.HERE)


def given_up(state: RunState, now: float) -> bool:
    """Is none asked for now: in this job at all, or since so many in a row brought nothing?"""
    have = state.roster
    return have.refills_off or (has_failed_often(state) and now < have.refill_failed_at + PAUSE_S)


def has_failed_often(state: RunState) -> bool:
    """Did so many in a row bring nothing that one is asked for now and then only?"""
    return state.roster.refill_failures_count >= FAILURES_MAX_COUNT


def waits_until(state: RunState, now: float, policy: Policy) -> float:
    """Until when a job with too few nodes holds those that it has for a refill; 0.0: it does not."""
    can_come = bool(on_their_way(state)) or not given_up(state, now)
    if not policy.refill_wait_s or not can_come or not wanted_count(state, policy, len(held(state, now))):
        return 0.0
    return state.roster.refill_until or now + policy.refill_wait_s


def is_waiting(state: RunState) -> bool:
    """Does the job hold its nodes for a refill now?"""
    due = state.timers.deadlines.get("nodes")
    return state.phase is Phase.WAITING and due is not None and due.at == state.roster.refill_until


def unwanted(state: RunState, number: int, node: str, own: Collection[str]) -> str:
    """Why an agent that this refill brought may not join; "" if it may. ``own``: the nodes of the job itself."""
    if node in own:
        return f"{node} is a node of the job itself, and no refill can bring it"
    found = next((one for one in state.roster.refills if one.number == number), None)
    if found is None:
        return f"refill {number} is not wanted"
    if found.node not in {"", node}:
        return f"refill {number} has brought {found.node} already"
    return ""
