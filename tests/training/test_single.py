"""One process: what is saved comes back, what fails is told, what cannot be saved or loaded is refused in words."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gangrun
from gangrun.training.environment import RealClock
from gangrun.wire.saves import SavesTold, decode
from tests.training.harness import steps_in
from tests.waiting import until

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402


def parts(width: int = 16, dtype: Any = None) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 3)).to(dtype or torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
    }


def train(given: dict[str, Any], steps: int = 1) -> None:
    for _ in range(steps):
        loss = given["model"](torch.randn(6, 8)).square().mean()
        given["optimizer"].zero_grad()
        loss.backward()
        given["optimizer"].step()
        given["scheduler"].step()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["model"].state_dict(), other["model"].state_dict()
    moments = zip(one["optimizer"].state.values(), other["optimizer"].state.values(), strict=True)
    return (
        all(torch.equal(a[name], b[name]) for name in a)
        and all(torch.equal(x[name], y[name]) for x, y in moments for name in x)
        and one["scheduler"].state_dict() == other["scheduler"].state_dict()
    )


def test_everything_comes_back_with_chance_and_modules_and_small_state(tmp_path: Path) -> None:
    given, shadow = parts(), nn.Linear(4, 4)
    data = gangrun.GlobalBatchSampler(50, 4, seed=2)
    with gangrun.Checkpointer(tmp_path, **given, data=data, extra={"shadow": shadow}, every_steps=2) as ckpt:
        assert ckpt.resume() == 0
        for step in range(6):
            train(given)
            assert not ckpt.step(step)
        ckpt.save(5, wait=True)  # on a busy machine the interval's own save may still wait for the one before
        saved = random.random(), np.random.rand(), torch.rand(3)
    again, other, at = parts(), nn.Linear(4, 4), gangrun.GlobalBatchSampler(50, 4, seed=2)
    with gangrun.Checkpointer(tmp_path, **again, data=at, extra={"shadow": other}) as ckpt:
        assert ckpt.resume() == 6
        drawn = random.random(), np.random.rand(), torch.rand(3)
        assert "fails every 24.0 h" in ckpt.interval_reason
    assert same(given, again) and torch.equal(shadow.weight, other.weight) and at.consumed == 24
    assert drawn[:2] == saved[:2] and torch.equal(drawn[2], saved[2])
    assert steps_in(tmp_path) == [1, 3, 5]
    assert not (tmp_path / ".gangrun" / "unmanaged").exists()


def test_plain_dcp_reads_what_gangrun_writes_and_gangrun_what_plain_dcp_writes(tmp_path: Path) -> None:
    given = parts(dtype=torch.bfloat16)
    with gangrun.Checkpointer(tmp_path / "ours", model=given["model"]) as ckpt:
        ckpt.save(4, wait=True)
    state = {"model": {name: torch.zeros_like(one) for name, one in given["model"].state_dict().items()}}
    dcp.load(state, checkpoint_id=tmp_path / "ours" / "step-4", no_dist=True)
    assert all(torch.equal(state["model"][name], one) for name, one in given["model"].state_dict().items())
    dcp.save({"model": given["model"].state_dict()}, checkpoint_id=tmp_path / "plain" / "step-7", no_dist=True)
    again = parts(dtype=torch.bfloat16)
    nn.init.zeros_(again["model"][0].weight)
    told = pytest.warns(UserWarning, match="was not written by gangrun")
    with gangrun.Checkpointer(tmp_path / "plain", model=again["model"]) as ckpt, told:
        assert ckpt.resume() == 8
    assert all(torch.equal(again["model"].state_dict()[name], one) for name, one in given["model"].state_dict().items())


def test_what_does_not_fit_is_refused_before_a_byte_reaches_the_model(tmp_path: Path) -> None:
    given = parts()
    with gangrun.Checkpointer(tmp_path, **given) as ckpt:
        ckpt.save(0, wait=True)
    for other, words in (
        (parts(width=17), "does not fit this model"),
        (parts(dtype=torch.float64), "convert it silently"),
        (
            {**parts(), "model": nn.Sequential(*parts()["model"], nn.Linear(3, 3))},
            "does not fit|do not have|not belong",
        ),
    ):
        before = {name: one.clone() for name, one in other["model"].state_dict().items()}
        if "not belong" in words:
            other["optimizer"] = torch.optim.AdamW(other["model"].parameters())
        with gangrun.Checkpointer(tmp_path, **other) as ckpt, pytest.raises(gangrun.CheckpointError, match=words):
            ckpt.resume()
        assert all(torch.equal(before[name], one) for name, one in other["model"].state_dict().items())
    smaller = nn.Sequential(*list(parts()["model"])[:2])
    with (
        gangrun.Checkpointer(tmp_path, model=smaller) as ckpt,
        pytest.raises(gangrun.CheckpointError, match="2 entries"),
    ):
        ckpt.resume()


def test_a_damaged_one_is_passed_over_and_if_none_is_left_nothing_begins_anew(tmp_path: Path) -> None:
    given = parts()
    with gangrun.Checkpointer(tmp_path, **given, every_steps=1) as ckpt:
        for step in range(2):
            train(given)
            ckpt.step(step)
    for step in (1, 0):
        shard = tmp_path / f"step-{step}" / "__0_0.distcp"
        data = bytearray(shard.read_bytes())
        data[len(data) // 3] ^= 4
        shard.write_bytes(data)
        with gangrun.Checkpointer(tmp_path, **parts()) as ckpt:
            if step:
                assert ckpt.resume() == 1
            else:
                with pytest.raises(gangrun.CheckpointError, match="not starting again from zero"):
                    ckpt.resume()


def test_a_full_disk_is_told_at_the_next_step_and_leaves_nothing(
    tmp_path: Path, disk_full: Callable[[], AbstractContextManager[None]]
) -> None:
    ckpt = gangrun.Checkpointer(tmp_path, **parts(), every_steps=1)
    words = rf"step 0 was not saved: rank 0: No space left on device \(checkpoints go to {tmp_path}\)"
    with disk_full():
        ckpt.step(0)
        until(lambda: not list(tmp_path.glob(".gangrun/*/*/*/saving-*")) and not ckpt.saving, 20, "the save to fail")
        with pytest.warns(gangrun.CheckpointWarning, match=words):
            ckpt.step(1)
        with pytest.raises(gangrun.CheckpointError, match="No space left"):
            ckpt.save(1, wait=True)
    ckpt.save(1, wait=True)
    with disk_full():
        ckpt.save(2)
        with pytest.warns(gangrun.CheckpointWarning, match="step 2 was not saved"):
            ckpt.finish(20)  # as at the end of a process whose script forgot to close
    ckpt.close()
    assert steps_in(tmp_path) == [1]


def test_saves_faster_than_the_disk_wait_instead_of_filling_memory(tmp_path: Path, hold_fsync: threading.Event) -> None:
    given = parts()
    ckpt = gangrun.Checkpointer(tmp_path, **given, every_steps=1)
    for step in range(5):  # the third is left out: training is not to wait for the disk
        train(given)
        ckpt.step(step)
    assert ckpt.saving == 2
    third = threading.Thread(target=ckpt.save, args=(9,))
    third.start()
    assert third.is_alive() and ckpt.saving == 2
    hold_fsync.set()
    third.join(60)
    ckpt.close()
    assert steps_in(tmp_path) == [0, 1, 9]


def test_what_was_being_copied_is_saved_not_what_training_makes_of_it(tmp_path: Path) -> None:
    given = parts()
    with gangrun.Checkpointer(tmp_path, **given) as ckpt:
        train(given)
        moment = {name: one.clone() for name, one in given["model"].state_dict().items()}
        ckpt.save(0)
        train(given, 5)
    again = parts()
    with gangrun.Checkpointer(tmp_path, **again) as ckpt:
        ckpt.resume()
    assert all(torch.equal(moment[name], one) for name, one in again["model"].state_dict().items())


def test_an_older_save_of_the_same_step_is_set_aside_and_never_written_over(tmp_path: Path) -> None:
    for _ in range(2):
        with gangrun.Checkpointer(tmp_path, **parts()) as ckpt:
            ckpt.save(3, wait=True)
    assert (tmp_path / "step-3" / "gangrun.json").exists()
    assert len(list(tmp_path.glob(".gangrun/set-aside/*/step-3*/gangrun.json"))) == 1


def test_old_ones_go_and_what_is_kept_for_good_stays(tmp_path: Path) -> None:
    given = parts()
    with gangrun.Checkpointer(tmp_path, **given, keep=gangrun.Keep(2, every_steps=4)) as ckpt:
        for step in range(10):
            ckpt.save(step, wait=True)
    assert steps_in(tmp_path) == [0, 4, 8, 9]


def test_state_that_would_have_to_be_executed_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"call": print, "lock": Odd}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    refused = pytest.raises((TypeError, AttributeError), match=r"without executing|Odd")
    with gangrun.Checkpointer(tmp_path, model=nn.Linear(1, 1), extra={"odd": Odd()}) as ckpt, refused:
        ckpt.save(0, wait=True)
    assert not list(tmp_path.glob("step-*"))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RUN", "run-1"), ("TERM", "6"), ("ATTEMPT", "2")):
        monkeypatch.setenv(f"GANGRUN_{name}", value)


@pytest.mark.usefixtures("launched")
def test_staging_bears_the_run_the_term_and_the_attempt_that_its_ranks_were_started_in(tmp_path: Path) -> None:
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)):
        (staging,) = tmp_path.glob(".gangrun/*/*/*")
        assert staging.match(".gangrun/run-1/6/2-*")


@pytest.mark.usefixtures("launched")
def test_people_are_told_of_each_save_and_why_one_failed(
    tmp_path: Path, disk_full: Callable[[], AbstractContextManager[None]]
) -> None:
    def told() -> SavesTold:
        found = decode((tmp_path / ".gangrun/run-1/saves.json").read_bytes())
        assert found is not None
        return found

    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), every_steps=7) as ckpt:
        assert (told().interval_reason, told().saved_step) == ("every 7 steps, as asked", -1)
        ckpt.save(6, wait=True)
        assert (told().saved_step, told().failures_count, told().attempt) == (6, 0, 2)
        with disk_full():
            for step in (13, 20):
                with pytest.raises(gangrun.CheckpointError):
                    ckpt.save(step, wait=True)
        assert (told().saved_step, told().failures_count, told().failed_step) == (6, 2, 20)
        assert "step 20 was not saved: rank 0: No space left" in told().failed_why
        ckpt.save(20, wait=True)
        assert (told().saved_step, told().failures_count, told().failed_why) == (20, 0, "")


@pytest.mark.usefixtures("launched")
def test_the_stalls_of_each_attempt_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stalls() -> dict[int, float]:
        found = decode((tmp_path / ".gangrun/run-1/saves.json").read_bytes())
        assert found is not None
        return dict(found.stalled)

    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), clock=SlowClock()) as ckpt:
        assert stalls() == {2: 0.0}
        ckpt.save(6, wait=True)
        ckpt.save(7, wait=True)
    first = stalls()[2]
    assert first >= 1.0  # of the first save at least: the second may have ended before it was added up
    monkeypatch.setenv("GANGRUN_ATTEMPT", "3")
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)):
        assert stalls() == {2: first, 3: 0.0}


class SlowClock(RealClock):
    """A second passes at each look."""

    def __init__(self) -> None:
        self.looks = 0.0

    def now(self) -> float:
        self.looks += 1.0
        return self.looks


@pytest.mark.usefixtures("launched")
def test_news_that_cannot_be_written_cost_no_save(tmp_path: Path) -> None:
    (tmp_path / ".gangrun/run-1/saves.json").mkdir(parents=True)
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)) as ckpt:
        ckpt.save(3, wait=True)
    assert (tmp_path / "step-3").is_dir()
