"""Nodes that are left out until they have booted: who is taken back, who stays out, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.actions import CheckNodes, StartGang, SubmitSuccessor
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
from gangrun.core.model import Exclusion, Node, NodeFinding, NodeHealth, Phase, Roster, RunState, Shape
from gangrun.core.nodes import quarantine, standing
from gangrun.core.nodes.device_test import THOROUGH
from gangrun.core.policy import Policy
from tests.core.life import Life

SLURM = Policy(can_requeue=True)
DAY_S, WEEK_S = SLURM.exclusion_s, quarantine.WEEK_S


def lost(node: str) -> FindingRaised:
    return FindingRaised(NodeFinding(node, "gpu_lost", True, "gpu 3 is lost", 0.0, until_boot=True))


def without_n1() -> Life:
    """Two nodes and a spare, n1's GPU is lost, and its ranks run on the spare."""
    life = Life(2, policy=SLURM)
    life.join(*life.names, "s0")
    for name in (*life.names, "s0"):
        life.on(NodeChecked(name, True))
    life.again()
    life.on(GangStarted(life.state.attempt.number))
    life.on(lost("n1"))
    life.stopped()
    life.says("n1 left out until it has booted and passed its checks")
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
    life.says("n1 has booted anew and passed its checks, so it is taken back (hardware failed on n1")
    assert not standing.active(life.state.health.excluded, life.now)


def test_an_agent_that_came_back_in_the_same_boot_changes_nothing() -> None:
    life = without_n1()
    life.on(AgentRejoined("n1", "i2", "b-n1", 2))
    restart(life, "n1")
    assert set(standing.active(life.state.health.excluded, life.now)) == {"n1"}
    assert "taken back" not in life.reason


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
    life.on(lost("n0"))
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
        "n0 was left out until it had booted (hardware failed on n0", f"and its devices work: {CLEAN}; n0 has booted"
    )
    life.says("passed its checks, so it is taken back", "starting attempt 1")
    assert life.state.health.suspected_at == {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            NodeChecked("n0", False, "gpu 1 computed 3 numbers wrong"),
            "), and failed: gpu 1 computed 3 numbers wrong",
        ),
        (None, "it was left out until it had booted (hardware failed on n0"),
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
            "n0 passed its checks; n0 has booted anew and passed its checks, so it is taken",
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
    assert "taken back" not in life.reason


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
    life.says("n0 was left out until it had booted, or been reset (", f"and its devices work: {CLEAN}")
    life.says("n0 was reset, as its sign is gone, and passed its checks, so it is taken back (", "starting attempt")
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
        (OUT, "bad", True, DAY_S, "has not booted since, so it stays out (gpu 3 is lost)", True),
        (OUT, "bad", True, WEEK_S, "", False),
        (OUT, "new", True, 5.0, "is taken back", False),
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
