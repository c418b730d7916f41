"""A class that msgspec converts to must be worked out before a second thread may ask for it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from gangrun.wire import record  # all that a process needs to have done
from gangrun.core.model import RunState
assert "__msgspec_cache__" in vars(RunState), "two threads that read a state first at the same time would crash"
"""


def test_states_are_worked_out_when_they_are_imported():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=300)
