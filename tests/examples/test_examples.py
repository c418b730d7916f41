"""Each example runs, loses a rank, and comes back; what it promises at its top holds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.harness import ROOT, Box

EXAMPLES = ROOT / "examples"
LONG_S = 150.0  # torch starts slowly where cores are few

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def has_saved(directory: Path, step: int) -> bool:
    return (directory / f"step-{step}" / ".metadata").exists()


def kill_after(box: Box, directory: Path, step: int, rank: int) -> None:
    """SIGKILL one rank once a checkpoint of ``step`` is there."""
    box.until(lambda: has_saved(directory, step), f"a checkpoint of step {step}")
    os.kill(box.ranks()[rank], signal.SIGKILL)


@pytest.mark.no_warm
def test_fsdp_sharded_resumes_from_the_shards_of_all_ranks(box: Box) -> None:
    saves = box.work / "ckpt"
    box.start(
        "--nproc-per-node", "2", "--checkpoint-dir", saves, EXAMPLES / "fsdp_sharded/train.py",
        "--steps", "40", "--step-time", "0.2", "--checkpoint-every", "8", "--checkpoint-dir", saves,
    )  # fmt: skip
    kill_after(box, saves, 15, rank=0)
    assert box.end(LONG_S) == 0, box.told()
    assert len(list((saves / "step-39").glob("*.distcp"))) == 2
    assert (saves / "step-39" / "gangrun.json").exists()
    status = box.status()
    resumed_from = status["attempts"][-1]["resumed_from_step"]
    assert status["restarts"] == 1
    assert resumed_from >= 15
    assert status["step"] == 39  # the Checkpointer told it
    shown = box.out.read_text()
    assert f"training 40 steps on 2 ranks, from step {resumed_from + 1}" in shown
    assert "finished after step 39" in shown
    assert not list(saves.glob(".gangrun/*/*/*/saving-*"))


def test_the_demo_of_ddp_minimal_shows_the_story_and_the_proof(tmp_path: Path) -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GANGRUN_NO_HEALTH": "0",  # as everybody has it
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "kill_a_rank/demo.py")],
        env=environment, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "The weights are equal bit for bit" in done.stdout
    assert "rank 2" in done.stdout and "killed by SIGKILL" in done.stdout
    resumed = re.search(r"^restarts: 1, resumed from step (\d+)$", done.stdout, re.MULTILINE)
    assert resumed and int(resumed[1]) >= 30, "it is killed once step 30 is saved"
    assert "cannot be written" not in done.stdout, "the checkpoints' directory is the script's to make"
