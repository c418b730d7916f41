"""How a training ends: whether its last step has still to be saved, on which all ranks agree (room: training).

Nothing is saved while an error is under way: the state may be of half a step, and the other ranks are elsewhere.
Next: ``checkpointer``, which saves it.
"""

from __future__ import annotations

import sys

from gangrun.training.ranks import Call, RankGone, Ranks


class Ending:
    """Of one Checkpointer. An error that is being handled as this is made is none of its training's."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._error_before = id(sys.exc_info()[1])

    def error(self) -> BaseException | None:
        """The one that is under way in whoever calls this, as in a ``finally``, or being handled."""
        error = sys.exc_info()[1]
        return None if id(error) == self._error_before else error

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
