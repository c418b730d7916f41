"""XIDs: the table row by row, then what repetition, company and echoes make of them."""

from __future__ import annotations

from typing import Any

import pytest

from gangrun.health.framework.check import CauseClass, Finding, Needs, Severity, Sticky
from gangrun.health.gpu.xid import GpuWord, XidEvent, coalesced, findings, is_echo
from gangrun.health.gpu.xid_table import RECOVERY_ACTIONS, XIDS, XidClass, row_of

NOW = 100_000.0
# As the policy is meant, written down a second time: number -> (verdict of one event alone, what it needs)
APP = {8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 60, 68, 69, 80, 82, 83, 84, 85, 86, 88, 89, 126}
SILENT = {37, 38, 45, 66, 67, 93, 137, 141, 147, 148, 171, 172, 162, 163, 164, 165, 144, 145, 146, 149, 154}
WATCHED = {92, 121}
SOFT = {44, 56, 63, 65, 73, 74, 81, 94, 109, 157, 159, 160, 161}
HARD_RESET = {46, 48, 57, 58, 61, 62, 95, 110, 119, 120, 122, 123, 124, 125, 136, 140, 143, 150, 155, 156, 158}
HARD_REBOOT = {79, 151, 167, 168, 169}
HARD_OTHER = {64: Needs.RMA, 54: Needs.ADMIN, 78: Needs.ADMIN}


def event(xid: int, ago: float = 10.0, gpu: str = "gpu 0", node: str = "n1", attempt: int = 1, by_us: bool = False):
    return XidEvent(NOW - ago, node, gpu, xid, attempt, by_us)


def found(*events: XidEvent, node: str = "n1", **words: Any) -> tuple[Finding, ...]:
    return findings(node, events, {gpu.replace("_", " "): word for gpu, word in words.items()}, NOW)


def one(*events: XidEvent, xid: int, **words: Any) -> Finding:
    [finding] = [each for each in found(*events, **words) if f"XID {xid} " in each.sentence]
    return finding


def test_every_number_is_in_exactly_one_class_of_this_test() -> None:
    groups = [APP, SILENT, WATCHED, SOFT, HARD_RESET, HARD_REBOOT, set(HARD_OTHER)]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert set().union(*groups) == set(XIDS)


@pytest.mark.parametrize("xid", sorted(XIDS))
def test_one_event_alone(xid: int) -> None:
    told = found(event(xid))
    if xid in SILENT:
        assert told == ()
        return
    [finding] = told
    assert str(xid) in finding.sentence
    assert XIDS[xid].means in finding.sentence
    if xid in APP:
        assert (finding.severity, finding.cause) == (Severity.OK, CauseClass.APPLICATION)
        assert finding.needs is Needs.RESTART
    elif xid in SOFT | WATCHED:
        assert finding.severity is Severity.WARN
    else:
        assert (finding.severity, finding.cause) == (Severity.FAIL, CauseClass.HARDWARE)
        assert finding.sticky is Sticky.BOOT
        needs = HARD_OTHER.get(xid, Needs.REBOOT if xid in HARD_REBOOT else Needs.RESET)
        assert finding.needs is needs


def test_a_number_that_nobody_knows_is_soft_and_says_so() -> None:
    [finding] = found(event(9999))
    assert finding.severity is Severity.WARN
    assert "does not know" in finding.sentence
    assert row_of(9999).kind is XidClass.SOFT


# ---- repetition ------------------------------------------------------------------------------------------------------


def test_the_same_gpu_twice_in_a_day_over_two_attempts_is_suspect() -> None:
    told = one(event(31, ago=40_000, attempt=1), event(31, attempt=2), xid=31)
    assert (told.severity, told.cause) == (Severity.WARN, CauseClass.EITHER)
    assert "2 attempts" in told.sentence


def test_twice_in_one_attempt_is_still_the_programs() -> None:
    assert one(event(31, ago=400), event(31), xid=31).severity is Severity.OK


def test_what_is_older_than_a_day_is_forgotten() -> None:
    assert one(event(31, ago=86_401, attempt=1), event(31, attempt=2), xid=31).severity is Severity.OK


def test_two_attempts_are_the_programs_where_another_gpu_had_it_too() -> None:
    told = one(event(13, ago=900, attempt=1), event(13, attempt=2), event(13, ago=500, node="n2", attempt=1), xid=13)
    assert told.severity is Severity.OK


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_two_gpus_at_once_are_software(node: str) -> None:
    other = event(31, ago=12.0, gpu="gpu 5", node=node)
    told = one(event(31), other, xid=31) if node == "n2" else found(event(31), other)[0]
    assert (told.severity, told.cause) == (Severity.OK, CauseClass.APPLICATION)
    assert "another GPU had it at once" in told.sentence


def test_another_attempts_event_is_no_company() -> None:
    told = found(event(31, ago=14.0, gpu="gpu 5", attempt=1), event(31, attempt=2))
    assert all("by itself" in each.sentence for each in told)


