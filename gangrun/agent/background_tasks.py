"""Slow questions, each asked in a thread of its own, so that the loop never waits for a disk.

At most one of a kind is on its way; the answer, a fact, is taken by the loop. A question that never comes back (a file
server that stands still) costs a sleeping thread and nothing else.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from gangrun.agent.brain.facts import Fact


class Errands:
    """Questions on their way, and answers that wait."""

    def __init__(self) -> None:
        self._answers: deque[tuple[str, Fact]] = deque()
        self._out: set[str] = set()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable when ``take`` has something."""
        return self._bell

    def ask(self, kind: str, question: Callable[[], Fact], failed: Callable[[Exception], Fact]) -> None:
        """Ask, unless one of this kind is still out; ``failed`` turns an exception into a fact."""
        if kind in self._out:
            return
        self._out.add(kind)

        def go() -> None:
            try:
                fact = question()
            except Exception as error:  # noqa: BLE001 - a thread's main: whatever went wrong, the loop must hear of it
                fact = failed(error)
            self._answers.append((kind, fact))
            os.eventfd_write(self._bell, 1)

        threading.Thread(target=go, name=kind, daemon=True).start()

    def take(self) -> list[Fact]:
        """Everything that came back."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return []
        taken: list[Fact] = []
        while self._answers:
            kind, fact = self._answers.popleft()
            self._out.discard(kind)
            taken.append(fact)
        return taken
