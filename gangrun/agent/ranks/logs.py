"""What ranks print: drained always, written when the disk takes it.

One thread reads every pipe and never waits for a disk; one thread writes and may wait as long as it likes. Between
them is a bounded spool: when a disk stands still the spool fills, then lines are dropped and counted, and the count is
written where they are missing. A rank therefore never blocks on its output. Time is handed in.

A disk that refuses (full, read-only, failing) loses what it refuses, but not for who looks: whole lines of the ranks
that a person sees are handed to ``show``. ``X.log.lost`` says how much is missing in ``X.log``, and why; it is there
as soon as the disk takes so much as an empty file.

``X.log`` holds the first bytes. What comes after goes to ``X.log.tail``; once that is half of the tail's cap it becomes
``X.log.tail.1`` and the older one goes: its place says how much went. Nothing is copied and every file is readable at
any moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from gangrun.agent.ranks.log_steps import LogSteps, PrintedLoss
from gangrun.wire.spec import LogSpec


class CappedLog:
    """One log; OSError comes through, and a later write tries again."""

    def __init__(self, path: Path, head_max_bytes: int, tail_max_bytes: int) -> None:
        self.path = path
        self._head_max_bytes = head_max_bytes
        self._segment_max_bytes = max(tail_max_bytes // 2, 1)
        self._tail = path.with_name(path.name + ".tail")
        self._old_tail = path.with_name(path.name + ".tail.1")
        self._fd = -1
        self._size_bytes = 0
        self._in_tail = False
        self._dropped_bytes = 0
        self._is_torn = False  # the file ends in the middle of a line
        self.refused = b""  # what the last ``write`` did not bring into the file, in whole lines

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        self.refused = data
        if self._fd < 0:
            self._open(self._tail if self._in_tail else self.path)
        limit_bytes = self._segment_max_bytes if self._in_tail else self._head_max_bytes
        if self._size_bytes and self._size_bytes + len(data) > limit_bytes:
            self._turn()
        mended_bytes, before_bytes = int(self._is_torn), self._size_bytes
        try:
            self._append(b"\n" * mended_bytes + data)
        finally:
            done_bytes = max(0, self._size_bytes - before_bytes - mended_bytes)
            whole_bytes = data.rfind(b"\n", 0, done_bytes) + 1
            if self._size_bytes > before_bytes:
                self._is_torn = done_bytes > whole_bytes
            self.refused = data[whole_bytes:]

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self._size_bytes += written
            view = view[written:]

    def _turn(self) -> None:
        """Begin the next file."""
        if not self._in_tail:
            self._append(f"[gangrun] this file is full; the newest lines are in {self._tail.name}\n".encode())
        self.close()
        if self._in_tail:
            if self._old_tail.exists():
                self._dropped_bytes += self._old_tail.stat().st_size
            self._tail.replace(self._old_tail)
        self._in_tail = True
        self._open(self._tail)
        if self._dropped_bytes:
            note = f"[gangrun] {self._dropped_bytes} bytes were dropped between the head of this log and its tail\n"
            self._append(note.encode())

    def close(self) -> None:
        """Close the file; a write opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


READ_BYTES = 256 * 1024
PIPE_MAX_BYTES = 1024 * 1024  # no pipe holds more unless root has made it larger
LINE_MAX_BYTES = 64 * 1024
PARTIAL_AFTER_S = 1.0  # a prompt or a progress bar without a newline is shown this late
SPOOL_MAX_BYTES = 16 * 1024 * 1024
TAIL_LINES_COUNT = 400
TAIL_MAX_BYTES = 64 * 1024
RETRY_AFTER_S = 1.0
# Of a native backtrace or a dump of all threads few lines are remembered: hundreds follow those that say what happened.
FRAMES_KEPT_COUNT = 4
_NATIVE_FRAME = re.compile(rb"\s*(?:\[rank\d+\]:\s*)?(?:(?:frame )?#\d+[: ]|File \".*\", line \d+ in )")
LOST = ".lost"  # after the name of a log: says what is missing in it


@dataclass(slots=True)
class _Stream:
    rank: int
    fd: int
    is_stderr: bool
    partial: bytes = b""
    partial_since: float = 0.0


@dataclass(slots=True)
class _RankOutput:
    output_bytes: int = 0
    tail: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES_COUNT))
    tail_bytes: int = 0
    frames_count: int = 0  # of a backtrace that is being written
    steps: LogSteps = field(default_factory=LogSteps)


_Line = tuple[int, bytes, str]  # rank, or -1 for gangrun's own; the line with its newline; when it was read
_END: _Line = (-2, b"", "")


