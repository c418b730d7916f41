"""The store: in order, off the loop, insisting through trouble, silent once deposed."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import JournalReader, RanksNote, note_ranks, read_counter, read_ranks
from gangrun.adapters.fs.run_dir import RunPaths, mark_cancelled
from gangrun.adapters.fs.store import FsStore, Mail
from gangrun.adapters.fs.terms import FsTerms
from gangrun.ports import Clock, Deposed, Stored, StoreTrouble, Withheld
from tests.faults.disk import PausableDisk
from tests.fs.bench import HandClock, RealClock, new_run, note, snapshot, start
from tests.waiting import until

WITHIN_S = 60.0


class CountedClock(HandClock):
    """Counts how often anybody looked at it."""

    asked_count = 0

    def now(self) -> float:
        self.asked_count += 1
        return super().now()


class Desk:
    """A store of term 1 and the mail it sends."""

    def __init__(
        self, base: Path, disk: Disk | None = None, clock: Clock | None = None, counter_every_s: float = 5.0
    ) -> None:
        self.paths: RunPaths = new_run(base)
        self.terms = FsTerms(self.paths, RealClock())
        assert self.terms.open_acts(1)
        self.mail: queue.Queue[Mail] = queue.Queue()
        self.store = FsStore(self.paths, 1, self.mail.put, clock or RealClock(), disk, counter_every_s)

    def next(self) -> Mail:
        return self.mail.get(timeout=WITHIN_S)


@pytest.fixture
def disk() -> Iterator[PausableDisk]:
    pausable = PausableDisk()
    yield pausable
    pausable.resume()


def test_records_then_tickets_then_mail_in_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    records = [snapshot(1), start(1, 1, 1), note(1, 2), start(1, 3, 2, attempt=1)]
    for record in records:
        desk.store.commit(record, [act.n for act in record.actions])
    assert [desk.next() for _ in records] == [Stored(n) for n in range(4)]
    assert list(JournalReader(desk.paths).read().records) == records
    assert desk.paths.ticket(1, 1).read_text() == "StartGang 0\n"
    assert desk.paths.ticket(1, 2).read_text() == "StartGang 1\n"
    assert desk.store.close(WITHIN_S)
    with pytest.raises(RuntimeError, match="after close"):
        desk.store.commit(note(1, 4), ())


def test_the_ticket_of_a_start_is_withheld_once_the_run_is_cancelled(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.store.commit(snapshot(1), ())
    desk.store.commit(start(1, 1, 1), [1])
    assert [desk.next(), desk.next()] == [Stored(0), Stored(1)]
    mark_cancelled(Disk(), desk.paths, "a person", 0.0)
    desk.store.commit(start(1, 2, 2, attempt=1), [2])
    assert desk.next() == Withheld(2, "a person")
    assert not desk.paths.ticket(1, 2).exists()
    assert desk.store.close(WITHIN_S)


def test_a_quiet_term_that_is_sealed_learns_of_it_with_its_next_sign_of_life(tmp_path: Path) -> None:
    clock = HandClock()
    desk = Desk(tmp_path, clock=clock)
    assert desk.store.seen_open_at() == float("-inf")
    desk.store.commit(snapshot(1), ())
    assert desk.next() == Stored(0)
    assert desk.store.seen_open_at() == clock.now()
    clock.wait(6.0)
    desk.store.note_progress({})
    until(lambda: desk.store.seen_open_at() == clock.now(), 20, "the counter's write tells too")
    desk.terms.seal_before(2)
    clock.wait(6.0)
    desk.store.note_progress({})
    assert isinstance(desk.next(), Deposed)
    assert desk.store.seen_open_at() == clock.now() - 6.0


def test_a_thousand_records_in_few_appends_are_in_order(tmp_path: Path, disk: PausableDisk) -> None:
    desk = Desk(tmp_path, disk)
    disk.pause()
    desk.store.commit(snapshot(1), ())
    for n in range(1, 1000):
        desk.store.commit(note(1, n), ())
    disk.resume()
    assert desk.store.close(60.0)
    assert [desk.next() for _ in range(1000)] == [Stored(n) for n in range(1000)]
    assert [record.n for record in JournalReader(desk.paths).read().records] == list(range(1000))


def test_a_stalled_disk_blocks_nobody_but_the_store(tmp_path: Path, disk: PausableDisk) -> None:
    desk = Desk(tmp_path, disk)
    disk.pause()
    desk.store.commit(snapshot(1), ())
    desk.store.note_progress({"step": 1})
    until(lambda: disk.waiting_count > 0, 20, "the store's thread blocked")
    desk.store.commit(note(1, 1), ())
    assert desk.mail.empty()
    disk.resume()
    assert [desk.next(), desk.next()] == [Stored(0), Stored(1)]


def test_a_store_closed_while_the_disk_stood_still_takes_no_ticket_later(tmp_path: Path, disk: PausableDisk) -> None:
    desk = Desk(tmp_path, disk)
    disk.pause()
    desk.store.commit(snapshot(1), ())
    desk.store.commit(start(1, 1, 1), (1,))
    until(lambda: disk.waiting_count > 0, 20, "the store's thread blocked")
    assert not desk.store.close(0.05), "not drained, and it says so"
    disk.resume()
    desk.store._thread.join(WITHIN_S)
    assert not desk.store._thread.is_alive()
    assert desk.mail.empty()
    assert not desk.paths.ticket(1, 1).exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE, errno.EDQUOT])
def test_trouble_is_said_once_and_the_record_gets_there_in_the_end(
    tmp_path: Path, disk: PausableDisk, code: int
) -> None:
    desk = Desk(tmp_path, disk)
    desk.store.commit(snapshot(1), ())
    assert desk.next() == Stored(0)
    disk.fail(code)
    desk.store.commit(start(1, 1, 1), (1,))
    desk.store.commit(note(1, 2), ())
    first = desk.next()
    assert isinstance(first, StoreTrouble)
    assert first.n == 1
    tried = disk.refused_count
    until(lambda: disk.refused_count > tried + 1, 20, "some tries more")
    assert desk.mail.empty(), "the same reason is said once"
    disk.fail(errno.ENOSPC if code != errno.ENOSPC else errno.EROFS)
    second = desk.next()
    assert isinstance(second, StoreTrouble)
    assert second.why != first.why
    disk.resume()
    assert [desk.next(), desk.next()] == [Stored(1), Stored(2)]
    assert [record.n for record in JournalReader(desk.paths).read().records] == [0, 1, 2]
    assert desk.store.close(WITHIN_S)


def _write(fd: int) -> int:
    try:
        return os.write(fd, b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017
        return 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True)
    if mount.returncode:
        pytest.skip("cannot mount here")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_file_system_really_full_and_then_not(small: Path) -> None:
    desk = Desk(small)
    desk.store.commit(snapshot(1), ())
    assert desk.next() == Stored(0)
    ballast = small / "ballast"
    with ballast.open("wb", buffering=0) as file:
        written = 4096
        while written == 4096:
            written = _write(file.fileno())
    for n in range(1, 60):
        desk.store.commit(note(1, n), ())
    assert desk.next() == StoreTrouble(1, "No space left on device")
    assert [record.n for record in JournalReader(desk.paths).read().records] == [0]
    ballast.unlink()
    assert [desk.next() for _ in range(59)] == [Stored(n) for n in range(1, 60)]
    assert desk.store.close(WITHIN_S)
    assert JournalReader(desk.paths).read().notes == ()


def test_trouble_with_a_ticket_is_tried_again_too(tmp_path: Path) -> None:
    class NoTickets(Disk):
        broken = True

        def create(self, path: Path, mode: int = 0o600) -> int:
            if path.parent.name.endswith(".acts") and self.broken:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().create(path, mode)

    disk = NoTickets()
    desk = Desk(tmp_path, disk)
    desk.store.commit(snapshot(1), ())
    desk.store.commit(start(1, 1, 1), (1,))
    assert [desk.next(), desk.next()] == [Stored(0), StoreTrouble(1, "No space left on device")]
    disk.broken = False
    assert desk.next() == Stored(1)


@pytest.mark.parametrize("tickets", [(1,), ()], ids=["with an act", "without"])
def test_after_the_seal_nothing_is_said_to_be_stored(tmp_path: Path, tickets: tuple[int, ...]) -> None:
    """Also a record without acts: an ack built on it would be for something the next term has not read."""
    desk = Desk(tmp_path)
    desk.store.commit(snapshot(1), ())
    assert desk.next() == Stored(0)
    desk.terms.seal_before(2)
    desk.store.commit(start(1, 1, 1) if tickets else note(1, 1), tickets)
    desk.store.commit(note(1, 2), ())
    assert isinstance(desk.next(), Deposed)
    assert not desk.store.close(WITHIN_S)
    assert desk.mail.empty()


def test_a_journal_that_is_there_already_means_deposed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.paths.journal(1).write_bytes(b"")
    desk.store.commit(snapshot(1), ())
    said = desk.next()
    assert isinstance(said, Deposed)
    assert "somebody else wrote as term 1" in said.why
    assert desk.paths.journal(1).read_bytes() == b""


def test_a_store_that_breaks_says_so(tmp_path: Path) -> None:
    class Broken(Disk):
        def fsync(self, fd: int, path: Path) -> None:
            raise RuntimeError("a bug")

    desk = Desk(tmp_path, Broken())
    desk.store.commit(snapshot(1), ())
    assert desk.next() == Deposed("the store broke: RuntimeError: a bug")


def test_close_gives_up_on_a_full_disk_at_its_deadline(tmp_path: Path, disk: PausableDisk) -> None:
    desk = Desk(tmp_path, disk)
    disk.fail(errno.ENOSPC)
    desk.store.commit(snapshot(1), ())
    assert isinstance(desk.next(), StoreTrouble)
    assert not desk.store.close(0.05)
    desk.store._thread.join(WITHIN_S)
    assert not desk.store._thread.is_alive()


def test_the_counter_is_written_at_most_every_five_seconds(tmp_path: Path) -> None:
    clock = HandClock()
    desk = Desk(tmp_path, clock=clock)
    desk.store.commit(snapshot(1), ())
    desk.store.note_progress({"step": 1, "loss": 2.5})
    assert desk.next() == Stored(0)
    for n in range(1, 4):
        desk.store.note_progress({"step": n})
        desk.store.commit(note(1, n), ())
        assert desk.next() == Stored(n)
    live = read_counter(Disk(), desk.paths, 1)
    assert live is not None
    assert (live.count, live.live["step"] in (1, 2)) == (1, True)
    clock.at += 5.0
    desk.store.note_progress({"step": 9})
    desk.store.commit(note(1, 4), ())
    assert desk.next() == Stored(4)
    live = read_counter(Disk(), desk.paths, 1)
    assert live is not None
    assert (live.count, live.live) == (2, {"step": 9})
    assert desk.store.close(WITHIN_S)


def test_figures_that_come_a_little_early_are_written_when_they_are_due(tmp_path: Path) -> None:
    """The loop tells them every five seconds, the store's five seconds begin a little later: no note may wait for the
    next one.
    """
    clock = CountedClock()
    desk = Desk(tmp_path, clock=clock, counter_every_s=1.0)
    desk.store.note_progress({"step": 1})
    until(lambda: bool(written(desk)) and desk.store._counter_works, 20, "the first is written")
    clock.wait(0.5)
    asked = clock.asked_count
    desk.store.note_progress({"step": 2})
    until(lambda: clock.asked_count > asked, 20, "the store sees that it is not time yet")
    clock.wait(0.5)
    until(lambda: written(desk) == {"step": 2}, 20, "the second is written, although no other came")
    assert desk.store.close(WITHIN_S)


def test_ranks_are_noted_although_newer_figures_without_them_came_first(tmp_path: Path) -> None:
    clock = HandClock()
    desk = Desk(tmp_path, clock=clock)
    rows, newer = {"n0": [(0, 4711, "R", 12)]}, {"n0": [(0, 4711, "R", 13)]}
    desk.store.note_progress({"attempt": 3, "step": 11})
    until(lambda: written(desk) == {"attempt": 3, "step": 11}, 20, "the first is written")
    desk.store.note_progress({"attempt": 3, "step": 12, "ranks": rows, "rank_gpus": {0: [1]}})
    desk.store.note_progress({"attempt": 4, "step": 13})  # such as the warning of a hang
    clock.wait(5.0)
    desk.store.note_progress({"attempt": 4, "step": 14})
    until(lambda: read_ranks(Disk(), desk.paths) == RanksNote(3, rows, {0: [1]}), 20, "the ranks are noted")
    assert written(desk) == {"attempt": 4, "step": 14}
    clock.wait(5.0)
    desk.store.note_progress({"attempt": 4, "step": 15, "ranks": newer})
    until(lambda: read_ranks(Disk(), desk.paths) == RanksNote(4, newer), 20, "the newer ranks are noted")
    assert desk.store.close(WITHIN_S)


def written(desk: Desk) -> object:
    live = read_counter(Disk(), desk.paths, 1)
    return None if live is None else live.live


def test_ranks_that_the_disk_refused_are_noted_with_the_next_figures(tmp_path: Path) -> None:
    class NoFolders(Disk):
        full = True

        def mkdir(self, path: Path, mode: int = 0o700) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "full")
            super().mkdir(path, mode)

    clock, disk = HandClock(), NoFolders()
    desk = Desk(tmp_path, disk, clock)
    rows = {"n0": [(0, 4711, "R", 12)]}
    desk.store.note_progress({"attempt": 3, "step": 12, "ranks": rows})
    until(lambda: written(desk) == {"attempt": 3, "step": 12}, 20, "the figures are written, the ranks not")
    disk.full = False
    clock.wait(5.0)
    desk.store.note_progress({"attempt": 3, "step": 13})
    until(lambda: read_ranks(Disk(), desk.paths) == RanksNote(3, rows), 20, "the ranks are noted")
    assert desk.store.close(WITHIN_S)


def test_the_ranks_have_a_file_beside_the_counter(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    rows = {"n0": [(0, 4711, "R", 12)]}
    desk.store.note_progress({"attempt": 3, "step": 12, "ranks": rows})
    until(lambda: read_ranks(Disk(), desk.paths) == RanksNote(3, rows), 10, "ranks are noted")
    live = read_counter(Disk(), desk.paths, 1)
    assert live is not None and live.live == {"attempt": 3, "step": 12}


def test_ranks_that_a_deposed_supervisor_notes_late_hide_no_newer_ones(tmp_path: Path) -> None:
    paths, old, new = RunPaths(tmp_path), {"n0": [(0, 11, "R", 5)]}, {"n0": [(0, 22, "R", 9)]}
    paths.machine.mkdir()
    note_ranks(Disk(), paths, 3, 0, old)
    note_ranks(Disk(), paths, 4, 0, new)
    note_ranks(Disk(), paths, 3, 0, old)
    assert read_ranks(Disk(), paths) == RanksNote(0, new)
    note_ranks(Disk(), paths, 4, 1, new)
    assert [path.name for path in paths.ranks.iterdir()] == ["4.json"]


def test_the_counter_goes_on_while_the_journal_is_in_trouble(tmp_path: Path) -> None:
    class JournalFull(Disk):
        def write(self, fd: int, data: bytes, path: Path) -> int:
            raise OSError(errno.ENOSPC, "full")

    clock = HandClock()
    desk = Desk(tmp_path, JournalFull(), clock)
    desk.store.commit(snapshot(1), ())
    assert isinstance(desk.next(), StoreTrouble)
    desk.store.note_progress({"step": 1})
    until(lambda: read_counter(Disk(), desk.paths, 1) is not None, 20, "a counter file")
    desk.store.close(0.0)


def test_a_torn_or_missing_counter_is_none(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    assert read_counter(Disk(), paths, 1) is None
    paths.counter(1).write_bytes(b'{"count":3,"wa')
    assert read_counter(Disk(), paths, 1) is None
