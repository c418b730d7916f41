"""From findings to what the core weighs: and that the core blames whom they are against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.evidence import CHECK_TRAITS, Evidence
from gangrun.core.model import Cause, Failure
from gangrun.core.policy import Policy
from gangrun.core.recovery.alerts import SLOWING_CHECKS
from gangrun.core.recovery.blame import judge
from gangrun.health.catalogue import ACTIVE_CHECKS, CHECKS
from gangrun.health.framework.check import (
    CauseClass,
    CheckLook,
    CheckVerdict,
    Needs,
    Scope,
    Severity,
    Sticky,
    unknown_verdict,
)
from gangrun.health.framework.evidence import as_evidence, in_core
from tests.health.looks import POLICY, check, look, reading, recorded
from tests.health.test_xid import event, found


def verdict(*findings: object) -> CheckVerdict:
    return CheckVerdict("xid", "gpu", Severity.OK, "", "", "", findings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("xid", "fatal"), [(79, [True]), (94, [False]), (31, []), (45, [])])
def test_xids_as_evidence(xid: int, fatal: list[bool]) -> None:
    assert [one.fatal for one in as_evidence("n1", [verdict(*found(event(xid)))], 5.0)] == fatal


def test_what_only_a_boot_cures_is_said_of_what_is_broken_alone() -> None:
    assert [one.until_boot for one in as_evidence("n1", [verdict(*found(event(79)))], 5.0)] == [True]
    assert [one.until_boot for one in as_evidence("n1", [verdict(*found(event(94)))], 5.0)] == [False]
    worn = look("gpu_spare_rows", reading({"gpu 0": {"banks_exhausted": 2}}))
    assert worn.findings[0].sticky is Sticky.BOOT
    assert [one.until_boot for one in as_evidence("n1", [worn], 5.0)] == [False]


def test_the_core_blames_the_node_that_it_is_against() -> None:
    lost = look("gpu_lost", recorded("played-h100-fell-off-the-bus"))
    evidence = Evidence(findings=as_evidence("n2", [lost], 5.0))
    told = judge(
        evidence, attempt=1, attempt_step=7, placement=None, sightings=(), suspicion={}, nodes_count=4, policy=Policy()
    )
    assert (told.cause, told.failure, told.blamed) == (Cause.HARDWARE, Failure.NODE, ("n2",))
    assert "gpu 1: the GPU does not answer" in told.sentence


def test_what_is_unknown_is_no_evidence() -> None:
    assert as_evidence("n1", [unknown_verdict(check("gpu_ecc"), "no answer")], 5.0) == ()


def test_a_programs_fault_is_never_a_nodes() -> None:
    for finding in found(event(31), event(31, gpu="gpu 1")):
        assert finding.cause is CauseClass.APPLICATION
    assert as_evidence("n1", [verdict(*found(event(31), event(31, gpu="gpu 1")))], 5.0) == ()


def test_every_trait_is_of_a_check_and_every_check_of_storage_has_its_own() -> None:
    assert CHECK_TRAITS.keys() <= {one.name for one in CHECKS}
    assert {one.name for one in (*CHECKS, *ACTIVE_CHECKS)} >= SLOWING_CHECKS
    storage = {one.name for one in CHECKS if one.about.scope is Scope.FS}
    assert {name for name, traits in CHECK_TRAITS.items() if traits.is_storage} == storage


@pytest.mark.parametrize(
    ("name", "needs", "shows"),
    [
        ("gpu_recovery", Needs.RESET, True),
        ("gpu_recovery", Needs.REBOOT, False),
        ("gpu_ecc", Needs.RESET, True),
        ("gpu_lost", Needs.RESET, True),
        ("gpu_lost", Needs.REBOOT, False),
        ("xid", Needs.RESET, False),  # it is told once, and then there is nothing to see any more
        ("nvlink_state", Needs.RESET, False),  # it may come up by itself
    ],
)
def test_what_the_driver_says_until_a_gpu_is_reset_shows_that_it_was(name: str, needs: Needs, shows: bool) -> None:
    one = CheckLook(replace(check("gpu_ecc"), name=name), reading({}), None, POLICY).found(
        Severity.FAIL, "gpu 1", "broken", 1, needs=needs
    )
    assert in_core("n1", one, 5.0).shows_reset is shows
    assert not in_core("n1", replace(one, sticky=Sticky.CLEAN), 5.0).shows_reset
