"""On a real terminal: what is asked, what is drawn anew, and that leaving is harmless."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pexpect
import pytest

from tests.runs.builder import Builder
from tests.runs.stories import failed, running

REPO = Path(__file__).parents[2]


def terminal(*words: str, **variables: str) -> pexpect.spawn:
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TERM": "xterm", "COLUMNS": "90", **variables}
    return pexpect.spawn(
        sys.executable, ["-m", "gangrun", *words], env=environment, timeout=300, encoding="utf-8", dimensions=(40, 90)
    )


def ended(child: pexpect.spawn) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus if child.exitstatus is not None else -(child.signalstatus or 0)


@pytest.mark.parametrize(("answer", "code", "marked"), [("y", 0, True), ("n", 130, False)])
def test_cancel_without_a_run_asks(runs: Path, home: Path, answer: str, code: int, marked: bool) -> None:
    story = Builder(runs).supervisor().up().owner()
    child = terminal("cancel", "--runs-dir", str(runs))
    child.expect(r"Cancel 20261118-110640-abcde \(train\)\?")
    child.sendline(answer)
    assert ended(child) == code
    assert story.paths.cancelled.exists() is marked


def test_prune_asks(runs: Path, home: Path) -> None:
    story = failed(runs)
    child = terminal("prune", "train")
    child.expect("Remove 1 run directory")
    child.sendline("n")
    assert ended(child) == 130
    assert story.paths.root.exists()


def test_a_page_is_coloured_unless_that_is_unwelcome(runs: Path, home: Path) -> None:
    failed(runs)
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        child = terminal("status", **variables)
        child.expect(pexpect.EOF)
        assert ("\x1b[" in str(child.before)) is coloured, variables
        assert max(len(line) for line in str(child.before).replace("\x1b[0m", "").splitlines()) <= 100
        child.close()


def test_watching_draws_until_the_end(runs: Path, home: Path) -> None:
    story = running(runs)
    child = terminal("status", "--watch")
    child.expect("RUNNING")
    ending = threading.Thread(target=story.finished)
    ending.start()
    child.expect("SUCCEEDED")
    ending.join()
    assert ended(child) == 0


def test_ctrl_c_leaves_a_watch(runs: Path, home: Path) -> None:
    story = running(runs)
    child = terminal("status", "--watch")
    child.expect("RUNNING")
    child.sendintr()
    assert ended(child) == 130
    assert not story.paths.cancelled.exists()
