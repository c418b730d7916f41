"""Poisoned checkpoints: how they are known, set aside and put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.actions import ChooseResume, EndJob, StartGang
from gangrun.core.checkpoints import poison
from gangrun.core.events import AttemptSealed, CheckpointSeen, FindingRaised, GangStarted, NoneValid, ResumeRequested
from gangrun.core.evidence import ErrorReport, NodeFinding
from gangrun.core.model import AttemptRecord, Cause, CheckpointRef, Failure, Phase, Poisoned, Sighting, Verdict
from gangrun.core.policy import Policy, PolicyError
from tests.core.life import BUG, Life, saved

# ---- a checkpoint that leads to the same failure ---------------------------------------------------------------------


TWENTY = poison.Load(20, steps_told=True)
FAILED = Verdict(Cause.RANK_ERROR, Failure.SCRIPT, (), ("n0",), "sig", "rank 0 raised")

DAMAGED = "known: damaged-file"
ROTTEN = replace(FAILED, cause=Cause.STORAGE, signature=DAMAGED)
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
        ("a damaged file", 2, (seen(-1, signature=DAMAGED),), TWENTY, -1, ROTTEN),
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
        "2 times within 10 steps of loading step 40",
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
    life.says("the code is at fault", "Traceback ...", "step 40, which gangrun had set aside, is put back")
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
        had_reached = replace(life.state.checkpoints, observed_step=80)  # so 71 is no progress
        life.state = replace(life.state, checkpoints=had_reached)
        fails(life, 71, error)
        assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.BUDGET)
        assert life.last(EndJob).put_back == back, life.reason


def test_a_bug_that_is_as_old_as_the_run_stops_it_at_once() -> None:
    life = Life().launching()
    fails(life, 42)
    life.again(saved(40))
    fails(life, 42)
    assert life.phase is Phase.FAILED
    life.says("the code is at fault", "Traceback ...")
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


# ---- what went wrong may have been saved more than once --------------------------------------------------------------


FOUR_HUNDRED = Poisoned(400, "/c/step-400", "sig", 4, "why", "failed")


def met(step: int, loaded: int = 400, attempt: int = 4, signature: str = "sig") -> Sighting:
    return Sighting(signature, attempt, step, ("n0",), loaded)


def ran(start: int | None, last: int) -> AttemptRecord:
    return AttemptRecord(0, "j", ("n0",), 0.0, 1.0, "silent", "", start, last)


NEVER_RESUMED = (ran(None, 450),)
DID_WELL = (ran(100, 250), ran(400, 403))
TWICE = (met(402), met(402, attempt=3))
LOAD = poison.Load(300, True, 4, (FOUR_HUNDRED,), DID_WELL)
UNPROVEN = replace(LOAD, attempts=NEVER_RESUMED)
FULL = replace(LOAD, newer=tuple(replace(FOUR_HUNDRED, step=step) for step in (400, 500, 600)))


HEIR = poison.Load(404, True, -1, (), (ran(None, 450),))


@pytest.mark.parametrize(
    ("why", "times", "sightings", "load", "step"),
    [
        ("saved on the way to the same failure", 2, (met(405),), HEIR, 405),
        ("which comes sooner now", 2, (met(406),), HEIR, 405),
        ("twice on the way", 3, (met(405), met(405, 402)), HEIR, 405),
        ("it comes farther now", 0, (met(405),), HEIR, 406),
        (
            "no attempt passed this step",
            0,
            (met(405),),
            replace(HEIR, attempts=(ran(None, 405),)),
            405,
        ),
        ("who passed it began later", 0, (met(405),), replace(HEIR, attempts=(ran(405, 450),)), 405),
        ("saved before that load", 0, (met(405, 404),), replace(HEIR, step=400), 405),
        ("saved after that failure", 0, (met(405),), replace(HEIR, step=406), 406),
        ("before a step back", 0, (met(405),), replace(HEIR, since_attempt=4), 405),
    ],
)
def test_what_was_saved_between_a_load_and_the_failure_is_the_same_state(why, times, sightings, load, step) -> None:  # type: ignore[no-untyped-def]
    assert poison.times_count(FAILED, sightings, load, step, Policy()) == times, why


@pytest.mark.parametrize(
    ("why", "times", "sightings", "load", "step", "failed"),
    [
        ("sooner, and another load did well", 3, TWICE, LOAD, 302, FAILED),
        ("before any step", 2, (met(-1),), LOAD, -1, FAILED),
        ("before any step, where the newer one came to some", 2, (met(402),), LOAD, -1, FAILED),
        ("nearly as late as the newer one", 2, (met(402),), replace(LOAD, step=396), 401, FAILED),
        ("at the same step as the newer one", 0, (met(402),), replace(LOAD, step=396), 402, FAILED),
        ("later than the newer one", 0, (met(402),), replace(LOAD, step=396), 403, FAILED),
        ("before any step of the newer one", 0, (met(-1),), replace(LOAD, step=396), 400, FAILED),
        ("long after the load", 0, TWICE, LOAD, 311, FAILED),
        ("the newer one failed long after its load", 0, (met(411),), LOAD, 302, FAILED),
        ("no load did well, but others passed this step", 3, TWICE, UNPROVEN, 302, FAILED),
        ("no load did well, and no whole step was made", 0, TWICE, UNPROVEN, 301, FAILED),
        ("no load did well, and no step was made", 0, (met(-1),), UNPROVEN, -1, FAILED),
        ("nothing passed this step", 0, TWICE, replace(LOAD, attempts=(ran(None, 302),)), 302, FAILED),
        ("what passed fell soon, too", 0, TWICE, replace(LOAD, attempts=(ran(299, 303),)), 302, FAILED),
        ("nothing ever worked", 0, TWICE, replace(LOAD, attempts=()), 302, FAILED),
        ("this very one did well before", 0, TWICE, replace(LOAD, attempts=(ran(300, 311),)), 302, FAILED),
        ("this very one did not quite", 0, TWICE, replace(LOAD, attempts=(ran(300, 310),)), 301, FAILED),
        ("an attempt that ended in an older gangrun", 0, TWICE, replace(LOAD, attempts=(ran(100, -1),)), 302, FAILED),
        (
            "as many as may be are set aside",
            0,
            (met(602, 600), met(402)),
            FULL,
            302,
            FAILED,
        ),
        (
            "another failure: the newer one's counts for nothing",
            1,
            (met(402, signature="x"),),
            LOAD,
            302,
            FAILED,
        ),
        ("another failure, as many as may be", 0, (), FULL, 302, FAILED),
        (
            "the newer one was set aside for another",
            0,
            (met(402, signature="weak: exit code 1"),),
            LOAD,
            302,
            WEAK,
        ),
        ("it came back at that step after that", 0, (met(402, attempt=5),), LOAD, 302, FAILED),
        ("also from the beginning", 0, (*TWICE, met(402, -1)), LOAD, 302, FAILED),
    ],
)
def test_when_an_older_one_is_poisoned_too(why, times, sightings, load, step, failed) -> None:  # type: ignore[no-untyped-def]
    assert poison.times_count(failed, sightings, load, step, Policy()) == times, why


def test_an_exit_code_is_the_same_failure_as_far_after_its_load() -> None:
    load = replace(LOAD, newer=(replace(FOUR_HUNDRED, signature=WEAK.signature),))
    before = (met(402, signature=WEAK.signature),)
    assert [poison.times_count(WEAK, before, load, step, Policy()) for step in (301, 302, 303)] == [0, 2, 0]


# ---- whole runs, of which a model says what happens to an attempt ----------------------------------------------------

Fails = Callable[[int], int | None]  # what was loaded -> the step at which it then fails; None: not at all


@dataclass
class Story:
    """A run whose checkpoints are ``steps``; ``fails`` says how attempts end, until one does well."""

    fails: Fails
    steps: list[int]
    life: Life
    loaded: list[int]

    def play(self, attempts_max: int = 20) -> Story:
        while self.life.phase is Phase.STARTING and len(self.loaded) < attempts_max and self._launched():
            step = self.fails(self.loaded[-1])
            if step is None:
                break
            falls(self.life, step)
        return self

    def _launched(self) -> bool:
        life = self.life
        life.on(AttemptSealed(life.state.attempt.number))
        condemned = life.last(ChooseResume).condemned
        there = [step for step in self.steps if condemned is None or step != condemned.step]
        if not there:
            life.on(NoneValid(life.state.attempt.number, "none of 1 may be resumed from"))
            return False
        self.steps = there
        self.loaded.append(max(there))
        life.choose(saved(max(there)))
        life.on(GangStarted(life.state.attempt.number))
        return True


def falls(life: Life, step: int) -> None:
    """A rank raises at this step, -1: before any; back to where the next attempt is being started, if there is one."""
    if step >= 0:
        life.first(step)
    life.exit(0, error=BUG)
    life.stopped()
    if life.phase is Phase.WAITING:
        life.due("backoff")
    if life.phase is Phase.CHECKING:
        life.due("check")


def lost(life: Life, checkpoint: CheckpointRef | None, last_step: int) -> None:
    """An attempt that came to that step and ended of nothing that can be known again; its saves stand."""
    life.choose(checkpoint)
    life.on(GangStarted(life.state.attempt.number))
    life.first((checkpoint.step if checkpoint else 0) + 1)
    life.mark(last_step)
    life.exit(0, code=None, signal=9)
    life.stopped()
    if life.phase is Phase.WAITING:
        life.due("backoff")
    if life.phase is Phase.CHECKING:
        life.due("check")


def story(fails: Fails, steps: list[int], *, resumed_well: bool, ran_to: int = 450) -> Story:
    """A run that began at zero; with ``resumed_well`` once more at 100; before ``fails`` begins."""
    life = Life()
    life.checked()
    life.on(AttemptSealed(0))
    lost(life, None, 150 if resumed_well else ran_to)
    if resumed_well:
        life.on(AttemptSealed(1))
        lost(life, saved(100), ran_to)
    life.on(CheckpointSeen(saved(max(steps))))
    return Story(fails, sorted(steps), life, [])


def bad_from(first: int, offset: int) -> Fails:
    return lambda loaded: loaded + offset if loaded >= first else None


@pytest.mark.parametrize("resumed_well", [True, False])
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_it_goes_back_to_the_newest_good_one_at_the_price_of_one_attempt_each(bad: int, resumed_well: bool) -> None:
    steps = [100, 200, 300, 400]
    told = story(bad_from(steps[-bad], 2), steps, resumed_well=resumed_well).play()
    assert told.loaded == [400, *steps[::-1][: bad + 1]]
    assert [one.step for one in told.life.state.checkpoints.poisoned] == steps[::-1][:bad]
    assert all(one.signature == "sig" for one in told.life.state.checkpoints.poisoned)


def test_what_is_told_of_the_second_one() -> None:
    told = story(bad_from(300, 2), [100, 200, 300, 400], resumed_well=True).play(3)
    said = told.life.state.attempts[-2].reason
    for words in (
        "within 10 steps of loading step 300, and before that step 400",
        "each time after fewer steps",
        "step 300 counts as poisoned",
    ):
        assert words in said, said
    first, second = told.life.state.checkpoints.poisoned[0], told.life.state.checkpoints.condemned
    assert second is not None
    assert ("2 times" in first.why, "once, as it did with newer checkpoints" in second.why) == (True, True)


def test_more_than_may_be_set_aside_ends_the_run_and_all_come_back() -> None:
    told = story(bad_from(0, 2), [50, 100, 200, 300, 400], resumed_well=True).play()
    assert told.loaded == [400, 400, 300, 200, 100]
    assert told.life.phase is Phase.FAILED
    told.life.says("the code is at fault", "step 400, step 300, step 200, which gangrun had set aside, is put back")
    assert told.life.last(EndJob).put_back == tuple(saved(step).path for step in (400, 300, 200))
    assert told.life.state.checkpoints.newest == saved(400)


def test_without_an_older_one_nothing_shows_that_it_was_the_checkpoints_and_all_come_back() -> None:
    told = story(bad_from(0, 2), [300, 400], resumed_well=True).play()
    assert told.loaded == [400, 400, 300]
    assert (told.life.phase, told.life.state.ending.failure) == (Phase.FAILED, Failure.SCRIPT)
    told.life.says("step 300 counts as poisoned", "none of 1", "step 400, which gangrun had set aside, is put back")
    assert told.life.last(EndJob).put_back == (saved(400).path,)


def test_what_the_run_came_past_stays_set_aside_whatever_ends_it() -> None:
    told = story(bad_from(400, 2), [300, 400], resumed_well=True).play()
    life = told.life
    assert told.loaded == [400, 400, 300]
    life.first(301)
    life.mark(900)
    life.on(CheckpointSeen(saved(800)))
    falls(life, 901)
    life.again(saved(800))
    life.on(GangStarted(life.state.attempt.number))
    falls(life, 901)
    assert life.phase is Phase.FAILED
    life.says("the code is at fault")
    assert "put back" not in life.reason
    assert [one.step for one in life.state.checkpoints.poisoned] == [400]


def test_what_was_saved_on_the_way_goes_too_and_comes_back_with_it() -> None:
    told = story(bad_from(400, 5), [300, 400], resumed_well=False)
    life = told.life
    life.again(saved(400))
    life.on(GangStarted(life.state.attempt.number))
    falls(life, 405)
    life.again(saved(403))
    life.on(GangStarted(life.state.attempt.number))
    falls(life, 405)
    life.on(AttemptSealed(life.state.attempt.number))
    condemned = life.last(ChooseResume).condemned
    assert condemned is not None
    assert (condemned.step, condemned.first_step) == (403, 400)
    life.choose(saved(300))
    life.on(GangStarted(life.state.attempt.number))
    falls(life, 302)
    life.on(AttemptSealed(life.state.attempt.number))
    second = life.last(ChooseResume).condemned
    assert second is not None
    assert (second.step, second.first_step, second.why[-30:]) == (300, 300, "as it did with newer checkpoints"[-30:])


def test_who_was_lost_came_as_far_as_what_the_next_one_loaded() -> None:
    told = story(bad_from(300, 2), [100, 200, 300, 400], resumed_well=False, ran_to=7).play()
    assert told.life.state.attempts[0].last_step == 7
    assert told.loaded == [400, 400, 300, 200]
    load = poison.load_of(told.life.state)
    assert load is not None
    assert [one.last_step for one in load.attempts] == [400, 402, 402, 302]


def test_after_a_step_back_what_is_saved_below_the_best_step_is_seen() -> None:
    life = story(bad_from(400, 2), [300, 400], resumed_well=True).play().life
    assert (life.state.checkpoints.best_step, life.state.checkpoints.disk_step) == (400, 300)
    life.on(CheckpointSeen(saved(350)))
    assert (life.state.checkpoints.best_step, life.state.checkpoints.disk_step) == (400, 350)
    life.ignored(CheckpointSeen(saved(340)), "not newer than step 350")


# ---- what an ordinary bug costs --------------------------------------------------------------------------------------


@given(
    st.sampled_from([-1, 0, 1]) | st.integers(2, 10),
    st.lists(st.integers(20, 400), min_size=2, max_size=6, unique=True),
)
def test_a_run_in_which_nothing_ever_worked_ends_after_three_attempts(offset: int, steps: list[int]) -> None:
    """New code that resumes from another run's checkpoints, and fails however far behind them."""
    life = Life()
    life.checked()
    fails = (lambda loaded: -1) if offset < 0 else bad_from(0, offset)
    life.on(AttemptSealed(0))
    life.choose(saved(max(steps)))
    life.on(GangStarted(0))
    life.state = replace(life.state, checkpoints=replace(life.state.checkpoints, steps_told=True))
    falls(life, fails(max(steps)) or -1)
    told = Story(fails, sorted(steps), life, [max(steps)]).play()
    assert told.life.phase is Phase.FAILED
    assert len(told.loaded) == 3, told.life.reason
    assert told.life.state.checkpoints.poisoned == (), "all is where it was"


