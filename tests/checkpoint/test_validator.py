"""A command of the user's may refuse what is whole and vouch for what gangrun does not know; no name can fool it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.adapters.local.validator import CommandValidator
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Chosen, FromZero, Kind, NothingValid, ResumeRequest

Copy = Callable[..., Path]
AUTO = ResumeRequest()
HOSTILE = "step-30; touch pwned $(touch pwned) `touch pwned`\n --help"


def sh(script: str, within_s: float = 60.0, directory: Path | None = None) -> CommandValidator:
    return CommandValidator(("sh", "-c", script, "check"), within_s, {"PATH": "/usr/bin:/bin"}, str(directory or "/"))


@pytest.mark.processes
def test_the_exit_code_is_the_answer_and_the_last_line_says_why(tmp_path: Path) -> None:
    path = str(tmp_path / "step-1")
    assert sh("echo all is well")(path) == (True, "all is well")
    assert sh("echo a; echo 'b is NaN' >&2; echo; exit 1")(path) == (False, "b is NaN")
    assert sh("exit 3")(path) == (None, "exit code 3")
    assert sh("echo oh; kill -9 $$")(path) == (None, "killed by signal 9: oh")
    assert sh("sleep 600 & sleep 600", within_s=0.2)(path) == (None, "no answer within 0.2 s")
    refused = CommandValidator(("/no/such/command",), 1.0, {})(path)
    assert refused == (None, "it could not be started (No such file or directory)")
    assert len(sh("head -c 100000 /dev/zero | tr '\\0' x; exit 1")(path)[1]) == 200


@pytest.mark.processes
def test_it_gets_the_path_as_it_is_as_its_last_argument(tmp_path: Path) -> None:
    strange = tmp_path / HOSTILE
    strange.mkdir()
    ask = sh('printf %s "$1" > told; test -d "$1" && test "$#" = 1', directory=tmp_path)
    assert ask(str(strange)) == (True, "")
    assert (tmp_path / "told").read_text() == str(strange)
    assert not (tmp_path / "pwned").exists()


def test_it_refuses_what_is_whole_once_and_the_next_older_one_is_taken(copy: Copy) -> None:
    root = copy("step-10", "step-20", "step-30")
    asked: list[str] = []

    def refuses_30(path: str) -> tuple[bool | None, str]:
        asked.append(Path(path).name)
        return not path.endswith("30"), "a weight is not a number"

    room = CheckpointRoom(str(root), validator=refuses_30)
    found = room.newest_valid_above(10)
    assert found is not None and found.step == 20
    for _ in range(2):
        assert room.newest_valid_above(20) is None
    assert asked == ["step-30", "step-20"]
    resume = room.choose_and_set_aside(AUTO, "a")
    assert isinstance(resume.choice, Chosen) and resume.choice.checkpoint.step == 20
    assert [move.why for move in resume.moved] == ["the validator refuses it: a weight is not a number"]
    assert asked == ["step-30", "step-20"], "each save once"


class Counting:
    """A validator that can be told from others, and counts."""

    def __init__(self, identity: str, answer: bool | None = True) -> None:
        self.identity, self.answer = identity, answer
        self.asked: list[str] = []

    def __call__(self, path: str) -> tuple[bool | None, str]:
        self.asked.append(Path(path).name)
        return self.answer, ""

    def choose(self, root: Path) -> list[str]:
        """A new process's choice; of what it asked."""
        self.asked.clear()
        CheckpointRoom(str(root), validator=self).choose_and_set_aside(AUTO, "a")
        return self.asked


