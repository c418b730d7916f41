"""What runs beside the process that owns a run, for people and their tools: the notifier, the server of figures.

No decision of the run waits for them, and each may die at any time: then messages or figures are missing, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.children import HeldChild
from gangrun.entry.wiring import own_command
from gangrun.launch.notifier import Notifier
from gangrun.node import processes
from gangrun.wire.spec import MetricsSpec, RunSpec

LEAVES_WITHIN_S = 1.0


def refuse_unusable_port(asked: MetricsSpec) -> None:
    """``UserError`` if nobody can serve figures there, on this host and now."""
    if asked.port is not None:
        from gangrun.entry.metrics import refuse_unusable  # brings a server along

        refuse_unusable(asked.address, asked.port)


@dataclass(frozen=True, slots=True)
class Sidecars:
    """Those of one run."""

    notifier: Notifier
    metrics: HeldChild | None = None

    @staticmethod
    def of(spec: RunSpec, paths: RunPaths, variables: Mapping[str, str], say: Callable[[str], None]) -> Sidecars:
        """Start what the run asks for; ``say`` where its figures are served."""
        notifier, asked = Notifier.of(spec, paths, variables), spec.metrics
        if asked.port is None:
            return Sidecars(notifier)
        from gangrun.entry.metrics import url_of

        say(f"figures for Prometheus: {url_of(asked.address, asked.port)} on {processes.host_name()}")
        command = own_command("gangrun.entry.metrics", ["--run-dir", str(paths.root)], sys.executable)
        return Sidecars(notifier, HeldChild.start(command, variables))

    @property
    def pids(self) -> tuple[int, ...]:
        """Whom a sweep must spare."""
        return self.notifier.pids + (() if self.metrics is None else (self.metrics.pid,))

    def close(self) -> None:
        """The server leaves when the owner's process ends; told so, it leaves sooner, and its port is free again."""
        if self.metrics is not None:
            self.metrics.end(b"", LEAVES_WITHIN_S, lambda: False)
