"""Nodes that are found broken or poor: checked before an attempt, left out, and taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.actions import CheckNodes, EndJob, StartGang, SubmitSuccessor
from gangrun.core.events import (
    ActDone,
    AgentJoined,
    AgentRejoined,
    FindingRaised,
    GangStarted,
    NodeChecked,
    ResumeRequested,
    TermTaken,
)
from gangrun.core.evidence import Evidence, NodeFinding
from gangrun.core.model import Cause, Exclusion, Failure, Node, NodeHealth, Outcome, Phase, Roster, RunState, Shape
from gangrun.core.nodes import placement, quarantine, standing
from gangrun.core.nodes.device_test import THOROUGH
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame
from tests.core.life import BUG, Life

# ---- findings before an attempt --------------------------------------------------------------------------------------


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
    life.says("n1", "gpu 3 of n1 is lost (gpu_lost)", "excluded for 24 h")
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
    life.says("3 nodes of 4 (n[0-2])", "no node is excluded", "looking again in 600 s")
    assert life.state.health.excluded == {}
    life.due("backoff")
    assert life.last(CheckNodes).nodes == ("n0", "n1", "n2")
    for name in ("n0", "n1", "n2"):
        life.on(lost(name, "ib_state"))
    assert set(life.state.health.excluded) == {"n0", "n1"}, "the second time it is theirs, as far as the cap goes"
    life.says("n2 is blamed but stays in use", "asking the scheduler")


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
    life.says("no node is excluded")


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


# ---- exclusions: reasons, caps and ends ------------------------------------------------------------------------------


POLICY = Policy()
DAY_S = POLICY.exclusion_s


@pytest.mark.parametrize(("nodes_count", "cap"), [(1, 2), (40, 2), (59, 2), (60, 3), (2048, 102)])
def test_cap_is_five_percent_or_two(nodes_count: int, cap: int) -> None:
    assert quarantine.cap_count(nodes_count, POLICY) == cap
    assert quarantine.cap_count(nodes_count, Policy(exclusions_per_hour_max_count=7)) == 7


def test_the_third_in_an_hour_stays() -> None:
    done = quarantine.exclude({}, ["n1", "n2", "n3", "n3"], "XID 79", 100.0, POLICY, 10)
    assert (done.taken, done.refused) == (("n1", "n2"), ("n3",))
    assert done.excluded == dict.fromkeys(("n1", "n2"), Exclusion("XID 79", 100.0, 100.0 + DAY_S))
    assert (
        done.sentence
        == "n[1-2] excluded for 24 h; n3 is blamed but stays in use: at most 2 nodes may be excluded within an hour"
    )
    later = quarantine.exclude(done.excluded, ["n3"], "XID 79", 100.0 + 3600.0, POLICY, 10)
    assert later.taken == ("n3",) and later.refused == () and later.sentence == "n3 excluded for 24 h"


def test_blamed_again_is_longer_not_more() -> None:
    first = quarantine.exclude({}, ["n1"], "once", 0.0, POLICY, 10)
    again = quarantine.exclude(first.excluded, ["n1", "n2", "n3"], "twice", 50.0, POLICY, 10)
    assert again.excluded["n1"] == Exclusion("twice", 0.0, 50.0 + DAY_S)
    assert again.refused == ("n3",)
    nothing = quarantine.exclude(again.excluded, [], "", 50.0, POLICY, 10)
    assert nothing.excluded == again.excluded and nothing.sentence == ""


def test_an_exclusion_ends_at_its_until() -> None:
    table = {"n1": Exclusion("a", 0.0, 10.0), "n2": Exclusion("b", 0.0, 20.0)}
    assert set(standing.active(table, 9.9)) == {"n1", "n2"} and set(standing.active(table, 10.0)) == {"n2"}


@given(
    st.lists(st.tuples(st.floats(0, 3000), st.lists(st.integers(0, 40), max_size=4)), max_size=30), st.integers(1, 100)
)
def test_the_cap_holds_in_every_hour(blames: list[tuple[float, list[int]]], nodes_count: int) -> None:
    excluded: dict[str, Exclusion] = {}
    starts: list[float] = []
    now = 0.0
    for wait_s, numbers in blames:
        now += wait_s
        done = quarantine.exclude(excluded, [f"n{number}" for number in numbers], "x", now, POLICY, nodes_count)
        starts += [now] * len(set(done.excluded) - set(standing.active(excluded, now)))
        excluded = dict(done.excluded)
        assert sum(at > now - 3600.0 for at in starts) <= quarantine.cap_count(nodes_count, POLICY)


def test_who_was_just_left_out_since_something_broke_is_told_once() -> None:
    first = quarantine.exclude({}, ["n1", "n2"], "XID 79", 0.0, POLICY, 100, ["n2"])
    assert quarantine.newly_broken({}, first.excluded) == {"n2": "XID 79"}
    assert quarantine.newly_broken(first.excluded, first.excluded) == {}
    again = quarantine.exclude(first.excluded, ["n1"], "gpu lost", 9.0, POLICY, 100, ["n1"])
    assert quarantine.newly_broken(first.excluded, again.excluded) == {"n1": "gpu lost"}


# ---- nodes that are left out until they have booted ------------------------------------------------------------------


WEEK_S = quarantine.WEEK_S


def gpu_lost(node: str) -> FindingRaised:
    return FindingRaised(NodeFinding(node, "gpu_lost", True, "gpu 3 is lost", 0.0, until_boot=True))


def without_n1() -> Life:
    """Two nodes and a spare, n1's GPU is lost, and its ranks run on the spare."""
    life = Life(2, policy=SLURM)
    life.join(*life.names, "s0")
    for name in (*life.names, "s0"):
        life.on(NodeChecked(name, True))
    life.again()
    life.on(GangStarted(life.state.attempt.number))
    life.on(gpu_lost("n1"))
    life.stopped()
    life.says("n1 excluded until it has booted and passed its checks")
    life.again()
    life.on(GangStarted(life.state.attempt.number))
    assert life.started().placement.nodes == ("n0", "s0")
    return life


