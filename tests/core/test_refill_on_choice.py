"""A checkpoint that is first met when the next attempt chooses is progress like any other: it refills the budget."""

from __future__ import annotations

from gangrun.core.events import GangStarted
from gangrun.core.model import Phase
from gangrun.core.policy import Policy
from tests.core.life import Life, saved


def test_a_run_that_saves_between_its_deaths_is_never_out_of_restarts() -> None:
    life = Life(1, 2, policy=Policy(restarts_max_count=1)).running()
    for done in range(1, 8):
        life.exit(1, code=None, signal=9)
        life.stopped()
        assert life.phase is Phase.STARTING, life.reason  # at once: no back-off either
        life.again(saved(10 * done))
        assert life.state.budget.used == {}
        assert life.state.budget.mark == 10 * done
        life.on(GangStarted(life.state.attempt.number))
    assert life.state.budget.total_count == 7


def test_the_same_checkpoint_once_more_is_no_progress() -> None:
    life = Life(1, 2, policy=Policy(restarts_max_count=1)).running(saved(10))
    life.exit(1, code=None, signal=9)
    life.stopped()
    life.again(saved(10))
    life.on(GangStarted(life.state.attempt.number))
    life.exit(1, code=None, signal=9)
    life.stopped()
    assert life.phase is Phase.FAILED
    life.says("since step 10")
