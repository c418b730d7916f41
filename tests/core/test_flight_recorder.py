"""Dumps of torch's flight recorder. Those of gloo have the fields that torch 2.13 wrote. Those of NCCL are written by
hand with the fields that torch's own analyzer reads (torch.distributed.flight_recorder); no GPU made them.
"""

from __future__ import annotations

from typing import Any

import pytest

from gangrun.core.evidence import Collective, RankStack
from gangrun.core.recovery.flight_recorder import newest, sentence


def entry(seq: int, op: str = "gloo:all_reduce", size: int = 1000, state: str = "scheduled", **more: Any) -> Any:
    return {
        "collective_seq_id": seq, "input_dtypes": ["Float"], "input_sizes": [[size]], "is_p2p": False, "op_id": seq,
        "output_dtypes": ["Float"], "output_sizes": [[size]], "p2p_seq_id": 0, "pg_id": 0,
        "process_group": ["0", "default_pg"], "profiling_name": op, "record_id": seq - 1, "retired": True,
        "state": state, "time_created_ns": 1_795_472_396_142_167_910 + seq, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 1_800_000, **more,
    }  # fmt: skip


def gloo(up_to: int, **last: Any) -> tuple[Collective, ...]:
    return newest([*[entry(seq) for seq in range(1, up_to)], entry(up_to, **last)])


def nccl(completed: int, entered: int, **at_open: Any) -> tuple[Collective, ...]:
    """The host has entered more than runs; the first that is not done is ``completed + 1``."""
    told = [entry(seq, "nccl:all_reduce", state="completed") for seq in range(1, completed + 1)]
    told += [entry(seq, "nccl:all_reduce", state="started") for seq in range(completed + 1, entered + 1)]
    if at_open:
        told[completed] = entry(completed + 1, **{"op": "nccl:all_reduce", "state": "started", **at_open})
    return newest(told)


def said(*ranks: tuple[Collective, ...]) -> str:
    return sentence([RankStack(rank, "n0", "", "", told) for rank, told in enumerate(ranks)])


ABSENT = "collective 61 of group 0 is all_reduce of 1000, which "


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((gloo(61), gloo(60)), ABSENT + "rank 1 did not enter (newest 60)"),
        ((gloo(61), gloo(60), gloo(61), gloo(58)), ABSENT + "rank 1, rank 3 did not enter (newest 58; newest 60)"),
        ((gloo(61), *[gloo(60)] * 5), ABSENT + "5 ranks did not enter (newest 60)"),
        ((nccl(60, 80), nccl(60, 60), nccl(60, 75)), ABSENT + "rank 1 did not enter (newest 60)"),
        ((nccl(60, 80), nccl(60, 75)), ""),
        ((nccl(60, 60), nccl(60, 60)), ""),
        ((gloo(61),), ""),
        ((), ""),
        (
            (gloo(61), gloo(61, op="gloo:broadcast", size=8), gloo(61)),
            "collective 61 of group 0 is all_reduce of 1000, but rank 1 entered broadcast of 8",
        ),
        (
            (nccl(60, 80), nccl(60, 80, op="nccl:all_gather")),
            "ranks differ in collective 61 of group 0: all_reduce of 1000, all_gather of 1000",
        ),
        ((gloo(61, op="gloo:barrier", input_sizes=[]), gloo(60)),
         "collective 61 of group 0 is barrier, which rank 1 did not enter (newest 60)"),
    ],
)  # fmt: skip
def test_who_did_not_enter_a_collective_and_who_entered_another(
    ranks: tuple[tuple[Collective, ...], ...], words: str
) -> None:
    assert said(*ranks) == words


def test_the_two_newest_groups_of_a_rank_are_told() -> None:
    def of(group: str, seq: int, made_at: object) -> Any:
        return entry(seq, process_group=[group, "x"], time_created_ns=made_at)

    told = newest([of("a", 5, 100), of("b", 7, 300), of("c", 9, 200), of("d", 1, "never")])
    assert [(one.group, one.seq) for one in told] == [("b", 7), ("c", 9)]
    other = newest([of("b", 6, 300), of("c", 9, 200)])
    assert said(told, other) == "collective 7 of group b is all_reduce of 1000, which rank 1 did not enter (newest 6)"


def test_point_to_point_and_what_is_not_of_this_format_is_left_out() -> None:
    entries = [entry(3, is_p2p=True), {"process_group": []}, "x", 7, entry(1), {**entry(2), "input_sizes": ["?"]}]
    assert newest(entries) == (Collective("0", 2, "gloo:all_reduce", "", 2, True),)
