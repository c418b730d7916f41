"""A person drains a node: its ranks move off it at the next checkpoint, and it gets none any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.actions import SaveGang, StopGang, SubmitSuccessor
from gangrun.core.events import AgentJoined, AttemptSealed, DrainRequested, FindingRaised, GangStarted, NodeChecked
from gangrun.core.evidence import NodeFinding
from gangrun.core.model import After, Phase
from gangrun.core.policy import Policy
from tests.core.life import Life


def training(spares: int = 0, *, requeue: bool = False, least: int | None = None, observe: bool = False) -> Life:
    life = Life(3, 1, Policy(can_requeue=requeue, observe=observe), at_least=least).running()
    for k in range(spares):
        life.on(AgentJoined(f"s{k}", "i", "b", 1))
        life.on(NodeChecked(f"s{k}", True))
    return life


def drain(node: str = "n1") -> DrainRequested:
    return DrainRequested(node, "ada", "k1")


def test_a_spare_takes_its_place_at_the_next_checkpoint() -> None:
    life = training(spares=1)
    life.on(drain())
    life.says("ada drains n1", "s0 takes the place of n1", "asking all ranks to save now")
    assert life.last(SaveGang).key == "k1"
    assert life.phase is Phase.RUNNING
    life.save(10)
    life.says("ada drains n1: s0 takes the place of n1")
    assert life.phase is Phase.STOPPING and not life.last(StopGang).checkpoint_first, "they have just saved"
    life.stopped()
    life.says("the restart budget does not count")
    life.again()
    assert life.started().placement.nodes == ("n0", "s0", "n2")
    life.on(GangStarted(life.state.attempt.number))
    life.save(20)
    assert life.phase is Phase.RUNNING, "nothing is left to be done"


def test_fewer_nodes_go_on_if_there_is_no_spare() -> None:
    life = training(least=2)
    life.on(drain())
    life.says("continues with fewer nodes")
    life.save(10)
    life.stopped()
    life.again()
    assert life.started().placement.nodes == ("n0", "n2")


def test_the_next_job_goes_without_it_if_too_few_are_left() -> None:
    life = training(requeue=True)
    life.on(drain())
    life.says("to the next job")
    life.save(10)
    life.stopped()
    assert life.last(SubmitSuccessor).exclude == ("n1",)


def test_it_is_refused_if_the_run_would_end_by_it() -> None:
    life = training()
    life.refused(drain(), "n1 cannot be drained", "no other node")
    life.refused(drain("n9"), "n9 cannot be drained", "it is not in this job, which has n[0-2]")
    assert not life.state.health.excluded


def test_who_only_observes_drains_nothing() -> None:
    training(spares=1, observe=True).refused(drain(), "only observes")


def test_a_spare_that_is_drained_takes_nobodys_place() -> None:
    life = training(spares=1)
    life.on(drain("s0"))
    life.says("s0", "gets no rank any more")
    life.on(drain("s0"))
    life.says("excluded already", "drained by ada")
    life.exit(1, signal=9, code=None)
    life.stopped()
    life.again()
    assert life.started().placement.nodes == ("n0", "n1", "n2")


def test_while_ranks_start_it_is_left_at_the_next_checkpoint() -> None:
    life = Life(3, 1, at_least=2).launching()
    life.on(drain())
    life.says("its ranks move at the next checkpoint or restart")
    life.on(GangStarted(0))
    life.save(10)
    assert life.state.underway.after is After.MOVE


def test_before_ranks_start_it_gets_none() -> None:
    life = Life(3, 1, at_least=2)
    life.checked()
    life.on(drain())
    life.says("gets no rank any more")
    life.on(AttemptSealed(0))
    life.choose()
    assert life.started().placement.nodes == ("n0", "n2")


def test_no_cap_counts_what_people_drain() -> None:
    life = training(spares=3)
    for k in range(3):
        life.on(drain(f"s{k}"))
    life.on(FindingRaised(NodeFinding("n1", "gpu lost", True, "lost", 5.0)))
    life.policy = replace(life.policy, can_requeue=True)
    life.stopped()
    life.says("n1 excluded")


def test_a_spare_that_is_lost_meanwhile_leaves_it_in_use() -> None:
    life = training(spares=1)
    life.on(drain())
    life.on(FindingRaised(NodeFinding("s0", "gpu lost", True, "lost", 5.0)))
    life.save(10)
    assert life.phase is Phase.RUNNING
    life.on(drain())
    assert life.answer.outcome.value == "refused"


@pytest.mark.parametrize("move", [True, False])
def test_who_keeps_suspects_is_rid_of_a_drained_node_all_the_same(move: bool) -> None:
    life = training(spares=1)
    life.policy = replace(life.policy, move_suspects=move)
    life.on(drain())
    life.save(10)
    assert life.phase is Phase.STOPPING


def test_a_suspect_that_can_be_replaced_has_all_ranks_save_at_once() -> None:
    life = training(spares=1)
    poor = NodeFinding("n1", "gpu_remapped", False, "a row waits", 5.0, poor=True, needs="reset", place="gpu 0")
    life.on(FindingRaised(poor))
    life.says("replaced by s0 at the next checkpoint, which all ranks are asked for now")
    assert life.count(SaveGang) == 1
    life.on(FindingRaised(replace(poor, sentence="two rows wait")))
    assert life.count(SaveGang) == 1, "once"
