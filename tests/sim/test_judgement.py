"""Ranks that fail with error texts in simulated worlds: the right node goes, no other does, and moves have outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import Phase, RunState
from gangrun.sim import FaultPlan, InvariantBroken, Kind, Script, Setup, World
from gangrun.sim.body.rank_failures import ALL, BUGS, ERROR_TEXTS, MACHINE, OPEN, PASSING, REMARKS
from gangrun.sim.sweep import failing
from tests.core.judgement.case import INNOCENT

NODES_COUNT = 4
SEEDS = range(400)
FEW = range(60)
SHARED = {"local disk", "mount gone"}  # on all nodes it is a shared service, which may come back


def world(plan: FaultPlan, seed: int = 1, *, spares: int = 1, settle_s: float = 0.3) -> World:
    setup = Setup.of(NODES_COUNT, ranks_per_node=2, script=Script(steps_count=40, victims_after_s=3.0), requeue=True)
    policy = replace(setup.policy, settle_s=settle_s)
    return World(replace(setup, spares_count=spares, pool_count=NODES_COUNT + 4, policy=policy), plan, seed)


def ran(one: World) -> RunState:
    state = one.run().state
    assert state is not None
    return state


@pytest.mark.parametrize("rank", [ALL, 1])
@pytest.mark.parametrize("text", MACHINE)
def test_a_node_on_which_ranks_show_what_only_a_machine_causes_is_left_out_at_once(text: str, rank: int) -> None:
    plan = FaultPlan().fail_at(12.0, Kind.FAIL_ON_NODE, node=1, rank=rank, amount=3.5, text=text)
    state = ran(world(plan))
    assert (state.phase, set(state.health.excluded)) == (Phase.SUCCEEDED, {"n0001"}), state.reason
    assert len(state.attempts) == 2


@pytest.mark.parametrize("amount", [0.5, 5.5])
@pytest.mark.parametrize("text", [*MACHINE, *OPEN, *BUGS])
def test_what_all_nodes_show_at_once_ends_the_run_and_excludes_nobody(text: str, amount: float) -> None:
    for seed in range(3):  # who falls first changes
        state = ran(world(FaultPlan().fail_at(0.0, Kind.FAIL_ALL, amount=amount, text=text), seed))
        assert (state.phase, state.health.excluded) == (Phase.FAILED, {}), state.reason
        assert len(state.attempts) <= (7 if text in SHARED else 2)


@pytest.mark.parametrize("text", PASSING)
def test_what_passes_is_waited_for(text: str) -> None:
    state = ran(world(FaultPlan().fail_at(0.0, Kind.FAIL_ALL, amount=0.5, for_s=20.0, text=text)))
    assert (state.phase, state.health.excluded) == (Phase.SUCCEEDED, {}), state.reason


@pytest.mark.parametrize("text", ["value error", "exit 17", "segv", "device assert"])
@pytest.mark.parametrize("line", REMARKS)
def test_a_line_of_an_innocent_node_tells_nothing_while_a_rank_on_another_fails(line: str, text: str) -> None:
    plan = FaultPlan().fail_at(0.0, Kind.REMARK, node=2, text=line)
    state = ran(world(plan.fail_at(0.0, Kind.FAIL_RANK, rank=1, amount=3.5, text=text)))
    assert (state.phase, state.health.excluded) == (Phase.FAILED, {}), state.reason


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("text", ["exit 17", "segv", "runtime error", "illegal access"])
def test_a_rank_that_falls_wherever_it_runs_clears_the_node_that_it_fell_on_first(text: str, spares: int) -> None:
    plan = FaultPlan().fail_at(0.0, Kind.FAIL_RANK, rank=3, amount=0.5, text=text)
    state = ran(world(plan, spares=spares))
    assert (state.phase, state.health.excluded) == (Phase.FAILED, {}), state.reason
    assert "n0001 is innocent" in state.reason
    assert len(state.attempts) == 3


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("text", ["exit 17", "segv", "runtime error", "illegal access"])
def test_a_node_on_which_any_rank_falls_is_left_out_after_a_move(text: str, spares: int) -> None:
    plan = FaultPlan().fail_at(0.0, Kind.FAIL_ON_NODE, node=1, rank=0, amount=0.5, text=text)
    state = ran(world(plan, spares=spares))
    assert (state.phase, set(state.health.excluded)) == (Phase.SUCCEEDED, {"n0001"}), state.reason
    assert "n0001" not in state.attempts[-1].nodes


def test_remarks_are_lines_that_healthy_ranks_write() -> None:
    assert all(any(line in known for known in INNOCENT) for line in REMARKS.values())


def test_a_rank_is_judged_by_what_it_wrote_before_sigterm_ended_it() -> None:
    """Its destructors take longer than the settle."""
    one = world(FaultPlan().fail_at(0.0, Kind.FAIL_ON_NODE, node=1, rank=0, amount=3.5, text="ecc"))
    one.run()
    ends = [record.event["exit"] for record in one.checker.records if record.kind == "RankExited"]
    wrote = [end for end in ends if end.get("written_at")]
    assert wrote and all(end["written_at"] < end["at"] for end in wrote)


def broken_in(seeds: range) -> dict[int, str]:
    found = {}
    for seed in seeds:
        try:
            failing(seed).run()
        except InvariantBroken as broken:
            found[seed] = str(broken)
    return found


def test_no_promise_breaks_when_ranks_fail() -> None:
    assert broken_in(FEW) == {}


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_no_promise_breaks_in_many_worlds_in_which_ranks_fail() -> None:
    found = broken_in(SEEDS)
    assert not found, f"{len(found)} of {len(SEEDS)} seeds: {[*found][:20]}\n" + "\n".join([*found.values()][:3])


def test_every_text_is_one_that_the_judgement_knows_or_gives_no_reason() -> None:
    assert set(ERROR_TEXTS) == {*MACHINE, *OPEN, *BUGS, *PASSING}
