"""The page in which a rank's sampler says where the script stands; the agent reads it with each heartbeat.

Standard library only: the rank loads it by path. Native byte order, 8-byte words, each stored whole.

    word  writer   field
       0  agent    magic + version
       1  sampler  pid; 0: no sampler runs
       2  sampler  seq: odd while a record is written
       3  sampler  ns of CLOCK_MONOTONIC, at its newest look
       4  sampler  1: there is an exact sign
       5  sampler  key of the place: a checksum over the main thread's stack
       6  sampler  ns since when the main thread has surely executed no Python; 0: not known, or it executes some
       7  sampler  ns since when each look showed this place
       8  sampler  ns since when each look showed one of ``CIRCLE_MAX_COUNT`` places
       9  sampler  ns at which a count of collectives last changed
      10  sampler  ms that the script lets a collective take; 0: not known
      11  sampler  how many groups follow
      12  agent    dumps asked for
      13  sampler  dumps written
      14  sampler  looks
      15  sampler  looks at which the main thread waited for other ranks
   16-47  sampler  for each group: a checksum of its name, and the collectives that this rank has issued
      48  sampler  ``TEXT_BYTES`` of UTF-8, filled with NUL: the place in words; "" while the script moves
"""

from __future__ import annotations

import mmap
import os
import struct
import time

VERSION = 1
TEXT_BYTES = 256
GROUPS_MAX_COUNT = 16
CIRCLE_MAX_COUNT = 8
MAGIC = int.from_bytes(struct.pack("=6sH", b"GRPLAC", VERSION), "little", signed=True)
W_MAGIC, W_PID, W_SEQ, W_AT, W_HAS_EXACT, W_KEY = range(6)
W_EXACT, W_SAMPLED, W_CIRCLING, W_COUNTED, W_TIMEOUT, W_GROUPS = range(6, 12)
W_ASKED, W_DUMPED = 12, 13
W_LOOKS, W_WAITS = 14, 15
W_COUNTS = 16
W_TEXT = W_COUNTS + 2 * GROUPS_MAX_COUNT
SIZE_BYTES = 8 * W_TEXT + TEXT_BYTES
READS_MAX_COUNT = 16


def now_ns() -> int:
    """The clock of the page's times."""
    return time.monotonic_ns()


class PlacePage:
    """Either end of the page."""

    def __init__(self, path: str, create: bool = False) -> None:
        """OSError if there is no room or no file, ValueError if it is not such a page."""
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.posix_fallocate(fd, 0, SIZE_BYTES)  # a full tmpfs must fail here, not as SIGBUS at a write
            self._map = mmap.mmap(fd, SIZE_BYTES)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("q")
        if create:
            self.words[W_MAGIC] = MAGIC
        elif self.words[W_MAGIC] != MAGIC:
            raise ValueError(f"not a page of places of version {VERSION}: {path}")

    def write(self, words: tuple[int, ...], groups: list[tuple[int, int]], text: bytes) -> None:
        """(sampler) One record: words ``W_AT`` to ``W_TIMEOUT``, the groups, the place."""
        page = self.words
        page[W_SEQ] |= 1
        for number, word in enumerate(words, W_AT):
            page[number] = word
        page[W_GROUPS] = len(groups)
        for number, group in enumerate(groups):
            page[W_COUNTS + 2 * number], page[W_COUNTS + 2 * number + 1] = group
        self._map[8 * W_TEXT :] = text[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        page[W_SEQ] += 1

    def read(self) -> tuple[list[int], str] | None:
        """(agent) The newest record's words and place; None if there is none, or none that is whole."""
        for _ in range(READS_MAX_COUNT):
            seq = self.words[W_SEQ]
            words, text = self.words[:W_TEXT].tolist(), self._map[8 * W_TEXT :]
            if not seq & 1 and self.words[W_SEQ] == seq:
                # cut in the middle of a character at worst
                return (words, text.rstrip(b"\0").decode("utf-8", "ignore")) if words[W_PID] else None
        return None

    def ask_dump(self) -> None:
        """(agent) Ask for a dump."""
        self.words[W_ASKED] += 1

    @property
    def has_dumped(self) -> bool:
        """(agent) Was the newest dump that was asked for written?"""
        return 0 < self.words[W_ASKED] == self.words[W_DUMPED]

    def close(self) -> None:
        """Give the memory back."""
        self.words.release()
        self._map.close()
