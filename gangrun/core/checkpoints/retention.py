"""Which checkpoints may go.

Kept are the newest few, every M-th step for good, whatever is not proven to be whole or not ours, and always the newest
one known to be valid, since the newest of all may turn out damaged when it is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay.

    Args:
        newest_count: This many of the newest stay, at least 2; default 0: all of them.
        every_steps: Of older ones those stay whose step is a multiple of this; default 0: none.

    Raises:
        ValueError: A number is negative, or ``newest_count`` is 1.
    """

    newest_count: int = 0
    every_steps: int = 0

    def __post_init__(self) -> None:
        if self.newest_count < 0 or self.every_steps < 0 or self.newest_count == 1:
            raise ValueError("keep at least 2 checkpoints (0: all): the newest may be the damaged one")


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """One committed checkpoint of ours. ``valid``: read in full and found whole."""

    step: int
    valid: bool


SETTLED_COUNT = 2
ROLLBACKS_COUNT = 2  # so often may be gone back for sure; a third time to what stays for other reasons


def for_a_rollback(
    held: Collection[CommittedStep], resumed_step: int | None, written_steps: Collection[int], soon_steps: int
) -> tuple[int, ...]:
    """What may be needed again by a run that resumed from ``resumed_step``: that one, and should it be poisoned the
    newest valid ones before it. They stay until two of its own stand that were taken over ``soon_steps`` after it:
    those that it wrote sooner may bear the same poison.
    """
    if resumed_step is None or sum(step - resumed_step > soon_steps for step in written_steps) >= SETTLED_COUNT:
        return ()
    older = sorted(one.step for one in held if one.valid and one.step < resumed_step)
    return (*older[-ROLLBACKS_COUNT:], resumed_step)


def to_prune(held: Collection[CommittedStep], keep: Keep, needed_steps: Collection[int] = ()) -> tuple[int, ...]:
    """The steps that may go, oldest first. ``needed_steps`` stay: what ranks run from, what a rollback may need."""
    if not keep.newest_count:
        return ()
    newest_first = sorted((one.step for one in held), reverse=True)
    stays = set(newest_first[: keep.newest_count]) | set(needed_steps)
    stays |= set(sorted((one.step for one in held if one.valid), reverse=True)[:2])
    if keep.every_steps:
        stays |= {step for step in newest_first if step % keep.every_steps == 0}
    return tuple(sorted(set(newest_first) - stays))
