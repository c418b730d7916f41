"""One file that the script overwrites: its copies, and what a run gets where the newest save is torn."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gangrun.checkpoint.kept_copies import KeptCopies
from gangrun.checkpoint.scan import Identity, OneFile, StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom, Depth, Resume
from gangrun.core.checkpoints.resume import Chosen, FromZero, Kind, NothingValid, ResumeRequest, parse_resume
from gangrun.core.model import Level, Poisoned

torch = pytest.importorskip("torch")
SECOND_NS = 10**9
T0_NS = 1_795_000_000 * SECOND_NS


@dataclass
class Saved:
    """``latest.pt`` as a script leaves it, by number: each save is a second newer."""

    folder: Path
    copies_count: int = 2
    may_rotate: Callable[[], bool] = lambda: True
    give_up: Callable[[], bool] = lambda: False
    room: CheckpointRoom = field(init=False)

    def __post_init__(self) -> None:
        self.anew()

    def anew(self) -> None:
        """As another supervisor finds it."""
        file = OneFile("latest.pt", self.copies_count)
        copies = KeptCopies(str(self.folder), file, lambda: self.may_rotate(), lambda: self.give_up())
        self.room = CheckpointRoom(str(self.folder), file, copies=copies)

    @property
    def path(self) -> Path:
        return self.folder / "latest.pt"

    def save(self, number: int, *, renamed: bool = False, torn: bool = False) -> None:
        new = self.folder / "being-written"
        torch.save({"number": number, "weights": torch.full((1000,), float(number))}, new)
        if torn:
            os.truncate(new, 3000)
        os.utime(new, ns=(T0_NS + number * SECOND_NS,) * 2)
        if renamed:
            new.replace(self.path)
        else:
            shutil.copyfile(new, self.path)
            shutil.copystat(new, self.path)
            new.unlink()

    def seen(self) -> int | None:
        """The number of what a supervisor sees that has seen nothing."""
        found = self.room.newest_valid_above(-1)
        return None if found is None else number_in(Path(found.path))

    def choose(self, request: str = "auto", best: int = 10**15, **options: object) -> Resume:
        return self.room.choose_and_set_aside(parse_resume(request), "run-3", best, **options)  # type: ignore[arg-type]

    def numbers(self) -> dict[str, int]:
        return {path.name: number_in(path) for path in sorted(self.folder.iterdir()) if path.is_file()}


def number_in(path: Path) -> int:
    return int(torch.load(path)["number"])


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def test_the_file_is_the_newest_checkpoint(saved: Saved) -> None:
    saved.save(1)
    (one,) = saved.room.survey(Depth.STRUCTURE)
    assert (one.kind, one.level, one.valid) == (Kind.FILE, Level.COMPLETE, False)
    choice = saved.choose().choice
    assert isinstance(choice, Chosen) and choice.checkpoint.path == str(saved.path)
    assert choice.reason == (
        "resuming from the save of 2026-11-18 11:06:41 UTC (step not known): verified, every checksum holds"
    )


def test_copies_are_taken_once_of_each_save_and_rotate(saved: Saved) -> None:
    for number in (1, 2, 3, 4):
        saved.save(number)
        assert [saved.seen(), saved.seen()] == [number, number]
    assert saved.numbers() == {"latest.pt": 4, "latest.pt.1": 4, "latest.pt.2": 3}
    assert (saved.folder / "latest.pt.1").stat().st_mtime_ns == saved.path.stat().st_mtime_ns
    assert len({(saved.folder / name).stat().st_ino for name in saved.numbers()}) == 3, "a link is no copy"
    assert not list((saved.folder / ".gangrun").glob("copying-*"))


def test_nothing_is_copied_unless_the_user_asks_for_it(saved: Saved) -> None:
    saved.copies_count = 0
    saved.anew()
    saved.save(1)
    assert saved.seen() == 1 and saved.numbers() == {"latest.pt": 1}


def test_a_torn_file_is_not_copied_and_not_seen(saved: Saved) -> None:
    saved.save(1)
    saved.seen()
    saved.save(2, torn=True)
    found = saved.room.newest_valid_above((T0_NS + SECOND_NS) // 10**6)
    assert found is None and number_in(saved.folder / "latest.pt.1") == 1
    assert not (saved.folder / "latest.pt.2").exists()


def test_the_newest_whole_copy_takes_a_torn_files_place(saved: Saved) -> None:
    for number in (1, 2):
        saved.save(number)
        saved.seen()
    saved.save(3, torn=True)
    saved.anew()
    found = saved.choose()
    assert isinstance(found.choice, Chosen) and found.choice.checkpoint.path == str(saved.path)
    assert "latest.pt (3000 bytes) is torn or damaged: the end of its archive is not there" in found.choice.reason
    assert found.choice.reason.endswith("; gangrun put latest.pt.1 back as latest.pt")
    assert saved.numbers() == {"latest.pt": 2, "latest.pt.1": 2, "latest.pt.2": 1}
    assert saved.path.stat().st_ino != (saved.folder / "latest.pt.1").stat().st_ino, "the script writes over it"
    (moved,) = found.moved
    assert Path(moved.now_at).stat().st_size == 3000
    saved.path.unlink()
    assert os.system(moved.undo) == 0 and saved.path.stat().st_size == 3000


def test_a_torn_copy_is_passed_over_too(saved: Saved) -> None:
    for number in (1, 2):
        saved.save(number)
        saved.seen()
    os.truncate(saved.folder / "latest.pt.1", 2000)
    saved.save(3, torn=True)
    assert isinstance(saved.choose().choice, Chosen) and number_in(saved.path) == 1


def test_without_a_copy_the_run_stops_and_is_told_what_to_do(saved: Saved) -> None:
    saved.copies_count = 0
    saved.anew()
    saved.save(1, torn=True)
    found = saved.choose().choice
    assert isinstance(found, NothingValid) and saved.path.stat().st_size == 3000
    assert "latest.pt (3000 bytes) is torn or damaged" in found.reason
    assert found.reason.endswith("not starting again from zero; to begin anew, move latest.pt away")
    saved.save(1)
    shutil.copy(saved.path, saved.folder / "latest.pt.1")
    os.truncate(saved.path, 3000)
    hinted = saved.choose().choice
    assert hinted.reason.endswith("; latest.pt.1 is there: --keep-copies 1 lets gangrun step back to it")


def test_a_run_killed_in_its_first_save_begins_anew(saved: Saved) -> None:
    saved.save(1, torn=True)
    assert isinstance(saved.choose(best=-1).choice, NothingValid), "who knows what the file was before this run?"
    found = saved.choose(best=-1, first=False)
    assert isinstance(found.choice, FromZero) and not saved.path.exists()
    assert "latest.pt (3000 bytes) is torn or damaged" in found.choice.reason
    assert found.moved[0].path == str(saved.path)


def test_what_bears_the_name_wins_over_newer_copies(saved: Saved) -> None:
    for number in (1, 2):
        saved.save(number)
        saved.seen()
    shutil.copy2(saved.folder / "latest.pt.2", saved.path)  # by hand
    choice = saved.choose().choice
    assert isinstance(choice, Chosen) and number_in(saved.path) == 1


def test_a_file_that_is_gone_comes_back_from_its_copy(saved: Saved) -> None:
    saved.save(1)
    saved.seen()
    saved.path.unlink()
    assert isinstance(saved.choose().choice, Chosen) and number_in(saved.path) == 1
    shutil.rmtree(saved.folder)
    saved.folder.mkdir()
    assert isinstance(saved.choose().choice, NothingValid)


def test_a_person_may_ask_for_a_copy(saved: Saved) -> None:
    for number in (1, 2):
        saved.save(number)
        saved.seen()
    found = saved.choose(str(saved.folder / "latest.pt.2"))
    assert isinstance(found.choice, Chosen) and number_in(saved.path) == 1
    assert number_in(Path(found.moved[0].now_at)) == 2
    refused = saved.choose(str(saved.folder / "other.pt")).choice
    assert refused.reason.startswith(
        f"cannot resume from {saved.folder}/other.pt, as asked: it is neither latest.pt nor"
    )


def test_a_poisoned_file_makes_way_for_a_copy(saved: Saved) -> None:
    for number in (1, 2):
        saved.save(number)
        saved.seen()
    newest = saved.room.survey()[0]
    assert newest.level is not None
    bad = Poisoned(newest.step, str(saved.path), "s", 3, "it fails", "it fails", newest.level, newest.step)
    found = saved.choose(condemned=bad)
    assert isinstance(found.choice, Chosen) and number_in(saved.path) == 1


def test_a_pickle_is_unknown_and_hides_its_copies(saved: Saved) -> None:
    saved.save(1)
    saved.seen()
    torch.save({"number": 2}, saved.path, _use_new_zipfile_serialization=False)
    assert saved.seen() == 1, "the copy"
    choice = saved.choose(best=-1).choice
    assert isinstance(choice, FromZero)
    assert choice.reason.startswith("the script itself decides what to load, whose format gangrun does not know")
    assert "latest.pt cannot be judged: torch.save before 1.6 wrote it" in choice.reason
    accepts = CheckpointRoom(str(saved.folder), OneFile("latest.pt"), validator=lambda path: (True, ""))
    vouched = accepts.choose_and_set_aside(ResumeRequest(), "run-4").choice
    assert isinstance(vouched, Chosen) and vouched.checkpoint.path == str(saved.path)


def test_links_serve_while_the_script_renames(saved: Saved) -> None:
    for number in (1, 2, 3):
        saved.save(number, renamed=True)
        saved.seen()
    inodes = {name: (saved.folder / name).stat().st_ino for name in saved.numbers()}
    assert saved.numbers() == {"latest.pt": 3, "latest.pt.1": 3, "latest.pt.2": 2}
    assert inodes["latest.pt"] == inodes["latest.pt.1"]
    saved.save(4)  # in place, so the link holds it too
    saved.seen()
    assert saved.numbers() == {"latest.pt": 4, "latest.pt.1": 4, "latest.pt.2": 2}
    assert saved.path.stat().st_nlink == 1, "the link would be torn with the next save"
    saved.save(5, renamed=True)
    saved.seen()
    assert saved.path.stat().st_nlink == 1, "once seen in place, never linked again"


def test_a_file_that_gangrun_put_in_place_is_no_rename_of_the_scripts(saved: Saved) -> None:
    saved.save(1)
    saved.seen()
    saved.save(2, torn=True)
    saved.choose()
    saved.save(3)
    saved.seen()
    assert saved.path.stat().st_nlink == 1
    saved.save(4, torn=True)
    assert number_in(saved.folder / "latest.pt.1") == 3


def test_a_deposed_supervisor_rotates_nothing(saved: Saved) -> None:
    saved.save(1)
    saved.seen()
    saved.save(2)
    saved.may_rotate = lambda: False
    assert saved.seen() == 2
    assert saved.numbers() == {"latest.pt": 2, "latest.pt.1": 1}
    assert not list((saved.folder / ".gangrun").glob("copying-*"))


def test_a_copy_is_given_up_for_what_is_more_urgent(saved: Saved) -> None:
    saved.save(1)
    saved.give_up = lambda: True
    assert saved.seen() == 1 and saved.numbers() == {"latest.pt": 1}
    saved.give_up = lambda: False
    assert saved.seen() == 1 and saved.numbers() == {"latest.pt": 1, "latest.pt.1": 1}


def test_a_save_that_begins_while_it_is_copied_is_no_copy(saved: Saved) -> None:
    saved.save(1)
    judged = Identity.of(str(saved.path))

    def writes() -> bool:
        saved.save(2)
        return False

    copies = KeptCopies(str(saved.folder), OneFile("latest.pt", 1), give_up=writes)
    assert copies.keep(judged) == (
        "no copy of latest.pt is kept: the script writes to it, or the checkpoint directory is needed"
    )
    assert saved.numbers() == {"latest.pt": 2}


def test_no_copy_takes_the_room_of_the_next_save(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.save(1)
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: full)
    copies = KeptCopies(str(saved.folder), OneFile("latest.pt", 1))
    assert copies.keep(Identity.of(str(saved.path))) == "no copy of latest.pt is kept: No space left on device"


def test_where_there_is_no_room_the_copy_itself_takes_the_place(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.save(1)
    saved.seen()
    saved.save(2, torn=True)
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: full)
    assert isinstance(saved.choose().choice, Chosen)
    assert saved.numbers() == {"latest.pt": 1}


def test_a_piece_at_a_time_where_the_file_system_copies_nothing(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "copy_file_range", refused)
    monkeypatch.setattr("gangrun.checkpoint.kept_copies.PIECE_BYTES", 700)
    saved.save(1)
    saved.seen()
    assert saved.numbers() == {"latest.pt": 1, "latest.pt.1": 1}


def test_links_and_pipes_are_not_judged(saved: Saved) -> None:
    saved.save(1)
    saved.path.rename(saved.folder / "real.pt")
    saved.path.symlink_to("real.pt")
    choice = saved.choose(best=-1).choice
    assert isinstance(choice, FromZero) and "it is a symbolic link, which is not followed" in choice.reason
    assert saved.seen() is None and saved.path.is_symlink()


def test_a_folder_that_cannot_be_read_is_no_answer(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    room = CheckpointRoom(str(tmp_path / "file"), OneFile("latest.pt"))
    with pytest.raises(StorageUnreadable):
        room.survey()
