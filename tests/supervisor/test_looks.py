"""When the checkpoint directory is looked into: the loop asks as ``Looks`` says."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.model import Phase, RunState, Shape
from gangrun.sim.ports_in_memory import HandCheckpoints
from gangrun.supervisor.looks import NEVER, Looks

WAITS = RunState(run="r", shape=Shape(2, 2, 1, 1), best_step=4)
RUNS = replace(WAITS, phase=Phase.RUNNING, attempt=0)
SAVES = replace(RUNS, phase=Phase.STOPPING, saving=True)


def looks(every_s: float = 10.0, state: RunState = WAITS) -> tuple[Looks, list[tuple[str, int]]]:
    checkpoints = HandCheckpoints(post=lambda item: None)
    return Looks(checkpoints, every_s, state, 100.0), checkpoints.asked


def test_now_and_then_while_ranks_train_and_often_while_all_wait_for_a_save() -> None:
    made, asked = looks()
    assert made.due(WAITS) == NEVER
    made.follow(WAITS, RUNS, 101.0)
    assert made.due(RUNS) == 111.0
    made.look(RUNS, 110.0)
    assert asked == []
    made.look(RUNS, 111.0)
    assert (asked, made.due(RUNS)) == ([("look", 4)], 121.0)
    made.follow(RUNS, SAVES, 112.0)
    assert (asked.pop(), made.due(SAVES)) == (("await save", -1), 113.0)
    made.follow(SAVES, SAVES, 112.5)
    made.look(SAVES, 113.0)
    assert (asked, made.due(SAVES)) == ([("look", 4), ("look", 4)], 114.0)
    assert made.due(replace(SAVES, saving=False)) == NEVER


def test_a_supervisor_that_takes_over_meanwhile_does_the_same() -> None:
    made, asked = looks(state=SAVES)
    assert (asked, made.due(SAVES)) == ([("await save", -1)], 101.0)


def test_without_a_directory_never() -> None:
    made, asked = looks(every_s=0.0)
    made.follow(WAITS, RUNS, 101.0)
    made.follow(RUNS, SAVES, 102.0)
    made.look(SAVES, 200.0)
    assert asked == [] and made.due(RUNS) == made.due(SAVES) == NEVER
