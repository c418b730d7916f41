"""What has to be read so that one save is verified: turns of work for threads, and shares of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread

from gangrun.checkpoint import mapped_crc as mapped
from gangrun.checkpoint.mapped_crc import Lane, MappingChild
from gangrun.core.checkpoints.resume import share_of

Tick = Callable[[int], None]  # so many bytes were read since its last call; called from several threads


@dataclass(frozen=True, slots=True)
class Means:
    """What one thread reads with, until ``stop`` is set; ``mapped`` only where there is much to read."""

    tick: Tick
    stop: Event
    mapped: Lane | None


@dataclass(frozen=True, slots=True)
class Turn:
    """Enough of one file to be worth a thread's turn: ``read`` raises damage, and says why pieces cannot be checked."""

    size_bytes: int
    read: Callable[[Means], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Verification:
    """All of one save, in file order."""

    directory: str
    save: str  # tells this save from another one at that place, in the same words on every node
    data_bytes: int
    turns: Sequence[Turn]


VerifyAll = Callable[
    [Verification, Tick, int], Sequence[str]
]  # with so many threads; returns and raises as ``verify_share``


def verify_share(
    verification: Verification, tick: Tick, threads_count: int, reader: int = 0, readers_count: int = 1
) -> list[str]:
    """Read all of this reader's share; the first damage in file order is raised. Returns what its turns return.

    No pool of threads: a process could not end before its threads have, and a file server that stands still holds them.
    """
    share = share_of([turn.size_bytes for turn in verification.turns], reader, readers_count)
    stop, left, lock = Event(), iter(share), Lock()
    unverified, wrong = list[str](), dict[int, BaseException]()

    def read(means: Means) -> None:
        while not stop.is_set() and not wrong:
            with lock:
                number = next(left, -1)
            if number < 0:
                return
            try:
                unverified.extend(verification.turns[number].read(means))
            except BaseException as error:  # noqa: BLE001 - a thread's main: whoever waits for it must hear of it
                wrong[number] = error

    count = min(threads_count, len(share))
    worth = sum(verification.turns[number].size_bytes for number in share) >= mapped.WORTH_BYTES
    with MappingChild(count) as child:
        means = [Means(tick, stop, Lane(child, i) if worth else None) for i in range(count)]
        threads = [Thread(target=read, args=(one,), name=f"verify_{i}", daemon=True) for i, one in enumerate(means)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop.set()
    if wrong:
        raise wrong[min(wrong)]
    return unverified
