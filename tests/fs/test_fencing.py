"""A supervisor killed, or stopped and woken, at every single file operation.

The next one sees exactly what was durable, and the first obtains nothing any more. Real processes, real files; as root
(seal by removal) and as nobody (by mode).
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.store import FsStore, Mail
from gangrun.adapters.fs.terms import FsTerms
from gangrun.ports import Deposed, History, Stored
from gangrun.wire.record import Record
from tests.fs.bench import (
    RealClock,
    TriggerDisk,
    as_uid,
    claim_of,
    fork,
    ground,
    kill_self,
    new_run,
    note,
    snapshot,
    start,
    stop_self,
    uids,
)

PLAN: tuple[tuple[Record, tuple[int, ...]], ...] = (
    (snapshot(1), ()),
    (start(1, 1, 1), (1,)),
    (note(1, 2), ()),
    (start(1, 3, 2, attempt=1), (2,)),
)


def supervise(paths: RunPaths, disk: Disk, say: Callable[[str], None]) -> None:
    """A supervisor in small: claim, open acts, then record, ticket, perform; every outcome is said."""
    terms = FsTerms(paths, RealClock(), disk)
    if not terms.claim(claim_of(1, paths)):
        return say("lost")
    if not terms.open_acts(1):
        return say("deposed")
    post: queue.Queue[Mail] = queue.Queue()
    store = FsStore(paths, 1, post.put, RealClock(), disk)
    for record, tickets in PLAN:
        store.commit(record, tickets)
        match post.get(timeout=100):
            case Stored(n):
                say(f"stored {n}")
                for ticket in tickets:
                    say(f"act {ticket}")
            case Deposed():
                return say("deposed")
            case other:
                raise AssertionError(other)
    assert store.close(60)
    return say("done")


def take_over(paths: RunPaths) -> History:
    terms = FsTerms(paths, RealClock())
    before = terms.newest()
    term = 2
    assert before is None or before.term == 1
    assert terms.claim(claim_of(term, paths, "n2"))
    warnings = terms.seal_before(term)
    assert not warnings or os.geteuid() == 0, "modes are enough for ordinary users"
    assert terms.open_acts(term)
    return terms.history(term)


def tickets_of(paths: RunPaths, term: int) -> set[int]:
    found: set[int] = set()
    for folder in (paths.acts(term), paths.acts_kept(term)):
        if folder.is_dir():
            found |= {int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()}
    return found


def operations(base: Path, when: str) -> list[int]:
    """The number of each operation that has such a moment."""
    disk = TriggerDisk()
    said: list[str] = []
    supervise(new_run(base), disk, said.append)
    assert said[-1] == "done"
    return sorted(disk.ended) if when == "after" else list(range(disk.count))


def check_history(history: History, said: list[str]) -> None:
    numbers = [record.n for record in history.records]
    assert numbers == list(range(len(numbers))), "not a prefix"
    assert list(history.records) == [record for record, _ in PLAN[: len(numbers)]]
    acts = {act.n for record in history.records for act in record.actions}
    for line in said:
        match line.split():
            case ["stored", n]:
                assert int(n) in numbers, f"{line}, but the next term does not see it"
            case ["act", n]:
                assert int(n) in acts, f"{line} without a record"


@pytest.mark.parametrize("uid", uids())
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation(uid: int | None, when: str) -> None:
    def body() -> None:
        moments = operations(base, when)
        assert len(moments) > 20
        for k in moments:
            paths = new_run(base)
            disk = TriggerDisk(k, when, kill_self)
            child = fork(lambda say, paths=paths, disk=disk: supervise(paths, disk, say))  # type: ignore[misc]
            assert child.wait() == "killed", (k, child.lines())
            said = child.lines()
            history = take_over(paths)
            check_history(history, said)
            performed = {int(line.split()[1]) for line in said if line.startswith("act")}
            assert performed <= tickets_of(paths, 1)

    with ground(uid) as base:
        as_uid(uid, body)


@pytest.mark.parametrize("uid", uids())
@pytest.mark.parametrize("when", ["before", "after"])
def test_stopped_at_every_operation_and_woken_after_the_takeover(uid: int | None, when: str) -> None:
    def body() -> None:
        moments = operations(base, when)
        deposed = 0
        for k in moments:
            paths = new_run(base)
            disk = TriggerDisk(k, when, stop_self)
            child = fork(lambda say, paths=paths, disk=disk: supervise(paths, disk, say))  # type: ignore[misc]
            assert child.wait(stops=True) == "stopped", k
            history = take_over(paths)
            held = tickets_of(paths, 1)
            child.go_on()
            assert child.wait() == "exit 0", (k, child.lines())
            said = child.lines()
            assert tickets_of(paths, 1) == held, f"operation {k}: a ticket after the seal"
            performed = {int(line.split()[1]) for line in said if line.startswith("act")}
            assert performed <= held
            check_history(history, said)
            deposed += said[-1] in ("deposed", "lost")
            assert said[-1] in ("deposed", "lost", "done")
        assert deposed > len(moments) * 3 // 4

    with ground(uid) as base:
        as_uid(uid, body)


@pytest.mark.parametrize("uid", uids())
def test_a_sealer_killed_at_every_operation_leaves_a_place_that_the_next_one_seals(uid: int | None) -> None:
    """Term 1 holds its folder open all along; term 2 dies while sealing; term 3 seals; term 1 obtains nothing more."""

    def seal(paths: RunPaths, disk: Disk) -> None:
        FsTerms(paths, RealClock(), disk).seal_before(2)

    def prepared() -> RunPaths:
        paths = new_run(base)
        terms = FsTerms(paths, RealClock())
        assert terms.claim(claim_of(1, paths))
        assert terms.open_acts(1)
        paths.ticket(1, 1).write_bytes(b"StartGang 4\n")
        return paths

    def body() -> None:
        counter = TriggerDisk()
        seal(prepared(), counter)
        for k in range(counter.count):
            paths = prepared()
            disk = TriggerDisk(k, "after", kill_self)
            child = fork(lambda _say, paths=paths, disk=disk: seal(paths, disk))  # type: ignore[misc]
            assert child.wait() in ("killed", "exit 0"), child.lines()
            late = FsTerms(paths, RealClock())
            late.seal_before(3)
            for term in (0, 1, 2):
                with pytest.raises(OSError, match=r"Not a directory|Permission denied"):
                    paths.ticket(term, 9).touch(exist_ok=False)
                with pytest.raises(FileExistsError):
                    paths.acts(term).mkdir()
            assert tickets_of(paths, 1) == {1}
            assert late.history(3).ticketed_attempt == 4

    with ground(uid) as base:
        as_uid(uid, body)


@pytest.mark.parametrize("uid", uids())
def test_two_sealers_and_a_holder_who_opens_late_meet(uid: int | None) -> None:
    """Both sealers return only when sealed, whatever the holder of term 1 does meanwhile."""

    def seal(term: int, paths: RunPaths, say: Callable[[str], None]) -> None:
        FsTerms(paths, RealClock()).seal_before(term)
        try:
            paths.ticket(1, 1000 + term).touch(exist_ok=False)
        except OSError:
            return
        say("a ticket after the seal")

    def hold(paths: RunPaths, say: Callable[[str], None]) -> None:
        terms = FsTerms(paths, RealClock())
        try:
            if terms.open_acts(1):
                for n in range(200):
                    paths.ticket(1, n).touch(exist_ok=False)
        except OSError:
            return

    def body() -> None:
        for _ in range(60):
            paths = new_run(base)
            children = [
                fork(lambda say, paths=paths: hold(paths, say)),  # type: ignore[misc]
                fork(lambda say, paths=paths: seal(2, paths, say)),  # type: ignore[misc]
                fork(lambda say, paths=paths: seal(3, paths, say)),  # type: ignore[misc]
            ]
            for child in children:
                assert child.wait() == "exit 0", child.lines()
                assert child.lines() == []

    with ground(uid) as base:
        as_uid(uid, body)
