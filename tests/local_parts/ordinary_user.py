"""Programs of these tests that an ordinary user must be able to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def answer_of(program: str) -> dict[str, Any]:
    """What a program beside this file prints as JSON. Root becomes a user without rights, who reads what root may."""
    ordinary = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*ordinary, sys.executable, str(Path(__file__).with_name(program))],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
