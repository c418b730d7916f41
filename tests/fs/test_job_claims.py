"""Places in the sequence of jobs: one owner each, re-claimed only by the same job requeued."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import Claimed, JobClaim, JobClaims, Taken
from gangrun.adapters.fs.run_dir import RunPaths
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


def test_unclear_and_unreadable_count_as_lost(tmp_path: Path) -> None:
    class Unclear(Disk):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            raise OSError(errno.EIO, "lost reply")

    class Blind(Disk):
        def exists(self, path: Path) -> bool:
            return False

    paths = new_run(tmp_path)
    result = claims_of(paths, Unclear()).claim(wish())
    assert isinstance(result, Taken)
    assert "no clear answer" in result.why
    hidden = claims_of(paths, Blind()).claim(wish(job="5"))
    assert isinstance(hidden, Taken)
    assert "cannot be seen yet" in hidden.why
    paths.job(3).write_bytes(b"garbage")
    assert isinstance(claims_of(paths).claim(wish(3)), Taken)


def test_two_processes_race_for_each_place(tmp_path: Path) -> None:
    paths = new_run(tmp_path)

    def race(job: str, say: Callable[[str], None]) -> None:
        for seq in range(100):
            if isinstance(claims_of(paths).claim(wish(seq, job)), Claimed):
                say(str(seq))

    children = [fork(lambda say, job=job: race(job, say)) for job in ("1", "2")]  # type: ignore[misc]
    results = [child.wait() for child in children]
    won = [line for child in children for line in child.lines()]
    assert results == ["exit 0", "exit 0"]
    assert sorted(map(int, won)) == list(range(100))


def test_two_starts_of_a_requeued_job_race_for_one_generation(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    for seq in range(60):
        assert isinstance(claims_of(paths).claim(wish(seq)), Claimed)

    def race(pid: int, say: Callable[[str], None]) -> None:
        for seq in range(60):
            if isinstance(claims_of(paths).claim(wish(seq, restart=1, pid=pid)), Claimed):
                say(str(seq))

    children = [fork(lambda say, pid=pid: race(pid, say)) for pid in (21, 22)]  # type: ignore[misc]
    results = [child.wait() for child in children]
    won = [line for child in children for line in child.lines()]
    assert results == ["exit 0", "exit 0"]
    assert sorted(map(int, won)) == list(range(60))
