"""``gangrun simulate``: one page or one object, and files of failures whose mistakes are said with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Call

SHORT = ("simulate", "--nodes", "16", "--days", "20")
OWN = """
base = "llama3"
name = "ours"
queue_wait = "20m"
[recovery]
first_step = "3m"
[[failure]]
cause = "GPU"
kind = "device"
per_1000_node_days = 40
lasts = "2h"
"""


def test_a_page_compares_policies_and_names_its_source(gangrun: Call) -> None:
    page = gangrun(*SHORT, "--failures", "rsc", "--policy", "gangrun", "--policy", "by-hand", "--spares", "2").out
    assert "128 GPUs on 16 nodes" in page
    assert "arXiv 2410.21680" in page
    assert "Assumed:" in page
    assert page.count("\ngangrun ") == page.count("\nby-hand ") == 3, "one row in each table"


def test_an_object_has_all_of_it_and_options_count(gangrun: Call) -> None:
    found = gangrun(
        *SHORT, "--failures", "delta", "--restart", "2m", "--queue-wait", "1h", "--interval", "5m", "--json"
    ).json
    assert (found["days"], found["queue_wait_s"], found["recovery_s"]["first_step"]) == (20, 3600, 120)
    first, by_hand = found["policies"]
    assert (first["way"]["interval_s"], by_hand["way"]["interval_s"]) == (300, 3600)
    assert first["whole_s"] == by_hand["whole_s"] == 20 * 86400
    assert gangrun(*SHORT, "--failures", "delta", "--seed", "4", "--json").json["policies"] != found["policies"]
    assert gangrun(*SHORT, "--rounds", "2").out.count("20 d, 2 times, seed 0") == 1


def test_a_file_says_what_differs_from_its_base(gangrun: Call, tmp_path: Path) -> None:
    path = tmp_path / "failures.toml"
    path.write_text(OWN)
    found = gangrun(*SHORT, "--failures", str(path), "--policy", "gangrun", "--json").json
    assert (found["failures"], found["queue_wait_s"], found["recovery_s"]["first_step"]) == ("ours", 1200, 180)
    assert found["recovery_s"]["notice_node"] == 2, "as in the base"
    assert found["mtbf_s"] == pytest.approx(86400 / (0.04 * 16))
    assert found["policies"][0]["causes"].keys() == {"GPU"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "it has no failures"),
        ("base = 'llama4'", "base: 'llama4' is not one of"),
        ("speed = 3", "unknown key 'speed'"),
        ("failure = 3", "failure is not a list of tables"),
        ("base = 'rsc'\nrecovery = 3", "recovery is not a table"),
        ("base = 'rsc'\n[recovery]\nfirst_stepp = 3", "[recovery] unknown key 'first_stepp'"),
        ("base = 'rsc'\n[recovery]\nstart = 'soon'", "[recovery] start: 'soon' is not a time"),
        ("base = 'rsc'\nlemon_share = 1.1", "lemon_share: 1.1 is not a number from 0 to 1"),
        ("base = 'rsc'\nlemon_factor = 0.5", "lemon_factor: 0.5 is not a number from 1"),
        ("[[failure]]\nkind = 'node'", "[[failure]] 1: cause is missing"),
        ("[[failure]]\ncause = 'x'\nkind = 'gpu'", "[[failure]] 1: kind: 'gpu' is not one of device"),
        ("[[failure]]\ncause = 'x'\nkind = 'node'", "[[failure]] 1: its rate is not clear"),
        ("[[failure]]\ncause = 'x'\nkind = 'storage'\nper_1000_node_days = 1", "its rate is not clear"),
        ("[[failure]]\ncause = 'x'\nkind = 'node'\nper_1000_node_days = 1\nnodes = 2", "nodes is for outages only"),
        ("[[failure]]\ncause = 'x'\nkind = 'outage'\nper_1000_node_days = 1\nnodes = 0", "nodes: 0 is not a whole"),
        ("[[failure]", "is not TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(gangrun: Call, tmp_path: Path, words: str, message: str) -> None:
    path = tmp_path / "failures.toml"
    path.write_text(words)
    said = gangrun(*SHORT, "--failures", str(path))
    assert said.code == 2
    assert message in said.err


def test_what_is_wrong_on_the_command_line_is_said(gangrun: Call, tmp_path: Path) -> None:
    for words, message in (
        (("--failures", "lama3"), "did you mean llama3?"),
        (("--failures", str(tmp_path / "none.toml")), "cannot read"),
        (("--days", "0"), "not a number of days"),
        (("--interval", "0"), "must be more than 0"),
    ):
        said = gangrun(*SHORT, *words)
        assert said.code == 2
        assert message in said.err
