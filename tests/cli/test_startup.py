"""Looking costs next to nothing: which modules each command loads, and how long it takes to start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stories import failed

REPO = Path(__file__).parents[2]
HEAVY = ("torch", "zmq", "submitit", "pynvml", "numpy", "rich")
COMMANDS = (
    ["--version"], ["--help"], ["status"], ["status", "--all"], ["status", "--json"], ["run", "--help"], ["explain"],
    ["submit", "--help"],
    ["logs", "--errors"], ["config"], ["checkpoints", "--help"], ["wait"], ["prune", "--dry-run"],
)  # fmt: skip
TIMES_MAX = 5.0
TRIES = 7


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO)}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_heavy_is_loaded(runs: Path, home: Path, words: list[str]) -> None:
    failed(runs)
    code = (
        "import sys\nfrom gangrun.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', sorted(set({HEAVY!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "LOADED []" in done.stderr, done.stderr


def best_s(command: list[str], folder: Path) -> float:
    """Processor time, the best of some tries: what else the machine does is not ours."""
    took = []
    for _ in range(TRIES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, env=environment(), capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(took)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status"], ["run", "--help"]], ids=" ".join)
def test_it_starts_at_once(runs: Path, home: Path, words: list[str]) -> None:
    """Against what it cannot do without, on this machine now: the seconds themselves are a benchmark's."""
    failed(runs)
    base_s = best_s([sys.executable, "-c", "import click, msgspec, dataclasses"], home)
    assert best_s([sys.executable, "-m", "gangrun", *words], home) < TIMES_MAX * base_s