def restart(life: Life, *checked: str) -> None:
    """A rank dies, and the next attempt begins."""
    life.exit(0, signal=11)
    life.stopped()
    if life.phase is Phase.WAITING:
        life.due("backoff")
    for name in checked:
        life.on(NodeChecked(name, True))
    assert life.phase is Phase.STARTING


def test_one_that_has_booted_and_passes_is_taken_back_and_it_is_said() -> None:
    life = without_n1()
    life.on(AgentRejoined("n1", "i2", "another boot", 2))
    assert set(standing.active(life.state.health.excluded, life.now)) == {"n1"}, "a boot alone proves nothing"
    restart(life, "n1")
    life.says("n1 has booted anew and passed its checks, so it is used again (hardware failed on n1")
    assert not standing.active(life.state.health.excluded, life.now)


def test_an_agent_that_came_back_in_the_same_boot_changes_nothing() -> None:
    life = without_n1()
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    restart(life, "n1")
    assert set(standing.active(life.state.health.excluded, life.now)) == {"n1"}
    assert "used again" not in life.reason


def test_what_is_known_outlives_the_end_of_the_run() -> None:
    life = without_n1()
    life.cancel()
    life.stopped()
    life.on(ResumeRequested("someone", "k", 1), after_s=2 * DAY_S)
    assert life.state.health.excluded["n1"].boot_id == "b-n1"


TRIES = replace(SLURM, test_suspects=True)
CLEAN = "48 products and 0.3 GB of memory right, in 9 s"


def in_the_next_job(policy: Policy, boot_id: str, nodes: int = 1) -> Life:
    """The only node's GPU is lost; in the next job it is there again, in that boot."""
    life = Life(nodes, policy=policy).running()
    life.on(gpu_lost("n0"))
    life.stopped()
    asked = life.last(SubmitSuccessor)
    assert (asked.exclude, asked.if_booted) == (("n0",), (("n0", 0.0),))
    life.on(ActDone((1, 1), "SubmitSuccessor", booted=("n0",)))
    life.says(
        "the next job of this run is submitted; this one ends; n0 has rebooted;"
        " if it is in that job, it is tested first"
    )
    life.on(TermTaken(life.state.term + 1, "j2", (), ("n0",), life.state.attempt.number), after_s=1000.0)
    for name in life.names:
        life.on(AgentJoined(name, "i2", boot_id if name == "n0" else "b", 2))
    return life


