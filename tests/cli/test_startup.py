"""Looking costs next to nothing: which modules each command loads, and how long it takes to start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.stories import failed

REPO = Path(__file__).parents[2]
HEAVY = ("torch", "zmq", "submitit", "pynvml", "numpy", "rich")
COMMANDS = (
    ["--version"], ["--help"], ["status"], ["status", "--all"], ["status", "--json"], ["run", "--help"], ["explain"],
    ["submit", "--help"],
    ["logs", "--errors"], ["config"], ["checkpoints", "--help"], ["wait"], ["prune", "--dry-run"],
    ["plan", "--gpus", "8", "--params", "7B"], ["report"], ["report", "--all"],
)  # fmt: skip
# what a look at a run has no use for, and what would cost it most
SUPERFLUOUS = (
    "asyncio", "subprocess", "multiprocessing", "logging", "importlib.metadata", "gangrun.core.events",
    "gangrun.core.machine.lifecycle", "gangrun.ports", "gangrun.supervisor", "gangrun.agent", "gangrun.config.settings",
    "gangrun.adapters.slurm",
)  # fmt: skip
TIMES_MAX = 3.0
TRIES = 5


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As on a user's machine: what was compiled once is kept, and nobody traces."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("COV_") and not k.startswith("COVERAGE_")}
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**inherited, "PYTHONPATH": str(REPO), "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def loaded(words: list[str], of: tuple[str, ...], folder: Path, environment: dict[str, str]) -> str:
    """Which of these modules a command has loaded by its end."""
    code = (
        "import sys\nfrom gangrun.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', sorted(set({of!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_heavy_is_loaded(runs: Path, home: Path, environment: dict[str, str], words: list[str]) -> None:
    failed(runs)
    assert "LOADED []" in (told := loaded(words, HEAVY, home, environment)), told


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status"], ["status", "--json"]], ids=" ".join)
def test_a_look_loads_nothing_that_it_has_no_use_for(
    runs: Path, home: Path, environment: dict[str, str], words: list[str]
) -> None:
    failed(runs)
    assert "LOADED []" in (told := loaded(words, SUPERFLUOUS, home, environment)), told


def cpu_s(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Processor time, as what else the machine does is not ours."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.serial
def test_it_starts_at_once(runs: Path, home: Path, environment: dict[str, str]) -> None:
    """Against what it cannot do without, on this machine now: the seconds themselves are a benchmark's."""
    failed(runs)
    commands = {"base": [sys.executable, "-c", "import click, msgspec, dataclasses"]}
    for words in ("--version", "--help", "status", "run --help"):
        commands[words] = [sys.executable, "-m", "gangrun", *words.split()]
    tried = [{name: cpu_s(command, home, environment) for name, command in commands.items()} for _ in range(TRIES)]
    best = {name: min(one[name] for one in tried) for name in commands}
    assert max(best.values()) < TIMES_MAX * best["base"], best
