"""Mutants of protocol sections 6 and 10: events, run clock, budget, exclusions. Next: ``judgement``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gangrun.agent.brain import line
from gangrun.core.machine import lifecycle
from gangrun.core.nodes import meetings, network_test, placement, quarantine
from gangrun.core.recovery import budget, choose
from gangrun.sim.body.agent import SimAgent
from gangrun.supervisor import agent_messages, heartbeats, opening, takeover
from tests.sim.canaries.mutation import Swaps, mutant


@mutant("an event counts once", "6", "I12")
def events_count_twice() -> Swaps:
    """No event number is remembered."""
    return (
        (agent_messages, "unheard_events", lambda events, known: list(events)),
        (lifecycle, "mark", lambda state, stamped: state),
        (lifecycle, "mark", lambda state, stamped: state),
    )


@mutant("the marks of what was counted are in the snapshot", "6", "I12")
def snapshot_without_marks() -> Swaps:
    """A new term does not know which events the last one counted."""

    def replayed(history: Any) -> Any:
        state = original(history)
        return None if state is None else replace(state, marks={})

    original = takeover._replayed
    return ((takeover, "_replayed", replayed),)


@mutant("an event of another attempt is ignored", "6", "I12")
def any_attempt_counts() -> Swaps:
    """Whatever attempt it is of, it counts for the newest."""
    return ((lifecycle, "_OF_AN_ATTEMPT", ()),)


@mutant("an event of an agent that was replaced is ignored", "6", "I12")
def replaced_agents_count() -> Swaps:
    """Late beats of an agent that was replaced are read like those of the new one, in the table and by the filter."""

    def beat(self: Any, said: Any, now: float) -> Any:
        row = self.rows.get(said.node)
        if row is not None and row.incarnation != said.incarnation and said.events:
            return replace(row, hello=msgspec.structs.replace(row.hello, incarnation=said.incarnation))
        return original(self, said, now)

    def hear(self: Any, line: Any, message: Any) -> None:
        heard(self, line, message)

    def stale(state: Any, stamped: Any) -> str:
        why = filtered(state, stamped)
        return "" if "replaced" in why else why

    original, heard, filtered = heartbeats.Heartbeats.beat, SimAgent.hear, lifecycle.stale
    return (heartbeats.Heartbeats, "beat", beat), (lifecycle, "stale", stale)


@mutant("an event is acked as journalled only once it is durable", "6", "I12", "I14")
def acked_before_the_journal() -> Swaps:
    """What the live state knows is acked, durable or not."""

    def journalled(self: Any, row: Any) -> int:
        incarnation, seq = self._supervisor.state.marks.get(row.node, ("", 0))
        return seq if incarnation == row.incarnation else 0

    return ((agent_messages.AgentMessages, "_journalled", journalled),)


@mutant("agents keep events until they are journalled", "6", "I12", "I14")
def forgets_once_said() -> Swaps:
    """What was said once is dropped."""

    def page(self: Any) -> Any:
        said = original(self)
        self.journalled(self.last_seq)
        return said

    original = line.Outbox.page
    return ((line.Outbox, "page", page),)


@mutant("the run clock never goes back", "6", "I10")
def run_clock_is_the_wall() -> Swaps:
    """At a term's start it is the wall clock, whatever was recorded."""
    clock = opening.RunClock
    return ((clock, "starting", staticmethod(lambda last, wall, boot, quiet_s: clock(wall, boot))),)


@mutant("the run clock never jumps ahead", "6", "I10")
def run_clock_believes_the_wall() -> Swaps:
    """At a term's start it goes to the wall clock, however long ago the last record was written."""
    clock = opening.RunClock
    return ((clock, "starting", staticmethod(lambda last, wall, boot, quiet_s: clock(max(last, wall), boot))),)


@mutant("each cause has a budget of restarts", "10", "I14", "state")
def budget_never_runs_out() -> Swaps:
    """Each failure is the first."""
    original = budget.charge

    def charge(spent: Any, *args: Any, **kwargs: Any) -> Any:
        return original(replace(spent, used={}, sightings=()), *args, **kwargs)

    return tuple((module, "charge", charge) for module in (budget, choose) if hasattr(module, "charge"))


@mutant("the budget is refilled only above the highest checkpoint or observed step", "10", "I14", "I10")
def any_progress_refills() -> Swaps:
    """Every step refills it, also those that were made before."""
    original = budget.refill
    return ((budget, "refill", lambda spent, step, known_step: original(spent, step, -1)),)


@mutant("exclusions are capped", "10", "I9")
def excludes_without_a_cap() -> Swaps:
    """As many nodes are left out as are blamed."""
    original = quarantine.exclude

    def exclude(excluded: Any, names: Any, reason: str, now: float, policy: Any, nodes_count: int, *more: Any) -> Any:
        uncapped = replace(policy, exclusions_per_hour_max_count=10**6)
        return original(excluded, names, reason, now, uncapped, nodes_count, *more)

    return ((quarantine, "exclude", exclude),)


@mutant("nodes whose ranks lost a connection meet before the next attempt", "10", "I14")
def nobody_meets() -> Swaps:
    """The next attempt starts in place."""
    return ((network_test, "begun", lambda state, *more: (state, "")),)


@mutant("a failed pair accuses two nodes, and only one that fails with all goes", "10", "I9")
def first_of_a_failed_pair_goes() -> Swaps:
    """The first node of the first pair that failed goes."""

    def named(first: Any, *args: Any, **kwargs: Any) -> Any:
        bad = [one.pair[0] for one in first if one.error]
        return meetings.Conclusion(tuple(meetings.Named(name, "it failed", True) for name in bad[:1]), (), "it failed")

    return ((meetings, "conclusion", named),)


@mutant("an excluded node is in no attempt", "10", "I9")
def places_on_excluded_nodes() -> Swaps:
    """Ranks are placed on whatever node is there."""
    original = placement.place
    return (
        (placement, "place", lambda nodes, excluded, shape, prefer=None: original(nodes, {}, shape, prefer=prefer)),
    )
