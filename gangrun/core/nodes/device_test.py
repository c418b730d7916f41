"""Nodes on trial: whose devices are put to work before ranks use them again.

Who is suspected of a failure, and no more than suspected, is tested while the others get ready. Where the gang is
whole without it nobody waits; else the answer is waited for, so long at most. What comes out decides: broken nodes are
barred, clean ones are taken back and suspicion fades sooner, and where nobody could tell the suspicion alone counts, as
it would have without a test. A pass is no proof: who falls first once more is left out untested. So are tested those
that were left out until they had booted, and come back. By policy all nodes of a job are put to work before its first
attempt, too; whoever has passed its checks is not asked again before a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangrun.core.actions import CheckNodes
from gangrun.core.events import NodeChecked
from gangrun.core.evidence import traits_of
from gangrun.core.model import Cure, Node, Placement, RunState, Verdict
from gangrun.core.nodes import network_test, placement, quarantine, roster, standing
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.text import one_line
from gangrun.core.versions import count

QUICK, THOROUGH = "quick", "thorough"
SUSPICIONS_MAX_COUNT = 2  # tested so often; suspected once more, a node goes as if there were no tests

COUNTS_AFTER_PASS_S = 1800.0  # a suspicion and a pass: long enough for the same failure to come again


def ask(state: RunState, names: tuple[str, ...], policy: Policy) -> tuple[CheckNodes, ...]:
    """What these nodes are asked to prove: those on trial at work, the others by policy."""
    accused = tuple(name for name in names if state.roster.nodes[name].trial and policy.test_suspects)
    others = tuple(name for name in names if name not in accused)
    rounds = network_test.rounds(state, names)
    asked = [CheckNodes(others, QUICK if policy.test_at_start else "", rounds)] if others else []
    return (*asked, *([CheckNodes(accused, THOROUGH, rounds)] if accused else []))


def ask_spares(state: RunState, policy: Policy, *names: str) -> tuple[CheckNodes, ...]:
    """RUNNING: have nodes that hold no ranks prove themselves now, if they have not; without ``names`` all of them."""
    spares = [name for name in roster.unchecked(state) if not roster.in_gang(state, name)]
    return ask(state, tuple(name for name in spares if not names or name in names), policy)


def within_s(asked: tuple[CheckNodes, ...], policy: Policy) -> float:
    """How long the answers may take."""
    kinds = {one.tests for one in asked}
    turns = 2 if THOROUGH in kinds else 1 if QUICK in kinds else 0
    meets_s = network_test.WITHIN_S if any(one.rounds for one in asked) else 0.0
    return policy.check_within_s + turns * policy.tests_within_s + meets_s


# ---- who -------------------------------------------------------------------------------------------------------------


def accused(state: RunState, verdict: Verdict, now: float, policy: Policy) -> tuple[str, ...]:
    """Suspects that a test may clear: those that would go on suspicion alone, those whose hardware was poor, and those
    of whose devices the failure itself speaks. What only a machine can cause needs no test.
    """
    if not policy.test_suspects or policy.observe or verdict.final or verdict.cure is Cure.EXCLUDE:
        return ()
    asked = (verdict.moves and verdict.cure is not Cure.WAIT) or verdict.cure is Cure.TEST  # no device is at fault then
    found = standing.recent(state.attempt.evidence.findings, now)
    poor = {one.node for one in found if one.poor and not traits_of(one.check).is_storage}
    before = standing.unfaded(state.health, now)
    stand = standing.standings(state, now)
    return tuple(
        name
        for name in verdict.suspects
        if (asked or name in poor or name in verdict.blamed)
        and before.get(name, 0) < SUSPICIONS_MAX_COUNT
        and name not in network_test.unanswered(state)
        and name in stand
        and stand[name].usable
    )


def begun(state: RunState, names: tuple[str, ...], why: str) -> RunState:
    """The state in which these nodes are on trial."""
    changed = {name: replace(state.roster.nodes[name], checked=None, trial=why) for name in names}
    return roster.with_nodes(state, changed)


def _is_on_trial(node: Node) -> bool:
    return bool(node.trial) and node.checked is None and not node.lost


def on_trial(state: RunState) -> tuple[str, ...]:
    """Those that have not answered yet; asked at each answer to the checks, and mostly there are none."""
    if not count(state.roster.nodes, _is_on_trial):
        return ()
    return tuple([name for name, node in state.roster.nodes.items() if _is_on_trial(node)])


def asked_again(state: RunState, policy: Policy) -> tuple[CheckNodes, ...]:
    """What a new supervisor asks beside whatever else goes on: it never hears what its predecessor was told."""
    return ask(state, on_trial(state), policy)


def needed(state: RunState, now: float) -> tuple[str, ...]:
    """Nodes on trial that must be waited for: without them the gang is not whole."""
    return _needed(state, on_trial(state), now)


def _needed(state: RunState, names: tuple[str, ...], now: float) -> tuple[str, ...]:
    if not names:
        return ()
    placed = placement.place_now(state, now, anew=True)
    whole = isinstance(placed, Placement) and len(placed.nodes) == state.shape.nodes_count
    return () if whole else names


def awaited(state: RunState, now: float) -> tuple[str, ...]:
    """Every node whose answer is waited for before the gang starts."""
    names, tried = roster.unchecked(state), on_trial(state)
    beside = set(tried).difference(_needed(state, tried, now))
    return tuple([name for name in names if name not in beside]) if beside else names


def awaited_count(state: RunState, now: float) -> int:
    """How many those are: after each answer this is asked, and the names only when few are left."""
    return len(awaited(state, now)) if on_trial(state) else roster.unchecked_count(state)


def in_prospect(state: RunState, now: float) -> Mapping[str, Node]:
    """The nodes as they will be if those that are waited for prove clean."""
    return {**state.roster.nodes, **{name: replace(state.roster.nodes[name], trial="") for name in needed(state, now)}}


def told(state: RunState, names: tuple[str, ...], now: float) -> str:
    """What happens to them, in words; "" where nobody is on trial."""
    if not names:
        return ""
    first = "first" if set(names) & set(needed(state, now)) else "meanwhile; other nodes take part"
    return f"; the devices of {fold(natural_sort(names))} are tested {first}"


# ---- what came out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The state after one answer, and the sentence that tells it."""

    state: RunState
    sentence: str


