"""Every benchmark starts: nothing else of the suite runs them, and what they import of it moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.processes
@pytest.mark.parametrize("script", [one for one in BENCHMARKS if one.name != "stepper.py"], ids=lambda one: one.stem)
def test_it_says_what_it_is(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
