"""A second request to save while ranks are at the first: all ranks still save the same step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangrun.agent.ranks.stop import ask_to_save, hold_steps
from gangrun.wire import progress
from gangrun.wire.progress import StepRequest


class Script:
    """What a rank's script writes into its slot."""

    def __init__(self, path: Path) -> None:
        self.ints = progress.attach(str(path)).ints
        self.ints[progress.W_SAVES_ON_STOP] = 1

    def does(self, step: int) -> None:
        self.ints[progress.W_STEP] = step

    def saved(self, step: int) -> None:
        self.ints[progress.W_SAVED] = step + 1
        self.ints[progress.W_HANDLED] = self.ints[progress.W_REQUESTS] >> progress.GENERATION_SHIFT

    @property
    def asked(self) -> tuple[int, StepRequest, int]:
        """Step to save, what else, and which request that is."""
        words = self.ints[progress.W_REQUESTS]
        what = StepRequest(words & ((1 << progress.GENERATION_SHIFT) - 1))
        return self.ints[progress.W_SAVE_STEP], what, words >> progress.GENERATION_SHIFT


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[list[Any], list[Script]]]:
    """Two ranks that have done steps 4 and 5 and read requests."""
    slots = [progress.ProgressPage(str(tmp_path / f"slot-{rank}"), rank) for rank in range(2)]
    scripts = [Script(tmp_path / f"slot-{rank}") for rank in range(2)]
    for step, script in zip((4, 5), scripts, strict=True):
        script.does(step)
    yield [SimpleNamespace(rank=rank, slot=slot) for rank, slot in enumerate(slots)], scripts
    for slot in slots:
        slot.close()


SAVES_AND_STOPS = StepRequest.CHECKPOINT_NOW | StepRequest.STOP_AFTER_STEP


@pytest.mark.parametrize("step", [-1, 6])
def test_a_stop_joins_the_save_that_one_rank_has_done_and_another_not(ranks: Any, step: int) -> None:
    targets, scripts = ranks
    first = ask_to_save(targets, -1, StepRequest.NOTHING)
    assert [one.asked for one in scripts] == [(6, StepRequest.CHECKPOINT_NOW, first[0])] * 2
    scripts[0].does(6)
    scripts[0].saved(6)
    assert ask_to_save(targets, step, StepRequest.STOP_AFTER_STEP) == first, "no rank is told twice"
    assert [one.asked for one in scripts] == [(6, SAVES_AND_STOPS, first[0])] * 2


def test_ranks_that_are_to_save_are_not_held_but_tell_that_step(ranks: Any) -> None:
    targets, scripts = ranks
    first = ask_to_save(targets, 9, StepRequest.NOTHING)
    assert hold_steps(targets) == 8, "so that 9 is what all save"
    assert [one.asked for one in scripts] == [(9, StepRequest.CHECKPOINT_NOW, first[0])] * 2


def test_a_request_after_a_save_is_a_new_one(ranks: Any) -> None:
    targets, scripts = ranks
    first = ask_to_save(targets, -1, StepRequest.NOTHING)
    for script in scripts:
        script.does(7)
        script.saved(6)
    assert hold_steps(targets) == 7
    again = ask_to_save(targets, -1, StepRequest.NOTHING)
    assert again[0] > first[0]
    assert [one.asked for one in scripts] == [(8, StepRequest.CHECKPOINT_NOW, again[0])] * 2
