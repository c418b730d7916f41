"""Scripts written for torchrun run as they are, and what they are told is what torchrun would tell them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.harness import Box

SCRIPTS = Path(__file__).parent / "torchrun_style"
LONG_S = 150.0

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.no_warm]


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_they_know_nothing_of_gangrun(script: Path) -> None:
    assert "gangrun" not in script.read_text().lower()


def test_a_ddp_trainer_with_its_own_snapshot_loses_a_rank_and_finishes(box: Box) -> None:
    box.start("--nproc_per_node=2", SCRIPTS / "ddp_snapshot.py", "30", "2", "--snapshot_path", "mine.pt")
    box.until(lambda: "Epoch 3 | Training snapshot saved" in box.out.read_text(), "a snapshot of epoch 3")
    os.kill(box.ranks()[1], signal.SIGKILL)
    assert box.end(LONG_S) == 0, box.told()
    shown = box.out.read_text()
    resumed = re.search(r"Resuming training from snapshot at Epoch (\d+)", shown)
    assert resumed, shown
    assert int(resumed[1]) >= 4
    assert "Epoch 29 | Training snapshot saved" in shown
    assert box.status()["restarts"] == 1


ITS_OWN = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # torchrun tells itself
# The store of an attempt, the run's own names, and where errors go differ by nature.
DIFFERENT = {
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
    "ROLE_NAME",
}  # fmt: skip


def told(text: str) -> dict[str, dict[str, str]]:
    """Rank -> environment."""
    found = [json.JSONDecoder().raw_decode(said)[0] for said in text.split("ENVIRONMENT ")[1:]]  # two may share a line
    return {one["RANK"]: one for one in found}


def test_the_environment_is_torchruns(box: Box) -> None:
    script = SCRIPTS / "environment.py"
    box.environment.pop("OMP_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3",
         str(script)],
        cwd=box.work, env=box.environment, capture_output=True, text=True, timeout=LONG_S, check=True,
    )  # fmt: skip
    box.start("--nproc-per-node", "2", "--max-restarts", "3", script)
    assert box.end(LONG_S) == 0, box.told()
    theirs, ours = told(done.stdout), told(box.out.read_text())
    assert set(theirs) == set(ours) == {"0", "1"}
    for rank, wanted in theirs.items():
        given = ours[rank]
        added = {name: value for name, value in wanted.items() if box.environment.get(name) != value}
        missing = added.keys() - given.keys() - ITS_OWN
        assert not missing
        differing = {name: value for name, value in added.items() if given.get(name) != value}
        assert not differing.keys() - DIFFERENT - ITS_OWN, given
