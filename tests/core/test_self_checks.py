"""What the core makes of copies of the same weights that differ: who is named, what is stopped, what is condemned."""

from __future__ import annotations

import pytest

from gangrun.core.actions import CheckNodes, ChooseResume
from gangrun.core.events import AttemptSealed, CancelRequested, GangStarted, NoneValid, RankFinished, SelfCheckFailed
from gangrun.core.evidence import DataChange, Divergence, SelfChecks
from gangrun.core.model import OnDataChange, Outcome, Phase
from gangrun.core.policy import Policy
from gangrun.core.recovery import self_checks
from gangrun.core.recovery.self_checks import KEPT_MAX_COUNT, ODD_MAX_COUNT, vote, vote_of_ring
from tests.core.life import Life, saved

ODD = Divergence(40, 30, "layer.weight", 3, 4, 3, (2,))
PAIR = Divergence(40, 30, "layer.weight", 1, 2, 1, (0, 1))
ALL = Divergence(40, 30, "layer.weight", 1, 4, 1)
TESTS = Policy(test_suspects=True)


def tell(life: Life, found: Divergence | None, rank: int = 0) -> None:
    life.on(SelfCheckFailed(life.state.attempt.number, rank, life.holder(rank), SelfChecks(found)))


# ---- the vote --------------------------------------------------------------------------------------------------------


def voted(*sums: tuple[int, ...]) -> Divergence | None:
    names = [f"t{number}" for number in range(len(sums[0]))]
    return vote(dict(enumerate(sums)), names, step=40, agreed_step=30)


def test_copies_that_are_equal_are_no_news() -> None:
    assert voted((1, 2), (1, 2), (1, 2)) is None
    assert voted((1, 2)) is None
    assert vote({}, (), step=1, agreed_step=0) is None


def test_most_decide_who_is_odd_over_all_tensors_together() -> None:
    assert voted((1, 2, 3), (1, 9, 9), (1, 2, 3)) == Divergence(40, 30, "t1", 2, 3, 2, (1,))
    assert voted((1,), (7,), (1,), (8,), (1,)) == Divergence(40, 30, "t0", 1, 5, 3, (1, 3))


def test_of_two_either_may_be_wrong() -> None:
    assert voted((1, 2), (1, 3)) == Divergence(40, 30, "t1", 1, 2, 1, (0, 1))


@pytest.mark.parametrize(
    ("sums", "agreeing_count"), [([1, 2, 3], 1), ([1, 1, 2, 2], 2), ([1, 1, 2, 3], 2), ([0] * 99 + [1] * 9, 99)]
)
def test_without_a_majority_or_with_very_many_odd_ones_nobody_is_named(sums: list[int], agreeing_count: int) -> None:
    found = voted(*((one,) for one in sums))
    assert found is not None and (found.odd, found.agreeing_count) == ((), agreeing_count)


def test_as_many_as_may_break_are_named() -> None:
    found = voted(*((one,) for one in [0] * 99 + [1] * ODD_MAX_COUNT))
    assert found is not None and len(found.odd) == ODD_MAX_COUNT


def ringed(count: int, *differing: int) -> tuple[tuple[int, ...], int, int]:
    """Of a ring of ranks 10, 11, ...: the odd ones, of how many ranks, and how many of these agree."""
    ring = range(10, 10 + count)
    found = vote_of_ring(ring, differing, ["loss", "0.weight"], step=40, agreed_step=30)
    assert found is not None
    assert (found.step, found.agreed_step, found.name, found.tensors_count) == (40, 30, "loss", 2)
    assert found.replayed
    return found.odd, found.copies_count, found.agreeing_count


def test_a_rank_that_differs_from_both_neighbours_in_the_ring_is_odd() -> None:
    assert vote_of_ring((10, 11, 12), (), (), step=40, agreed_step=30) is None
    assert ringed(3, 0, 1) == ((11,), 3, 2)
    assert ringed(4, 3, 0) == ((10,), 4, 3)
    assert ringed(9, 1, 2, 5, 6) == ((12, 16), 9, 7)
    assert ringed(9, 1, 2, 3) == ((12, 13), 9, 7), "two that stand together"


