"""Which nodes the gang may not use, why and until when.

Exclusions are capped per hour, since a fault that "hits" many nodes is more often a fault of the judge. Whether the
gang can do without a node is ``placement``'s question; who is guilty is ``blame``'s.

A fatal finding bars its node at once (``roster``). When all answers are in, ``weigh`` excludes the node for good, so
that the next job does without it too. The same finding on many nodes at once points at a shared service: wait, check
again, exclude nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gangrun.core.evidence import NodeFinding
from gangrun.core.model import Exclusion, RunState
from gangrun.core.nodes import standing
from gangrun.core.nodes.standing import StandingKind, active
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.text import counted, listed, one_line

WEEK_S = 7 * 24 * 3600.0
HOUR_S = 3600.0
CAP_MIN_COUNT = 2
RETURNS_MAX_COUNT = 2  # a boot that has not cured it twice will not cure it
CAP_NODES_PER_EXCLUSION = 20  # one in twenty is 5 %


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The exclusions after, which nodes went in, which the cap kept out, and the sentence that says so."""

    excluded: Mapping[str, Exclusion]
    taken: tuple[str, ...]
    refused: tuple[str, ...]
    sentence: str


def cap_count(nodes_count: int, policy: Policy) -> int:
    """How many nodes may be excluded within an hour."""
    if policy.exclusions_per_hour_max_count is not None:
        return policy.exclusions_per_hour_max_count
    return max(CAP_MIN_COUNT, nodes_count // CAP_NODES_PER_EXCLUSION)


def exclude(
    excluded: Mapping[str, Exclusion],
    names: Iterable[str],
    reason: str,
    now: float,
    policy: Policy,
    nodes_count: int,
    hardware: Iterable[str] = (),
    boots: Mapping[str, str] | None = None,
    resets: Iterable[str] = (),
    silent: Iterable[str] = (),
) -> Quarantined:
    """Leave ``names`` out from now on, as far as the cap allows; what is over is dropped on the way. On those that are
    among ``hardware`` something broke; for those in ``boots`` only another boot than this one counts as a cure, and for
    those in ``resets`` clean checks, too. Against those in ``silent`` there is nothing but that nobody heard them.
    """
    broken, boots, cured_by_reset = frozenset(hardware), boots or {}, frozenset(resets)
    unheard = frozenset(silent)
    after, out = dict(kept(excluded, now)), active(excluded, now)
    cap = cap_count(nodes_count, policy)
    recently = {name for name, entry in after.items() if entry.since > now - HOUR_S and not entry.drained_by}
    recent = len(recently)
    taken: list[str] = []
    refused: list[str] = []
    for name in dict.fromkeys(names):
        old = after.get(name)
        boot_id, returns_count = boots.get(name, ""), old.returns_count if old is not None else 0
        if old is not None and name in out:
            until = max(old.until, now + policy.exclusion_s)
            shows = (name in cured_by_reset or not boot_id) and (old.shows_reset or not old.boot_id)
            boot_id = boot_id or old.boot_id
            seen_at, shows = (now, shows) if boot_id else (0.0, False)
            still = old.silent and name in unheard
            after[name] = Exclusion(
                reason, old.since, until, name in broken, boot_id, returns_count, seen_at, shows, silent=still
            )
            taken.append(name)
        elif recent < cap:
            until = now + policy.exclusion_s
            shows = bool(boot_id) and name in cured_by_reset
            after[name] = Exclusion(
                reason, now, until, name in broken, boot_id, returns_count, shows_reset=shows, silent=name in unheard
            )
            recent += name not in recently
            taken.append(name)
        else:
            refused.append(name)
    to_boot = [name for name in taken if after[name].boot_id]
    cured = "until it has booted and passed its checks, at most for a week"
    told = [f"{fold(to_boot)} excluded {cured}"] if to_boot else []
    if len(taken) > len(to_boot):
        told.append(f"{fold(set(taken) - set(to_boot))} excluded for {policy.exclusion_s / HOUR_S:g} h")
    if refused:
        told.append(
            f"{fold(refused)} is blamed but stays in use: at most {counted(cap, 'node')} may be excluded within an hour"
        )
    return Quarantined(after, tuple(taken), tuple(refused), "; ".join(told))


def leave_out(
    state: RunState,
    names: Iterable[str],
    reason: str,
    now: float,
    policy: Policy,
    fatal: Collection[NodeFinding] = (),
    silent: Collection[str] = (),
) -> tuple[RunState, str]:
    """Exclude these nodes of the run, and say what came of it; "" if there are none. ``fatal``: what was found;
    ``silent``: nodes that were not heard, of which those count against which nothing was found.
    """
    boots = {found.node: found.boot_id for found in fatal if found.boot_id}
    broken, count = {found.node for found in fatal}, len(state.roster.nodes)
    resets, unheard = cured_by_reset(fatal), set(silent) - broken
    done = exclude(state.health.excluded, names, reason, now, policy, count, broken, boots, resets, unheard)
    return replace(state, health=replace(state.health, excluded=done.excluded)), done.sentence


def kept(excluded: Mapping[str, Exclusion], now: float) -> Mapping[str, Exclusion]:
    """What is in force, and for a week what is not to be forgotten: which boot was bad, who was taken back before."""
    return {
        name: entry
        for name, entry in excluded.items()
        if now < entry.until or ((entry.boot_id or entry.returns_count) and now < entry.since + WEEK_S)
    }


def cured_by_reset(fatal: Collection[NodeFinding]) -> frozenset[str]:
    """Nodes that a reset cures, and whose checks would see that there was none: whatever broke needs no more than that,
    and of each device that broke something shows as long.
    """
    shown = {(one.node, one.place) for one in fatal if one.shows_reset}
    other = {one.node for one in fatal if (one.node, one.place) not in shown}
    more = {one.node for one in fatal if one.needs != "reset" and not one.shows_reset}
    return frozenset(node for node, _ in shown) - other - more


def if_booted(excluded: Mapping[str, Exclusion], now: float) -> tuple[tuple[str, float], ...]:
    """Nodes in force that a boot may cure, each with how long ago it was last seen in the boot that was bad."""
    return tuple(
        (name, now - max(entry.since, entry.seen_at))
        for name, entry in sorted(active(excluded, now).items())
        if entry.boot_id and entry.returns_count < RETURNS_MAX_COUNT
    )


def comes_back(entry: Exclusion | None, boot_id: str) -> bool:
    """Is this a node that is out until it has booted, in another boot, and may that be its cure? Or one whose checks
    would see that its GPU has not been reset. Or one that was only silent, and is heard.
    """
    if entry is None or entry.returns_count >= RETURNS_MAX_COUNT:
        return False
    return entry.silent or bool(entry.boot_id and (entry.boot_id != boot_id or entry.shows_reset))


def reviewed(state: RunState, now: float, policy: Policy, passed: str = "") -> tuple[RunState, str]:
    """Look anew at nodes of this job that are out until they have booted, or are heard again, and say what came of it.
    Who has and passed its checks is taken back, so often at most; who has not booted stays out when its time is up, for
    a week at most.
    ``passed``: who has just passed them, so that what a check would still see is known to be gone.
    """
    after, back, stay = dict(state.health.excluded), list[str](), list[str]()
    for name, entry in kept(state.health.excluded, now).items():
        node = state.roster.nodes.get(name)
        if node is None or node.lost or not (entry.boot_id or entry.silent):
            continue
        if entry.silent:
            if name == passed and comes_back(entry, node.boot_id):
                after[name] = replace(entry, until=now, silent=False, returns_count=entry.returns_count + 1)
                why = one_line(entry.reason)
                back.append(f"{name} is heard again and passed its checks, so it is used again ({why})")
            continue
        if node.boot_id == entry.boot_id or node.checked is False:  # from now on it is this boot that was bad
            after[name] = replace(entry, boot_id=node.boot_id, seen_at=now)
        booted = node.boot_id != entry.boot_id
        if comes_back(entry, node.boot_id) and node.checked is True and (booted or name == passed):
            returns_count = entry.returns_count + 1
            after[name] = replace(
                entry, until=now, hardware=False, boot_id="", returns_count=returns_count, shows_reset=False
            )
            how = "has booted anew" if booted else "was reset, as its sign is gone,"
            back.append(f"{name} {how} and passed its checks, so it is used again ({one_line(entry.reason)})")
        elif now >= entry.until:
            after[name] = replace(after[name], until=min(now + policy.exclusion_s, entry.since + WEEK_S))
            why = "has not booted since" if node.boot_id == entry.boot_id else "has booted, which did not cure it"
            stay.append(f"{name} {why}, so it stays excluded ({one_line(entry.reason)})")
    if after != state.health.excluded:
        state = replace(state, health=replace(state.health, excluded=after))
    return state, listed(back + stay)


def taken_back(before: Mapping[str, Exclusion], after: Mapping[str, Exclusion]) -> tuple[str, ...]:
    """Nodes that were just taken back before their time was up; of one that was only silent nobody else knew."""
    old = {name: entry for name, entry in before.items() if not entry.silent}
    return tuple(name for name, entry in after.items() if name in old and entry.returns_count > old[name].returns_count)


def newly_broken(before: Mapping[str, Exclusion], after: Mapping[str, Exclusion]) -> Mapping[str, str]:
    """Nodes that were just left out because something broke there, each with the reason."""
    return {name: out.reason for name, out in after.items() if out.hardware and before.get(name) != out}


@dataclass(frozen=True, slots=True)
class Weighed:
    """The state after, a sentence ("" where there was nothing to weigh), and whether to wait and look again."""

    state: RunState
    sentence: str = ""
    look_again: bool = False


def weigh(state: RunState, now: float, policy: Policy) -> Weighed:
    """Leave out the nodes that were found broken since the last attempt."""
    stand = standing.standings(state, now)
    barred = {name: one.finding for name, one in stand.items() if one.finding and one.kind is not StandingKind.EXCLUDED}
    if not barred:
        return Weighed(state)
    if not state.roster.waited_for_nodes and (shared := _shared(barred, state, policy)):
        return _unbarred(state, shared, barred, policy)
    if not policy.can_requeue and len(state.roster.nodes) < 2:
        return Weighed(state)  # the only node there is: it is not used now, and whoever resumes the run has it checked
    told = []
    for name in natural_sort(barred):
        found = barred[name]
        reason = f"{one_line(found.sentence)} ({found.check})"
        state, sentence = leave_out(state, [name], reason, now, policy, [found])
        told.append(f"{name}: {reason}; {sentence}")
    more = f"; and {counted(len(told) - 3, 'node')} more" if len(told) > 3 else ""
    return Weighed(state, "; ".join(told[:3]) + more)


def _shared(barred: Mapping[str, NodeFinding], state: RunState, policy: Policy) -> tuple[str, ...]:
    shared = standing.shared_by_check(barred.values(), len(state.roster.nodes), policy).values()
    return max(shared, key=len, default=())


def _unbarred(state: RunState, shared: tuple[str, ...], barred: Mapping[str, NodeFinding], policy: Policy) -> Weighed:
    """Each of them is asked again, once the wait is over."""
    nodes = {**state.roster.nodes}
    for name in shared:
        nodes[name] = replace(nodes[name], checked=None, check_reason="", found=None)
    first = barred[shared[0]]
    sentence = (
        f"{counted(len(shared), 'node')} of {len(state.roster.nodes)} ({fold(shared)}) report the same fault at once,"
        " so a service that they share is at fault and no node is excluded:"
        f" {one_line(first.sentence)} ({first.check}); looking again in {policy.shared_fault_wait_s:.0f} s"
    )
    roster = replace(state.roster, nodes=nodes, waited_for_nodes=True)
    return Weighed(replace(state, roster=roster), sentence, look_again=True)
