"""The network of a drill's own run: packets travel between its hosts, and are lost or late when they are to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.local_parts.network_hosts import LATE_S

ROOT = Path(__file__).parents[2]


def test_hosts_reach_each_other_unless_they_are_cut_off_or_slowed() -> None:
    """As an ordinary user: root becomes one without rights, who keeps reading what root may read."""
    ordinary = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    program = [sys.executable, str(ROOT / "tests" / "local_parts" / "network_hosts.py")]
    done = subprocess.run(
        [*ordinary, *program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["apart"] == 3, "each host and this process have networks of their own"
    assert found["whole"] == ["whole", "whole"]
    assert found["cut"] == ["", ""]
    assert found["one way"] == ["", "one way"], "it hears what others send, and nobody hears it"
    assert found["other"] == ["other", "other"], "another host is cut off"
    assert found["late"] == ["late", "late"] and found["took"] >= LATE_S
    assert (found["held"], found["healed"]) == ("", "held"), "what was held travels when the network is whole again"
    assert found["left"], "neither files nor threads stay"
