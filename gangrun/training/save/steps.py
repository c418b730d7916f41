"""Which step training is at and which ones are saved, as all ranks know alike.

No clock, no file: the caller says what happened.
"""

from __future__ import annotations


class Steps:
    """Of one Checkpointer; -1: none yet."""

    def __init__(self) -> None:
        self.last = self.resumed = -1  # training has done this one; it came from that one
        self._called = self._begun = self._committed = -1

    def resumed_from(self, step: int) -> None:
        """Training goes on after this one, which is on disk."""
        self.last = self.resumed = self._called = self._begun = self._committed = step

    def save_called(self, step: int) -> None:
        """The script, or the schedule, wants this one saved."""
        self._called = max(self._called, step)

    def save_begun(self, step: int) -> None:
        """It is on its way to the disk."""
        self._begun = step

    def save_ended(self, step: int, *, committed: bool) -> None:
        """It is on disk, or not."""
        if committed:
            self._committed = max(self._committed, step)
        elif step == self._begun:
            self._begun = -1

    def is_saved(self, step: int) -> bool:
        """Whether this one is on disk or on its way: what would be saved now may be of a later moment."""
        return step in (self._begun, self._committed)

    @property
    def last_is_unsaved(self) -> bool:
        """Whether the end has to save the last step: nothing as new is on disk or on its way, and the script did not
        want a newer one saved, since the state is that one's.
        """
        return self.last > self._committed and self.last >= self._called and self.last != self._begun
