"""CRC32 of what is in the page cache, taken by a child that maps it: reading would copy it first.

A file that shrinks, or storage that fails, kills by SIGBUS whoever has it mapped: that is the child, and its owner then
reads the same bytes the ordinary way, which names what is wrong. Where pages are not in the cache, or the file system
does not tell (network file systems do not), nothing is mapped. docs/decisions/0008 has the figures.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING

from gangrun.checkpoint.mapped_crc_child import ANSWER, REQUEST

if TYPE_CHECKING:
    import subprocess

try:
    import isal
except ImportError:  # pragma: no cover - every platform we test on has it
    PACKAGES = ""
else:
    PACKAGES = str(Path(isal.__file__).parents[1])

PROGRAM = Path(__file__).with_name("mapped_crc_child.py")
WORTH_BYTES = 1024 * 1024 * 1024  # for less its start costs what it saves
ASK_MIN_BYTES = 2 * 1024 * 1024
ASK_MAX_BYTES = 16 * 1024 * 1024  # whoever looks at the progress hears of it so often
PROBE_EVERY_BYTES = 2 * 1024 * 1024
ANSWER_WITHIN_S = 30.0
REAP_WITHIN_S = 5.0


class MappingChild:
    """Started when first wanted, and gone when the context is left. One that ended by itself is not started again."""

    def __init__(self, lanes_count: int) -> None:
        self._lanes_count = lanes_count
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lanes: list[socket.socket] | None = None

    def __enter__(self) -> MappingChild:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            process, self._process = self._process, None
            lanes, self._lanes = self._lanes or [], []
        if process is None:
            return
        import subprocess  # noqa: PLC0415 - most who look at checkpoints start no child

        process.kill()
        if kind is None:  # else threads may be at them still, and another file must not get their numbers
            for lane in lanes:
                lane.close()
        with suppress(subprocess.TimeoutExpired):  # a page that never comes may hold even one that was killed
            process.wait(REAP_WITHIN_S)
        assert process.stdin is not None
        process.stdin.close()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def lane(self, number: int) -> socket.socket | None:
        """Where to ask and to hear the answer; None: there is no child."""
        with self._lock:
            if self._lanes is None:
                self._lanes = []
                with suppress(OSError):
                    self._start()
            return self._lanes[number] if self._lanes else None

    def _start(self) -> None:
        import subprocess  # noqa: PLC0415 - most who look at checkpoints start no child

        with ExitStack() as theirs, ExitStack() as ours:
            pairs = list[tuple[socket.socket, socket.socket]]()
            for _ in range(self._lanes_count):
                here, there = socket.socketpair()
                pairs.append((ours.enter_context(here), theirs.enter_context(there)))
                here.settimeout(ANSWER_WITHIN_S)
            numbers = [there.fileno() for _, there in pairs]
            # a session of its own: what a terminal says to all of its foreground, Ctrl-C above all, is not meant for it
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid()), PACKAGES, *map(str, numbers)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=numbers,
                start_new_session=True,
            )  # fmt: skip
            self._lanes = [here for here, _ in pairs]
            ours.pop_all()


class Lane:
    """One thread's way to the child."""

    def __init__(self, child: MappingChild, number: int) -> None:
        self._child, self._number = child, number
        self._usable = bool(PACKAGES and sys.executable)

    def crc(self, descriptor: int, offset: int, length: int, value: int) -> int | None:
        """``value``, gone on with these bytes of the file; None: read them, and hear what is wrong if anything is."""
        if not self._usable or length < ASK_MIN_BYTES or not self._in_cache(descriptor, offset, length):
            return None
        try:
            found = self._asked(REQUEST.pack(descriptor, offset, length, value))
        except OSError:
            found = None
        self._usable = found is not None
        return found

    def _in_cache(self, descriptor: int, offset: int, length: int) -> bool:
        one = [bytearray(1)]
        try:
            places = range(offset, offset + length, PROBE_EVERY_BYTES)
            return all(os.preadv(descriptor, one, place, os.RWF_NOWAIT) for place in places)
        except BlockingIOError:
            return False
        except OSError:
            self._usable = False
            return False

    def _asked(self, request: bytes) -> int | None:
        lane = self._child.lane(self._number)
        if lane is None:
            return None
        lane.sendall(request)
        answer = lane.recv(ANSWER.size)
        return int(ANSWER.unpack(answer)[0]) if len(answer) == ANSWER.size else None
