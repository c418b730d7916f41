"""Only ranks that lost a peer in a collective: who left them.

Either a stall names somebody, or a rank had ended with 0 while others still trained: a data set that is shorter on one
rank, an early ``return``. That is the script's, and comes again. Else nobody knows. Asked by ``blame``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangrun.core.model import Cause, Failure, Hang, RankExit, Verdict
from gangrun.core.recovery import blame_hang
from gangrun.core.text import counted, listed, one_line

_SIGNATURE = "a rank ended with 0 before the others"


def verdict(
    victims: Sequence[RankExit], hang: Hang | None, *, attempt_step: int, world_size: int, finished: frozenset[int]
) -> Verdict:
    """Blames no node: of all that were heard nobody fell of itself."""
    first = min(victims, key=lambda rank_exit: (rank_exit.at, rank_exit.rank))
    said = f": {one_line(first.error.message)}" if first.error is not None else ""
    at_step = f" at step {attempt_step}" if attempt_step >= 0 else ""
    lost = f"{counted(len(victims), 'rank')} lost a peer in a collective{at_step}"
    whole = f"{lost}, rank {first.rank} on {first.node} first{said}"
    if hang is not None:
        stood = blame_hang.verdict(hang, attempt_step, world_size)
        return replace(stood, cause=Cause.VICTIMS_ONLY, sentence=f"{whole}; {stood.sentence}")
    if finished:
        sentence = f"{ended_words(finished)} while others still trained; then {whole}"
        return Verdict(Cause.LEFT_EARLY, Failure.SCRIPT, (), (), _SIGNATURE, sentence)
    return Verdict(Cause.VICTIMS_ONLY, Failure.SCRIPT, (), (), "", f"{whole}; which rank left them is not known")


def ended_words(finished: frozenset[int]) -> str:
    """``rank 1, rank 2 ended with exit code 0``."""
    return f"{listed([f'rank {rank}' for rank in sorted(finished)])} ended with exit code 0"