@lru_cache(maxsize=64)  # one second has many lines
def _prefix(node: str, rank: int, stamp: str) -> bytes:
    who = f"rank{rank}" if rank >= 0 else "gangrun"
    return f"[{node}:{who}{f' {stamp}' if stamp else ''}] ".encode()


class RankLogs:
    """The output of the ranks of one attempt on one node."""

    def __init__(
        self,
        node: str,
        directory: Path,
        spec: LogSpec,
        now: Callable[[], float],
        spool_max_bytes: int = SPOOL_MAX_BYTES,
        shown: Collection[int] = (),
        show: Callable[[bytes], None] = lambda line: None,
        say: Callable[[str], None] = lambda sentence: None,
        lost: Callable[[str], None] = lambda words: None,
        stamp: Callable[[], str] = lambda: "",
    ) -> None:
        """``show`` gets the lines that the disk refuses of ranks that are ``shown``; ``say`` is told that it does, and
        ``lost``, at first and at the end, how much. ``stamp``: the time of day, which stands before each line; "" is
        none.
        """
        self._stamp, self._stamped = stamp, ""  # ... and of what was read last
        self._node = node
        self._shown = tuple(f"[{node}:rank{rank}{end}".encode() for rank in shown for end in "] ")
        self._show, self._say, self._lost = show, say, lost
        self._lost_bytes = 0  # in all
        self._copies_refused = False  # said once
        self._spec = spec
        self._now = now
        self._spool_max_bytes = spool_max_bytes
        self._directory = directory
        self._log = self._capped(f"{node}.log")
        self._rank_logs: dict[int, CappedLog] = {}
        self._ranks: dict[int, _RankOutput] = {}
        self._streams: dict[int, _Stream] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closing = self._over = False
        self._asked: deque[tuple[int, threading.Event]] = deque()
        self._lines: deque[_Line] = deque()
        self._spooled_bytes = 0
        self._dropped_count = self._dropped_bytes = 0
        self._changed = threading.Condition()
        self._written = threading.Event()
        self._reader = threading.Thread(target=self._read_loop, name="rank output", daemon=True)
        self._writer = threading.Thread(target=self._write_loop, name="rank logs", daemon=True)
        self._reader.start()
        self._writer.start()

    def _capped(self, name: str) -> CappedLog:
        return CappedLog(self._directory / name, self._spec.head_max_bytes, self._spec.tail_max_bytes)

    # ---- for the agent ---------------------------------------------------------------------------------------------

    def add(self, rank: int, stdout_fd: int, stderr_fd: int) -> None:
        """Take over the read ends of a rank's pipes; they are closed here."""
        self._ranks[rank] = _RankOutput()
        for fd, is_stderr in ((stdout_fd, False), (stderr_fd, True)):
            os.set_blocking(fd, False)
            self._streams[fd] = _Stream(rank, fd, is_stderr)
            self._selector.register(fd, selectors.EVENT_READ)
        self._wake()

    def output_bytes(self, rank: int) -> int:
        """How much the rank has printed."""
        output = self._ranks.get(rank)
        return output.output_bytes if output else 0

    def step(self, rank: int) -> int:
        """The highest step that the rank has printed; -1: none."""
        output = self._ranks.get(rank)
        return output.steps.step if output else -1

    def first_step(self, rank: int) -> int:
        """The first step that the rank has printed; -1: none."""
        output = self._ranks.get(rank)
        return output.steps.first if output else -1

    def reach(self, rank: int) -> int:
        """The highest step that the rank may have done, as its lines go; -1: it printed none."""
        output = self._ranks.get(rank)
        return output.steps.reach if output else -1

    def loss(self, rank: int) -> float | None:
        """The newest loss that the rank has printed."""
        output = self._ranks.get(rank)
        return output.steps.loss if output else None

    def grad_norm(self, rank: int) -> float | None:
        """The gradient norm that the rank has printed beside its newest loss."""
        output = self._ranks.get(rank)
        return output.steps.grad_norm if output else None

    def take_losses(self, rank: int) -> list[PrintedLoss]:
        """Each loss that the rank printed since this was last asked."""
        output, taken = self._ranks.get(rank), []
        while output and output.steps.losses:
            taken.append(output.steps.losses.popleft())
        return taken

    def total_steps(self, rank: int) -> int:
        """How many steps it has in all, as it prints; -1: it does not."""
        output = self._ranks.get(rank)
        return output.steps.total if output else -1

    def stderr_tail(self, rank: int) -> list[tuple[float, str]]:
        """The newest lines of its stderr, and when they were read; of a native backtrace the first frames only."""
        output = self._ranks.get(rank)
        return list(output.tail) if output else []

    def wait_read(self, rank: int, within_s: float) -> bool:
        """Wait until all that the rank has printed by now is read, whoever else may hold its pipes open."""
        read = threading.Event()
        with self._changed:
            if self._over:
                return True
            self._asked.append((rank, read))
            self._wake()
        return read.wait(within_s)

    def say(self, text: str) -> None:
        """A line of gangrun's own in the node's log."""
        self._spool((-1, text.encode("utf-8", "backslashreplace") + b"\n", self._stamp()))

    def close(self, within_s: float) -> bool:
        """Read what is left, write what the disk takes; False if something was not written in time."""
        self._closing = True
        self._wake()
        return self._written.wait(within_s)

    def _wake(self) -> None:
        with self._changed:
            if self._over:
                return
            try:
                os.write(self._wake_write, b"x")
            except BlockingIOError:
                return  # it is awake

    # ---- the reading thread ----------------------------------------------------------------------------------------

    def _read_loop(self) -> None:
        while True:
            partial = any(stream.partial for stream in list(self._streams.values()))  # ``add`` puts more there
            ready = self._selector.select(PARTIAL_AFTER_S / 2 if partial else None)
            for key, _ in ready:
                if key.fd == self._wake_read:
                    os.read(self._wake_read, 4096)
                else:
                    self._read(self._streams[key.fd])
            self._answer()
            now = self._now()
            for stream in list(self._streams.values()):
                if stream.partial and (self._closing or now - stream.partial_since >= PARTIAL_AFTER_S):
                    self._flush(stream)
            if self._closing and not any(key.fd != self._wake_read for key, _ in self._selector.select(0)):
                break
        for stream in list(self._streams.values()):
            self._end(stream)
        with self._changed:
            self._over = True
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._selector.close()
            for _, read in self._asked:
                read.set()
            self._lines.append(_END)
            self._changed.notify_all()

    def _answer(self) -> None:
        """To whoever waits until all is read that a rank had printed when it was asked."""
        with self._changed:
            asked, self._asked = self._asked, deque()
        for rank, read in asked:
            for stream in [stream for stream in list(self._streams.values()) if stream.rank == rank]:
                left_bytes = PIPE_MAX_BYTES
                while (count := self._read(stream)) and (left_bytes := left_bytes - count) > 0:
                    pass
                if count is not None and stream.partial:
                    self._flush(stream)
            read.set()

    def _read(self, stream: _Stream) -> int | None:
        """How many bytes came, 0 where none wait; None at the end of the stream, which is closed."""
        try:
            data = os.read(stream.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._end(stream)
            return None
        self._ranks[stream.rank].output_bytes += len(data)
        self._stamped = self._stamp()
        *lines, rest = (stream.partial + data).split(b"\n")
        for line in lines:
            self._take(stream, line)
        if len(rest) > LINE_MAX_BYTES:
            self._take(stream, rest)
            rest = b""
        if rest and (lines or not stream.partial):
            stream.partial_since = self._now()
        stream.partial = rest
        return len(data)

    def _flush(self, stream: _Stream) -> None:
        rest, stream.partial = stream.partial, b""
        self._take(stream, rest)

    def _end(self, stream: _Stream) -> None:
        if stream.partial:
            self._flush(stream)
        self._selector.unregister(stream.fd)
        del self._streams[stream.fd]  # first: a rank that is being started may get the number as soon as it is free
        os.close(stream.fd)

    def _take(self, stream: _Stream, line: bytes) -> None:
        """One line without its newline; of what a progress bar overwrote only the last is kept."""
        if b"\r" in line:
            line = next((part for part in reversed(line.split(b"\r")) if part), b"")
        for start in range(0, len(line) or 1, LINE_MAX_BYTES):
            part = _printable(line[start : start + LINE_MAX_BYTES])
            self._ranks[stream.rank].steps.read(part)
            if stream.is_stderr:
                self._remember(self._ranks[stream.rank], part)
            self._spool((stream.rank, part + b"\n", self._stamped))

    def _remember(self, output: _RankOutput, line: bytes) -> None:
        output.frames_count = output.frames_count + 1 if _NATIVE_FRAME.match(line) else 0
        if output.frames_count > FRAMES_KEPT_COUNT:
            return
        text = line.decode("utf-8", "backslashreplace")[: TAIL_MAX_BYTES // 8]
        if len(output.tail) == TAIL_LINES_COUNT:
            output.tail_bytes -= len(output.tail[0][1])
        output.tail.append((self._now(), text))
        output.tail_bytes += len(text)
        while output.tail_bytes > TAIL_MAX_BYTES:
            output.tail_bytes -= len(output.tail.popleft()[1])

    def _spool(self, line: _Line) -> None:
        size_bytes = len(line[1])
        with self._changed:
            if self._spooled_bytes + size_bytes > self._spool_max_bytes:
                self._dropped_count += 1
                self._dropped_bytes += size_bytes
                return
            if self._dropped_count:
                note = (
                    f"{self._dropped_count} lines ({self._dropped_bytes} bytes) were dropped here: the disk stood still"
                )
                self._lost_bytes += self._dropped_bytes
                self._dropped_count = self._dropped_bytes = 0
                self._lines.append((-1, note.encode() + b"\n", line[2]))
            self._lines.append(line)
            self._spooled_bytes += size_bytes
            self._changed.notify_all()

    # ---- the writing thread ----------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        trouble, lost_bytes = "", 0
        ended = False
        while not ended:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                batch = list(self._lines)
                self._lines.clear()
            ended = any(line is _END for line in batch)
            size_bytes = sum(len(text) for rank, text, _ in batch if rank != -1)  # of the spool
            chunks, refused = self._chunks(batch), b""
            try:
                if trouble:
                    note = f"{lost_bytes} bytes were lost here: {trouble}"
                    self._log.write(self._prefixed((-1, note.encode() + b"\n", self._stamp())))
                    self._mark_lost(trouble)
                    trouble, lost_bytes = "", 0
                while chunks:
                    chunk = chunks.pop(0)
                    try:
                        self._log.write(chunk)
                    except OSError:
                        refused = self._log.refused
                        raise
            except OSError as error:  # full, read-only, stale: the ranks go on, and the log says later what is missing
                trouble = error.strerror or str(error)
                refused = b"".join([refused, *chunks])
                lost_bytes += len(refused)
                self._lose(refused, trouble)
                self._close_files()
                if not ended:
                    threading.Event().wait(RETRY_AFTER_S)
            else:
                self._write_by_rank(batch)
            with self._changed:
                self._spooled_bytes -= size_bytes
        self._lost_bytes += self._dropped_bytes
        if self._lost_bytes:
            self._lost(self._mark_lost(trouble))
            self._say(f"{self._lost_bytes} bytes of what ranks printed are missing in {self._log.path}")
        self._close_files()
        self._written.set()

    def _lose(self, refused: bytes, why: str) -> None:
        """The disk has not taken these lines: a person still sees those of the ranks that are shown."""
        is_first = not self._lost_bytes
        if is_first:
            self._say(f"the disk refuses what ranks print ({why}): it will be missing in {self._log.path}")
        self._lost_bytes += len(refused)
        words = self._mark_lost(why)
        if is_first:
            self._lost(words)
        for line in refused.splitlines():
            if line.startswith(self._shown):
                self._show(line)

    def _mark_lost(self, why: str) -> str:
        """For who looks at the run directory; on a full disk the file may stay empty. What it says."""
        words = f"{self._lost_bytes} bytes" + (f": {why}" if why else "")
        with contextlib.suppress(OSError):  # it is tried again with the next loss, and at the end
            self._log.path.with_name(self._log.path.name + LOST).write_text(words, "utf-8")
        return words

    def _prefixed(self, line: _Line) -> bytes:
        rank, text, stamp = line
        return _prefix(self._node, rank, stamp) + text

    def _chunks(self, batch: list[_Line]) -> list[bytes]:
        """What to write at once: a cap is kept to within one chunk."""
        chunks: list[list[bytes]] = [[]]
        chunk_bytes = 0
        for line in batch:
            if line is _END:
                continue
            if chunk_bytes > READ_BYTES:
                chunks.append([])
                chunk_bytes = 0
            chunks[-1].append(self._prefixed(line))
            chunk_bytes += len(line[1])
        return [b"".join(chunk) for chunk in chunks if chunk]

    def _write_by_rank(self, batch: list[_Line]) -> None:
        """A copy of what the node's log has by now; where only it is refused, nothing is lost."""
        if self._spec.per_rank:
            for rank in sorted({rank for rank, _, _ in batch if rank >= 0}):
                log = self._rank_logs.get(rank) or self._rank_logs.setdefault(rank, self._capped(f"rank-{rank}.log"))
                try:
                    log.write(b"".join(text for owner, text, _ in batch if owner == rank))
                except OSError as error:
                    if not self._copies_refused:
                        why = error.strerror or str(error)
                        self._say(f"cannot write {log.path} ({why}); {self._log.path} holds the same lines")
                    self._copies_refused = True

    def _close_files(self) -> None:
        for log in (self._log, *self._rank_logs.values()):
            try:
                log.close()
            except OSError:
                continue  # close reports what a write did not, and the write is counted as lost already


def _printable(line: bytes) -> bytes:
    """The same bytes if they are UTF-8, else with what is not spelled out."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode("utf-8", "backslashreplace").encode()
    return line
