"""Cancel and resume: whenever it is said, all of it ends, nothing comes back by itself, and a person may go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.conftest import Runs
from tests.contract.driver import ENDLESS, Does, How, Injection, Scenario, WorldDriver
from tests.contract.facts import ended, nobody_left, one_gang

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs(Injection.CANCEL)]

QUIET_S = 2.0


def rank_just_dead(one: WorldDriver) -> None:
    one.wait_for_step(5)
    one.kill_rank(1)


def second_launch(one: WorldDriver) -> None:
    rank_just_dead(one)
    one.wait_for_launch(1)


def no_supervisor(one: WorldDriver) -> None:
    one.wait_for_step(5)
    one.kill_supervisor()


MOMENTS: dict[str, Callable[[WorldDriver], object]] = {
    "before anybody joined": lambda one: None,
    "a supervisor exists": lambda one: one.wait("one", lambda status: status["supervisor"] is not None),
    "the launch": lambda one: one.wait_for_launch(),
    "the middle": lambda one: one.wait_for_step(10),
    "a rank just dead": rank_just_dead,
    "the second launch": second_launch,
    "no supervisor": no_supervisor,
    "a pause between attempts": lambda one: one.wait("one", lambda status: status["state"] == "WAITING"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_cancel_at_any_moment_ends_cancelled_and_nothing_comes_back(run: Runs, moment: str) -> None:
    dying = range(8) if moment == "a pause between attempts" else ()  # earlier each time: no progress, so pauses grow
    does = tuple(Does(How.KILL, step=15 - n, rank=n % 2, attempts=frozenset({n})) for n in dying)
    one = run(Scenario(nodes=2, ranks_per_node=1, steps=ENDLESS, does=does, max_restarts=10))
    MOMENTS[moment](one)
    one.cancel()
    status = ended(one, 130, "CANCELLED")
    assert status["failure"] is None, one.told()
    nobody_left(one)
    before = one.steps()
    one.pass_time(QUIET_S)
    nobody_left(one)
    assert one.steps() == before
    one_gang(one)


@pytest.mark.needs(Injection.RESUME)
def test_a_cancelled_run_is_taken_up_again_from_its_checkpoint(run: Runs) -> None:
    one = run(Scenario(steps=60, checkpoint_every=10, nodes=2, ranks_per_node=1))
    one.wait_for_step(25)
    one.cancel()
    ended(one, 130, "CANCELLED")
    one.resume()
    status = ended(one, 0, "SUCCEEDED")
    first, second = status["attempts"]
    assert first["outcome"] == "cancelled" and second["outcome"] == "succeeded"
    assert second["number"] == 1 and second["job"] != first["job"]
    reached = max(row.step for row in one.steps() if row.attempt == 0)
    assert second["resumed_from_step"] in {reached // 10 * 10, reached // 10 * 10 - 10}, "the newest that was whole"
    assert one_gang(one) == [0, 1]
    assert one.steps()[-1].step == 60
    nobody_left(one)


@pytest.mark.needs(Injection.RESUME)
def test_a_run_with_a_spent_budget_gets_a_new_one_when_it_is_taken_up_again(run: Runs) -> None:
    does = tuple(Does(How.KILL, step=9 - n, rank=n % 2, attempts=frozenset({n})) for n in range(3))
    one = run(Scenario(does=does, max_restarts=1, steps=30))
    status = ended(one, 1, "FAILED")
    assert status["failure"] == "budget" and len(status["attempts"]) == 2
    one.resume()
    status = ended(one, 0, "SUCCEEDED")
    assert status["failure"] is None and len(status["attempts"]) == 4
    assert one_gang(one) == [0, 1, 2, 3]