def test_two_neighbours_that_differ_are_as_two_copies() -> None:
    assert ringed(2, 0) == ringed(2, 1) == ringed(2, 0, 1) == ((10, 11), 2, 1)
    assert ringed(5, 2) == ((12, 13), 2, 1)
    assert ringed(5, 4) == ((10, 14), 2, 1)


def test_batches_that_come_out_differently_all_over_the_ring_name_nobody() -> None:
    assert ringed(4, 0, 1, 2, 3) == ((), 4, 0)
    assert ringed(8, 0, 4) == ((), 8, 8)
    many = [place for number in range(ODD_MAX_COUNT + 1) for place in (3 * number, 3 * number + 1)]
    assert ringed(99, *many) == ((), 99, 99 - ODD_MAX_COUNT - 1)


# ---- what follows ----------------------------------------------------------------------------------------------------


def corrupted(found: Divergence = ODD, policy: Policy = TESTS, nodes: int = 2) -> Life:
    life = Life(nodes, 2 if found is not PAIR else 1, policy=policy).running(saved(20))
    life.first(21)
    life.save(30)
    life.mark(41)
    life.save(40)
    tell(life, found)
    return life


def test_all_stop_and_go_back_and_the_odd_ranks_node_is_tested() -> None:
    life = corrupted()
    assert life.phase is Phase.STOPPING
    life.says("silent corruption: rank 2 on n1 differs at step 40 from 3 of 4 ranks that hold the same weights")
    life.says("(3 tensors, layer.weight first)", "go back to the newest checkpoint at which they agreed")
    life.stopped()
    life.says("they agreed at step 30", "the devices of n1 are tested first")
    assert CheckNodes(("n1",), "thorough", ()) in life.actions
    assert life.state.attempts[-1].outcome == "silent corruption"
    assert not life.state.health.excluded and dict(life.state.health.suspicion) == {"n1": 1}
    assert dict(life.state.budget.used) == {"silent corruption": 1}
    assert life.state.checkpoints.condemned is not None
    assert (life.state.checkpoints.condemned.first_step, life.state.checkpoints.condemned.path) == (31, "")


def test_of_two_copies_both_nodes_are_tested_and_none_is_excluded_however_often() -> None:
    life = corrupted(PAIR)
    life.says("the weights of rank 0 on n0 and rank 1 on n1 differ at step 40", "both are suspected")
    life.stopped()
    assert CheckNodes(("n0", "n1"), "thorough", ()) in life.actions
    policy = Policy(can_requeue=True)
    life = corrupted(PAIR, policy)
    for _ in range(2):
        life.stopped()
        life.again(saved(30))
        life.on(GangStarted(life.state.attempt.number))
        tell(life, PAIR)
    assert dict(life.state.health.suspicion) == {"n0": 2, "n1": 2} and not life.state.health.excluded


def test_a_node_that_is_odd_twice_goes() -> None:
    life = corrupted(policy=Policy(can_requeue=True))
    life.stopped()
    life.again(saved(30))
    life.on(GangStarted(life.state.attempt.number))
    tell(life, ODD)
    life.stopped()
    life.says("n1 was suspected for the 2nd time, so it is blamed")
    assert set(life.state.health.excluded) == {"n1"}


def test_who_computes_otherwise_is_told_as_that() -> None:
    life = corrupted(Divergence(40, 30, "loss", 3, 4, 3, (2,), replayed=True))
    life.says("silent corruption: rank 2 on n1 differs at step 40 from ranks that computed the same batches")
    life.stopped()
    life.says("they agreed at step 30", "the devices of n1 are tested first")
    assert self_checks.past_words(life.state.divergences[0].divergence) == (
        "rank 2 computed other numbers at step 40 than another rank for the same batch"
    )
    two = Divergence(40, 30, "loss", 3, 5, 3, (1, 2), replayed=True)
    corrupted(two).says("rank 1 on n0 and rank 2 on n1 differ at step 40 from ranks that computed the same batches")


