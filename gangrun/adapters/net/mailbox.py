"""Where the supervisor's loop waits: one queue that any thread may fill."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from gangrun.ports import Clock, Item, Woken

WAIT_MAX_S = 1.0  # a queue's time-out stands still while the machine is suspended; the run's clock does not


class QueueMailbox:
    """``ports.Mailbox`` over a thread-safe queue; items come out in the order in which they were posted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        self._taken: deque[Item] = deque()

    def post(self, item: Item) -> None:
        """Put one item in, from any thread."""
        self._queue.put((item,))

    def post_many(self, items: Sequence[Item]) -> None:
        """Put several in at once: cheaper for a reader that found many. The sequence must not change afterwards."""
        if items:
            self._queue.put(items)

    def next(self, until: float) -> Item:
        """The next item, or ``Woken`` at ``until``."""
        while not self._taken:
            left_s = until - self._clock.now()
            try:
                if left_s <= 0:
                    self._taken.extend(self._queue.get_nowait())
                else:
                    self._taken.extend(self._queue.get(timeout=min(left_s, WAIT_MAX_S)))
            except Empty:
                if left_s <= 0:
                    return Woken()
        return self._taken.popleft()
