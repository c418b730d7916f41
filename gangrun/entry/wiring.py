"""What every process of ours is wired with: the one place that knows which adapter is which port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.fatal_disk import FatalDisk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.stall import PausableDisk
from gangrun.adapters.net.interface import LOOPBACK, towards
from gangrun.config import environment
from gangrun.wire.spec import RunSpec


class SteeredClock(SystemClock):
    """A wall clock that a test moves from outside: the file holds the seconds to add. BOOTTIME never jumps."""

    def __init__(self, offset: Path) -> None:
        self._offset = offset

    def wall(self) -> float:
        """Seconds since the epoch, as somebody set them."""
        return super().wall() + float(self._offset.read_text(encoding="ascii"))


def clock_of() -> SystemClock:
    """The clock; one whose wall time a test can move where GANGRUN_TEST_WALL_OFFSET names a file."""
    offset = environment.all_variables().get("GANGRUN_TEST_WALL_OFFSET")
    return SteeredClock(Path(offset)) if offset else SystemClock()


def disk_of(paths: RunPaths) -> Disk:
    """The disk; one that a test can stall or fill from outside where GANGRUN_TEST_DISK_CONTROL names a file."""
    control = environment.all_variables().get("GANGRUN_TEST_DISK_CONTROL")
    return PausableDisk(Path(control), only_under=paths.root) if control else Disk()


def supervisor_disk_of(paths: RunPaths) -> Disk:
    """The disk; one on which a test kills or stops this supervisor where GANGRUN_TEST_KILL_AT names a file."""
    control = environment.all_variables().get("GANGRUN_TEST_KILL_AT")
    return FatalDisk(Path(control)) if control else disk_of(paths)


def sbatch_within_s(usually: float) -> float:
    """How long sbatch may take to answer; shorter where a test says so in GANGRUN_TEST_SBATCH_WITHIN."""
    told = environment.all_variables().get("GANGRUN_TEST_SBATCH_WITHIN")
    return float(told) if told else usually


def own_address(spec: RunSpec, variables: Mapping[str, str]) -> str:
    """Where this node's processes listen: to this box alone, or on the interface by which Slurm reached it."""
    return LOOPBACK if spec.world == "local" else towards(variables.get("SLURM_LAUNCH_NODE_IPADDR", ""))
