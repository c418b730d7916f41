"""What a script's author gives by mistake is refused at once: which argument, what it is, what it may be."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gangrun
from gangrun.training.save import saver

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

MODEL = nn.Linear(2, 2)
OTHER = torch.optim.SGD(nn.Linear(3, 1).parameters())
NAN, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"model": None}, TypeError, "model is a torch.nn.Module, not None"),
        ({"model": MODEL.state_dict()}, TypeError, "model is a torch.nn.Module, not a OrderedDict"),
        ({"optimizer": 3}, TypeError, "optimizer is a torch.optim.Optimizer or several of them, not a int"),
        ({"optimizer": MODEL.parameters()}, TypeError, "not a Parameter"),
        (
            {"optimizer": OTHER},
            ValueError,
            r"a parameter of shape \(1, 3\) that is not the model's: make the optimizer after",
        ),
        ({"scheduler": 3}, TypeError, "scheduler has no state_dict"),
        ({"data": torch.utils.data.DataLoader(range(3))}, TypeError, "it is a DataLoader. Give a gangrun.Global"),
        ({"extra": MODEL}, TypeError, "extra must map names to what .* not a Linear"),
        ({"extra": {3: MODEL}}, TypeError, "extra must map names"),
        ({"extra": {"lr": 0.1}}, TypeError, "extra.lr has no state_dict.* it is a float"),
        ({"every_steps": 0}, ValueError, "every_steps must be a positive number, not 0"),
        ({"every_steps": 2.5}, TypeError, "every_steps is a whole number, not 2.5"),
        ({"every_steps": True}, TypeError, "every_steps is a whole number, not True"),
        ({"every_steps": 5, "every_s": 60}, ValueError, "give every_steps or every_s, not both"),
        ({"every_s": -5.0}, ValueError, "every_s is a positive number of seconds, not -5.0"),
        ({"every_s": NAN}, ValueError, "every_s is a positive number of seconds, not nan"),
        ({"every_s": ENDLESS}, ValueError, "every_s is a positive number of seconds, not inf"),
        ({"every_s": "100"}, TypeError, "every_s is seconds or \"auto\", not '100'"),
        ({"every_s": [1]}, TypeError, 'every_s is seconds or "auto", not \\[1\\]'),
        ({"memory_every_s": None}, TypeError, "give memory_every_steps or memory_every_s"),
        (
            {"memory_every_steps": 1, "memory_every_s": 2},
            ValueError,
            "give memory_every_steps or memory_every_s, not both",
        ),
        ({"keep": 1}, ValueError, "keep at least 2 checkpoints"),
        ({"keep": -1}, ValueError, "keep at least 2 checkpoints"),
        ({"keep": "5"}, TypeError, "keep is a whole number, not '5'"),
        ({"keep": True}, TypeError, "keep is a whole number, not True"),
        ({"mtbf_s": 0}, ValueError, "mtbf_s is a positive number of seconds, not 0"),
        ({"mtbf_s": NAN}, ValueError, "mtbf_s is a positive number of seconds, not nan"),
        ({"mtbf_s": "1h"}, TypeError, "mtbf_s is seconds between failures of the whole job, or None, not '1h'"),
        ({"full_every": 0}, ValueError, "full_every is how many checkpoints may share a file, 1 or more, not 0"),
        ({"full_every": 2.5}, TypeError, "full_every is a whole number, not 2.5"),
        ({"directory": None}, TypeError, "directory is the path under which checkpoints are saved"),
        ({"directory": ""}, TypeError, "directory is the path under which checkpoints are saved"),
        (
            {"directory": "file/x"},
            OSError,
            "checkpoints cannot be saved to .*file/x: Not a directory; give a directory",
        ),
        ({"directory": "file"}, OSError, "checkpoints cannot be saved to .*file: Not a directory; give a directory"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(error, match=words):
        gangrun.Checkpointer(**{"directory": "c", "model": MODEL, **given})
    assert os.listdir(tmp_path) == ["file"], "nothing was made of it"


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path: Path) -> None:
    with gangrun.Checkpointer(
        tmp_path, model=MODEL, every_steps=np.int64(2), keep=np.int32(0), mtbf_s=np.float32(9)
    ) as one:  # type: ignore[arg-type]
        assert one.interval_reason == "every 2 steps, as asked"
        one.step(np.int64(1))  # type: ignore[arg-type]
        one.save(torch.tensor(7), wait=True)
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-1", "step-7"}


def test_steps_that_do_not_count_up_are_refused_in_words(tmp_path: Path) -> None:
    with gangrun.Checkpointer(tmp_path, model=MODEL) as ckpt:
        ckpt.step(3)
        for again in (3, 2):
            with pytest.raises(ValueError, match=f"step {again} comes after step 3: steps count up over the whole run"):
                ckpt.step(again)
        for wrong in (-1, 1.5, "4", None, True):
            for call in (ckpt.step, ckpt.save):
                with pytest.raises((ValueError, TypeError), match=r"step is a whole number|counted from 0 up"):
                    call(wrong)  # type: ignore[arg-type]
        ckpt.step(7)
    with gangrun.Checkpointer(tmp_path, model=MODEL) as ckpt:
        assert ckpt.resume() == 8
        with pytest.raises(ValueError, match="step 0 is done already: a checkpoint of step 7 was resumed from"):
            ckpt.step(0)
        ckpt.step(8)
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-3", "step-7", "step-8"}, (
        "each run's first, its last"
    )


def test_two_at_once_on_one_directory_are_refused_and_one_after_the_other_is_not(tmp_path: Path) -> None:
    first = gangrun.Checkpointer(tmp_path, model=MODEL)
    with pytest.raises(ValueError, match=r"another Checkpointer of this process saves to .*: close\(\) it first"):
        gangrun.Checkpointer(f"{tmp_path}/../{tmp_path.name}", model=MODEL)
    first.close()
    second = gangrun.Checkpointer(tmp_path, model=MODEL)
    second.finish(20)
    gangrun.Checkpointer(tmp_path, model=MODEL).close()


def test_one_that_was_dropped_makes_room_for_the_next_once_all_it_had_begun_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_fsync: threading.Event
) -> None:
    monkeypatch.setenv("GANGRUN_RUN", "run-1")
    monkeypatch.setattr(saver, "WAIT_S", 0.01)
    first = gangrun.Checkpointer(tmp_path, model=MODEL)
    first.save(3)
    ended = first._saves[0].done
    del first
    with pytest.raises(ValueError, match=r"an earlier Checkpointer of this process still writes to .*: give this one"):
        gangrun.Checkpointer(tmp_path, model=MODEL)
    monkeypatch.setattr(saver, "WAIT_S", 60.0)
    hold_fsync.set()
    gangrun.Checkpointer(tmp_path, model=MODEL).close()
    assert ended.is_set() and [path.name for path in tmp_path.glob("step-*")] == ["step-3"]
    given_up = gangrun.Checkpointer(tmp_path, model=MODEL)
    hold_fsync.clear()
    given_up.save(4)
    with pytest.warns(gangrun.CheckpointWarning, match="a save was given up after 0 s"):
        given_up.finish(0.01)
    hold_fsync.set()
    with gangrun.Checkpointer(tmp_path, model=MODEL) as ckpt:
        assert ckpt.resume() == 4, "what was given up is never committed"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_directory_that_takes_nothing_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(path: str, mode: int = 0) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "mkdir", refused)
    words = f"checkpoints cannot be saved to {tmp_path}/c: {os.strerror(code)}"
    with pytest.raises(OSError, match=words) as told:
        gangrun.Checkpointer(tmp_path / "c", model=MODEL)
    assert told.value.errno == code
