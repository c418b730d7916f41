"""Finding, choosing, remembering and setting aside, on checkpoints that torch wrote."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.checkpoint import store
from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.records import VerifiedBefore
from gangrun.checkpoint.scan import BadPattern, StorageUnreadable, list_steps, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, Depth, Resume, VerifyProgress
from gangrun.core.checkpoints.resume import Chosen, FromZero, Kind, NothingValid, ResumeRequest, parse_resume
from gangrun.core.model import Level
from tests.waiting import until

Copy = Callable[..., Path]
AUTO = ResumeRequest()
ROW = b'{"judged": {"level": "verified", "deep": true, "save_id": %s, "marks": [%s]}}'


def damage(path: Path) -> None:
    shard = path / "__0_0.distcp"
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"\xa5\x5a\xa5")


def step_of(resume: Resume) -> int:
    assert isinstance(resume.choice, Chosen), resume.choice
    return resume.choice.checkpoint.step


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir() if item.name != ".gangrun")


# ---- finding


def test_steps_are_found_newest_first_and_told_apart(copy: Copy, tmp_path: Path) -> None:
    root = copy("step-10", "step-20")
    (root / "step-30").mkdir()
    (root / "step-40").mkdir()
    (root / "step-40" / "__0_0.distcp").touch()
    (root / "step-50").mkdir()
    (root / "step-50" / "model.safetensors").touch()
    (root / "step-60").symlink_to(root / "step-10")
    (root / "step-70").touch()
    (root / "step-80x").mkdir()
    (root / ".gangrun" / "set-aside" / "0" / "step-90").mkdir(parents=True)
    (root / ("step-" + "9" * 60)).mkdir()
    found = {s.step: (s.kind, s.committed) for s in list_steps(str(root), step_pattern())}
    assert found == {
        60: (Kind.UNKNOWN, False),
        50: (Kind.SAFETENSORS, True),
        40: (Kind.DCP, False),
        30: (Kind.DCP, False),
        20: (Kind.DCP, True),
        10: (Kind.DCP, True),
    }
    assert list(found) == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        (r"global_step(\d+)", "global_step17", 17),
        (r"(epoch)_(?P<step>\d+)", "epoch_3", 3),
        (r"ckpt-(.*)", "ckpt-final", None),
        (r"(\d+)?", "", None),
        (r"step-(\d+)", "my-step-3", None),
        (r"step-(\d+)", "step-3-old", None),
    ],
)
def test_patterns_read_the_whole_name(pattern: str, name: str, step: int | None) -> None:
    assert step_pattern(pattern).step_of(name) == step


@pytest.mark.parametrize("pattern", ["step-(", r"step-\d+", r"(\w+)-(\d+)", "(" * 5000])
def test_bad_patterns_are_refused_in_words(pattern: str) -> None:
    with pytest.raises(BadPattern, match="checkpoint pattern"):
        step_pattern(pattern)


def test_what_is_no_directory_yet_has_no_checkpoints(tmp_path: Path) -> None:
    assert CheckpointRoom(str(tmp_path / "later")).survey() == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_directory_that_cannot_be_read_is_never_an_empty_one(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    root = copy("step-10", "step-20")

    def fail(_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StorageUnreadable, match="gangrun does not know which checkpoints exist"):
        CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "0")
    assert names(root) == ["step-10", "step-20"]


def test_a_file_in_the_directorys_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(StorageUnreadable, match="Not a directory"):
        CheckpointRoom(str(tmp_path / "x")).survey()


@pytest.mark.parametrize("call", ["listdir", "preadv"])
def test_checkpoints_that_cannot_be_read_are_no_reason_to_conclude(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    root = copy("step-10", "step-20")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageUnreadable, match="gangrun cannot choose a checkpoint: 2 of 2"):
        CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "0")
    monkeypatch.undo()
    assert names(root) == ["step-10", "step-20"]


# ---- choosing


def test_the_newest_whole_one_is_taken_and_what_is_above_moves_away(copy: Copy) -> None:
    root = copy("step-10", "step-20", "step-30")
    damage(root / "step-30")
    damage(root / "step-10")  # below the resume point: nobody asks, nobody moves it
    (root / "step-35").mkdir()
    (root / "step-36").mkdir()
    (root / "step-36" / "pytorch_model.bin").touch()
    resume = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "3")
    assert step_of(resume) == 20
    assert resume.choice.reason.startswith(
        "resuming from step 20: verified, every checksum holds (passed over: step 36:"
    )
    assert "is damaged: checksum of" in resume.choice.reason
    assert names(root) == ["step-10", "step-20", "step-36"]
    assert sorted(m.step for m in resume.moved) == [30, 35]
    assert names(root / ".gangrun" / "set-aside" / "3") == ["moved.json", "step-30", "step-35"]
    record = json.loads((root / ".gangrun" / "set-aside" / "3" / "moved.json").read_text())
    assert {row["to"] for row in record["moved"]} == {m.now_at for m in resume.moved}
    for move in resume.moved:
        subprocess.run(shlex.split(move.undo), check=True)
    assert names(root) == ["step-10", "step-20", "step-30", "step-35", "step-36"]


def test_none_valid_stops_and_moves_nothing(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    damage(root / "step-10")
    (root / "step-20" / "__0_0.distcp").unlink()
    (root / "step-30").mkdir()
    resume = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "0")
    assert isinstance(resume.choice, NothingValid)
    assert "__0_0.distcp is missing" in resume.choice.reason
    assert names(root) == ["step-10", "step-20", "step-30"]


def test_never_committed_starts_at_zero_with_the_unfinished_moved(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "__0_0.distcp").write_bytes(b"half")
    resume = CheckpointRoom(str(tmp_path)).choose_and_set_aside(AUTO, "0")
    assert isinstance(resume.choice, FromZero) and [m.step for m in resume.moved] == [5]
    gone = CheckpointRoom(str(tmp_path)).choose_and_set_aside(AUTO, "1", journal_best_step=5)
    assert isinstance(gone.choice, NothingValid)


def test_a_requested_step_holds_until_something_newer_is_saved(copy: Copy, tmp_path: Path, written: Path) -> None:
    root, run = copy("step-10", "step-20", "step-30"), str(tmp_path / "run")
    room = CheckpointRoom(str(root), run_directory=run)
    assert step_of(room.choose_and_set_aside(parse_resume("10"), "0", 30)) == 10
    assert room.newest_valid_above(10) is None
    again = CheckpointRoom(str(root), run_directory=run).choose_and_set_aside(AUTO, "1", 30)
    assert step_of(again) == 10 and not again.moved
    assert names(root) == ["step-10", "step-20", "step-30"]
    shutil.rmtree(root / "step-20")
    shutil.copytree(written / "many_files", root / "step-20")  # saved again: another nonce
    newer = room.newest_valid_above(10)
    assert newer is not None and newer.step == 20
    assert step_of(room.choose_and_set_aside(AUTO, "2", 30)) == 20


def test_looking_again_reads_a_damaged_one_only_once(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, written: Path
) -> None:
    root, reads = copy("step-10", "step-20"), Reads(monkeypatch)
    damage(root / "step-20")
    room = CheckpointRoom(str(root))
    for expected in (["step-20", "step-10"], [], []):
        newest = room.newest_valid_above(5)
        assert newest is not None and newest.step == 10
        assert reads.take() == expected
    assert room.newest_valid_above(10) is None and not reads.take()
    shutil.rmtree(root / "step-20")
    shutil.copytree(written / "many_files", root / "step-20")
    newest = room.newest_valid_above(10)
    assert newest is not None and newest.step == 20
    assert not room.choose_and_set_aside(AUTO, "0").moved


def test_from_the_beginning_holds_too(copy: Copy, tmp_path: Path, written: Path) -> None:
    root, run = copy("step-20"), str(tmp_path / "run")
    room = CheckpointRoom(str(root.parent), run_directory=run)
    assert isinstance(room.choose_and_set_aside(parse_resume("none"), "0", 20).choice, FromZero)
    assert isinstance(room.choose_and_set_aside(AUTO, "1", 20).choice, FromZero)
    shutil.copytree(written / "step-10", root.parent / "step-10")
    assert step_of(room.choose_and_set_aside(AUTO, "2", 20)) == 10


def test_a_path_elsewhere_is_judged_and_not_forgotten(written: Path, tmp_path: Path) -> None:
    base = tmp_path / "old" / "step-30"
    shutil.copytree(written / "step-30", base)
    (tmp_path / "latest").symlink_to(base)
    room = CheckpointRoom(str(tmp_path / "new"), run_directory=str(tmp_path / "run"))
    resume = room.choose_and_set_aside(parse_resume(str(tmp_path / "latest")), "0")
    assert step_of(resume) == 30 and isinstance(resume.choice, Chosen)
    assert resume.choice.checkpoint.path == str(base)
    assert step_of(room.choose_and_set_aside(AUTO, "1")) == 30
    damage(base)
    assert isinstance(room.choose_and_set_aside(AUTO, "2").choice, NothingValid)
    shutil.rmtree(base)
    gone = room.choose_and_set_aside(AUTO, "3").choice
    assert isinstance(gone, NothingValid) and "it is missing" in gone.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/step-3", "it is missing"),
        ("final", "its name does not tell its step"),
        ("file/step-9", "not a directory"),
    ],
)
def test_paths_that_cannot_be_used_are_refused_in_words(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "step-9").touch()
    choice = CheckpointRoom(str(tmp_path / "c")).choose_and_set_aside(parse_resume(str(tmp_path / name)), "0").choice
    assert isinstance(choice, NothingValid) and words in choice.reason


def test_a_damaged_record_of_a_request_is_not_guessed_around(copy: Copy, tmp_path: Path) -> None:
    root, run = copy("step-10", "step-20"), tmp_path / "run"
    room = CheckpointRoom(str(root), run_directory=str(run))
    room.choose_and_set_aside(parse_resume("10"), "0")
    record = run / ".gangrun" / "resume-request.json"
    for content in (b"", b'{"schema": 99}', b"[" * 100_000, b'{"schema": 1, "ignored": [1]}'):
        record.write_bytes(content)
        with pytest.raises(StorageUnreadable, match="content is damaged"):
            room.choose_and_set_aside(AUTO, "1")
    record.unlink()
    record.mkdir()
    with pytest.raises(StorageUnreadable, match="cannot be read"):
        room.choose_and_set_aside(AUTO, "1")


def test_a_request_that_cannot_be_kept_is_not_begun(copy: Copy, tmp_path: Path) -> None:
    root = copy("step-10", "step-20")
    (tmp_path / "run").touch()
    with pytest.raises(StorageUnreadable, match="cannot be saved in"):
        CheckpointRoom(str(root), run_directory=str(tmp_path / "run" / "x")).choose_and_set_aside(
            parse_resume("10"), "0"
        )


# ---- remembering


class Reads:
    """Counts the deep readings that really happen, by passing them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []

        def counting(path: str, *rest: object) -> dcp.Judgement:
            self.names.append(os.path.basename(path))
            return dcp.verify(path, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "verify", counting)

    def take(self) -> list[str]:
        taken, self.names = self.names, []
        return taken


