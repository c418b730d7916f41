"""Where a process under gangrun writes before it commits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gangrun

torch = pytest.importorskip("torch")


def test_staging_bears_the_run_the_term_and_the_attempt_that_its_ranks_were_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GANGRUN_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GANGRUN_RUN", "run-1")
    monkeypatch.setenv("GANGRUN_TERM", "6")
    monkeypatch.setenv("GANGRUN_ATTEMPT", "2")
    with gangrun.Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)):
        (staging,) = tmp_path.glob(".gangrun/*/*/*")
        assert staging.match(".gangrun/run-1/6/2-*")
