"""A step that is whole in the memory of nodes is loaded there, or goes through the disk: STARTING decides which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import BringSteps, ChooseResume, EndJob, SealAttempts, StartGang
from gangrun.core.checkpoints import flush_to_disk, poison
from gangrun.core.checkpoints.memory import (
    Holding,
    Offered,
    lacking_of,
    may_share,
    newest_whole,
    offered,
    with_fewer_copies,
)
from gangrun.core.events import (
    AttemptSealed,
    FlushDue,
    GangStarted,
    NodeHeard,
    NodeLost,
    NodeSilent,
    NoneValid,
    ResumeChosen,
    StepHeld,
    TermTaken,
)
from gangrun.core.model import (
    AttemptRecord,
    CheckpointRef,
    HeldStep,
    Level,
    MemoryStep,
    Phase,
    Poisoned,
    Savers,
    StartStage,
)
from gangrun.core.policy import Policy
from tests.core.life import Life, saved

POLICY = Policy(keeps_memory=True)
STEP = MemoryStep(0, 30, "ab")
SHARED = replace(STEP, is_shared=True)
BOTH = ("n0", "n1")


def sealing(policy: Policy = POLICY, at_least: int | None = None) -> Life:
    """Attempt 0 fell, and attempt 1 begins."""
    life = Life(policy=policy, at_least=at_least).running(saved(10))
    life.exit(0)
    life.stopped()
    assert life.phase is Phase.STARTING and life.state.attempt.number == 1
    return life


def holding(at_least: int | None = None, nodes: tuple[str, ...] = BOTH) -> Life:
    """These nodes have step 30 whole."""
    life = sealing(at_least=at_least)
    life.on(StepHeld(1, STEP, nodes))
    life.on(AttemptSealed(1))
    assert life.state.underway.stage is StartStage.CHOOSING
    return life


def from_memory() -> Life:
    life = holding()
    life.choose(saved(10))
    life.on(GangStarted(1))
    return life


def test_ranks_load_the_step_that_all_their_nodes_have() -> None:
    life = sealing()
    assert life.last(SealAttempts) == SealAttempts(1, BOTH), "these nodes will have ranks"
    life.ignored(StepHeld(2, STEP, BOTH), "attempt 2 is not being sealed")
    life.on(StepHeld(1, STEP, BOTH))
    life.says("n[0-1] have step 30 whole in memory")
    life.on(AttemptSealed(1))
    life.ignored(StepHeld(1, STEP, BOTH), "attempt 1 is not being sealed")
    life.choose(saved(10))
    assert life.started().resume == CheckpointRef(30, "", Level.COMPLETE, Savers.CHECKPOINTER, STEP)
    life.says("resuming from step 30, which n[0-1] have in memory (without it: nothing was saved yet)")
    record, known = life.state.attempts[-1], life.state.checkpoints
    assert (record.resumed_from_step, record.memory) == (30, STEP)
    assert (known.newest, known.best_step, known.disk_step, known.held) == (saved(10), 10, 10, None)
    assert known.savers is Savers.CHECKPOINTER


def test_one_node_has_it() -> None:
    life = Life(1, policy=POLICY).running()
    life.exit(0)
    life.stopped()
    life.on(StepHeld(1, STEP, ("n0",)))
    life.says("n0 has step 30 whole in memory")
    life.again()
    life.says("which n0 has in memory")
    assert life.state.checkpoints.disk_step == -1


def test_ranks_share_the_step_that_their_nodes_have_together() -> None:
    life = sealing()
    life.on(StepHeld(1, SHARED, BOTH))
    life.says("n[0-1] together have step 30 whole in memory")
    life.on(AttemptSealed(1))
    life.choose(saved(10))
    assert life.started().resume == CheckpointRef(30, "", Level.COMPLETE, Savers.CHECKPOINTER, SHARED)
    life.says("resuming from step 30, which n[0-1] together have in memory")


@pytest.mark.parametrize(("nodes", "has"), [(("n0", "n1", "n2"), "n2 has"), (("n0", "n1", "n2", "n3"), "n[2-3] have")])
def test_a_part_of_it_on_a_node_without_ranks_has_it_written_to_the_disk(nodes: tuple[str, ...], has: str) -> None:
    life = sealing()
    life.on(StepHeld(1, SHARED, nodes))
    life.on(AttemptSealed(1))
    life.choose(saved(10))
    life.says(f"step 30 is written to disk from memory first ({has} a part of it, and will have no ranks)")
    assert life.actions == (SealAttempts(2),)


def held_by(*nodes: str, files: str = "abc", sharable: bool = True) -> dict[str, list[Holding]]:
    """Each of these nodes has one file, and all know of all."""
    told = zip(nodes, files, strict=True)
    return {node: [Holding(30, "ab", (file,), len(files), is_sharable=sharable)] for node, file in told}


def test_a_step_is_shared_if_nodes_that_know_it_have_all_of_it() -> None:
    all_three = held_by("n0", "n1", "n2")
    step = newest_whole(all_three, -1)
    assert step is not None
    assert lacking_of(all_three, step, all_three) == ()
    assert lacking_of(all_three, step, ("n0", "n1")) is None, "one file is elsewhere"
    assert lacking_of(all_three, step, ("n4", *all_three, "n3")) == ("n3", "n4"), "they know nothing of it"
    assert lacking_of(held_by("n0", "n1", "n2", sharable=False), step, all_three) is None
    other = {**all_three, "n2": [Holding(30, "cd", ("c",), 3, is_sharable=True)]}
    assert lacking_of(other, step, all_three) is None, "another save of the same step"
    unsigned = {**all_three, "n3": [Holding(30, "ab", ("a",), 0)]}
    assert lacking_of(unsigned, step, unsigned) == ("n3",), "without the manifest, what it has is not used"


def began(number: int, memory: MemoryStep | None = None, last_step: int = 31, nodes: str = "n0 n1") -> AttemptRecord:
    return AttemptRecord(number, "j", tuple(nodes.split()), 1.0, ended=2.0, last_step=last_step, memory=memory)


def test_ranks_share_unless_that_failed_twice() -> None:
    attempts = [began(0), began(1, SHARED, -1), began(2, STEP, -1), began(3, SHARED, 40)]
    assert may_share(attempts)
    assert not may_share([*attempts, began(4, SHARED, -1)])


@pytest.mark.parametrize(
    ("attempts", "is_fewer"),
    [
        ([], False),
        ([began(0), began(1)], False),
        ([began(0), began(1, STEP)], False),
        ([began(0), began(1, STEP, nodes="n0")], True),  # both had all of it
        ([began(0), began(1, SHARED)], False),
        ([began(0), began(1, SHARED, nodes="n0 n2")], True),
        ([began(0), began(1, SHARED, nodes="n0")], True),
        ([began(0), began(1, replace(SHARED, lacking=("n2",)), nodes="n0 n1 n2")], False),  # it grew
        ([began(0), began(1, replace(SHARED, lacking=("n1",)))], True),  # it came back
        ([began(1, SHARED)], True),  # who saved it is not known any more
    ],
)
def test_a_step_has_fewer_copies_where_a_node_that_saved_it_has_no_ranks(
    attempts: list[AttemptRecord], is_fewer: bool
) -> None:
    assert with_fewer_copies(attempts) == (attempts[-1].memory if is_fewer else None)


def test_a_step_that_a_spare_was_sent_is_written_to_disk_while_its_ranks_train() -> None:
    life = Life(3, policy=POLICY, at_least=2).running(saved(10))
    life.on(NodeLost("n1", life.now, "its power is gone"))
    life.stopped()
    shared = replace(SHARED, lacking=("n2",))
    life.on(StepHeld(1, shared, ("n0", "n2")))
    life.says("n0 has step 30 whole in memory")
    life.on(AttemptSealed(1))
    life.choose(saved(10))
    assert life.started().resume == CheckpointRef(30, "", Level.COMPLETE, Savers.CHECKPOINTER, shared)
    life.says("resuming from step 30, which n0 has in memory")
    life.on(GangStarted(1))
    life.on(FlushDue(1, 30))
    assert life.last(BringSteps) == BringSteps(1, 10, flush_to_disk.END_WITHIN_S, ("n0", "n2"), flush=True)
    life.says("step 30 is only in memory, and a node that saved it no longer has its part: gangrun writes it to disk")
    life.on(FlushDue(1, 34))
    life.says("step 34 is only in memory: gangrun")


def test_a_spare_that_has_nothing_of_it_may_be_lost_before_the_launch() -> None:
    life = Life(3, policy=POLICY, at_least=2).running(saved(10))
    life.exit(0)
    life.stopped()
    life.on(StepHeld(1, replace(SHARED, lacking=("n2",)), ("n0", "n1", "n2")))
    life.on(AttemptSealed(1))
    life.on(NodeLost("n2", life.now, "its power is gone"))
    life.choose(saved(10))
    life.says("resuming from step 30, which n[0-1] together have in memory")


@pytest.mark.parametrize("step", [30, 31])
def test_what_the_disk_has_by_then_is_taken_from_there(step: int) -> None:
    life = holding()
    life.choose(saved(step))
    assert life.started().resume == saved(step)
    assert life.state.attempts[-1].memory is None


def test_a_node_without_it_has_it_written_to_the_disk_before_another_attempt() -> None:
    life = holding(nodes=("n0",))
    life.choose(saved(10))
    life.says("step 30 is written to disk from memory first (not in the memory of n1, where ranks will be)")
    assert life.actions == (SealAttempts(2),), "a number of its own: staging of attempt 0 is sealed"
    assert life.count(StartGang) == 1
    assert life.state.checkpoints.held is None
    assert offered(life.state.attempts, 2) == Offered(0), "attempt 1 never began"


def test_if_nothing_on_disk_may_be_used_it_is_written_there_first() -> None:
    life = holding()
    life.on(NoneValid(1, "step 10: a checksum does not hold"))
    life.says("step 30 is written to disk from memory first (step 10: a checksum does not hold)")
    assert life.actions == (SealAttempts(2),)
    life.on(AttemptSealed(2))
    life.on(NoneValid(2, "step 30 could not be read"))
    assert life.phase is Phase.FAILED


def test_an_attempt_that_never_begins_loses_it_not() -> None:
    """Nodes are missing at the launch. Later the attempt has another number, as staging of those before 1 is sealed."""
    life = holding()
    life.on(NodeSilent("n1", life.now))
    life.choose(saved(10))
    assert life.phase is Phase.WAITING and life.state.checkpoints.held == HeldStep(STEP, BOTH)
    assert life.state.checkpoints.brought_attempt < 0, "a job that ends now has it written to the disk"
    life.on(NodeHeard("n1"))
    assert life.actions == (SealAttempts(2, BOTH),)
    assert life.state.checkpoints.held is None


@pytest.mark.parametrize(("keeps_memory", "number"), [(True, 2), (False, 1)])
def test_what_memory_did_not_tell_is_asked_for_again_before_an_attempt_whose_staging_is_open(
    keeps_memory: bool, number: int
) -> None:
    """Who has it was away as attempt 1 sealed all before it, and comes back."""
    life = sealing(replace(POLICY, keeps_memory=keeps_memory))
    life.on(NodeSilent("n1", life.now))
    life.on(AttemptSealed(1))
    life.choose(saved(10))
    assert life.phase is Phase.WAITING
    life.on(NodeHeard("n1"))
    assert life.last(SealAttempts).attempt == number


@pytest.mark.parametrize("stage", [StartStage.SEALING, StartStage.CHOOSING])
def test_a_new_supervisor_has_it_written_to_the_disk(stage: StartStage) -> None:
    life = sealing()
    life.on(StepHeld(1, STEP, BOTH))
    if stage is StartStage.CHOOSING:
        life.on(AttemptSealed(1))
    life.on(TermTaken(2, "j", (), (), 1))
    assert life.last(SealAttempts) == SealAttempts(1)
    assert life.state.checkpoints.held is None
    life.on(AttemptSealed(1))
    assert life.state.checkpoints.brought_attempt == 0


def test_what_it_began_from_is_offered_until_it_has_steps_of_its_own() -> None:
    life = from_memory()
    assert offered(life.state.attempts, 2) == Offered(1, STEP)
    life.exit(1, code=None, signal=9)
    life.stopped()
    life.again(saved(30))
    assert life.state.attempts[-1].memory is None
    assert offered(life.state.attempts, 3) == Offered(2)


def test_a_job_that_ends_has_it_written_to_the_disk() -> None:
    life = from_memory()
    life.cancel()
    life.stopped()
    assert life.last(BringSteps).attempt == 1 and life.count(EndJob) == 0


def test_who_loaded_from_memory_poisons_nothing_yet() -> None:
    """What the next attempt loads is on disk, where it can be set aside."""
    life = from_memory()
    assert (found := poison.load_of(life.state)) is not None and not found.is_on_disk
    life.exit(1, code=None, signal=9)
    life.stopped()
    life.again(saved(30))
    assert (found := poison.load_of(life.state)) is not None and found.is_on_disk


@pytest.mark.parametrize("what", ["the setting", "a request", "a poisoned one"])
def test_all_else_goes_through_the_disk(what: str) -> None:
    life = Life(policy=POLICY if what != "the setting" else Policy()).running(saved(10))
    known = life.state.checkpoints
    if what == "a request":
        known = replace(known, resume_request="10")
    if what == "a poisoned one":
        known = replace(known, condemned=Poisoned(10, "/c/step-10", "sig", 0, "", ""))
    life.state = replace(life.state, checkpoints=known)
    life.exit(0)
    life.stopped()
    assert life.last(SealAttempts) == SealAttempts(1)


def test_the_choice_asks_for_the_disk_as_always() -> None:
    assert holding().last(ChooseResume) == ChooseResume(1, "auto", 10)
    life = holding()
    life.on(ResumeChosen(1, None, "nothing there"))
    assert life.state.attempts[-1].resumed_from_step == 30


def test_the_sentence_says_how_many_have_it() -> None:
    assert "n0 has step 30" in flush_to_disk.sentence(StepHeld(1, STEP, ("n0",)))
