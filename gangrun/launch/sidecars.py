"""What runs beside the process that owns a run, for people and their tools: the notifier, the server of figures.

Both are its children and read the run directory. No decision of the run and no loop waits for them, and each may hang
or die at any time: then messages or figures are missing, nothing else. The owner tells the notifier how the run ended,
since a run may end with no supervisor left to write that down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

import msgspec

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local.children import HeldChild
from gangrun.adapters.notify.services import Services, is_installed
from gangrun.entry.wiring import own_command
from gangrun.errors import UserError
from gangrun.node import processes
from gangrun.wire.spec import MetricsSpec, RunSpec

MESSAGE_WITHIN_S = 25.0  # a message may take 20 s
SAYS_AT_COUNT = 8  # looks, of five in a second
SERVER_LEAVES_WITHIN_S = 1.0


class OwnerEnd(msgspec.Struct, frozen=True):
    """How the owner of a run leaves it: its exit code, and why if it has nothing to do with what a supervisor wrote."""

    code: int
    why: str = ""


def refuse_unusable_addresses(addresses: tuple[str, ...]) -> None:
    """``UserError`` if no message could be sent there."""
    if not addresses:
        return
    if not is_installed():
        words = "--notify needs the package apprise, which is not installed"
        raise UserError("notify", words, "pip install 'gangrun[notify]'")
    if unknown := Services(addresses).unknown:
        words = f"--notify: apprise does not understand the address of {', '.join(unknown)}"
        raise UserError("notify", words, "apprise's documentation lists the addresses of its services")


def refuse_unusable_port(asked: MetricsSpec) -> None:
    """``UserError`` if nobody can serve figures there, on this host and now."""
    if asked.port is not None:
        from gangrun.entry.metrics import refuse_unusable  # brings a server along

        refuse_unusable(asked.address, asked.port)


@dataclass(slots=True)
class Notifier:
    """The notifier of one run, or none."""

    child: HeldChild | None = None

    @staticmethod
    def of(spec: RunSpec, paths: RunPaths, variables: Mapping[str, str]) -> Notifier:
        """Start it, if the run is to be told anywhere."""
        if not spec.notify.services:
            return Notifier()
        command = own_command("gangrun.entry.notifier", ["--run-dir", str(paths.root)], sys.executable)
        return Notifier(HeldChild.start(command, variables))

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that a sweep must not end."""
        return () if self.child is None else (self.child.pid,)

    def over(
        self,
        code: int,
        why: str = "",
        leaves: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """The owner is done; what is still to be told gets a little time, or as long as it needs once ``leaves()``."""
        looks = count(1)

        def leaves_now() -> bool:
            if next(looks) == SAYS_AT_COUNT:
                words = f"waiting up to {MESSAGE_WITHIN_S:g} s until the last message is sent"
                say(f"{words}; Ctrl-C leaves, and it is sent all the same")
            return leaves()

        if self.child is not None:
            self.child.end(msgspec.json.encode(OwnerEnd(code, why)), MESSAGE_WITHIN_S, leaves_now)


@dataclass(frozen=True, slots=True)
class Sidecars:
    """The notifier and the server of figures of one run."""

    notifier: Notifier
    metrics: HeldChild | None = None

    @staticmethod
    def of(spec: RunSpec, paths: RunPaths, variables: Mapping[str, str], say: Callable[[str], None]) -> Sidecars:
        """Start what the run asks for; ``say`` where its figures are served."""
        notifier, asked = Notifier.of(spec, paths, variables), spec.metrics
        if asked.port is None:
            return Sidecars(notifier)
        from gangrun.entry.metrics import url_of

        command = own_command("gangrun.entry.metrics", ["--run-dir", str(paths.root)], sys.executable)
        server = HeldChild.start(command, variables)
        if server is not None:
            say(f"figures for Prometheus: {url_of(asked.address, asked.port)} on {processes.host_name()}")
        return Sidecars(notifier, server)

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes that a sweep must not end."""
        return self.notifier.pids + (() if self.metrics is None else (self.metrics.pid,))

    def close(self) -> None:
        """The server leaves when the owner's process ends; told so, it leaves sooner, and its port is free again."""
        if self.metrics is not None:
            self.metrics.end(b"", SERVER_LEAVES_WITHIN_S, lambda: False)
