"""``gangrun explain``: the core's sentences verbatim, with what was seen and done; nothing that matters is left out."""

from __future__ import annotations

import io
from datetime import timezone
from pathlib import Path

from gangrun.core import actions as core_actions
from gangrun.core import events as core_events
from gangrun.core.events import (
    AgentJoined,
    CancelRequested,
    CheckpointSeen,
    FindingRaised,
    NodeChecked,
    ProgressStalled,
    RankFinished,
    StacksTaken,
)
from gangrun.core.evidence import Alert, AlertKind, NodeFinding, RankObservation, RankStack
from gangrun.core.model import CheckpointRef, Level
from gangrun.core.policy import Policy
from gangrun.display.event_words import done, ranks_words, seen
from gangrun.display.explain_page import explained, page
from gangrun.display.live_view import LiveView
from gangrun.display.status_page import PageFormat
from gangrun.runs.snapshot import read
from gangrun.wire import kinds
from tests.command_line import Call, golden
from tests.runs.builder import BEGAN, Builder
from tests.runs.stories import failed, restarted, running


def test_the_story_of_a_script_that_fails_twice(runs: Path) -> None:
    story = failed(runs)
    look = PageFormat(BEGAN + 3600, 100, zone=timezone.utc)
    golden("explain-failed.txt", "\n".join(page(explained(read(story.paths, timeline=True), BEGAN), look)) + "\n")


def test_with_all_every_sentence_of_the_core_is_there_verbatim(runs: Path, gangrun: Call) -> None:
    story = failed(runs)
    told = gangrun("explain", "--all", "--json").json["story"]
    assert [entry["concluded"] for entry in told if entry["event"] not in ("Snapshot", "")] == story.reasons


def test_by_default_what_matters_is_told(runs: Path, gangrun: Call) -> None:
    restarted(runs)
    said = " ".join(gangrun("explain").out.split())
    assert "step 30 was passed over: .metadata ends early" in said
    assert "rank 2 on n1: ended with exit code 1: RuntimeError: shape mismatch: 3 vs 4" in said
    assert "ranks 0-1,3 ended too" in said  # victims are summed up
    assert "attempt 1 on n[0-1], from step 20" in said
    assert "1 checkpoint seen, newest of step 20" in said
    assert "ticket" not in said


def test_the_step_that_a_cancel_saved_is_told(runs: Path, gangrun: Call) -> None:
    story = running(runs).on(CancelRequested("ann (gangrun cancel)"))
    story.on(CheckpointSeen(CheckpointRef(50, "/ckpt/step-50", Level.COMPLETE), told=True))
    said = " ".join(gangrun("explain").out.split())
    assert "(10 s grace, a checkpoint first if the script can)" in said
    assert "checkpoint of step 50 is complete; this is the checkpoint that ranks were told to save" in said


def test_a_cancel_at_once_is_told_without_a_grace(runs: Path, gangrun: Call) -> None:
    running(runs).on(CancelRequested("ann (gangrun cancel --now)", now=True))
    said = " ".join(gangrun("explain").out.split())
    assert "stopped all ranks (no grace)" in said
    assert "10 s grace" not in said


def test_ignored_and_refused_events_are_told_only_when_asked_for(runs: Path, gangrun: Call) -> None:
    running(runs).on(RankFinished(7, 0, "n0", 1.0))
    assert "ignored" not in gangrun("explain").out
    said = gangrun("explain", "--all").out
    assert "ignored" in said
    assert "(ticket 1)" in said


