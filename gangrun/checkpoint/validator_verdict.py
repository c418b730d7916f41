"""What a command of the user's says of a checkpoint, beside what gangrun sees by itself.

It is asked last, of what would otherwise be taken, and once for each save: a yes is remembered beside what was proven,
for this very command and save. A no is not: such a save is set aside by the next choice, and the trouble may have been
the command's own. It may refuse what is whole, and it alone can vouch for a format that gangrun does not know; what
that holds cannot be told from what it held, so it is asked again. Where it has no opinion nothing changes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace

from gangrun.checkpoint.records import VerifiedBefore
from gangrun.checkpoint.scan import StepDirectory
from gangrun.core.checkpoints.resume import Candidate, Kind, shown
from gangrun.core.model import Level

Validator = Callable[[str], tuple[bool | None, str]]  # a path -> valid, not, or no opinion; and its words


class ValidatorVerdicts:
    """The command's answers so far."""

    def __init__(self, validator: Validator | None, memory: VerifiedBefore) -> None:
        """``validator`` may have an ``identity``: what tells it from another one; without it nothing is remembered."""
        self._validator = validator
        self._identity = str(getattr(validator, "identity", ""))
        self._memory = memory
        self._known: dict[tuple[str, str | None], tuple[bool | None, str]] = {}

    def of(self, candidate: Candidate, *, ask: bool, name: str = "") -> Candidate:
        """A valid candidate as the command sees it, or not to ``ask``: as it saw it before, if it did. ``name``: as
        what is proven of it is remembered.
        """
        asked = ask or (candidate.path, candidate.nonce) in self._known
        if self._validator is None or not candidate.valid or not asked:
            return candidate
        seal = self._seal(candidate) if name else ""
        if seal and self._memory.is_accepted(name, seal):
            return candidate
        content, said = self._ask(candidate.path, candidate.nonce)
        if content and seal:
            self._memory.accept(name, seal)
        if content is False:
            return replace(candidate, valid=False, level=None, why_not=f"the validator refuses it{said}")
        if content is None:
            unsure = f"the validator gave no verdict{said}"
            return replace(candidate, why_not="; ".join(filter(None, (candidate.why_not, unsure))))
        return candidate

    def of_unknown(self, found: StepDirectory, candidate: Candidate) -> Candidate:
        """A directory whose format gangrun does not know: it counts if the command vouches for it."""
        strange = found.kind is Kind.UNKNOWN and not found.unreadable and not os.path.islink(found.path)
        if self._validator is None or not strange:
            return candidate
        content, said = self._ask(found.path, _stamp(found.path))
        if content:
            why = "its format is unknown to gangrun, and the validator accepts it"
            return replace(candidate, kind=Kind.CUSTOM, committed=True, level=Level.COMPLETE, valid=True, why_not=why)
        words = "refuses it" if content is False else "gave no verdict"
        return replace(candidate, why_not=f"{candidate.why_not}; the validator {words}{said}")

    def _ask(self, path: str, nonce: str | None) -> tuple[bool | None, str]:
        assert self._validator is not None
        key = (path, nonce)
        if key not in self._known:
            content, said = self._validator(path)
            self._known[key] = content, f": {shown(said)}" if said else ""
        return self._known[key]

    def _seal(self, candidate: Candidate) -> str:
        """This command of this save; "" where one of them cannot be told from others."""
        stamp = _stamp(candidate.path)
        if not self._identity or stamp is None:
            return ""
        return hashlib.sha256(f"{self._identity}\n{candidate.nonce}\n{stamp}".encode()).hexdigest()


def _stamp(path: str) -> str | None:
    """Tells one content of a directory, or of a file, from another, as far as names and times do."""
    try:
        if not os.path.isdir(path):
            facts = [("", os.lstat(path))]
        else:
            with os.scandir(path) as entries:
                facts = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    except OSError:
        return None
    return repr(sorted((name, fact.st_size, fact.st_mtime_ns, fact.st_ino) for name, fact in facts))
