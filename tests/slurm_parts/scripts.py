"""Batch scripts as sbatch and bash read them: what stands in one, and what it does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.submission import options as told
from gangrun.launch.executor import BatchExecutor
from gangrun.wire.submission import Submission

RUN = "20261121-065001-k3f9x"


def asked(**more: object) -> Submission:
    """The least that can be asked for, and ``more``."""
    least: dict[str, Any] = {
        "job_name": f"train.{RUN}",
        "nodes_count": 2,
        "python": "/usr/bin/env",
        "working_directory": "/w",
    }
    return Submission(**{**least, **more})


def script(submission: Submission, paths: RunPaths, seq: int, command: list[str], **more: Any) -> str:
    """The text for a command of the test's own."""
    executor = BatchExecutor(paths, submission, Tools({}))
    return executor.text(submission, command, told(submission, paths, seq, **more))


def options(script: str) -> dict[str, str | None]:
    """The options of a script, read as sbatch reads them: to the first line that is no comment."""
    found: dict[str, str | None] = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            word = _word(line.removeprefix("#SBATCH "))
            assert word.startswith("--")
            key, equals, value = word[2:].partition("=")
            assert key not in found, f"{key} is asked twice"
            found[key] = value if equals else None
        elif line and not line.startswith("#"):
            break
    return found


def _word(line: str) -> str:
    """One argument, by the rules of sbatch: backslashes escape within quotes too, a bare # begins a comment."""
    word, quote, rest = "", "", iter(line)
    for char in rest:
        if char == "\\":
            word += next(rest)
        elif quote:
            word, quote = (word, "") if char == quote else (word + char, quote)
        elif char in "\"'":
            quote = char
        elif char.isspace() or char == "#":
            break
        else:
            word += char
    return word


def made(folder: Path, name: str = RUN) -> RunPaths:
    """A run directory that a script can write into."""
    paths = RunPaths(folder / name)
    paths.machine.mkdir(parents=True)
    return paths


def run_by_hand(script: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As ``bash script`` would."""
    where = {"PATH": os.environ["PATH"], "HOSTNAME": "here", **variables}
    return subprocess.run(
        ["bash", "-s"], input=script, cwd=cwd, env=where, capture_output=True, text=True, timeout=300, check=False
    )
