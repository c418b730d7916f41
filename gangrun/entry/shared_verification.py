"""The checkpoint that is to be resumed from, read by all nodes.

The checkpoint thread stands in ``verify_all`` while the supervisor's loop asks the agents; the loop answers through
``dealt`` and ``proven``. Only what this host finds damaged itself is damaged: what another node could not read, or
found wrong or could not check, is read again here. Whatever the loop does, this thread waits for a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeVar

from gangrun.checkpoint.verification import Tick, Verification, verify_share
from gangrun.core.checkpoints.resume import patience_s, readers_max_count
from gangrun.display.text import size_words
from gangrun.ports import ReadingAsked

LOOP_WITHIN_S = 10.0  # so late the loop may be with an answer
T = TypeVar("T")


class SharedReading:
    """One supervisor's; one reading at a time."""

    def __init__(self, post: Callable[[ReadingAsked], None], share_bytes: int, now: Callable[[], float]) -> None:
        """``share_bytes``: what each node reads at least; 0: nothing is shared."""
        self._wanted = False
        self._post, self._share_bytes, self._now = post, share_bytes, now
        self._number = 0
        self._dealt: SimpleQueue[tuple[int, tuple[int, int]]] = SimpleQueue()
        self._proven: SimpleQueue[tuple[int, Mapping[int, str]]] = SimpleQueue()
        self._words: dict[str, str] = {}
        self._ready_at = 0.0  # then this host began to look at what there is to read: others do that first too

    def dealt(self, number: int, share: int, readers_count: int) -> None:
        """From the loop: so many read, this host that share."""
        self._dealt.put((number, (share, readers_count)))

    def proven(self, number: int, unread: Mapping[int, str]) -> None:
        """From the loop: the others are done."""
        self._proven.put((number, dict(unread)))

    def words_of(self, path: str) -> str:
        """Who read it, if that was shared this time."""
        return self._words.get(path, "")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """No rank trains now, so other nodes have time to read; at all other times this host reads alone."""
        self._wanted, self._words, self._ready_at = True, {}, self._now()
        try:
            yield
        finally:
            self._wanted = False

    def verify_all(self, verification: Verification, tick: Tick, threads_count: int) -> Sequence[str]:
        """What ``verify_share`` does for the whole, and raises."""
        most = readers_max_count(verification.data_bytes, self._share_bytes) if self._wanted else 1
        if most == 1:
            return verify_share(verification, tick, threads_count)
        try:
            return self._prove_together(verification, tick, threads_count, most)
        finally:
            self._ready_at = self._now()

    def _prove_together(self, verification: Verification, tick: Tick, threads_count: int, most: int) -> Sequence[str]:
        began, self._number = self._now(), self._number + 1
        asked = ReadingAsked(self._number, verification.directory, verification.save, most)
        self._post(asked)
        own, count = self._answer(self._dealt, LOOP_WITHIN_S) or (0, 1)
        left_s = 0.0
        try:
            unverified = verify_share(verification, tick, threads_count, own, count)
            left_s = patience_s(self._now() - self._ready_at)
        finally:
            self._post(replace(asked, left_s=left_s))
        unread: Mapping[int, str] = {}
        if count > 1:
            told = self._answer(self._proven, left_s + LOOP_WITHIN_S)
            unread = dict.fromkeys(set(range(count)) - {own}, "no answer") if told is None else told
        for share in sorted(unread):
            unverified += verify_share(verification, tick, threads_count, share, count)
        nodes = f"{count - len(unread)} node{'' if count - len(unread) == 1 else 's'}"
        words = f"; read by {nodes}, {size_words(verification.data_bytes)} in {self._now() - began:.1f} s"
        again = "; ".join(sorted(set(unread.values())))
        self._words[verification.directory] = words + (
            f", what fell to others was read again here ({again})" if again else ""
        )
        return unverified

    def _answer(self, queue: SimpleQueue[tuple[int, T]], within_s: float) -> T | None:
        """What the loop says to this question; late answers to earlier ones are passed over."""
        until = self._now() + within_s
        while True:
            try:
                number, told = queue.get(timeout=max(0.0, until - self._now()))
            except Empty:
                return None
            if number == self._number:
                return told
