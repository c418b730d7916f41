"""The numbers that a script writes into its progress slot are those that the hang watch reads."""

from __future__ import annotations

from gangrun.core.recovery.hang import LONG_PHASES, SlotPhase
from gangrun.wire.progress import Phase


def test_slot_and_watch_agree_on_the_numbers() -> None:
    assert [int(phase) for phase in Phase] == [int(phase) for phase in SlotPhase]
    assert {Phase.EVAL, Phase.CHECKPOINT} == {Phase(int(phase)) for phase in LONG_PHASES}
