"""All ranks read what rank 0 wants proven, each its share of the bytes: so do all nodes.

Only what rank 0 finds damaged itself is damaged: what another rank could not read or check, or found wrong, rank 0
reads again, as it may be that node's memory or mount.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from gangrun.checkpoint.formats.own import proof_of
from gangrun.checkpoint.verification import Proof, Tick, prove_share
from gangrun.core.checkpoints.resume import far_share
from gangrun.training.ranks import Ranks

_THREADS_COUNT = 4


class ReadingTogether:
    """On rank 0 a context, within which ``prove_all`` may be called; all others ``help`` until it is left."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __enter__(self) -> ReadingTogether:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.from_first(("", ""))

    def prove_all(self, proof: Proof, tick: Tick, threads_count: int) -> Sequence[str]:
        """What ``prove_share`` does for the whole, and raises."""
        count = self._ranks.world_size
        self._ranks.from_first((proof.directory, proof.save))
        mine: Exception | None = None
        unproven: list[str] = []
        try:
            unproven = prove_share(proof, tick, threads_count, far_share(0, count), count)
        except Exception as found:  # noqa: BLE001 - whatever it is, the others wait for the answer to theirs
            mine = found
        proven = self._ranks.to_first(mine is None)
        if mine is not None:
            raise mine
        for rank in (rank for rank in range(1, count) if not proven[rank]):
            unproven += prove_share(proof, tick, threads_count, far_share(rank, count), count)
        return unproven

    def help(self) -> None:
        """Read this rank's shares, until there are no more."""
        while True:
            directory, save = self._ranks.from_first(("", ""))
            if not directory:
                return
            self._ranks.to_first(self._proven(directory, save))

    def _proven(self, directory: str, save: str) -> bool:
        count, share = self._ranks.world_size, far_share(self._ranks.rank, self._ranks.world_size)
        try:
            return not prove_share(proof_of(directory, save), lambda _: None, _THREADS_COUNT, share, count)
        except Exception:  # noqa: BLE001 - rank 0 reads it instead, and says what it finds
            return False
