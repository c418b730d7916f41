"""One checkpoint is read by several nodes before it is resumed from, each its share.

A question like that for an inventory: it leaves no effect, so nothing is recorded, and a later supervisor just asks
again. Whoever finds damage, cannot read or is gone has its share read again by this supervisor's host, whose verdict
alone counts: one sick node condemns no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gangrun.core.events import Event
from gangrun.ports import ReadingAsked
from gangrun.supervisor.command_retry import Switchboard
from gangrun.wire.messages import CommandResult, Prove

NEVER = float("inf")


class ReadingCall:
    """Ask all at once; in the end ``done(unread)``: which shares were not found whole, and why. No event follows."""

    def __init__(
        self,
        board: Switchboard,
        asked: ReadingAsked,
        shares: Mapping[str, int],
        readers_count: int,
        done: Callable[[Mapping[int, str]], None],
        now: float,
    ) -> None:
        """``shares``: of nodes; what they leave of so many is this host's."""
        self.over = False
        self.number = asked.number
        self.deadline = self._until = NEVER
        self._board, self._done = board, done
        self._unread: dict[int, str] = {}
        self._open: dict[int, tuple[int, str]] = {}
        for node, share in shares.items():

            def command(act: tuple[int, int], share: int = share) -> Prove:
                return Prove(board.term, act, asked.directory, asked.nonce, share, readers_count)

            self._open[board.say(node, command, now)] = (share, node)

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    def wait_until(self, until: float) -> None:
        """This host has read its share: the others are given so long."""
        self.deadline = self._until = until

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """One node has read its share, or could not, or found damage."""
        del now
        share, node = self._open.pop(n)
        if not result.ok:
            self._unread[share] = f"{node}: {result.why or 'refused without a reason'}"
        return self._end_if_all_answered()

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Who is lost will not answer; in the end nobody is waited for."""
        del silent
        for n, (share, node) in list(self._open.items()):
            if node in lost or now >= self._until:
                self._unread[share] = f"{node}: {'lost' if node in lost else 'no answer'}"
                del self._open[n]
                self._board.withdraw([n])
        self.deadline = self._until
        return self._end_if_all_answered()

    def _end_if_all_answered(self) -> list[Event]:
        if not self._open:
            self.over = True
            self._done(self._unread)
        return []
