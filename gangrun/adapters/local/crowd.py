"""Several processes at once under one deadline: tests of devices, a site's own commands.

What a process said before it was killed is kept. One that the kernel holds cannot be killed: it is left, and said.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEAVES_WITHIN_S = 0.5
OUTPUT_MAX_CHARS = 1_000_000
NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Said:
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
) -> list[Said]:
    """Start all of them, and hear each to its end or to the deadline. Each has a session of its own."""
    until = now() + within_s
    children = [_started(argv, environment) for argv in commands]
    try:
        return [one if isinstance(one, Said) else _heard(one, max(0.0, until - now())) for one in children]
    finally:
        for one in children:
            if not isinstance(one, Said):
                _kill(one)


def _started(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str] | Said:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Said(NOT_FOUND, err=f"{argv[0]} cannot be started: {error.strerror}")


def _heard(child: subprocess.Popen[str], within_s: float) -> Said:
    ended = child.poll() is not None  # while another was heard, say: its words are there
    try:
        out, err = child.communicate(timeout=max(within_s, LEAVES_WITHIN_S) if ended else within_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        return Said(None, *_left_by(child))
    return Said(child.returncode, out[:OUTPUT_MAX_CHARS], err[:OUTPUT_MAX_CHARS])


def _left_by(child: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = child.communicate(timeout=LEAVES_WITHIN_S)
    except subprocess.TimeoutExpired as still:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        return _text(still.stdout), f"process {child.pid} cannot be killed"
    return out[:OUTPUT_MAX_CHARS], err[:OUTPUT_MAX_CHARS]


def _text(raw: str | bytes | None) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or ""


def _kill(child: subprocess.Popen[str]) -> None:
    """The whole session's group: what a command started goes with it."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
