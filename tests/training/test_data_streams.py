"""Streams of stateful loaders: each goes on where it stood, on as many ranks, fewer or more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

from gangrun import DataStreams
from tests.training.harness import run_program


def trained(folder: Path, phases: list[tuple[int, int, int]]) -> list[list[Any]]:
    """(step, stream, samples), in order."""
    folder.mkdir()
    told = run_program("streams.py", json.dumps(phases), folder).splitlines()
    return sorted((json.loads(line) for line in told), key=lambda row: row[:2])


def each_once(rows: list[list[Any]]) -> bool:
    """Is each sample met once in each of two epochs?"""
    epochs = [sorted(sample for row in rows if row[0] // 12 == epoch for sample in row[2]) for epoch in (0, 1)]
    return epochs == [list(range(96))] * 2


@pytest.mark.processes
@pytest.mark.slow
def test_restart_shrink_and_growth_change_nothing_of_what_is_trained_on(tmp_path: Path) -> None:
    """12 steps an epoch; ranks die three times in the first one, and once in the second."""
    plain = trained(tmp_path / "plain", [(4, -1, 2)])
    changed = trained(tmp_path / "changed", [(4, 3, 2), (2, 7, 2), (1, 10, 2), (1, 14, 2), (4, -1, 2)])
    assert changed == plain and each_once(plain)
    assert [row[:2] for row in plain] == [[step, stream] for step in range(24) for stream in range(4)]


@pytest.mark.processes
def test_a_save_at_the_very_end_of_an_epoch_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """torchdata may draw another order for the next epoch then, if the loader has no workers."""
    assert each_once(trained(tmp_path / "changed", [(4, 11, 0), (2, -1, 0)]))


class Letters:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        while self.at < len(self.text):
            self.at += 1
            yield self.text[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.at = state_dict["at"]


def test_any_loader_with_a_state_will_do_and_another_number_of_streams_will_not() -> None:
    def make(stream: int, streams: int) -> Letters:
        return Letters("abcdefgh"[stream::streams])

    one = DataStreams(make, 2)
    steps = iter(one)
    assert [next(steps), next(steps)] == [["a", "b"], ["c", "d"]]
    state = one.state_dict()
    other = DataStreams(make, 2)
    other.load_state_dict(state)
    assert list(other) == [["e", "f"], ["g", "h"]]
    assert next(iter(other)) == ["a", "b"]
    with pytest.raises(ValueError, match="saved with 2 streams, and now there are 4"):
        DataStreams(make, 4).load_state_dict(state)
    with pytest.raises(ValueError, match="0 streams leave some of 1 ranks without data"):
        DataStreams(make, 0)
