"""Brief heartbeats: a supervisor judges a gang by them as it does by whole ones."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from gangrun.agent.brain.line import SampleReport
from gangrun.core.events import FirstStepSeen, ProgressStalled
from gangrun.core.model import Attempt, Phase, RunState, Shape
from gangrun.core.policy import Policy
from gangrun.supervisor.agent_messages import WHOLE_EVERY_S
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.progress import GangProgress
from gangrun.wire.messages import Hello, PeerAddress, RankSample, Welcome
from tests.supervisor.desk import Desk

NODES_COUNT, RANKS_PER_NODE = 3, 4
RANKS = range(NODES_COUNT * RANKS_PER_NODE)
RUNS = RunState("r", Shape(NODES_COUNT, NODES_COUNT, RANKS_PER_NODE, 1), phase=Phase.RUNNING, attempt=Attempt(0))
sample = partial(RankSample, phase=2, cpu_s=0.0, state="R")


@dataclass
class Watched:
    """A supervisor's view of a gang, by whole heartbeats or by brief ones."""

    is_brief: bool
    policy: Policy
    found: list[tuple[float, Any]] = field(default_factory=list)
    readings_count: int = 0

    def __post_init__(self) -> None:
        self.progress = GangProgress(self.policy, 0.0)
        self.progress.begin(0, 0.0, 0.0)
        self.rows = [
            Row(Hello(f"n{n}", "j", "b", "i", 1, 4, 0, (), PeerAddress(f"n{n}", "x", "k")), 0.0, 0.0, attempt=0)
            for n in range(NODES_COUNT)
        ]
        self.reports = [SampleReport() for _ in self.rows]
        for report in self.reports:
            report.welcomed(WHOLE_EVERY_S if self.is_brief else 0.0)

    def second(self, samples: dict[int, RankSample], now: float) -> None:
        for n, (row, report) in enumerate(zip(self.rows, self.reports, strict=True)):
            ranks = range(n * RANKS_PER_NODE, (n + 1) * RANKS_PER_NODE)
            report.take(0, tuple(samples[rank] for rank in ranks if rank in samples))
            readings, is_brief = report.page(0, now)
            self.readings_count += len(readings)
            row.take(readings, is_brief=is_brief)
            self.progress.observe(row, now)
            report.is_asked = self.progress.asks_for_all(now)
        if now >= self.progress.next_at(RUNS):
            self.found += [(now, event) for event in self.progress.tick(RUNS, now)]

    @property
    def stalls(self) -> list[tuple[float, ProgressStalled]]:
        return [(at, event) for at, event in self.found if isinstance(event, ProgressStalled)]


@dataclass
class Rank:
    """Steps or prints now and then, until it hangs."""

    step_s: float  # 0: it reports none
    print_s: float
    busy: float
    step: int = -1
    lines: int = 0
    cpu_s: float = 0.0
    state: str = "R"

    def second(self, now: float, *, hangs: str) -> None:
        if not hangs:
            self.step = int(now / self.step_s) if self.step_s else -1
            self.lines = int(now / self.print_s) if self.print_s else 0
            self.cpu_s += self.busy
            self.state = "R" if self.busy > 0.5 else "S"
        elif hangs == "spins":
            self.cpu_s += 1.0
        else:
            self.state = hangs

    def sample(self, rank: int) -> RankSample:
        return RankSample(rank, self.step, 2, max(0, self.step), 80 * self.lines, self.cpu_s, self.state)


def gang(story: random.Random) -> list[Rank]:
    """All step together, or only some ranks print."""
    step_s, teller = story.choice([0.0, 0.3, 1.0, 2.5, 7.0, 20.0]), story.choice(RANKS)
    prints = [story.choice([1.0, 6.0]) if rank == teller and (story.random() < 0.5 or not step_s) else 0.0
              for rank in RANKS]  # fmt: skip
    return [Rank(step_s, prints[rank], story.choice([0.2, 1.0])) for rank in RANKS]


@pytest.mark.parametrize("seed", range(60))
def test_a_hang_is_found_as_soon_and_with_the_same_evidence(seed: int) -> None:
    story = random.Random(seed)
    timeout_s = story.choice([None, 30.0, 60.0])
    policy = replace(Policy(), hang=replace(Policy().hang, timeout_s=timeout_s, steady_max_s=600.0))
    whole, brief = Watched(False, policy), Watched(True, policy)
    ranks, how = gang(story), story.choice(["S", "S", "D", "T", "spins"])
    hangs_at = story.choice([200, 307, 411])
    for now in range(1, hangs_at + 1300):
        for rank in ranks:
            rank.second(now, hangs=how if now >= hangs_at else "")
        samples = {n: rank.sample(n) for n, rank in enumerate(ranks)}
        for watched in (whole, brief):
            if not watched.stalls:
                watched.second(samples, float(now))
        if whole.stalls and brief.stalls:
            break
        if now == hangs_at - 1:
            assert not whole.stalls and not brief.stalls
            if ranks[0].step_s in {0.3, 1.0}:  # a few at the start, while nobody knows how fast the gang is
                assert brief.readings_count < 0.6 * whole.readings_count
    [(at, stall)], [(brief_at, brief_stall)] = whole.stalls, brief.stalls
    assert abs(brief_at - at) <= 5, (at, brief_at)
    assert [(one.rank, one.node, one.state, one.step) for one in brief_stall.observations] == [
        (one.rank, one.node, one.state, one.step) for one in stall.observations
    ]
    first = [[event for _, event in watched.found if isinstance(event, FirstStepSeen)] for watched in (whole, brief)]
    assert first[0] == first[1]


