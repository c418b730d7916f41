"""``--debug-rank``: one rank on this box gets the terminal of the process that owns the run.

The rank is in a session of its own, so the kernel sends Ctrl-C to the owner alone, which passes it on as a terminal
would: to the rank's process group. At pdb's prompt that gives a new prompt, elsewhere a KeyboardInterrupt. Several in a
row cancel the run, since a rank may be deaf to it. Ctrl-Z is ignored: a stopped owner would leave the rank and the
shell to read the same terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gangrun.adapters.clock import SystemClock
from gangrun.errors import UserError
from gangrun.node import processes

CANCELS_COUNT, CANCELS_WITHIN_S = 3, 2.0  # so many times Ctrl-C in this time cancel the run


@dataclass(slots=True)
class DebugTerminal:
    """The terminal of this process, lent to a rank."""

    rank: int
    path: str
    modes: list[Any]
    _interrupts: deque[float] = field(default_factory=lambda: deque(maxlen=CANCELS_COUNT))
    _clock: SystemClock = field(default_factory=SystemClock)

    @classmethod
    def of(cls, rank: int | None, *, detached: bool = False) -> DebugTerminal | None:
        """The terminal if a rank is to have it; ``UserError`` if there is none."""
        if rank is None:
            return None
        words, hint = f"--debug-rank {rank} needs a terminal", "run it in a terminal, without --detach"
        if detached:
            raise UserError("usage", f"{words}, and --detach leaves it", hint)
        try:
            found = cls(rank, os.ttyname(0), termios.tcgetattr(0))
        except (OSError, termios.error) as error:
            raise UserError("usage", f"{words}, and standard input is none", hint) from error
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        return found

    def words(self, run: str) -> str:
        """What to know before the first prompt."""
        ctrl_c = f"Ctrl-C goes to it, {CANCELS_COUNT} times within {CANCELS_WITHIN_S:g} s cancel the run"
        rest = f"gangrun logs -f {run} shows the other ranks"
        return f"rank {self.rank} has this terminal; {ctrl_c}; the hang watch is suspended; {rest}"

    def interrupt(self) -> bool:
        """Pass a Ctrl-C on; False if no rank has the terminal, or it was pressed so often that it means the run."""
        now = self._clock.now()
        self._interrupts.append(now)
        if len(self._interrupts) == CANCELS_COUNT and now - self._interrupts[0] <= CANCELS_WITHIN_S:
            return False
        groups = {proc.group for proc in self._readers()}
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGINT)
        return bool(groups)

    def _readers(self) -> list[processes.Proc]:
        """Leaders of process groups below us that read this terminal: the rank."""
        below = processes.descendants([os.getpid()], processes.process_table())
        return [proc for proc in below if proc.group == proc.pid and self._reads(proc)]

    def _reads(self, proc: processes.Proc) -> bool:
        try:
            return os.readlink(f"/proc/{proc.pid}/fd/0") == self.path
        except OSError:
            return False

    def restore(self) -> None:
        """As it was: a rank that is killed in a prompt leaves it without echo."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, self.modes)