def test_one_that_has_booted_is_put_to_work_before_ranks_start_there() -> None:
    life = in_the_next_job(TRIES, "another boot")
    assert life.actions == (CheckNodes(("n0",), THOROUGH),)
    assert life.phase is Phase.CHECKING
    life.on(NodeChecked("n0", True, tested=CLEAN))
    life.says(
        "n0 was excluded until it had booted (hardware failed on n0", f"and its devices work: {CLEAN}; n0 has booted"
    )
    life.says("passed its checks, so it is used again", "starting attempt 1")
    assert life.state.health.suspected_at == {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            NodeChecked("n0", False, "gpu 1 computed 3 numbers wrong"),
            "), and failed: gpu 1 computed 3 numbers wrong",
        ),
        (None, "it was excluded until it had booted (hardware failed on n0"),
    ],
)
def test_one_that_has_booted_and_fails_or_says_nothing_stays_out(answer: NodeChecked | None, words: str) -> None:
    life = in_the_next_job(TRIES, "another boot")
    if answer is None:
        life.due("check")
    else:
        life.on(answer)
    life.says(words)
    asked = life.last(SubmitSuccessor)
    assert (life.phase, asked.exclude, life.count(StartGang)) == (Phase.WAITING, ("n0",), 1)
    assert asked.if_booted == (("n0", 0.0),), "this boot did not cure it, so it takes another"
    assert life.state.health.excluded["n0"].boot_id == "another boot"


@pytest.mark.parametrize(
    ("policy", "answer", "words"),
    [
        (
            TRIES,
            NodeChecked("n0", True, "torch is not installed"),
            "torch is not installed; that says nothing against it",
        ),
        (
            SLURM,
            NodeChecked("n0", True),
            "n0 passed its checks; n0 has booted anew and passed its checks, so it is used",
        ),
    ],
)
def test_where_devices_are_not_tested_clean_checks_are_enough(policy: Policy, answer: NodeChecked, words: str) -> None:
    life = in_the_next_job(policy, "another boot")
    assert life.actions == (CheckNodes(("n0",), THOROUGH if policy.test_suspects else ""),)
    life.on(answer)
    life.says(words, "starting attempt 1")


def test_one_of_which_the_scheduler_was_wrong_is_looked_for_in_a_later_boot_only() -> None:
    life = in_the_next_job(SLURM, "b-n0")
    life.on(NodeChecked("n0", True))
    life.says("0 nodes usable")
    assert life.last(SubmitSuccessor).if_booted == (("n0", 0.0),), "it was seen in the bad boot a moment ago"
    assert "used again" not in life.reason


def asks_for_a_reset(node: str) -> FindingRaised:
    sentence = "gpu 3 asks for a reset"
    return FindingRaised(NodeFinding(node, "gpu_recovery", True, sentence, 0.0, until_boot=True, shows_reset=True))


@pytest.mark.parametrize("found", ["while it trained", "before it was used"])
def test_one_that_was_reset_is_taken_back_in_the_same_boot(found: str) -> None:
    """Not by what it passed before it broke: only once it joins another job, and passes there."""
    life = Life(2, policy=TRIES)
    if found == "while it trained":
        life.running()
    else:
        life.join()
    life.on(asks_for_a_reset("n0"))
    life.stopped() if found == "while it trained" else life.on(NodeChecked("n1", True))
    entry = life.state.health.excluded["n0"]
    assert (entry.boot_id, entry.shows_reset) == ("b-n0", True)
    life.on(ActDone((1, 1), "SubmitSuccessor"))
    life.on(TermTaken(2, "j2", (), (), life.state.attempt.number), after_s=2 * DAY_S)
    life.join()
    assert life.actions == (CheckNodes(("n1",)), CheckNodes(("n0",), THOROUGH))
    life.on(NodeChecked("n1", True))
    life.on(NodeChecked("n0", True, tested=CLEAN))
    life.says("n0 was excluded until it had booted, or been reset (", f"and its devices work: {CLEAN}")
    life.says("n0 was reset, as its sign is gone, and passed its checks, so it is used again (", "starting attempt")
    assert not standing.active(life.state.health.excluded, life.now)
    assert life.state.health.excluded["n0"].returns_count == 1


