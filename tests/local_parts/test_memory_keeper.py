"""The keeper of a node's memory as a real process: what it holds, what it refuses, what is gone with whom."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gangrun.checkpoint.memory_tier import keeper_client as kept_module
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused, StepName
from gangrun.node import memory_keeper
from tests.waiting import until

LIMIT = 1000
Meet = Callable[[], KeeperClient]


@pytest.fixture
def keeper() -> Iterator[subprocess.Popen[bytes]]:
    name = f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited = (
        f"import os, resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (64, {hard})); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    words = [sys.executable, "-E", "-s", "-S", memory_keeper.__file__, name, str(LIMIT)]
    process = subprocess.Popen([sys.executable, "-c", limited, *words])
    process.keeper_name = name  # type: ignore[attr-defined]
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def meet(keeper: subprocess.Popen[bytes]) -> Iterator[Meet]:
    met: list[KeeperClient] = []

    def go() -> KeeperClient:
        def there() -> KeeperClient | None:
            try:
                return KeeperClient(keeper.keeper_name)  # type: ignore[attr-defined]
            except KeeperRefused:
                return None

        one = until(there, 20, "the keeper")
        assert one is not None
        met.append(one)
        return one

    yield go
    for one in met:
        one.close()


def names(kept: KeeperClient, attempt: int = 0) -> dict[int, dict[str, int]]:
    return {one["step"]: one["files"] for one in kept.held(attempt)}


def test_what_was_put_is_read_by_somebody_else_after_the_writer_died_and_nobody_can_change_it(meet: Meet) -> None:
    writer, step = meet(), StepName(0, 5, "a" * 16)
    fd = writer.new(step, "__0_0.distcp", 5)
    os.write(fd, b"hello")
    writer.done(step, "__0_0.distcp")
    with pytest.raises(OSError, match="Operation not permitted"):
        os.pwrite(fd, b"J", 0)
    os.close(fd)
    writer.close()
    reader = meet()
    assert names(reader) == {5: {"__0_0.distcp": 5}}
    with reader.opened(step, "__0_0.distcp") as read:
        assert os.pread(read, 10, 0) == b"hello"
        assert fcntl.fcntl(read, fcntl.F_GET_SEALS) == memory_keeper.SEALS


def test_what_a_writer_had_not_finished_goes_with_it(meet: Meet) -> None:
    writer, reader, step = meet(), meet(), StepName(0, 5, "a" * 16)
    writer.put(step, "whole", b"12345")
    os.close(writer.new(step, "half", LIMIT - 5))
    with pytest.raises(KeeperRefused, match="not being written by you"):
        reader.done(step, "half")
    with pytest.raises(KeeperRefused, match="not kept"), reader.opened(step, "half"):
        pass
    writer.close()
    until(lambda: _fits(reader, StepName(0, 6, "b" * 16), LIMIT - 5), 20, "room again")
    assert names(reader)[5] == {"whole": 5}


def _fits(kept: KeeperClient, step: StepName, size: int) -> bool:
    try:
        os.close(kept.new(step, "probe", size))
    except KeeperRefused:
        return False
    return True


def test_a_newer_whole_step_lets_the_older_go_and_an_attempt_lets_those_before_it_go(meet: Meet) -> None:
    kept = meet()
    for step in (1, 2, 3):
        kept.put(StepName(0, step, "a" * 16), "file", b"x")
    kept.whole(StepName(0, 2, "a" * 16))
    assert list(names(kept)) == [2, 3]
    kept.abandon(StepName(0, 3, "a" * 16))
    assert list(names(kept)) == [2]
    kept.put(StepName(1, 1, "c" * 16), "file", b"x")
    assert (names(kept, 1), names(kept, 0)) == ({1: {"file": 1}}, {})
    with pytest.raises(KeeperRefused, match="attempt 0 is over"):
        kept.put(StepName(0, 9, "a" * 16), "file", b"x")


def test_more_than_the_limit_is_refused_in_words_and_what_is_there_stays(meet: Meet) -> None:
    kept = meet()
    kept.put(StepName(0, 1, "a" * 16), "file", b"x" * 600)
    with pytest.raises(KeeperRefused, match=r"401 bytes more would pass the limit of 1000 bytes .*--memory-limit"):
        kept.put(StepName(0, 2, "b" * 16), "file", b"x" * 401)
    kept.put(StepName(0, 2, "b" * 16), "file", b"x" * 400)
    assert list(names(kept)) == [1, 2]


@pytest.mark.parametrize(
    "words", ["", "[]", '{"op": "new"}', '{"op": "sing"}', '{"op": "new", "attempt": "x"}', '{"op":"new","size":-1}']
)
def test_nonsense_is_answered_and_changes_nothing(meet: Meet, words: str) -> None:
    kept = meet()
    kept.put(StepName(0, 1, "a" * 16), "file", b"x")
    kept._line.send(words.encode() or b"\xff")
    assert b'"ok": false' in kept._line.recv(4096)
    assert names(kept) == {1: {"file": 1}}


def test_signals_that_a_scheduler_sends_to_all_do_not_end_it_and_its_death_is_told(
    meet: Meet, keeper: subprocess.Popen[bytes]
) -> None:
    kept = meet()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        keeper.send_signal(signum)
    kept.put(StepName(0, 1, "a" * 16), "file", b"x")
    assert names(kept) == {1: {"file": 1}}
    keeper.kill()
    keeper.wait()
    with pytest.raises(KeeperRefused, match=r"gone|does not answer"):
        kept.held(0)


def test_without_a_limit_of_ones_own_it_is_a_share_of_what_the_node_has() -> None:
    assert memory_keeper.limit_of(7) == 7
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory_keeper.limit_of(0) <= whole // memory_keeper.SHARE_OF_NODE


def test_what_is_pinned_stays_until_who_pinned_it_wants_another_or_goes(meet: Meet) -> None:
    writer, reader = meet(), meet()
    first, second, third = (StepName(0, n, "a" * 16) for n in (1, 2, 3))
    writer.put(first, "file", b"1" * 300)
    reader.pin(0)
    writer.put(second, "file", b"2" * 300)
    writer.whole(second)
    assert set(names(reader)) == {1, 2}, "1 would have gone"
    with reader.opened(first, "file") as fd:
        assert os.pread(fd, 1, 0) == b"1"
    writer.put(third, "file", b"3" * 300)
    with pytest.raises(KeeperRefused, match="pass the limit"):
        writer.put(StepName(0, 4, "a" * 16), "file", b"4" * 300)
    reader.pin_one(second)
    assert set(names(reader)) == {2, 3}
    writer.whole(third)
    assert set(names(reader)) == {2, 3}
    reader.close()
    until(lambda: set(names(writer)) == {3}, 20, "the pin to go with its holder")


def test_a_later_attempt_does_not_take_away_what_is_pinned_nor_offer_it(meet: Meet) -> None:
    writer, reader, step = meet(), meet(), StepName(0, 1, "a" * 16)
    writer.put(step, "file", b"1" * 600)
    reader.pin(0)
    assert names(writer, 1) == {}
    with reader.opened(step, "file") as fd:
        assert os.pread(fd, 1, 0) == b"1"
    reader.close()
    until(lambda: _fits(writer, StepName(1, 2, "b" * 16), 600), 20, "its memory is free again")


def test_a_node_may_hold_thousands_of_files_whatever_its_soft_limit_of_open_ones(
    keeper: subprocess.Popen[bytes], meet: Meet
) -> None:
    """A frozen backbone is kept in files of 128 MiB, of all ranks of two nodes and of two steps at a time."""
    kept = meet()
    soft, hard = resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    files = {f"__{number % 16}_{number:032}.distcp" for number in range(3000)}
    for name in files:
        kept.put(StepName(0, 7, "a" * 32), name, b"")
    assert set(names(kept)[7]) == files
    with kept.opened(StepName(0, 7, "a" * 32), min(files)) as fd:
        assert os.fstat(fd).st_size == 0


def test_an_answer_that_comes_too_late_is_never_taken_for_another_ones(
    keeper: subprocess.Popen[bytes], meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient, step = meet(), StepName(0, 1, "a" * 16)
    patient.put(step, "file", b"x" * 5)
    monkeypatch.setattr(kept_module, "ANSWER_WITHIN_S", 0.2)
    hasty = KeeperClient(keeper.keeper_name)  # type: ignore[attr-defined]
    monkeypatch.undo()
    keeper.send_signal(signal.SIGSTOP)
    with pytest.raises(KeeperRefused, match="does not answer: timed out"):
        hasty.new(step, "half", 7)
    keeper.send_signal(signal.SIGCONT)
    for _ in range(2):
        assert names(patient) == {1: {"file": 5}}
    with pytest.raises(KeeperRefused, match="does not answer: timed out"), hasty.opened(step, "file"):
        pass
    hasty.again()
    with hasty.opened(step, "file") as fd:
        assert os.fstat(fd).st_size == 5
    hasty.again()
    os.close(hasty.new(step, "half", LIMIT - 5))  # the late one is gone, and its room is free
    hasty.close()


def test_the_rest_of_an_answer_that_came_half_is_not_heard_either(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"gangrun-test-{os.getpid()}-{os.urandom(6).hex()}"
    monkeypatch.setattr(kept_module, "ANSWER_WITHIN_S", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(memory_keeper.address(name))
        door.listen()
        kept = KeeperClient(name)
        peer = door.accept()[0]
        peer.send(memory_keeper.MORE + b'{"ok": true, "st')
        with pytest.raises(KeeperRefused, match="does not answer: timed out"):
            kept.held(0)
        with contextlib.suppress(OSError):
            peer.send(memory_keeper.LAST + b'eps": []}')
        with pytest.raises(KeeperRefused, match="does not answer: timed out"):
            kept.held(0)
        kept.close()
        peer.close()
