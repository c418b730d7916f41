"""Suspects that still work are relieved at the next checkpoint: by whom, when not, how often, and at what price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangrun.core.actions import CheckNodes, SaveGang, StopGang
from gangrun.core.events import (
    AgentJoined,
    AgentRejoined,
    AlertSeen,
    CheckpointSeen,
    FindingRaised,
    GangStarted,
    NodeChecked,
    NodeLost,
    NodeSilent,
    Notice,
    NoticeKind,
    ProgressStalled,
    StoreStalled,
)
from gangrun.core.evidence import Alert, AlertKind, NodeFinding
from gangrun.core.model import After, OnSlowRank, Outcome, Phase
from gangrun.core.policy import Policy, PolicyError
from tests.core.life import BUG, Life, fatal, saved

PENDING = "gpu 2 has a memory row that waits for a reset to be remapped"
HOT = "gpu 2 is at 88 °C, 2 °C before it slows down"
SLOW = "gpu 2 was slowed down by its own heat guard, 40 % of the last 60 s"


def poor(
    node: str, check: str = "gpu_remapped", sentence: str = PENDING, needs: str = "reset", place: str = "gpu 2"
) -> NodeFinding:
    return NodeFinding(node, check, False, sentence, poor=True, needs=needs, place=place)


def with_spares(count: int = 1, nodes: int = 2, policy: Policy | None = None) -> Life:
    life = Life(nodes, policy=policy).running()
    for k in range(count):
        life.join(f"s{k}")
        life.on(NodeChecked(f"s{k}", True))
    return life


def relieved(life: Life, step: int) -> None:
    """A checkpoint comes, all ranks go down, and up again."""
    life.save(step)
    assert life.state.underway.after is After.MOVE, life.reason
    life.stopped()
    life.again(saved(step))
    life.on(GangStarted(life.state.attempt.number))


def test_a_spare_takes_the_place_of_a_suspect_at_the_next_checkpoint_and_not_before() -> None:
    life = with_spares()
    life.on(FindingRaised(poor("n1")))
    life.says("n1", PENDING, "replaced by s0 at the next checkpoint")
    assert (life.state.reason, life.phase) == (life.reason, Phase.RUNNING)
    life.mark(7)
    assert life.phase is Phase.RUNNING
    budget = life.state.budget
    life.save(10)
    life.says("checkpoint of step 10", "s0 takes the place of n1, a suspect that still works", PENDING, "save first")
    stop = life.last(StopGang)
    assert (life.phase, stop.checkpoint_first, stop.grace_s) == (Phase.STOPPING, True, life.policy.stop_grace_s)
    life.stopped()
    life.says("to replace nodes", "restarting on n0,s0, which the restart budget does not count")
    life.again(saved(10))
    assert life.started().placement.nodes == ("n0", "s0")
    assert (life.state.attempts[0].outcome, life.state.health.excluded) == ("moved", {})
    assert (life.state.budget.used, life.state.budget.total_count) == (budget.used, budget.total_count)


def test_nobody_is_relieved_again_and_again() -> None:
    life = with_spares(nodes=3)
    for name in ("n1", "n1", "n2"):
        life.on(FindingRaised(poor(name)))
    relieved(life, 10)
    assert life.started().placement.nodes == ("n0", "n1", "s0"), "the last of two that are due goes"
    life.save(20)
    assert life.phase is Phase.RUNNING, "there is no spare any more"
    life.on(FindingRaised(poor("n1")))
    life.says("n1", "it stays in use: no healthy node is free to take its place")


@pytest.mark.parametrize(
    ("found", "moves"),
    [
        ([poor("n1", needs="reboot")], True),
        ([poor("n1", needs="rma")], True),
        ([poor("n1", "gpu_recovery", "gpu 2 asks to be drained of peer-to-peer work", "admin")], True),
        ([poor("n1", "gpu_temperature", HOT, "admin")], False),
        ([poor("n1", "gpu_temperature", HOT, "admin"), poor("n1", "gpu_throttled", SLOW, "admin")], True),
        ([poor("n1", "gpu_slowed", SLOW, "admin"), poor("n1", "gpu_throttled", SLOW, "admin")], False),
        ([poor("n0", "gpu_temperature", HOT, "admin"), poor("n1", "gpu_throttled", SLOW, "admin")], False),
        ([poor("n1", "gpu_throttled", SLOW, "admin"), poor("n1", "gpu_throttled", SLOW, "admin")], False),
        ([NodeFinding("n1", "ib_flaps", False, "once", poor=True, place="mlx5_0 port 1"),
          NodeFinding("n1", "ib_state", False, "down", poor=True, place="mlx5_0 port 1")], False),
        ([poor("n1", "nvlink_errors", "replays", "", "gpu 2 links"), poor("n1", "gpu_temperature", HOT, "")], False),
        ([poor("n1", "nvlink_errors", "replays", "", "gpu 2 links"),
          poor("n1", "nvlink_speed", "slow", "admin", "gpu 2 links")], False),
        ([poor("n1", "nvlink_errors", "replays", "", "gpu 2 link 5"),
          poor("n1", "nvlink_speed", "slow", "admin", "gpu 2 link 5")], False),
        ([NodeFinding("n1", "gpu_remapped", False, "told only", needs="reset", place="gpu 2")], False),
        ([poor("s0")], False),
        ([poor("x9")], False),
        ([poor("n1"), poor("s0")], False),
        ([poor("n1"), poor("s0", "gpu_temperature", HOT, "admin")], False),
    ],
)  # fmt: skip
def test_which_evidence_is_reason_enough(found: list[NodeFinding], moves: bool) -> None:
    life = with_spares()
    for one in found:
        life.on(FindingRaised(one))
    life.save(10)
    assert (life.state.underway.after is After.MOVE) is moves, life.reason


def test_two_signs_that_are_far_apart_in_time_are_two_single_ones() -> None:
    life = with_spares()
    life.on(FindingRaised(poor("n1", "gpu_temperature", HOT, "admin")))
    life.on(FindingRaised(poor("n1", "gpu_throttled", SLOW, "admin")), after_s=3600.0)
    life.save(10)
    assert life.phase is Phase.RUNNING


def test_what_many_show_at_once_is_no_nodes_own() -> None:
    life = with_spares(2, nodes=4)
    for name in ("n0", "n1"):
        life.on(FindingRaised(poor(name)))
        life.says("replaced by")
    life.on(FindingRaised(poor("n2")))
    assert "replaced" not in life.reason
    life.save(10)
    assert life.phase is Phase.RUNNING
    assert not any(node.due for node in life.state.roster.nodes.values())
    assert all(life.state.roster.nodes[name].poor for name in ("n0", "n1", "n2")), "they are still taken last"


@pytest.mark.parametrize("answer", [None, False])
def test_only_a_node_that_has_proven_itself_takes_a_place(answer: bool | None) -> None:
    life = Life().running()
    life.join("s0")
    if answer is not None:
        life.on(NodeChecked("s0", answer, "no GPU"))
    life.on(FindingRaised(poor("n1")))
    life.says("no healthy node is free")
    life.save(10)
    assert life.phase is Phase.RUNNING
    life.on(AgentJoined("s1", "i-s1", "b-s1", 2))
    life.on(NodeChecked("s1", True))
    life.save(20)
    assert life.state.underway.after is After.MOVE


def test_a_node_found_poor_while_ranks_start_or_stop_is_relieved_later() -> None:
    life = Life().launching()
    life.on(FindingRaised(poor("n1")))
    life.on(GangStarted(life.state.attempt.number))
    life.exit(0, error=BUG)
    life.on(FindingRaised(poor("n0")))
    assert [name for name, node in life.state.roster.nodes.items() if node.due] == ["n0", "n1"]
    life.on(AgentRejoined("n0", "i-2", "b-n0", 2, "it died"))
    assert life.state.roster.nodes["n0"].due == PENDING
    life.on(AgentRejoined("n0", "i-3", "b-9", 2, "the node has booted"))
    assert life.state.roster.nodes["n0"].due == ""


def test_so_many_an_hour_at_most() -> None:
    life = with_spares(4, nodes=4)
    for k, name in enumerate(("n0", "n1", "n2", "n3"), 1):
        life.on(FindingRaised(poor(name)), after_s=60.0)
        if k <= 2:
            relieved(life, 10 * k)
    life.says("at most 2 such replacements are allowed within an hour")
    life.save(100)
    assert life.phase is Phase.RUNNING
    life.on(FindingRaised(poor("n3")), after_s=3600.0)
    life.says("replaced by s[2-3]")
    life.save(200)
    life.says("suspects that still work", "n2: ", "n3: ")


def test_policy_turns_it_off_and_who_observes_only_tells() -> None:
    life = with_spares(policy=Policy(move_suspects=False))
    life.on(FindingRaised(poor("n1")))
    assert "checkpoint" not in life.reason
    life.save(10)
    assert life.phase is Phase.RUNNING
    life = with_spares(policy=Policy(observe=True))
    life.on(FindingRaised(poor("n1")))
    life.says("observing only, so it stays in use; else it would be replaced by s0 at the next checkpoint")
    life.save(10)
    assert (life.phase, life.count(StopGang)) == (Phase.RUNNING, 0)


def test_not_while_something_else_is_under_way() -> None:
    def due(life: Life) -> Life:
        life.on(FindingRaised(poor("n1")))
        return life

    busy = [due(with_spares()) for _ in range(4)]
    busy[0].on(ProgressStalled(0, 130.0, 120.0, ()))
    busy[1].on(StoreStalled(busy[1].now - 9))
    busy[2].finish(3)
    busy[3].on(NodeLost("s0", busy[3].now, "its lease is over"))
    for life in busy:
        life.save(10)
        assert life.phase is Phase.RUNNING
    life = due(with_spares())
    life.save(10)
    life.stopped()
    life.again(saved(10))
    life.on(GangStarted(life.state.attempt.number))
    life.ignored(CheckpointSeen(saved(10)), "not newer")
    old = due(with_spares())
    old.state = replace(old.state, ending=replace(old.state.ending, gone_at=old.now + 60))
    old.save(10)
    assert old.phase is Phase.RUNNING


def test_a_silent_node_is_not_mistaken_for_the_suspect() -> None:
    life = with_spares(2)
    life.on(FindingRaised(poor("n1")))
    life.on(NodeSilent("n0", life.now - 6))
    life.save(10)
    assert life.phase is Phase.RUNNING
    life.on(FindingRaised(poor("n1")))
    life.says("it stays in use: n0 cannot be used either")


@pytest.mark.parametrize(
    ("happens", "cause"),
    [
        (lambda life: life.exit(0, error=BUG), "rank error"),
        (lambda life: life.on(FindingRaised(fatal("n0"))), "hardware"),
        (lambda life: life.on(NodeLost("n0", life.now - 5, "its lease is over")), "node silent"),
        (lambda life: life.on(AgentRejoined("n0", "i-2", "b-n0", 2, "it died")), "agent died"),
    ],
)
def test_what_breaks_meanwhile_is_judged_as_ever(happens: Callable[[Life], object], cause: str) -> None:
    life = with_spares(2)
    life.on(FindingRaised(poor("n1")))
    life.save(10)
    happens(life)
    life.stopped()
    assert life.state.attempts[0].outcome == cause
    assert sum(life.state.budget.used.values()) == 1


def test_the_spare_may_be_gone_by_then() -> None:
    life = with_spares()
    life.on(FindingRaised(poor("n1")))
    life.save(10)
    life.on(NodeLost("s0", life.now, "its lease is over"))
    life.stopped()
    life.says("restarting on n[0-1]")
    life = with_spares()
    life.on(FindingRaised(poor("n1")))
    life.save(10)
    life.on(Notice(NoticeKind.PREEMPTION, 60.0))
    assert life.state.underway.after is After.REQUEUE
    life = with_spares()
    life.on(FindingRaised(poor("n1")))
    life.save(10)
    life.on(NodeSilent("n0", life.now - 6))
    life.on(NodeLost("s0", life.now, "its lease is over"))
    life.stopped()
    assert life.phase is Phase.WAITING
    life.says("restarting, which the restart budget", "1 node usable, 2 needed")


# ---- nodes whose ranks are slow --------------------------------------------------------------------------------------

MOVE = Policy(on_slow_rank=OnSlowRank.MOVE, test_suspects=True)


def slow(life: Life, node: str = "n1", rank: int = 2, *, over: bool = False, after_s: float = 0.1, **more: int) -> None:
    kind = AlertKind.SLOW_GPU if rank % 2 else AlertKind.SLOW_RANK
    alert = Alert(kind, node, rank, 600.0, share=0.3, lost_share=0.2, signs=("its clock is low",), **more)  # type: ignore[arg-type]
    life.on(AlertSeen(life.state.attempt.number, alert, over), after_s)


def test_by_policy_a_spare_takes_the_place_of_a_node_with_a_slow_rank_and_the_node_is_tested_and_set_aside() -> None:
    life = with_spares(policy=MOVE)
    slow(life)
    life.says(
        "rank 2 on n1 is 30 % slower", "s0 takes the place of n1 at the next checkpoint, which all ranks are asked"
    )
    assert life.last(SaveGang).attempt == 0
    slow(life)
    assert life.count(SaveGang) == 1, "told again, and asked once"
    life.save(10)
    life.says("s0 takes the place of n1, a suspect that still works", "n1: rank 2 on n1 is 30 % slower")
    life.stopped()
    assert life.last(CheckNodes) == CheckNodes(("n1",), "thorough", life.last(CheckNodes).rounds)
    life.again(saved(10))
    assert life.started().placement.nodes == ("n0", "s0")
    assert (life.state.attempts[0].outcome, life.state.health.excluded) == ("moved", {})
    assert sum(life.state.budget.used.values()) == 0
    life.on(GangStarted(1))
    life.on(NodeChecked("n1", True, "", "2 devices"))
    life.says("was suspected (rank 2 on n1 is 30 % slower", "its devices work", "it may be used again")
    life.exit(0, signal=9)
    life.stopped()
    assert life.state.attempt.placement is not None
    life.again(saved(10))
    assert life.started().placement.nodes == ("n0", "s0"), "it is taken last"


def test_without_a_spare_nothing_moves_until_there_is_one_and_never_twice_in_an_hour() -> None:
    life = with_spares(0, policy=MOVE)
    slow(life)
    life.says("n1 stays in use: no healthy node is free to take its place")
    life.save(10)
    assert (life.phase, life.count(SaveGang)) == (Phase.RUNNING, 0)
    for k in range(2):
        life.on(AgentJoined(f"s{k}", f"i-s{k}", f"b-s{k}", 2))
        life.on(NodeChecked(f"s{k}", True))
    relieved(life, 20)
    slow(life, "n0", 1)
    life.says("its clock is low; n0 stays in use: at most 1 such replacement is allowed within an hour")
    life.save(30)
    assert life.phase is Phase.RUNNING
    slow(life, "n0", 1, after_s=3600.0)
    life.says("s1 takes the place of n0 at the next checkpoint")
    life.save(40)
    assert life.state.underway.after is After.MOVE


def test_a_rank_that_is_as_fast_as_the_others_again_stays() -> None:
    life = with_spares(policy=MOVE)
    slow(life)
    slow(life, rank=3)
    slow(life, rank=3, over=True)
    assert life.state.roster.nodes["n1"].slow, "rank 2 is slow"
    slow(life, over=True)
    assert not life.state.roster.nodes["n1"].slow
    life.save(10)
    assert life.phase is Phase.RUNNING
    life.on(AlertSeen(0, Alert(AlertKind.SLOWER, rates=(2.0, 1.0)), False))
    life.on(AlertSeen(0, Alert(AlertKind.SLOWER, rates=(2.0, 1.0)), True))
    assert life.answer.outcome is Outcome.APPLIED


@pytest.mark.parametrize(
    ("policy", "alert", "words"),
    [
        (Policy(), {}, ""),
        (replace(MOVE, observe=True), {}, ""),
        (MOVE, {"node": "n9"}, ""),
        (MOVE, {"others_count": 2}, "n1 stays in use: more ranks are slow than it has"),
    ],
)
def test_nobody_moves_unasked_or_for_what_is_no_nodes_own(policy: Policy, alert: dict[str, object], words: str) -> None:
    life = with_spares(policy=policy)
    slow(life, **alert)  # type: ignore[arg-type]
    assert "takes the place" not in life.reason and words in life.reason
    life.save(10)
    assert (life.phase, life.count(SaveGang)) == (Phase.RUNNING, 0)


def test_a_slow_rank_moves_nobody_while_its_gang_stops_and_a_reboot_clears_its_node() -> None:
    life = with_spares(policy=MOVE)
    slow(life)
    life.on(AgentRejoined("n1", "i-2", "b-n1", 2, "it died"))
    assert life.state.roster.nodes["n1"].slow
    slow(life, "n0", 0)
    assert "takes the place" not in life.reason
    life.on(AgentRejoined("n1", "i-3", "b-9", 2, "the node has booted"))
    assert life.state.roster.nodes["n1"].slow == ""


def test_a_move_tests_no_device_if_the_user_turned_tests_off() -> None:
    life = with_spares(policy=replace(MOVE, test_suspects=False))
    slow(life)
    life.save(10)
    life.stopped()
    assert not life.state.roster.nodes["n1"].trial and life.state.roster.nodes["n1"].slow
    with pytest.raises(PolicyError, match="on_slow_rank move needs move_suspects"):
        Policy(on_slow_rank=OnSlowRank.MOVE, move_suspects=False)
