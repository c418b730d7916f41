"""Whenever a saving process is killed, what bears a step's name is whole and what was committed is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(("rounds", "world"), [(30, 1), (4, 2)])
def test_a_kill_at_any_point_leaves_whole_steps(tmp_path: Path, rounds: int, world: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("crash.py"))]
    command += [str(tmp_path / "saves"), str(rounds), "5", str(world)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["troubles"] == []
    assert found["newest"] > 0, "saves were committed meanwhile"
    assert found["linked"] > 0, "and some of them shared what does not change"
    assert found["left"] == [], "each attempt removes what those before it left unfinished"
