"""Turns of reading: each is somebody's, and the damage that is told is the first, whichever thread was first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from threading import Barrier, Event, active_count

import pytest

from gangrun.checkpoint.formats.torch_zip import Damaged
from gangrun.checkpoint.verification import Means, Turn, Verification, verify_share


def verification_of(*reads: Callable[[], Sequence[str]]) -> Verification:
    def turn(read: Callable[[], Sequence[str]]) -> Turn:
        def reading(means: Means) -> Sequence[str]:
            means.tick(10)
            return read()

        return Turn(10, reading)

    return Verification("/nowhere", "a save", 10 * len(reads), [turn(read) for read in reads])


def test_the_first_damage_in_order_is_told_though_a_later_one_was_met_sooner() -> None:
    both, later = Barrier(2), Event()

    def first() -> Sequence[str]:
        both.wait(60)
        assert later.wait(60)
        raise Damaged("the first")

    def second() -> Sequence[str]:
        both.wait(60)
        later.set()
        raise Damaged("the second")

    before = active_count()
    with pytest.raises(Damaged, match="the first"):
        verify_share(verification_of(first, second, lambda: ()), lambda _: None, 2)
    assert active_count() == before


@pytest.mark.parametrize("readers_count", [1, 2, 3, 7])
def test_every_turn_is_somebodys_and_all_that_cannot_be_checked_is_told(readers_count: int) -> None:
    proof = verification_of(*(lambda i=i: [f"piece {i}"] * (i % 3) for i in range(20)))  # type: ignore[misc]
    ticks: list[int] = []
    told = [verify_share(proof, ticks.append, 4, reader, readers_count) for reader in range(readers_count)]
    assert sum(ticks) == 200
    assert sorted(chain(*told)) == sorted(f"piece {i}" for i in range(20) for _ in range(i % 3))
