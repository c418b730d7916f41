"""Where a process under gangrun writes before it commits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import gangrun
from gangrun.wire.saves import SavesTold, decode

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GANGRUN_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)
    for name, value in (("RUN", "run-1"), ("TERM", "6"), ("ATTEMPT", "2")):
        monkeypatch.setenv(f"GANGRUN_{name}", value)


def test_staging_bears_the_run_the_term_and_the_attempt_that_its_ranks_were_started_in(
    tmp_path: Path,
) -> None:
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)):
        (staging,) = tmp_path.glob(".gangrun/*/*/*")
        assert staging.match(".gangrun/run-1/6/2-*")


def test_people_are_told_of_each_save_and_why_one_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def told() -> SavesTold:
        found = decode((tmp_path / ".gangrun/run-1/saves.json").read_bytes())
        assert found is not None
        return found

    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), every_steps=7) as ckpt:
        assert (told().interval_reason, told().saved_step) == ("every 7 steps, as asked", -1)
        ckpt.save(6, wait=True)
        assert (told().saved_step, told().failures_count, told().attempt) == (6, 0, 2)
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", full)
            for step in (13, 20):
                with pytest.raises(gangrun.CheckpointError):
                    ckpt.save(step, wait=True)
        assert (told().saved_step, told().failures_count, told().failed_step) == (6, 2, 20)
        assert "step 20 was not saved: rank 0: No space left" in told().failed_why
        ckpt.save(20, wait=True)
        assert (told().saved_step, told().failures_count, told().failed_why) == (20, 0, "")


def test_news_that_cannot_be_written_cost_no_save(tmp_path: Path) -> None:
    (tmp_path / ".gangrun/run-1/saves.json").mkdir(parents=True)
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)) as ckpt:
        ckpt.save(3, wait=True)
    assert (tmp_path / "step-3").is_dir()