def test_a_hang_is_told_with_where_every_rank_stood(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    ranks = tuple(RankObservation(r, f"n{r // 2}", "T" if r == 3 else "S", 40, 0.0) for r in range(4))
    story.on(ProgressStalled(0, 130.0, 120.0, ranks))
    story.on(StacksTaken(0, tuple(RankStack(r, f"n{r // 2}", "all_reduce" if r < 3 else "save", "") for r in range(4))))
    said = " ".join(gangrun("explain").out.split())
    assert (
        "no sign of progress for 130 s (limit 120 s); ranks 0-2 at step 40 waiting, rank 3 at step 40 stopped" in said
    )
    assert "stacks of the ranks: ranks 0-2 in all_reduce; rank 3 in save" in said


def test_a_takeover_is_told(runs: Path, gangrun: Call) -> None:
    running(runs).supervisor()
    said = gangrun("explain").out
    assert "supervisor #1 begins" in said
    assert "supervisor #2 took over" in said


def test_damage_in_the_journal_is_told(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    with story.paths.journal(1).open("ab") as file:
        file.write(b'{"v":1,"term":1,"n":')
    said = " ".join(gangrun("explain").out.split())
    assert "the journal could not be read in full" in said
    assert "cut off" in said


def test_a_run_that_has_not_begun(runs: Path, gangrun: Call) -> None:
    Builder(runs)
    assert "no decision yet" in gangrun("explain").out


def test_words_for_an_event_hold_its_evidence() -> None:
    lost = kinds.event_of("NodeLost", {"node": "n0", "since": 1.0, "why": "probes failed"})
    assert seen(lost, 5.0) == "n0 is lost, no heartbeat for 4 s: probes failed"


def test_every_event_and_action_has_words() -> None:
    """The match statements are exhaustive by type; this one fails where a case was added and returns nothing."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(max_examples=60)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(core_events.Event.__args__).flatmap(st.from_type))
        assert seen(event, 5.0)
        action = data.draw(st.sampled_from(core_actions.Action.__args__).flatmap(st.from_type))
        assert done(action)

    check()


def test_every_alert_has_words() -> None:
    told = [seen(core_events.AlertSeen(0, Alert(kind, "n1", 3)), 5.0) for kind in AlertKind]
    assert all(words.startswith("rank 3 on n1: ") for words in told) and len(set(told)) == len(AlertKind)


def test_ranks_are_folded() -> None:
    assert ranks_words([3]) == "rank 3"
    assert ranks_words([5, 0, 1, 2]) == "ranks 0-2,5"


CLEAN = "0 wrong in 4 products, in 9 s"


def suspected_beside_training(runs: Path) -> Builder:
    story = Builder(runs, policy=Policy(test_at_start=True, test_suspects=True)).supervisor()
    for node in ("n0", "n1"):
        story.on(AgentJoined(node, f"i-{node}", f"b-{node}", 2))
    for node in ("n0", "n1"):
        story.on(NodeChecked(node, True, tested=CLEAN))
    story.again().on(AgentJoined("s0", "i-s0", "b-s0", 2)).on(NodeChecked("s0", True, tested=CLEAN))
    story.on(FindingRaised(NodeFinding("n1", "xid", False, "XID 94 on gpu 1", poor=True)))
    return story.exit(2, signal=11).stopped().again()


def test_a_suspects_answer_is_told_while_others_train(runs: Path, gangrun: Call) -> None:
    story = suspected_beside_training(runs)
    said = " ".join(gangrun("status").out.split())
    assert "devices n0,s0 passed the test; n1 is being tested (attempt 0: signal)" in said
    story.on(NodeChecked("n1", True, tested=CLEAN))
    said = " ".join(gangrun("explain").out.split())
    assert "started the checks of n[0-1], with a device test" in said
    assert "devices of n1 are tested meanwhile; other nodes take part" in said
    assert f"n1 was suspected (attempt 0: signal), and its devices work: {CLEAN}; it may be used again" in said
    tests = gangrun("status", "--json").json["tests"]
    assert [(one["node"], one["state"]) for one in tests] == [("n0", "passed"), ("n1", "passed"), ("s0", "passed")]


def test_whoever_waits_for_tests_is_told_so(runs: Path) -> None:
    story = suspected_beside_training(runs)
    told = io.StringIO()
    view = LiveView(lambda rank, node: runs / "no log", lambda term: {}, lambda: 0.0, io.StringIO(), told)
    for record in read(story.paths, timeline=True).records:
        view.record(record)
    assert "all 2 nodes are here; checking n[0-1], with devices at work" in told.getvalue()
    assert f"n1 passed its checks, and its devices work: {CLEAN}; starting attempt 0" in told.getvalue()
    assert "n0 passed" not in told.getvalue(), "of thousands of nodes the last one is enough"
