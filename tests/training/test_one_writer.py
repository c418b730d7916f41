"""One rank of two cannot write: nothing is committed, all ranks are told at the next step, and so is whoever asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangrun.checkpoint.store import CheckpointRoom, Depth

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(600)

WORDS = ("No space left on device", "Input/output error", "File too large")


def test_what_rank_1_cannot_write_is_no_checkpoint_and_both_ranks_are_told(tmp_path: Path) -> None:
    saves, out = tmp_path / "saves", tmp_path / "out"
    script = [sys.executable, str(Path(__file__).with_name("one_writer.py")), str(saves), str(out)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GANGRUN_", "TORCHELASTIC_"))}
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        script, env={**kept, "PYTHONPATH": root}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for at, words in enumerate(WORDS):
        whole = [f"step-{step}" for step in range(1, 2 * at + 1, 2)]
        why = f"step {2 * at} was not saved: rank 1: {words}"
        both = [row for row in rows if row["failing"] == 2 * at]
        assert sorted(row["rank"] for row in both) == [0, 1]
        for row in both:
            assert [one[: len(why)] for one in row["told"]] == [why], row
            assert (row["status"][0], row["status"][1][: len(why)], row["status"][2]) == (2 * at, why, 1)
            assert (row["stood"], row["then"]) == (whole, [*whole, f"step-{2 * at + 1}"])
            assert row["left"] == []
    raised = [row["raised"] for row in rows if "raised" in row]
    assert len(raised) == 2
    assert all("step 6 was not saved: rank 1: No space left on device" in one for one in raised)
    found = CheckpointRoom(str(saves)).survey(Depth.ALL)
    assert {one.step: one.valid for one in found} == {1: True, 3: True, 5: True, 6: True}
