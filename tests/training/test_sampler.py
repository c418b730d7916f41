"""The data's position: a pure function of one number, whoever asks; and when ranks save, with the clock in the hand."""

from __future__ import annotations

import math
import warnings
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

import gangrun
from gangrun import GlobalBatchSampler
from gangrun.training import step as progress
from gangrun.training.ranks import RankGroup
from gangrun.training.save.schedule import Every, FailuresSeen, Schedule
from gangrun.wire.progress import ProgressPage, StepRequest


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 30), st.lists(st.integers(1, 8), min_size=1, max_size=4), st.booleans())
def test_each_sample_comes_once_per_epoch_however_the_ranks_change(
    size: int, batch: int, worlds: list[int], shuffle: bool
) -> None:
    batch = max(batch, *worlds)
    state, order = GlobalBatchSampler(size, batch, shuffle=shuffle, seed=7).state_dict(), []
    for world in worlds:
        ranks = [
            GlobalBatchSampler(size, batch, shuffle=shuffle, seed=7, rank=rank, world_size=world)
            for rank in range(world)
        ]
        for one in ranks:
            one.load_state_dict(state)
        left = len(ranks[0])
        steps = zip(*(list(one) for one in ranks), strict=True)
        for count, shares in enumerate(steps):
            assert sum(len(share) for share in shares) == batch and all(shares)
            order += [i for share in shares for i in share]
            for one in ranks:
                one.trained()
            assert count < left
        state = ranks[0].state_dict()
    for epoch in range(len(order) // size):
        assert sorted(order[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_what_was_fetched_ahead_does_not_count(tmp_path: Path) -> None:
    """Workers fetch all there is of the epoch before the first step is done; two steps are trained on."""
    model = torch.nn.Linear(1, 1)
    one = GlobalBatchSampler(100, 10, micro_batch=5, seed=1)
    loader = torch.utils.data.DataLoader(range(100), batch_sampler=one, num_workers=2, prefetch_factor=20)  # type: ignore[arg-type]
    with gangrun.Checkpointer(tmp_path, model=model, data=one, every_steps=1000) as ckpt:
        batches = iter(loader)
        first = [next(batches).tolist() for _ in range(6)]
        ckpt.step(0)
        ckpt.step(1)
        assert (len(one), one.consumed, one.epoch) == (16, 20, 0)
    again = GlobalBatchSampler(100, 10, micro_batch=5, seed=1)
    with gangrun.Checkpointer(tmp_path, model=model, data=again) as ckpt:
        assert ckpt.resume() == 2
        assert [batch for _, batch in zip(range(2), again, strict=False)] == first[4:]


class Counting(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """As torchdata's ``StatefulDataLoader``: its state counts what it has given, which is not what it has fetched."""

    given_count = 0

    def __iter__(self) -> Any:
        skipped = self.given_count
        for number, batch in enumerate(super().__iter__()):
            if number >= skipped:
                self.given_count += 1
                yield batch
        self.given_count = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given_count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given_count = state["given"]


def test_batches_are_left_out_after_a_rollback_and_stay_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch has 12 batches. After two, three are left out; after six more, four, over the epoch's end."""
    monkeypatch.setenv("GANGRUN_SKIP_BATCHES", "2:3,8:4")
    sampler = GlobalBatchSampler(24, 2, shuffle=False)
    met: list[int] = []
    states = []
    while len(met) < 12:
        for batch in sampler:
            met.append(batch[0] // 2)
            sampler.trained()
            states.append(sampler.state_dict())
    assert met[:12] == [0, 1, 5, 6, 7, 8, 9, 10, 3, 4, 5, 6]
    monkeypatch.delenv("GANGRUN_SKIP_BATCHES")
    for done, state in enumerate(states[:8], 1):  # who resumes from there is told of what lies ahead only
        again = GlobalBatchSampler(24, 2, shuffle=False)
        again.load_state_dict(state)
        if done not in {2, 8}:
            assert next(iter(again))[0] // 2 == met[done]
    monkeypatch.setenv("GANGRUN_SKIP_BATCHES", "0:3")
    again = GlobalBatchSampler(24, 2, shuffle=False)
    again.load_state_dict(states[1])
    assert next(iter(again))[0] // 2 == 5


def test_a_loader_with_a_state_of_its_own_goes_on_where_it_was(tmp_path: Path) -> None:
    start, seen = -1, list[int]()
    for last in (4, 10):
        loader = Counting(range(100), batch_size=10)  # type: ignore[arg-type]
        with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), data=loader, every_steps=1000) as ckpt:
            batches = iter(loader)
            start = ckpt.resume()
            for step in range(start, last):
                seen += next(batches).tolist()
                ckpt.step(step)
    assert (start, seen) == (4, list(range(100)))


def test_a_loader_in_the_samplers_place_is_refused_in_words(tmp_path: Path) -> None:
    """It counts what it has given; of how many batches there is a step, only the sampler knows."""
    loader = Counting(range(100), batch_sampler=GlobalBatchSampler(100, 10))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give its batch_sampler instead"):
        gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), data=loader)
    gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), data=loader.batch_sampler).close()


