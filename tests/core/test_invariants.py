"""Each invariant holds of a good state and catches a broken one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core import invariants
from gangrun.core.model import (
    After,
    Attempt,
    AttemptRecord,
    BrokenSlot,
    Budget,
    Deadline,
    Exclusion,
    Node,
    Phase,
    Placement,
    Roster,
    RunState,
    SavedProgress,
    Seat,
    Shape,
    Slot,
    StartStage,
    Timers,
    Underway,
)
from gangrun.core.nodes.placement import seated
from gangrun.core.policy import Policy

POLICY = Policy()
SHAPE = Shape(2, 2, 2, 1)
NODES = {name: Node(name, "i", "b", 2) for name in ("n1", "n2", "n3")}
DUE = Timers({"x": Deadline(9.0, 1)})
RUNNING = RunState(
    run="r",
    shape=SHAPE,
    phase=Phase.RUNNING,
    term=2,
    attempt=Attempt(number=1, placement=seated(["n1", "n2"], SHAPE)),
    roster=Roster(nodes=NODES),
    attempts=(AttemptRecord(0, "j", ("n1",), 0.0, ended=3.0), AttemptRecord(1, "j", ("n1", "n2"), 4.0)),
    checkpoints=SavedProgress(best_step=10, observed_step=20),
    updated_at=100.0,
)
CHOOSING = replace(
    RUNNING,
    phase=Phase.STARTING,
    underway=replace(RUNNING.underway, stage=StartStage.CHOOSING),
    attempt=replace(RUNNING.attempt, number=2),
    timers=DUE,
)
LAUNCHING = replace(CHOOSING, underway=replace(CHOOSING.underway, stage=StartStage.LAUNCHING))


def broken(state: RunState, previous: RunState | None = None) -> str:
    return " / ".join(invariants.check(previous, state, POLICY))


def test_good_states_are_good() -> None:
    stopping = replace(
        RUNNING,
        phase=Phase.STOPPING,
        underway=replace(RUNNING.underway, after=After.JUDGE),
        timers=DUE,
    )
    done = replace(RUNNING, phase=Phase.SUCCEEDED, attempt=replace(RUNNING.attempt, placement=None))
    for before, after in [
        (None, RUNNING),
        (RUNNING, RUNNING),
        (RUNNING, stopping),
        (RUNNING, CHOOSING),
        (CHOOSING, LAUNCHING),
        (LAUNCHING, LAUNCHING),
        (RUNNING, done),
        (replace(LAUNCHING, attempt=replace(LAUNCHING.attempt, number=1)), LAUNCHING),
    ]:
        assert broken(after, before) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": Phase.FAILED, "timers": DUE}, "FAILED is the end but has deadlines: x"),
        ({"phase": Phase.WAITING}, "I14: WAITING has no deadline"),
        ({"phase": Phase.STARTING, "timers": DUE}, "STARTING with stage none"),
        ({"underway": Underway(stage=StartStage.SEALING)}, "RUNNING with stage sealing"),
        ({"phase": Phase.STOPPING, "timers": DUE}, "STOPPING with after none"),
        ({"underway": Underway(after=After.CANCEL)}, "RUNNING with after cancel"),
        (
            {"attempts": (AttemptRecord(0, "j", (), 0.0), AttemptRecord(1, "j", (), 1.0))},
            "attempts [0] never ended although later ones began",
        ),
        (
            {"attempts": (AttemptRecord(1, "j", (), 0.0, 1.0), AttemptRecord(1, "j", (), 1.0))},
            "I10: attempt numbers do not rise: [1, 1]",
        ),
        ({"budget": Budget(used={"signal": 5, "hang": 5})}, "10 restarts since the last progress"),
        (
            {"attempt": Attempt(1, Placement((Seat(Slot("n1", 0), 0, 1), Seat(Slot("n1", 1), 0, 1)), 2))},
            "ranks 0 to 1 once each",
        ),
        ({"attempt": Attempt(1, Placement((Seat(Slot("n1", 0), 0, 1),), 2))}, "ranks 0 to 1 once each"),
        (
            {"attempt": Attempt(1, Placement((Seat(Slot("n1", 0), 0, 1), Seat(Slot("n1", 0), 1, 1)), 2))},
            "a slot holds two seats",
        ),
        (
            {
                "attempt": Attempt(
                    1, Placement((Seat(Slot("n1", 0), 0, 1), Seat(Slot("n2", 0), 1, 1), Seat(Slot("n1", 1), 2, 1)), 3)
                )
            },
            "the ranks of a node are not contiguous",
        ),
    ],
)
def test_one_state_alone(changes: dict[str, Any], words: str) -> None:
    assert words in broken(replace(RUNNING, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "other"}, "run r became other"),
        ({"term": 1}, "I10: term went back from 2 to 1"),
        ({"attempt": Attempt(0)}, "I10: attempt went back"),
        ({"checkpoints": SavedProgress(best_step=9, observed_step=20)}, "I10: best_step went back"),
        ({"checkpoints": SavedProgress(best_step=10, observed_step=19)}, "I10: observed_step went back"),
        ({"updated_at": 99.0}, "I10: updated_at went back"),
        ({"budget": Budget(total_count=-1)}, "I10: the count of restarts went back"),
    ],
)
def test_what_never_goes_back(changes: dict[str, Any], words: str) -> None:
    assert words in broken(replace(RUNNING, **changes), RUNNING)


def test_exclusion_cap() -> None:
    def out(*since: float) -> RunState:
        return replace(
            RUNNING,
            health=replace(RUNNING.health, excluded={f"n{i}": Exclusion("x", at, 1e9) for i, at in enumerate(since)}),
        )

    assert broken(replace(out(98.0, 99.0), updated_at=5000.0), RUNNING) == ""
    assert "I9: 3 nodes excluded within an hour, the cap is 2" in broken(out(97.0, 98.0, 99.0), out(97.0, 98.0))
    assert broken(replace(out(97.0, 98.0, 5000.0), updated_at=5000.0), RUNNING) == ""
    assert broken(out(97.0, 98.0, 99.0), out(97.0, 98.0, 99.0)) == "", "said when it happens, not for ever after"


def test_nobody_is_launched_on_a_node_that_may_not_be_used() -> None:
    assert "without a placement" in broken(
        replace(LAUNCHING, attempt=replace(LAUNCHING.attempt, placement=None)), CHOOSING
    )
    guilty = {"n2": Exclusion("XID 79", 0.0, 1000.0)}
    assert "launched on n2, which is excluded (XID 79)" in broken(
        replace(LAUNCHING, health=replace(LAUNCHING.health, excluded=guilty)),
        replace(CHOOSING, health=replace(CHOOSING.health, excluded=guilty)),
    )
    over = replace(LAUNCHING, health=replace(LAUNCHING.health, excluded={"n2": Exclusion("XID 79", 0.0, 100.0)}))
    assert broken(over, CHOOSING) == "", "expired just now"
    silent = {**NODES, "n1": replace(NODES["n1"], silent_since=90.0)}
    assert "launched on n1, which is silent" in broken(
        replace(LAUNCHING, roster=replace(LAUNCHING.roster, nodes=silent)), CHOOSING
    )
    assert broken(replace(LAUNCHING, roster=replace(LAUNCHING.roster, nodes=silent)), LAUNCHING) == "", (
        "silent later is no fault of the start"
    )
    assert "launched on n2, which is not in this job" in broken(
        replace(LAUNCHING, roster=replace(LAUNCHING.roster, nodes={name: NODES[name] for name in ("n1", "n3")})),
        CHOOSING,
    )


def test_no_attempt_is_launched_twice() -> None:
    begun = (*RUNNING.attempts[:-1], replace(RUNNING.attempts[-1], ended=5.0), AttemptRecord(2, "j", ("n1", "n2"), 6.0))
    stopped = replace(
        RUNNING,
        phase=Phase.STOPPING,
        underway=replace(RUNNING.underway, after=After.JUDGE),
        timers=DUE,
        attempt=replace(RUNNING.attempt, number=2),
        attempts=begun,
    )
    assert "I10: attempt 2 is being launched twice" in broken(replace(LAUNCHING, attempts=begun), stopped)
    fresh = replace(stopped, attempts=(*begun[:-1], replace(begun[-1], nodes=())))
    assert broken(replace(LAUNCHING, attempts=begun), fresh) == ""


def test_no_rank_is_launched_on_a_broken_slot() -> None:
    node = replace(NODES["n2"], slots_count=3, broken_slots=(BrokenSlot(1, "gpu 1", "lost"),))
    state = replace(LAUNCHING, roster=Roster(nodes={**NODES, "n2": node}))
    assert "I9: attempt 2 is being launched on slot 1, which is broken" in broken(state, CHOOSING)
