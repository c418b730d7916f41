"""The newest step that is whole in the nodes' memory is brought to the disk: before older attempts are sealed, and
before a job ends.

First all nodes say what they hold, then those that are picked write it, then files that no node holds are made again
from parity. If any of that fails, the run goes on from the newest checkpoint on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gangrun.core.checkpoints.memory import Holding, Offered, WholeStep, holders, lacking_of, newest_whole
from gangrun.core.events import Event
from gangrun.supervisor.node_calls import Act, CommandRetry, NodeCall, refusal_of
from gangrun.wire.messages import CommandResult, MemoryAnswer, Recover

ASK_WITHIN_S = 30.0  # a node that is only slow must not cost the steps since the last save on disk
LOOK_EVERY_S = 0.2  # whether there is a place to bring it to
SILENT_EVERY_S = 1.0  # whether everybody who writes is heard
ASK_SHARE_MAX = 1 / 3  # of the time there is
RESCUE_WITHIN_S = 930.0

Done = Callable[[str, WholeStep | None, str], list[Event]]


class MemoryLoad(NamedTuple):
    """Ranks on these nodes load the step from memory if each node has all of it: ``held(step, nodes that have it)``.

    ``shared``: or if they have it together; it is told which of them have nothing of it. None: they may not share it.
    """

    nodes: tuple[str, ...]
    held: Callable[[WholeStep, tuple[str, ...]], list[Event]]
    shared: Callable[[WholeStep, tuple[str, ...]], list[Event]] | None = None


Names = Mapping[str, tuple[str, ...]]  # of files, by node


class RecoverCall(NodeCall):
    """Ask, pick once there is a place for it, have it brought. In the end ``done(path, step, why)``: it was brought to
    ``path``, or why not, or, with None, there was none. ``pin``: ranks train on, so what nodes name is kept for it.

    Without ``pin`` a node that is lost meanwhile, or refuses, is done without: what it has not written is brought from
    whoever else has it, as it is where a node is only silent and others have it. ``discard``: nothing will come of a
    path, but more is brought beside it. ``load``: nothing need be brought if these nodes have it. What an attempt began
    from goes through the disk all the same: ranks that loaded it from memory have failed since.
    """

    def __init__(
        self, board: CommandRetry, theirs: Offered, above_step: int, nodes: Collection[str], staging: str, done: Done,
        now: float, within_s: float = RESCUE_WITHIN_S, *, pin: bool = False, ready: Callable[[], bool] = lambda: True,
        discard: Callable[[str], None] = lambda path: None, load: MemoryLoad | None = None,
    ) -> None:  # fmt: skip
        super().__init__(board)
        self._theirs, self._above_step, self._staging, self._load = theirs, above_step, staging, load
        self._done, self._within_s, self._pin, self._ready, self._discard = done, within_s, pin, ready, discard
        self._until = now + within_s
        self._held: dict[str, Sequence[Holding]] = {}
        self._picked: WholeStep | None = None
        self._written: set[str] = set()
        self._given_up: list[str] = []  # paths: who was told so late may still have written there
        self._names: dict[int, tuple[str, ...]] = {}  # that an open command will have written
        for node in nodes:
            self.ask(node, lambda act: Recover(board.term, act, theirs.attempt, pin=pin, base=theirs.base), now)
        self.deadline = self._due = now + min(ASK_WITHIN_S, ASK_SHARE_MAX * within_s) if self._open else now

    @property
    def path(self) -> str:
        """Where the picked step is brought to."""
        assert self._picked is not None
        return os.path.join(self._staging, f"{self._picked.step}-{self._picked.nonce}")

    def answered(self, n: int, result: CommandResult, now: float) -> list[Event]:
        """What one node holds, or that it has written its part."""
        node, names = self._open.pop(n), self._names.pop(n, ())
        if self._picked is not None:
            if not result.ok:
                return self._without(node, f"{node}: {refusal_of(result)}", now)
            self._written.update(names)
            return self._go_on(now)
        if isinstance(result.answer, MemoryAnswer):
            self._held[node] = result.answer.steps
        return [] if self._open else self._pick(now)

    def tick(self, now: float, silent: Collection[str], lost: Collection[str]) -> list[Event]:
        """Who is lost is waited for no more; who has not said what it holds by now is gone, nor will anybody bring
        now what was not brought.
        """
        self.deadline = self._due
        told = self._lost(lost, now) if self._picked is None else self._done_without(silent, lost, now)
        if self.over or now < self._due:
            return told
        if self._picked is None:
            return self._pick(now)
        late = min(self._open.values())
        return self._finish(f"{late} did not write its part within {self._within_s:.0f} s", now)

    def _lost(self, lost: Collection[str], now: float) -> list[Event]:
        """While it is asked what they hold."""
        awaited = False
        for node in {*self._held, *self._open.values()}.intersection(lost):
            self._held.pop(node, None)
            awaited = self._forget(node) or awaited
        return self._pick(now) if awaited and not self._open else []

    def _done_without(self, silent: Collection[str], lost: Collection[str], now: float) -> list[Event]:
        """While it is written."""
        assert self._picked is not None
        told: list[Event] = []
        for node in sorted({*self._open.values(), *self._picked.rebuild}):
            if not self.over and (node in lost or (node in silent and self._spared(node))):
                told += self._without(node, f"{node} was lost", now)
        self.deadline = min(self._due, now + SILENT_EVERY_S)
        return told

    def _spared(self, node: str) -> bool:
        """Would the same step come about without it?"""
        before, again = self._picked, newest_whole(self._held_without(node), self._above_step)
        assert before is not None
        return again is not None and not self._pin and (again.step, again.nonce) == (before.step, before.nonce)

    def _forget(self, node: str) -> bool:
        """It is waited for no more."""
        gone = self.leave([node])
        for n in gone:
            self._names.pop(n, None)
        return bool(gone)

    def _pick(self, now: float) -> list[Event]:
        self.leave(set(self._open.values()))
        if self._load is not None and (told := self._loaded(self._load)) is not None:
            return told
        if not self._ready() and now < self._until:
            self.deadline = self._due = now + LOOK_EVERY_S
            return []
        picked = self._picked = newest_whole(self._held, self._above_step)
        if picked is None:
            if self._pin:
                self._let_go(self._held, now)
            return self._finish("", now)
        self._due = self._until
        self.deadline = min(self._due, now + SILENT_EVERY_S)
        for node in self._held if self._pin else ():
            self._have_done(node, picked.files.get(node, ()), (), now)
        return self._go_on(now)

    def _loaded(self, load: MemoryLoad) -> list[Event] | None:
        """None: it has to go through the disk."""
        newest = newest_whole(self._held, self._above_step)
        if newest is None or self._is_base(newest.nonce):
            return None
        nodes = holders(self._held, newest)
        if set(load.nodes) <= set(nodes):
            self.end()
            return load.held(newest, nodes)
        lacking = lacking_of(self._held, newest, load.nodes)
        if load.shared is None or lacking is None:
            return None
        self.end()
        return load.shared(newest, lacking)

    def _is_base(self, nonce: str) -> bool:
        return self._theirs.base is not None and self._theirs.base.nonce == nonce

    def _go_on(self, now: float) -> list[Event]:
        """First what nodes hold, then what is made again of it."""
        picked = self._picked
        assert picked is not None
        for node, names in self._left_of(picked.files).items():
            self._have_done(node, names, (), now)
        if self._open:
            return []
        for node, names in self._left_of(picked.rebuild).items():
            self._have_done(node, (), names, now)
        return [] if self._open else self._finish("", now)

    def _left_of(self, wanted: Names) -> Names:
        done = self._written.union(*self._names.values())
        left = {node: tuple(name for name in names if name not in done) for node, names in wanted.items()}
        return {node: names for node, names in left.items() if names}

    def _without(self, node: str, why: str, now: float) -> list[Event]:
        """It will write no more. What it has written is there; the rest must come from others."""
        before = self._picked
        assert before is not None
        self._forget(node)
        if self._pin:
            return self._finish(why, now)
        self._held = self._held_without(node)
        again = newest_whole(self._held, self._above_step)
        if again is None:
            return self._finish(why, now)
        if (again.step, again.nonce) != (before.step, before.nonce):
            self._let_go(self._open.values(), now)
            self._given_up.append(self.path)
            self._discard(self.path)  # at once: it may be what the disk has no room for
            self.leave(set(self._open.values()))
            self._names, self._written = {}, set()
        self._picked = again
        return self._go_on(now)

    def _held_without(self, node: str) -> dict[str, Sequence[Holding]]:
        """What it has written counts all the same."""
        picked, there = self._picked, self._written
        assert picked is not None
        left = [
            replace(
                one,
                files=tuple(there.intersection(one.files)),
                pieces=tuple(there.intersection(one.pieces)),
                codes=(),
            )
            for one in self._held.get(node, ())
            if (one.step, one.nonce) == (picked.step, picked.nonce)
        ]
        return {**self._held, node: left}

    def _let_go(self, nodes: Collection[str], now: float) -> None:
        """Said once: what is pinned or written for nothing ends with the next question in any case."""
        term, attempt = self._board.term, self._theirs.attempt
        said = [
            self._board.say(node, lambda act: Recover(term, act, attempt, self._staging, pin=True), now)
            for node in set(nodes)
        ]
        self._board.withdraw(said)

    def _have_done(self, node: str, files: tuple[str, ...], rebuild: tuple[str, ...], now: float) -> None:
        picked, pin, base = self._picked, self._pin and not rebuild, self._theirs.base
        assert picked is not None
        attempt = base.attempt if base is not None and self._is_base(picked.nonce) else self._theirs.attempt

        def command(act: Act) -> Recover:
            return Recover(
                self._board.term, act, attempt, self.path, picked.step, picked.nonce, files, rebuild, pin, base
            )

        self._names[self.ask(node, command, now)] = (*files, *rebuild)

    def _finish(self, why: str, now: float) -> list[Event]:
        if why:
            self._let_go(self._open.values(), now)
        self.end()
        for path in self._given_up:
            self._discard(path)
        return self._done(self.path if self._picked is not None else "", self._picked, why)
