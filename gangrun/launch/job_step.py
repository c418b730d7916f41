"""The step of one job from its launch to its end: started anew without nodes that srun cannot reach, and
followed by a supervisor of last resort where the nodes are gone and nothing is decided yet.

It decides nothing about the run. It makes sure that somebody does, and that whoever does knows what srun said.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import Claimed, JobClaim, JobClaims
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.commands import Child, Tools
from gangrun.adapters.slurm.step import Left, Step
from gangrun.core.nodeset import fold
from gangrun.launch import absent_nodes
from gangrun.launch.local import process_log
from gangrun.launch.node_spec import Allocation, last_resort_argv, step_argv
from gangrun.wire.spec import RunSpec

LAUNCHES_MAX = 4
LAST_WORDS_BYTES = 2000
LAST_LINES_COUNT = 2


class Part(Enum):
    """What runs now."""

    STEP = "step"
    LAST_RESORT = "supervisor of last resort"
    OVER = "over"


@dataclass(slots=True)
class JobStep:
    """``over`` says whether the run still wants this job; ``say`` shows a sentence to people."""

    spec: RunSpec
    paths: RunPaths
    claim: JobClaim
    allocation: Allocation
    variables: Mapping[str, str]
    extra: tuple[str, ...]
    over: Callable[[], bool]
    say: Callable[[str], None]
    disk: Disk = field(default_factory=Disk)
    part: Part = Part.STEP
    _step: Step | None = None
    _resort: Child | None = None
    _absent: dict[str, absent_nodes.Absent] = field(default_factory=dict)
    _nodes: tuple[str, ...] = ()
    _said_bytes: Mapping[str, int] = field(default_factory=dict)  # node -> what it had said before this launch
    _noted: tuple[absent_nodes.Absent, ...] = ()
    _settled_count: int = 0

    def start(self) -> None:
        """Launch on all nodes of the job; ``OSError`` where there is no srun."""
        self._launch(self.allocation.nodes)

    def _launch(self, nodes: tuple[str, ...]) -> None:
        words = step_argv(self.spec, self.paths, self.claim, self.allocation, nodes, self.extra)
        self._nodes, self._settled_count = nodes, 0
        self._said_bytes = said_bytes(self.paths, nodes)
        self._step = Step(words, self.variables, self.allocation.job, Tools(self.variables))
        self._step.start()

    def turn(self) -> None:
        """Take in what happened since the last turn."""
        if self.part is Part.STEP:
            assert self._step is not None
            code = self._step.ended
            self._hear(self._step, ended=code is not None)
            if code is not None:
                self._after_step(self._step)
        elif self.part is Part.LAST_RESORT:
            assert self._resort is not None
            if self._resort.poll() is not None:
                self.part = Part.OVER

    def interrupt(self) -> None:
        """Tell every agent to cancel."""
        if self._step is not None and self.part is Part.STEP:
            self._step.cancel("INT")

    def leave(self) -> None:
        """The run is over. Srun waits for a node that is gone until Slurm believes it; nobody else has to."""
        if self._step is not None:
            self._step.kill()
        if self._resort is not None:
            self._resort.send_signal(signal.SIGKILL)
        self.part = Part.OVER

    def kill(self) -> None:
        """No more grace: Slurm kills all that the step has, on every node."""
        if self._step is not None and self.part is Part.STEP:
            self._step.cancel()
        elif self._resort is not None:
            self._resort.send_signal(signal.SIGKILL)

    # ---- nodes that are missing ----

    def _hear(self, step: Step, ended: bool) -> None:
        """A node's last words may come a moment after srun tells of its end: what is new now is noted next time."""
        settled = step.left[: None if ended else self._settled_count]
        self._settled_count = len(step.left)
        unreached = [left for left in settled if left.unreached]
        for left in unreached or settled:  # where srun does not reach one node, it kills what began on the others
            if left.node not in self._absent:
                self._absent[left.node] = absent_nodes.Absent(left.node, self._why(step, left), left.unreached)
        found = tuple(self._absent.values())
        if found == self._noted or self.over():
            return
        try:
            absent_nodes.note(self.disk, self.paths, self.claim.token, found)
        except OSError as error:
            self.say(f"cannot write down why {fold(self._absent)} did not come: {error}")
        self._noted = found

    def _why(self, step: Step, left: Left) -> str:
        if left.unreached:
            return left.how
        task = self._nodes.index(left.node) if left.node in self._nodes else -1
        last = step.last_words(task) or last_words(
            process_log(self.paths, left.node), self._said_bytes.get(left.node, 0)
        )
        return f"{left.how}: {last}" if last else left.how

    # ---- when srun has ended ----

    def _after_step(self, step: Step) -> None:
        if self.over():
            self.part = Part.OVER
            return
        unreached = {left.node for left in step.left if left.unreached}
        rest = tuple(node for node in self._nodes if node not in unreached)
        if unreached and rest and self.claim.launch + 1 < LAUNCHES_MAX:
            self.say(f"srun does not reach {fold(unreached)}: launching on {fold(rest)}")
            if self._claimed_again():
                self._noted = ()
                self._absent = {name: one for name, one in self._absent.items() if one.scheduler}
                self._launch(rest)
                return
        told = "; ".join(step.words[-3:])
        self.say(f"all nodes have left and nothing is decided yet ({told or 'srun said nothing'}): deciding here")
        self._resort = Child(last_resort_argv(self.paths, self.claim, self.allocation), self.variables)
        self.part = Part.LAST_RESORT

    def _claimed_again(self) -> bool:
        """A new launch is a new stay: what is left of the last one's supervisor must not hold it."""
        wish = replace_launch(self.claim)
        if not isinstance(JobClaims(self.paths, self.disk).claim(wish), Claimed):
            return False
        self.claim = wish
        return True


def replace_launch(claim: JobClaim) -> JobClaim:
    """The same stay, launched once more."""
    import msgspec

    return msgspec.structs.replace(claim, launch=claim.launch + 1)


def said_bytes(paths: RunPaths, nodes: tuple[str, ...]) -> dict[str, int]:
    """How much each node's processes have said up to now: an earlier job's end is no reason for what follows."""
    found = dict.fromkeys(nodes, 0)
    for node in nodes:
        with contextlib.suppress(OSError):
            found[node] = process_log(paths, node).stat().st_size
    return found


def last_words(log: Path, said_bytes: int = 0) -> str:
    """The end of what a node's processes said after their first ``said_bytes``, in one line."""
    try:
        data = log.read_bytes()[said_bytes:][-LAST_WORDS_BYTES:]
    except OSError:
        return ""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return "; ".join(lines[-LAST_LINES_COUNT:])
