"""What the core makes of a slow rank, a slower training and growth: told at once, explained, and over when it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.events import AlertSeen, FindingRaised
from gangrun.core.evidence import Alert, AlertKind, NodeFinding
from gangrun.core.model import Outcome, Phase
from gangrun.core.policy import Policy, PolicyError, TrendPolicy
from gangrun.core.recovery import alerts
from tests.core.life import Life

SLOW = Alert(AlertKind.SLOW_RANK, "n1", 2, 600.0, share=0.3, lost_share=0.23)
SLOWER = Alert(AlertKind.SLOWER, over_s=600.0, share=0.12, rates=(3.5, 3.08))
MEMORY = Alert(AlertKind.MEMORY, "n1", 3, in_s=2400.0, per_s=20e6)
SHARED = Alert(AlertKind.SHARED_MEMORY, "n1", in_s=100.0, per_s=1e6)
SLOW_GPU = Alert(
    AlertKind.SLOW_GPU, "n1", 3, 600.0, share=0.3, gpu=1,
    signs=("its clock is 1,200 MHz, the others' 1,980 (power cap)", "its PCIe link has 8 lanes, the others' 16"),
)  # fmt: skip
IDLE_GPU = Alert(AlertKind.IDLE_GPU, "n1", 3, 600.0, gpu=1, rates=(0.9, 0.3))
GPU_MEMORY = Alert(
    AlertKind.GPU_MEMORY, "n1", 3, in_s=2400.0, per_s=5e6, used=68_000_000_000, limit=80_000_000_000, gpu=1
)
THREADS = Alert(AlertKind.THREADS, "n1", 3, in_s=2400.0, per_s=0.2, used=3600, limit=4096)
FILES = Alert(AlertKind.FILES, "n1", 3, in_s=9000.0, per_s=0.05, used=900, limit=1024)


def told(life: Life, alert: Alert, *, over: bool = False) -> None:
    life.on(AlertSeen(life.state.attempt.number, alert, over))


@pytest.mark.parametrize(
    ("alert", "words", "past"),
    [
        (
            SLOW,
            "rank 2 on n1 is 30 % slower than its peers for 10 min: the others wait for it during 23 % of the time; no",
            "rank 2 on n1 was 30 % slower than its peers",
        ),
        (
            replace(SLOW, others_count=1),
            "rank 2 on n1 is 30 % slower than its peers for 10 min, and so is 1 other rank: the others wait",
            "rank 2 on n1 was 30 % slower",
        ),
        (
            replace(SLOW, others_count=3, more_tokens_share=0.2),
            "others wait for it during 23 % of the time; likely cause: it trains on 20 % more tokens than its peers",
            "rank 2 on n1 was 30 % slower",
        ),
        (
            SLOWER,
            "the training is 12 % slower than before in this attempt for 10 min: 3.08 steps per second instead of 3.5",
            "the training was 12 % slower than before in its attempt",
        ),
        (
            MEMORY,
            "node n1 will be out of memory in 40 min: rank 3 grows by 1.2 GB/min",
            "the memory of node n1 filled up: rank 3 grows by 1.2 GB/min",
        ),
        (replace(MEMORY, others_count=2), "rank 3 grows by 1.2 GB/min, and 2 other ranks too", "node n1 filled up"),
        (
            SHARED,
            "shared memory (/dev/shm) of n1 will be full in 100 s: it grows by 60 MB/min",
            "shared memory (/dev/shm) of n1 grew by 60 MB/min",
        ),
        (
            replace(SLOW, gpu=0, signs=("its clock is 1,200 MHz, the others' 1,980",)),
            "during 23 % of the time; likely cause: its clock is 1,200 MHz, the others' 1,980",
            "rank 2 (GPU 0 on n1) was 30 % slower",
        ),
        (
            SLOW_GPU,
            f"rank 3 (GPU 1 on n1) is 30 % slower than its peers for 10 min: {'; '.join(SLOW_GPU.signs)}",
            "rank 3 (GPU 1 on n1) was 30 % slower than its peers: its clock is 1,200 MHz",
        ),
        (
            replace(IDLE_GPU, others_count=7),
            "30 % of the time for 10 min, and was for 90 % before in this attempt, and so are those of 7 other ranks",
            "the GPU of rank 3 (GPU 1 on n1) was busy for 30 % of the time, and before for 90 %",
        ),
        (
            GPU_MEMORY,
            "rank 3 (GPU 1 on n1) will be out of GPU memory in 40 min: 68 GB of 80 GB are used, and 300 MB more each",
            "the GPU memory of rank 3 (GPU 1 on n1) filled up by 300 MB/min",
        ),
        (
            THREADS,
            "rank 3 on n1 will be out of threads in 40 min: 3600 of 4096 are in use, and 12 more each minute",
            "rank 3 on n1 started 12 more threads each minute",
        ),
        (replace(THREADS, others_count=2), "12 more each minute (2 other ranks too)", "rank 3 on n1 started"),
        (
            FILES,
            "rank 3 on n1 will have too many open files in 2.5 h: 900 of 1024 are open, and 3 more each minute",
            "rank 3 on n1 opened 3 more files each minute",
        ),
    ],
)
def test_an_alert_is_what_people_read_while_ranks_train_on(alert: Alert, words: str, past: str) -> None:
    life = Life().running()
    told(life, alert)
    life.says(words)
    assert (life.phase, life.state.reason, life.actions) == (Phase.RUNNING, life.reason, ())
    (one,) = alerts.open_ones(life.state)
    assert (one.attempt, one.at, one.until) == (0, life.now, None)
    told(life, alert, over=True)
    life.says(past)
    assert alerts.open_ones(life.state) == ()
    assert [seen.until for seen in life.state.alerts] == [life.now]


def test_one_that_is_told_again_keeps_its_beginning_and_another_rank_of_the_node_changes_nothing() -> None:
    life = Life().running()
    for alert in (SLOW, MEMORY, replace(SLOW, share=0.5), replace(MEMORY, rank=2)):
        told(life, alert)
    assert [
        (one.alert.kind, one.alert.share, one.alert.rank, one.at < life.now - 0.15) for one in life.state.alerts
    ] == [
        (AlertKind.SLOW_RANK, 0.5, 2, True),
        (AlertKind.MEMORY, 0.0, 2, True),
    ]
    told(life, replace(SLOW, rank=1), over=True)
    assert life.answer.outcome is Outcome.IGNORED
    for rank in range(100):
        told(life, replace(SLOW, rank=rank))
    assert len(life.state.alerts) == alerts.KEPT_MAX_COUNT


def test_no_alert_before_ranks_run_and_those_of_an_earlier_attempt_are_not_open() -> None:
    life = Life()
    life.join()
    life.refused(AlertSeen(-1, SLOW))
    life = Life().running()
    told(life, SLOW)
    assert alerts.open_ones(replace(life.state, attempt=replace(life.state.attempt, number=1))) == ()


def find(life: Life, check: str, sentence: str, node: str = "n1", *, after_s: float = 0.1, **more: object) -> None:
    life.on(FindingRaised(NodeFinding(node, check, False, sentence, **more)), after_s)  # type: ignore[arg-type]


def test_the_causes_are_what_checks_found_on_the_node_lately_the_newest_first() -> None:
    life = Life().running()
    find(life, "ib_rate", "mlx5_0 is slow", place="mlx5_0")
    find(life, "gpu_slowed", "gpu 0 is slowed down for heat", place="gpu 0", slot=0, after_s=90_000)
    find(life, "gpu_slowed", "gpu 1 is slowed down for heat", place="gpu 1", slot=1)
    find(life, "host_pressure", "all processes waited for memory", poor=True, after_s=200)
    find(life, "host_pressure", "all processes waited for storage", after_s=60)
    find(life, "gpu_slowed", "elsewhere", "n0")
    find(life, "host_clock", "the clock is wrong", after_s=30)
    told(life, SLOW)
    life.says("; likely causes: all processes waited for storage (host_pressure, seen 30 s ago), gpu 0 is slowed")
    assert "gpu 1" not in life.reason and "elsewhere" not in life.reason and "mlx5" not in life.reason
    told(life, SLOW, over=True)
    find(life, "gpu_clocks", "the clock is low", after_s=100)
    (one,) = life.state.alerts
    assert len(alerts.causes(life.state, one)) == 2, "what is found later is no cause"
    (memory,) = alerts.noted(life.state, MEMORY, life.now)[0].alerts[-1:]
    assert alerts.causes(life.state, memory) == ()
    bare = replace(life.state, attempt=replace(life.state.attempt, placement=None))
    assert len(alerts.causes(bare, one)) == 2
    told(life, MEMORY)
    assert "cause" not in life.reason


def test_a_slow_gpu_has_its_cause_in_the_sentence_and_what_checks_found_behind_it() -> None:
    life = Life().running()
    told(life, SLOW_GPU)
    assert life.reason.endswith("the others' 16") and alerts.causes(life.state, life.state.alerts[-1]) == ()
    find(life, "gpu_slowed", "gpu 1 is slowed down by its own heat guard", place="gpu 1", slot=1)
    told(life, SLOW_GPU)
    life.says("the others' 16; likely cause: gpu 1 is slowed down by its own heat guard (gpu_slowed, seen 0 s ago)")


@pytest.mark.parametrize(
    ("trends", "words"),
    [
        (TrendPolicy(window_s=19.0), "window_s = 19.0 must be at least 20"),
        (TrendPolicy(full_within_s=-1.0), "full_within_s = -1.0 must not be negative"),
        (TrendPolicy(slow_share=0.0), "slow_share = 0.0 must be between 0 and 1"),
        (TrendPolicy(drop_share=1.0), "drop_share = 1.0 must be between 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused(trends: TrendPolicy, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        Policy(trends=trends)


def test_the_bounds_themselves_work() -> None:
    for trends in (TrendPolicy(window_s=0.0), TrendPolicy(20.0, 0.01, 0.99, 0.0)):
        assert Policy(trends=trends).trends == trends
