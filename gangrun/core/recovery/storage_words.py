"""Whether what a rank raised is the storage's doing.

An ``OSError`` begins with its number. What saves wraps it: in gangrun's ``CheckpointError`` and torch's
``CheckpointException`` the system's words stand somewhere in the message.
"""

from __future__ import annotations

from gangrun.core.model import ErrorReport

_FULL_ERRNOS = ("[Errno 28]", "[Errno 30]", "[Errno 122]")  # ENOSPC EROFS EDQUOT
_PASSING_ERRNOS = ("[Errno 5]", "[Errno 116]")  # EIO ESTALE
_FULL_WORDS = ("No space left on device", "Read-only file system", "Disk quota exceeded")
_PASSING_WORDS = ("Input/output error", "Stale file handle")
_SAVING = "Checkpoint"  # how the kinds of errors begin that are raised by whatever saves


def is_full(error: ErrorReport) -> bool:
    """A full or read-only place: waiting does not cure it."""
    return _tells(error, _FULL_ERRNOS, _FULL_WORDS)


def may_pass(error: ErrorReport) -> bool:
    """Storage that did not answer as it should."""
    return _tells(error, _PASSING_ERRNOS, _PASSING_WORDS)


def _tells(error: ErrorReport, errnos: tuple[str, ...], words: tuple[str, ...]) -> bool:
    wrapped = error.kind.rpartition(".")[2].startswith(_SAVING)
    return error.message.startswith(errnos) or (wrapped and any(word in error.message for word in (*errnos, *words)))
