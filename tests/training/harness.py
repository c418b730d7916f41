"""What tests of the training side share: programs that fork ranks, and looks at a directory of checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_program(name: str, *arguments: object) -> str:
    """What a program beside these tests writes; it has torch once and forks its ranks."""
    command = [sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def forked(count: int, rank_main: Callable[[int], object]) -> list[int]:
    """How so many forked ranks ended. They have what was imported before, and leave without cleaning up."""
    pids = []
    for rank in range(count):
        if not (pid := os.fork()):
            status = 1
            try:
                rank_main(rank)
                status = 0
            except BaseException:  # noqa: BLE001 - a forked child says it and leaves, whatever it was
                traceback.print_exc()
            finally:
                os._exit(status)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_in(directory: Path) -> list[int]:
    """The steps of the checkpoints there."""
    return sorted(int(path.name[5:]) for path in directory.glob("step-*"))
