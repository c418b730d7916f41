"""Children with a deadline: questions that may never be answered, and several processes at once.

A child that the kernel holds (a dead file server, a sick driver) cannot even be killed. It is left behind, and said. A
question that such a child was asked is not asked again until it is gone. ``ProbeChildren`` asks one thing at a time and
hands on the one line of JSON that comes back; ``together`` runs tests of devices and a site's own commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ANSWER_MAX_CHARS = 4_000_000
WORDS_MAX_CHARS = 200
LEAVES_WITHIN_S = 0.5
LOOK_EVERY_S = 0.2
OUTPUT_MAX_CHARS = 1_000_000
NOT_FOUND = 127


def _start(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """In a session of its own, and heard through pipes."""
    return subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environment),
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def _close_pipes(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


class ProbeChildren:
    """Asks by starting ``[*command, kind, *words]``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._left: dict[tuple[str, ...], subprocess.Popen[str]] = {}
        self._one_at_a_time = threading.Lock()

    @property
    def left_count(self) -> int:
        """Children that did not end when they were killed, and are still there."""
        return sum(child.poll() is None for child in self._left.values())

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> Any:
        """The child's answer as parsed JSON; ``{"absent": why}`` where there is none."""
        with self._one_at_a_time:
            return self._ask((kind, *words), within_s)

    def _ask(self, question: tuple[str, ...], within_s: float) -> Any:
        earlier = self._left.get(question)
        if earlier is not None and earlier.poll() is None:
            return {"absent": f"process {earlier.pid}, asked earlier, still hangs in the kernel; no second one is sent"}
        self._left.pop(question, None)
        try:
            child = _start([*self._command, *question], self._environment)
        except OSError as error:
            return {"absent": f"no process could be started to ask: {error.strerror}"}
        try:
            said, complained = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            return {"absent": f"no answer within {within_s:g} s{self._leave(question, child)}"}
        return _parsed(said, complained, child.returncode)

    def _leave(self, question: tuple[str, ...], child: subprocess.Popen[str]) -> str:
        """Kill it, and do not wait for what may not come."""
        child.kill()
        _close_pipes(child)
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            self._left[question] = child
            return f", and process {child.pid} cannot be killed"
        return ""


def _parsed(said: str, complained: str, code: int) -> Any:
    if code != 0:
        lines = complained.strip().splitlines()
        last = lines[-1][:WORDS_MAX_CHARS] if lines else ""
        how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
        return {"absent": f"the process that asked {how}" + (f": {last}" if last else "")}
    try:
        return json.loads(said[:ANSWER_MAX_CHARS])
    except (ValueError, RecursionError):
        return {"absent": "the answer made no sense"}


@dataclass(slots=True)
class HeldChild:
    """A child in a session of its own that hears at its standard input when its parent has gone, or lets it go."""

    _child: subprocess.Popen[bytes]

    @staticmethod
    def start(argv: Sequence[str], environment: Mapping[str, str]) -> HeldChild | None:
        """It says nothing. None if no process can be started."""
        try:
            child = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip
        except OSError:
            return None
        return HeldChild(child)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    def end(self, words: bytes, within_s: float, leaves: Callable[[], bool]) -> None:
        """Let it go with these last words; killed if it has not ended by then. Once ``leaves()`` it is left alone."""
        pipe = self._child.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it has ended already
            pipe.write(words)
            pipe.close()
        for _ in range(round(within_s / LOOK_EVERY_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(LOOK_EVERY_S)
                return
            if leaves():
                return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a process ended; ``code`` is negative for a signal, None where it had to be killed at the deadline."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def last_words(self) -> str:
        """The last line that it wrote, of its errors if there are any."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip()[:200] if lines else ""


def together(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], within_s: float, now: Callable[[], float]
) -> list[ChildEnd]:
    """Start all of them, and hear each to its end or to the deadline. Each has a session of its own."""
    until = now() + within_s
    children = [_started(argv, environment) for argv in commands]
    try:
        return [one if isinstance(one, ChildEnd) else _heard(one, max(0.0, until - now())) for one in children]
    finally:
        for one in children:
            if not isinstance(one, ChildEnd):
                _kill(one)


def _started(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str] | ChildEnd:
    try:
        return _start(argv, environment)
    except OSError as error:
        return ChildEnd(NOT_FOUND, err=f"{argv[0]} cannot be started: {error.strerror}")


def _heard(child: subprocess.Popen[str], within_s: float) -> ChildEnd:
    ended = child.poll() is not None  # while another was heard, say: its words are there
    try:
        out, err = child.communicate(timeout=max(within_s, LEAVES_WITHIN_S) if ended else within_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        return ChildEnd(None, *_left_by(child))
    return ChildEnd(child.returncode, out[:OUTPUT_MAX_CHARS], err[:OUTPUT_MAX_CHARS])


def _left_by(child: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = child.communicate(timeout=LEAVES_WITHIN_S)
    except subprocess.TimeoutExpired as still:
        _close_pipes(child)
        return _text(still.stdout), f"process {child.pid} cannot be killed"
    return out[:OUTPUT_MAX_CHARS], err[:OUTPUT_MAX_CHARS]


def _text(raw: str | bytes | None) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or ""


def _kill(child: subprocess.Popen[str]) -> None:
    """The whole session's group: what a command started goes with it."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
