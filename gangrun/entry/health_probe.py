"""The child that asks what may hang: ``python -m gangrun.entry.health_probe KIND WORDS...``.

It answers with one line of JSON and ends. Nothing is imported that its question does not need.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from gangrun.adapters.clock import SystemClock

AT_WORK = ("active", "dcgm_test")  # what must not go on once nobody waits for it


def answer(kind: str, words: tuple[str, ...]) -> Any:
    """Plain values, as ``health.framework.readings`` reads them."""
    if kind == "gpu":
        try:
            from gangrun.adapters.nvml import snapshot
        except ImportError:
            return {"absent": "the python package nvidia-ml-py is not installed"}
        return snapshot()
    if kind == "active":
        from gangrun.entry.health_children import active

        return active(words[0], float(words[1]), *words[2:])
    if kind == "dcgm":
        from gangrun.entry.health_children import dcgm

        return dcgm(words)
    if kind == "dcgm_test":
        from gangrun.entry.health_children import dcgm

        return dcgm(words[1:], float(words[0]))
    if kind == "command":
        from gangrun.entry.health_children import site_command

        return site_command(float(words[0]), words[1:])
    from gangrun.health.framework.readings import plain_facts
    from gangrun.health.host.storage import probe_directory, probe_names

    now = SystemClock().now
    if kind == "directory":
        return plain_facts(probe_directory(words[0], now))
    if kind == "names":
        return plain_facts(probe_names(words, now))
    return {"absent": f"nobody knows how to ask for {kind}"}


def with_its_parent() -> None:
    """Die when whoever asked does: devices must not be at work where ranks may start."""
    import signal

    from gangrun.node.processes import PR_SET_PDEATHSIG, prctl

    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Answer and end at once: a library that is hard to leave must not keep us."""
    if sys.argv[1] in AT_WORK:
        with_its_parent()
    said = json.dumps(answer(sys.argv[1], tuple(sys.argv[2:])))
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
