"""Claims: of many claimants one wins, whatever the file system answers; unreadable ones are void after 5 s."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import JournalDamaged
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.terms import FsTerms, Ticket, TicketRefused
from gangrun.wire import record as wire_claim
from gangrun.wire import record as wire_record
from gangrun.wire.record import History, Inherited
from tests.faults.disk import PausableDisk
from tests.fs.bench import (
    HandClock,
    NoLinkDisk,
    RealClock,
    TriggerDisk,
    as_uid,
    claim_of,
    fork,
    ground,
    new_run,
    snapshot,
    start,
    uids,
)

ROUNDS = 200


def terms_of(paths: RunPaths, disk: Disk | None = None, clock: HandClock | None = None) -> FsTerms:
    clock = clock or HandClock()
    return FsTerms(paths, clock, disk or Disk(), clock.wait)


def race(paths: RunPaths, disk: Disk, node: str, turn: mmap.mmap, me: int, say: Callable[[str], None]) -> None:
    """Claim each term at the same moment as the other: a turnstile in shared memory."""
    terms = FsTerms(paths, RealClock(), disk)
    for term in range(ROUNDS):
        turn[me] = (term + 1) % 256
        while turn[1 - me] not in ((term + 1) % 256, (term + 2) % 256):
            os.sched_yield()
        if terms.claim(claim_of(term, paths, node)):
            say(str(term))


@pytest.mark.parametrize("disk", [Disk(), NoLinkDisk()], ids=["link", "no link"])
def test_two_processes_race_for_200_claims_and_each_has_one_winner(tmp_path: Path, disk: Disk) -> None:
    paths = new_run(tmp_path)
    turn = mmap.mmap(-1, 4096)
    children = [
        fork(lambda say, i=i, node=node: race(paths, disk, node, turn, i, say))  # type: ignore[misc]
        for i, node in enumerate(["n1", "n2"])
    ]
    results = [child.wait(60.0) for child in children]
    won = [[int(line) for line in child.lines()] for child in children]
    assert results == ["exit 0", "exit 0"]
    assert sorted(won[0] + won[1]) == list(range(ROUNDS))
    for i, node in enumerate(["n1", "n2"]):
        for term in won[i]:
            assert wire_claim.decode_claim(paths.claim(term).read_bytes()).node == node
    assert not [name for name in os.listdir(paths.terms) if name.endswith(".tmp")]


def test_newest_reads_claims_and_probes_past_a_stale_listing(tmp_path: Path) -> None:
    class Stale(Disk):
        def names(self, path: Path) -> tuple[str, ...]:
            return tuple(name for name in super().names(path) if not name.startswith(("2.", "3.")))

    paths = new_run(tmp_path)
    assert terms_of(paths).newest() is None
    for term in (1, 2, 3):
        assert terms_of(paths).claim(claim_of(term, paths))
    assert not terms_of(paths).claim(claim_of(3, paths, "other"))
    found = terms_of(paths, Stale()).newest()
    assert found == claim_of(3, paths)
    assert terms_of(paths).highest() == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done, reply lost"])
def test_an_ambiguous_answer_to_link_is_lost_if_a_claim_is_there(tmp_path: Path, code: int, done: bool) -> None:
    class Unclear(Disk):
        def link(self, source: Path, target: Path) -> None:
            if done:
                super().link(source, target)
            raise OSError(code, os.strerror(code))

    paths = new_run(tmp_path)
    if done:
        assert not terms_of(paths, Unclear()).claim(claim_of(1, paths))
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            terms_of(paths, Unclear()).claim(claim_of(1, paths))
    again = terms_of(paths)
    assert again.claim(claim_of(1, paths)) is not done
    assert again.claim(claim_of(2, paths))


def test_a_claim_not_known_to_be_durable_is_lost(tmp_path: Path) -> None:
    class NoSync(Disk):
        def fsync_dir(self, path: Path) -> None:
            raise OSError(errno.EIO, "lost reply")

    paths = new_run(tmp_path)
    assert not terms_of(paths, NoSync()).claim(claim_of(1, paths))


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_no_error_says_that_there_is_no_claim_or_no_ticket(tmp_path: Path, code: int) -> None:
    paths = new_run(tmp_path)
    terms = terms_of(paths)
    assert terms.newest() is None
    assert terms.claim(claim_of(1, paths))
    assert terms.open_acts(1)
    terms.take_ticket(Ticket(1, 1, "StartGang", 4))
    disk = PausableDisk()
    broken = terms_of(paths, disk)
    disk.fail(code, looking_too=True)
    for ask in (broken.newest, broken.highest, lambda: broken.history(2), lambda: broken.claim(claim_of(2, paths))):
        with pytest.raises(OSError, match=os.strerror(code)):
            ask()
    disk.resume()
    assert broken.history(2).started_attempt == 4


def test_without_link_a_half_written_claim_is_waited_for_and_void_after_5_s(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    clock = HandClock()
    terms = terms_of(paths, NoLinkDisk(), clock)
    assert terms.claim(claim_of(1, paths))
    paths.claim(2).write_bytes(wire_claim.encode_claim(claim_of(2, paths))[:20])
    began = clock.at
    assert terms.newest() == claim_of(1, paths)
    assert 5.0 <= clock.at - began < 6.0
    assert terms.newest() == claim_of(1, paths)
    assert clock.at - began < 6.0, "void is remembered"
    assert terms.highest() == 2
    assert not terms.claim(claim_of(2, paths))
    assert terms.claim(claim_of(3, paths))


def test_a_claim_that_gets_whole_in_time_is_read(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    whole = wire_claim.encode_claim(claim_of(1, paths))
    paths.claim(1).write_bytes(whole[:9])
    clock = HandClock()

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        if clock.at > 1002.0:
            paths.claim(1).write_bytes(whole)

    assert FsTerms(paths, clock, Disk(), wait).newest() == claim_of(1, paths)


def test_a_claim_that_names_another_term_is_none(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    paths.claim(4).write_bytes(wire_claim.encode_claim(claim_of(9, paths)))
    assert terms_of(paths).newest() is None


def test_second_opener_of_acts_is_deposed_and_trouble_is_not_taken_for_it(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    assert terms_of(paths).open_acts(1)
    assert not terms_of(paths).open_acts(1)
    paths.acts(2).write_text("a seal")
    assert not terms_of(paths).open_acts(2)

    class Full(Disk):
        def mkdir(self, path: Path, mode: int = 0o700) -> None:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        terms_of(paths, Full()).open_acts(3)


def test_tickets_are_obtained_once_and_never_without_a_folder(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    terms = terms_of(paths)
    with pytest.raises(TicketRefused, match="No such file"):
        terms.take_ticket(Ticket(1, 1))
    assert terms.open_acts(1)
    terms.take_ticket(Ticket(1, 1, "StartGang", 3))
    with pytest.raises(TicketRefused, match="act 1 of term 1 was refused: File exists"):
        terms.take_ticket(Ticket(1, 1))
    terms.still_open(1)
    warnings = terms.seal_before(2)
    assert len(warnings) == (1 if os.geteuid() == 0 else 0)
    assert all("do not bind root" in warning for warning in warnings)
    assert terms.seal_before(2) == (), "once is enough"
    with pytest.raises(TicketRefused):
        terms.still_open(1)
    with pytest.raises(TicketRefused):
        terms.take_ticket(Ticket(1, 2))
    assert not terms.open_acts(0)


def test_a_seal_that_cannot_be_proven_is_an_error(tmp_path: Path) -> None:
    class ReadOnly(Disk):
        def create(self, path: Path, mode: int = 0o600) -> int:
            raise OSError(errno.EROFS, "Read-only file system")

    paths = new_run(tmp_path)
    with pytest.raises(OSError, match="Read-only"):
        terms_of(paths, ReadOnly()).seal_before(2)


def test_a_ticket_whose_record_is_gone_is_told_with_its_attempt(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    terms = terms_of(paths)
    assert terms.open_acts(1)
    paths.journal(1).write_bytes(wire_record.encode(snapshot(1)) + wire_record.encode(start(1, 1, 1, attempt=4)))
    terms.take_ticket(Ticket(1, 1, "StartGang", 4))
    assert (terms.history(2).notes, terms.history(2).ticketed_attempt) == ((), 4)
    terms.take_ticket(Ticket(1, 3, "SealAttempts", 9))
    assert (terms.history(2).ticketed_attempt, terms.history(2).started_attempt) == (9, 4)
    paths.ticket(1, 3).unlink()
    terms.take_ticket(Ticket(1, 2, "StartGang", 5))
    history = terms.history(2)
    assert history.ticketed_attempt == 5
    assert "took the ticket of act 2 (StartGang), but its record is gone" in history.notes[0]
    paths.ticket(1, 3).write_bytes(b"\xff\xfe nonsense 12")
    assert terms.history(2).ticketed_attempt == 5


def test_history_refuses_what_cannot_be_gone_on_from(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    paths.journal(1).write_bytes(
        wire_record.encode(snapshot(1)) + b"#" * 50 + b"\n" + wire_record.encode(start(1, 2, 2))
    )
    with pytest.raises(JournalDamaged, match=r"1\.jsonl line 2"):
        terms_of(paths).history(2)


def test_the_file_system_tells_how_long_nothing_was_written(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    terms = terms_of(paths)
    assert terms.history(1).quiet_s is None
    paths.journal(1).write_bytes(wire_record.encode(snapshot(1)))
    assert terms.history(2).quiet_s is None, "there is no claim to compare with"
    assert terms.claim(claim_of(2, paths))
    claimed = paths.claim(2).stat().st_mtime
    for quiet_s, found_s in ((300.0, 300.0), (-300.0, 0.0)):
        os.utime(paths.journal(1), (claimed, claimed - quiet_s))
        assert terms.history(2).quiet_s == pytest.approx(found_s)


# ---- what a takeover costs ----

TAKEOVER_OPERATIONS_MAX_COUNT = 30


def grow_old(paths: RunPaths, terms_count: int, acts_count: int) -> None:
    """As many terms as that, each of which did so many acts, was sealed and was read by the next one."""
    for term in range(1, terms_count + 1):
        paths.claim(term).write_bytes(wire_record.encode_claim(claim_of(term, paths)))
        paths.acts(term).mkdir()
        acts = range(1, acts_count + 1)
        for n in acts:
            paths.ticket(term, n).write_bytes(Ticket(term, n, "StartGang", term).note)
        if term < terms_count:
            paths.acts(term).chmod(0o500)
        records = (snapshot(term, Inherited(term - 1, term - 1, ())), *(start(term, n, n, attempt=term) for n in acts))
        paths.journal(term).write_bytes(b"".join(wire_record.encode(record) for record in records))


def take_term(paths: RunPaths, disk: Disk) -> tuple[int, History]:
    """What a supervisor does before its loop begins."""
    terms = terms_of(paths, disk)
    newest = terms.newest()
    assert newest is not None and terms.claim(claim_of(newest.term + 1, paths)) and terms.open_acts(newest.term + 1)
    terms.seal_before(newest.term + 1)
    return newest.term + 1, terms.history(newest.term + 1)


@pytest.mark.parametrize(("terms_count", "acts_count"), [(1000, 3), (2, 2000)])
def test_a_takeover_costs_the_same_however_old_the_run_is(terms_count: int, acts_count: int) -> None:
    def work() -> None:
        paths, disk = new_run(base), TriggerDisk()
        grow_old(paths, terms_count, acts_count)
        term, history = take_term(paths, disk)
        assert term == terms_count + 1
        assert (history.ticketed_attempt, history.started_attempt, history.notes) == (terms_count, terms_count, ())
        assert {record.term for record in history.records} == {terms_count}, "back to the newest snapshot, no further"
        assert disk.count <= TAKEOVER_OPERATIONS_MAX_COUNT, disk.log
        with pytest.raises(TicketRefused):
            terms_of(paths).still_open(terms_count)

    with ground(uids()[-1]) as base:  # root, whom modes do not bind, moves each ticket of the newest term
        as_uid(uids()[-1], work)


def test_numbers_of_earlier_terms_come_from_the_snapshot_or_where_it_has_none_from_their_tickets(
    tmp_path: Path,
) -> None:
    paths = new_run(tmp_path)
    grow_old(paths, 4, 1)
    paths.ticket(2, 1).write_bytes(Ticket(2, 1, "StartGang", 9).note)
    assert take_term(paths, Disk())[1].ticketed_attempt == 4, "the next term has read that one"
    for term in (2, 3, 4):
        records = (snapshot(term), start(term, 1, 1, attempt=9 if term == 2 else term))
        paths.journal(term).write_bytes(b"".join(wire_record.encode(record) for record in records))
    _, history = take_term(paths, Disk())
    assert {record.term for record in history.records} == {1, 2, 3, 4}, "an older gangrun's: nothing is carried"
    assert (history.ticketed_attempt, history.started_attempt) == (9, 9)


def test_a_seal_that_is_missing_below_the_newest_journal_was_never_needed(tmp_path: Path) -> None:
    """Terms that wrote no journal are sealed by whoever comes next; a journal tells that all before it were."""
    paths = new_run(tmp_path)
    grow_old(paths, 2, 1)
    paths.claim(3).write_bytes(wire_record.encode_claim(claim_of(3, paths)))  # it died before its first record
    take_term(paths, Disk())
    for term in (2, 3):
        with pytest.raises(TicketRefused):
            terms_of(paths).still_open(term)
