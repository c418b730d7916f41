"""Which nodes have shown before an attempt that they are broken, and is it theirs.

A fatal finding bars its node at once (``roster``); here, when all answers are in, it is left out for good, so that the
next job does without it too. The same on many nodes at once is a shared service's: wait, look again, exclude nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangrun.core.model import Finding, RunState
from gangrun.core.nodes import quarantine
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame
from gangrun.core.text import counted, one_line


@dataclass(frozen=True, slots=True)
class Weighed:
    """The state after, a sentence ("" where there was nothing to weigh), and whether to wait and look again."""

    state: RunState
    sentence: str = ""
    look_again: bool = False


def weigh(state: RunState, now: float, policy: Policy) -> Weighed:
    """Leave out the nodes that were found broken since the last attempt."""
    out = quarantine.active(state.excluded, now)
    barred = {name: node.found for name, node in state.nodes.items() if node.found is not None and name not in out}
    if not barred:
        return Weighed(state)
    if not state.waited_for_nodes and (shared := _shared(barred, state, policy)):
        return _unbarred(state, shared, barred, policy)
    if not policy.can_requeue and len(state.nodes) < 2:
        return Weighed(state)  # the only node there is: it is not used now, and whoever resumes the run has it checked
    told = []
    for name in natural_sort(barred):
        found = barred[name]
        reason = f"{one_line(found.sentence)} ({found.check})"
        boots = {name: found.boot_id} if found.boot_id else {}
        resets = [name] if found.shows_reset else []
        done = quarantine.exclude(state.excluded, [name], reason, now, policy, len(state.nodes), [name], boots, resets)
        state = replace(state, excluded=done.excluded)
        told.append(f"{name}: {reason}; {done.sentence}")
    more = f"; and {counted(len(told) - 3, 'node')} more" if len(told) > 3 else ""
    return Weighed(state, "; ".join(told[:3]) + more)


def _shared(barred: Mapping[str, Finding], state: RunState, policy: Policy) -> tuple[str, ...]:
    shared = blame.shared_by_check(barred.values(), len(state.nodes), policy).values()
    return max(shared, key=len, default=())


def _unbarred(state: RunState, shared: tuple[str, ...], barred: Mapping[str, Finding], policy: Policy) -> Weighed:
    """Each of them is asked again, once the wait is over."""
    nodes = {**state.nodes}
    for name in shared:
        nodes[name] = replace(nodes[name], checked=None, check_reason="", found=None)
    first = barred[shared[0]]
    sentence = (
        f"{counted(len(shared), 'node')} of {len(state.nodes)} ({fold(shared)}) show the same at once: a service that"
        f" they share is at fault, and none is left out: {one_line(first.sentence)} ({first.check}); looking again in"
        f" {policy.shared_fault_wait_s:.0f} s"
    )
    return Weighed(replace(state, nodes=nodes, waited_for_nodes=True), sentence, look_again=True)
