"""A checkpoint that leads whoever loads it into the same failure is set aside, once; a bug in the code never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import ChooseResume, EndJob, StartGang
from gangrun.core.checkpoints import poison
from gangrun.core.events import AttemptSealed, FindingRaised, GangStarted, NoneValid, ResumeRequested
from gangrun.core.model import Cause, ErrorReport, Failure, NodeFinding, Phase, Sighting, Verdict
from gangrun.core.policy import Policy, PolicyError
from tests.core.life import BUG, Life, saved

TWENTY = poison.Load(20, steps_told=True)
FAILED = Verdict(Cause.RANK_ERROR, Failure.SCRIPT, (), ("n0",), "sig", "rank 0 raised")

WEAK = replace(FAILED, signature="weak: exit code 1")


def seen(step: int = 22, *, loaded: int = 20, attempt: int = 1, signature: str = "sig") -> Sighting:
    return Sighting(signature, attempt, step, ("n0",), loaded)


@pytest.mark.parametrize(
    ("why", "times", "sightings", "load", "step", "failed"),
    [
        ("the first time", 1, (), TWENTY, 22, FAILED),
        ("again", 2, (seen(),), TWENTY, 22, FAILED),
        ("a third time", 3, (seen(), seen(25, attempt=2)), TWENTY, 30, FAILED),
        ("before any step", 2, (seen(-1),), TWENTY, -1, FAILED),
        ("by a fault of the process", 1, (), TWENTY, 22, replace(FAILED, cause=Cause.SIGNAL)),
        ("other failures count for nothing", 2, (seen(), seen(signature="x")), TWENTY, 22, FAILED),
        ("an exit code at the same step", 2, (seen(signature="weak: exit code 1"),), TWENTY, 22, WEAK),
        ("an exit code, at another step", 0, (seen(signature="weak: exit code 1"),), TWENTY, 23, WEAK),
        ("too late after the load", 0, (seen(),), TWENTY, 31, FAILED),
        ("too late the last time", 0, (seen(31),), TWENTY, 22, FAILED),
        ("started over", 0, (), TWENTY, 19, FAILED),
        ("also after another one", 0, (seen(), seen(12, loaded=10)), TWENTY, 22, FAILED),
        ("also from the beginning", 0, (seen(22, loaded=-1),), TWENTY, 22, FAILED),
        ("another save of this step", 0, (seen(),), replace(TWENTY, since_attempt=1), 22, FAILED),
        ("nothing was loaded", 0, (), None, 2, FAILED),
        ("a script that tells no steps", 0, (), poison.Load(20, steps_told=False), -1, FAILED),
        ("out of memory", 0, (), TWENTY, 22, replace(FAILED, signature="weak: out of memory")),
        ("a device's", 0, (), TWENTY, 22, replace(FAILED, signature="device: sig")),
        ("nothing to know it by", 0, (), TWENTY, 22, replace(FAILED, signature="")),
        ("the storage's", 0, (), TWENTY, 22, replace(FAILED, cause=Cause.STORAGE)),
        ("stuck", 0, (), TWENTY, 22, replace(FAILED, cause=Cause.HANG)),
    ],
)
def test_when_it_may_be_the_checkpoint(why, times, sightings, load, step, failed) -> None:  # type: ignore[no-untyped-def]
    assert poison.times_count(failed, sightings, load, step, Policy()) == times, why


def test_turned_off_it_never_is() -> None:
    off = Policy(poison_after_steps=0)
    assert poison.times_count(FAILED, (seen(20),), TWENTY, 20, off) == 0
    assert poison.times_count(FAILED, (seen(-1),), TWENTY, -1, off) == 0
    for wrong, word in (({"poison_after_steps": -1}, "0 turns it off"), ({"poison_times_count": 1}, "once proves")):
        with pytest.raises(PolicyError, match=word):
            Policy(**wrong)  # type: ignore[arg-type]


def fails(life: Life, at_step: int, error: ErrorReport | None = BUG, rank: int = 0) -> None:
    """The gang that is being launched runs and dies of it; back to where it is being started, if it is."""
    life.on(GangStarted(life.state.attempt.number))
    life.first(at_step)
    life.exit(rank, error=error)
    life.stopped()
    if life.phase is Phase.WAITING:
        life.due("backoff")
    if life.phase is Phase.CHECKING:
        life.due("check")


def poisoned(policy: Policy | None = None) -> Life:
    """Loaded step 40 twice and died two steps later both times; the next choice is due."""
    life = Life(policy=policy).launching(saved(40))
    fails(life, 42)
    assert life.phase is Phase.STARTING and life.state.checkpoints.condemned is None
    life.again(saved(40))
    fails(life, 42)
    return life


def test_the_one_before_it_is_taken_and_the_run_goes_on() -> None:
    life = poisoned()
    life.says(
        "ValueError: bad batch",
        "2 times the same within 10 steps of loading step 40",
        "never after loading another",
        "in place",
    )
    assert life.state.attempts[1].outcome == "poisoned checkpoint"
    life.on(AttemptSealed(2))
    asked = life.last(ChooseResume)
    assert (asked.best_step, asked.put_back) == (40, ())
    assert asked.condemned is not None and asked.condemned.path == saved(40).path
    life.choose(saved(30))
    assert life.last(StartGang).resume == saved(30)
    assert life.state.checkpoints.condemned is None and [one.step for one in life.state.checkpoints.poisoned] == [40]
    life.on(GangStarted(2))
    life.mark(90)
    life.save(90)
    life.exit(0, code=None, signal=9)
    life.stopped()
    life.on(AttemptSealed(3))
    assert life.last(ChooseResume) == ChooseResume(3, "auto", 90)


def test_if_the_older_one_fails_too_it_was_the_code_and_nothing_is_lost() -> None:
    life = poisoned()
    life.again(saved(30))
    fails(life, 31)
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    life.says("it is the code's", "Traceback ...", "step 40, set aside on that suspicion, is put back")
    assert life.last(EndJob).put_back == (saved(40).path,)
    assert life.state.checkpoints.poisoned == ()
    assert life.state.checkpoints.newest == saved(40), "it is the newest again"
    life.on(ResumeRequested("ann", "j", 0))
    life.launching(saved(40))
    assert life.last(ChooseResume).put_back == (saved(40).path,), "should the end not have come to it"
    assert life.state.checkpoints.cleared == ()


def test_a_spent_budget_puts_it_back_too_and_another_failure_does_not() -> None:
    for error, back in ((BUG, (saved(40).path,)), (replace(BUG, signature="other"), ())):
        life = poisoned(Policy(restarts_max_count=1))
        life.again(saved(30))
        fails(life, 71, error)
        assert life.phase is Phase.FAILED
        assert life.last(EndJob).put_back == back, life.reason


def test_a_bug_that_is_as_old_as_the_run_stops_it_at_once() -> None:
    life = Life().launching()
    fails(life, 42)
    life.again(saved(40))
    fails(life, 42)
    assert life.phase is Phase.FAILED
    life.says("it is the code's", "Traceback ...")
    assert life.last(EndJob).put_back == ()


def test_three_times_where_so_many_are_asked_for() -> None:
    life = poisoned(Policy(poison_times_count=3))
    assert life.state.checkpoints.condemned is None
    life.again(saved(40))
    fails(life, 43)
    assert life.state.checkpoints.condemned is not None


def test_no_older_one_stops_the_run_with_the_traceback_and_never_begins_anew() -> None:
    for traceback, told in (
        ("Traceback ...\nValueError: bad batch", ": Traceback ... | ValueError"),
        ("", ": rank 0"),
    ):
        life = Life().launching(saved(40))
        for _ in range(2):
            fails(life, 42, replace(BUG, traceback=traceback))
            life.on(AttemptSealed(life.state.attempt.number))
            if life.state.checkpoints.condemned is None:
                life.choose(saved(40))
        life.on(NoneValid(2, "none of 1 committed checkpoint may be resumed from"))
        assert (life.phase, life.state.ending.failure, life.state.checkpoints.condemned) == (
            Phase.FAILED,
            Failure.SCRIPT,
            None,
        )
        life.says("step 40 counts as poisoned", told, "none of 1")


def test_whoever_says_what_to_resume_from_gets_it() -> None:
    life = poisoned()
    life.state = replace(life.state, checkpoints=replace(life.state.checkpoints, resume_request="40"))
    life.on(AttemptSealed(2))
    assert life.last(ChooseResume) == ChooseResume(2, "40", 40)
    life.choose(saved(40))
    assert (life.state.checkpoints.condemned, life.state.checkpoints.poisoned) == (None, ())


def test_a_node_that_may_be_the_reason_goes_first() -> None:
    life = Life().launching(saved(40))
    life.join("s0")
    fails(life, 42, rank=2)
    life.again(saved(40))
    fails(life, 42, rank=2)
    assert life.state.checkpoints.condemned is None and "n1" in life.state.health.excluded, life.reason
    life.again(saved(40))
    fails(life, 42)
    assert life.state.checkpoints.condemned is not None, "on another node too"


def test_poor_hardware_just_before_is_not_the_checkpoints() -> None:
    life = Life().launching(saved(40))
    fails(life, 42)
    life.again(saved(40))
    life.on(GangStarted(1))
    life.on(FindingRaised(NodeFinding("n0", "gpu_clock", False, "slow", life.now, poor=True)))
    life.first(42)
    life.exit(0, error=BUG)
    life.stopped()
    assert life.state.checkpoints.condemned is None
