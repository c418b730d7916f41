"""What is told of many looks: each finding once, and never what our own kill left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.health.framework.check import CauseClass, Finding, FindingEvidence, Needs, Scope, Severity, Sticky
from gangrun.health.framework.evidence import QUIET_S, News, in_core, is_fatal, is_poor, travels
from gangrun.health.gpu.xid import COALESCED_S, ECHO_S, REMEMBERED_S, GpuWord, XidStory

HOT = Finding(
    "gpu_temperature", Scope.GPU, "gpu 0", Severity.WARN, CauseClass.HARDWARE, Needs.ADMIN, Sticky.NO,
    FindingEvidence(90), "gpu 0 is hot",
)  # fmt: skip


def test_a_finding_that_holds_is_told_once_and_again_after_it_was_gone_for_long() -> None:
    news = News()
    assert news.fresh([HOT], 0.0) == [HOT]
    assert all(news.fresh([HOT], at) == [] for at in range(15, 86400, 15))
    at = 86400.0 + QUIET_S + 1
    assert news.fresh([HOT], at) == [HOT]
    assert news.fresh([HOT, replace(HOT, place="gpu 1")], at) == [replace(HOT, place="gpu 1")]


def test_worse_is_news_and_better_is_not() -> None:
    news, worse = News(), replace(HOT, severity=Severity.FAIL)
    news.fresh([HOT], 0.0)
    assert news.fresh([worse], 1.0) == [worse]
    assert news.fresh([HOT], 2.0) == []
    assert news.fresh([worse], 3.0) == []
    news.forget()
    assert news.fresh([HOT], 4.0) == [HOT]


def test_many_more_links_with_the_same_trouble_are_news() -> None:
    news = News()
    told = [news.fresh([replace(HOT, devices_count=count)], float(count)) for count in range(1, 19)]
    assert [found[0].devices_count for found in told if found] == [1, 2, 4, 8, 16]
    assert news.fresh([replace(HOT, devices_count=2)], 20.0) == []
    assert news.fresh([replace(HOT, devices_count=18)], 21.0) == []


def test_what_is_no_fault_of_a_device_hides_none_of_its_own() -> None:
    news, busy = News(), replace(HOT, cause=CauseClass.ELSEWHERE)
    assert news.fresh([busy], 0.0) == [busy]
    assert news.fresh([busy, HOT], 1.0) == [HOT]
    assert all(news.fresh([busy], at) == [] for at in range(100, 1000, 100))
    assert news.fresh([busy, HOT], 1000.0) == [HOT], "it was gone for long, however busy the place was"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"cause": CauseClass.CONFIG}, False),
        ({"cause": CauseClass.ELSEWHERE}, True),
        ({"cause": CauseClass.CONFIG, "severity": Severity.FAIL}, True),
        ({"check": "host_load", "scope": Scope.NODE}, False),
        ({"severity": Severity.OK}, False),
    ],
)
def test_what_travels(changes: dict[str, object], expected: bool) -> None:
    assert travels(replace(HOT, **changes)) is expected  # type: ignore[arg-type]


W, F = Severity.WARN, Severity.FAIL
HARD, APP, EITHER, CONFIG = CauseClass.HARDWARE, CauseClass.APPLICATION, CauseClass.EITHER, CauseClass.CONFIG
ELSE = CauseClass.ELSEWHERE


@pytest.mark.parametrize(
    ("severity", "scope", "cause", "fatal", "poor"),
    [
        (F, Scope.GPU, HARD, True, False),
        (F, Scope.GPU, CONFIG, True, False),  # no driver: nothing could run here
        (F, Scope.PORT, HARD, True, False),
        (F, Scope.NODE, EITHER, True, False),
        (F, Scope.NODE, CONFIG, False, True),  # a set-up that the whole site may share
        (F, Scope.FS, EITHER, False, True),  # a file server's, perhaps
        (F, Scope.GPU, APP, False, False),
        (F, Scope.PORT, ELSE, False, False),
        (W, Scope.PORT, ELSE, False, False),
        (W, Scope.GPU, HARD, False, True),
        (W, Scope.LINK, EITHER, False, True),
        (W, Scope.GPU, CONFIG, False, False),
        (W, Scope.NODE, HARD, False, False),
        (Severity.OK, Scope.GPU, APP, False, False),
    ],
)
def test_what_a_finding_does_to_its_node(
    severity: Severity, scope: Scope, cause: CauseClass, fatal: bool, poor: bool
) -> None:
    finding = replace(HOT, severity=severity, scope=scope, cause=cause)
    assert (is_fatal(finding), is_poor(finding)) == (fatal, poor)
    told = in_core("n1", finding, 7.0)
    assert (told.node, told.fatal, told.poor, told.needs, told.place, told.at) == (
        "n1", fatal, poor, "admin", "gpu 0", 7.0,
    )  # fmt: skip


def story(attempt: int = 0) -> XidStory:
    one = XidStory("n1")
    one.gang(attempt, False, 0.0)
    return one


def test_a_burst_is_one_event() -> None:
    one = story()
    told = [one.event("gpu 0", 79, at) for at in (0.0, 1.0, 4.0)]
    assert [found is not None for found in told] == [True, False, False]
    assert one.event("gpu 0", 79, 4.0 + COALESCED_S + 1) is not None


def test_what_our_own_kill_leaves_behind_is_not_told_but_hardware_is() -> None:
    one = story()
    one.gang(0, True, 10.0)
    assert one.event("gpu 0", 43, 11.0) is None
    assert one.event("gpu 0", 31, 12.0) is None
    assert one.event("gpu 1", 79, 13.0) is not None
    one.gang(0, False, 20.0)
    assert one.event("gpu 2", 45, 20.0 + ECHO_S) is None
    assert one.event("gpu 2", 31, 20.1 + ECHO_S) is not None


def test_the_same_gpu_in_two_attempts_is_a_sign_and_two_gpus_are_none() -> None:
    one = story()

    def sentence(gpu: str, at: float) -> tuple[Severity, str]:
        event = one.event(gpu, 31, at)
        assert event is not None
        found = one.finding(event, GpuWord(), at)
        assert found is not None
        return found.severity, found.sentence

    assert sentence("gpu 0", 100.0)[0] is Severity.OK
    one.gang(1, False, 150.0)
    severity, words = sentence("gpu 0", 200.0)
    assert severity is Severity.WARN
    assert "2 attempts" in words
    assert sentence("gpu 1", 205.0)[0] is Severity.OK
    one.gang(2, False, 300.0)
    assert sentence("gpu 0", 300.0 + REMEMBERED_S)[0] is Severity.OK


def test_what_the_gpu_asks_for_decides_an_event_without_an_answer() -> None:
    one = story()
    event = one.event("gpu 0", 154, 1.0)
    assert event is not None
    assert one.finding(event, GpuWord(), 1.0) is None
    found = one.finding(event, GpuWord(recovery_action=2), 1.0)
    assert found is not None
    assert is_fatal(found)


ECC = replace(HOT, check="gpu_ecc", severity=F, needs=Needs.RESET, sticky=Sticky.BOOT, sentence="gpu 0 had 1 error")


@pytest.mark.parametrize(
    ("reported", "finding", "fatal"),
    [
        ([("gpu 0", 94)], ECC, False),
        ([("gpu 0", 48), ("gpu 0", 94)], replace(ECC, check="gpu_ecc_growth"), False),
        ([], ECC, True),
        ([("gpu 1", 94)], ECC, True),
        ([("gpu 0", 94), ("gpu 0", 95)], ECC, True),
        ([("gpu 0", 94), ("gpu 0", 64)], ECC, True),
        ([("gpu 0", 94)], replace(ECC, check="gpu_remapped"), True),
    ],
)
def test_memory_errors_that_were_contained_do_not_cost_the_node(
    reported: list[tuple[str, int]], finding: Finding, fatal: bool
) -> None:
    story = XidStory("n1")
    for gpu, xid in reported:
        story.event(gpu, xid, 100.0)
    weighed = story.weighed(finding)
    assert is_fatal(weighed) is fatal
    assert ("contained (XID 94)" in weighed.sentence) is not fatal
    assert in_core("n1", weighed, 0.0).poor is not fatal
    assert story.weighed(HOT) == HOT