@given(st.integers(-1, 1), st.lists(st.integers(20, 440), min_size=2, max_size=6, unique=True))
def test_a_loading_that_never_worked_ends_after_three_attempts(offset: int, steps: list[int]) -> None:
    """The run itself is fine, but what is loaded is loaded wrongly: it fails before it has made a whole step."""
    fails = (lambda loaded: -1) if offset < 0 else bad_from(0, offset)
    told = story(fails, steps, resumed_well=False).play()
    assert told.life.phase is Phase.FAILED
    assert len(told.loaded) == 3, told.life.reason
    assert told.life.state.checkpoints.poisoned == ()


@given(
    st.integers(402, 1000),
    st.lists(st.integers(20, 400), min_size=2, max_size=6, unique=True),
    st.booleans(),
)
def test_a_step_that_always_fails_ends_after_three_attempts(at: int, steps: list[int], resumed_well: bool) -> None:
    """A bad batch, or code that comes to run at that step: whatever is loaded, it is reached again."""
    told = story(lambda loaded: at, [*steps, 401], resumed_well=resumed_well, ran_to=401).play()
    assert told.life.phase is Phase.FAILED
    assert len(told.loaded) <= 3, told.life.reason
    assert told.life.state.checkpoints.poisoned == ()


def test_from_the_beginning_on_it_ends_after_two() -> None:
    life = Life().launching()
    life.on(GangStarted(0))
    falls(life, 42)
    told = Story(lambda loaded: 42, [30, 40], life, []).play()
    assert (told.life.phase, told.loaded) == (Phase.FAILED, [40])


@given(
    st.dictionaries(st.integers(1, 40).map(lambda k: 10 * k), st.integers(-1, 40), min_size=1, max_size=8),
    st.booleans(),
    st.integers(1, 4),
)
def test_whatever_happens_it_ends_within_its_budget_and_loses_nothing(
    ends: dict[int, int], resumed_well: bool, restarts: int
) -> None:
    """Any failure after any load: as many attempts as the budgets allow, and no more set aside than may be."""
    told = story(
        lambda loaded: ends[loaded] + loaded if ends[loaded] >= 0 else -1, list(ends), resumed_well=resumed_well
    )
    told.life.policy = Policy(restarts_max_count=restarts)
    told.play(40)
    life = told.life
    assert life.phase is Phase.FAILED
    assert len(told.loaded) <= 2 + 3 * restarts
    assert len(life.state.checkpoints.poisoned) <= poison.SET_ASIDE_MAX_COUNT
    back = {path.rpartition("-")[2] for path in life.last(EndJob).put_back}
    aside = {str(one.step) for one in life.state.checkpoints.poisoned}
    assert {*told.steps, *map(int, back | aside)} == set(ends), "each is there, is back, or is known to be set aside"
