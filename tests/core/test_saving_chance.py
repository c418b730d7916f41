"""Hardware that breaks under ranks: what still computes is saved first, what is gone is not waited for."""

from __future__ import annotations

import pytest

from gangrun.core.actions import StopGang
from gangrun.core.events import FindingRaised
from gangrun.core.model import DriverReport, NodeFinding, Phase
from gangrun.health.gpu.xid_table import XidClass, row_of
from tests.core.life import Life


def broken(check: str = "xid", number: int | None = None) -> NodeFinding:
    report = None if number is None else DriverReport("GPU-1", number)
    return NodeFinding("n1", check, True, f"{check} {number} on gpu 1", report=report)


@pytest.mark.parametrize(
    ("found", "saves"),
    [
        (broken("gpu_sram"), True),
        (broken("xid"), True),
        (broken("xid", 64), True),
        (broken("xid", 79), False),
        (broken("xid", 119), False),
        (broken("gpu_lost"), False),
    ],
    ids=lambda one: f"{one.sentence}" if isinstance(one, NodeFinding) else "",
)
def test_a_save_is_asked_for_where_it_may_succeed(found: NodeFinding, saves: bool) -> None:
    life = Life(2).running()
    life.on(FindingRaised(found))
    assert life.phase is Phase.STOPPING
    assert life.last(StopGang).checkpoint_first is life.state.underway.saving is saves
    life.says(found.sentence, "saving first" if saves else "stopping at once, as ranks there cannot save any more")


def test_every_number_that_takes_a_gpu_away_is_a_hard_one() -> None:
    from gangrun.core.machine.node_events import LOST_XIDS

    assert {row_of(number).kind for number in LOST_XIDS} == {XidClass.HARD}
