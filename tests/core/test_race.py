"""Ranks of a slow node run on a spare, and their speed there tells whose slowness it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangrun.core.actions import SaveGang, StopGang
from gangrun.core.events import (
    AgentJoined,
    AlertSeen,
    CancelRequested,
    CheckpointSeen,
    FindingRaised,
    GangStarted,
    GangStartFailed,
    NodeChecked,
    NodeLost,
    ResumeRequested,
    StepsTimed,
    TermTaken,
)
from gangrun.core.evidence import Alert, AlertKind, NodeFinding
from gangrun.core.model import After, Inventory, Phase, Race, RankAlive, StepTime
from gangrun.core.nodes.race import BLOCKS_COUNT, BLOCKS_MIN_COUNT, StepTimes, begun, bound, wanted_count
from gangrun.core.policy import Policy, PolicyError, TrendPolicy
from gangrun.wire import record as wire
from tests.core.life import BUG, Life, saved

RACE = Policy(race_stragglers=True)
BEFORE = StepTime(1.0, 500)


def slow(life: Life, node: str = "n1", rank: int = 2, *, lost_share: float = 0.3, others: int = 0) -> None:
    alert = Alert(AlertKind.SLOW_RANK, node, rank, 600.0, share=0.4, lost_share=lost_share, others_count=others)
    life.on(AlertSeen(life.state.attempt.number, alert))


def with_spares(count: int = 1, policy: Policy = RACE, ranks: int = 2) -> Life:
    life = Life(2, ranks, policy=policy).running()
    for k in range(count):
        comes(life, f"s{k}")
    return life


def comes(life: Life, name: str) -> None:
    life.on(AgentJoined(name, f"i-{name}", f"b-{name}", life.ranks))
    life.on(NodeChecked(name, True))


def save(life: Life, step: int, before: StepTime | None = BEFORE) -> None:
    life.on(CheckpointSeen(saved(step), step_time=before))


def moving(life: Life, step: int = 10, before: StepTime | None = BEFORE) -> Life:
    """All ranks are being stopped for the move."""
    save(life, step, before)
    assert life.state.underway.after is After.MOVE, life.reason
    return life


def up_again(life: Life) -> Life:
    life.stopped()
    life.again(saved(life.state.checkpoints.best_step))
    life.on(GangStarted(life.state.attempt.number))
    return life


def racing(count: int = 1, *, ranks: int = 2, lost_share: float = 0.3) -> Life:
    """The ranks of n1 run on s0."""
    life = with_spares(count, ranks=ranks)
    slow(life, rank=ranks, lost_share=lost_share)
    up_again(moving(life))
    assert life.state.race.open is not None
    assert life.started().placement.nodes == ("n0", "s0")
    return life


def timed(life: Life, step_s: float) -> None:
    life.on(StepsTimed(life.state.attempt.number, step_s, 504))
    assert life.state.race.open is None
    assert wire.state_of(wire.snapshot(life.state)) == life.state


def test_the_move_says_what_is_compared_and_remembers_the_speed_before() -> None:
    life = with_spares()
    slow(life)
    life.says("s0 takes the place of n1 at the next checkpoint, which all ranks are asked for now")
    moving(life)
    life.says("s0 takes the place of n1", "then the speed is compared with 1 s for a step on n1")
    assert life.state.race.open == Race("n1", "s0", (2, 3), 0, BEFORE, 0.3)
    assert wire.state_of(wire.snapshot(life.state)) == life.state


def test_if_the_ranks_are_faster_elsewhere_their_node_is_slow_and_both_figures_say_so() -> None:
    life = racing()
    timed(life, 0.7)
    figures = "a step took 1 s with ranks 2 and 3 on n1 and 0.7 s with them on s0 (medians of 500 and 504 steps)"
    life.says(figures, "n1 is slow, and it is used only if no other node is free")
    assert life.state.reason == life.reason, "people read it"
    assert life.state.roster.nodes["n1"].slow == figures
    assert not life.state.race.followed
    save(life, 20)
    assert life.phase is Phase.RUNNING


def test_if_they_are_as_slow_elsewhere_their_node_is_innocent_and_they_are_moved_no_more() -> None:
    life = racing(2)
    timed(life, 0.86)
    life.says("which is no difference of 15 %", "the slowness followed ranks 2 and 3, so data or code is its cause")
    life.says("n1 is set aside as slow no more, and ranks 2 and 3 are not moved for being slow again")
    assert not any(node.slow for node in life.state.roster.nodes.values())
    slow(life, "s0", 3)
    life.says("s0 stays in use: rank 3 was slow on another node too")
    save(life, 20)
    assert life.phase is Phase.RUNNING
    slow(life, "n0", 0)
    life.says("n0 stays in use: at most 1 such replacement is allowed within an hour")


def test_one_rank_of_a_node_is_told_as_one() -> None:
    life = racing(ranks=1)
    timed(life, 1.0)
    life.says("with rank 1 on n1 and 1 s with it on s0", "the slowness followed rank 1", "and rank 1 is not moved")


def test_many_ranks_of_a_node_are_told_as_a_range() -> None:
    life = racing(ranks=9)
    timed(life, 1.0)
    life.says("with ranks 9 to 17 on n1")


def test_from_a_node_that_is_slower_still_the_ranks_go_back_once_within_the_hour_too() -> None:
    life = racing()
    comes(life, "a0")
    asked = life.count(SaveGang)
    timed(life, 1.2)
    life.says("on n1 and 1.2 s with them on s0", "s0 is slower still", "go back at the next checkpoint")
    assert life.count(SaveGang) == asked + 1
    nodes = life.state.roster.nodes
    assert (nodes["n1"].slow, "1.2 s with them on s0" in nodes["s0"].slow) == ("", True)
    slow(life, "s0", 2)
    life.says("s0 stays in use: its ranks go back to n1 at the next checkpoint")
    assert "1.2 s with them on s0" in life.state.roster.nodes["s0"].slow, "the figures stay"
    life.on(NodeChecked("n1", True))
    moving(life, 20)
    life.says("n1 takes the place of s0")
    assert life.state.race.open is None, "the way back is no comparison"
    up_again(life)
    assert life.started().placement.nodes == ("n0", "n1"), "and not the other spare"
    assert life.state.race.back is None
    slow(life, "n1", 2)
    life.says("n1 stays in use: at most 1 such replacement is allowed within an hour")
    save(life, 30)
    assert life.phase is Phase.RUNNING


def test_ranks_do_not_go_to_a_third_node_instead_of_back() -> None:
    life = racing(2)
    life.on(NodeLost("n1", life.now, "its lease is over"))
    timed(life, 1.2)
    save(life, 20)
    assert life.phase is Phase.RUNNING, "the hour is not over"


def test_a_restart_for_another_reason_takes_the_ranks_back_too() -> None:
    life = racing()
    comes(life, "a0")
    timed(life, 1.2)
    life.exit(0, error=BUG)
    up_again(life)
    assert life.started().placement.nodes == ("n0", "n1")
    assert life.state.race.back is None


@pytest.mark.parametrize(
    ("lost_share", "least"), [(0.0, 0.05), (0.09, 0.05), (0.3, 0.15)], ids=["unknown", "little", "much"]
)
def test_a_difference_is_five_percent_or_half_of_what_was_missing(lost_share: float, least: float) -> None:
    assert bound(Race("n1", "s0", (2,), 0, BEFORE, lost_share), TrendPolicy()) == pytest.approx(least)
    for step_s, marked in ((1 - least - 0.01, "n1"), (1 - least + 0.01, ""), (1 + least - 0.01, ""), (1.3, "s0")):
        life = racing(lost_share=lost_share)
        timed(life, step_s)
        assert [name for name, node in life.state.roster.nodes.items() if node.slow] == [marked] * bool(marked)


def test_while_it_is_open_another_alert_on_the_spare_moves_nobody() -> None:
    life = racing(2)
    slow(life, "s0", 2)
    life.says("s0 stays in use: the speed of its ranks is being compared with that on n1")
    assert life.state.race.open is not None
    assert not life.state.roster.nodes["s0"].slow


def test_in_a_gang_of_another_size_ranks_have_other_data() -> None:
    life = racing(2)
    timed(life, 1.0)
    assert (life.state.race.followed, life.state.race.world_size) == ((2, 3), 4)
    life.state = replace(life.state, race=replace(life.state.race, followed=(2, 9), world_size=16))
    slow(life, "s0", 2)
    life.says("s0 stays in use: at most 1 such replacement")
    life.state = replace(life.state, race=replace(life.state.race, open=Race("n1", "s0", (3,), 0, BEFORE, 0.3)))
    timed(life, 1.0)
    assert (life.state.race.followed, life.state.race.world_size) == ((3,), 4)


def test_steps_are_timed_of_an_attempt_with_an_open_race_and_only_after_the_move() -> None:
    life = with_spares()
    slow(life)
    assert wanted_count(life.state) == 0
    assert wanted_count(moving(life).state) == 0
    assert wanted_count(up_again(life).state) == BEFORE.steps_count
    timed(life, 0.7)
    assert wanted_count(life.state) == 0


# ---- what is not compared --------------------------------------------------------------------------------------------


def poor(node: str) -> NodeFinding:
    return NodeFinding(node, "gpu_remapped", False, "needs a reset", poor=True, needs="reset", place="gpu 2")


def test_only_the_move_of_one_slow_node_is_compared() -> None:
    life = with_spares(policy=Policy())
    life.on(FindingRaised(poor("n1")))
    assert moving(life).state.race.open is None, "nobody races"
    life = with_spares()
    life.on(FindingRaised(poor("n1")))
    slow(life)
    assert moving(life).state.race.open is None, "it goes for its hardware"
    life = with_spares(2)
    slow(life)
    slow(life, "n0", 0)
    assert moving(life).state.race.open is None, "which of the two was it?"
    life = with_spares()
    slow(life)
    assert moving(life, before=None).state.race.open is None
    life.says("the speed on n1 and s0 is not compared, as too few steps were seen on n1")
    assert begun(Life().state, ("n1",), ("s0",), BEFORE, RACE) == (Life().state, "")


def test_a_node_that_was_slow_in_an_earlier_attempt_is_left_without_a_comparison() -> None:
    life = with_spares(0)
    slow(life)
    life.exit(0, error=BUG)
    up_again(life)
    comes(life, "s0")
    slow(life, "n0", 0, others=2)
    life.says("n0 stays in use: more ranks are slow than it has")
    assert moving(life).state.race.open is None


def test_steps_that_nobody_waits_for_are_ignored() -> None:
    life = with_spares()
    life.ignored(StepsTimed(0, 1.0, 500), "no speed is being compared")


# ---- what comes into it ----------------------------------------------------------------------------------------------


def dropped(life: Life, why: str) -> None:
    life.says(f"the speed on n1 and s0 is not compared: {why}. Neither is blamed")
    assert life.state.race.open is None
    assert not any(node.slow for node in life.state.roster.nodes.values())


def taken_over(life: Life) -> None:
    alive = tuple(RankAlive(rank, 1, 1) for rank in range(4))
    held = (
        Inventory("n0", life.state.attempt.number, alive[:2]),
        Inventory("s0", life.state.attempt.number, alive[2:]),
    )
    life.on(TermTaken(life.state.term + 1, "j", held, (), life.state.attempt.number))


def test_a_new_supervisor_drops_it() -> None:
    life = racing()
    taken_over(life)
    dropped(life, "another supervisor took over meanwhile")
    assert life.phase is Phase.RUNNING
    life.ignored(StepsTimed(life.state.attempt.number, 0.5, 504))


def test_a_new_supervisor_drops_it_before_the_spare_trains_too() -> None:
    life = with_spares()
    slow(life)
    moving(life)
    taken_over(life)
    dropped(life, "another supervisor took over meanwhile")


@pytest.mark.parametrize(
    "happens",
    [
        lambda life: life.exit(0, error=BUG),
        lambda life: life.on(NodeLost("s0", life.now - 5, "its lease is over")),
        lambda life: life.cancel(),
    ],
    ids=["a rank falls", "a node is lost", "cancelled"],
)
def test_a_stop_for_another_reason_drops_it(happens: Callable[[Life], object]) -> None:
    life = racing()
    happens(life)
    dropped(life, "the ranks were stopped for another reason")
    assert life.last(StopGang).attempt == 1


def test_what_breaks_during_the_move_drops_it() -> None:
    life = with_spares()
    slow(life)
    moving(life).exit(0, error=BUG)
    assert life.state.race.open is not None
    life.stopped()
    dropped(life, "the ranks were stopped for another reason")
    life = with_spares()
    slow(life)
    moving(life)
    life.on(CancelRequested("someone"))
    dropped(life, "the ranks stop for another reason")
    assert life.phase is Phase.STOPPING


def test_a_start_that_fails_or_has_other_nodes_drops_it() -> None:
    life = with_spares()
    slow(life)
    moving(life)
    life.stopped()
    life.again(saved(10))
    life.on(GangStartFailed(life.state.attempt.number, "s0", "the port is taken", True))
    dropped(life, "the ranks were stopped for another reason")
    life = with_spares(2)
    slow(life)
    moving(life)
    life.on(NodeLost("s0", life.now, "its lease is over"))
    up_again(life)
    assert life.started().placement.nodes == ("n0", "s1")
    dropped(life, "the ranks were started on other nodes")


def test_a_run_that_ends_meanwhile_says_nothing_of_it_and_one_that_is_resumed_drops_it() -> None:
    life = racing()
    life.finish(0, 1, 2, 3)
    assert "not compared" in life.reason
    life = with_spares()
    slow(life)
    moving(life)
    life.state = replace(life.state, phase=Phase.FAILED)
    life.on(ResumeRequested("a person", "k", 1))
    assert life.state.race.open is None
    life.says("not compared: the ranks were stopped for another reason")


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_it_moves_slow_ranks_by_itself_and_needs_what_a_move_needs() -> None:
    assert RACE.moves_slow_ranks
    assert not Policy().moves_slow_ranks
    with pytest.raises(PolicyError, match="race_stragglers needs move_suspects"):
        Policy(race_stragglers=True, move_suspects=False)
    with pytest.raises(PolicyError, match=r"race_stragglers needs trends\.window_s over 0"):
        Policy(race_stragglers=True, trends=TrendPolicy(window_s=0.0))
    for name in ("race_min_share", "race_missing_share"):
        for share in (0.0, 1.0):
            with pytest.raises(PolicyError, match=f"{name} = {share} must be between 0 and 1"):
                Policy(trends=replace(TrendPolicy(), **{name: share}))  # type: ignore[arg-type]


# ---- the time of a step ----------------------------------------------------------------------------------------------

WINDOW_S = 100.0
BLOCK_S = WINDOW_S / BLOCKS_COUNT


def stepping(step_s: float, blocks_count: int, times: StepTimes | None = None, now: float = 0.0) -> StepTimes:
    times = times or StepTimes(TrendPolicy(window_s=WINDOW_S))
    for step in range(round(blocks_count * BLOCK_S / step_s) + 1):
        times.advanced(step, now + step * step_s)
    return times


def test_the_first_block_is_left_out_and_a_median_needs_five_more() -> None:
    assert stepping(1.0, BLOCKS_MIN_COUNT).newest() is None
    assert stepping(1.0, BLOCKS_MIN_COUNT + 1).newest() == StepTime(1.0, 50)
    assert stepping(1.0, 50).newest() == StepTime(1.0, 100), "the newest ten"


def test_a_block_has_five_steps_however_long_they_take() -> None:
    times = StepTimes(TrendPolicy(window_s=WINDOW_S))
    for step in range(31):
        times.advanced(step, 30.0 * step)
    assert times.newest() == StepTime(30.0, 25)


def test_steps_that_are_seen_in_heartbeats_have_their_mean() -> None:
    times = StepTimes(TrendPolicy(window_s=WINDOW_S))
    for beat in range(70):
        times.advanced(int(beat / 0.7), float(beat))
    found = times.newest()
    assert found is not None
    assert found.step_s == pytest.approx(0.7, abs=0.02)


def test_an_evaluation_in_one_block_changes_nothing() -> None:
    times = StepTimes(TrendPolicy(window_s=WINDOW_S))
    for step in range(101):
        times.advanced(step, step + (60.0 if step > 55 else 0.0))
    found = times.newest()
    assert found is not None
    assert found.step_s == 1.0


def test_after_the_move_as_many_steps_count_as_before_it() -> None:
    assert stepping(1.0, 5).first(50) is None
    assert stepping(1.0, 6).first(50) == StepTime(1.0, 50)
    assert stepping(1.0, 50).first(50) == StepTime(1.0, 50), "the first ones"
    assert StepTimes(TrendPolicy(window_s=WINDOW_S)).first(1) is None
