"""The newest step that is whole in the nodes' memory is brought to the disk: before older attempts are sealed, and
before a job ends.

(Room: supervisor.) First all nodes say what they hold, then those that are picked write it, then what nobody holds is
made again of that; whatever fails, the run goes on from what is on disk. Next: ``core/kept.py`` picks,
``agent/rescue.py`` answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

import msgspec

from gangrun.core.events import Event
from gangrun.core.kept import Holding, WholeStep, newest_whole
from gangrun.supervisor.switchboard import Switchboard
from gangrun.wire.messages import CommandResult, Rescue

ASK_WITHIN_S = 30.0  # a node that is only slow must not cost the steps since the last save on disk
LOOK_EVERY_S = 0.2  # whether there is a place to bring it to
ASK_SHARE_MAX = 1 / 3  # of the time there is
RESCUE_WITHIN_S = 930.0

Done = Callable[[str, WholeStep | None, str], list[Event]]


class RescueCall:
    """Ask, pick once there is a place for it, have it brought. In the end ``done(path, step, why)``: it was brought to
    ``path``, or why not, or, with None, there was none. ``pin``: ranks train on, so what nodes name is kept for it.
    """

    def __init__(
        self, board: Switchboard, attempt: int, above_step: int, nodes: Collection[str], staging: str, done: Done,
        now: float, within_s: float = RESCUE_WITHIN_S, *, pin: bool = False, ready: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.over = False
        self._board, self._attempt, self._above_step, self._staging = board, attempt, above_step, staging
        self._done, self._within_s, self._pin, self._ready = done, within_s, pin, ready
        self._until = now + within_s
        self._held: dict[str, list[Holding]] = {}
        self._picked: WholeStep | None = None
        self._rebuilding = False
        self._open = {
            board.say(node, lambda act: Rescue(board.term, act, attempt, pin=pin), now): node for node in nodes
        }
        self.deadline = now + min(ASK_WITHIN_S, ASK_SHARE_MAX * within_s) if self._open else now

    def numbers(self) -> Collection[int]:
        """Commands without an answer yet."""
        return self._open

    @property
    def path(self) -> str:
        """Where the picked step is brought to."""
        assert self._picked is not None
        return os.path.join(self._staging, f"{self._picked.step}-{self._picked.nonce}")

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """What one node holds, or that it has written its part."""
        node = self._open.pop(n)
        if self._picked is not None:
            if not result.ok:
                return self._finish(f"{node}: {result.why or 'refused without a reason'}")
            if self._open:
                return []
            if self._picked.rebuild and not self._rebuilding:
                self._rebuilding = True
                return self._have_done(self._picked.rebuild, now)
            return self._finish("")
        try:
            self._held[node] = msgspec.convert(result.data.get("steps", []), list[Holding])
        except msgspec.ValidationError:
            pass  # it holds nothing that could be used
        return [] if self._open else self._pick(now)

    def tick(self, now: float) -> list[Event]:
        """Who has not said what it holds by now is gone; who has not brought it by now will not."""
        if now < self.deadline:
            return []
        if self._picked is None:
            return self._pick(now)
        return self._finish(f"{min(self._open.values())} did not write its part within {self._within_s:.0f} s")

    def _pick(self, now: float) -> list[Event]:
        self._board.withdraw(self._open)
        self._open = {}
        if not self._ready() and now < self._until:
            self.deadline = now + LOOK_EVERY_S
            return []
        picked = self._picked = newest_whole(self._held, self._above_step)
        if picked is None:
            self._let_go(now)
            return self._finish("")
        self.deadline = self._until
        return self._have_done(self._held if self._pin else picked.files, now)

    def _let_go(self, now: float) -> None:
        """Said once: what is pinned for nothing goes with the next question in any case."""
        term, attempt = self._board.term, self._attempt
        nodes = self._held if self._pin else ()
        said = [
            self._board.say(node, lambda act: Rescue(term, act, attempt, self._staging, pin=True), now)
            for node in nodes
        ]
        self._board.withdraw(said)

    def _have_done(self, nodes: Collection[str], now: float) -> list[Event]:
        for node in nodes:
            self._open[self._board.say(node, lambda act, node=node: self._command(act, node), now)] = node  # type: ignore[misc]
        return []

    def _command(self, act: tuple[int, int], node: str) -> Rescue:
        picked = self._picked
        assert picked is not None
        files, rebuild = ((), picked.rebuild[node]) if self._rebuilding else (picked.files.get(node, ()), ())
        return Rescue(
            self._board.term, act, self._attempt, self.path, picked.step, picked.nonce, files, rebuild,
            self._pin and not rebuild,
        )  # fmt: skip

    def _finish(self, why: str) -> list[Event]:
        self.over = True
        return self._done(self.path if self._picked is not None else "", self._picked, why)
