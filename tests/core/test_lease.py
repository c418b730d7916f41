"""The laws of leases, letter by letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.model import Placement, Seat, Slot
from gangrun.core.policy import Timing
from gangrun.core.protocol import lease
from gangrun.core.protocol.lease import KillRule

TIMING = Timing()
FOUR = Placement(tuple(Seat(Slot(f"n{i}", 0), 2 * i, 2) for i in range(4)), 8)


def test_the_lease_runs_from_when_the_acked_beat_was_sent() -> None:
    assert lease.lease_deadline(100.0, TIMING) == 130.0


def test_law_one() -> None:
    assert lease.fence_wait_s(TIMING) == pytest.approx(30 * 1.01 + 1 + 0.25)
    assert lease.presumed_empty_at(100.0, TIMING) == pytest.approx(131.55)
    assert lease.presumed_empty_after_takeover(100.0, TIMING) == pytest.approx(134.55)


@given(st.floats(0, 1e5), st.floats(-0.01, 0.01), st.floats(0, 0.25), st.floats(0, 1.0))
def test_no_rank_outlives_the_presumption(sent: float, drift: float, wake_s: float, kill_s: float) -> None:
    """A warden whose clock drifts, that wakes late and kills slowly, is done before the supervisor may presume."""
    # the supervisor hears a beat no earlier than it was sent; the agent's clock runs at (1 + drift)
    real_deadline = sent + TIMING.fence_after_s / (1 + drift)
    dead_at = real_deadline + wake_s + kill_s
    assert dead_at <= lease.presumed_empty_at(sent, TIMING) + 1e-6


@pytest.mark.parametrize(
    ("silent", "dead", "sealed", "replica", "saves", "allowed"),
    [
        ({"n3"}, {0}, True, 8, False, True),  # plain model parallelism: part of the only copy
        ({"n3"}, {0}, False, 8, False, False),  # staging not sealed
        ({"n3"}, set(), True, 8, False, False),  # nobody confirmed dead
        ({"n3"}, {6}, True, 8, False, False),  # "dead" there is hearsay: the node is silent
        ({"n3"}, {0}, True, 2, False, False),  # it holds a whole copy, ranks 6 and 7
        ({"n2", "n3"}, {0}, True, 4, False, False),  # and so do these two, ranks 4 to 7
        ({"n1", "n2"}, {0}, True, 4, False, True),  # half of each copy
        ({"n3"}, {0}, True, 1, False, False),  # every rank is a copy
        ({"n3"}, {0}, True, 0, False, False),
        ({"n0"}, {7}, True, 8, True, False),  # rank 0 of a script that saves for itself
        ({"n0"}, {7}, True, 8, False, True),
        ({"n3"}, {0}, True, 8, True, True),
        ({"spare"}, set(), False, 1, True, True),  # it held nothing
        (set(), set(), False, 1, True, True),
    ],
)
def test_fragment_rule(
    silent: set[str], dead: set[int], sealed: bool, replica: int, saves: bool, allowed: bool
) -> None:
    ruling = lease.fragment_allows(
        silent=silent, placement=FOUR, dead_ranks=dead, sealed=sealed, replica_ranks_count=replica, saves_itself=saves
    )
    assert ruling is allowed


def test_leader_needs_more_than_half_within_its_lease() -> None:
    acked = {"n1": 10.0, "n2": 9.0, "n3": 1.0}
    assert lease.leader_may_act(acked, 3, 12.0, TIMING) and not lease.leader_may_act(acked, 4, 12.0, TIMING)
    assert not lease.leader_may_act(acked, 3, 12.1, TIMING)
    assert lease.leader_lease_ends_at(acked, 3, TIMING) == 12.0
    assert lease.leader_lease_ends_at(acked, 9, TIMING) is None
    assert not lease.leader_may_act({}, 1, 0.0, TIMING)


@given(
    st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 20).map(float)), st.integers(1, 10), st.integers(0, 30)
)
def test_the_end_of_the_leader_lease_is_its_end(acked: dict[str, float], roster_count: int, now: int) -> None:
    end = lease.leader_lease_ends_at(acked, roster_count, TIMING)
    assert lease.leader_may_act(acked, roster_count, float(now), TIMING) is (end is not None and now <= end)


def test_leader_lease_is_over_before_anybody_promises() -> None:
    assert TIMING.leader_lease_s * (1 + TIMING.drift) < TIMING.takeover_after_s


def test_warden_kills_at_the_deadline() -> None:
    assert lease.warden_must_kill(130.0, 129.9, 129.65, TIMING) == KillRule(False, 130.0)
    assert lease.warden_must_kill(130.0, 130.0, 129.75, TIMING) == KillRule(True, 130.0)


def test_a_paused_warden_grants_one_round_trip_and_no_more() -> None:
    woken = lease.warden_must_kill(130.0, 500.0, 129.0, TIMING)
    assert woken == KillRule(False, 502.0, True)
    assert lease.warden_must_kill(woken.deadline, 501.0, 500.0, TIMING, woken.granted) == woken
    assert lease.warden_must_kill(woken.deadline, 502.0, 501.75, TIMING, woken.granted).kill
    assert lease.warden_must_kill(woken.deadline, 520.0, 500.0, TIMING, woken.granted).kill, (
        "paused again: no second grace"
    )
    assert lease.warden_must_kill(130.0, 135.0, 125.0, TIMING).kill, "a gap of L/3 exactly is no pause"
