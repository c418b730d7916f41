"""The tutorials for one machine: every command of each page runs, in its order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.tutorial import FOLDER, commands_of, files_of

ROOT = Path(__file__).parents[2]
HERE = ("one-box", "hugging-face", "lightning")
ON_SLURM = ("sbatch", "salloc")  # tests/slurm/test_tutorials.py


def followed(folder: Path, name: str) -> str:
    """What a reader who types all commands sees."""
    for file, text in files_of(name).items():
        (folder / file).write_text(text)
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "GANGRUN_NO_WARM": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", commands_of(name)], cwd=folder, env=environment, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def test_every_tutorial_is_followed_by_a_test() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == {*HERE, *ON_SLURM}


@pytest.mark.processes
def test_one_box(tmp_path: Path) -> None:
    told = followed(tmp_path, "one-box")
    assert "SUCCEEDED" in told and "SIGKILL" in told and "rank 1" in told and "step-100" in told


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hugging_face(tmp_path: Path) -> None:
    told = followed(tmp_path, "hugging-face")
    story = "".join(told.split())
    second = story.rpartition("checkpoint-6")[2]
    assert "all2ranksfinished" in second, "the second run went on from the first one's last"


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lightning(tmp_path: Path) -> None:
    told = followed(tmp_path, "lightning")
    assert "trained to step 12" in told and "SUCCEEDED" in told
    assert "last.ckpt" in told.partition("trained to step 12")[2]