def answered(state: RunState, event: NodeChecked, now: float, policy: Policy) -> Answered:
    """A node on trial has answered."""
    name, was = event.node, state.roster.nodes[event.node]
    after = roster.checked(state, event)
    because = _because(name, was)
    if not event.ok:
        stays, _ = quarantine.reviewed(after, now, policy)
        return Answered(stays, f"{because}, and failed: {event.reason}")
    if event.tested:
        earlier_s = standing.SUSPICION_HALVES_S - COUNTS_AFTER_PASS_S
        sooner = {n: at - earlier_s if n == name else at for n, at in state.health.suspected_at.items()}
        sentence = f"{because}, and its devices work: {event.tested}"
        return _cleared(replace(after, health=replace(after.health, suspected_at=sooner)), name, sentence, now, policy)
    unknown = f"{because}, and could not be tested: {event.reason or 'it does not say why'}"
    if not policy.test_suspects:  # nobody asked for more than checks
        return _cleared(after, name, f"{name} {roster.checks_told(event)}", now, policy)
    if state.health.suspicion.get(name, 0) < SUSPICIONS_MAX_COUNT:
        return _cleared(after, name, f"{unknown}; that says nothing against it", now, policy)
    return _left_out(after, name, unknown, now, policy)


def _cleared(state: RunState, name: str, sentence: str, now: float, policy: Policy) -> Answered:
    state, back = quarantine.reviewed(state, now, policy, name)
    return Answered(state, f"{sentence}; {back or 'it may be used again'}")


def overdue(state: RunState, now: float, policy: Policy) -> Answered:
    """Those on trial that were waited for have not answered at all: that counts against them."""
    names, sentences = needed(state, now), []
    for name in names:
        why = f"{_because('it', state.roster.nodes[name])}, and its device test has not answered"
        failed = roster.checked(state, NodeChecked(name, False, why))
        done = _left_out(failed, name, f"{name}: {why}", now, policy)
        state = done.state
        sentences.append(done.sentence)
    return Answered(state, "; ".join(sentences))


def _because(name: str, node: Node) -> str:
    """Why it was on trial, in words."""
    if node.trial.startswith(roster.LEFT_OUT):
        return f"{name} was {node.trial}"
    return f"{name} was suspected ({node.trial})"


def _left_out(state: RunState, name: str, sentence: str, now: float, policy: Policy) -> Answered:
    """On suspicion, so only where the gang can do without it."""
    if not policy.can_requeue and not placement.can_do_without(state, [name], now):
        return Answered(state, f"{sentence}; no other node can take its place")
    state, told = quarantine.leave_out(state, [name], one_line(sentence), now, policy)
    return Answered(state, f"{sentence}; {told}")
