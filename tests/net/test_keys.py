"""The run's client key on disk, and the mailbox."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from gangrun.adapters.net.curve import KeyRefused, read_client_key, write_client_key
from gangrun.adapters.net.router import QueueMailbox
from gangrun.ports import Stored, Woken


def test_written_once_private_and_read_back(tmp_path):
    path = tmp_path / "client.json"
    pair = write_client_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_client_key(path) == pair
    assert pair.secret not in repr(pair)
    with pytest.raises(FileExistsError):
        write_client_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "client.json"
    write_client_key(path)
    path.chmod(mode)
    with pytest.raises(KeyRefused, match="chmod 600"):
        read_client_key(path)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"public": "a", "secret": "b"}', b"\xff" * 9, b'{"public": 1}'])
def test_what_is_no_key_pair_is_refused(tmp_path, data):
    path = tmp_path / "client.json"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, data)
    os.close(fd)
    with pytest.raises(KeyRefused, match="key pair"):
        read_client_key(path)


def test_a_link_is_not_followed(tmp_path):
    write_client_key(tmp_path / "real.json")
    (tmp_path / "client.json").symlink_to("real.json")
    with pytest.raises(OSError, match=r"symbolic|levels"):
        read_client_key(tmp_path / "client.json")


class HeldClock:
    """Time in the hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 0.0


def test_the_mailbox_keeps_the_order_and_wakes_at_its_time():
    clock = HeldClock()
    box = QueueMailbox(clock)
    assert box.next(100.0) == Woken()
    box.post(Stored(1))
    box.post_many([Stored(2), Stored(3)])
    box.post_many([])
    box.post(Stored(4))
    assert [box.next(0.0) for _ in range(5)] == [Stored(1), Stored(2), Stored(3), Stored(4), Woken()]


def test_an_item_of_another_thread_ends_the_wait():
    box = QueueMailbox(HeldClock())
    thread = threading.Thread(target=box.post, args=(Stored(9),))
    thread.start()
    assert box.next(float("inf")) == Stored(9)
    thread.join()
