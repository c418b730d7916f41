"""A run that had many supervisors is taken over as fast as a new one: a slow disk does not cost it its gang."""

from __future__ import annotations

from typing import Any

import pytest

from gangrun.core.model import Phase
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine import disk
from gangrun.supervisor import takeover
from gangrun.wire import record as wire_record
from tests.sim.canaries.mutation import Swap, swapped

TERMS_COUNT = 25
KILL_EVERY_S = 12.0
RULES: dict[str, Swap] = {
    "read back to the newest snapshot only": (wire_record, "inherited", lambda records: None),
    "seal what no earlier term has sealed": (disk.SimTerms, "sealed_below", lambda self, term: 1),
    "agents are told that a new term reads": (takeover.Greeter, "hear", lambda self, item, radio: None),
}


def old_run(seed: int, slow_s: float) -> World:
    """One supervisor after the other is killed; the last of these times each file operation takes ``slow_s`` more."""
    plan = FaultPlan()
    for k in range(TERMS_COUNT):
        plan = plan.fail_at(20.0 + KILL_EVERY_S * k, Kind.KILL_SUPERVISOR)
    slow_at = 20.0 + KILL_EVERY_S * TERMS_COUNT
    plan = plan.fail_at(slow_at, Kind.FS_SLOW, node=None, for_s=60.0, amount=slow_s)
    plan = plan.fail_at(slow_at + 0.1 * seed, Kind.KILL_SUPERVISOR)
    return World(Setup.of(4, script=Script(steps_count=450)), plan, seed)


def attempts_of(world: World) -> int:
    """How many attempts the run took to its success."""
    world.run()
    state: Any = world.newest_state()
    assert state.phase is Phase.SUCCEEDED and state.term > TERMS_COUNT
    return int(state.attempt.number) + 1


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("slow_s", [0.01, 0.3, 0.7])
def test_a_healthy_gang_outlives_the_takeover_of_an_old_run_on_a_slow_disk(seed: int, slow_s: float) -> None:
    assert attempts_of(old_run(seed, slow_s)) == 1


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_it_is_killed(rule: str) -> None:
    with swapped(RULES[rule]):
        assert attempts_of(old_run(1, 0.7)) > 1


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_disk_breaks_nothing_beside_other_faults(seed: int) -> None:
    plan = FaultPlan.random(seed, 3, 3).fail_at(2.0 * seed, Kind.FS_SLOW, node=None, for_s=30.0, amount=0.05 * seed)
    World(Setup.of(3, script=Script(steps_count=40)), plan, seed).run()