def fatal(check: str, place: str, needs: str = "reset", shows: bool = False, node: str = "n1") -> NodeFinding:
    return NodeFinding(node, check, True, "x", 0.0, needs=needs, place=place, until_boot=True, shows_reset=shows)


ASKS, XID = fatal("gpu_recovery", "gpu 1", shows=True), fatal("xid", "gpu 1")


@pytest.mark.parametrize(
    ("found", "cured"),
    [
        ((ASKS,), {"n1"}),
        ((XID,), set()),
        ((XID, ASKS), {"n1"}),
        ((ASKS, fatal("xid", "gpu 0")), set()),  # of that one nothing shows
        ((ASKS, fatal("xid", "gpu 1", "reboot")), set()),
        ((ASKS, fatal("gpu_lost", "gpu 1", "reboot", node="n2")), {"n1"}),
    ],
)
def test_a_reset_cures_what_needs_no_more_on_a_gpu_that_says_so(
    found: tuple[NodeFinding, ...], cured: set[str]
) -> None:
    assert quarantine.cured_by_reset(found) == cured


def test_a_reset_cures_only_what_would_show_that_there_was_none() -> None:
    def out(first: bool, *more: tuple[bool, str]) -> tuple[str, bool]:
        done = quarantine.exclude({}, ["n1"], "x", 0.0, SLURM, 9, ["n1"], {"n1": "b"}, ["n1"] if first else [])
        for shows, boot in more:
            boots = {"n1": boot} if boot else {}
            done = quarantine.exclude(done.excluded, ["n1"], "y", 5.0, SLURM, 9, (), boots, ["n1"] if shows else [])
        entry = done.excluded["n1"]
        assert entry.seen_at == (5.0 if more else 0.0)
        return entry.boot_id, entry.shows_reset

    assert (out(True), out(False)) == (("b", True), ("b", False))
    assert (out(True, (False, "b")), out(False, (True, "b"))) == (("b", False), ("b", False))
    assert (out(True, (True, "c")), out(True, (False, ""))) == (("c", True), ("b", True))
    time_cures = quarantine.exclude({}, ["n1"], "x", 0.0, SLURM, 9)
    later = quarantine.exclude(time_cures.excluded, ["n1"], "y", 5.0, SLURM, 9, ["n1"], {"n1": "b"}, ["n1"])
    assert later.excluded["n1"].shows_reset


def test_whom_no_boot_has_cured_is_not_offered_again() -> None:
    assert quarantine.if_booted({"n1": OUT}, 30.0) == (("n1", 30.0),)
    assert quarantine.if_booted({"n1": replace(OUT, seen_at=10.0)}, 30.0) == (("n1", 20.0),)
    for entry in (replace(OUT, returns_count=2), replace(OUT, boot_id=""), replace(OUT, until=20.0)):
        assert quarantine.if_booted({"n1": entry}, 30.0) == ()


def state_with(entry: Exclusion, boot_id: str = "bad", checked: bool | None = True) -> RunState:
    node = Node("n1", "i", boot_id, 1, checked=checked)
    return RunState(
        run="r", shape=Shape(1, 1, 1, 1), roster=Roster(nodes={"n1": node}), health=NodeHealth(excluded={"n1": entry})
    )


OUT = Exclusion("gpu 3 is lost", 0.0, DAY_S, True, "bad")


