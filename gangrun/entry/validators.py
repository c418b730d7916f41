"""The user's validator, if there is one."""

from __future__ import annotations

from gangrun.checkpoint.validator_verdict import Validator
from gangrun.config import environment


def validator_of(argv: tuple[str, ...], within_s: float, directory: str | None = None) -> Validator | None:
    """Runs in ``directory``, with our own environment."""
    if not argv:
        return None
    from gangrun.adapters.local.validator import CommandValidator

    return CommandValidator(argv, within_s, environment.all_variables(), directory)
