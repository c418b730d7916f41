"""All ranks read what rank 0 wants proven, each its share of the bytes: so do all nodes (room: training).

Only what rank 0 finds damaged itself is damaged: what another rank could not read, or found wrong, rank 0 reads again,
as it may be that node's memory or mount. Next: ``core/sharing.py`` deals out, ``resuming`` asks.
"""

from __future__ import annotations

from types import TracebackType

from gangrun.checkpoint.dcp_verify import Tick
from gangrun.checkpoint.manifest_verify import prove_share, read_manifest
from gangrun.core.sharing import far_share
from gangrun.training.ranks import Ranks
from gangrun.wire.manifest import Manifest

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

    def prove_all(self, directory: str, manifest: Manifest, tick: Tick, threads_count: int) -> None:
        """What ``prove_share`` does for the whole, and raises."""
        count = self._ranks.world_size
        self._ranks.from_first((directory, manifest.nonce))
        mine: Exception | None = None
        try:
            prove_share(directory, manifest, tick, threads_count, far_share(0, count), count)
        except Exception as found:  # noqa: BLE001 - whatever it is, the others wait for the answer to theirs
            mine = found
        proven = self._ranks.to_first(mine is None)
        if mine is not None:
            raise mine
        for rank in (rank for rank in range(1, count) if not proven[rank]):
            prove_share(directory, manifest, tick, threads_count, far_share(rank, count), count)

    def help(self) -> None:
        """Read this rank's shares, until there are no more."""
        while True:
            directory, nonce = self._ranks.from_first(("", ""))
            if not directory:
                return
            self._ranks.to_first(self._proven(directory, nonce))

    def _proven(self, directory: str, nonce: str) -> bool:
        try:
            manifest = read_manifest(directory)
            if manifest.nonce != nonce:
                return False
            count = self._ranks.world_size
            prove_share(directory, manifest, lambda _: None, _THREADS_COUNT, far_share(self._ranks.rank, count), count)
        except Exception:  # noqa: BLE001 - rank 0 reads it instead, and says what it finds
            return False
        return True