def test_what_was_verified_is_not_read_again_until_a_file_changes(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    root, reads = copy("step-10", "step-20"), Reads(monkeypatch)
    assert [c.level for c in CheckpointRoom(str(root)).survey()] == [Level.VERIFIED, None]
    assert reads.take() == ["step-20"]
    assert CheckpointRoom(str(root)).survey()[0].valid and not reads.take()
    assert [c.valid for c in CheckpointRoom(str(root)).survey(Depth.ALL)] == [True, True]
    assert reads.take() == ["step-10"]
    os.utime(root / "step-20" / "__0_0.distcp")
    assert CheckpointRoom(str(root)).survey()[0].valid and reads.take() == ["step-20"]
    kept = (root / "step-20" / "__0_0.distcp").stat()
    until(lambda: tick(root.parent) > kept.st_ctime_ns, 5, "the file system's clock to go on: it ticks in milliseconds")
    damage(root / "step-20")
    os.utime(root / "step-20" / "__0_0.distcp", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert [c.valid for c in CheckpointRoom(str(root)).survey()] == [False, True]
    assert reads.take() == ["step-20"]
    assert CheckpointRoom(str(root)).survey(Depth.STRUCTURE)[0].level is Level.COMPLETE


def tick(folder: Path) -> int:
    (folder / "probe").touch()
    return (folder / "probe").stat().st_ctime_ns


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"schema": 1, "checkpoints": {}}',
        b'{"schema": 2, "checkpoints": []}',
        b'{"schema": 2, "checkpoints": {"step-10": {}}}',
        b'{"schema": 2, "checkpoints": {"step-10": ' + ROW % (b"null", b"") + b"}}",
        b'{"schema": 2, "checkpoints": {"step-10": ' + ROW % (b"3", b'["a", [1]]') + b"}}",
    ],
)
def test_unreadable_memory_is_no_memory(copy: Copy, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    root, reads = copy("step-10", "step-20"), Reads(monkeypatch)
    (root / ".gangrun").mkdir()
    (root / ".gangrun" / "verified.json").write_bytes(content)
    assert CheckpointRoom(str(root)).survey(Depth.ALL)[1].level is Level.VERIFIED
    assert reads.take() == ["step-20", "step-10"]
    assert json.loads((root / ".gangrun" / "verified.json").read_bytes())["schema"] == 2


def test_a_file_name_that_is_no_utf_8_is_remembered_with_all_others(tmp_path: Path) -> None:
    name = os.fsdecode(b"weights-\xff.bin")
    judged = {one: dcp.Judgement(Level.VERIFIED, "", True, ((one, (1, 2, 3, 4)),), "", 1, 1) for one in (name, "a")}
    before = VerifiedBefore(str(tmp_path))
    for step, one in judged.items():
        before.remember(step, one)
    assert before.save() == ""
    assert VerifiedBefore(str(tmp_path))._known == judged


def test_a_memory_that_cannot_be_written_costs_only_time(copy: Copy, tmp_path: Path) -> None:
    root = copy("step-10", "step-20")
    (root / ".gangrun").symlink_to(tmp_path)  # a link to elsewhere is not written through
    resume = CheckpointRoom(str(root)).choose_and_set_aside(AUTO, "0")
    assert step_of(resume) == 20
    assert len(resume.notes) == 1 and "cannot be saved in" in resume.notes[0]
    assert not (tmp_path / "verified.json").exists()


def test_a_file_left_by_a_writer_that_died_is_written_over(copy: Copy) -> None:
    root = copy("step-10", "step-20")
    (root / ".gangrun").mkdir()
    (root / ".gangrun" / f".verified.json.{os.getpid()}").write_bytes(b"torn")
    CheckpointRoom(str(root)).survey()
    assert names(root / ".gangrun") == ["verified.json"]


def test_long_readings_report_how_far_they_are(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_TOLD_EVERY_BYTES", 100_000)
    root = copy("step-10", "step-20")
    told: list[VerifyProgress] = []
    CheckpointRoom(str(root), progress=told.append).survey()
    assert len(told) > 2 and {p.step for p in told} == {20}
    assert [p.done_bytes for p in told] == sorted(p.done_bytes for p in told)
    assert told[0].done_bytes == 0 < told[1].done_bytes < told[-1].done_bytes == told[-1].total_bytes


def test_a_hundred_checkpoints_are_screened_anew_and_from_memory_alike(written: Path, tmp_path: Path) -> None:
    for step in range(1, 101):
        shutil.copytree(written / "step-40", tmp_path / f"step-{step}")
    anew, again = (CheckpointRoom(str(tmp_path)).survey(Depth.STRUCTURE) for _ in range(2))
    assert len(anew) == 100
    assert again == anew
