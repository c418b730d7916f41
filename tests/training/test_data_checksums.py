"""Samples that are not what they were at the checkpoint: which are told, and what is no change."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")
import numpy as np
import torch

from gangrun import GlobalBatchSampler
from gangrun.core.evidence import DataChange, SelfChecks
from gangrun.training import step
from gangrun.training.sampler import SAMPLES_COUNT, SHOWN_COUNT, sample_checksum
from gangrun.wire.progress import ProgressPage, read_findings


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgressPage:
    made = ProgressPage(str(tmp_path / "slot"), rank=0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", made.path)
    monkeypatch.setenv("GANGRUN_COMPARES_DATA", "1")
    monkeypatch.setattr(step, "_state", None)
    return made


def found(slot: ProgressPage) -> DataChange | None:
    told = read_findings(slot.path)
    return msgspec.json.decode(told, type=SelfChecks).data if told else None


class Counted(list[Any]):
    """A dataset that counts how often it is read."""

    reads_count = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads_count += 1
        return super().__getitem__(index)


def saved(dataset: Any, **more: Any) -> dict[str, Any]:
    one = GlobalBatchSampler(dataset, 10, rank=0, world_size=1, **more)
    next(iter(one))
    one.trained()
    return one.state_dict()


def resumed(dataset: Any, state: dict[str, Any]) -> GlobalBatchSampler:
    one = GlobalBatchSampler(dataset, 10, rank=0, world_size=1)
    one.load_state_dict(state)
    return one


def samples(count: int = 1000) -> Counted:
    return Counted({"x": torch.full((3,), float(n)), "text": f"sample {n}"} for n in range(count))


def test_samples_that_changed_are_named_once_and_the_same_data_is_none(slot: ProgressPage) -> None:
    state = saved(samples())
    assert len(state["content"]["samples"]) == SAMPLES_COUNT
    resumed(samples(), state)
    assert found(slot) is None
    other = samples()
    for index in state["content"]["samples"][5:8]:
        other[index] = {**other[index], "text": "another"}
    after = resumed(other, state)
    assert found(slot) == DataChange(SAMPLES_COUNT, 3, tuple(state["content"]["samples"][5:8]))
    slot_before = slot.read().findings_count
    resumed(other, after.state_dict())
    assert slot.read().findings_count == slot_before, "the next checkpoint knows the data as they are"


def test_a_dataset_that_is_another_one_or_cannot_be_read_is_told_in_few_words(slot: ProgressPage) -> None:
    state = saved(samples())
    resumed(Counted([None] * 1000), state)
    assert (told := found(slot)) is not None
    assert (told.changed_count, len(told.samples)) == (SAMPLES_COUNT, SHOWN_COUNT)

    class Gone(Counted):
        def __getitem__(self, index: Any) -> Any:
            raise FileNotFoundError(index)

    after = resumed(Gone([None] * 1000), state)
    assert after.state_dict()["content"] == {"samples": [], "checksums": []}


def test_samples_that_depend_on_chance_are_left_out_and_chance_goes_on_as_without(slot: ProgressPage) -> None:
    class Cropped(Counted):
        def __getitem__(self, index: Any) -> Any:
            return torch.rand(2) if index % 2 else (random.random(), 7)[1]

    random.seed(1), torch.manual_seed(1)
    expected = random.random(), float(torch.rand(1))
    random.seed(1), torch.manual_seed(1)
    state = saved(Cropped([0] * 512), shuffle=False)
    assert (random.random(), float(torch.rand(1))) == expected
    assert len(state["content"]["samples"]) == SAMPLES_COUNT and all(n % 2 == 0 for n in state["content"]["samples"])
    odd = saved(Cropped([0] * 101), shuffle=False)
    assert all(n % 2 == 0 for n in odd["content"]["samples"]) and len(odd["content"]["samples"]) == 51
    resumed(Cropped([0] * 101), {**odd, "shuffle": True})
    assert found(slot) is None


def test_nothing_is_read_if_nobody_asks_on_other_ranks_and_of_a_bare_size(
    slot: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = samples(50)
    other = GlobalBatchSampler(data, 10, rank=1, world_size=2)
    list(other)
    assert "content" not in other.state_dict() and "content" not in saved(50)
    state = saved(data)
    read = data.reads_count
    assert read == 2 * 50
    monkeypatch.delenv("GANGRUN_COMPARES_DATA")
    resumed(data, state)
    assert data.reads_count == read and found(slot) is None


def test_what_can_be_compared() -> None:
    equal = {
        "a": [1, 2.5, None, True, "ü", b"x"],
        "b": (torch.ones(2, 3).t(), np.arange(4)),
        "c": torch.ones(3).bfloat16(),
    }
    assert sample_checksum(equal) == sample_checksum({**equal, "b": (torch.ones(2, 3).t(), np.arange(4))}) != ""
    different = [[1, 2], [[1], 2], [1, 2.0], ["1", 2], [1, b"2"], torch.ones(4), torch.ones(2, 2), torch.ones(4).int()]
    different += [np.ones(4), np.ones((2, 2)), {"a": 1}, {"b": 1}]
    assert len({sample_checksum(one) for one in different}) == len(different)
    assert sample_checksum(object()) == sample_checksum([1, object()]) == ""
