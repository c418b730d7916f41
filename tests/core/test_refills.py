"""Refills: never more than missing nodes, dropped when they are not wanted, and a wait for one is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core import invariants
from gangrun.core.actions import CancelRefill, EndJob, SubmitRefill, SubmitSuccessor
from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    CancelRequested,
    Event,
    FindingRaised,
    GangStarted,
    NodeChecked,
    NodeHeard,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    ProgressMarked,
    RefillEnded,
    RefillQueued,
    RefillUnknown,
    TermTaken,
)
from gangrun.core.model import Origin, Phase, Refill, RefillStage
from gangrun.core.nodes import refilling
from gangrun.core.policy import Policy, PolicyError
from gangrun.core.protocol.takeover import candidates
from tests.core.life import Life, fatal

WAIT = Policy(can_requeue=True, refill_wait_s=300.0)
SPARE = Policy(can_requeue=True, refill_wait_s=0.0)


def lose(life: Life, name: str = "n1") -> None:
    life.on(NodeSilent(name, life.now - 3))
    life.on(NodeLost(name, life.now - 3, "its host answers no other node"))


def holding(policy: Policy = WAIT, nodes: int = 3) -> Life:
    """A job that lost n1 and holds its other nodes for refill 1."""
    life = Life(nodes, 1, policy).running()
    lose(life)
    life.stopped()
    return life


def bring(life: Life, name: str = "m0", number: int = 1) -> None:
    life.on(AgentJoined(name, f"i-{name}", f"b-{name}", 1, refill=number))


def shrunk(spares: int = 0) -> Life:
    """A gang of two of three nodes, with a refill asked for in its start."""
    life = Life(3, 1, SPARE, at_least=2)
    life.names += [f"n{3 + k}" for k in range(spares)]
    life.running()
    lose(life)
    life.stopped()
    return life


def test_a_job_with_too_few_nodes_holds_the_others_until_a_refill_comes() -> None:
    life = holding()
    assert life.phase is Phase.WAITING
    asked = life.last(SubmitRefill)
    assert (asked.number, asked.exclude) == (1, ("n0", "n1", "n2"))
    life.says("holding n[0,2] up to 300 s for a refill; asking the scheduler for 1 more node (refill 1)")
    life.on(RefillQueued(1, "77", "Resources"))
    assert life.state.reason.endswith("s for refill 1 is job 77, which waits in the queue (Resources)")
    life.ignored(RefillQueued(1, "77", "Resources"), "known")
    life.on(RefillQueued(1, "77"))
    life.says("has its node")
    bring(life)
    assert life.phase is Phase.CHECKING
    life.on(NodeChecked("m0", True))
    life.again()
    life.on(GangStarted(1))
    assert life.started().placement.nodes == ("n0", "m0", "n2")
    assert (life.count(SubmitRefill), life.count(SubmitSuccessor)) == (1, 0)
    assert life.state.roster.refill_until == 0.0


def test_after_its_time_the_job_asks_for_another_one_as_it_would_have() -> None:
    life = holding()
    life.due("nodes")
    assert life.last(SubmitSuccessor).seq == 1
    assert life.last(CancelRefill).number == 1
    assert life.state.roster.refills == ()


def test_off_asks_for_none_and_spare_waits_for_none() -> None:
    assert holding(Policy(can_requeue=True)).count(SubmitRefill) == 0
    life = holding(SPARE)
    assert (life.count(SubmitRefill), life.count(SubmitSuccessor)) == (0, 1)
    assert holding(Policy(refill_wait_s=300.0)).count(SubmitRefill) == 0, "without a scheduler"


def test_a_gang_that_goes_on_smaller_gets_a_spare_and_its_checks_come_at_once() -> None:
    life = shrunk()
    assert (life.phase, life.last(SubmitRefill).number) == (Phase.STARTING, 1)
    life.again()
    life.on(GangStarted(1))
    bring(life)
    life.says("m0 joined as refill 1")
    assert life.state.roster.refills[0].stage is RefillStage.HERE
    life.on(RefillQueued(1, "77", "Resources"))
    assert (life.state.roster.refills[0].job, life.state.roster.refills[0].waits) == ("77", "")


def test_a_smaller_gang_grows_onto_the_node_of_a_refill() -> None:
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    bring(life)
    life.on(NodeChecked("m0", True), after_s=SPARE.grow_every_s)
    life.says("m0 passed its checks", "the run grows from 2 to 3 ranks at the next checkpoint")


def test_none_is_asked_for_while_a_spare_is_left() -> None:
    life = Life(2, 1, SPARE)
    life.names.append("n2")
    life.running()
    life.on(AgentJoined("n2", "i-n2", "b-n2", 1))
    life.state = replace(life.state, roster=replace(life.state.roster, expected=("n0", "n1", "n2")))
    lose(life)
    life.stopped()
    assert life.count(SubmitRefill) == 1, "the last spare took its place, so a new one is asked for"
    assert refilling.missing_count(life.state, len(refilling.held(life.state, life.now))) == 1


def test_two_nodes_that_go_are_two_refills_and_one_that_comes_back_takes_one_away() -> None:
    life = Life(4, 1, WAIT).running()
    lose(life, "n1")
    lose(life, "n2")
    life.stopped()
    assert [one.number for one in life.state.roster.refills] == [1, 2] or life.count(SubmitRefill) == 2
    health = replace(life.state.health, excluded={})
    life.state = replace(life.state, health=health)  # the cap left one of them in the job
    life.on(NodeHeard("n2"))
    assert [one.number for one in life.state.roster.refills] == [1]
    life.says("refill 2 is cancelled: no node is missing that they could bring")
    assert life.last(CancelRefill).number == 2


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_refill_that_ends_is_asked_for_three_times_at_most_and_never_after_a_person_ended_it(cancelled: bool) -> None:
    life = holding()
    for number in (1,) if cancelled else (1, 2, 3):
        assert life.phase is Phase.WAITING
        assert life.last(SubmitRefill).number == number
        life.on(RefillEnded(number, "Slurm refused it: no", cancelled=cancelled))
    life.says("no refill comes")
    assert life.last(SubmitSuccessor).seq == 1
    assert life.count(SubmitRefill) == (1 if cancelled else 3)
    life.ignored(RefillEnded(9, "it was cancelled"), "nobody wanted any more")
    life.ignored(RefillQueued(9, "77"), "nobody wants any more")


def test_an_unknown_answer_is_asked_again_under_the_same_number_for_as_long_as_a_node_is_missing() -> None:
    """A controller that is down for minutes costs no refill: its next answer counts."""
    life = holding()
    for _ in range(20):
        life.on(RefillUnknown(1, "sbatch timed out"))
        assert (life.phase, life.last(SubmitRefill).number) == (Phase.WAITING, 1)
    life.due("nodes")
    assert life.last(CancelRefill).number == 1
    assert life.last(SubmitSuccessor).seq == 1
    life.ignored(RefillUnknown(1, "late"), "not being asked for")


def refused(life: Life, *numbers: int) -> None:
    for number in numbers:
        assert life.last(SubmitRefill).number == number
        life.on(RefillEnded(number, "Slurm refused it: QOSMaxSubmitJobPerUserLimit"))


def test_after_three_that_failed_one_is_asked_for_now_and_then() -> None:
    """What Slurm refuses now it may take later, and a job lasts for weeks."""
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    refused(life, 1, 2, 3)
    life.on(ProgressMarked(1, 10), after_s=refilling.PAUSE_S - 1)
    assert life.count(SubmitRefill) == 3
    life.on(ProgressMarked(1, 20), after_s=1)
    life.says("asking the scheduler for 1 more node (refill 4)")
    refused(life, 4)
    life.on(ProgressMarked(1, 30))
    assert life.count(SubmitRefill) == 4


def test_after_a_person_has_ended_one_none_is_asked_for_however_long_the_job_lasts() -> None:
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    life.on(RefillEnded(1, "job 77 ended (CANCELLED)", cancelled=True))
    life.on(ProgressMarked(1, 10), after_s=10 * refilling.PAUSE_S)
    assert life.count(SubmitRefill) == 1


def test_nodes_that_fail_their_checks_are_not_fetched_one_after_the_other() -> None:
    """Where all nodes outside the job lack a mount, say."""
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    for number in (1, 2, 3):
        bring(life, f"m{number}", number)
        life.on(NodeChecked(f"m{number}", False, "/data is not mounted"))
        assert life.last(CancelRefill).number == number
    assert life.count(SubmitRefill) == 3
    life.on(ProgressMarked(1, 10), after_s=refilling.PAUSE_S)
    bring(life, "m4", 4)
    life.on(NodeChecked("m4", True))
    assert life.state.roster.refill_failures_count == 0
    lose(life, "m4")
    assert life.last(SubmitRefill).number == 5, "it was good, so the next one is asked for at once"


def test_a_refill_whose_node_is_gone_is_cancelled_and_its_node_never_used_again() -> None:
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    bring(life)
    life.on(NodeChecked("m0", True))
    lose(life, "m0")
    assert life.last(CancelRefill).number == 1
    assert life.last(SubmitRefill).number == 2
    life.on(NodeHeard("m0"))
    assert "m0" not in refilling.held(life.state, life.now)
    assert [one.number for one in life.state.roster.refills] == [2]


def test_what_the_scheduler_ended_is_not_used_and_not_excluded() -> None:
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    bring(life)
    life.on(RefillEnded(1, "job 77 ended (CANCELLED)", cancelled=True))
    node = life.state.roster.nodes["m0"]
    assert (node.taken, node.checked) == ("job 77 ended (CANCELLED)", False)
    assert (life.phase, life.state.roster.refills, life.count(SubmitRefill)) == (Phase.RUNNING, (), 1)


def test_words_that_slurm_says_to_a_refill_do_not_concern_the_job() -> None:
    life = shrunk()
    life.again()
    life.on(GangStarted(1))
    bring(life)
    words: tuple[Event, ...] = (Notice(NoticeKind.UNKNOWN, 30.0, asking=True), CancelRequested("SIGINT"))
    for seq, event in enumerate(words):
        life.on(event, origin=Origin("j", "m0", "b-m0", "i-m0", seq + 1))
        life.says("refill 1 on m0 was told to end, which does not concern this job")
    assert life.phase is Phase.RUNNING


def test_only_who_is_wanted_joins() -> None:
    life = holding()
    life.ignored(AgentJoined("m0", "i", "b", 1, refill=7), "refill 7 is not wanted")
    bring(life)
    life.ignored(AgentJoined("m1", "i", "b", 1, refill=1), "refill 1 has brought m0 already")
    life.on(AgentRejoined("m0", "i2", "b-m0", 1, refill=1))
    assert refilling.unwanted(life.state, 1, "n0", ("n0", "n1")) != ""
    assert life.state.roster.nodes["m0"].refill == 1


def test_a_refill_has_no_voice_in_who_is_supervisor() -> None:
    life = holding()
    bring(life)
    assert not life.state.roster.nodes["m0"].counts
    assert candidates(life.state.roster.nodes, "n0") == ("n0", "n2")


def taken(life: Life, job: str = "j") -> None:
    life.on(TermTaken(life.state.term + 1, job, (), (), life.state.attempt.number, ("n0", "n1", "n2")))


def test_a_new_supervisor_asks_again_and_one_of_another_job_cancels() -> None:
    life = holding()
    life.on(RefillQueued(1, "77", "Resources"))
    taken(life)
    assert (life.last(SubmitRefill).number, life.last(SubmitRefill).job) == (1, "77")
    bring(life)
    roster = life.state.roster
    life.state = replace(life.state, roster=replace(roster, refills=(replace(roster.refills[0], job=""),)))
    asked = life.count(SubmitRefill)
    taken(life)
    assert life.count(SubmitRefill) == asked, "one that is here and has no number yet would be made twice"
    taken(life, "another")
    assert life.last(CancelRefill).number == 1
    assert (life.state.roster.refills, life.state.roster.refills_count) == ((), 1)


def test_another_job_has_none_to_cancel_if_there_were_none() -> None:
    life = Life(2, 1, WAIT).running()
    taken(life, "another")
    assert life.count(CancelRefill) == 0


def test_the_end_of_the_job_is_the_end_of_its_refills() -> None:
    life = holding()
    life.cancel()
    assert isinstance(life.last(EndJob), EndJob)
    assert life.state.roster.refills == ()


def test_excluded_and_broken_nodes_are_missing_too() -> None:
    life = Life(2, 1, SPARE)
    life.names.append("n2")
    life.running()
    life.on(AgentJoined("n2", "i-n2", "b-n2", 1))
    life.state = replace(life.state, roster=replace(life.state.roster, expected=("n0", "n1", "n2")))
    life.on(FindingRaised(fatal("n2")))
    assert life.last(SubmitRefill).number == 1


def test_more_refills_than_missing_nodes_break_an_invariant() -> None:
    life = Life(2, 1, WAIT).running()
    refills = (Refill(1, life.now),)
    more = replace(life.state, roster=replace(life.state.roster, refills=refills, refills_count=1))
    assert invariants.check(life.state, more, WAIT) == ("I7: 1 refills are on their way, and 0 nodes are missing",)


def test_a_wait_is_not_negative() -> None:
    with pytest.raises(PolicyError, match="refill_wait_s = -1"):
        Policy(refill_wait_s=-1)
