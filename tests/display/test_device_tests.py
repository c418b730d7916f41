"""That devices were put to work, and what came out: in ``explain``, ``status`` and on the screen of ``gangrun run``."""

from __future__ import annotations

import io
from pathlib import Path

from gangrun.core.events import AgentJoined, FindingRaised, NodeChecked
from gangrun.core.model import NodeFinding
from gangrun.core.policy import Policy
from gangrun.display.live_view import LiveView
from gangrun.runs.snapshot import read
from tests.command_line import Call
from tests.runs.builder import Builder

CLEAN = "0 wrong in 4 products, in 9 s"


def suspected_beside_training(runs: Path) -> Builder:
    story = Builder(runs, policy=Policy(test_at_start=True, test_suspects=True)).supervisor()
    for node in ("n0", "n1"):
        story.on(AgentJoined(node, f"i-{node}", f"b-{node}", 2))
    for node in ("n0", "n1"):
        story.on(NodeChecked(node, True, tested=CLEAN))
    story.again().on(AgentJoined("s0", "i-s0", "b-s0", 2)).on(NodeChecked("s0", True, tested=CLEAN))
    story.on(FindingRaised(NodeFinding("n1", "xid", False, "XID 94 on gpu 1", poor=True)))
    return story.exit(2, signal=7).stopped().again()


def test_a_suspects_answer_is_told_while_others_train(runs: Path, gangrun: Call) -> None:
    story = suspected_beside_training(runs)
    said = " ".join(gangrun("status").out.split())
    assert "devices n0,s0 passed the test; n1 is being tested (attempt 0: signal)" in said
    story.on(NodeChecked("n1", True, tested=CLEAN))
    said = " ".join(gangrun("explain").out.split())
    assert "started the checks of n[0-1], with a device test" in said
    assert "devices of n1 are put to work meanwhile, and others take part" in said
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
