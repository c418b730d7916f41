"""Evidence in few words, for the tables of verdicts."""

from __future__ import annotations

from gangrun.core.model import (
    ErrorReport,
    Evidence,
    Placement,
    RankExit,
    Seat,
    Sighting,
    Slot,
    Verdict,
)
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame

POLICY = Policy()
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    f()\nValueError: bad batch 17\n'
)


def placed(*names: str, per_node: int = 2) -> Placement:
    seats = tuple(Seat(Slot(name, 0), index * per_node, per_node) for index, name in enumerate(names))
    return Placement(seats, per_node * len(names))


TWO = placed("n1", "n2")


def error(
    message: str = "bad batch 17", *, kind: str = "ValueError", sig: str = "sig-a", collective: bool = False
) -> ErrorReport:
    return ErrorReport(kind, message, sig, TRACEBACK, collective)


def fell(
    rank: int = 1,
    node: str = "n1",
    *,
    code: int | None = 1,
    signal: int | None = None,
    oom: bool = False,
    by_us: bool = False,
    report: ErrorReport | None = None,
    at: float = 10.0,
) -> RankExit:
    return RankExit(rank, node, None if signal else code, signal, oom, by_us, report, at)


def victim(rank: int = 0, node: str = "n2", at: float = 10.0) -> RankExit:
    lost = error("[../gloo/pair.cc:534] Connection closed by peer", kind="RuntimeError", sig="gloo", collective=True)
    return fell(rank, node, report=lost, at=at)


def judge(
    evidence: Evidence,
    *,
    attempt: int = 3,
    step: int = 120,
    sightings: tuple[Sighting, ...] = (),
    suspicion: dict[str, int] | None = None,
    nodes_count: int = 2,
    placement: Placement | None = TWO,
    policy: Policy = POLICY,
    finished: frozenset[int] = frozenset(),
) -> Verdict:
    return blame.judge(
        evidence,
        attempt=attempt,
        attempt_step=step,
        placement=placement,
        sightings=sightings,
        suspicion=suspicion or {},
        nodes_count=nodes_count,
        policy=policy,
        finished=finished,
    )