@pytest.mark.parametrize("change", [{"global_batch": 5}, {"seed": 2}, {"dataset": 99}, {"fingerprint": "b"}])
def test_another_order_is_refused_in_words(change: dict) -> None:
    given_ = {"dataset": 100, "global_batch": 4, "fingerprint": "a", **change}
    with pytest.raises(ValueError, match="samples would come twice or never"):
        GlobalBatchSampler(**given_).load_state_dict(GlobalBatchSampler(100, 4, fingerprint="a").state_dict())


@pytest.mark.parametrize("wrong", [{"rank": 3, "world_size": 3}, {"micro_batch": 0}, {"world_size": 9, "rank": 0}])
def test_sizes_that_are_none_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"rank|sample"):
        GlobalBatchSampler(100, 8, **wrong)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


def saves(every: Every, steps: int, step_s: float, **known: float) -> list[float]:
    clock = Clock()
    seen = FailuresSeen(int(known.get("failures_count", 0)), int(known.get("nodes_count", 1)))
    early = bool(known.get("early", True))
    schedule = Schedule(every, RankGroup(), clock, seen, mtbf_s=known.get("mtbf_s"), early=early)
    if known.get("resumed"):
        schedule.resumed(1000.0)
    found = []
    for step in range(steps):
        clock.time += step_s
        if schedule.after(step, asked=False, stop=False).save:
            schedule.saved(known.get("stall_s", 0.1))
            found.append(clock.time)
    return found


def test_steps_are_counted_and_seconds_are_kept_within_a_meeting() -> None:
    assert saves(Every(steps=5), 17, 2.0) == [10.0, 20.0, 30.0]
    for step_s in (0.01, 0.3, 7.0):
        times = saves(Every(seconds=60.0), int(400 / step_s), step_s)
        gaps = [after - before for before, after in pairwise(times)]
        assert len(times) >= 5 and all(60 <= gap <= 60 + max(2.0, step_s) for gap in gaps), gaps


def test_auto_follows_the_measured_stall() -> None:
    times = saves(Every(), 20_000, 0.5, stall_s=1.0, mtbf_s=10_000)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps and all(141 <= gap <= 143 for gap in gaps[1:]), gaps[:4]  # 2.35 minutes, and a meeting


def test_auto_saves_more_often_on_more_nodes_and_after_more_failures() -> None:
    def gap_s(**known: float) -> float:
        times = saves(Every(), 6000, 1.0, stall_s=1.0, **known)
        return times[2] - times[1]

    few, many, failing = gap_s(nodes_count=2), gap_s(nodes_count=2048), gap_s(nodes_count=2, failures_count=7)
    assert few == pytest.approx(math.sqrt(2 * 24 * 3600), rel=0.03)
    assert many == pytest.approx(math.sqrt(2 * 3.09 * 3600), rel=0.03)
    assert failing == pytest.approx(few / math.sqrt(8), rel=0.03)


def test_auto_saves_a_new_run_after_its_first_step_and_no_other_run() -> None:
    assert saves(Every(), 100, 0.5) == [0.5]
    assert saves(Every(seconds=60.0), 100, 0.5) == []
    assert saves(Every(), 100, 0.5, resumed=True) == []
    assert saves(Every(), 100, 0.5, early=False) == []


def test_what_is_asked_is_saved_told_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = ProgressPage(str(tmp_path / "slot"), 0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", str(tmp_path / "slot"))
    monkeypatch.setattr(progress, "_state", None)
    with gangrun.Checkpointer(tmp_path / "c", model=torch.nn.Linear(2, 2), every_steps=10**6) as ckpt:
        assert slot.read().saves_on_stop
        ckpt.step(0)
        generation = slot.ask(StepRequest.CHECKPOINT_NOW)
        answers = [ckpt.step(step) for step in range(1, 2002)]
        assert not any(answers), "a checkpoint alone is no reason to stop"
        assert slot.read().handled_generation == generation
        assert len(list((tmp_path / "c").glob("step-*"))) == 1, "saved once, and committed before it was answered"
        generation = slot.ask(StepRequest.CHECKPOINT_NOW | StepRequest.STOP_AFTER_STEP)
        stopped = next(step for step in range(2002, 4100) if ckpt.step(step).stop)
        assert (tmp_path / "c" / f"step-{stopped}" / "gangrun.json").exists()
        assert (slot.read().handled_generation, slot.read().step) == (generation, stopped)
    slot.close()


def test_a_loss_with_a_gradient_is_shown_without_a_warning_and_its_graph_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = ProgressPage(str(tmp_path / "slot"), 0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", str(tmp_path / "slot"))
    monkeypatch.setattr(progress, "_state", None)
    loss = (torch.ones(1, requires_grad=True) * 3).sum()
    alive = weakref.ref(loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gangrun.step(1, loss, grad_norm=loss)
    told = slot.read()
    assert (told.step, told.loss, told.grad_norm) == (1, 3.0, 3.0)
    del loss
    assert alive() is None
    slot.close()
