"""A rank that falls first twice is moved to another node once; what comes of it tells the node from the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.events import CheckpointSeen, GangStarted, NodeChecked, RankExited
from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.model import Cause, Exclusion, Failure, Phase
from gangrun.core.policy import Policy
from gangrun.core.recovery import move
from gangrun.core.recovery.error_rules import NO_RULE
from tests.core.life import Life, saved

SLURM = Policy(can_requeue=True, restarts_max_count=9)
ODD = ErrorReport("RuntimeError", "numbers do not add up", "odd", "Traceback ...", False)


def go_on(life: Life) -> None:
    if life.phase is Phase.WAITING:
        life.due("backoff")
    if life.phase is Phase.CHECKING:
        life.due("check")
    life.again()
    life.on(GangStarted(life.state.attempt.number))


def falls(life: Life, rank: int = 2, error: ErrorReport | None = ODD, at_step: int | None = None) -> None:
    if at_step is not None:
        life.mark(at_step)
    life.exit(rank, error=error, code=17)
    life.stopped()


def twice(*spares: str, policy: Policy = SLURM) -> Life:
    """Rank 2 on n1 fell first twice."""
    life = Life(3, 2, policy).running()
    for name in spares:
        life.join(name)
        life.on(NodeChecked(name, True))
    falls(life, at_step=10)
    go_on(life)
    falls(life, at_step=20)
    return life


def test_without_a_spare_two_nodes_change_places() -> None:
    life = twice()
    life.says("rank 2 of n1 moves to n0, whose ranks move to n1, to tell the node from the code", "on the same nodes")
    assert not life.state.health.excluded
    go_on(life)
    assert life.started().placement.nodes == ("n1", "n0", "n2")


def test_if_the_rank_falls_there_too_the_run_ends_and_the_node_is_innocent() -> None:
    life = twice()
    go_on(life)
    falls(life)
    life.says("rank 2 on n0", "as on n1 before", "its code or its data is at fault and n1 is innocent")
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    assert (life.state.health.excluded, life.state.health.suspicion, life.state.health.move) == ({}, {}, None)
    assert life.state.attempts[-1].outcome == Cause.SAME_AGAIN.value


@pytest.mark.parametrize("error", [ODD, None], ids=["error", "exit code"])
def test_if_the_rank_falls_there_too_a_line_of_that_node_beside_it_explains_nothing(error: ErrorReport | None) -> None:
    life = Life(3, 2, SLURM).running()
    for _ in range(2):
        falls(life, error=error)
        go_on(life)
    died = RankExit(2, "n0", 17, error=error, tail=("max locked memory       (kbytes, -l) unlimited", "bye"))
    life.on(RankExited(life.state.attempt.number, died))
    for rank in (0, 1, 3, 4, 5):
        heard = RankExit(rank, life.holder(rank), signal=15, by_us=True, mark=NO_RULE)
        life.on(RankExited(life.state.attempt.number, heard))
    life.stopped()
    life.says("as on n1 before", "n1 is innocent")
    assert life.phase is Phase.FAILED and not life.state.health.excluded


def test_if_the_rank_falls_there_of_something_else_that_tells_nothing() -> None:
    life = twice()
    go_on(life)
    falls(life, error=ErrorReport("RuntimeError", "of another kind", "other", "Traceback ...", False))
    assert not life.state.health.excluded and life.state.health.move is not None
    assert life.phase is Phase.WAITING, "as after any failure without progress"


def test_if_another_rank_falls_on_the_node_it_is_excluded() -> None:
    life = twice()
    go_on(life)
    falls(life, rank=0, at_step=30)
    life.says("rank 0 on n1", "now runs on n0 and did not fall: n1 is at fault; n1 excluded for 24 h")
    assert set(life.state.health.excluded) == {"n1"} and life.state.health.move is None
    assert life.state.underway.submitting


def test_if_another_rank_falls_on_the_node_of_something_else_that_tells_nothing() -> None:
    life = twice()
    go_on(life)
    falls(
        life, rank=0, error=ErrorReport("RuntimeError", "of another kind", "other", "Traceback ...", False), at_step=30
    )
    assert not life.state.health.excluded and life.state.health.move is not None


def test_if_a_rank_falls_elsewhere_that_tells_nothing() -> None:
    life = twice()
    go_on(life)
    falls(life, rank=4, at_step=30)
    assert not life.state.health.excluded and life.state.health.move is not None and life.phase is Phase.STARTING


def test_with_a_spare_the_rank_goes_there_and_the_node_is_excluded_once_the_run_came_past() -> None:
    life = twice("s0")
    life.says("rank 2 of n1 moves to s0 to tell", "restarting on n[0,2],s0")
    go_on(life)
    assert life.started().placement.nodes == ("n0", "s0", "n2")
    life.mark(15)
    assert not life.state.health.excluded, "it has fallen at step 20"
    life.mark(21)
    life.says("rank 2 fell first on n1 twice, and on s0 it came past step 20: n1 excluded for 24 h")
    assert set(life.state.health.excluded) == {"n1"}


def test_a_node_is_taken_back_if_the_rank_falls_like_this_on_the_next_node_later() -> None:
    life = twice("s0")
    go_on(life)
    life.mark(21)
    assert set(life.state.health.excluded) == {"n1"}
    falls(life, at_step=30)
    life.says("rank 2 on s0", "as on n1 before", "its code or its data is at fault and n1 is innocent")
    assert (life.phase, life.state.health.excluded, life.state.health.move) == (Phase.FAILED, {}, None)


def test_so_is_a_node_that_was_excluded_before_since_it_could_not_be_tested() -> None:
    life = twice("s0")
    kept = replace(life.state.health, excluded={"n1": Exclusion("could not be tested", life.now, life.now + 9999)})
    life.state = replace(life.state, health=kept)
    go_on(life)
    life.mark(21)
    falls(life, at_step=30)
    assert (life.phase, life.state.health.excluded) == (Phase.FAILED, {})


def test_another_rank_or_failure_later_leaves_it_excluded() -> None:
    life = twice("s0")
    go_on(life)
    life.mark(21)
    falls(life, rank=4, at_step=30)
    assert set(life.state.health.excluded) == {"n1"} and life.phase is not Phase.FAILED
    for _ in range(2):
        go_on(life)
        falls(life, rank=4)
    assert set(life.state.health.excluded) == {"n1"}


def test_storage_that_is_full_on_either_node_is_the_storages() -> None:
    life = Life(3, 2, SLURM).running()
    full = ErrorReport("OSError", "[Errno 28] No space left on device: '/data/x'", "full", "Traceback ...", False)
    for at_step in (10, 20, 20):
        falls(life, error=full, at_step=at_step)
        if life.phase is not Phase.FAILED:
            go_on(life)
    life.says("as on n1 before", "storage that the nodes share is at fault and n1 is innocent")
    assert life.state.ending.failure is Failure.STORAGE


def test_a_checkpoint_past_the_step_is_no_outcome_before_a_report_says_so() -> None:
    life = twice("s0")
    go_on(life)
    life.on(CheckpointSeen(saved(25)))
    assert not life.state.health.excluded


def test_a_node_whose_devices_were_tested_stays() -> None:
    life = twice("s0")
    go_on(life)
    node = replace(life.state.roster.nodes["n1"], tested="48 products right")
    life.state = replace(life.state, roster=replace(life.state.roster, nodes={**life.state.roster.nodes, "n1": node}))
    life.mark(21)
    assert not life.state.health.excluded and life.state.health.move is None


def test_a_suspicion_that_has_faded_tells_nothing() -> None:
    life = twice()
    go_on(life)
    life.now += 3 * 24 * 3600.0
    falls(life, rank=0, at_step=30)
    assert not life.state.health.excluded


def test_nobody_moves_where_there_is_nowhere_to_go() -> None:
    life = Life(1, 2, SLURM).running()
    falls(life, at_step=10, rank=0)
    go_on(life)
    falls(life, at_step=20, rank=0)
    assert life.state.health.move is None and "moves to" not in life.reason


def test_without_steps_the_outcome_is_told_too() -> None:
    life = Life(3, 2, SLURM).running()
    life.join("s0")
    life.on(NodeChecked("s0", True))
    falls(life, error=None)
    go_on(life)
    falls(life, error=None)
    go_on(life)
    life.mark(0)
    life.says("on s0 it made progress: n1 excluded for 24 h")


def test_the_same_failure_on_one_node_only_proves_nothing_of_the_code() -> None:
    life = Life(3, 2, SLURM).running()
    falls(life)
    go_on(life)
    falls(life)
    life.says("rank 2 of n1 moves to n0")
    assert life.phase is Phase.WAITING


def test_a_suspect_that_is_moved_away_is_tested() -> None:
    life = twice("s0", policy=replace(SLURM, test_suspects=True))
    life.says("the devices of n1 are tested meanwhile")


def test_a_device_that_passes_its_test_each_time_is_told_from_the_code_too() -> None:
    life = Life(3, 2, replace(SLURM, test_suspects=True)).running()
    fault = ErrorReport("RuntimeError", "CUDA error: an illegal memory access was encountered", "ima")
    for _ in range(2):
        falls(life, error=fault)
        if life.phase is Phase.WAITING:
            life.due("backoff")
        life.now += 20.0
        life.on(NodeChecked("n1", True, tested="48 products right"))
        go_on(life)
    falls(life, rank=0, error=fault)
    life.says("rank 2 fell first on n1 twice, now runs on n0 and did not fall: n1 is at fault; n1 excluded")


@pytest.mark.parametrize("rank", [0, 5])
def test_a_verdict_of_no_rank_is_not_compared(rank: int) -> None:
    life = twice()
    assert life.state.health.move is not None
    assert move.passed(life.state, life.now, SLURM) == (life.state, ""), f"not moved yet, whatever rank {rank} does"


IMPORT = ErrorReport("ImportError", "No module named 'flash_attn'", "imp", "Traceback ...", False)


@pytest.mark.parametrize(("ranks", "excluded"), [((2,), set()), ((2, 3), {"n1"})])
def test_a_text_that_moves_at_once_excludes_a_node_only_if_all_its_ranks_showed_it(
    ranks: tuple[int, ...], excluded: set[str]
) -> None:
    life = Life(3, 2, SLURM).running()
    life.join("s0")
    life.on(NodeChecked("s0", True))
    for rank in ranks:
        life.exit(rank, error=IMPORT, code=1)
    life.stopped()
    life.says("rank 2 of n1 moves to s0")
    go_on(life)
    life.mark(5)
    assert set(life.state.health.excluded) == excluded
    assert (life.state.health.move is not None) == bool(excluded)
    assert "n1" not in life.started().placement.nodes


def test_what_no_row_knows_moves_at_once_if_all_ranks_of_one_node_showed_it_and_no_other_did() -> None:
    life = Life(3, 2, SLURM).running()
    life.mark(10)
    for rank in (2, 3):
        life.exit(rank, error=ODD, code=17)
    life.stopped()
    life.says("all ranks of n1 show it and no other does: its environment or the code is at fault", "moves to n0")
    assert Cause.ENVIRONMENT.value in [one.outcome for one in life.state.attempts]
    go_on(life)
    falls(life, rank=0, at_step=20)
    assert set(life.state.health.excluded) == {"n1"}


LOST = ErrorReport("RuntimeError", "Connection closed by peer", "lost", "Traceback ...", True)


def test_ranks_of_one_node_that_alone_lose_a_peer_again_and_again_have_a_network_of_their_own() -> None:
    life = Life(3, 2, SLURM).running()
    life.mark(10)
    falls(life, error=LOST)
    life.says("only ranks of n1 say so, so its own network may be at fault", "moves to n0")
    go_on(life)
    life.mark(20)
    falls(life, rank=0, error=LOST)
    assert set(life.state.health.excluded) == {"n1"}


def test_connections_that_fail_on_one_node_twice_and_not_on_a_spare_are_its_own() -> None:
    life = Life(3, 2, SLURM).running()
    life.join("s0")
    life.on(NodeChecked("s0", True))
    for step in (10, 20):
        falls(life, error=LOST, at_step=step)
        go_on(life)
    assert not life.state.health.excluded and life.started().placement.nodes == ("n0", "s0", "n2")
    life.mark(30)
    life.says("rank 2 fell first on n1 twice, and on s0 it came past step 20: n1 excluded for 24 h")
    assert set(life.state.health.excluded) == {"n1"}


# ---- what nodes may share, and what passes by itself ---------------------------------------------------------------

STALE = ErrorReport("OSError", "[Errno 116] Stale file handle: '/data/x'", "stale", "Traceback ...", False)


def stale_once(*spares: str) -> Life:
    """Rank 2 on n1 was the only one of a whole gang that heard of storage that does not answer."""
    life = Life(3, 2, SLURM).running()
    for name in spares:
        life.join(name)
        life.on(NodeChecked(name, True))
    life.mark(10)
    stale(life, 2)
    assert not life.state.health.excluded, "it may have passed"
    return life


def stale(life: Life, *ranks: int) -> None:
    for rank in range(6):
        node = life.holder(rank)
        fell = RankExit(rank, node, 1, error=STALE)
        heard = RankExit(rank, node, signal=15, by_us=True, mark=NO_RULE)
        life.on(RankExited(life.state.attempt.number, fell if rank in ranks else heard))
    life.stopped()


def test_storage_that_fails_one_rank_moves_it_where_nodes_change_places_and_no_device_is_tested() -> None:
    life = stale_once()
    life.says("rank 2 of n1 moves to n0", "to tell the node from what nodes share")
    assert not any(node.trial for node in life.state.roster.nodes.values())


def test_if_storage_fails_the_rank_on_the_other_node_too_both_are_innocent_and_the_run_goes_on() -> None:
    life = stale_once()
    go_on(life)
    stale(life, 2)
    life.says("as on n1 before: the rank falls on either node, and both are innocent")
    assert life.phase is not Phase.FAILED
    assert (life.state.health.excluded, life.state.health.move) == ({}, None)


def test_if_another_rank_meets_that_storage_on_the_node_its_mount_is_at_fault() -> None:
    life = stale_once()
    go_on(life)
    life.mark(30)
    stale(life, 0)
    life.says("rank 2 fell first on n1, now runs on n0 and did not fall: n1 is at fault")
    assert set(life.state.health.excluded) == {"n1"}


def test_a_node_whose_storage_may_have_passed_stays_in_the_job_after_the_move() -> None:
    life = stale_once("s0")
    assert life.state.health.move is None, "a node that is free is kept for what comes again"
    go_on(life)
    life.mark(20)
    stale(life, 2)
    go_on(life)
    life.mark(21)
    life.says("and on s0 it came past step 20: n1 holds no rank now, and it stays in the job")
    assert not life.state.health.excluded


def test_a_node_all_of_whose_ranks_meet_it_twice_is_excluded() -> None:
    life = Life(3, 2, SLURM).running()
    life.mark(10)
    stale(life, 2, 3)
    assert not life.state.health.excluded
    go_on(life)
    life.mark(20)
    stale(life, 2, 3)
    assert set(life.state.health.excluded) == {"n1"}
