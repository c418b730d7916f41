"""One box whose GPUs break one after the other: GPUs played by a small libnvidia-ml, ranks that need none."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gangrun.adapters.local.played_world import H100
from tests.health.test_nvml import SOURCE
from tests.local.harness import Box
from tests.stepper import STEPPER

pytestmark = pytest.mark.compiler
SEEN = """
(folder / f"seen-{attempt}-{rank}").write_text(os.environ["CUDA_VISIBLE_DEVICES"] + " " + os.environ["LOCAL_RANK"])
if attempt: steps = start + 20
"""
GPUS_COUNT = 4


class Driver:
    """What the driver of a box with four GPUs says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = folder / "libnvidia-ml.so.1"
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
        self.say({})

    def say(self, changes: Mapping[str, object]) -> None:
        lines: dict[str, object] = {"count": GPUS_COUNT, "driver": "570.86.15"}
        lines |= {f"gpu{n}.{key}": str(value).format(n=n) for n in range(GPUS_COUNT) for key, value in H100.items()}
        part = self.folder / "gpus.part"
        part.write_text("".join(f"{key} {value}\n" for key, value in (lines | dict(changes)).items()))
        part.replace(self.folder / "gpus")

    def environment(self, visible: str) -> dict[str, str]:
        return {
            "GANGRUN_NO_HEALTH": "0",
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_NVML": str(self.folder / "gpus"),
            "CUDA_VISIBLE_DEVICES": visible,
        }


def start(box: Box, driver: Driver, visible: str) -> None:
    """Three ranks and a spare GPU; two ranks are enough."""
    box.environment |= driver.environment(visible)
    box.environment["HOOK"] = SEEN
    script, steps = box.script(STEPPER), box.work / "steps"
    box.start("--nproc-per-node", "2:3", "--spare-gpus", "1", script, steps, "9999", "0.05", "0")


def seen(box: Box, attempt: int) -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` and ``LOCAL_RANK`` of each rank."""
    return [path.read_text() for path in sorted((box.work / "steps").glob(f"seen-{attempt}-*"))]


@pytest.mark.timeout(180)
def test_a_gpu_that_breaks_is_left_out_first_for_a_spare_then_by_a_smaller_gang(box: Box) -> None:
    """XID 79 on one GPU of the ranks, then on another one."""
    driver = Driver(box.folder)
    start(box, driver, "3,2,1,0")
    box.wait_for_step(3, deadline_s=60)
    assert seen(box, 0) == ["3,2,1 0", "3,2,1 1", "3,2,1 2"]
    driver.say({"event0": "2 8 79"})
    box.wait_for_step(3, attempt=1, deadline_s=60)
    assert seen(box, 1) == ["3,1,0 0", "3,1,0 1", "3,1,0 2"]
    driver.say({"event0": "2 8 79", "event1": "3 8 79"})
    box.wait_for_step(3, attempt=2, deadline_s=60)
    assert seen(box, 2) == ["1,0 0", "1,0 1"]
    assert box.status()["world_size"] == 2
    assert box.end() == 0, box.told()
    story = box.gangrun("explain", "--runs-dir", str(box.runs)).stdout
    assert "gpu 2 gets no rank any more; restarting in place" in story, story
    assert "gpu 3 gets no rank any more; restarting in place with 1 rank less" in story, story


@pytest.mark.timeout(120)
def test_a_gpu_that_is_broken_before_the_start_gets_no_rank(box: Box) -> None:
    """It is named by its UUID, as the others are."""
    driver = Driver(box.folder)
    driver.say({"gpu1.ecc10": 3})
    start(box, driver, "GPU-0,GPU-1,GPU-2,GPU-3")
    box.wait_for_step(3, deadline_s=60)
    assert seen(box, 0) == [f"GPU-0,GPU-2,GPU-3 {rank}" for rank in range(3)]
    box.interrupt()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--spare-gpus", "4"], "--spare-gpus 4: this machine has 4 GPUs for 1 rank and 4 spare GPUs"),
        (["--nproc-per-node", "2:5"], "--nproc-per-node 2:5: this machine has 4 GPUs for 5 ranks"),
        (["--nproc-per-node", "3:2"], "MIN is more than MAX"),
        (["--spare-gpus", "1", "--local-hosts", "--nodes", "2"], "nodes that are simulated share the GPUs"),
    ],
)
def test_what_a_box_has_not_is_refused(box: Box, options: list[str], words: str) -> None:
    box.environment["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    box.start(*options, box.script("pass"))
    assert box.end() == 2
    assert words in box.err.read_text()
    assert not box.runs.exists()


def test_a_machine_without_gpus_has_none_to_leave_out(box: Box) -> None:
    box.start("--nproc-per-node", "1:2", box.script("pass"), environment={"CUDA_VISIBLE_DEVICES": ""})
    assert box.end() == 2
    assert "this machine has no GPU that could be left out" in box.err.read_text()
