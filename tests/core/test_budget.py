"""How often, after how long, and what refills it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.events import CheckpointSeen, GangStarted, ProgressMarked
from gangrun.core.model import Budget, Cause, CheckpointRef, Failure, Phase, Sighting, Verdict
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget
from tests.core.life import Life, saved

POLICY = Policy()


def verdict(cause: Cause, *, final: bool = False, signature: str = "") -> Verdict:
    return Verdict(cause, Failure.SCRIPT, (), ("n1",), signature, "it fell", final)


def spend(start: Budget, causes: list[Cause], policy: Policy = POLICY) -> tuple[Budget, list[budget.Ruling]]:
    rulings = []
    for attempt, cause in enumerate(causes):
        start, ruling = budget.charge(start, verdict(cause), attempt, 10, policy, "run-1")
        rulings.append(ruling)
    return start, rulings


def test_first_at_once_then_doubling_then_no_more() -> None:
    after, rulings = spend(Budget(), [Cause.SIGNAL] * 4)
    assert [ruling.allowed for ruling in rulings] == [True, True, True, False]
    assert rulings[0].backoff_s == 0.0
    assert 1.6 <= rulings[1].backoff_s <= 2.4 and 3.2 <= rulings[2].backoff_s <= 4.8
    assert after.used == {"signal": 3} and after.total_count == 3
    assert rulings[0].sentence == "restart 1 of 3 for this cause (signal) without any progress"
    assert rulings[1].sentence.startswith("restart 2 of 3 for this cause (signal) without any progress in ")
    assert rulings[3].sentence == "no restart is left for this cause (signal): 3 of 3 spent without any progress"


def test_causes_count_apart_up_to_a_total() -> None:
    causes = [Cause.SIGNAL, Cause.RANK_ERROR, Cause.HANG, Cause.OOM, Cause.LEFT_EARLY] * 2
    after, rulings = spend(replace(Budget(), mark=50), causes)
    assert [ruling.allowed for ruling in rulings] == [True] * 9 + [False]
    assert rulings[9].sentence == "no restart is left: 9 of 9 spent over all causes since step 50"
    assert sum(after.used.values()) == 9


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause in budget.LENIENT])
def test_what_is_not_the_scripts_gets_more(cause: Cause) -> None:
    _, rulings = spend(Budget(mark=10), [cause] * 7)
    assert [ruling.allowed for ruling in rulings] == [True] * 6 + [False]


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause in budget.UNPROVEN])
def test_what_may_never_have_worked_gets_half_the_tries_and_longer_pauses_until_there_is_progress(cause: Cause) -> None:
    _, before = spend(Budget(), [cause] * 4)
    _, after = spend(Budget(mark=0), [cause] * 7)
    assert [ruling.allowed for ruling in before] == [True] * 3 + [False]
    assert before[3].sentence == f"no restart is left for this cause ({cause.value}): 3 of 3 spent without any progress"
    assert [ruling.allowed for ruling in after] == [True] * 6 + [False]
    factors = {early.backoff_s / late.backoff_s for early, late in zip(before[1:3], after[1:3], strict=True)}
    assert factors == {POLICY.unproven_backoff_factor}
    short = replace(POLICY, backoff_max_s=5.0)
    _, cut = spend(Budget(), [cause] * 3, short)
    assert cut[2].backoff_s == short.backoff_max_s


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause in budget.LENIENT - budget.UNPROVEN])
def test_a_node_that_breaks_proves_nothing_of_what_was_set_up(cause: Cause) -> None:
    _, rulings = spend(Budget(), [cause] * 7)
    assert [ruling.allowed for ruling in rulings] == [True] * 6 + [False]
    assert rulings[1].backoff_s < POLICY.backoff_first_s * 2


def test_no_restart_means_none() -> None:
    _, rulings = spend(Budget(), [Cause.SIGNAL, Cause.NODE_SILENT], Policy(restarts_max_count=0))
    assert not any(ruling.allowed for ruling in rulings)


def test_final_is_final_and_free() -> None:
    after, ruling = budget.charge(Budget(), verdict(Cause.SAME_AGAIN, final=True, signature="s"), 3, 9, POLICY)
    assert not ruling.allowed and after.used == {} and after.total_count == 0
    assert after.sightings == (Sighting("s", 3, 9, ("n1",)),)


def test_sightings_are_kept_and_bounded() -> None:
    start = Budget()
    for attempt in range(50):
        start, _ = budget.charge(start, verdict(Cause.SIGNAL, signature="s"), attempt, 9, POLICY)
    assert len(start.sightings) == budget.SIGHTINGS_MAX_COUNT and start.sightings[-1].attempt == 49
    nameless, _ = budget.charge(Budget(), verdict(Cause.SIGNAL), 1, 9, POLICY)
    assert nameless.sightings == ()


def test_blamed_stand_in_where_there_is_no_suspect() -> None:
    sure = Verdict(Cause.HARDWARE, Failure.NODE, ("n7",), (), "s", "x")
    assert budget.sighting_of(sure, 1, 2) == Sighting("s", 1, 2, ("n7",))


def test_backoff_is_capped_and_the_same_on_replay() -> None:
    assert budget.backoff_s(200, POLICY, "r", 7) == POLICY.backoff_max_s
    assert budget.backoff_s(4, POLICY, "r", 7) == budget.backoff_s(4, POLICY, "r", 7)
    assert len({budget.backoff_s(4, POLICY, f"r{run}", 7) for run in range(50)}) > 40, "runs do not come back in step"


def test_refill_by_progress_only() -> None:
    spent, _ = spend(
        replace(Budget(), mark=50, sightings=(Sighting("old", 0, 59, ()), Sighting("new", 1, 60, ()))),
        [Cause.SIGNAL] * 3,
    )
    assert budget.refill(spent, 50, 50) is spent and budget.reach(spent, 49, 50) is spent
    full = budget.refill(spent, 60, 59)
    assert (full.used, full.mark, full.total_count) == ({}, 60, 3)
    assert full.sightings == spent.sightings, "the next attempt may come back to the old one"
    passed = budget.reach(spent, 60, 59)
    assert (passed.used, passed.mark, passed.total_count) == ({}, 60, 3)
    assert [sighting.signature for sighting in passed.sightings] == ["new"], "the code got past where the old one was"
    unknown = budget.reach(spent, 1_795_000_000_000, 59)
    assert (unknown.used, unknown.mark, unknown.sightings) == ({}, 50, spent.sightings)
    assert budget.reach(spent, 1_795_000_000_000, 1_795_000_000_000) is spent
    assert budget.reach(full, 40, 20).mark == 60, "a new checkpoint below what was observed is progress too"


def test_a_save_whose_step_is_not_known_is_progress_and_no_step() -> None:
    """The script overwrites one file; what stands for its step is the time of the save, in ms."""
    older, newer = 1_795_000_000_000, 1_795_000_009_000
    life = Life().running()
    life.mark(7)
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.again(saved(older))
    life.on(GangStarted(1))
    life.first(3)
    assert life.phase is Phase.RUNNING, "nobody knows at which step it was to begin"
    life.mark(7)
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.again(saved(older))
    life.on(GangStarted(2))
    assert life.state.budget.used
    life.save(newer)
    life.says("checkpoint of the save of 2026-11-18 11:06:49 UTC is verified")
    assert (life.state.budget.used, life.state.budget.mark) == ({}, 7)
    assert (life.state.checkpoints.newest, life.state.checkpoints.observed_step) == (saved(newer), 7)
    life.ignored(CheckpointSeen(saved(older)), "not newer than the save of 2026-11-18 11:06:49 UTC")


def killed_at(steps: list[int], checkpoint: CheckpointRef | None) -> Life:
    """A rank is killed at each of these steps, in one attempt after another, all from the same checkpoint."""
    life = Life(policy=Policy(restarts_max_count=1)).running(checkpoint)
    for attempt, at_step in enumerate(steps):
        life.exit(attempt % 2, code=None, signal=9, step=at_step)
        life.stopped()
        if life.phase is Phase.FAILED:
            break
        life.again(checkpoint)
        life.on(GangStarted(attempt + 1))
    return life


@pytest.mark.parametrize("checkpoint", [None, saved(10)])
def test_a_run_that_falls_at_ever_higher_steps_makes_progress(checkpoint: CheckpointRef | None) -> None:
    life = killed_at([16, 24, 37], checkpoint)
    assert life.phase is Phase.RUNNING
    assert life.state.budget.mark == 37 and life.state.budget.total_count == 3


def test_a_step_that_ranks_only_print_refills_the_budget_and_counts_for_nothing_else() -> None:
    life = Life(policy=Policy(restarts_max_count=1)).running()
    for attempt, at_step in enumerate((16, 24)):
        life.on(ProgressMarked(attempt, at_step - 8, printed=True))
        life.says(f"step {at_step - 8} was printed")
        life.exit(0, code=None, signal=9, log_step=at_step)
        life.stopped()
        life.again()
        life.on(GangStarted(attempt + 1))
    assert life.state.budget.mark == 24
    assert (life.state.attempt.step, life.state.checkpoints.observed_step) == (-1, -1)
    life.mark(5)
    life.on(ProgressMarked(2, 99, printed=True))
    assert life.state.checkpoints.logged_step == 24, "a rank reports steps"


def test_a_step_that_ranks_printed_before_is_no_progress() -> None:
    life = Life(policy=Policy(restarts_max_count=1)).running()
    life.exit(0, code=None, signal=9, log_step=16)
    life.stopped()
    life.again()
    life.on(GangStarted(1))
    life.exit(0, code=None, signal=9, log_step=16)
    life.stopped()
    life.says("1 of 1 spent since step 16")


@pytest.mark.parametrize("steps", [[16, 16], [37, 24]])
@pytest.mark.parametrize("checkpoint", [None, saved(10)])
def test_a_run_that_falls_where_it_has_been_makes_none(checkpoint: CheckpointRef | None, steps: list[int]) -> None:
    life = killed_at(steps, checkpoint)
    assert life.phase is Phase.FAILED
    life.says(f"1 of 1 spent since step {steps[0]}")


@given(st.lists(st.tuples(st.sampled_from(list(Cause)), st.integers(-1, 30)), max_size=60))
def test_never_more_than_the_total_without_a_higher_step(happenings: list[tuple[Cause, int]]) -> None:
    now = Budget()
    since = 0
    for attempt, (cause, step) in enumerate(happenings):
        higher = step > now.mark
        now = budget.refill(now, step, now.mark)
        since = 0 if higher else since
        mark = now.mark
        now, ruling = budget.charge(now, verdict(cause), attempt, step, POLICY)
        since += ruling.allowed
        assert now.mark == mark and since == sum(now.used.values()) <= 9
        assert 0 <= ruling.backoff_s <= POLICY.backoff_max_s
