"""What frameworks write of their progress into files of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gangrun.checkpoint.state_files import StateFiles
from gangrun.core.evidence import StateFigures


def trainer_state(folder: Path, step: int, at: float) -> None:
    """As the Trainer writes it, with an evaluation after the newest loss."""
    history = [
        {"loss": 9.0, "step": 1},
        {"loss": 2.5, "grad_norm": 1.0, "step": step},
        {"eval_loss": 3.0, "step": step},
    ]
    path = folder / f"checkpoint-{step}" / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"global_step": step, "max_steps": 60, "log_history": history}))
    os.utime(path, (at, at))


def test_the_newest_file_of_this_attempt_tells(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    trainer_state(tmp_path, 20, 1000.0)
    assert files.newest() == StateFigures(20, 60, 2.5)
    files.note()
    assert files.newest() is None, "of an earlier attempt"
    trainer_state(tmp_path, 10, 1001.0)
    assert files.newest() == StateFigures(10, 60, 2.5), "written later, at a lower step"
    assert files.newest(since_wall=1002.0) is None


METRICS = "epoch,step,train_loss_step,val_loss\n0,49,2.25,\n0,99,2.125,\n0,99,,3.0\n"


@pytest.mark.parametrize("place", ["metrics.csv", "../metrics.csv", "../lightning_logs/version_3/metrics.csv"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (METRICS, StateFigures(99, loss=2.125)),
        (METRICS + "1,149,2.0", StateFigures(99, loss=2.125)),  # a row that is being written
        ("epoch,step,val_loss\n0,99,3.0\n", StateFigures(99)),
        ("epoch,step,loss\n0,9,what\n", StateFigures(9)),
        ("epoch,step,loss\n", None),
        ("", None),
    ],
)
def test_rows_of_lightnings_logger(tmp_path: Path, place: str, text: str, told: StateFigures | None) -> None:
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / place
    path.parent.resolve().mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert StateFiles(str(tmp_path / "checkpoints")).newest() == told


def test_a_long_file_is_read_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangrun.checkpoint.state_files.WHOLE_MAX_BYTES", 64)
    monkeypatch.setattr("gangrun.checkpoint.state_files.TAIL_MAX_BYTES", 40)
    rows = "".join(f"0,{step},{step / 4}\n" for step in range(100))
    (tmp_path / "metrics.csv").write_text("epoch,step,loss\n" + rows)
    assert StateFiles(str(tmp_path)).newest() == StateFigures(99, loss=99 / 4)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"global_step": "x"}', '{"global_step": 5, "log_history": 3}'])
def test_a_damaged_file_tells_what_it_can(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint-5" / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(text)
    assert StateFiles(str(tmp_path)).newest() in (None, StateFigures(5))
