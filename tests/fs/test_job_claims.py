"""Places in the sequence of jobs: one owner each, re-claimed only by the same job requeued."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import Claimed, JobClaim, JobClaims, Taken, insist
from gangrun.adapters.fs.run_dir import RunPaths
from tests.faults.disk import PausableDisk
from tests.fs.bench import NoLinkDisk, fork, new_run


def wish(seq: int = 0, job: str = "77", restart: int = 0, pid: int = 10) -> JobClaim:
    return JobClaim(seq, job, restart, "n1", pid, 99)


def claims_of(paths: RunPaths, disk: Disk | None = None) -> JobClaims:
    return JobClaims(paths, disk or Disk(), lambda _seconds: None)


@pytest.mark.parametrize("disk", [Disk(), NoLinkDisk()], ids=["link", "no link"])
def test_first_wins_same_job_requeued_reclaims_others_lose(tmp_path: Path, disk: Disk) -> None:
    claims = claims_of(new_run(tmp_path), disk)
    assert claims.highest() == -1
    assert claims.claim(wish()) == Claimed(wish())
    again = claims.claim(wish(pid=11))
    assert isinstance(again, Taken)
    assert "job 77 (restart 0) already runs this" in again.why
    other = claims.claim(wish(job="78"))
    assert other == Taken(wish(), "place 0 is held by job 77 (process 10 on n1)")
    assert claims.claim(wish(restart=2, pid=12)) == Claimed(wish(restart=2, pid=12))
    assert isinstance(claims.claim(wish(restart=1, pid=13)), Taken), "an older start that comes late"
    assert isinstance(claims.claim(wish(restart=2, pid=14)), Taken), "the job started twice"
    assert claims.holder(0) == wish(restart=2, pid=12)
    assert claims.claim(wish(1, "80")) == Claimed(wish(1, "80"))
    assert claims.highest() == 1


def test_the_next_place_only_once_the_owner_is_gone(tmp_path: Path) -> None:
    claims = claims_of(new_run(tmp_path))

    def make(seq: int) -> JobClaim:
        return wish(seq, f"job{seq}")

    assert claims.claim_next(make, lambda _: False) == Claimed(make(0))
    assert isinstance(claims.claim_next(make, lambda _: False), Taken)
    assert claims.claim_next(make, lambda owner: owner == make(0)) == Claimed(make(1))
    claims.paths.job(1).write_bytes(b"{")
    assert claims.claim_next(make, lambda _: False) == Claimed(make(2)), "unreadable for 5 s is void"


class LostReply(Disk):
    """Links, and says that it failed; fails before it links if ``done`` is False."""

    def __init__(self, *, done: bool) -> None:
        self.done = done

    def link(self, source: Path, target: Path) -> None:
        if self.done:
            super().link(source, target)
        raise OSError(errno.EIO, "lost reply")


def test_a_claim_of_our_own_is_ours_whatever_the_reply_was(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    assert claims_of(paths, LostReply(done=True)).claim(wish()) == Claimed(wish())
    assert claims_of(paths).claim(wish()) == Claimed(wish()), "asked again, as after an error"
    again = claims_of(paths, LostReply(done=True)).claim(wish(restart=1, pid=11))
    assert again == Claimed(wish(restart=1, pid=11))
    assert isinstance(claims_of(paths, LostReply(done=True)).claim(wish(job="5")), Taken)
    with pytest.raises(OSError, match="lost reply"):
        claims_of(paths, LostReply(done=False)).claim(wish(1))
    assert claims_of(paths).claim(wish(1, "80")) == Claimed(wish(1, "80")), "nobody had it"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_an_error_is_no_answer_and_it_is_asked_again_until_there_is_one(tmp_path: Path, code: int) -> None:
    paths, disk, waits, said = new_run(tmp_path), PausableDisk(), list[float](), list[str]()
    disk.fail(code, looking_too=code in (errno.EIO, errno.ESTALE))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            disk.resume()

    claims = claims_of(paths, disk)
    assert insist(lambda: claims.claim(wish()), said.append, wait) == Claimed(wish())
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert len(said) == 1
    assert os.strerror(code) in said[0]
    disk.fail(errno.EIO, looking_too=True)
    for ask in (claims.highest, claims.all, lambda: claims.holder(0), lambda: claims.claim(wish())):
        with pytest.raises(OSError, match="Input/output"):
            ask()
    disk.fail(errno.EACCES)
    with pytest.raises(PermissionError):  # the same answer however often it is asked
        insist(lambda: claims.claim(wish(1)), said.append, wait)


def test_an_error_that_lasts_is_raised_in_the_end(tmp_path: Path) -> None:
    paths, disk, waits = new_run(tmp_path), PausableDisk(), list[float]()
    disk.fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        insist(lambda: claims_of(paths, disk).claim(wish()), lambda word: None, waits.append, within_s=100.0)
    assert 100.0 <= sum(waits) < 110.0


def test_what_is_taken_and_cannot_be_seen_or_read(tmp_path: Path) -> None:
    class Blind(Disk):
        def exists(self, path: Path) -> bool:
            return False

    paths = new_run(tmp_path)
    assert claims_of(paths).claim(wish()) == Claimed(wish())
    with pytest.raises(FileExistsError):
        claims_of(paths, Blind()).claim(wish(job="5"))
    paths.job(3).write_bytes(b"garbage")
    assert isinstance(claims_of(paths).claim(wish(3)), Taken)


def test_without_links_a_claim_that_finds_no_room_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    class Full(NoLinkDisk):
        def write(self, fd: int, data: bytes, path: Path) -> int:
            if path == paths.job(0):
                raise OSError(errno.ENOSPC, "full")
            return super().write(fd, data, path)

    paths = new_run(tmp_path)
    with pytest.raises(OSError, match="full"):
        claims_of(paths, Full()).claim(wish())
    assert claims_of(paths, NoLinkDisk()).claim(wish()) == Claimed(wish())


@pytest.mark.parametrize("restart", [0, 1], ids=["two jobs", "one that is requeued"])
def test_two_processes_race_for_each_place(tmp_path: Path, restart: int) -> None:
    paths = new_run(tmp_path)
    for seq in range(100 * restart):
        assert isinstance(claims_of(paths).claim(wish(seq)), Claimed)

    def race(pid: int, say: Callable[[str], None]) -> None:
        for seq in range(100):
            mine = wish(seq, "77" if restart else str(pid), restart, pid)
            if isinstance(claims_of(paths).claim(mine), Claimed):
                say(str(seq))

    children = [fork(lambda say, pid=pid: race(pid, say)) for pid in (21, 22)]  # type: ignore[misc]
    results = [child.wait() for child in children]
    won = [line for child in children for line in child.lines()]
    assert results == ["exit 0", "exit 0"]
    assert sorted(map(int, won)) == list(range(100))
