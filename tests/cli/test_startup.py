"""Looking costs next to nothing: which modules each command loads, and how many."""

from __future__ import annotations

import os
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
    "gangrun.adapters.slurm", "gangrun.core.recovery.failure_texts", "gangrun.core.recovery.speakers",
)  # fmt: skip
MODULES_MAX_COUNT = 50  # of gangrun's own


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was compiled once is kept, as on a user's machine."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def environment(home: Path, compiled: Path) -> dict[str, str]:
    """A user's: of his home, and nobody traces."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("COV_") and not k.startswith("COVERAGE_")}
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**inherited, "PYTHONPATH": str(REPO), "PYTHONPYCACHEPREFIX": str(compiled)}


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


def test_a_look_loads_few_modules(runs: Path, home: Path, environment: dict[str, str]) -> None:
    """A bound on what makes ``status`` slow to start; the seconds are a benchmark's (``hot_paths.py``)."""
    failed(runs)
    assert "few True" in (told := counted(["status"], home, environment)), told
    assert "few True" in (told := counted(["--help"], home, environment, most=12)), told


def counted(words: list[str], folder: Path, environment: dict[str, str], most: int = MODULES_MAX_COUNT) -> str:
    """How many modules of gangrun a command has loaded by its end."""
    code = (
        "import sys\nfrom gangrun.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "ours = sorted(name for name in sys.modules if name.startswith('gangrun.'))\n"
        f"print('few', len(ours) <= {most}, len(ours), ours, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    ).stderr
