"""``gangrun health --schedule``: the printed line does what it says, in a shell that knows as little as cron's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import Call

REPO = Path(__file__).parents[2]
PRINT = [sys.executable, "-c", "from gangrun.cli.main import main; main()", "health", "--schedule"]

pytestmark = pytest.mark.processes


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user in whose paths a shell and cron would stumble."""
    home = tmp_path / "it's 100 % me"
    (home / "bin").mkdir(parents=True)
    tool = home / "bin" / "crontab"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return {
        "HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", "XDG_STATE_HOME": f"{home}/state",
        "PYTHONPATH": str(REPO), "USER": "me",
    }  # fmt: skip


def printed(user: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PRINT, *words], cwd=user["HOME"], env=user, capture_output=True, text=True, timeout=120)


def as_cron(line: str, home: str) -> tuple[str, subprocess.CompletedProcess[str]]:
    """When it would start, and how it ends: five fields, ``\\%`` for a percent sign, sh, hardly a variable."""
    *when, command = line.split(None, 5)
    assert "%" not in command.replace("\\%", "")
    environment = {"HOME": home, "LOGNAME": "me", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    words = ["/bin/sh", "-c", command.replace("\\%", "%")]
    done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=400)
    return " ".join(when), done


@pytest.mark.slow
def test_the_line_runs_as_printed_and_speaks_only_of_what_failed(user: dict[str, str]) -> None:
    told = printed(user, "04:05", "--path", ".")
    head, line = told.stdout.splitlines()
    assert (head, told.stderr) == ("# crontab -e, on this host, at a time at which nothing trains here:", "")
    when, done = as_cron(line, user["HOME"])
    assert (when, done.returncode, done.stdout + done.stderr) == ("5 4 * * *", 0, "")
    assert list(Path(user["HOME"]).glob("state/gangrun/health/*.json")), "devices were tested, and their best was kept"
    _, line = printed(user, "--path", "gone").stdout.splitlines()
    when, done = as_cron(line, user["HOME"])
    assert when.endswith(" 3 * * *") and done.returncode == 1
    assert f"{user['HOME']}/gone: the directory cannot be written" in " ".join(done.stdout.split())


def test_what_cannot_work_is_refused(user: dict[str, str], home: Path, gangrun: Call) -> None:
    assert "'25:00' is no time of day" in gangrun("health", "--schedule", "25:00").err
    assert "takes neither RUN" in gangrun("health", "--schedule", "03:30", "my-run").err
    long = printed({**user, "LD_LIBRARY_PATH": "/lib:" * 200})
    assert (long.returncode, "and cron takes 998 at most" in long.stderr) == (2, True)
    broken = printed({**user, "VIRTUAL_ENV": "a\nb"})
    assert (broken.returncode, "has a line break in it" in broken.stderr) == (2, True)
    os.unlink(Path(user["HOME"]) / "bin" / "crontab")
    if not any(os.access(f"{folder}/crontab", os.X_OK) for folder in ("/usr/bin", "/bin")):
        none = printed(user, "--deep")
        assert none.returncode != 0
        assert "this host has no crontab" in none.stderr and "log in to a host that has one" in none.stderr
        words = "or let a systemd timer call this every day: gangrun health --quiet --active --deep"
        assert words in " ".join(none.stderr.split())
