"""One box: a GPU that breaks is left out, and its node is used without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.events import AgentJoined, AgentRejoined, FindingRaised, GangStarted, GangStartFailed, NodeChecked
from gangrun.core.evidence import ErrorReport, NodeFinding, RankExit
from gangrun.core.model import After, BrokenSlot, Cause, Phase, Shape
from gangrun.core.nodes import placement, standing
from gangrun.core.nodes.standing import StandingKind
from gangrun.core.recovery import error_rules
from tests.core.life import Life

ECC = ErrorReport("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "sig", "Traceback ...")
LOST = BrokenSlot(1, "gpu 1", "gpu 1: the GPU does not answer")


def box(ranks: int = 4, least: int = 0, spare: int = 0) -> Life:
    """A run on one box with a GPU for each rank, ``spare`` more, and ``least`` ranks that are enough."""
    life = Life(1, ranks)
    life.state = replace(life.state, shape=Shape(1, 1, ranks, 1, least))
    life.on(AgentJoined("n0", "i-n0", "b-n0", ranks + spare))
    return life


def running(ranks: int = 4, least: int = 0, spare: int = 0) -> Life:
    life = box(ranks, least, spare)
    life.on(NodeChecked("n0", True))
    life.again()
    life.on(GangStarted(0))
    return life


def broken(slot: int, check: str = "gpu_lost") -> NodeFinding:
    return NodeFinding("n0", check, True, f"gpu {slot}: the GPU does not answer", 5.0, place=f"gpu {slot}", slot=slot)


def slots(life: Life) -> list[int]:
    """Those with ranks, in the order of ranks."""
    life.again()
    return [seat.slot.index for seat in life.started().placement.seats]


def test_a_spare_gpu_takes_the_place_of_one_that_broke() -> None:
    life = running(spare=1)
    life.on(FindingRaised(broken(1)))
    assert life.phase is Phase.STOPPING
    life.stopped()
    life.says("gpu 1 gets no rank any more", "restarting in place")
    assert not life.state.health.excluded
    assert slots(life) == [0, 2, 3, 4] and life.started().placement.world_size == 4


def test_fewer_ranks_go_on_if_so_many_are_enough() -> None:
    life = running(least=3)
    life.on(FindingRaised(broken(1)))
    life.stopped()
    life.says("restarting in place with 1 rank less")
    assert slots(life) == [0, 2, 3]
    life.on(GangStarted(life.state.attempt.number))
    life.on(FindingRaised(broken(3)))
    life.stopped()
    assert life.phase is Phase.FAILED, "two are not enough"
    life.says("n0 has only 2 GPUs of the 3 needed", "gpu 1 is left out", "gpu 3 is left out")


def test_a_finding_about_the_whole_node_beside_it_counts_against_the_node() -> None:
    life = running(spare=2)
    life.on(FindingRaised(broken(1)))
    life.on(FindingRaised(replace(broken(-1, "driver"), place="node")))
    life.stopped()
    assert life.phase is Phase.FAILED and "n0" in life.state.health.excluded


def test_a_spare_gpu_that_breaks_stops_nobody() -> None:
    life = running(spare=1)
    life.on(FindingRaised(broken(4)))
    assert life.phase is Phase.RUNNING
    life.on(FindingRaised(broken(0)))
    life.stopped()
    assert life.phase is Phase.FAILED, "there is no spare left"
    life.says("3 GPUs of the 4 needed", "gpu 4")


def test_one_that_breaks_while_ranks_start_is_left_out_at_the_next_start() -> None:
    life = box(spare=1)
    life.on(NodeChecked("n0", True))
    life.again()
    assert life.phase is Phase.STARTING
    life.on(FindingRaised(broken(2)))
    life.stopped()
    assert slots(life) == [0, 1, 3, 4]


def test_the_checks_before_a_start_leave_it_out() -> None:
    life = box(spare=1)
    life.on(NodeChecked("n0", True, broken=(LOST,)))
    life.says("gpu 1 gets no rank (gpu 1: the GPU does not answer)")
    assert slots(life) == [0, 2, 3, 4]
    life.on(NodeChecked("n7", True, broken=(LOST,)))
    assert "n7" not in life.state.roster.nodes


def test_a_new_agent_on_the_same_boot_does_not_get_it_back() -> None:
    life = running(spare=1)
    life.on(FindingRaised(broken(1)))
    life.stopped()
    life.on(AgentRejoined("n0", "i2", "b-n0", 5))
    assert life.state.roster.nodes["n0"].whole_slots == (0, 2, 3, 4)
    life.on(AgentRejoined("n0", "i3", "another boot", 5))
    assert life.state.roster.nodes["n0"].whole_slots == (0, 1, 2, 3, 4)


def fell(life: Life, rank: int, error: ErrorReport = ECC) -> None:
    died = life.died(rank, error=error)
    life.on(replace(died, exit=error_rules.marked(died.exit)))
    for other in range(4):
        if other != rank:
            life.on(life.died(other, code=None, signal=15, by_us=True))
    life.stopped()


def test_what_only_the_gpu_of_one_rank_can_cause_leaves_that_gpu_out() -> None:
    life = running(spare=1)
    fell(life, 2)
    life.says("uncorrectable ECC", "no other rank shows it", "the GPU of rank 2 gets no rank any more")
    assert life.state.attempts[0].outcome == Cause.HARDWARE.value
    assert slots(life) == [0, 1, 3, 4] and not life.state.health.excluded


@pytest.mark.parametrize(
    "error",
    [
        replace(ECC, message="CUDA error: no CUDA-capable device is detected"),  # it may be what the user set
        replace(ECC, kind="ValueError"),  # the script's own words
    ],
)
def test_what_may_be_the_scripts_leaves_none_out(error: ErrorReport) -> None:
    life = running(spare=1)
    fell(life, 2, error)
    assert not life.state.roster.nodes["n0"].broken_slots


def test_what_all_ranks_say_leaves_none_out() -> None:
    life = running(spare=1)
    for rank in (0, 1):
        died = life.died(rank, error=ECC)
        life.on(replace(died, exit=error_rules.marked(died.exit)))
    life.stopped()
    assert not life.state.roster.nodes["n0"].broken_slots


def test_without_a_gpu_to_spare_it_is_as_before() -> None:
    life = running()
    fell(life, 2)
    assert not life.state.roster.nodes["n0"].broken_slots
    life = running()
    life.on(FindingRaised(replace(broken(1), slot=-1)))
    life.stopped()
    assert life.phase is Phase.FAILED and "n0" in life.state.health.excluded


def test_a_node_with_too_few_whole_slots_says_which_are_broken() -> None:
    life = box()
    node = replace(life.state.roster.nodes["n0"], broken_slots=(LOST,))
    found = standing.standing_of(node, {}, life.state.shape)
    assert found.kind is StandingKind.TOO_SMALL
    assert found.why == "has only 3 GPUs of the 4 needed: gpu 1 is left out (gpu 1: the GPU does not answer)"


def test_a_rank_that_nobody_holds_has_no_slot() -> None:
    life = running(spare=1)
    placed = life.started().placement
    assert placement.slot_of_rank(placed, 9) is None
    died = RankExit(9, "n0", 1, error=ECC, mark="gpu-ecc")
    life.on(replace(life.died(0), exit=died))
    life.stopped()
    assert not life.state.roster.nodes["n0"].broken_slots


def test_one_that_breaks_while_ranks_stop_and_nobody_will_be_judged_is_left_out() -> None:
    life = box(spare=1)
    life.on(NodeChecked("n0", True))
    life.again()
    life.on(GangStartFailed(0, "n0", "the port was taken", retry_free=True))
    assert life.state.underway.after is After.AGAIN
    life.on(FindingRaised(broken(2)))
    life.stopped()
    assert slots(life) == [0, 1, 3, 4]