def test_its_yes_outlives_the_process_for_this_command_and_this_save(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    check, other = Counting("check"), Counting("other")
    assert check.choose(root) == ["step-20"]
    assert check.choose(root) == []
    assert Counting("check").choose(root) == []
    CheckpointRoom(str(root)).survey(Depth.ALL)
    assert check.choose(root) == [], "whoever looks without it forgets nothing"
    assert Counting("").choose(root) == ["step-20"], "it cannot be told from others"
    assert other.choose(root) == ["step-20"]
    assert other.choose(root) == []
    assert check.choose(root) == ["step-20"], "the last one's is remembered"
    (root / "step-20" / "beside.txt").write_text("new")
    assert check.choose(root) == ["step-20"], "it may judge by that"
    metadata = root / "step-20" / ".metadata"
    shutil.copy2(metadata, root / "again")
    os.replace(root / "again", metadata)
    assert check.choose(root) == ["step-20"], "another file is another save"
    for strange in ('"accepted": 7', '"accepted": null'):
        memory = root / ".gangrun" / "verified.json"
        memory.write_text(re.sub(r'"accepted": "[0-9a-f]+"', strange, memory.read_text()))
        assert check.choose(root) == ["step-20"]


@pytest.mark.parametrize("answer", [False, None])
def test_a_no_is_asked_again_as_the_trouble_may_have_been_its_own(copy: Copy, answer: bool | None) -> None:
    root = copy("step-10").parent
    check = Counting("check", answer)
    assert check.choose(root) == ["step-10"]
    assert check.choose(root) == ["step-10"]


def test_a_command_is_another_one_once_its_script_was_changed(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text("1")

    def identity(*argv: str, directory: Path = tmp_path) -> str:
        return CommandValidator(argv, 1.0, {}, str(directory)).identity

    before = identity("python", "check.py")
    assert before == identity("python", "check.py")
    assert len({before, identity("python", "other.py"), identity("python", "check.py", directory=Path("/"))}) == 3
    script.write_text("22")
    assert identity("python", "check.py") != before


def test_without_an_opinion_gangruns_own_stands_and_says_so(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    resume = CheckpointRoom(str(root), validator=lambda path: (None, "exit code 3")).choose_and_set_aside(AUTO, "a")
    assert isinstance(resume.choice, Chosen) and resume.choice.checkpoint.step == 20
    assert "checksum holds; the validator gave no verdict: exit code 3" in resume.choice.reason
    silent = CheckpointRoom(str(root), validator=lambda path: (None, "exit code 3")).survey(Depth.ALL)
    assert {one.why_not for one in silent} == {"the validator gave no verdict: exit code 3"}
    looked = CheckpointRoom(str(root), validator=lambda path: (False, "")).survey(Depth.STRUCTURE)
    assert all(one.level for one in looked), "nobody is asked where nothing is read"


def test_it_alone_vouches_for_a_format_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "weights.bin").write_bytes(b"1234")
    (tmp_path / "step-9").symlink_to(tmp_path / "step-5")
    for answer, chosen in ((True, Chosen), (False, FromZero), (None, FromZero)):
        room = CheckpointRoom(str(tmp_path), validator=lambda path, answer=answer: (answer, "so"))  # type: ignore[misc]
        resume = room.choose_and_set_aside(AUTO, "a")
        assert isinstance(resume.choice, chosen), resume.choice
        assert resume.moved == () and (tmp_path / "step-5").is_dir()
        if isinstance(resume.choice, Chosen):
            assert "the validator accepts it" in resume.choice.reason
            (one,) = (one for one in room.survey(Depth.ALL) if one.step == 5)
            assert (one.kind, one.committed, one.valid) == (Kind.CUSTOM, True, True)
    plain = CheckpointRoom(str(tmp_path)).choose_and_set_aside(AUTO, "a").choice
    assert isinstance(plain, FromZero | NothingValid)


def test_a_choice_asks_nothing_of_what_is_older_than_the_newest_valid_one(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    assert all(one.valid for one in CheckpointRoom(str(root)).survey(Depth.ALL))
    newest, older = CheckpointRoom(str(root)).survey(Depth.NEWEST)
    assert newest.valid and (older.judged, older.level) == (False, None)
    assert older.why_not == "not looked at: a newer one is valid"
    assert all(one.valid for one in CheckpointRoom(str(root)).survey(Depth.STRUCTURE)), "and nothing is forgotten"
