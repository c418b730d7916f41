"""The scripts that Slurm runs: which end of ``gangrun health`` drains a node, and that no other does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gangrun.display.health_page import reason_of
from gangrun.health.framework.check import CheckVerdict, Severity

TEMPLATES = Path(__file__).parents[2] / "slurm-templates"
SCRIPTS = sorted(path.name for path in TEMPLATES.glob("health-*.sh"))

pytestmark = pytest.mark.serial


def called(tmp_path: Path, script: str, health: str, state: str = "IDLE", **more: str) -> tuple[int, list[str]]:
    """How the script ended, and what it asked scontrol for; ``health`` is the shell of a gangrun."""
    for name, text in (
        ("gangrun", f'echo "$@" >> {tmp_path}/asked\n{health}'),
        ("scontrol", f'echo "$@" >> {tmp_path}/calls\necho NodeName=n7 State={state} CPUTot=8'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "calls").write_text("")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GANGRUN": str(tmp_path / "gangrun"),
        "SLURMD_NODENAME": "n7",
        **more,
    }
    done = subprocess.run(
        ["bash", str(TEMPLATES / script)], env=environment, timeout=300, check=False, capture_output=True, text=True
    )
    return done.returncode, [
        line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("update")
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_a_check_that_failed_drains(tmp_path: Path, script: str) -> None:
    code, asked = called(tmp_path, script, "echo 'gpu_lost: gpu 3 is lost: \"it\" fell off the $BUS'; exit 1")
    assert asked == ['update NodeName=n7 State=DRAIN Reason=gangrun: gpu_lost: gpu 3 is lost: "it" fell off the $BUS']
    assert code == (0 if script == "health-check-program.sh" else 1)
    for other in ("exit 0", "exit 3", "echo usage; exit 2", "echo traceback >&2; exit 1", "kill -9 $$", "exit 127"):
        assert called(tmp_path, script, other) == (0, []), other
    missing = {"GANGRUN": "/not/there"}
    assert called(tmp_path, script, "exit 1", **missing) == (0, [])


def test_a_node_that_is_drained_already_keeps_its_reason(tmp_path: Path) -> None:
    sick = "echo sick; exit 1"
    assert called(tmp_path, "health-check-program.sh", sick, state="IDLE+DRAIN") == (0, [])


def test_the_prolog_expects_the_gpus_of_the_job(tmp_path: Path) -> None:
    called(tmp_path, "health-prolog.sh", "exit 0", SLURM_JOB_GPUS="0,1,5")
    called(tmp_path, "health-prolog.sh", "exit 0", SLURM_JOB_GPUS="")
    assert (tmp_path / "asked").read_text().splitlines() == ["health --reason --gpus 3", "health --reason"]


def test_they_are_told_of() -> None:
    readme = (TEMPLATES / "README.md").read_text("utf-8")
    assert len(SCRIPTS) == 3
    assert [name for name in SCRIPTS if f"| `{name}` |" not in readme] == []
    assert all(os.access(TEMPLATES / name, os.X_OK) for name in SCRIPTS)


def test_a_reason_is_one_line_that_slurm_keeps() -> None:
    bad = CheckVerdict("gpu_lost", "gpu", Severity.FAIL, "", "", "gpu 3 is\nlost")
    assert (
        reason_of((bad, CheckVerdict("host_load", "host", Severity.WARN, "", "", "busy")))
        == "gpu_lost: gpu 3 is\\nlost"
    )
    assert reason_of(()) == ""
    long = reason_of(tuple(bad for _ in range(50)))
    assert (len(long), long.endswith("...")) == (200, True)
