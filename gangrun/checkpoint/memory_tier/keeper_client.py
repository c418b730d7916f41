"""One process's line to the keeper of this node's memory (``gangrun/node/memory_keeper.py``).

A rank puts files there, an agent reads them; neither knows the other. Every call waits for the keeper, which answers at
once or is dead. Where an answer is not heard whole the connection is closed, as what comes late would be taken for the
next one's: then all is refused until ``again``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gangrun.node.memory_keeper import MESSAGE_MAX_BYTES, MORE, address

ANSWER_WITHIN_S = 60.0  # it frees memory between two answers, which of a large step takes its time


class KeeperRefused(OSError):
    """The keeper refused, or there is none (any more); the message says why."""


@dataclass(frozen=True, slots=True)
class StepName:
    """One save in memory."""

    attempt: int
    step: int
    nonce: str

    def message(self, op: str, **more: object) -> dict[str, object]:
        """What is said about it."""
        return {"op": op, "attempt": self.attempt, "step": self.step, "nonce": self.nonce, **more}


def _about(op: str, attempt: int, base: StepName | None) -> dict[str, object]:
    named = {"base": [base.attempt, base.step, base.nonce]} if base is not None else {}
    return {"op": op, "attempt": attempt, **named}


class KeeperClient:
    """A connection; what was begun and not finished when it closes is dropped."""

    def __init__(self, name: str, within_s: float = 0.0) -> None:
        """``within_s``: for each answer; 0: as long as answers may take."""
        self._name, self._within_s = name, within_s or ANSWER_WITHIN_S
        self._unheard = ""  # why this connection is of no more use
        self._line = self._met()

    def _met(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(self._within_s)
        try:
            line.connect(address(self._name))
        except OSError as error:
            line.close()
            why = error.strerror or error
            raise KeeperRefused(f"the keeper of this node's memory cannot be reached: {why}") from None
        return line

    def again(self) -> None:
        """Another connection where this one is of no more use; what it had begun, or pinned, is gone with it."""
        if self._unheard:
            self._line, self._unheard = self._met(), ""

    def new(self, step: StepName, name: str, size: int) -> int:
        """A descriptor to write exactly ``size`` bytes to; the caller closes it."""
        fds = self._ask(step.message("new", name=name, size=size))[1]
        return fds[0]

    def done(self, step: StepName, name: str) -> None:
        """From now on nobody can change it."""
        self._ask(step.message("done", name=name))

    def put(self, step: StepName, name: str, data: bytes) -> None:
        """A small file whole."""
        fd = self.new(step, name, len(data))
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        self.done(step, name)

    def whole(self, step: StepName) -> None:
        """Every node has all of its part: what is older is needed no more."""
        self._ask(step.message("whole"))

    def abandon(self, step: StepName) -> None:
        """It will never be whole."""
        self._ask(step.message("abandon"))

    def pin(self, attempt: int, base: StepName | None = None) -> None:
        """What ``held`` tells of stays until this connection pins others or closes."""
        self._ask(_about("pin", attempt, base))

    def pin_one(self, step: StepName) -> None:
        """This step stays, and nothing else for this connection's sake."""
        self._ask(step.message("pin"))

    def held(self, attempt: int, base: StepName | None = None) -> tuple[Mapping[str, Any], ...]:
        """Of each step of the attempt, and ``base``, from which it began: step, nonce, and the size of each sealed file
        by its name. Other steps of older attempts go.
        """
        return tuple(self._ask(_about("held", attempt, base))[0]["steps"])

    def paths(self, attempt: int, base: StepName) -> Mapping[str, str]:
        """Where processes of this user on this node read the files of ``base``, from which the attempt begins."""
        return dict(self._ask(_about("paths", attempt, base))[0]["files"])

    @contextmanager
    def opened(self, step: StepName, name: str) -> Iterator[int]:
        """A descriptor to read."""
        fd = self._ask(step.message("open", name=name))[1][0]
        try:
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go."""
        self._line.close()

    def _heard(self) -> tuple[dict[str, Any], list[int]]:
        """One answer, in as many messages as it took."""
        parts = b""
        while True:
            data, fds, _, _ = socket.recv_fds(self._line, MESSAGE_MAX_BYTES, 1)
            if not data:
                raise KeeperRefused("the keeper of this node's memory is gone")
            parts += data[1:]
            if not data.startswith(MORE):
                return json.loads(parts), fds

    def _ask(self, message: Mapping[str, object]) -> tuple[dict[str, Any], list[int]]:
        if self._unheard:
            raise KeeperRefused(self._unheard)
        try:
            self._line.send(json.dumps(message).encode())
            said, fds = self._heard()
        except (OSError, ValueError) as error:
            self._line.close()
            why = getattr(error, "strerror", None) or error
            silent = not isinstance(error, KeeperRefused)
            self._unheard = f"the keeper of this node's memory does not answer: {why}" if silent else str(error)
            raise KeeperRefused(self._unheard) from None
        if not said.get("ok"):
            raise KeeperRefused(str(said.get("why", "refused")))
        for fd in fds:
            os.set_inheritable(fd, False)
        return said, fds
