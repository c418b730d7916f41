"""Two hosts with played InfiniBand ports: what the real checks conclude on each is printed as JSON. A program of its
own, since an ordinary user enters a user namespace for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gangrun.adapters.local.played_ports import PORT_DOWN, PlayedPorts
from gangrun.adapters.local.played_world import own_mounts

NODES = ("n0", "n1")
# Looks once for each line of its standard input, by the checks of ports in the usual place; no grace for a down port.
LOOKS = """
import json, os, sys
from pathlib import Path
from gangrun.adapters.clock import SystemClock
from gangrun.health.framework.check import HealthPolicy
from gangrun.health.framework.rounds import HealthSurroundings, Rounds
from gangrun.health.network import ports
rounds = Rounds([ports.FAMILY], HealthSurroundings(Path("/"), None), HealthPolicy(port_grace_s=0.0), SystemClock())
for _ in sys.stdin:
    verdicts = rounds.look()
    found = {one.check: [one.severity.value, one.words] for one in verdicts}
    print(json.dumps({"classes": sorted(os.listdir("/sys/class")), "net": os.listdir("/sys/class/net"),
                      "gone": [str(one) for one in Path("/sys/class/net").iterdir() if not one.exists()],
                      "found": found}),
          flush=True)
"""


class Host:
    """A process on one host that looks at its ports when it is asked."""

    def __init__(self, ports: PlayedPorts, node: str) -> None:
        self.process = ports.on_host(
            node,
            lambda: subprocess.Popen(
                [sys.executable, "-c", LOOKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ),
        )

    def look(self) -> dict[str, Any]:
        """What the checks conclude now."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def end(self) -> None:
        """No process stays."""
        self.process.communicate()


def main() -> None:
    """Break the port of the first host in several ways."""
    own_mounts()
    before = mounts(), sorted(os.listdir("/sys/class")), os.listdir("/sys/class/net")
    with tempfile.TemporaryDirectory() as folder:
        ports = PlayedPorts(Path(folder), NODES)
        ports.build()
        hosts = [Host(ports, node) for node in NODES]
        found: dict[str, object] = {"classes": before[1], "net": before[2]}
        for name, changes in (
            ("up", {}),
            ("counts", {"counters/link_downed": 4, "counters/symbol_error": 100_000}),
            ("down", PORT_DOWN),
            ("healed", {}),
        ):
            ports.say(NODES[0], changes)
            found[name] = [host.look() for host in hosts]
        for host in hosts:
            host.end()
        found["unseen"] = before == (mounts(), sorted(os.listdir("/sys/class")), os.listdir("/sys/class/net"))
    sys.stdout.write(json.dumps(found))


def mounts() -> list[str]:
    """Where something is mounted, for this process."""
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]


if __name__ == "__main__":
    main()