def test_many_gpus_at_once_in_attempt_after_attempt_are_software() -> None:
    events = [event(31, ago=5000 * a + g / 10, gpu=f"gpu {g}", attempt=9 - a) for a in range(3) for g in range(4)]
    assert {each.severity for each in found(*events)} == {Severity.OK}
    assert "3 other GPUs" in found(*events)[0].sentence


@pytest.mark.parametrize("xid", [63, 94, 44])
def test_a_soft_one_again_on_the_same_gpu_is_hard(xid: int) -> None:
    assert one(event(xid, ago=4000), event(xid), xid=xid).severity is Severity.FAIL
    elsewhere = found(event(xid, ago=4000, gpu="gpu 1"), event(xid))
    assert {each.severity for each in elsewhere} == {Severity.WARN}


def test_one_fault_reported_twice_within_a_minute_is_one() -> None:
    assert one(event(94, ago=50), event(94), xid=94).severity is Severity.WARN


def test_a_context_switch_timeout_counts_for_the_node() -> None:
    told = found(event(109, ago=4000, gpu="gpu 1"), event(109))
    assert {each.severity for each in told} == {Severity.FAIL}
    assert "the node had it 2 times" in told[0].sentence


def test_a_graphics_class_error_again_counts_even_in_one_attempt() -> None:
    assert one(event(69, ago=4000), event(69), xid=69).severity is Severity.WARN


def test_a_burst_is_one_event() -> None:
    burst = [event(31, ago=20 - n * 4, attempt=1) for n in range(5)]
    assert len(coalesced(burst)) == 1
    assert len(coalesced([*burst, event(31, ago=-30.0)])) == 2


# ---- company ---------------------------------------------------------------------------------------------------------


def test_a_double_bit_error_that_was_contained_is_soft() -> None:
    assert one(event(48), event(94, ago=9), xid=48).severity is Severity.WARN
    assert one(event(48), event(94, ago=9), event(95, ago=9), xid=48).severity is Severity.FAIL
    assert one(event(48), event(94, ago=9, gpu="gpu 1"), xid=48).severity is Severity.FAIL


def test_an_nvlink_error_is_hard_where_the_link_is_down_or_the_gpu_fell_off() -> None:
    assert one(event(74), xid=74).severity is Severity.WARN
    assert one(event(74), xid=74, gpu_0=GpuWord(links_down=False)).severity is Severity.WARN
    assert one(event(74), xid=74, gpu_0=GpuWord(links_down=True)).severity is Severity.FAIL
    told = one(event(74), event(79, ago=12), xid=74)
    assert (told.severity, told.needs) == (Severity.FAIL, Needs.REBOOT)


@pytest.mark.parametrize("xid", [144, 145, 146, 149])
def test_an_nvlink_event_counts_only_with_a_sign_of_the_gpu(xid: int) -> None:
    assert one(event(xid), xid=xid, gpu_0=GpuWord(links_down=True)).severity is Severity.FAIL
    assert one(event(xid), xid=xid, gpu_0=GpuWord(recovery_action=1)).severity is Severity.FAIL
    assert found(event(xid), gpu_0=GpuWord(recovery_action=0, links_down=False)) == ()


@pytest.mark.parametrize("action", sorted(RECOVERY_ACTIONS))
def test_a_recovery_event_is_what_the_gpu_asks_for(action: int) -> None:
    words, fatal, needs = RECOVERY_ACTIONS[action]
    told = one(event(154), xid=154, gpu_0=GpuWord(recovery_action=action))
    assert told.severity is (Severity.FAIL if fatal else Severity.WARN)
    assert told.needs is needs
    assert words in told.sentence
    assert fatal == (action in (1, 2, 6, 7))


# ---- echoes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xid", sorted(XIDS))
def test_what_our_own_kill_leaves_behind_never_counts(xid: int) -> None:
    echo = event(xid, by_us=True)
    assert is_echo(echo) == (XIDS[xid].kind in (XidClass.APP, XidClass.INFO))
    if is_echo(echo):
        assert found(echo, event(xid, ago=4000, by_us=True, attempt=0)) == ()
    elif XIDS[xid].kind is XidClass.HARD:
        assert found(echo)[0].severity is Severity.FAIL, "no kill makes a GPU fall off the bus"


def test_an_echo_is_no_company_and_no_repetition() -> None:
    assert one(event(31, ago=4000, by_us=True, attempt=0), event(31), xid=31).severity is Severity.OK
    told = one(event(31, ago=4000, attempt=0), event(31), event(31, gpu="gpu 7", node="n2", by_us=True), xid=31)
    assert told.severity is Severity.WARN, "the other GPU's was the echo of our kill"


def test_events_of_other_nodes_are_no_findings_here() -> None:
    assert found(event(79, node="n2")) == ()
    assert found(event(79, node="n2"), node="n2")[0].severity is Severity.FAIL
