"""A save that is under way when its process ends is finished, or nothing of it stays and the next start cleans up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def test_a_save_in_flight_is_finished_or_abandoned_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("leaving.py")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found == {
        "forgets_to_close": {"ended": 0, "staged": [], "start": 2, "left": 0},
        "raises_inside": {"ended": 256, "staged": [], "start": 2, "left": 0},  # exit code 1: its error was not hidden
        "is_terminated": {"ended": 15, "staged": ["1"], "start": 1, "left": 0},
        "gives_up": {"ended": 0, "staged": [], "start": 1, "left": 0},
    }
