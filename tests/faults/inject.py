"""gangrun with faults: ``python tests/faults/inject.py WORDS`` is ``python -m gangrun WORDS``, and every process of
gangrun that it starts, on this node or another, has the faults that its environment names:

    FAULT_WALL_OFFSET    a file: seconds to add to the wall clock. CLOCK_BOOTTIME never jumps
    FAULT_DISK_CONTROL   a file: how the disk under the run directory behaves, see ``disk.PausableDisk``
    FAULT_KILL_AT        a file: where the supervisor is killed or stopped, see ``disk.FatalDisk``
    FAULT_SBATCH_WITHIN  seconds that sbatch may take to answer
    FAULT_HEALTH_ROOT    the folder that health checks take for /; %h is the node

The product knows nothing of this. Two of its functions are replaced before any other module can import them:
``wiring.own_command``, by which each process starts the next, and what hands a process its clock and disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULTY = [sys.executable, str(Path(__file__).resolve())]
PLAIN = [sys.executable, "-m", "gangrun"]
PREFIX = "FAULT_"


def gangrun(variables: Mapping[str, str] | None) -> list[str]:
    """The command line of gangrun: with faults if these variables name any."""
    return FAULTY if any(name.startswith(PREFIX) for name in variables or ()) else PLAIN


def inject(entry: str) -> None:
    """Prepare this process, which is about to become ``entry``."""
    from gangrun.adapters.clock import SystemClock
    from gangrun.entry import wiring
    from gangrun.node import processes
    from tests.faults.disk import FatalDisk, PausableDisk

    class SteeredClock(SystemClock):
        def wall(self) -> float:
            return super().wall() + float(Path(os.environ["FAULT_WALL_OFFSET"]).read_text(encoding="ascii"))

    plain = wiring.own_command

    def own_command(entry: str, arguments: Sequence[str], python: str) -> list[str]:
        interpreter, isolated, flag, code, *words = plain(entry, arguments, python)
        begin = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.faults.inject import inject"
        return [interpreter, isolated, flag, f"{begin}; inject({entry!r}); {code}", *words]

    changes: dict[str, Any] = {"own_command": own_command}
    if os.environ.get("FAULT_WALL_OFFSET"):
        changes["clock_of"] = SteeredClock
        processes.wall_s = SteeredClock().wall
    if control := os.environ.get("FAULT_DISK_CONTROL"):
        changes["disk_of"] = lambda paths: PausableDisk(Path(control), only_under=paths.root)
    if (position := os.environ.get("FAULT_KILL_AT")) and entry == "gangrun.entry.supervisor":
        changes["disk_of"] = lambda paths: FatalDisk(Path(position))
    for name, value in changes.items():
        assert hasattr(wiring, name), name
        setattr(wiring, name, value)
    if within_s := os.environ.get("FAULT_SBATCH_WITHIN"):
        from gangrun.adapters.slurm import submission

        submission.SENT_WITHIN_S = float(within_s)
    if (root := os.environ.get("FAULT_HEALTH_ROOT")) and entry == "gangrun.entry.agent":
        from gangrun.entry import agent_health

        healthy = agent_health.watch_spec

        def watch_spec(spec: Any, node: str, *rest: Any) -> dict[str, Any]:
            return {**healthy(spec, node, *rest), "root": root.replace("%h", node)}

        changed: Any = watch_spec
        agent_health.watch_spec = changed


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # instead of this folder
    from tests.faults.inject import inject as prepare

    prepare("gangrun.cli.main")
    from gangrun.cli.main import main

    main()
