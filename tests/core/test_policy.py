"""A policy under which the promises do not hold cannot exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.policy import Policy, PolicyError, Timing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"timing": Timing(beat_every_s=0.0)}, "beat_every_s = 0.0 must be more than 0"),
        ({"join_within_s": -1.0}, "join_within_s = -1.0 must be more than 0"),
        ({"timing": Timing(leader_lease_s=4.96)}, "two supervisors could act at once"),
        ({"timing": Timing(fence_after_s=12.0)}, "a takeover would kill good ranks"),
        ({"jobs_max_count": -1}, r"jobs_max_count = -1 must not be negative \(0: no limit\)"),
        ({"unproven_backoff_factor": 0.9}, "unproven_backoff_factor = 0.9 must be at least 1"),
        ({"save_lead_s": -1.0}, "save_lead_s = -1.0 must not be negative"),
        ({"settle_s": -0.1}, "settle_s = -0.1 must be from 0"),
        ({"settle_s": 10.1}, "settle_s = 10.1 must be from 0 .* to 10: each restart waits"),
        ({"peer_gone_grace_s": -0.1}, "peer_gone_grace_s = -0.1 must not be negative"),
        ({"grow_every_s": -1.0}, r"grow_every_s = -1.0 must not be negative \(0: grow at restarts only\)"),
        ({"restarts_max_count": -1}, "restarts_max_count = -1 must not be negative"),
        ({"replica_ranks_count": -1}, "replica_ranks_count = -1 must not be negative"),
    ],
)
def test_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        replace(Policy(), **changes)


def test_the_edges_hold() -> None:
    Policy(timing=Timing(leader_lease_s=2.97, fence_after_s=12.1), restarts_max_count=0)
    Policy(settle_s=0.0)
    Policy(settle_s=10.0)
    Policy(unproven_backoff_factor=1.0)


def test_saving_begins_as_long_before_the_end_as_it_may_take_unless_told_otherwise() -> None:
    assert Policy(checkpoint_grace_s=70.0).lead_s() == 70.0
    assert [Policy(checkpoint_grace_s=70.0).lead_s(measured_s) for measured_s in (3.0, 90.0)] == [70.0, 180.0]
    assert Policy(checkpoint_grace_s=70.0, save_lead_s=0.0).lead_s(90.0) == 0.0
    assert Policy(checkpoint_grace_s=70.0, save_lead_s=300.0).lead_s() == 300.0


def test_a_check_for_silent_corruption_says_what_ranks_compare() -> None:
    found = {word: Policy(sdc_check=word) for word in ("off", "saves", "every=250")}
    assert [one.compares_saves for one in found.values()] == [False, True, True]
    assert [one.replay_every_count for one in found.values()] == [0, 0, 250]
