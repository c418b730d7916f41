"""The last thing an owner does: that the run was cancelled is written down, if the disk comes back in time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.launch.owner import Cancelling
from tests.faults.disk import PausableDisk, say
from tests.waiting import until


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "disk"
    say(tmp_path / "disk", "run")


def cancelling(control: Path, told: list[str]) -> Cancelling:
    paths = RunPaths(control.parent / "run")
    paths.root.mkdir()
    made = Cancelling(
        paths, PausableDisk(control), SystemClock(), told.append, state=lambda: None, insist=lambda: None,
        kill=lambda: told.append("killed"),
    )  # fmt: skip
    made.signals += [signal.SIGINT, signal.SIGINT]
    return made


def test_a_third_signal_leaves_without_the_mark_and_says_what_to_do(control: Path) -> None:
    told: list[str] = []
    say(control, "stall")
    owner = cancelling(control, told)
    owner.turn()
    assert "killed" in told

    def hits_again(words: str) -> None:
        told.append(words)
        owner.signals.append(signal.SIGINT)

    owner.say = hits_again
    owner.keep_mark()
    assert not owner.paths.cancelled.exists()
    assert "gangrun cancel run" in told[-1]


def test_a_mark_that_is_written_is_not_waited_for(control: Path) -> None:
    told: list[str] = []
    owner = cancelling(control, told)
    owner.turn()
    until(lambda: owner._marking is not None and not owner._marking.is_alive(), 10, "the mark")
    assert owner.paths.cancelled.exists()
    owner.keep_mark()
    assert not any("waiting" in words for words in told)
