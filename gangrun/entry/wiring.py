"""What every process of gangrun is wired with: its clock, its disk, its address, and the command that starts the next.

This is the composition root: ``entry`` alone knows which adapter stands behind which port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.net.interface import LOOPBACK, towards
from gangrun.wire.spec import RunSpec

ROOT = str(Path(__file__).resolve().parents[2])


def clock_of() -> SystemClock:
    """The clock of this process."""
    return SystemClock()


def disk_of(paths: RunPaths) -> Disk:
    """The disk on which this process reaches a run's directory."""
    del paths  # real disks are all alike
    return Disk()


def own_address(spec: RunSpec, variables: Mapping[str, str]) -> str:
    """Where this node's processes listen: to this box alone, or on the interface by which Slurm reached it."""
    return LOOPBACK if spec.world == "local" else towards(variables.get("SLURM_LAUNCH_NODE_IPADDR", ""))


def own_command(entry: str, arguments: Sequence[str], python: str) -> list[str]:
    """The command that starts one of gangrun's own processes (``entry`` is a module with ``main``).

    Isolated (-I): neither the user's current folder nor PYTHONPATH, which are made for the training script, may put
    their modules in place of ours.
    """
    code = f"import sys; sys.path.append({ROOT!r}); from {entry} import main; sys.exit(main(sys.argv[1:]))"
    return [python, "-I", "-c", code, *arguments]
