"""How a training ends: whether its last step has still to be saved, on which all ranks agree.

Nothing is saved while an error is under way: the state may be of half a step, and the other ranks are elsewhere.
"""

from __future__ import annotations

import sys

from gangrun.training.ranks import Call, RankGone, Ranks


class Ending:
    """Of one Checkpointer. An error that is being handled as this is made is none of its training's."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        """``name``: of this one alone."""
        self._ranks = ranks
        self._mark = f"gangrun: before {name}"
        if (error := sys.exc_info()[1]) is not None:
            vars(error)[self._mark] = True  # held instead it would keep its frames and all that they hold, as a model

    def hindered(self, step: int) -> str:
        """Why ``step`` cannot be saved by whoever calls this: an error is under way, as in a ``finally``, or is being
        handled; "" where none is.
        """
        error = sys.exc_info()[1]
        if error is None or self._mark in vars(error):
            return ""
        return (
            f"step {step}, the last one, is not saved: close() was called while {type(error).__name__} is under way or "
            "being handled; call it after the except block"
        )

    def agreed(self, step: int, *, unsaved: bool) -> tuple[bool, str]:
        """Whether all ranks save ``step`` now, and why they cannot; called by all of them, which know alike what is
        saved.
        """
        self._ranks.called(Call.CLOSE, step)
        try:
            last, first, any_unsaved = self._ranks.largest(step, -step, int(unsaved))
        except RankGone as gone:
            return False, f"step {step}, the last one, was not saved: {gone}"
        if any_unsaved and last != -first:
            return False, f"no last step was saved: one rank ended after step {-first} and another after step {last}"
        return bool(any_unsaved), ""
