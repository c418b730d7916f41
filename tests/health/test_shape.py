"""The shape of checks: the list and its page are equal, and nothing that a check does can hurt."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.health.catalogue import ACTIVE_CHECKS, ACTIVE_FAMILIES, CHECKS, FAMILIES
from gangrun.health.framework.check import (
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    Finding,
    FindingEvidence,
    HealthPolicy,
    Needs,
    NodeFacts,
    Reading,
    Scope,
    Severity,
    Sticky,
    growth,
    in_window,
    judged,
    span,
    verdict_of,
    with_windows,
    worst,
)  # fmt: skip
from gangrun.health.framework.readings import facts_from, plain_facts, plain_reading, reading_from
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings, Rounds
from tests.health.looks import POLICY, HandClock, Scripted, reading
from tests.waiting import until

DOCS = (Path(__file__).parents[2] / "docs" / "health.md").read_text("utf-8")


def test_the_list_and_its_page_are_equal() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\|[^|]*\|$", DOCS, re.MULTILINE)
    assert rows == [one.name for one in CHECKS + ACTIVE_CHECKS]
    assert len(set(rows)) == len(rows)


def test_every_check_belongs_to_the_family_that_reads_for_it() -> None:
    assert [(f.name, c.family) for f in FAMILIES + ACTIVE_FAMILIES for c in f.checks if c.family != f.name] == []
    assert all(one.asks and one.every_s >= 5 for one in CHECKS + ACTIVE_CHECKS)


def test_every_xid_is_on_the_page() -> None:
    from gangrun.health.gpu.xid_table import XIDS, XidClass

    for kind in XidClass:
        [row] = re.findall(rf"^\| {kind.value} \| ([^|]*)\|", DOCS, re.MULTILINE)
        told: set[int] = set()
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", row):
            told |= set(range(int(first), int(last or first) + 1))
        assert told == {xid for xid, one in XIDS.items() if one.kind is kind}, kind


# ---- rounds ----------------------------------------------------------------------------------------------------------

ONE = Check("one", "f", "asks", lambda look: CheckOutcome("fine"))


def rounds(read, tmp_path: Path, *checks: Check, within_s: float = 5.0) -> Rounds:
    around = HealthSurroundings(tmp_path, Scripted())
    return Rounds([CheckFamily("f", within_s, read, checks or (ONE,))], around, POLICY, HandClock())


def test_a_reading_that_raises_is_unknown(tmp_path: Path) -> None:
    def read(around: HealthSurroundings) -> NodeFacts:
        raise RuntimeError("the file\nis on fire")

    [verdict] = rounds(read, tmp_path).look()
    assert verdict.severity is Severity.UNKNOWN
    assert "RuntimeError: the file" in verdict.words


def test_a_judge_that_raises_is_unknown_and_the_others_go_on(tmp_path: Path) -> None:
    broken = replace(ONE, name="broken", judge=lambda look: 1 / 0)  # type: ignore[arg-type,return-value]
    told = rounds(lambda _: NodeFacts(), tmp_path, broken, ONE).look()
    assert [one.severity for one in told] == [Severity.UNKNOWN, Severity.OK]
    assert "ZeroDivisionError" in told[0].words


def test_a_reading_that_hangs_is_unknown_and_no_second_is_sent_after_it(tmp_path: Path) -> None:
    go_on, begun = threading.Event(), []

    def read(around: HealthSurroundings) -> NodeFacts:
        begun.append(1)
        go_on.wait(60)
        return NodeFacts()

    hanging = rounds(read, tmp_path, within_s=0.05)
    [first] = hanging.look()
    until(lambda: begun, 10, "the reading to begin")
    [second] = hanging.look()
    assert (first.severity, second.severity) == (Severity.UNKNOWN, Severity.UNKNOWN)
    assert "no answer within 0.05 s" in first.words
    assert "no second one" in second.words
    assert len(begun) == 1
    go_on.set()


def test_one_that_hangs_costs_those_read_with_it_nothing_and_is_judged_when_it_comes_back(tmp_path: Path) -> None:
    go_on, begun, clock = threading.Event(), list[str](), HandClock()

    def slowly(around: HealthSurroundings) -> NodeFacts:
        begun.append("slow")
        go_on.wait(60)
        return NodeFacts({"a": {"n": 1}})

    quick = CheckFamily("quick", 60.0, lambda _: NodeFacts(), (replace(ONE, family="quick"),))
    unasked = CheckFamily("unasked", 60.0, lambda _: NodeFacts(), (ONE,))
    families = [CheckFamily("slow", 0.05, slowly, (ONE,)), quick, unasked]
    both = Rounds(families, HealthSurroundings(tmp_path, Scripted()), POLICY, clock)
    told = both.look_at_once(["slow", "quick"], 60.0)
    assert {name: one.severity for name, [one] in told.items()} == {"slow": Severity.UNKNOWN, "quick": Severity.OK}
    assert told["slow"][0].words == "no answer within 0.05 s"
    assert (both.late, both.is_out("slow"), both.is_out("quick")) == ({"slow"}, True, False)
    assert "still not come back" in both.look_at("slow")[0].words
    clock.at += 8.0
    go_on.set()
    until(lambda: not both.is_out("slow"), 30, lambda: "the reading to come back")
    [late] = both.look_at("slow")
    assert (late.severity, late.took_s, begun, both.late) == (Severity.OK, 8.0, ["slow"], frozenset())
    both.look_at("slow")
    assert begun == ["slow", "slow"], "what was judged once is not judged again"


def test_families_are_read_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=60)

    def read(around: HealthSurroundings) -> NodeFacts:
        both.wait()
        return NodeFacts()

    families = [CheckFamily(name, 60.0, read, (replace(ONE, family=name),)) for name in ("one", "other")]
    told = Rounds(families, HealthSurroundings(tmp_path, Scripted()), POLICY, HandClock()).look_at_once(
        ["one", "other"], 60.0
    )
    assert [one.severity for [one] in told.values()] == [Severity.OK, Severity.OK]


def test_what_came_back_long_ago_is_not_news(tmp_path: Path) -> None:
    go_on, begun, clock = threading.Event(), list[int](), HandClock()

    def read(around: HealthSurroundings) -> NodeFacts:
        begun.append(1)
        go_on.wait(60)
        return NodeFacts()

    hanging = Rounds([CheckFamily("f", 60.0, read, (ONE,))], HealthSurroundings(tmp_path, Scripted()), POLICY, clock)
    [late] = hanging.look_at_once(["f"], 0.05)["f"]
    assert (late.severity, late.words) == (Severity.UNKNOWN, "no answer within 0.05 s")
    go_on.set()
    until(lambda: not hanging.is_out("f"), 30, lambda: "the reading to come back")
    clock.at += 10.5
    assert (hanging.look_at("f")[0].severity, len(begun)) == (Severity.OK, 2)


@pytest.mark.parametrize("why", ["", "no such thing here"])
def test_how_long_the_reading_took_is_kept_with_each_verdict(tmp_path: Path, why: str) -> None:
    clock = HandClock()

    def read(around: HealthSurroundings) -> NodeFacts:
        clock.at += 2.5
        return NodeFacts(absent=why)

    around = HealthSurroundings(tmp_path, Scripted())
    told = Rounds([CheckFamily("f", 60.0, read, (ONE, ONE))], around, POLICY, clock).look()
    assert [one.took_s for one in told] == [2.5, 2.5]


def test_what_is_absent_is_unknown_with_its_reason(tmp_path: Path) -> None:
    [verdict] = rounds(lambda _: NodeFacts(absent="no such thing here"), tmp_path).look()
    assert (verdict.severity, verdict.words) == (Severity.UNKNOWN, "no such thing here")


def test_the_reading_before_is_the_baseline(tmp_path: Path) -> None:
    seen: list[Reading | None] = []

    def judge(look: CheckLook) -> CheckOutcome:
        seen.append(look.before)
        return CheckOutcome("x")

    told = rounds(lambda _: NodeFacts({"a": {"n": 1}}), tmp_path, replace(ONE, judge=judge))
    told.look()
    told.look()
    assert seen[0] is None
    assert seen[1] is not None
    assert [one.family for one in told.readings()] == ["f"]


def test_unknown_alone_is_no_finding_and_never_worse_than_one() -> None:
    finding = Finding(
        "one",
        Scope.NODE,
        "node",
        Severity.WARN,
        CauseClass.EITHER,
        Needs.NONE,
        Sticky.NO,
        FindingEvidence(1),
        "it is poor",
    )
    both = verdict_of(ONE, CheckOutcome("x", findings=(finding, finding), unknown="the other was silent"))
    assert both.severity is Severity.WARN
    assert both.words == "it is poor (and 1 more)"
    assert verdict_of(ONE, CheckOutcome("x", unknown="silent")).findings == ()
    assert worst([]) is Severity.OK
    assert worst([Severity.UNKNOWN, Severity.OK]) is Severity.UNKNOWN
    assert worst([Severity.FAIL, Severity.WARN, Severity.UNKNOWN]) is Severity.FAIL


# ---- growth ----------------------------------------------------------------------------------------------------------


def counted(value: object, at: float = 1000.0, boot: str = "b", uuid: str = "u") -> Reading:
    return reading({"p": {"n": value, "uuid": uuid}}, at, boot)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, counted(5)),
        (counted(3, at=990, boot="a"), counted(5)),
        (counted(9, at=990), counted(5)),
        (counted(3, at=1000), counted(5)),
        (counted(3, at=990, uuid="v"), counted(5)),
        (counted("3", at=990), counted(5)),
        (counted(3, at=990), counted(float("nan"))),
    ],
    ids=["first look", "another boot", "went back", "no time", "another gpu", "no number", "nan"],
)
def test_without_a_true_baseline_there_is_no_growth(before: Reading | None, now: Reading) -> None:
    assert growth(now, before, "p", "n") is None


def test_growth() -> None:
    grown = growth(counted(5), counted(3, at=980), "p", "n")
    assert grown is not None
    assert (grown.count, grown.per_s, grown.words) == (2, 0.1, "from 3 to 5 in 20 s")
    assert [span(s) for s in (0.5, 119, 600, 9000)] == ["0.5 s", "119 s", "10 min", "2 h"]


def test_a_window_outlasts_looks_and_begins_anew() -> None:
    now, windows = with_windows(counted(1, at=0.0), None, {"n": 100.0}), {"n": 100.0}
    assert in_window(now, "p", "n") is None
    for at in (10.0, 50.0, 100.0):
        now = with_windows(counted(at, at=at), now, windows)
        grown = in_window(now, "p", "n")
        assert grown is not None
        assert (grown.old, grown.over_s) == (1, at)
    next_one = in_window(with_windows(counted(500, at=101.0), now, windows), "p", "n")
    assert next_one is not None, "what happens as a window ends is in the next one"
    assert (next_one.old, next_one.count, next_one.over_s) == (100.0, 400.0, 1.0)
    unseen = in_window(with_windows(counted(500, at=300.0), now, windows), "p", "n")
    assert unseen is not None, "nobody looked for longer than the window"
    assert (unseen.old, unseen.count, unseen.over_s) == (100.0, 400.0, 200.0)
    assert in_window(with_windows(counted(500, at=90.0, boot="z"), now, windows), "p", "n") is None


# ---- what others wrote -----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["node", "gpu 0", "gpu 1 link 0", "mlx5_0 port 1", "on_bus_count", "gpus_count", "nvml_error", "state", "rate",
     "ecc_corrected", "recovery_action", "lost_code", "temperature_c", "pcie_width", "fabric_state", "tainted", "load",
     "available_bytes", "memory_bytes", "resolve_s", "probe_s", "used_share", "inodes_free", "active", "x"]
)  # fmt: skip
ODD = st.fixed_dictionaries(
    {}, optional={"values": st.dictionaries(NAMES, st.dictionaries(NAMES, JSON)), "missing": JSON, "absent": JSON}
)


@given(JSON | ODD)
def test_whatever_is_said_becomes_values_or_nothing(plain: object) -> None:
    facts = facts_from(plain)
    for names in facts.values.values():
        assert all(isinstance(value, (int, float, str)) and not isinstance(value, bool) for value in names.values())
    json.dumps(plain_facts(facts), allow_nan=False)


@given(ODD, ODD | st.none())
def test_no_judge_stumbles_over_odd_values(now_plain: object, before_plain: object) -> None:
    now = Reading("any", 1000.0, "b", facts_from(now_plain))
    before = Reading("any", 990.0, "b", facts_from(before_plain)) if before_plain is not None else None
    for one in FAMILIES + ACTIVE_FAMILIES:
        was = one.remember(before, None) if before is not None else None
        seen = one.remember(now, was)
        for check in one.checks:
            verdict = judged(check, seen, was, POLICY)
            assert "could not be judged" not in verdict.words, (check.name, verdict.words)


def test_readings_are_kept_and_found_again() -> None:
    kept = reading({"gpu 0": {"ecc": 3, "uuid": "GPU-1", "c": 1.5}}, driver="too old")
    assert reading_from(json.loads(json.dumps(plain_reading(kept)))) == kept
    odd: list[object] = [None, [], {}, {"family": 1}, {"family": "f", "at": True, "boot_id": "b"}, {"at": 1}]
    for nonsense in odd:
        assert reading_from(nonsense) is None


@pytest.mark.parametrize("bad", [{"disk_used_warn": -1.0}, {"probe_warn_s": float("nan")}, {"disk_used_fail": 0.5}])
def test_a_bound_that_means_nothing_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"disk_used|probe_warn_s"):
        HealthPolicy(**bad)  # type: ignore[arg-type]
