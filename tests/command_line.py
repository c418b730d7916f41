"""The command line as a test calls it: in this process, with its own home, state and working directory."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangrun.cli.main import main
from tests.slurm_parts.pretend_tools import PretendTools

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object and nothing else."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, str]:
        """The error object."""
        assert set(self.json) == {"error"}
        return dict(self.json["error"])


Call = Callable[..., Said]


def call(*words: str) -> Said:
    """``gangrun WORDS...``; a traceback fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), -1
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    assert "Traceback" not in err.getvalue()
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with nothing in it; times are said in UTC."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("GANGRUN_RUNS_DIR", "NO_COLOR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(home: Path) -> Path:
    """Where runs lie unless told otherwise."""
    folder = home / "gangrun_runs"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def gangrun(home: Path) -> Call:
    """``gangrun("status", "--json")``."""
    return call


@pytest.fixture
def tools(home: Path, monkeypatch: pytest.MonkeyPatch) -> PretendTools:
    """Slurm's tools, pretended, first on PATH."""
    found = PretendTools(home / "tools")
    monkeypatch.setenv("PATH", f"{found.folder}:/usr/bin:/bin")
    return found


def golden(name: str, text: str) -> None:
    """The text must be what stands in tests/golden. A file that is missing is written, and the test fails once."""
    path = GOLDEN / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        raise AssertionError(f"{path} was missing and is written now: read what it says before you keep it")
    assert text == path.read_text(), f"{path} differs: if that is meant, delete it, run twice, and read what is new"
