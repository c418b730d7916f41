"""The checkpoint directory as the supervisor asks it: which save is the one that ranks were told to make?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.checkpoint.scan import OneFile, step_pattern
from gangrun.core.actions import ChooseResume
from gangrun.core.events import AttemptSealed, CheckpointSeen, FirstStepSeen, ResumeChosen, Stamped
from gangrun.entry.checkpoint_service import CLOCKS_DIFFER_S, CheckpointService
from gangrun.runs.times import wall_now
from tests.waiting import stays, until

TINY = Path(__file__).resolve().parents[1] / "contract" / "tiny_dcp"


class Asked:
    """A directory, its service, and what this said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[Stamped]()
        self.service = CheckpointService(str(folder), step_pattern(), "r", str(folder.parent), self.said.append)

    def save(self, step: int, *, whole: bool = True) -> Path:
        path = self.folder / f"step-{step}"
        shutil.copytree(TINY, path)
        if not whole:
            (path / ".metadata").rename(path / "not yet")
        return path

    def seen(self, above: int) -> tuple[int, bool]:
        self.service.look(above)
        until(lambda: self.said, 10, "an answer")
        event = self.said.pop().event
        assert isinstance(event, CheckpointSeen)
        return event.checkpoint.step, event.told

    def nothing(self, above: int) -> None:
        self.service.look(above)
        self.service.seal(0)  # answered after it
        until(lambda: self.said, 10, "an answer")
        assert [type(said.event) for said in self.said] == [AttemptSealed]
        self.said.clear()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    (tmp_path / "saves").mkdir()
    made = Asked(tmp_path / "saves")
    yield made
    made.service.close(10)


@pytest.mark.parametrize("wrong_s", [-21600.0, 0.0, 21600.0])
def test_what_was_committed_before_the_word_is_not_what_was_told(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, wrong_s: float
) -> None:
    monkeypatch.setattr("gangrun.entry.checkpoint_service.wall_now", lambda: wall_now() + wrong_s)
    asked.save(10)
    assert asked.seen(-1) == (10, False)
    asked.save(20)
    stays(lambda: True, 2 * CLOCKS_DIFFER_S, "some time goes by")
    asked.service.await_save()
    assert asked.seen(10) == (20, False)
    half = asked.save(30, whole=False)
    asked.nothing(20)
    (half / "not yet").rename(half / ".metadata")
    assert asked.seen(20) == (30, True)
    torn = asked.save(40) / "__0_0.distcp"
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    asked.nothing(30)


def test_a_first_save_at_a_lower_step_is_told_without_a_look(asked: Asked) -> None:
    asked.save(20)
    asked.service.choose(ChooseResume(3, "auto", -1), ())
    until(lambda: asked.said, 10, "an answer")
    assert isinstance(asked.said.pop().event, ResumeChosen)
    save = asked.save(10)
    os.utime(save / ".metadata")  # the copy kept the time of its original
    until(lambda: asked.said, 10, "its word")
    assert [one.event for one in asked.said] == [FirstStepSeen(3, 10, written=True)]


@pytest.mark.parametrize("holds_term", [True, False])
def test_a_file_is_copied_by_the_newest_supervisor_alone(tmp_path: Path, holds_term: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(9)}, tmp_path / "latest.pt")
    file, said = OneFile("latest.pt", 2), list[Stamped]()
    service = CheckpointService(str(tmp_path), file, "r", str(tmp_path), said.append, holds_term=lambda: holds_term)
    try:
        service.await_save()
        (tmp_path / "latest.pt").touch()
        service.look(-1)
        until(lambda: said, 10, "an answer")
        event = said.pop().event
        assert isinstance(event, CheckpointSeen) and event.told
        assert event.checkpoint.path == str(tmp_path / "latest.pt")
        assert (tmp_path / "latest.pt.1").exists() is holds_term
    finally:
        service.close(10)


def test_the_next_attempt_knows_nothing_of_that(asked: Asked) -> None:
    asked.service.await_save()
    asked.save(10)
    asked.service.choose(ChooseResume(1, "auto", -1), ())
    until(lambda: asked.said, 10, "a choice")
    assert isinstance(asked.said.pop().event, ResumeChosen)
    assert asked.seen(-1) == (10, False)
