"""What the core makes of an anomaly of the training's numbers: it is told at once, remembered, and in the last word."""

from __future__ import annotations

import pytest

from gangrun.core.actions import ChooseResume, StopGang
from gangrun.core.events import AnomalySeen, AttemptSealed, GangStarted, NoneValid, RankFinished
from gangrun.core.evidence import Anomaly, AnomalyKind
from gangrun.core.model import Failure, OnAnomaly, Phase
from gangrun.core.policy import Policy, PolicyError
from gangrun.core.recovery import anomalies
from gangrun.core.text import SAVE_TIMES
from tests.core.life import Life, saved


def nan(since: int = 100, step: int = 120, count: int = 21, **more: object) -> Anomaly:
    return Anomaly(AnomalyKind.NOT_FINITE, since, step, count, "loss", "NaN", **more)  # type: ignore[arg-type]


def alert(life: Life, anomaly: Anomaly, rank: int = 0, ranks_count: int = 1) -> None:
    life.on(AnomalySeen(life.state.attempt.number, rank, life.holder(rank), anomaly, ranks_count))


def test_an_alert_is_what_people_read_and_training_goes_on() -> None:
    life = Life().running()
    alert(life, nan(), rank=2, ranks_count=4)
    life.says("the loss became NaN at step 100 (rank 2 on n1), and on 3 other ranks; training goes on")
    assert (life.phase, life.state.reason, life.actions) == (Phase.RUNNING, life.reason, ())


def test_a_short_run_that_told_it_only_with_its_end_does_not_end_without_a_word() -> None:
    life = Life().running()
    for rank in range(4):
        life.on(RankFinished(0, rank, life.holder(rank), life.now, 589, anomalies=(nan(rank, 589, 590 - rank),)))
    life.stopped()
    assert life.phase is Phase.SUCCEEDED
    life.says("but the loss was NaN from step 0 to step 589 (rank 0 on n0)")
    assert len(life.state.anomalies) == 1


def test_a_rank_that_falls_tells_what_it_had_reported() -> None:
    life = Life().running()
    died = life.died(1)
    life.on(type(died)(0, type(died.exit)(1, "n0", 1, at=life.now, anomalies=(nan(7, 9, 3),))))
    assert [one.anomaly.since_step for one in life.state.anomalies] == [7]


def test_what_was_seen_earlier_elsewhere_is_where_it_began() -> None:
    life = Life().running()
    alert(life, nan(102, 110, 9), rank=0)
    alert(life, nan(101, 108, 8, lasting=True), rank=3)
    (one,) = life.state.anomalies
    assert (one.rank, one.node, one.anomaly.since_step, one.anomaly.step) == (3, "n1", 101, 110)
    assert (one.anomaly.count, one.anomaly.lasting) == (9, True)
    before = life.state
    alert(life, nan(102, 110, 9), rank=0)
    assert life.state.anomalies == before.anomalies


def test_another_stretch_number_and_attempt_are_anomalies_of_their_own() -> None:
    life = Life().running()
    alert(life, nan())
    alert(life, nan(400, 401, 2))
    alert(life, Anomaly(AnomalyKind.NOT_FINITE, 100, 120, 21, "gradient norm", "Infinity"))
    life.exit(0, step=500)
    life.stopped()
    life.again()
    alert(life, nan())
    assert [(one.attempt, one.anomaly.since_step) for one in life.state.anomalies] == [
        (0, 100),
        (0, 400),
        (0, 100),
        (1, 100),
    ]


def test_few_are_kept() -> None:
    life = Life().running()
    for since in range(0, 100 * anomalies.KEPT_MAX_COUNT, 100):
        alert(life, nan(since, since, 1))
    assert len(life.state.anomalies) == anomalies.KEPT_MAX_COUNT
    assert life.state.anomalies[-1].anomaly.since_step == 100 * (anomalies.KEPT_MAX_COUNT - 1)


@pytest.mark.parametrize(
    ("anomaly", "now", "past"),
    [
        (nan(7, 7, 1), "the loss was NaN at step 7", "the loss was NaN at step 7"),
        (nan(7, 9, 2), "the loss became NaN at step 7", "the loss was NaN from step 7 to step 9"),
        (
            Anomaly(AnomalyKind.BLOW_UP, 7, 20, 9, "loss", "45.2", "median 2.3"),
            "the loss rose far above its median 2.3 at step 7, to 45.2 by now",
            "the loss was far above its median 2.3 from step 7 to step 20",
        ),
        (
            Anomaly(AnomalyKind.GRADIENT, 7, 20, 9, "gradient norm", "90", "mean 0.8"),
            "the gradient norm rose over 10 times its mean 0.8 at step 7, to 90 by now",
            "the gradient norm was far above its mean 0.8 from step 7 to step 20",
        ),
        (
            Anomaly(AnomalyKind.FLAT, 7, 506, 500, "loss", "2.3"),
            "the loss stopped changing at step 7: 2.3 in 501 reports",
            "the loss stayed at 2.3 from step 7 to step 506",
        ),
    ],
)
def test_each_kind_has_its_words(anomaly: Anomaly, now: str, past: str) -> None:
    life = Life().running()
    alert(life, anomaly)
    (one,) = life.state.anomalies
    assert anomalies.told(one) == f"{now} (rank 0 on n0)"
    assert anomalies.past_words(one) == f"{past} (rank 0 on n0)"


ROLLBACK = Policy(on_anomaly=OnAnomaly.ROLLBACK)
SKIPPING = Policy(on_anomaly=OnAnomaly.ROLLBACK, skip_batches_count=8)


