"""Agents whose beats a simulated supervisor knows without their being sent.

They are entered in the loop's table before it looks there, as if each had come; so a world in which nothing happens
costs nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangrun.sim.body.agent import SimAgent
    from gangrun.sim.body.supervisor import SimSupervisor
    from gangrun.supervisor.loop import Loop

REFRESH_EVERY_S = 1.0
TRIP_S = 0.001  # of a beat that is not sent


class ParkedAgents:
    """Those of one supervisor."""

    def __init__(self, supervisor: SimSupervisor) -> None:
        """None yet."""
        self.supervisor = supervisor
        self._parked: dict[str, SimAgent] = {}
        self._willing: dict[str, SimAgent] = {}
        self._refreshed_at = -math.inf

    def would_hear(self, agent: SimAgent) -> bool:
        """Is all between us so well that beats need not be sent?"""
        supervisor, loop = self.supervisor, self.supervisor.loop
        if loop is None or not supervisor.awake or supervisor.exit_code is not None or supervisor.probe is not None:
            return False
        network, here, there = supervisor.world.network, supervisor.node.index, agent.node.index
        if not (network.clear(here, there) and network.clear(there, here)):
            return False
        row = loop.beats.rows.get(agent.node.name)
        suspected = agent.node.name in loop.silence.suspects
        return row is not None and row.incarnation == agent.incarnation and not suspected

    def park_if_many(self, agent: SimAgent) -> None:
        """Unsent beats count only where those who do not send them are a majority: acks depend on one (law 3)."""
        self._willing[agent.node.name] = agent
        loop = self.supervisor.loop
        if loop is None or not loop.leadership.holds(loop.run_clock.at(self.supervisor.clock.now())):
            return
        if not self._are_many(len(self._parked | self._willing)):
            return
        willing, self._willing = self._willing, {}
        for other in willing.values():
            if other is agent or other.still_willing(self.supervisor):
                self._parked[other.node.name] = other
                other.park()
        if not self._are_many(len(self._parked)):
            self.wake_all()

    def _are_many(self, count: int) -> bool:
        loop = self.supervisor.loop
        return loop is not None and 2 * count > max(len(loop.state.nodes), len(loop.beats.heard))

    def wake_all(self) -> None:
        """From here on all send theirs."""
        parked, self._parked = self._parked, {}
        for agent in parked.values():
            agent.unpark()

    def forget(self, agent: SimAgent) -> None:
        """It will send its beats."""
        if self._parked.pop(agent.node.name, None) is not None and not self._are_many(len(self._parked)):
            self.wake_all()

    def catch_up(self, agent: SimAgent, count: int, ago_s: float) -> float:
        """These beats came while nobody looked; the stamp of the newest ack."""
        loop = self.supervisor.loop
        row = None if loop is None else loop.beats.rows.get(agent.node.name)
        if loop is None or row is None or row.incarnation != agent.incarnation:
            return 0.0
        self._enter(loop, loop.run_clock.at(self.supervisor.clock.now()), agent, ago_s)
        row.seq += count
        return row.arrived_at

    def _enter(self, loop: Loop, now: float, agent: SimAgent, ago_s: float, *, held_up: bool = True) -> None:
        row = loop.beats.rows[agent.node.name]
        arrived_at = now - (ago_s - TRIP_S if ago_s > TRIP_S else 0.0)
        if arrived_at <= row.arrived_at:
            return
        row.arrived_at = arrived_at
        row.sent_after = max(row.sent_after, arrived_at - self.supervisor.policy.timing.beat_every_s)
        loop.beats.heard[row.node] = arrived_at
        loop.leadership.heard(row.node, row.sent_after)
        if held_up and loop.gathering is None and agent.is_held_up():
            row.readings = agent.readings()
            loop.progress.observe(row, arrived_at)

    def refresh(self) -> None:
        """Enter what parked agents are known to have sent."""
        loop, now = self.supervisor.loop, self.supervisor.timeline.now
        if now < self._refreshed_at + REFRESH_EVERY_S or not self._parked or loop is None:
            return
        self._refreshed_at = now
        here = loop.run_clock.at(self.supervisor.clock.now())
        held_up = any(gang.alive_count and not gang.stepping for gang in self.supervisor.world.gangs)
        for agent in self._parked.values():
            _, count, ago_s = agent.newest_beat()
            if count:
                self._enter(loop, here, agent, ago_s, held_up=held_up)