def told(desk: Desk) -> dict[str, list[tuple[int, int]]]:
    """Rank and step by node, as people see them."""
    loop = desk.loop
    loop.progress._ranks_at = 0.0
    live = loop.progress.live(loop.state, desk.clock.boot, 2, {})
    return {node: [(rank, step) for rank, _, _, step in ranks] for node, ranks in live["ranks"].items()}


def test_an_agent_is_told_how_seldom_all_readings_are_wanted_and_asked_for_them_when_the_gang_stands_still() -> None:
    desk = Desk()
    desk.running()
    assert [welcome.whole_every_s for welcome in desk.agents["n0"].heard(Welcome)] == [WHOLE_EVERY_S]
    for _ in range(20):
        for agent in desk.agents.values():
            agent.step += 1
        desk.pass_s(1.0)
    assert not desk.agents["n0"].acks[-1].asks_for_all
    desk.pass_s(60.0)
    assert desk.agents["n0"].acks[-1].asks_for_all


def test_a_new_supervisor_knows_all_ranks_by_a_heartbeat_that_came_before_its_term_began() -> None:
    desk = Desk()
    desk.running()
    for agent in desk.agents.values():
        agent.step = 7
    desk.pass_s(2.0)
    loop = desk.open()
    n0, n1 = desk.agents["n0"], desk.agents["n1"]
    n0.hello()
    n0.beat()
    desk.turn_all()
    assert loop.takeover.gathering and loop.beats.rows["n0"].seq == n0.seq
    n1.hello()
    n1.beat()
    desk.turn_all()
    assert not loop.takeover.gathering
    for agent in desk.agents.values():
        agent.beat(readings=(), is_brief=True)
    desk.turn_all()
    assert told(desk) == {"n0": [(0, 7), (1, 7)], "n1": [(2, 7), (3, 7)]}
    assert [(one.rank, one.step) for one in loop.progress._watch.observations()] == [(n, 7) for n in range(4)]


def test_what_was_told_before_the_attempt_counted_as_running_is_not_forgotten() -> None:
    watched = Watched(True, Policy())
    watched.progress = GangProgress(Policy(), 0.0)
    row = watched.rows[0]
    row.take((sample(0, step=3, slot_writes_count=3, output_bytes=0),
              sample(1, step=2, slot_writes_count=2, output_bytes=0)))  # fmt: skip
    watched.progress.observe(row, 1.0)
    watched.progress.begin(0, 1.0, 2.0)
    row.take((), is_brief=True)
    watched.progress.observe(row, 3.0)
    assert watched.progress.tick(RUNS, 3.0) == [FirstStepSeen(0, 2)]


def test_a_brief_heartbeat_changes_only_ranks_that_are_known() -> None:
    desk = Desk()
    desk.running()
    agent = desk.agents["n0"]
    found = tuple(sample(rank, step=9, slot_writes_count=9, output_bytes=0) for rank in (1, 77))
    agent.beat(readings=found, is_brief=True)
    desk.turn_all()
    assert told(desk)["n0"] == [(0, -1), (1, 9)]
    agent.beat(readings=(), is_brief=True)
    desk.turn_all()
    assert told(desk)["n0"] == [(0, -1), (1, 9)]
    agent.beat(readings=(), is_brief=False)
    desk.turn_all()
    assert told(desk)["n0"] == []


def test_nothing_of_an_earlier_attempt_is_kept() -> None:
    desk = Desk()
    loop = desk.running()
    desk.agents["n0"].attempt = 1
    desk.agents["n0"].beat(readings=(sample(0, step=1, slot_writes_count=1, output_bytes=0),), is_brief=True)
    desk.turn_all()
    row = loop.beats.rows["n0"]
    assert list(row.samples) == [0] and not row.is_brief


def test_what_standbys_cost_is_summed_over_the_nodes_that_keep_them() -> None:
    desk = Desk()
    desk.running()
    n0, n1 = desk.agents["n0"], desk.agents["n1"]
    n0.standbys, n1.standbys = (2, 300), (1, 100)
    desk.pass_s(2.0)
    n0.beat(is_brief=True, standbys=(0, 0), readings=())
    desk.pass_s(0.0)
    assert {node: row.standbys for node, row in desk.loop.beats.rows.items()} == {"n0": (2, 300), "n1": (1, 100)}
    desk.pass_s(10.0)
    assert desk.store.live["standbys"] == {"count": 3, "memory_bytes": 400, "nodes": "n[0-1]"}
