"""One process: what is saved comes back, what fails is told, what cannot be saved or loaded is refused in words."""

from __future__ import annotations

import errno
import os
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gangrun
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


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's words; torch says about itself that it saves without ranks."""
    for name in [name for name in os.environ if name.startswith(("GANGRUN_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


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
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-1", "step-3", "step-5"]
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
        (parts(dtype=torch.float64), "convert it without a word"),
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, real = parts(), os.writev

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    ckpt = gangrun.Checkpointer(tmp_path, **given, every_steps=1)
    monkeypatch.setattr(os, "writev", full)
    ckpt.step(0)
    words = rf"step 0 was not saved: rank 0: No space left on device \(checkpoints go to {tmp_path}\)"
    told = pytest.warns(gangrun.CheckpointWarning, match=words)
    until(lambda: not list(tmp_path.glob(".gangrun/*/*/*/saving-*")) and not ckpt.saving, 20, "the save to fail")
    with told:
        ckpt.step(1)
    with pytest.raises(gangrun.CheckpointError, match="No space left"):
        ckpt.save(1, wait=True)
    monkeypatch.setattr(os, "writev", real)
    ckpt.save(1, wait=True)
    monkeypatch.setattr(os, "writev", full)
    ckpt.save(2)
    with pytest.warns(gangrun.CheckpointWarning, match="step 2 was not saved"):
        ckpt.finish(20)  # as at the end of a process whose script forgot to close
    ckpt.close()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-1"]


def test_saves_faster_than_the_disk_wait_instead_of_filling_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, may_go, real = parts(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        may_go.wait(60)
        real(descriptor)

    ckpt = gangrun.Checkpointer(tmp_path, **given, every_steps=1)
    monkeypatch.setattr(os, "fsync", slow)
    for step in range(5):  # the third is left out: training is not to wait for the disk
        train(given)
        ckpt.step(step)
    assert ckpt.saving == 2
    third = threading.Thread(target=ckpt.save, args=(9,))
    third.start()
    assert third.is_alive() and ckpt.saving == 2
    may_go.set()
    third.join(60)
    ckpt.close()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-0", "step-1", "step-9"]


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
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-0", "step-4", "step-8", "step-9"]


def test_state_that_would_have_to_be_executed_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"call": print, "lock": Odd}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    refused = pytest.raises((TypeError, AttributeError), match=r"without executing|Odd")
    with gangrun.Checkpointer(tmp_path, model=nn.Linear(1, 1), extra={"odd": Odd()}) as ckpt, refused:
        ckpt.save(0, wait=True)
    assert not list(tmp_path.glob("step-*"))