def test_two_ranks_that_got_different_numbers_for_one_batch_are_both_suspected() -> None:
    life = corrupted(Divergence(40, 30, "loss", 1, 2, 1, (0, 1), replayed=True))
    life.says("rank 0 on n0 and rank 1 on n0 computed the same batch at step 40 and got different numbers")
    assert life.phase is Phase.STOPPING


def test_a_computation_that_is_not_deterministic_is_an_alert() -> None:
    life = corrupted(Divergence(40, 30, "loss", 1, 4, 0, (), replayed=True))
    assert (life.phase, life.actions) == (Phase.RUNNING, ())
    life.says("4 ranks computed each other's batches at step 40, and several came out differently")
    words = self_checks.past_words(life.state.divergences[0].divergence)
    assert words.startswith("ranks without a majority computed other numbers")


def test_no_majority_is_an_alert_and_nothing_more() -> None:
    life = corrupted(ALL)
    assert (life.phase, life.actions, life.state.reason) == (Phase.RUNNING, (), life.reason)
    life.says(
        "at most 1 of them agree",
        "the training is not deterministic",
        "training goes on, and nothing more is compared in this attempt",
    )
    assert life.state.checkpoints.condemned is None and life.state.attempt.evidence.divergence is None
    life.ignored(SelfCheckFailed(0, 0, "n0", SelfChecks(ALL)), "nothing new")
    life.finish(0, 1, 2, 3)
    life.stopped()
    assert life.phase is Phase.SUCCEEDED


def test_what_is_known_or_empty_is_no_news() -> None:
    life = Life().running()
    life.ignored(SelfCheckFailed(0, 0, "n0", SelfChecks()), "nothing new")
    life = Life()
    life.join()
    life.refused(SelfCheckFailed(-1, 0, "n0", SelfChecks(ODD)), "no rank of this attempt was started")


def test_before_a_launch_there_is_nothing_to_compare() -> None:
    life = Life()
    life.checked()
    assert life.phase is Phase.STARTING
    life.refused(SelfCheckFailed(0, 0, "n0", SelfChecks(ODD)), "no rank has been launched yet")


def test_what_comes_while_ranks_stop_is_condemned_all_the_same() -> None:
    life = Life(policy=TESTS).running(saved(30))
    life.on(CancelRequested("somebody"))
    assert life.phase is Phase.STOPPING
    tell(life, ODD)
    tell(life, Divergence(50, 30, "layer.weight", 3, 4, 3, (2,)))
    life.stopped()
    assert life.phase is Phase.CANCELLED
    assert life.state.checkpoints.condemned is not None and life.state.checkpoints.condemned.step == 31
    assert [one.divergence.step for one in life.state.divergences] == [40, 50]


def test_the_last_save_of_a_run_counts_too() -> None:
    life = Life(policy=TESTS).running(saved(30))
    life.finish(1, 2, 3)
    life.on(RankFinished(0, 0, "n0", life.now, 40, checks=SelfChecks(ODD)))
    assert life.phase is Phase.STOPPING
    life.says("all ranks finished, but the weights of rank 2 differed at step 40 from 3 of 4 ranks")
    life.stopped()
    assert life.phase is not Phase.SUCCEEDED and life.state.attempts[-1].outcome == "silent corruption"
    life = Life().running()
    life.on(RankFinished(0, 0, "n0", life.now, 40, checks=SelfChecks()))
    life.finish(1, 2, 3)
    life.stopped()
    assert life.phase is Phase.SUCCEEDED


def test_a_rank_that_falls_after_it_is_no_cause_of_its_own() -> None:
    life = corrupted()
    life.exit(2)
    life.stopped()
    assert life.state.attempts[-1].outcome == "silent corruption"