def rolled_back(policy: Policy = ROLLBACK, since: int = 100) -> Life:
    """A run that resumed from 40, saved 90 and 110, and went bad at ``since``; it looks for its resume point."""
    life = Life(policy=policy).running(saved(40))
    life.first(41)
    life.save(90)
    life.mark(since + 20)
    life.save(since + 10)
    alert(life, nan(since, since + 3, 4, lasting=True))
    assert life.phase is Phase.STOPPING
    life.stopped()
    life.on(AttemptSealed(life.state.attempt.number))
    return life


def test_a_rollback_sets_aside_all_that_was_saved_since_the_step_before() -> None:
    life = rolled_back()
    assert not life.last(StopGang).checkpoint_first
    condemned = life.last(ChooseResume).condemned
    assert condemned is not None
    assert (condemned.first_step, condemned.path) == (99, "")
    assert life.state.attempts[-2].outcome == "numerical"
    assert "before step 99" in life.state.attempts[-2].reason
    life.choose(saved(90))
    assert life.started().skip_batches == ()
    assert life.state.checkpoints.disk_step == 90
    assert life.state.checkpoints.condemned is None
    assert [one.rolled_back for one in life.state.anomalies] == [True]


def test_no_checkpoint_from_before_is_no_reason_to_begin_anew() -> None:
    life = rolled_back()
    life.on(NoneValid(life.state.attempt.number, "none of 1 committed checkpoint may be resumed from"))
    assert life.phase is Phase.FAILED
    life.says("every checkpoint from step 99 on counts as spoilt", "the loss became NaN at step 100")


def test_the_same_step_again_is_the_datas() -> None:
    life = rolled_back()
    life.choose(saved(90))
    life.on(GangStarted(life.state.attempt.number))
    alert(life, nan(100, 103, 4, lasting=True))
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("attempt 0 came to the same at this step", "the data of this step is at fault", "--skip-batches N")
    assert life.state.attempts[-1].outcome == "data"


def test_another_step_is_another_rollback() -> None:
    life = rolled_back()
    life.choose(saved(90))
    life.on(GangStarted(life.state.attempt.number))
    alert(life, nan(97, 103, 7, lasting=True))
    life.stopped()
    assert life.phase is not Phase.FAILED


def test_batches_are_left_out_and_once_they_were_the_same_step_is_not_the_datas() -> None:
    life = rolled_back(SKIPPING)
    life.choose(saved(90))
    assert life.started().skip_batches == ((8, 8),)  # of 91 to 98, then 8 are left out: 99 and on
    life.on(GangStarted(life.state.attempt.number))
    alert(life, nan(100, 103, 4, lasting=True))
    life.stopped()
    assert life.phase is Phase.FAILED
    life.says("although 8 global batches were left out: the data is not at fault")
    assert life.state.attempts[-1].outcome == "numerical"


@pytest.mark.parametrize(
    ("resume_step", "skips"),
    [(90, ((8, 8),)), (98, ((0, 8),)), (99, ()), (150, ()), (-1, ((99, 8),)), (SAVE_TIMES[0], ())],
)
def test_batches_are_counted_from_the_resume_point(resume_step: int, skips: object) -> None:
    state = rolled_back(SKIPPING).state
    assert anomalies.skips(state, resume_step) == skips


def test_from_the_beginning_the_first_batches_are_left_out() -> None:
    assert anomalies.skips(rolled_back(SKIPPING, since=0).state, -1) == ((0, 8),)


def test_a_rank_that_fell_of_itself_is_judged_and_the_rollback_is_done_all_the_same() -> None:
    life = Life(policy=ROLLBACK).running(saved(40))
    life.mark(120)
    alert(life, nan(lasting=True))
    life.exit(0, step=120)
    life.stopped()
    assert life.state.attempts[0].outcome == "rank error"
    life.on(AttemptSealed(life.state.attempt.number))
    assert life.last(ChooseResume).condemned is not None


def test_save_and_stop() -> None:
    life = Life(policy=Policy(on_anomaly=OnAnomaly.CHECKPOINT)).running()
    alert(life, nan(lasting=True))
    assert life.last(StopGang).checkpoint_first
    life.stopped()
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("--on-anomaly checkpoint", "gangrun resume --resume STEP goes back to a step below 99")


@pytest.mark.parametrize(
    "anomaly",
    [
        nan(),  # may pass
        Anomaly(AnomalyKind.GRADIENT, 7, 20, 9, "gradient norm", "90", "mean 0.8", lasting=True),
        Anomaly(AnomalyKind.FLAT, 7, 506, 500, "loss", "2.3"),
    ],
)
def test_what_may_pass_and_what_spoils_no_weights_is_an_alert_only(anomaly: Anomaly) -> None:
    life = Life(policy=ROLLBACK).running()
    alert(life, anomaly)
    life.says("training goes on")


def test_observing_only_nothing_is_stopped() -> None:
    life = Life(policy=Policy(on_anomaly=OnAnomaly.ROLLBACK, observe=True)).running()
    alert(life, nan(lasting=True))
    life.says("observing only")
    assert (life.phase, life.state.attempt.evidence.anomaly) == (Phase.RUNNING, None)


def test_an_anomaly_of_ranks_that_were_not_launched_is_refused() -> None:
    life = Life()
    life.checked()
    life.refused(AnomalySeen(0, 0, "n0", nan()), "no rank has been launched yet")


@pytest.mark.parametrize(
    ("knobs", "words"), [({"skip_batches_count": -1}, "negative"), ({"skip_batches_count": 8}, "rollback")]
)
def test_a_policy_that_cannot_work_is_refused(knobs: dict[str, int], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        Policy(**knobs)  # type: ignore[arg-type]
