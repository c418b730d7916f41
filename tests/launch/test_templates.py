"""slurm-templates/ is what gangrun sends, to the letter; the one that users write themselves bash can read."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import gangrun as package
from tests.command_line import Call
from tests.slurm_parts.scripts import RUN, options

ROOT = Path(package.__file__).resolve().parents[1]
TEMPLATES = ROOT / "slurm-templates"
README = (TEMPLATES / "README.md").read_text("utf-8")
MADE = dict(re.findall(r"^\| `([\w-]+)\.sbatch` \| `gangrun (submit .*)` \|$", README, re.MULTILINE))
VENV = "/shared/me/venv"


def rendered(home: Path, said: str) -> str:
    """As on a cluster where everything lies under /shared/me."""
    told = options(said)["comment"]
    assert told is not None
    places = {
        sys.executable: f"{VENV}/bin/python",
        str(ROOT): f"{VENV}/lib/python3.11/site-packages",
        str(home): "/shared/me",
        told.split(":")[1]: RUN,
    }
    for here, there in places.items():
        said = said.replace(here, there)
    return said


def test_each_template_has_its_command() -> None:
    assert MADE.keys() == {path.stem for path in TEMPLATES.glob("*.sbatch")} - {"inside-an-sbatch-script"}


@pytest.mark.parametrize("name", MADE)
def test_a_template_is_what_gangrun_sends(name: str, home: Path, gangrun: Call) -> None:
    (home / "train.py").touch()
    said = gangrun("submit", "--dry-run", *shlex.split(MADE[name])[1:])
    assert said.code == 0, said
    path, text = TEMPLATES / f"{name}.sbatch", rendered(home, said.out)
    if not path.exists():
        path.write_text(text)
        raise AssertionError(f"{path} was missing and is written now: read what it says before you keep it")
    assert text == path.read_text(), f"{path} differs: if that is meant, delete it, run twice, and read what is new"


def test_the_one_that_users_write_is_a_script() -> None:
    path = TEMPLATES / "inside-an-sbatch-script.sbatch"
    text = path.read_text()
    found = options(text)
    assert {"no-kill", "requeue", "nodes", "ntasks-per-node"} <= found.keys()
    assert found["signal"] == "B:URG@60"
    assert found["open-mode"] == "append"
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=300)
    assert "gangrun run" in text
    assert f"`{path.name}`" in README
