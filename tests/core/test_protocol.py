"""Lease, liveness and takeover."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.model import Node, Placement, Savers, Seat, Slot
from gangrun.core.policy import Timing
from gangrun.core.protocol import lease, takeover
from gangrun.core.protocol.lease import NEVER, KillRule, Liveness, judge_silence

NOBODY, RANK0, EACH = Savers.CHECKPOINTER, Savers.RANK0, Savers.ALL

# ---- the laws of leases, letter by letter ----------------------------------------------------------------------------


TIMING = Timing()
S = 5.0
FOUR = Placement(tuple(Seat(Slot(f"n{i}", 0), 2 * i, 2) for i in range(4)), 8)


def test_the_lease_runs_from_when_the_acked_beat_was_sent() -> None:
    assert lease.lease_deadline(100.0, TIMING) == 130.0


def test_law_one() -> None:
    assert lease.fence_wait_s(TIMING) == pytest.approx(30 * 1.01 + 1 + 0.25)
    assert lease.presumed_empty_at(100.0, TIMING) == pytest.approx(131.55)
    assert lease.presumed_empty_after_takeover(100.0, TIMING) == pytest.approx(134.3)


def test_what_is_asked_of_others_is_known_once_silence_counts() -> None:
    assert lease.overdue_after_s(TIMING) == 1.5 < TIMING.silence_after_s
    assert lease.overdue_after_s(replace(TIMING, silence_after_s=1.0)) == 1.0, "S may be shorter than two heartbeats"
    assert lease.slow_after_s(TIMING) == 3 * TIMING.silence_after_s
    assert lease.all_heard_within_s(TIMING) >= 2 * TIMING.beat_every_s, "what a heartbeat proves may be so old"
    assert lease.all_heard_within_s(replace(TIMING, silence_after_s=9.0)) == 9.0


@given(st.floats(0, 1e5), st.floats(-0.01, 0.01), st.floats(0, 0.25), st.floats(0, 1.0))
def test_no_rank_outlives_the_presumption(sent: float, drift: float, wake_s: float, kill_s: float) -> None:
    """A warden whose clock drifts, that wakes late and kills slowly, is done before the supervisor may presume."""
    # the supervisor hears a beat no earlier than it was sent; the agent's clock runs at (1 + drift)
    real_deadline = sent + TIMING.fence_after_s / (1 + drift)
    dead_at = real_deadline + wake_s + kill_s
    assert dead_at <= lease.presumed_empty_at(sent, TIMING) + 1e-6


@pytest.mark.parametrize(
    ("silent", "dead", "sealed", "replica", "savers", "allowed"),
    [
        ({"n3"}, {0}, True, 8, NOBODY, True),  # plain model parallelism: part of the only copy
        ({"n3"}, {0}, False, 8, NOBODY, False),  # staging not sealed
        ({"n3"}, set(), True, 8, NOBODY, False),  # nobody confirmed dead
        ({"n3"}, {6}, True, 8, NOBODY, False),  # "dead" there is hearsay: the node is silent
        ({"n3"}, {0}, True, 2, NOBODY, False),  # it holds a whole copy, ranks 6 and 7
        ({"n2", "n3"}, {0}, True, 4, NOBODY, False),  # and so do these two, ranks 4 to 7
        ({"n1", "n2"}, {0}, True, 4, NOBODY, True),  # half of each copy
        ({"n3"}, {0}, True, 1, NOBODY, False),  # every rank is a copy
        ({"n3"}, {0}, True, 0, NOBODY, True),  # a synchronous gang: only all ranks together can step
        ({"n0"}, {7}, True, 0, RANK0, False),
        ({"n3"}, {0}, True, 0, RANK0, True),
        ({"n3"}, {0}, True, 0, EACH, False),  # each rank writes its own part
        ({"n0"}, {7}, True, 8, RANK0, False),  # rank 0 of a script that saves for itself
        ({"n0"}, {7}, True, 8, NOBODY, True),
        ({"n3"}, {0}, True, 8, RANK0, True),
        ({"spare"}, set(), False, 1, RANK0, True),  # it held nothing
        (set(), set(), False, 1, RANK0, True),
    ],
)
def test_fragment_rule(
    silent: set[str], dead: set[int], sealed: bool, replica: int, savers: Savers, allowed: bool
) -> None:
    ruling = lease.fragment_allows(
        silent=silent, placement=FOUR, dead_ranks=dead, sealed=sealed, replica_ranks_count=replica, savers=savers
    )
    assert ruling is allowed


def test_leader_needs_more_than_half_within_its_lease() -> None:
    acked = {"n1": 10.0, "n2": 9.0, "n3": 1.0}
    assert lease.leader_lease_ends_at(acked, 3, TIMING) == 9.0 + TIMING.leader_lease_s
    assert lease.leader_lease_ends_at(acked, 9, TIMING) is None
    assert lease.leader_lease_ends_at({}, 1, TIMING) is None


@given(
    st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 20).map(float)), st.integers(1, 10), st.integers(0, 30)
)
def test_the_end_of_the_leader_lease_is_its_end(acked: dict[str, float], roster_count: int, now: int) -> None:
    end = lease.leader_lease_ends_at(acked, roster_count, TIMING)
    fresh = sum(at + TIMING.leader_lease_s >= now for at in acked.values())
    assert (2 * fresh > roster_count) is (end is not None and now <= end)


def test_the_next_job_waits_for_longer_than_any_holder_before_it_may_have_acked() -> None:
    assert lease.unconfirmed_lasts_s(TIMING) == TIMING.fence_after_s
    assert lease.unconfirmed_lasts_s(replace(TIMING, fence_after_s=12.0)) == lease.proof_lasts_s(TIMING) == 15.0
    assert lease.last_ack_after_seal_s(TIMING) < lease.last_ack_of_lost_job_s(TIMING)
    longest_s = lease.last_ack_of_lost_job_s(TIMING) + TIMING.leader_lease_s + lease.fence_wait_s(TIMING)
    assert lease.fence_after_seal_s(TIMING) == longest_s
    assert 64.0 < longest_s < 66.0


def test_leader_lease_is_over_before_anybody_promises() -> None:
    assert TIMING.leader_lease_s * (1 + TIMING.drift) < TIMING.takeover_after_s


def test_a_sealed_supervisor_acks_until_its_proof_is_over_and_longer_only_from_outside_its_job() -> None:
    proof_s = lease.PROOF_COUNTERS * TIMING.counter_every_s
    assert lease.last_ack_after_seal_s(TIMING) == pytest.approx(proof_s * (1 + TIMING.drift))
    assert lease.last_ack_of_lost_job_s(TIMING) >= lease.last_ack_after_seal_s(TIMING)


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


# ---- silence, judged from a table ------------------------------------------------------------------------------------


def test_an_empty_table_never_wakes_anybody() -> None:
    assert judge_silence({}, (), 9.0, S) == Liveness((), (), NEVER)


def test_silent_from_the_very_instant() -> None:
    heard = {"n1": 10.0, "n2": 12.0}
    assert judge_silence(heard, (), 14.999, S) == Liveness((), (), 15.0)
    assert judge_silence(heard, (), 15.0, S) == Liveness((("n1", 10.0),), (), 17.0)
    assert judge_silence(heard, {"n1"}, 15.0, S) == Liveness((), (), 17.0), "told once"
    assert judge_silence(heard, {"n1"}, 17.5, S) == Liveness((("n2", 12.0),), (), NEVER)


def test_heard_again() -> None:
    heard = {"n10": 16.0, "n9": 16.5, "n1": 3.0}
    assert judge_silence(heard, ["n9", "n10", "gone"], 17.0, S) == Liveness((("n1", 3.0),), ("n9", "n10"), 21.0)


def test_longest_silent_first_then_natural_order() -> None:
    heard = {"n10": 1.0, "n2": 1.0, "n1": 2.0}
    assert [name for name, _ in judge_silence(heard, (), 99.0, S).newly_silent] == ["n2", "n10", "n1"]


@given(st.dictionaries(st.integers(0, 20).map(lambda n: f"n{n}"), st.floats(0, 1e6)), st.floats(0, 1e6))
def test_waking_at_next_at_finds_a_change(heard: dict[str, float], now: float) -> None:
    silent: set[str] = set()
    first = judge_silence(heard, silent, now, S)
    silent.update(name for name, _ in first.newly_silent)
    assert judge_silence(heard, silent, now, S).newly_silent == ()
    if first.next_at < NEVER:
        assert first.next_at > now
        assert judge_silence(heard, silent, first.next_at, S).newly_silent, "or the loop would spin"


def test_ten_thousand_nodes_are_cheap() -> None:
    """Against going through them once, on the same machine at the same time: a bound that no load moves much."""
    heard = {f"n{index}": 100.0 + index / 10_000 for index in range(10_000)}

    def best_s(work: Callable[[], object]) -> float:
        took = []
        for _ in range(30):
            start = time.thread_time()
            work()
            took.append(time.thread_time() - start)
        return min(took)

    once_s = best_s(lambda: [name for name, at in heard.items() if at + 1.0 > 103.0])
    assert best_s(lambda: judge_silence(heard, set(), 103.0, S)) < 20 * once_s
    assert best_s(lambda: judge_silence(heard, {"n1"}, 103.0, S)) < 100 * once_s  # rare: a node is silent


# ---- who may claim, and with which numbers ---------------------------------------------------------------------------


ROSTER = tuple(f"n{index}" for index in range(1, 8))


def test_five_candidates_the_leaders_own_node_first() -> None:
    nodes = {name: Node(name, "i", "b", 1) for name in reversed((*ROSTER, "n10"))}
    assert takeover.candidates(nodes) == ("n1", "n2", "n3", "n4", "n5")
    assert takeover.candidates(nodes, "n10") == ("n10", "n1", "n2", "n3", "n4")
    nodes["n1"] = replace(nodes["n1"], silent_since=3.0)
    nodes["n2"] = replace(nodes["n2"], lost=True)
    assert takeover.candidates(nodes, "n1") == ("n3", "n4", "n5", "n6", "n7")
    assert takeover.candidates({}, "n1") == ()


@pytest.mark.parametrize(
    ("promises", "still_s", "writes", "down", "allowed", "words"),
    [
        (ROSTER[:4], 0.0, False, False, True, "4 of 7 agents lost the supervisor"),
        (
            ROSTER[:3],
            0.0,
            True,
            False,
            False,
            "only 3 of 7 agents promised themselves, and the supervisor's counter moved 0 s ago",
        ),
        ((*ROSTER[:3], "n1", "stranger", "n99"), 0.0, True, False, False, "only 3 of 7"),
        ((), 59.9, True, False, False, "counter moved 60 s ago"),
        ((), 60.0, True, False, True, "stood still for 60 s while our writes worked"),
        ((), 600.0, False, False, False, "our own writes fail"),
        ((), 0.0, False, True, True, "node is down"),
    ],
)
def test_may_claim(
    promises: tuple[str, ...], still_s: float, writes: bool, down: bool, allowed: bool, words: str
) -> None:
    ruling = takeover.may_claim(
        promises, ROSTER, counter_still_s=still_s, own_writes_ok=writes, holder_down=down, timing=TIMING
    )
    assert ruling.allowed is allowed and words in ruling.sentence


@pytest.mark.parametrize(("count", "need"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_half_is_not_a_majority(count: int, need: int) -> None:
    roster = ROSTER[:count]
    assert takeover.has_majority(roster[:need], roster) and not takeover.has_majority(roster[: need - 1], roster)


def test_backoff_doubles() -> None:
    assert [takeover.backoff_s(count) for count in (0, 1, 2, 3, 7, 8, 5000)] == [0.0, 1.0, 2.0, 4.0, 64.0, 64.0, 64.0]
