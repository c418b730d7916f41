"""A real run's journal is damaged, and a person looks, asks why, and takes the run up again, by the command line.

One run was killed with everything of it; each test has it as it was then. What is told must be right up to the damage;
what cannot be known is refused in words that name file and line, before anything is started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.evidence import never_two_gangs
from tests.local.harness import Box
from tests.waiting import until

STEPS = 40


class Killed:
    """A run whose owner and all of whose processes were killed in their second attempt."""

    def __init__(self, folder: Path) -> None:
        self.box = Box(folder)
        self.box.step(2, "--fence-after", "16", "--silence-after", "3", steps=STEPS)
        self.box.wait_for_step(5)
        os.kill(self.box.pid_of(1), signal.SIGKILL)
        self.box.wait_for_step(5, attempt=1)
        assert self.box.process is not None
        self.box.process.kill()
        self.box.process.wait()
        until(lambda: not self.box.left(), 10, "every process of the run is gone")
        self.run_dir = self.box.run_dir()
        self._kept = folder / "kept"
        shutil.copytree(self.run_dir, self._kept / "run", symlinks=True)
        shutil.copytree(self.box.work / "steps", self._kept / "steps")

    def as_it_was(self) -> Killed:
        """Nobody looked yet."""
        for kept, at in ((self._kept / "run", self.run_dir), (self._kept / "steps", self.box.work / "steps")):
            if at.is_relative_to(self.run_dir):
                for acts in (at / ".gangrun" / "terms").glob("*.acts"):
                    acts.chmod(0o700)  # a sealed folder of tickets
            shutil.rmtree(at)
            shutil.copytree(kept, at, symlinks=True)
        return self

    @property
    def journal(self) -> Path:
        """The newest term's."""
        return max((self.run_dir / ".gangrun" / "journal").glob("*.jsonl"), key=lambda path: int(path.stem))

    def say(self, command: str, *words: str) -> tuple[int, str]:
        """One command, to its end: exit code, and all that it printed."""
        done = self.box.gangrun(command, self.run_dir.name, *words, "--runs-dir", str(self.box.runs), check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def status(self) -> dict:
        code, said = self.say("status", "--json")
        assert code == 0, said
        return json.loads(said)

    def goes_on(self) -> None:
        """It is resumed, and ends well."""
        code, said = self.say("resume")
        assert code == 0, said + self.box.told()
        status = self.status()
        assert status["state"] == "SUCCEEDED"
        numbers = [attempt["number"] for attempt in status["attempts"]]
        assert numbers == sorted(set(numbers)) and numbers[-1] >= 2, numbers
        assert never_two_gangs(self.box, 2)[-1] == numbers[-1]
        assert not self.box.left()

    def refuses(self, *words: str) -> None:
        """It is not resumed: no rank starts, and the reason is said."""
        before = self.box.rows()
        code, said = self.say("resume")
        assert code != 0, said
        for word in words:
            assert word in said, f"{word!r} not in: {said}"
        assert self.box.rows() == before, "nothing was started"
        assert not self.box.left()


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    made = Killed(tmp_path_factory.mktemp("killed"))
    try:
        yield made
    finally:
        made.box.close()


@pytest.fixture
def killed(killed_once: Killed) -> Killed:
    return killed_once.as_it_was()


def test_a_torn_last_line_is_left_out_and_said(killed: Killed) -> None:
    whole = killed.status()
    data = killed.journal.read_bytes()
    last = data.rstrip(b"\n").rpartition(b"\n")[2]
    killed.journal.write_bytes(data[: -len(last) // 2])
    status = killed.status()
    assert len(status["attempts"]) == len(whole["attempts"]) == 2
    [note] = status["notes"]
    assert "cut off" in note and "state is right up to record" in note and killed.journal.name in note
    code, story = killed.say("explain")
    assert code == 0
    assert "the journal could not be read in full" in story and "SIGKILL" in story
    killed.goes_on()
    assert "cut off" in killed.say("explain", "--all")[1], "the next supervisor put it on record"


def test_garbage_in_the_middle_is_told_up_to_there_and_not_gone_on_from(killed: Killed) -> None:
    lines = killed.journal.read_bytes().split(b"\n")
    at = len(lines) // 2
    lines[at] = b"\x00\xffgarbage" + lines[at][20:]
    killed.journal.write_bytes(b"\n".join(lines))
    status = killed.status()
    assert status["notes"] and f"{killed.journal.name} line {at + 1}" in status["notes"][0], status["notes"]
    assert "records from" in status["notes"][0] and "are missing" in status["notes"][0]
    code, story = killed.say("explain")
    assert code == 0 and f"{killed.journal.name} line {at + 1}" in story
    killed.refuses(f"{killed.journal.name} line {at + 1}", "are missing")


def test_a_journal_that_is_gone_is_not_taken_for_a_run_that_never_began(killed: Killed) -> None:
    shutil.rmtree(killed.journal.parent)
    (killed.run_dir / ".gangrun" / "journal").mkdir(mode=0o700)
    killed.refuses("journal is gone")
