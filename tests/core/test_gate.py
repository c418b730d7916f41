"""Findings before an attempt: who is left out, what is shared, which node is used last; and how suspicion fades."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.actions import CheckNodes, EndJob, StartGang, SubmitSuccessor
from gangrun.core.events import AgentJoined, AgentRejoined, FindingRaised, GangStarted, NodeChecked
from gangrun.core.model import (
    Cause,
    Evidence,
    Exclusion,
    Failure,
    Node,
    NodeFinding,
    NodeHealth,
    Outcome,
    Phase,
    Roster,
    RunState,
    Shape,
)
from gangrun.core.nodes import placement, quarantine, standing
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame
from tests.core.life import BUG, Life

SLURM = Policy(can_requeue=True)


def lost(node: str, check: str = "gpu_lost", at: float = 0.0) -> FindingRaised:
    return FindingRaised(NodeFinding(node, check, True, f"gpu 3 of {node} is lost", at, needs="reboot", place="gpu 3"))


def poor(node: str, check: str = "xid", at: float = 0.0) -> FindingRaised:
    return FindingRaised(NodeFinding(node, check, False, f"XID 94 on gpu 1 of {node}", at, True, "reset", "gpu 1"))


def checking(nodes: int = 3, policy: Policy = SLURM) -> Life:
    life = Life(nodes, policy=policy)
    life.join()
    assert life.phase is Phase.CHECKING
    return life


def checked(life: Life, *names: str) -> None:
    for name in names or life.names:
        if life.phase is Phase.CHECKING and life.state.roster.nodes[name].checked is None:
            life.on(NodeChecked(name, True))


def test_a_node_that_fails_at_the_gate_is_left_out_of_the_next_job() -> None:
    life = checking()
    life.on(lost("n1"))
    checked(life)
    life.says("n1", "gpu 3 of n1 is lost (gpu_lost)", "left out for 24 h")
    assert life.last(SubmitSuccessor).exclude == ("n1",)
    assert life.state.attempt.number == -1, "no rank was started"
    assert not any(isinstance(asked, StartGang) for asked in life.asked)


def test_a_spare_takes_its_place_before_the_start() -> None:
    life = checking()
    life.join("s0")
    life.on(lost("n1"))
    checked(life, "n0", "n2", "s0")
    life.again()
    assert life.started().placement.nodes == ("n0", "n2", "s0")
    assert set(life.state.health.excluded) == {"n1"}


def test_the_only_node_there_is_is_not_used_and_not_left_out_of_what_comes() -> None:
    life = checking(1, Policy())
    life.on(lost("n0"))
    assert (life.phase, life.state.ending.failure) == (Phase.FAILED, Failure.NODE)
    life.says("n0 failed its check", "gpu 3 of n0 is lost")
    assert life.state.health.excluded == {}


def test_the_same_on_many_nodes_at_once_is_a_shared_services_and_looked_at_again() -> None:
    life = checking(4)
    for name in ("n0", "n1", "n2"):
        life.on(lost(name, "ib_state"))
    checked(life)
    assert life.phase is Phase.WAITING
    life.says("3 nodes of 4 (n[0-2])", "none is left out", "looking again in 600 s")
    assert life.state.health.excluded == {}
    life.due("backoff")
    assert life.last(CheckNodes).nodes == ("n0", "n1", "n2")
    for name in ("n0", "n1", "n2"):
        life.on(lost(name, "ib_state"))
    assert set(life.state.health.excluded) == {"n0", "n1"}, "the second time it is theirs, as far as the cap goes"
    life.says("n2 stays although blamed", "asking the scheduler")


def test_a_service_that_is_back_lets_the_run_start() -> None:
    life = checking(4)
    for name in ("n0", "n1", "n2"):
        life.on(lost(name, "ib_state"))
    checked(life)
    life.due("backoff")
    checked(life)
    life.again()
    assert life.started().placement.nodes == ("n0", "n1", "n2", "n3")


def test_the_choice_of_a_resume_point_weighs_what_came_meanwhile() -> None:
    life = checking(4)
    checked(life)
    life.on(lost("n3"))
    assert life.phase is Phase.STARTING
    life.again()
    life.says("n3: gpu 3 of n3 is lost", "3 nodes usable")
    assert life.last(SubmitSuccessor).exclude == ("n3",)
    life = checking(4)
    checked(life)
    for name in ("n1", "n2", "n3"):
        life.on(lost(name, "ib_state"))
    life.again()
    assert life.phase is Phase.WAITING
    life.says("none is left out")


def with_spares(count: int, nodes: int) -> Life:
    life = Life(nodes, count, policy=SLURM).running()
    for name in (f"s{k}" for k in range(count)):
        life.join(name)
        life.on(NodeChecked(name, True))
    return life


def test_a_spare_found_broken_while_others_train_is_not_asked_for_again() -> None:
    life = with_spares(1, 2)
    life.on(lost("s0"))
    assert life.phase is Phase.RUNNING
    life.on(lost("n1", "xid"))
    life.stopped()
    life.says("s0: gpu 3 of s0 is lost", "asking the scheduler for the next job of this run without n1,s0")
    assert life.last(SubmitSuccessor).exclude == ("n1", "s0")


def test_what_many_spares_show_at_once_leaves_none_of_them_out_of_the_next_job() -> None:
    life = with_spares(3, 4)
    for name in ("s0", "s1", "s2"):
        life.on(lost(name, "ib_state"))
    life.on(lost("n1", "xid"))
    life.stopped()
    assert life.last(SubmitSuccessor).exclude == ("n1",)


def test_many_left_out_are_not_all_named() -> None:
    nodes = {f"n{k}": Node(f"n{k}", "i", "b", 1, checked=False, found=lost(f"n{k}", f"c{k}").finding) for k in range(5)}
    state = RunState(run="r", shape=Shape(5, 5, 1, 1), roster=Roster(nodes=nodes))
    weighed = quarantine.weigh(state, 0.0, Policy(can_requeue=True, exclusions_per_hour_max_count=9))
    assert set(weighed.state.health.excluded) == set(nodes)
    assert weighed.sentence.endswith("; and 2 nodes more")


def test_who_is_out_already_is_not_weighed_again() -> None:
    node = Node("n0", "i", "b", 1, checked=False, found=lost("n0").finding)
    out = {"n0": Exclusion("XID 79", 0.0, 100.0)}
    state = RunState(
        run="r", shape=Shape(1, 1, 1, 1), roster=Roster(nodes={"n0": node}), health=NodeHealth(excluded=out)
    )
    assert quarantine.weigh(state, 50.0, SLURM) == quarantine.Weighed(state)
    assert quarantine.weigh(state, 100.0, SLURM).state.health.excluded["n0"].since == 100.0


def test_who_only_observes_uses_a_broken_node_and_says_so() -> None:
    life = checking(2, Policy(observe=True))
    life.on(lost("n1"))
    life.says("gpu 3 of n1 is lost", "observing only, so n1 is used all the same")
    checked(life)
    life.again()
    assert life.started().placement.nodes == ("n0", "n1")


# ---- poor hardware ---------------------------------------------------------------------------------------------------


def test_a_poor_node_is_used_last_and_only_where_another_is_free() -> None:
    life = checking()
    life.join("s0")
    life.on(poor("n1"))
    checked(life, *life.names, "s0")
    life.again()
    assert life.started().placement.nodes == ("n0", "n2", "s0")
    life = checking()
    life.on(poor("n1"))
    checked(life)
    life.again()
    assert life.started().placement.nodes == ("n0", "n1", "n2")
    assert life.state.health.excluded == {}


def test_ranks_move_from_a_poor_node_at_the_next_restart_and_keep_their_seats() -> None:
    life = Life(3, 1).running()
    life.join("s0")
    life.on(NodeChecked("s0", True))
    life.on(poor("n1"))
    assert life.phase is Phase.RUNNING
    life.exit(0, error=BUG)
    life.stopped()
    life.says("just before, n1: XID 94", "restarting on")
    life.again()
    assert life.started().placement.nodes == ("n0", "s0", "n2")
    assert life.state.health.excluded == {}


def test_poor_hardware_twice_is_blamed_where_another_job_can_do_without_it() -> None:
    life = Life(3, policy=SLURM).running()
    for time in (1, 2):
        life.on(poor("n1"))
        life.mark(10 * time)
        life.exit(0, signal=7)
        life.stopped()
        assert ("n1" in life.state.health.excluded) is (time == 2), life.reason
        if time == 1:
            life.again()
            life.on(GangStarted(life.state.attempt.number))
    life.says("n1 was suspected for the 2nd time, so it is blamed")
    assert set(life.state.health.excluded) == {"n1"}


def test_a_poor_reading_of_an_hour_ago_is_no_evidence() -> None:
    life = Life(3).running()
    life.on(poor("n1"))
    life.now += 3600.0
    life.exit(0, error=BUG)
    life.stopped()
    assert "XID 94" not in life.reason
    assert life.state.health.suspicion == {"n0": 1}


def test_what_was_poor_while_ranks_were_being_stopped_counts() -> None:
    life = Life(3).running()
    life.exit(0, signal=7)
    life.on(poor("n2"))
    life.on(poor("nowhere"))
    life.stopped()
    assert life.state.health.suspicion == {"n2": 1}


@pytest.mark.parametrize("check", ["storage_space", "storage_answers"])
def test_a_poor_file_system_is_no_sign_against_a_node(check: str) -> None:
    life = Life(3).running()
    life.on(poor("n1", check))
    life.exit(0, signal=7)
    life.stopped()
    assert life.state.health.suspicion == {"n0": 1}


def test_poor_ports_everywhere_are_the_fabrics() -> None:
    life = Life(3).running()
    for name in life.names:
        life.on(poor(name, "ib_errors"))
    life.exit(0, signal=7)
    life.stopped()
    assert life.state.health.suspicion == {"n0": 1}


def test_a_kill_for_memory_is_not_laid_to_poor_hardware() -> None:
    life = Life(3).running()
    life.on(poor("n1"))
    life.exit(0, signal=9, oom=True)
    life.stopped()
    assert life.state.health.suspicion == {}


# ---- late nodes ------------------------------------------------------------------------------------------------------


def test_a_spare_that_comes_late_proves_itself_while_ranks_train() -> None:
    life = Life(2).running()
    life.join("s0")
    assert life.last(CheckNodes).nodes == ("s0",)
    life.on(NodeChecked("s0", True))
    assert life.state.roster.nodes["s0"].checked is True
    life.join("s1")
    life.on(NodeChecked("s1", False, "no space"))
    life.says("s1 failed its checks: no space")
    life.ignored(NodeChecked("s1", True), "stays unused")
    life.ignored(NodeChecked("elsewhere", True), "not in this job")
    life.on(AgentRejoined("s0", "i2", "b-s0", 2))
    assert life.phase is Phase.RUNNING


def test_one_that_was_checked_in_this_boot_is_not_asked_again() -> None:
    life = Life(2).running()
    node = life.state.roster.nodes["n1"]
    before = len(life.asked)
    life.on(AgentJoined("n1", node.incarnation, node.boot_id, node.slots_count))
    assert life.asked[before:] == []


def test_what_was_poor_stays_so_until_the_next_boot() -> None:
    life = checking()
    life.on(poor("n1"))
    old = life.state.roster.nodes["n1"]
    life.on(AgentRejoined("n1", "i7", old.boot_id, old.slots_count))
    assert life.state.roster.nodes["n1"].poor == old.poor != ""
    life.on(AgentRejoined("n1", "i8", "another boot", old.slots_count))
    assert life.state.roster.nodes["n1"].poor == ""


# ---- suspicion fades -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "days", "left"), [(1, 0.0, True), (1, 1.0, True), (1, 1.01, False), (4, 3.0, True), (4, 3.1, False)]
)
def test_suspicion_halves_with_each_day(count: int, days: float, left: bool) -> None:
    kept = standing.unfaded(NodeHealth({"n1": count}, {"n1": 1000.0}), 1000.0 + days * 86400.0)
    assert kept == ({"n1": count} if left else {})


def test_suspicion_of_an_older_journal_counts() -> None:
    assert standing.unfaded(NodeHealth({"n1": 1}, {}), 1e9) == {"n1": 1}


# ---- whatever comes --------------------------------------------------------------------------------------------------

FINDINGS = st.lists(
    st.builds(
        NodeFinding,
        node=st.sampled_from(["n0", "n1", "n2", "n3", "n4"]),
        check=st.sampled_from(["xid", "ib_state", "storage_answers"]),
        fatal=st.booleans(),
        sentence=st.just("it is odd"),
        at=st.floats(0.0, 100.0),
        poor=st.booleans(),
    ),
    max_size=12,
)


@given(FINDINGS)
def test_a_verdict_blames_only_nodes_with_a_fatal_finding_and_never_all_for_one_cause(
    findings: list[NodeFinding],
) -> None:
    placed = placement.seated([f"n{k}" for k in range(5)], Shape(5, 5, 1, 1))
    told = blame.judge(
        Evidence(findings=tuple(findings)), attempt=0, attempt_step=3, placement=placed, sightings=(), suspicion={},
        nodes_count=5, policy=SLURM,
    )  # fmt: skip
    fatal = [one for one in findings if one.fatal]
    assert set(told.blamed) <= {one.node for one in fatal}
    assert (told.cause in {Cause.HARDWARE, Cause.STORAGE}) is bool(fatal)
    for shared in standing.shared_by_check(fatal, 5, SLURM).items():
        others = {one.node for one in fatal if one.check != shared[0]}
        assert not (set(shared[1]) & set(told.blamed)) - others


@given(FINDINGS, st.integers(0, 4))
def test_at_the_gate_caps_hold_and_only_the_broken_are_out(findings: list[NodeFinding], spare: int) -> None:
    life = checking(5 - spare)
    for one in findings:
        if one.node in life.state.roster.nodes and life.phase is Phase.CHECKING:
            life.on(FindingRaised(one))
    checked(life)
    fatal = {one.node for one in findings if one.fatal}
    assert set(life.state.health.excluded) <= fatal
    assert len(life.state.health.excluded) <= 2
    assert life.answer.outcome in {Outcome.APPLIED, Outcome.IGNORED}
    assert not any(isinstance(asked, EndJob) for asked in life.asked)


def test_places_are_given_to_the_good_first() -> None:
    shape = Shape(2, 1, 1, 1)
    nodes = {f"n{k}": Node(f"n{k}", "i", "b", 1, checked=True, poor="hot" if k < 2 else "") for k in range(3)}
    assert placement.place(nodes, {}, shape) == placement.seated(["n0", "n2"], shape)
    before = placement.seated(["n1", "n0"], shape)
    assert placement.place(nodes, {}, shape, prefer=before) == placement.seated(["n1", "n2"], shape)
    worn = {name: replace(node, poor="hot") for name, node in nodes.items()}
    assert placement.place(worn, {}, shape, prefer=before) == before


def test_a_gpu_that_is_lost_while_ranks_start_bars_its_node_from_the_next_attempt() -> None:
    life = Life(3).launching()
    life.on(lost("n0"))
    assert life.phase is Phase.STOPPING
    assert not life.state.roster.nodes["n0"].checked
