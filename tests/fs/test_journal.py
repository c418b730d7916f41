"""Journals, whole and broken: read up to where they can be trusted, refused where not, never anything else."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import (
    JournalDamaged,
    JournalError,
    JournalFollower,
    JournalReader,
    JournalShrank,
    JournalTooNew,
    JournalWriter,
    read_file,
    read_history,
)
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.wire import record as wire_record
from gangrun.wire.record import Record
from tests.fs.bench import TriggerDisk, fork, new_run, note, snapshot

DISK = Disk()


def lines_of(term: int, count: int) -> list[bytes]:
    return [wire_record.encode(record) for record in records_of(term, count)]


def records_of(term: int, count: int) -> list[Record]:
    return [snapshot(term), *(note(term, n) for n in range(1, count))][:count]


def newer(line: bytes) -> bytes:
    record = wire_record.decode(line)
    return wire_record.encode(msgspec.structs.replace(record, v=99))


def put(paths: RunPaths, term: int, data: bytes) -> None:
    paths.journal(term).write_bytes(data)


def test_whole_journals_over_terms(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 3)))
    put(paths, 4, b"".join(lines_of(4, 2)))
    history = read_history(DISK, paths, 9)
    assert (list(history.records), history.notes) == (records_of(1, 3) + records_of(4, 2), ())
    assert list(read_history(DISK, paths, 4).records) == records_of(1, 3)
    assert JournalReader(paths).read() == history
    assert list(JournalReader(paths).read(newest_only=True).records) == records_of(4, 2)
    assert read_history(DISK, new_run(tmp_path), 3).records == ()


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_dropped_with_a_note(tmp_path: Path, cut: int) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 4))[: -1 - cut])
    history = read_history(DISK, paths, 2)
    assert list(history.records) == records_of(1, 3)
    assert len(history.notes) == 1
    assert "1.jsonl line 4: cut off" in history.notes[0] or "line 4: its checksum" in history.notes[0]
    assert "state is right up to record 2" in history.notes[0]
    assert JournalReader(paths).read() == history


def test_a_whole_last_record_without_its_newline_counts(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 3))[:-1])
    assert list(read_history(DISK, paths, 2).records) == records_of(1, 3)


def test_zeroes_at_the_end_as_a_crashed_server_leaves_them(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 3)) + b"\0" * 4096)
    history = read_history(DISK, paths, 2)
    assert (list(history.records), len(history.notes)) == (records_of(1, 3), 1)


def test_garbage_in_the_middle_that_costs_records_is_refused_naming_file_and_line(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 5)
    lines[2] = lines[2].replace(b"step 2", b"step 9")
    put(paths, 1, b"".join(lines))
    with pytest.raises(JournalDamaged) as caught:
        read_history(DISK, paths, 2)
    assert f"{paths.journal(1)} line 3: its checksum does not hold; records from 2 on are missing" in str(caught.value)
    # A viewer still shows what is right, and says so.
    shown = JournalReader(paths).read()
    assert list(shown.records) == records_of(1, 2)
    assert shown.notes == (str(caught.value),)


def test_garbage_that_costs_nothing_is_passed_over(tmp_path: Path) -> None:
    """Half of an append, and the same record again: what a failed write that was tried again can leave."""
    paths = new_run(tmp_path)
    lines = lines_of(1, 4)
    put(paths, 1, b"".join([*lines[:2], lines[2][:30] + b"\n", lines[2], lines[2], lines[3]]))
    history = read_history(DISK, paths, 2)
    assert list(history.records) == records_of(1, 4)
    assert ["half of an append" in history.notes[0], "is there twice" in history.notes[1]] == [True, True]


def test_a_record_missing_or_of_another_term_is_damage(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 4)
    put(paths, 1, b"".join([lines[0], lines[2], lines[3]]))
    with pytest.raises(JournalDamaged, match="record 2 follows 0"):
        read_history(DISK, paths, 2)
    put(paths, 1, b"".join([lines[0], lines_of(7, 2)[1]]))
    with pytest.raises(JournalDamaged, match="it is of term 7, not 1"):
        read_history(DISK, paths, 2)


def test_damage_in_an_older_term_is_history_only(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, lines_of(1, 1)[0] + b"garbage\n" + lines_of(1, 4)[3])
    put(paths, 2, b"".join(lines_of(2, 3)))
    history = read_history(DISK, paths, 3)
    assert list(history.records) == records_of(1, 1) + records_of(2, 3)
    assert "records from 1 on are missing" in history.notes[0]


def test_a_term_that_died_before_its_first_record_leaves_the_one_before_it(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 3)))
    put(paths, 2, lines_of(2, 1)[0][:-5])
    put(paths, 3, b"")
    assert list(read_history(DISK, paths, 4).records) == records_of(1, 3)
    put(paths, 2, b"garbage for a snapshot\n" + lines_of(2, 2)[1])
    with pytest.raises(JournalDamaged, match=r"2\.jsonl line 1"):
        read_history(DISK, paths, 4)


def test_a_newer_schema_is_refused_and_said(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 3)
    put(paths, 1, b"".join([*lines[:2], newer(lines[2])]))
    ours = wire_record.SCHEMA
    with pytest.raises(JournalTooNew, match=rf"1\.jsonl line 3: schema 99 is newer than this gangrun's {ours}"):
        read_history(DISK, paths, 2)
    assert list(JournalReader(paths).read().records) == records_of(1, 2)
    put(paths, 2, b"".join(lines_of(2, 1)))
    assert list(read_history(DISK, paths, 3).records) == records_of(1, 2) + records_of(2, 1)


# ---- any bytes ----


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_gives_a_prefix_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    paths = shared(tmp_path_factory)
    whole = b"".join(lines_of(1, 6))
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(broken)))
        match data.draw(st.sampled_from(["cut", "flip", "insert", "delete"])):
            case "cut":
                del broken[at:]
            case "flip" if at < len(broken):
                broken[at] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                broken[at:at] = data.draw(st.binary(max_size=40))
            case _:
                del broken[at : at + data.draw(st.integers(1, 200))]
    put(paths, 1, bytes(broken))
    try:
        records = list(read_history(DISK, paths, 2).records)
    except JournalError as error:
        assert "1.jsonl line" in str(error)  # noqa: PT017
        records = list(JournalReader(paths).read().records)
    assert records == records_of(1, 6)[: len(records)]
    shown = list(JournalReader(paths).read().records)
    assert shown == records_of(1, 6)[: len(shown)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_for_journal_and_claim(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    paths = shared(tmp_path_factory)
    put(paths, 1, data)
    found = read_file(DISK, paths, 1)
    assert found is not None
    assert found.records == ()
    assert JournalReader(paths).read().records == ()


_shared: dict[str, RunPaths] = {}


def shared(factory: pytest.TempPathFactory) -> RunPaths:
    if "paths" not in _shared:
        _shared["paths"] = new_run(factory.mktemp("fuzz"))
    return _shared["paths"]


# ---- writing ----


def test_a_writer_retries_a_short_write_without_a_trace(tmp_path: Path) -> None:
    """A real short write: the kernel's file size limit stops the append in the middle of a line."""
    paths = new_run(tmp_path)
    lines = lines_of(1, 3)

    def work(say: Callable[[str], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines[0]) + 25, hard))
        writer = JournalWriter(Disk(), paths.journal(1))
        writer.append(lines[0])
        with pytest.raises(OSError, match="File too large") as caught:
            writer.append(lines[1])
        say(f"{caught.value.errno} {paths.journal(1).stat().st_size}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        writer.append(lines[1])
        writer.append(lines[2])
        writer.close()

    child = fork(work)
    result, said = child.wait(), child.lines()
    assert (result, said) == ("exit 0", [f"{errno.EFBIG} {len(lines[0])}"])
    assert paths.journal(1).read_bytes() == b"".join(lines)


class Failing(Disk):
    """Half of each write, then ENOSPC, while ``full``; truncation may fail as well."""

    full = False
    truncate_works = True
    fsync_works = True

    def write(self, fd: int, data: bytes, path: Path) -> int:
        if self.full:
            if len(data) > 20:
                return super().write(fd, data[:15], path)
            raise OSError(errno.ENOSPC, "full")
        return super().write(fd, data, path)

    def truncate(self, fd: int, length: int, path: Path) -> None:
        if not self.truncate_works:
            raise OSError(errno.EIO, "no truncation")
        super().truncate(fd, length, path)

    def fsync(self, fd: int, path: Path) -> None:
        if not self.fsync_works:
            raise OSError(errno.EIO, "fsync failed")
        super().fsync(fd, path)


def test_a_tail_that_cannot_be_cut_is_cut_before_anything_else_is_written(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 3)
    disk = Failing()
    writer = JournalWriter(disk, paths.journal(1))
    writer.append(lines[0])
    disk.full, disk.truncate_works = True, False
    for _ in range(2):
        with pytest.raises(OSError, match=r"full|no truncation"):
            writer.append(lines[1])
    # Dead at this moment: the torn tail is read as what it is.
    history = read_history(DISK, paths, 2)
    assert (list(history.records), len(history.notes)) == (records_of(1, 1), 1)
    disk.full = False
    with pytest.raises(OSError, match="no truncation"):
        writer.append(lines[1])
    disk.truncate_works = True
    writer.append(lines[1] + lines[2])
    assert paths.journal(1).read_bytes() == b"".join(lines)


def test_what_a_failed_fsync_may_have_lost_is_written_again(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 2)
    disk = Failing()
    writer = JournalWriter(disk, paths.journal(1))
    disk.fsync_works = False
    with pytest.raises(OSError, match="fsync failed"):
        writer.append(lines[0])
    assert paths.journal(1).read_bytes() == b""
    disk.fsync_works = True
    writer.append(lines[0])
    writer.append(lines[1])
    assert paths.journal(1).read_bytes() == b"".join(lines)


def test_a_journal_that_lost_what_was_durable_stops_its_writer(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    disk = Failing()
    writer = JournalWriter(disk, paths.journal(1))
    writer.append(lines_of(1, 1)[0])
    disk.fsync_works = False
    with pytest.raises(OSError, match="fsync failed"):
        writer.append(lines_of(1, 2)[1])
    os.truncate(paths.journal(1), 5)
    with pytest.raises(JournalShrank, match="has 5 bytes where"):
        writer.append(lines_of(1, 2)[1])


def test_somebody_elses_journal_is_never_appended_to(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"")
    with pytest.raises(FileExistsError):
        JournalWriter(DISK, paths.journal(1)).append(lines_of(1, 1)[0])


# ---- following ----


def test_a_follower_sees_each_record_once_however_the_bytes_come(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    follower = JournalFollower(paths)
    assert follower.poll() == []
    seen: list[Record] = []
    whole = b"".join(lines_of(0, 4))
    for end in range(0, len(whole), 37):
        put(paths, 0, whole[:end])
        seen += follower.poll()
    put(paths, 0, whole)
    seen += follower.poll()
    assert seen == records_of(0, 4)
    assert follower.notes() == ()


def test_late_writes_of_a_deposed_holder_are_not_shown(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    follower = JournalFollower(paths)
    put(paths, 1, b"".join(lines_of(1, 2)))
    assert follower.poll() == records_of(1, 2)
    put(paths, 1, b"".join(lines_of(1, 3)))
    put(paths, 2, b"")
    assert follower.poll() == records_of(1, 3)[2:]
    put(paths, 2, lines_of(2, 1)[0])
    assert follower.poll() == records_of(2, 1)
    put(paths, 1, b"".join(lines_of(1, 4)))
    put(paths, 2, b"".join(lines_of(2, 2)))
    assert follower.poll() == records_of(2, 2)[1:]


def test_a_follower_from_the_newest_snapshot_goes_on_to_later_terms(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    put(paths, 1, b"".join(lines_of(1, 2)))
    put(paths, 2, b"".join(lines_of(2, 3)))
    put(paths, 3, lines_of(3, 1)[0][:-9])
    follower = JournalFollower(paths, newest_only=True)
    assert follower.poll() == records_of(2, 3)
    put(paths, 3, b"".join(lines_of(3, 2)))
    assert follower.poll() == records_of(3, 2)


@pytest.mark.parametrize("newest_only", [False, True])
def test_a_journal_that_is_listed_and_not_there_is_passed_over(tmp_path: Path, newest_only: bool) -> None:
    paths = new_run(tmp_path)
    put(paths, 2, b"".join(lines_of(2, 3)))
    paths.journal(3).symlink_to("gone")  # what a stale listing shows: a name, and no file when it is opened
    history = JournalReader(paths).read(newest_only)
    assert (list(history.records), history.notes) == (records_of(2, 3), ())


def test_a_follower_says_where_the_story_breaks_and_goes_on_with_the_next_term(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    lines = lines_of(1, 4)
    put(paths, 1, lines[0] + b"garbage\n" + lines[2] + lines[3])
    put(paths, 2, b"".join(lines_of(2, 2)))
    follower = JournalFollower(paths)
    assert follower.poll() == records_of(1, 1) + records_of(2, 2)
    assert len(follower.notes()) == 1
    assert "line 2: cut off: no checksum at its end; records from 1 on are missing" in follower.notes()[0]


def test_a_read_that_fails_loses_nothing_that_was_read_before_it(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    for term in (1, 2):
        paths.journal(term).write_bytes(wire_record.encode(snapshot(term)) + wire_record.encode(note(term, 1)))

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    counted = TriggerDisk()
    assert len(JournalFollower(paths, counted).poll()) == 4
    for k in range(counted.count):
        disk = TriggerDisk(k=k, act=fail)
        follower = JournalFollower(paths, disk)
        with pytest.raises(OSError, match="Input"):
            follower.poll()
        seen = follower.poll()
        assert [(record.term, record.n) for record in seen] == [(1, 0), (1, 1), (2, 0), (2, 1)], disk.log
