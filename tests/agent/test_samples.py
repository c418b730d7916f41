"""Which samples ride on a heartbeat: all now and then, else those that tell something new."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gangrun.agent.brain.line import SampleReport
from gangrun.core.evidence import Anomaly, AnomalyKind, Divergence, SelfChecks
from gangrun.core.recovery.fill_rules import FillTrend
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.recovery.pace_rules import Pace
from gangrun.core.recovery.standing import Stand
from gangrun.wire.messages import RankSample

EVERY_S = 15.0
RANKS = (0, 4, 5, 6)
STAND = Stand(0, True, 6.0, -1.0, 0.0, 1, "train.py:1 in f", ())
ANOMALY = Anomaly(AnomalyKind.NOT_FINITE, 3, 3, 1, "loss", "nan")


class Node:
    """Ranks that are looked at each second, and the heartbeat after each look."""

    def __init__(self, every_s: float = EVERY_S, ranks: tuple[int, ...] = RANKS) -> None:
        self.now, self.report = 100.0, SampleReport()
        self.report.welcomed(every_s)
        self.ranks = {rank: RankSample(rank, 7, 2, 7, 40, 1.0, "R") for rank in ranks}

    def look(self, attempt: int = 0, **changes: Any) -> tuple[list[int] | None, dict[int, RankSample]]:
        """A second later: (the ranks that a brief heartbeat tells of; None if it is whole, what it tells)."""
        self.now += 1.0
        for rank, fields in changes.items():
            n = int(rank.removeprefix("rank"))
            self.ranks[n] = msgspec.structs.replace(self.ranks[n], **fields)
        self.report.take(attempt, tuple(self.ranks.values()))
        readings, is_brief = self.report.page(attempt, self.now)
        told = {one.rank: one for one in readings}
        assert is_brief or told == self.ranks
        return (list(told) if is_brief else None), told

    def brief(self, **changes: Any) -> list[int]:
        told, _ = self.look(**changes)
        assert told is not None, "it is whole"
        return told

    def is_whole(self, **changes: Any) -> bool:
        return self.look(**changes)[0] is None

    def step(self) -> dict[str, Any]:
        """All ranks step."""
        return {
            f"rank{n}": {"step": one.step + 1, "slot_writes_count": one.slot_writes_count + 1, "cpu_s": one.cpu_s + 1}
            for n, one in self.ranks.items()
        }


def test_a_supervisor_that_says_nothing_of_it_gets_all_samples_with_each_heartbeat() -> None:
    node = Node(every_s=0.0)
    assert all(node.is_whole() for _ in range(20))


def test_all_samples_ride_on_the_first_and_then_every_so_often() -> None:
    node = Node()
    whole = [node.is_whole(**node.step()) for _ in range(31)]
    assert [n for n, one in enumerate(whole) if one] == [0, 15, 30]


def test_all_samples_ride_as_long_as_the_supervisor_asks_for_them() -> None:
    node = Node()
    assert node.is_whole() and not node.is_whole()
    node.report.is_asked = True
    assert node.is_whole() and node.is_whole()
    node.report.is_asked = False
    assert not node.is_whole()


def test_a_new_supervisor_a_new_attempt_and_other_ranks_get_all_at_first() -> None:
    node = Node()
    assert node.is_whole() and not node.is_whole()
    node.report.welcomed(EVERY_S)
    assert node.is_whole() and not node.is_whole()
    node.report.start_over()
    assert node.is_whole() and not node.is_whole()
    assert node.is_whole(attempt=1) and not node.is_whole(attempt=1)
    del node.ranks[4]
    assert node.is_whole(attempt=1) and not node.is_whole(attempt=1)


def test_nothing_is_told_of_an_attempt_before_its_ranks_were_looked_at() -> None:
    node = Node()
    assert node.is_whole()
    assert node.report.page(1, node.now) == ((), False)
    assert node.is_whole(attempt=1)


def test_of_ranks_that_step_on_the_farthest_is_told_and_rank_0() -> None:
    node = Node()
    assert node.is_whole()
    assert node.brief(**node.step()) == list(RANKS), "as of the first step nobody knows that more follow"
    assert node.brief(**node.step()) == [0]
    assert node.brief(**{**node.step(), "rank5": {"step": 50}}) == [0, 5]
    assert node.brief(**node.step()) == [0, 5]


def test_of_a_node_without_rank_0_one_that_has_a_loss_is_told_first() -> None:
    node = Node(ranks=(4, 5, 6))
    assert node.is_whole()
    node.brief(**node.step())
    assert node.brief(**node.step()) == [4]
    node.ranks[6] = msgspec.structs.replace(node.ranks[6], loss=2.5)
    assert node.brief(**node.step()) == [6]


def test_who_steps_seldom_is_told_at_once_and_who_stops_to_step_a_look_later() -> None:
    node = Node()
    assert node.is_whole()
    assert node.brief() == [0]
    assert node.brief(**node.step()) == list(RANKS)
    assert node.brief() == [0]
    for _ in range(3):
        node.brief(**node.step())
    assert node.brief(**node.step()) == [0]
    told, samples = node.look()
    assert told == list(RANKS) and samples[5].step == node.ranks[5].step
    assert node.brief() == [0]


def test_a_line_that_a_rank_prints_counts_as_a_step_does() -> None:
    node = Node()
    assert node.is_whole()
    assert node.brief(rank5={"output_bytes": 80}) == [0, 5]
    assert node.brief() == [0]


@pytest.mark.parametrize(
    "fields",
    [{"stand": STAND}, {"state": "T"}, {"state": "D"}, {"growths": (FillTrend("memory", 60.0, 1.0),)}],
    ids=["stands", "stopped", "in the kernel", "fills"],
)
def test_what_may_be_amiss_is_told_with_each_heartbeat_and_once_more_when_it_is_over(fields: dict[str, Any]) -> None:
    node = Node()
    assert node.is_whole()
    before = {name: getattr(node.ranks[5], name) for name in fields}
    assert [node.brief(rank5=fields), node.brief(), node.brief()] == [[0, 5]] * 3
    assert [node.brief(rank5=before), node.brief()] == [[0, 5], [0]]


@pytest.mark.parametrize("fields", [{"pace": Pace(1, 1, 1)}, {"gpu": GpuUse(0, 90)}], ids=["pace", "GPU"])
def test_what_is_counted_is_told_each_time_that_it_was_read(fields: dict[str, Any]) -> None:
    node = Node()
    assert node.is_whole()
    for _ in range(3):
        assert node.brief(rank5=fields) == [0, 5]
        assert node.brief(rank5=dict.fromkeys(fields)) == [0]


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": 4}, {"pid": 99}, {"is_sampled": True}, {"moves": True}, {"anomalies": (ANOMALY,)},
        {"checks": SelfChecks(Divergence(10, 0, "w", 1, 3, 2, (1,)))},
        {"kept_step": 5}, {"total_steps": 900}, {"first_step": 3},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_what_has_changed_is_told_once(fields: dict[str, Any]) -> None:
    node = Node()
    assert node.is_whole()
    assert [node.brief(rank5=fields), node.brief()] == [[0, 5], [0]]


@pytest.mark.parametrize(
    "fields", [{"phase": 4}, {"pid": 99}, {"is_sampled": True}, {"moves": True}, {"anomalies": (ANOMALY,)}]
)
def test_what_has_changed_is_told_of_a_rank_that_steps_on_too(fields: dict[str, Any]) -> None:
    node = Node()
    assert node.is_whole()
    for _ in range(3):
        node.brief(**node.step())
    stepping = node.step()
    assert node.brief(**{**stepping, "rank5": {**stepping["rank5"], **fields}}) == [0, 5]
    assert node.brief(**node.step()) == [0]


def test_whether_a_rank_runs_or_sleeps_just_now_and_how_much_it_worked_is_no_news() -> None:
    node = Node()
    assert node.is_whole()
    assert node.brief(rank5={"state": "S", "cpu_s": 3.5}) == [0]
