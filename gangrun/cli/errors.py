"""What a user can do wrong, or the world to the user (room: cli): one exception, one exit code each, no traceback."""

from __future__ import annotations

DONE, RUN_FAILED, USAGE, UNKNOWN, SLURM, NO_SUCH_RUN, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143


class UserError(Exception):
    """Something a person can act on: what was wrong, where, what to do."""

    def __init__(self, kind: str, message: str, hint: str = "", code: int = USAGE) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint, self.code = kind, message, hint, code
