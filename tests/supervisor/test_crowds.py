"""Thousands of nodes at once cost by their number, not by its square: operations are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangrun.core.model import Phase
from gangrun.wire.messages import Probe, ProbeResult
from tests.supervisor.desk import Desk, HandAgent

FEW, MANY = 300, 1200  # nodes; of both so many fall silent that not each word of others is judged at once
GROWTH_MAX = 1.25 * MANY / FEW


def operations(act: Callable[[], object]) -> int:
    """Function calls and steps of generators, in Python and in C, while this is done."""
    count = 0

    def noted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(noted)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@dataclass
class Prober(HandAgent):
    """Answers each probe at once: nobody is there."""

    def hear(self, message: Any) -> None:
        if isinstance(message, Probe):
            self.post(ProbeResult(self.node, message.target.node, False))
        else:
            super().hear(message)


def running(nodes_count: int) -> Desk:
    desk = Desk(nodes=nodes_count)
    desk.agents = {name: Prober(desk, name) for name in desk.agents}
    desk.running()
    return desk


def stepping(desk: Desk, seconds: int) -> None:
    """Time passes, and all that still beat make steps."""
    for _ in range(seconds):
        for agent in desk.agents.values():
            agent.step += 1
        desk.pass_s(1.0)


def judged_silent(nodes_count: int) -> int:
    """Operations until others were asked about each of two nodes of five, which fell silent together, and answered."""
    desk = running(nodes_count)
    for name in list(desk.agents)[: 2 * nodes_count // 5]:
        desk.agents[name].beating = desk.agents[name].obeys = False
    stepping(desk, 1)
    silence = desk.loop.silence
    assert not silence.suspects
    count = operations(lambda: stepping(desk, 3))
    assert desk.loop.state.phase is Phase.RUNNING and len(silence.suspects) == 2 * nodes_count // 5
    assert all(
        [said and said.reached for said in one.answers.values()] == [False] * 3 for one in silence.suspects.values()
    )
    return count


def test_nodes_that_fall_silent_together() -> None:
    few, many = judged_silent(FEW), judged_silent(MANY)
    assert many < GROWTH_MAX * few, f"{few} operations for {FEW} nodes, {many} for {MANY}"
