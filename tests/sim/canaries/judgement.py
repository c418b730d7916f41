"""Mutants of how failures are judged: what ranks wrote, the settle, and the rank that is moved. Next: ``jobs``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangrun.core.machine import running, transitions
from gangrun.core.nodes import device_test, placement, quarantine, race
from gangrun.core.recovery import blame, choose, error_rules, move, self_checks
from tests.sim.canaries.mutation import Swaps, mutant


@mutant("a line that ranks on several nodes wrote tells nothing of one of them", "10", "I9")
def lines_are_not_compared() -> Swaps:
    """What stands on the stderr of the first rank that falls counts, whoever else wrote it."""
    return ((error_rules, "compared", lambda exits, stopped: tuple(map(error_rules.marked, exits))),)


@mutant("a line does not explain what ended ranks on other nodes without it", "10", "I9")
def a_line_explains_what_others_share() -> Swaps:
    """Ends are not compared, lines are."""
    return ((error_rules, "own_end", lambda died: ""),)


@mutant("a GPU that broke gets no rank again", "9", "I9")
def broken_slots_get_ranks() -> Swaps:
    """Ranks are given to the first slots of a node, broken or not."""
    original = placement.seated
    return ((placement, "seated", lambda names, shape, nodes=None: original(names, shape)),)


@mutant("ranks that fail at one moment write their own errors before SIGTERM", "10", "I9")
def no_settle() -> Swaps:
    """SIGTERM comes as soon as one has failed."""
    original = transitions.stop_or_note

    def stop(state: Any, now: float, policy: Any, reason: str, evidence: Any, *_: float, **how: bool) -> Any:
        return original(state, now, policy, reason, evidence, **how)

    return ((running, "stop_or_note", stop),)


@mutant("a rank that fell first twice is moved before its node is blamed", "10", "I9")
def who_falls_first_twice_goes() -> Swaps:
    """Its node is excluded the second time."""

    def again(verdict: Any, suspicion: Any, scene: Any, *, is_poor: bool) -> Any:
        known = tuple(name for name in verdict.suspects if suspicion.get(name, 0) > 0)
        return replace(verdict, blamed=known) if known else original(verdict, suspicion, scene, is_poor=is_poor)

    original = blame._fell_first_again
    return ((blame, "_fell_first_again", again),)


@mutant("if a moved rank falls again the first node is innocent", "10", "I9")
def a_moved_rank_proves_its_node_guilty() -> Swaps:
    """Wherever the rank falls next, the node that it left is excluded."""

    def compared(verdict: Any, moved: Any, placement: Any, suspicion: Any) -> Any:
        told = original(verdict, moved, placement, suspicion)
        return told if told is None or not told.final else replace(verdict, blamed=(moved.node,))

    original = move.compared
    return ((move, "compared", compared),)


@mutant("if another rank falls on the node that the moved one left, the node is at fault", "10", "I14")
def a_move_has_no_outcome() -> Swaps:
    """What happens after a move is judged as if nobody had been moved."""
    return ((move, "compared", lambda *seen: None), (blame, "_is_open", lambda *seen: False))


@mutant("a suspicion outlives a test that was passed", "10", "I14")
def a_pass_ends_the_suspicion() -> Swaps:
    """A device that passes its test was never suspected."""
    return ((device_test, "COUNTS_AFTER_PASS_S", 0.0),)


@mutant("a verdict that ends the run excludes nobody", "10", "I9")
def excludes_as_the_run_ends() -> Swaps:
    """Whoever is suspected is left out of the run that ends."""

    def conclude(judged: Any, now: float, policy: Any) -> Any:
        if judged.verdict.final or not judged.ruling.allowed:
            names = judged.verdict.suspects + judged.verdict.cleared
            state, _ = quarantine.leave_out(judged.state, names, judged.sentence, now, policy)
            judged = replace(judged, state=state)
        return original(judged, now, policy)

    original = choose._conclude
    return ((choose, "_conclude", conclude),)


@mutant("what was saved since copies agreed last is not resumed from", "10", "I19")
def keeps_what_differs() -> Swaps:
    """All ranks are stopped for a divergence, and no checkpoint is condemned."""

    def noted(state: Any, *how: Any) -> Any:
        after = original(state, *how)
        return replace(after, checkpoints=state.checkpoints)

    original = self_checks.noted
    return ((self_checks, "noted", noted),)


@mutant("of two copies that differ either may be right, so no node is blamed", "10", "I9")
def blames_the_second_of_two() -> Swaps:
    """The node of the higher rank goes."""

    def verdict(found: Any, placement: Any) -> Any:
        judged = original(found, placement)
        return replace(judged, blamed=judged.suspects[-1:]) if len(judged.suspects) > 1 else judged

    original = self_checks.verdict
    return ((self_checks, "verdict", verdict),)


@mutant("a node whose ranks are no faster on the spare is innocent", "10", "I9")
def whoever_was_raced_is_slow() -> Swaps:
    """The node that the ranks left stays set aside, whatever their speed on the spare is."""
    return ((race, "bound", lambda race, policy: float("-inf")),)
