"""What DCGM prints, version by version, and a site's own commands: what each means, and which settings are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangrun.config.health_table import site_commands
from gangrun.display.health_page import SILENTLY
from gangrun.errors import UserError
from gangrun.health.framework.bounds import NOT_MEASURED
from gangrun.health.framework.check import CheckVerdict, HealthPolicy, NodeFacts, Reading, Severity, judged
from gangrun.health.framework.evidence import as_evidence
from gangrun.health.framework.readings import facts_from
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.gpu import dcgm, nvlink
from gangrun.health.host import site
from gangrun.launch.health_here import HealthQuery
from gangrun.launch.health_here import looked as look_here
from tests.health.looks import POLICY, Scripted, look


def tree(overall: str, **systems: Any) -> str:
    """As DCGM 3 prints its health: boxes with children and values."""
    gpus = {
        number: {"children": {system: {"children": {}, "value": text} for system, text in told.items()}, "value": word}
        for number, (word, told) in systems.items()
    }
    body = {"Overall Health": {"value": overall}, "GPU": {"children": gpus, "value": ""}}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]})


SICK = tree("Failure", **{"0": ("Healthy", {}), "3": ("Failure", {"NVLink system": "Detected an NvLink is down"})})
POOR = tree("Warning", **{"1": ("Warning", {"PCIe system": "more than 8 PCIe replays per minute"})})


def diag(results: list[dict[str, Any]], name: str = "Memory", top: str = "DCGM GPU Diagnostic") -> str:
    categories = [{"category": "Deployment", "tests": [{"name": name, "results": results}, None]}]
    return f"WARNING: the host engine is old\n{json.dumps({top: {'test_categories': categories, 'version': '3.3'}})}\n"


OLD: list[dict[str, Any]] = [
    {"gpu_ids": "0,1", "status": "Pass"},
    {"gpu_ids": "2", "status": "Fail", "warnings": ["row remap pending"]},
]
NEW: list[dict[str, Any]] = [
    {"entity_group": "GPU", "entity_id": 0, "status": "PASS"},
    {"entity_group": "GPU", "entity_id": 1, "status": "Warn", "warnings": [{"warning": "it is hot", "error_id": 7}]},
    {"entity_group": "GPU", "entity_id": 2, "status": "Skip"},
]


def said_by_dcgm(words: tuple[str, ...], out: str) -> CheckVerdict:
    [check] = (dcgm.FAMILY if words == dcgm.HEALTH else dcgm.TEST_FAMILY).checks
    facts = dcgm.parsed(words, out)
    if facts.absent:
        return CheckVerdict(check.name, "dcgm", Severity.UNKNOWN, "", "", facts.absent)
    return judged(check, Reading("dcgm", 1.0, "b", facts), None, POLICY)


@pytest.mark.parametrize(
    ("words", "out", "severity", "told"),
    [
        (dcgm.HEALTH, tree("Healthy", **{"0": ("Healthy", {})}), Severity.OK, ""),
        (dcgm.HEALTH, tree("Healthy"), Severity.OK, ""),
        (dcgm.HEALTH, SICK, Severity.FAIL, "gpu 3: DCGM's watches found a fault: Detected an NvLink is down"),
        (dcgm.HEALTH, POOR, Severity.WARN, "gpu 1: DCGM's watches found a fault: more than 8 PCIe replays per minute"),
        (dcgm.HEALTH, tree("Failure"), Severity.FAIL, "DCGM's watches found a fault: Failure"),
        (dcgm.HEALTH, tree("Sparkling"), Severity.UNKNOWN, "is not known here"),
        (dcgm.HEALTH, "Error: unable to connect to host engine", Severity.UNKNOWN, "unable to connect to host engine"),
        (dcgm.HEALTH, "", Severity.UNKNOWN, "dcgmi says nothing"),
        (dcgm.HEALTH, "{" * 5000, Severity.UNKNOWN, "answers no JSON"),
        (dcgm.TEST, diag(OLD), Severity.FAIL, "gpu 2: DCGM's test found a fault: Memory: row remap pending"),
        (dcgm.TEST, diag(OLD[:1]), Severity.OK, ""),
        (
            dcgm.TEST,
            diag(NEW, "software", "DCGM Diagnostic"),
            Severity.WARN,
            "gpu 1: DCGM's test found a fault: software",
        ),
        (dcgm.TEST, diag([{"gpu_ids": "0", "status": "Skip"}]), Severity.UNKNOWN, "nothing that is known here"),
        (dcgm.TEST, diag([{"status": "Fail"}]), Severity.FAIL, "DCGM's test found a fault: Memory: Fail"),
    ],
)
def test_what_dcgm_prints(words: tuple[str, ...], out: str, severity: Severity, told: str) -> None:
    verdict = said_by_dcgm(words, out)
    assert (verdict.severity, told in verdict.words) == (severity, True), verdict
    assert len(verdict.findings) <= 1, "the node's word sums up what is said of its GPUs"


TABLE = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: GPU-aa-0                                                |
+--------+----------------------------------------------------------------------+
| 3      | Name: NVIDIA H100 80GB HBM3                                          |
|        | Device UUID: GPU-bb-3                                                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""
UUIDS = {"gpu 0": "GPU-aa-0", "gpu 3": "GPU-bb-3"}
A, B = ("GPU-aa-0", "H100"), ("GPU-bb-3", "H100")


@pytest.mark.parametrize(
    ("seen", "named", "fails"),
    [
        ([A], None, False),  # Slurm gave this job the other one
        ([B], None, True),
        ([A, B], None, True),
        ([A, B], ("0",), False),
        ([A, B], ("1",), True),
        ([B, A], ("0",), True),  # NVML's order, not DCGM's
        ([A, B], ("GPU-aa",), False),
        ([A, B], ("GPU-b",), True),
        ([A, B], (), False),  # it uses none
        ([A, B], ("7",), True),  # it cannot be told which is meant
        ([A, ("GPU-bb-3", "T4")], ("0",), True),
        ([], ("0",), True),  # NVML does not answer
        ([("GPU-cc", "H100")], None, False),
    ],
)
def test_only_gpus_of_this_job_count(seen: list[tuple[str, str]], named: tuple[str, ...] | None, fails: bool) -> None:
    assert dcgm.identities(TABLE) == UUIDS
    facts = dcgm.identified(dcgm.parsed(dcgm.HEALTH, SICK), UUIDS, seen)
    [check] = dcgm.FAMILY.checks
    policy = HealthPolicy(gpus_used=named)
    verdict = judged(check, Reading("dcgm", 1.0, "b", facts), None, policy)
    assert verdict.severity is (Severity.FAIL if fails else Severity.WARN)
    assert ("not a GPU of this job" in verdict.words) is not fails
    [heard] = as_evidence("n1", [verdict], 5.0)
    assert (heard.fatal, heard.poor) == (fails, False)
    assert dcgm.accuses(facts)
    assert not dcgm.accuses(dcgm.parsed(dcgm.HEALTH, tree("Healthy", **{"0": ("Healthy", {})})))


def test_where_dcgms_numbers_are_not_known_all_gpus_count() -> None:
    facts = dcgm.identified(dcgm.parsed(dcgm.HEALTH, SICK), dcgm.identities("Error: no host engine"), [A])
    [check] = dcgm.FAMILY.checks
    assert judged(check, Reading("dcgm", 1.0, "b", facts), None, POLICY).severity is Severity.FAIL


@pytest.mark.parametrize(
    ("seen", "more"), [([A], ("-i", "0")), ([B], ("-i", "3")), ([A, B], ()), ([], ()), ([("GPU-cc", "H100"), A], ())]
)
def test_gpus_of_others_are_not_tested(seen: list[tuple[str, str]], more: tuple[str, ...]) -> None:
    assert dcgm.only_of(dcgm.TEST, UUIDS, seen) == (*dcgm.TEST, *more)


def test_what_nobody_has_to_have_is_not_told() -> None:
    of_other_gpus = {nvlink.NO_NVLINK5, *(one for one in SILENTLY if one.startswith("these GPUs"))}
    assert {dcgm.ABSENT, "no Lustre here", *of_other_gpus} == SILENTLY
    now = Reading("gpu", 1.0, "b", NodeFacts({"gpu 0 link 0": {"active": 1, "recoveries": 0}, "gpu 0": {"uuid": "u"}}))
    newer = replace(now, facts=replace(now.facts, missing={"gpu 0": {"retired_pages": NOT_MEASURED}}))
    none = {"gpu 0": {"channel_repair_pending": NOT_MEASURED}}
    older = Reading("gpu", 1.0, "b", NodeFacts({"gpu 0": {"uuid": "u"}}, none))
    said = {look(name, newer).words for name in ("nvlink_errors", "gpu_retired")}
    said |= {look(name, older).words for name in ("nvlink5_errors", "nvlink5_rates", "gpu_repairs")}
    assert said == of_other_gpus


# ---- a site's own commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "severity", "words"),
    [
        ({"values": {"command": {"code": 0, "said": "fine"}}}, Severity.OK, ""),
        ({"values": {"command": {"code": 1, "said": "no /scratch"}}}, Severity.FAIL, "check disk fails: no /scratch"),
        ({"values": {"command": {"code": 7, "said": "?"}}}, Severity.UNKNOWN, "ended with 7, which says nothing"),
        ({"missing": {"command": {"code": "it did not end within 3 s"}}}, Severity.UNKNOWN, "not end within 3 s"),
        ({"absent": "no process could be started"}, Severity.UNKNOWN, "no process could be started"),
        ({}, Severity.UNKNOWN, "it was not run"),
    ],
)
def test_an_exit_code_is_a_verdict(tmp_path: Path, answer: dict[str, Any], severity: Severity, words: str) -> None:
    family = site.family(site_commands({"disk": {"run": "/opt/disk -q 'a b'", "timeout": 3}}))
    assert family is not None
    probes = Scripted({"command": answer})
    facts = family.read(HealthSurroundings(tmp_path, probes))
    assert probes.asked == [("command", ("3", "/opt/disk", "-q", "a b"))]
    verdict = judged(family.checks[0], Reading("site", 1.0, "b", facts), None, POLICY)
    assert (verdict.check, verdict.severity, words in verdict.words) == ("site_disk", severity, True), verdict
    assert site.family({}) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"Disk": "x"}, "'Disk' is not a name for a check"),
        ({"a/b": "x"}, "is not a name for a check"),
        ({"disk": ""}, "has an empty command"),
        ({"disk": 7}, "write the command as one string, or as a list of strings"),
        ({"disk": ["a", 7]}, "write the command as one string, or as a list of strings"),
        ({"disk": "echo 'a"}, "is no command line"),
        ({"disk": {"timeout": 3}}, "has no command: write"),
        ({"disk": {"run": "x", "timeuot": 3}}, "unknown key 'timeuot'; did you mean timeout?"),
        ({"disk": {"run": "x", "timeout": "soon"}}, "timeout: 'soon' is not a time"),
        ({"disk": {"run": "x", "timeout": 0}}, "timeout: more than 0"),
        ({f"c{k}": "x" for k in range(21)}, "has 21 commands; at most 20"),
    ],
)
def test_commands_that_make_no_sense_are_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"\[health.commands\]") as refused:
        site_commands(table)
    assert words in str(refused.value)


@pytest.mark.serial
def test_commands_of_a_file_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "check.sh"
    script.write_text('#!/bin/sh\necho looking\necho "no $1 here" >&2\nexit $2\n')
    script.chmod(0o755)
    lines = ["[health]", "load_per_cpu = 1e6", 'off = ["host_clock"]', "[health.commands]",
             f'disk = "{script} \'/my scratch\' 1"', f'odd = ["{script}", "x", "9"]', 'gone = "/not/there"',
             'slow = { run = "sleep 60", timeout = "1s" }']  # fmt: skip
    (tmp_path / "gangrun.toml").write_text("\n".join(lines))
    verdicts = {one.check: one for one in look_here(HealthQuery(fs_root=str(tmp_path)), {"PATH": "/usr/bin:/bin"})[0]}
    assert verdicts["site_disk"].words == "this site's check disk fails: no /my scratch here"
    assert [verdicts[f"site_{name}"].severity for name in ("disk", "odd", "gone", "slow")] == [
        Severity.FAIL,
        *[Severity.UNKNOWN] * 3,
    ]
    assert "did not end within 1 s" in verdicts["site_slow"].words
    assert "cannot be started: No such file" in verdicts["site_gone"].words
    assert "host_clock" not in verdicts
    (tmp_path / "gangrun.toml").write_text('[health.commands]\ndisk = { ruin = "x" }\n')
    with pytest.raises(UserError, match="did you mean run"):
        look_here(HealthQuery(fs_root=str(tmp_path)), {})


def test_nothing_that_a_probe_says_is_trusted() -> None:
    assert facts_from({"values": {"command": {"code": [1], "said": 7}}}) == NodeFacts({"command": {"said": 7}})
