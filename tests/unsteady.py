"""What CI does after a red `make test`: run each red test once more, alone. One that is green then is unsteady.

Only red tests are run again. CI stays red if a part crashed, if nothing could be collected, if linters or coverage
failed, if a test of ``core`` or ``sweep`` is red (both decide alike each time), or if more than ``MOST_AGAIN`` are red.

``make test`` leaves in ``.make`` the names of its red parts (``red``) and what each part recorded (``PART.json``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SCRATCH = Path(".make")
MOST_AGAIN = 5
NEVER_AGAIN = frozenset({"core", "sweep"})


class Part(NamedTuple):
    """What one pytest session recorded (``Recorder`` in tests/conftest.py)."""

    exit_status: int
    passed_count: int
    seconds: float
    failures: Mapping[str, str]  # node id -> its first failure and its log
    crashed: bool  # a worker died, so pytest does not know what its test did


def red_at_once(red: Collection[str], parts: Mapping[str, Part]) -> str:
    """Why nothing is run again, or nothing if the red tests may be."""
    if not red:
        return "make test failed before or beside its tests"
    for name in red:
        part = parts.get(name)
        if name in NEVER_AGAIN:
            return f"{name} is red, and its tests do not depend on the machine"
        if part is None or part.crashed or part.exit_status != pytest.ExitCode.TESTS_FAILED or not part.failures:
            return f"{name} is red, but not only by tests that failed"
    count = sum(len(parts[name].failures) for name in red)
    return f"{count} tests are red, more than {MOST_AGAIN}" if count > MOST_AGAIN else ""


def conclude(
    red: Collection[str], parts: Mapping[str, Part], is_green_alone: Callable[[str], bool]
) -> tuple[int, list[str]]:
    """CI's exit code and its last lines, which end with a count in pytest's form."""
    seconds = sum(part.seconds for part in parts.values())
    passed_count = sum(part.passed_count for part in parts.values())
    failures = {test: text for name in red if name in parts for test, text in parts[name].failures.items()}
    if why := red_at_once(red, parts):
        count = f"{len(failures)} failed, " if failures else "1 error, "
        return 1, [f"CI is red: {why}", f"==== {count}{passed_count} passed in {seconds:.2f}s ===="]
    steady = [test for test in failures if not is_green_alone(test)]
    unsteady = {test: text for test, text in failures.items() if test not in steady}
    lines = [f"CI is red: {test} failed twice, the second time alone" for test in steady]
    if unsteady:
        lines += ["", "UNSTEADY: red in the suite, green alone"]
        for test, text in unsteady.items():
            lines += ["", test, text]
    failed = f"{len(steady)} failed, " * bool(steady)
    rerun = f", {len(failures)} rerun"
    lines += ["", f"==== {failed}{passed_count + len(unsteady)} passed{rerun} in {seconds:.2f}s ===="]
    return int(bool(steady)), lines


def run_alone(test: str) -> bool:
    """Run one test in a session of its own; its output is CI's."""
    print(f"\nonce more, alone: {test}", flush=True)  # noqa: T201
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test], check=False).returncode == 0


def main() -> int:
    """Read what ``make test`` left, and conclude."""
    red = (SCRATCH / "red").read_text("utf-8").split() if (SCRATCH / "red").exists() else []
    parts = {path.stem: Part(**json.loads(path.read_text("utf-8"))) for path in SCRATCH.glob("*.json")}
    code, lines = conclude(red, parts, run_alone)
    print("\n".join(lines))  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
