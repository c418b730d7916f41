"""Programs of other people on a GPU: whose they are, as /proc tells it, and what that is worth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gangrun.health.framework.check import Reading, Severity
from gangrun.health.framework.evidence import as_evidence
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.gpu import devices
from tests.health.looks import Scripted, look

SAID = {"values": {"gpu 0": {"memory_used_bytes": 2e9, "processes_count": 2, "processes_pids": "41 42"}}}


def read(root: Path, owners: dict[str, int]) -> Reading:
    for name, owner in owners.items():
        (root / "proc" / name).mkdir(parents=True)
        os.chown(root / "proc" / name, owner, -1)
    return Reading("gpu", 0.0, "b", devices.read(HealthSurroundings(root, Scripted({"gpu": SAID}))))


@pytest.mark.root
@pytest.mark.parametrize(
    ("owners", "severity"),
    [
        ({"self": 5000, "41": 5000, "42": 5000}, Severity.OK),
        ({"self": 5000, "41": 5000, "42": 5001}, Severity.WARN),
        ({"self": 0, "41": 5000}, Severity.WARN),
        ({"self": 5000, "41": 0, "42": 999}, Severity.OK),  # the system's
        ({"self": 5000}, Severity.OK),  # another pid namespace: nobody knows
        ({"41": 5000}, Severity.OK),
    ],
)
def test_whose_programs_are_on_a_gpu(tmp_path: Path, owners: dict[str, int], severity: Severity) -> None:
    verdict = look("gpu_leftovers", read(tmp_path, owners))
    assert verdict.severity is severity, verdict
    if severity is Severity.WARN:
        assert "gpu 0: number of programs of other users is 1" in verdict.words
        heard: Any = as_evidence("n1", [verdict], 5.0)[0]
        assert (heard.fatal, heard.poor) == (False, True)
