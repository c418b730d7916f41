"""What a user can do wrong, or the world to the user: one exception, one exit code each, no traceback."""

from __future__ import annotations

from collections.abc import Iterable

DONE, RUN_FAILED, USAGE, UNKNOWN, SCHEDULER, NO_SUCH_RUN = 0, 1, 2, 3, 4, 5
TIME_UP, INTERRUPTED, TERMINATED = 124, 130, 143


class UserError(Exception):
    """Something a person can act on: what was wrong, where, what to do."""

    def __init__(self, kind: str, message: str, hint: str = "", code: int = USAGE) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint, self.code = kind, message, hint, code


def did_you_mean(word: str, known: Iterable[str], *, before: str = "", like: float = 0.6) -> str:
    """``did you mean X?`` with the nearest of ``known``, ``before`` put before it; "" where nothing is ``like`` it."""
    import difflib  # noqa: PLC0415 - only who errs pays for it

    near = difflib.get_close_matches(word, list(known), 1, like)
    return f"did you mean {before}{near[0]}?" if near else ""
