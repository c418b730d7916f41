"""What may go and what never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.checkpoints.retention import CommittedStep, Keep, for_a_rollback, to_prune


def held(*steps: int, bad: tuple[int, ...] = ()) -> list[CommittedStep]:
    return [CommittedStep(step, step not in bad) for step in steps]


def test_the_newest_stay_and_every_mth_stays_for_good() -> None:
    steps = held(*range(10, 110, 10))
    assert to_prune(steps, Keep()) == ()
    assert to_prune(steps, Keep(3)) == (10, 20, 30, 40, 50, 60, 70)
    assert to_prune(steps, Keep(3, every_steps=50)) == (10, 20, 30, 40, 60, 70)
    assert to_prune(steps, Keep(3), needed_steps=[20]) == (10, 30, 40, 50, 60, 70)


def test_the_newest_valid_ones_stay_however_many_damaged_ones_are_newer() -> None:
    assert to_prune(held(10, 20, 30, 40, 50, bad=(30, 40, 50)), Keep(2)) == (30,)


@pytest.mark.parametrize(
    ("resumed", "written", "needed"),
    [
        (None, (), ()),
        (40, (), (20, 30, 40)),
        (40, (41, 42, 43, 50), (20, 30, 40)),
        (40, (41, 51), (20, 30, 40)),
        (40, (51, 52), ()),
        (20, (22,), (10, 20)),
        (10, (12,), (10,)),
    ],
)
def test_what_a_rollback_needs_stays_until_what_was_loaded_has_shown_itself(
    resumed: int | None, written: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    there = held(10, 20, 30, 35, 40, *written, bad=(35,))
    assert for_a_rollback(there, resumed, written, 10) == needed
    assert not set(to_prune(there, Keep(2), needed)) & set(needed)


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 0), (2, -1)])
def test_keeping_one_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Keep(*arguments)


@given(st.dictionaries(st.integers(0, 60), st.booleans()), st.integers(2, 6), st.integers(0, 20))
def test_a_valid_one_is_always_left(valid: dict[int, bool], newest: int, every: int) -> None:
    gone = to_prune([CommittedStep(step, ok) for step, ok in valid.items()], Keep(newest, every))
    left = set(valid) - set(gone)
    assert len(left) >= min(len(valid), newest)
    if any(valid.values()):
        assert max(step for step, ok in valid.items() if ok) in left
