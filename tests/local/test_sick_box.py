"""The gate on one box: a broken GPU stops the run before any rank starts; whoever says so runs all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.health.test_nvml import Library, build, library  # noqa: F401 - fixtures
from tests.local.harness import Box


@pytest.mark.compiler
def test_no_rank_starts_beside_a_broken_gpu(box: Box, library: Callable[..., Library]) -> None:  # noqa: F811
    driver = library()
    driver.say(changes={"gpu1.field230": 2})
    hardware = {name: driver.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML")}
    script = box.script("print('a rank')")
    (box.work / "gangrun.toml").write_text("[health]\npreflight_within_s = 60\n")  # however busy the machine is
    box.start("--nproc-per-node", "1", script, environment={**hardware, "GANGRUN_NO_HEALTH": "0"})
    assert box.end(60) == 1
    told = box.told()
    assert "gpu 1: the GPU asks for a reboot of the node (gpu_recovery)" in told
    assert "a rank\n" not in told
    box.start("--nproc-per-node", "1", "--no-health", script, environment=hardware)
    assert box.end(60) == 0