def test_no_checkpoint_of_an_agreement_is_no_reason_to_begin_anew() -> None:
    life = Life(policy=Policy()).running()
    tell(life, Divergence(9, -1, "layer.weight", 1, 4, 3, (2,)))
    life.stopped()
    life.says("no checkpoint is known at which they agreed")
    life.on(AttemptSealed(life.state.attempt.number))
    assert life.last(ChooseResume).condemned is not None
    life.on(NoneValid(life.state.attempt.number, "none of 1 committed checkpoint may be resumed from"))
    assert life.phase is Phase.FAILED
    life.says("every checkpoint from step 0 on counts as spoilt", "silent corruption")


def test_who_only_observes_tells_what_would_follow() -> None:
    life = corrupted(policy=Policy(observe=True))
    assert life.answer.outcome is Outcome.APPLIED and life.phase is Phase.RUNNING and life.actions == ()
    life.says("silent corruption: rank 2 on n1")
    assert life.state.checkpoints.condemned is None and life.state.attempt.evidence.divergence is None


def test_few_are_kept_and_each_kind_has_its_words() -> None:
    life = Life().running()
    for step in range(2 * KEPT_MAX_COUNT):
        tell(life, Divergence(step, -1, "w", 1, 3, 1))
    assert [one.divergence.step for one in life.state.divergences] == list(range(KEPT_MAX_COUNT, 2 * KEPT_MAX_COUNT))
    assert self_checks.past_words(PAIR) == "the weights of rank 0 and rank 1 differed at step 40"
    assert self_checks.past_words(ALL).endswith("differed at step 40: at most 1 of 4 ranks agreed")
    two = Divergence(40, 30, "w", 1, 5, 3, (1, 9))
    assert "rank 1 on n0 and rank 9 differ at step 40" in self_checks.told(life.state, two)
    assert "rank 1 differs" in self_checks.verdict(Divergence(40, 30, "w", 1, 5, 4, (1,)), None).sentence


# ---- data ------------------------------------------------------------------------------------------------------------

CHANGED = SelfChecks(data=DataChange(256, 20, (3, 7)))


def test_changed_data_are_an_alert_with_the_samples() -> None:
    life = Life().running(saved(30))
    life.on(SelfCheckFailed(0, 0, "n0", CHANGED))
    life.says("the data changed since the checkpoint was saved: 20 of 256 samples differ (indices 3, 7 and more)")
    assert (life.phase, life.state.reason, life.actions) == (Phase.RUNNING, life.reason, ())
    life.says("training goes on")
    life.ignored(SelfCheckFailed(0, 0, "n0", CHANGED), "nothing new")
    life.finish(0, 1, 2)
    life.on(RankFinished(0, 3, "n1", life.now, 40, checks=SelfChecks(data=DataChange(256, 1, (3,)))))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED and len(life.state.data_changes) == 2


def test_changed_data_end_the_run_if_the_user_asked_for_it() -> None:
    life = Life(policy=Policy(data_checksums=OnDataChange.STOP)).launching(saved(30))
    life.on(SelfCheckFailed(0, 0, "n0", SelfChecks(data=DataChange(9, 1, (1,)))))
    assert life.phase is Phase.STARTING
    life.on(GangStarted(0))
    life.on(SelfCheckFailed(0, 0, "n0", CHANGED))
    assert life.phase is Phase.STOPPING
    life.stopped()
    assert (life.phase, life.state.attempts[-1].outcome) == (Phase.FAILED, "data")
    life.says("20 of 256 samples differ", "because of --data-checksums stop")


def test_changed_data_and_copies_that_differ_at_once_are_both_told() -> None:
    life = Life().running(saved(30))
    life.on(SelfCheckFailed(0, 0, "n0", SelfChecks(ODD, CHANGED.data)))
    assert life.phase is Phase.STOPPING
    life.says("silent corruption: rank 2 on n1", "the data changed")
