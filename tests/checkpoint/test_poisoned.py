"""What the next choice must not load is moved like a damaged one, and comes back where it had no part in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangrun.checkpoint.scan import StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import Chosen, NothingValid, ResumeKind, ResumeRequest
from gangrun.core.model import Poisoned

Copy = Callable[..., Path]
AUTO = ResumeRequest()


def bad(path: Path) -> Poisoned:
    return Poisoned(int(path.name.partition("-")[2]), str(path), "sig", 1, "it failed twice", "ValueError")


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir() if item.name != ".gangrun")


def test_it_is_passed_over_and_moved_and_comes_back_as_it_was(copy: Copy) -> None:
    root = copy("step-10", "step-20", "step-30")
    room = CheckpointRoom(str(root))
    resume = room.choose_and_set_aside(AUTO, "run-2", 30, condemned=bad(root / "step-30"))
    assert isinstance(resume.choice, Chosen) and resume.choice.checkpoint.step == 20
    assert "verified" in resume.choice.reason and "step 30: it failed twice" in resume.choice.reason
    assert [(move.step, move.why) for move in resume.moved] == [(30, "it failed twice")]
    assert names(root) == ["step-10", "step-20"]
    assert room.put_back("another-run", [str(root / "step-30")]) == ()
    assert room.put_back("run", [str(root / "step-10"), str(root / "step-30")]) == (str(root / "step-30"),)
    assert names(root) == ["step-10", "step-20", "step-30"]
    assert room.put_back("run", [str(root / "step-30")]) == (), "once"
    again = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "run-3", 30)
    assert isinstance(again.choice, Chosen) and again.choice.checkpoint.step == 30


def test_all_that_was_saved_since_an_anomaly_goes_and_no_one_need_know_its_path(copy: Copy) -> None:
    root = copy("step-10", "step-20", "step-30")
    spoilt = Poisoned(19, "", "", 1, "saved after the loss went bad", "the loss became NaN at step 20")
    resume = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "run-2", 30, condemned=spoilt)
    assert isinstance(resume.choice, Chosen) and resume.choice.checkpoint.step == 10
    assert sorted(move.step for move in resume.moved) == [20, 30]
    assert all(move.undo.startswith("mv -nT") for move in resume.moved)
    assert names(root) == ["step-10"]


def test_what_was_saved_of_the_same_state_goes_and_comes_back_with_it(copy: Copy) -> None:
    root = copy("step-10", "step-20", "step-30")
    room = CheckpointRoom(str(root))
    heir = replace(bad(root / "step-25"), since_step=20)
    resume = room.choose_and_set_aside(AUTO, "run-2", 30, condemned=heir)
    assert isinstance(resume.choice, Chosen)
    assert resume.choice.checkpoint.step == 10
    assert names(root) == ["step-10"]
    other = root / ".gangrun" / "set-aside" / "run-2" / "moved.json"
    record = json.loads(other.read_text())
    assert {row["why"] for row in record["moved"]} == {"it failed twice"}
    (other.parent / "step-5").mkdir()
    record["moved"].append({"from": str(root / "step-5"), "why": "unfinished"})
    other.write_text(json.dumps(record))
    assert sorted(room.put_back("run", [str(root / "step-20")])) == [str(root / "step-20"), str(root / "step-30")]
    assert names(root) == ["step-10", "step-20", "step-30"]


def test_what_an_explicit_request_put_out_of_use_is_left_where_it_is(copy: Copy, tmp_path: Path) -> None:
    root = copy("step-10", "step-20", "step-30")
    (tmp_path / "run").mkdir()
    room = CheckpointRoom(str(root), run_directory=str(tmp_path / "run"))
    asked = room.choose_and_set_aside(ResumeRequest(ResumeKind.STEP, step=20), "run-1", 30)
    assert isinstance(asked.choice, Chosen)
    resume = room.choose_and_set_aside(AUTO, "run-2", 30, condemned=bad(root / "step-20"))
    assert isinstance(resume.choice, Chosen)
    assert resume.choice.checkpoint.step == 10
    assert names(root) == ["step-10", "step-30"]


def test_a_name_that_was_taken_meanwhile_is_left_alone(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    room = CheckpointRoom(str(root))
    room.choose_and_set_aside(AUTO, "run-2", 20, condemned=bad(root / "step-20"))
    (root / "step-20").mkdir()
    assert room.put_back("run", [str(root / "step-20")]) == ()
    assert list((root / "step-20").iterdir()) == []


def test_without_an_older_one_nothing_moves(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    shutil.rmtree(root / "step-20")
    choice = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "run-2", 10, condemned=bad(root / "step-10")).choice
    assert isinstance(choice, NothingValid) and "not starting again from zero" in choice.reason
    assert names(root) == ["step-10"]


def test_one_that_lies_elsewhere_has_none_before_it(copy: Copy, tmp_path: Path) -> None:
    root = copy("step-10")
    elsewhere = bad(tmp_path / "elsewhere" / "step-20")
    choice = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "run-2", 10, condemned=elsewhere).choice
    assert isinstance(choice, NothingValid) and "not in the checkpoint directory" in choice.reason


def test_what_cannot_be_read_is_told_and_a_foreign_record_moves_nothing(copy: Copy) -> None:
    root = copy("step-10")
    room, aside = CheckpointRoom(str(root)), root / ".gangrun" / "set-aside"
    assert room.put_back("run", [str(root / "step-20")]) == ()
    for name, record in (("run-1", "no JSON"), ("run-2.1", json.dumps({"moved": [{"to": "/etc"}]})), ("alien", "{}")):
        (aside / name / "step-20").mkdir(parents=True)
        (aside / name / "moved.json").write_text(record)
    assert room.put_back("run", [str(root / "step-20")]) == ()
    os.rename(aside, root / "away")
    aside.write_text("not a directory")
    with pytest.raises(StorageUnreadable, match="cannot be put back"):
        room.put_back("run", [str(root / "step-20")])
