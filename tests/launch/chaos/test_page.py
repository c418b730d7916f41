"""What people read of drills: the list of kinds, the table, the page for a browser, and docs/drill.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangrun.display.status_page import PageFormat
from gangrun.launch.chaos.kinds import KINDS, DrillKind
from gangrun.launch.chaos.page import kinds_page, rehearsal_html, rehearsal_page
from gangrun.launch.chaos.plan import Drill, Sla, plan_of
from gangrun.launch.chaos.score import DrillConclusion, LeftBehind, Rehearsal, Struck, not_done, scored
from tests.command_line import Call

PAGE = (Path(__file__).parents[3] / "docs" / "drill.md").read_text("utf-8")
LOOK = PageFormat(1_800_000_000.0)
DRILLED_MIN_COUNT = 300


def rehearsal() -> Rehearsal:
    """One drill that holds, one that does not, one that could not be done; names are foreign text."""
    struck = Struck(1000.0, 0, "n1", 3, "SIGKILL to rank 3 on n1")
    good = DrillConclusion("killed", ("n1",), "rank 3 was <b>killed</b>", 1000.1, 1002.0, 5, 1)
    bad = DrillConclusion("hang", ("n2",), "no progress\x1b[2J", 1030.0, 1040.0, 200, 1)
    kind, left = DrillKind.KILL_RANK, LeftBehind(0, None)
    scores = (
        scored(1, "r", Drill(kind), struck, good, left),
        scored(2, "r", Drill(kind, sla=Sla(noticed_s=5.0)), struck, bad, left),
        not_done(3, "r", Drill(DrillKind.DRAIN), "no node is free"),
    )
    return Rehearsal(seed=4, holds=False, drills=scores)


def test_a_table_shows_each_drill_and_each_point_that_was_missed() -> None:
    lines = rehearsal_page(rehearsal(), LOOK)
    text = "\n".join(lines)
    assert re.search(r"1 +kill-rank +killed +n1 +0\.1 s +2\.0 s +5 +holds", text)
    for words in (
        "drill 2, kill-rank: noticed is 30.0 s, must be <= 5 s",
        "right cause is hang, must be killed",
        "right node is n2, must be n1",
        "steps lost is 200, must be <= 100",
        "drill 3, drain: done is no node is free",
    ):
        assert words in text, text
    assert lines[-1] == "the SLA was missed by 2 of seed 4, 3 drills"
    assert "\x1b" not in text


def test_a_page_for_a_browser_has_all_of_it_and_no_foreign_markup() -> None:
    page = rehearsal_html(rehearsal(), LOOK)
    assert page.startswith("<!DOCTYPE html>") and "SLA MISSED" in page
    assert "rank 3 was &lt;b&gt;killed&lt;/b&gt;" in page and "\x1b" not in page
    assert page.count("<details>") == 3 and "missed: noticed, right cause, right node, steps lost" in page


def test_the_list_names_every_kind_and_why_it_is_not_done_elsewhere(gangrun: Call) -> None:
    text = " ".join("\n".join(kinds_page(LOOK)).split())
    for kind, row in KINDS.items():
        assert f" {kind.value} {row.does}" in f" {text}", kind
        assert row.refusal in text
    assert gangrun("chaos", "--list").out.split() == "\n".join(kinds_page(LOOK)).split()


def test_the_page_of_drills_has_every_kind_a_plan_that_loads_and_enough_drills(tmp_path: Path) -> None:
    for kind, row in KINDS.items():
        assert f"| `{kind.value}` | {row.does} | {row.leads_to} |" in PAGE, kind
    plan = tmp_path / "plan.toml"
    plan.write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    assert len(plan_of(plan, (), 0, local=True).drills) == 5
    counts = re.search(r"^(\d+) drilled faults: (\d+) simulated and (\d+) on real processes", PAGE, re.MULTILINE)
    assert counts is not None
    whole, simulated, real = map(int, counts.groups())
    assert whole == simulated + real >= DRILLED_MIN_COUNT and real >= 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--local",), "the plan has no drills"),
        (("--local", "--kind", "kill-renk"), "did you mean kill-rank?"),
        (("--kind", "ib-down", "x"), "ib-down cannot be done to this run: the ports of real nodes belong to others"),
        (("--kind", "cut"), "cut cannot be done to this run: the networks of real nodes belong to others"),
        (("--kind", "clock-jump", "x"), "clock-jump cannot be done to this run: all processes of a machine share its"),
        (("--kind", "nan-loss", "x"), "nan-loss cannot be done to this run: your script reports its own loss"),
        (("a", "b", "--kind", "kill-rank"), "a COMMAND is for --local"),
        (("--local", "--kind", "kill-rank", "--html", "x.txt"), "--html takes a file whose name ends in .html"),
        (("no-such-run", "--kind", "kill-rank", "--yes"), "no run"),
    ],
)
def test_what_is_refused_says_why(home: Path, gangrun: Call, words: tuple[str, ...], told: str) -> None:
    said = gangrun("chaos", *words)
    assert said.code in (2, 5) and told in said.err, said.err
