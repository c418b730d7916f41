"""Runs the user's validator: a command that judges a checkpoint's directory by its exit code.

Without a shell, the path as the last argument and always absolute: no name can be an option or a second command.
0: valid, 1: not; any other end, a time-out or a command that does not start is no opinion.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

VALID, NOT_VALID = 0, 1
_READ_BYTES = 4096
_WORDS_CHARS_COUNT = 200
_REAPED_WITHIN_S = 5.0


class CommandValidator:
    """One command; called from one thread at a time."""

    def __init__(
        self, argv: Sequence[str], within_s: float, environment: Mapping[str, str], directory: str | None = None
    ) -> None:
        """``directory``: where it runs."""
        self._argv, self._within_s = tuple(argv), within_s
        self._environment, self._directory = dict(environment), directory
        self.identity = _identity(self._argv, directory)

    def __call__(self, path: str) -> tuple[bool | None, str]:
        """Valid, not valid or no opinion (None), and the last line that it said."""
        with tempfile.TemporaryFile() as said:
            try:
                child = subprocess.Popen(
                    [*self._argv, os.path.abspath(path)], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                    cwd=self._directory, env=self._environment, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                return None, f"it could not be started ({error.strerror})"
            try:
                code = child.wait(self._within_s)
            except subprocess.TimeoutExpired:
                _end(child)
                return None, f"no answer within {self._within_s:g} s"
            words = _last_line(said.fileno())
        if code in (VALID, NOT_VALID):
            return code == VALID, words
        how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
        return None, f"{how}: {words}" if words else how


def validator_of(
    argv: Sequence[str], within_s: float, environment: Mapping[str, str], directory: str | None = None
) -> CommandValidator | None:
    """The user's validator, run in ``directory``; None without a command."""
    return CommandValidator(argv, within_s, environment, directory) if argv else None


def _identity(argv: Sequence[str], directory: str | None) -> str:
    """Tells this command from another one, and from itself once a file that it names was changed."""
    told = [str(directory)]
    for word in argv:
        told.append(word)
        try:
            found = os.stat(os.path.join(directory or "", word))
            told.append(f"{found.st_size} {found.st_mtime_ns} {found.st_ino}")
        except (OSError, ValueError):
            told.append("no file")
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _end(child: subprocess.Popen[bytes]) -> None:
    """With all that it started; one that the kernel holds is left behind."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(_REAPED_WITHIN_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return


def _last_line(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _READ_BYTES, max(0, size - _READ_BYTES)).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_WORDS_CHARS_COUNT] if lines else ""