@pytest.mark.parametrize(
    ("entry", "boot_id", "checked", "at", "words", "is_out"),
    [
        (OUT, "bad", True, 5.0, "", True),
        (OUT, "bad", True, DAY_S, "has not booted since, so it stays excluded (gpu 3 is lost)", True),
        (OUT, "bad", True, WEEK_S, "", False),
        (OUT, "new", True, 5.0, "is used again", False),
        (OUT, "new", None, DAY_S, "did not cure it", True),
        (OUT, "new", False, DAY_S, "did not cure it", True),
        (replace(OUT, returns_count=2), "new", True, 5.0, "", True),
        (replace(OUT, returns_count=2), "new", True, DAY_S, "did not cure it", True),
        (replace(OUT, boot_id=""), "new", True, DAY_S, "", False),
        (replace(OUT, boot_id=""), "new", True, 5.0, "", True),
    ],
)
def test_who_stays_out(
    entry: Exclusion, boot_id: str, checked: bool | None, at: float, words: str, is_out: bool
) -> None:
    state, sentence = quarantine.reviewed(state_with(entry, boot_id, checked), at, SLURM)
    assert words in sentence
    assert bool(sentence) is bool(words)
    assert ("n1" in standing.active(state.health.excluded, at)) is is_out


def test_one_that_is_not_here_or_lost_is_not_looked_at() -> None:
    state = state_with(OUT, "new")
    gone = replace(state, roster=replace(state.roster, nodes={"n1": replace(state.roster.nodes["n1"], lost=True)}))
    assert quarantine.reviewed(gone, 5.0, SLURM) == (gone, "")
    assert quarantine.reviewed(replace(state, roster=replace(state.roster, nodes={})), DAY_S, SLURM)[1] == ""


def test_who_was_taken_back_is_told_once_and_is_not_broken_news() -> None:
    before = state_with(OUT, "new")
    after, _ = quarantine.reviewed(before, 5.0, SLURM)
    assert quarantine.taken_back(before.health.excluded, after.health.excluded) == ("n1",)
    assert quarantine.taken_back(after.health.excluded, after.health.excluded) == ()
    assert quarantine.newly_broken(before.health.excluded, after.health.excluded) == {}
    again = quarantine.exclude(after.health.excluded, ["n1"], "again", 9.0, SLURM, 9, ["n1"], {"n1": "new"})
    assert again.excluded["n1"] == Exclusion("again", 9.0, 9.0 + DAY_S, True, "new", 1)
    later = quarantine.exclude(again.excluded, ["n1"], "suspected", 10.0, SLURM, 9)
    assert later.excluded["n1"].boot_id == "new", "a lesser reason does not make it well"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["found", "boot", "passes", "fails", "look"]),
        st.sampled_from([0.0, 60.0, 0.6 * DAY_S, 3 * DAY_S]),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_comes_nobody_works_in_the_boot_in_which_it_broke(steps: list[tuple[str, float]]) -> None:
    state = replace(state_with(OUT), health=NodeHealth())
    now, boots, found_at, broken_boot = 0.0, 0, float("-inf"), ""
    for what, after_s in steps:
        now += after_s
        node = state.roster.nodes["n1"]
        if what == "found" and "n1" not in standing.active(state.health.excluded, now):
            found_at, broken_boot = now, node.boot_id
            done = quarantine.exclude(state.health.excluded, ["n1"], "x", now, SLURM, 9, ["n1"], {"n1": broken_boot})
            assert done.taken == ("n1",)
            state = replace(state, health=replace(state.health, excluded=done.excluded))
        elif what == "boot":
            boots += 1
            node = replace(node, boot_id=f"boot {boots}", checked=None)
        elif what in {"passes", "fails"}:
            node = replace(node, checked=what == "passes")
        state, _ = quarantine.reviewed(replace(state, roster=replace(state.roster, nodes={"n1": node})), now, SLURM)
        out = "n1" in standing.active(state.health.excluded, now)
        cured = node.boot_id != broken_boot and node.checked is True
        assert out or now >= found_at + WEEK_S or cured or not state.health.excluded["n1"].boot_id
        assert state.health.excluded.get("n1", OUT).returns_count <= quarantine.RETURNS_MAX_COUNT
        if now >= found_at + WEEK_S:
            assert not out, "a week is the most"
