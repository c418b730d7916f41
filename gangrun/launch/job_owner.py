"""One stay of one job, seen from its launcher: its step runs, the run is watched, the end is told.

The batch script is one owner, ``gangrun run`` in an allocation the other: there Ctrl-C cancels, and what SIGTERM means
is asked of Slurm.
"""

from __future__ import annotations

import selectors
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import EXIT_CODES, TERMINAL, RunState
from gangrun.display.live_view import LiveView
from gangrun.display.observer import Onlooker
from gangrun.launch.job_step import JobStep, Part
from gangrun.launch.node_spec import Allocation
from gangrun.launch.stop_signals import Cancelling
from gangrun.wire.spec import RunSpec

EXIT_ELSEWHERE = 75  # not 0: whoever waits for this job by afterok waits for a finished run
EXIT_UNUSABLE = 78
LOOK_EVERY_S = 0.25
LETS_GO_WITHIN_S = 5.0  # the run has its record; a successor may wait for these nodes
LAST_LOOK_WITHIN_S = 5.0


def is_over(state: RunState | None, claim: JobClaim) -> bool:
    """Does the run want nothing more of this job?"""
    if state is None:
        return False
    ours = state.job == claim.token
    return state.seq > claim.seq or (ours and (state.leaving or state.phase in TERMINAL))


def code_of(state: RunState | None, claim: JobClaim) -> int:
    """With what the job ends, so that Slurm's word and the run's agree."""
    if state is not None and state.phase in TERMINAL:
        return EXIT_CODES[state.phase]
    return EXIT_ELSEWHERE if is_over(state, claim) else EXIT_UNUSABLE


@dataclass(slots=True)
class JobOwner:
    """``foreground``: a person holds the allocation, and its Ctrl-C means the run."""

    spec: RunSpec
    paths: RunPaths
    claim: JobClaim
    allocation: Allocation
    variables: Mapping[str, str]
    extra: tuple[str, ...]
    disk: Disk
    clock: SystemClock
    view: LiveView
    foreground: bool = False
    excuse: Callable[[], str] | None = None  # why a SIGTERM to this process does not mean the run

    def run(self) -> int:
        """Until nothing of it is left to do; the exit code."""
        view = self.view
        onlooker = Onlooker(self.paths, self.disk, self.clock, view)
        onlooker.catch_up()
        steps = JobStep(
            self.spec, self.paths, self.claim, self.allocation, self.variables, self.extra,
            over=lambda: is_over(onlooker.state(), steps.claim), say=view.say, disk=self.disk,
        )  # fmt: skip
        cancelling = Cancelling(
            self.paths, self.disk, self.clock, view.say, onlooker.state,
            insist=steps.interrupt, kill=steps.kill, excuse=self.excuse,
        )  # fmt: skip
        if not self.foreground:
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                # Slurm tells the step too, and what it means is found out there. Not SIG_IGN: srun would inherit that.
                signal.signal(signum, lambda _number, _frame: None)
        onlooker.start()
        steps.start()
        self._stay(steps, onlooker, cancelling)
        if not onlooker.leave(LAST_LOOK_WITHIN_S):
            view.say(f"the last lines are missing here: gangrun logs {self.paths.run} shows all there is")
        goes_on = is_over(onlooker.state(), steps.claim) and not cancelling.meant
        return cancelling.code() if self.foreground and not goes_on else code_of(onlooker.state(), steps.claim)

    def _stay(self, steps: JobStep, onlooker: Onlooker, cancelling: Cancelling) -> None:
        give_up_at = float("inf")
        with selectors.DefaultSelector() as selector:
            if self.foreground:
                selector.register(cancelling.listen(), selectors.EVENT_READ)
            pause = threading.Event()
            while steps.part is not Part.OVER:
                if self.foreground:
                    for key, _ in selector.select(LOOK_EVERY_S):
                        key.fileobj.recv(4096)  # type: ignore[union-attr] # the socket above
                    cancelling.turn()
                else:
                    pause.wait(LOOK_EVERY_S)
                steps.turn()
                if give_up_at == float("inf") and is_over(onlooker.state(), steps.claim):
                    give_up_at = self.clock.now() + LETS_GO_WITHIN_S
                if self.clock.now() >= give_up_at:
                    steps.leave()
