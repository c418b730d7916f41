"""One stay of one job, seen from its launcher: the step runs, the run is watched, the end is told.

Owners are the batch script and ``gangrun run`` in an allocation. There Ctrl-C cancels, and Slurm is asked what a
SIGTERM means. The step is started anew without nodes that srun cannot reach. A warden or an srun that was killed is
started again. A supervisor of last resort follows if the nodes are gone and nothing is decided yet. The owner decides
nothing about the run: it makes sure that a supervisor does, and that this supervisor knows what srun said.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import Asking, Claimed, JobClaim, JobClaims
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm import step
from gangrun.adapters.slurm.commands import ToolProcess, Tools
from gangrun.adapters.slurm.scheduler import SchedulerRefused, SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.step import Left, Step
from gangrun.core.model import EXIT_CODES, TERMINAL, Failure, RunState
from gangrun.core.nodeset import fold
from gangrun.core.text import signal_name
from gangrun.display.live_view import LiveView, Observer
from gangrun.entry.wiring import own_command
from gangrun.launch.node_spec import EXIT_NOBODY, EXIT_WAITED, WARDEN_GONE, warden_killed, warden_spec
from gangrun.launch.owner import Cancelling, hears
from gangrun.launch.slurm_batch_job import Absent, Allocation, note_absent, note_stopped
from gangrun.ports import Clock
from gangrun.runs.follow import JournalReplay
from gangrun.runs.rank_output import lost_output
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
    return state.seq > claim.seq or (ours and (state.ending.leaving or state.phase in TERMINAL))


def code_of(state: RunState | None, claim: JobClaim) -> int:
    """With what the job ends, so that Slurm's word and the run's agree."""
    if state is not None and state.phase in TERMINAL:
        return EXIT_CODES[state.phase]
    return EXIT_ELSEWHERE if is_over(state, claim) else EXIT_UNUSABLE


LAUNCHES_MAX = 4
STARTS_AGAIN_MAX = 5  # of srun, and of each node's warden: something outside kills them
FOLLOW_FIRST_S, FOLLOW_FACTOR = 2.0, 4.0  # pauses before the second and each later srun that follows
ONLY_WAITED = f"Exited with exit code {EXIT_WAITED}"  # the warden beside whom that task waited may live on
SIGNALLED = 128  # a shell adds the number of the signal
NOBODY_THERE = f"Exited with exit code {EXIT_NOBODY}"
ENDED_BY_ITSELF = ("Exited with exit code", "Terminated")  # srun's words; "Killed" is how a killed one ends
RESORTS_MAX = 4  # supervisors of last resort, if each is killed
ASKED_WITHIN_S = MARKED_WITHIN_S = 3.0
MARK_AGAIN_S = 2.0
LAST_WORDS_BYTES = 2000
LAST_LINES_COUNT = 2


class StepPart(Enum):
    """What runs now."""

    STEP = "step"
    LAST_RESORT = "supervisor of last resort"
    OVER = "over"


@dataclass(slots=True)
class StepLaunch:
    """One srun, and what is known of the nodes on which it started something."""

    step: Step
    nodes: tuple[str, ...]
    said_bytes: Mapping[str, int]  # node -> what it had said before this launch
    founds: bool = False  # on all nodes of the step, none of which has a warden
    follows: bool = False  # one that was killed: its tasks wait beside wardens that live
    only_beside: bool = False  # and start none where none lives
    settled_count: int = 0
    heard: set[str] = field(default_factory=set)  # nodes whose task has ended

    def why(self, paths: RunPaths, left: Left) -> str:
        """How the task on a node ended, with its last words."""
        if left.unreached:
            return left.how
        task = self.nodes.index(left.node) if left.node in self.nodes else -1
        last = self.step.last_words(task) or last_words(paths.process_log(left.node), self.said_bytes.get(left.node, 0))
        return f"{left.how}: {last}" if last else left.how


@dataclass(slots=True)
class JobStep:
    """``over`` says whether the run still wants this job; ``say`` shows a sentence to people.

    The first srun starts a warden on each node. One more starts a killed warden again on its node. If srun itself is
    killed, the wardens live on: one more srun starts their successors, who wait on each node until the warden there
    ends. So nothing that lives is stopped, and the end of each warden is heard of again. An srun that ends with an exit
    code is mostly the end of all its tasks. Not always: a site may have put a script in its place. So one more srun
    looks whether wardens live, and starts none where none does.
    """

    spec: RunSpec
    paths: RunPaths
    claim: JobClaim
    allocation: Allocation
    variables: Mapping[str, str]
    extra: tuple[str, ...]
    over: Callable[[], bool]
    say: Callable[[str], None]
    hear: Callable[[str], bool] = lambda line: True  # a line of a node's processes: is it not for people?
    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=SystemClock)
    part: StepPart = StepPart.STEP
    launches: list[StepLaunch] = field(default_factory=list)  # whose srun lives
    _resort: ToolProcess | None = None
    _absent: dict[str, Absent] = field(default_factory=dict)
    _nodes: tuple[str, ...] = ()
    _noted: tuple[Absent, ...] = ()
    _left: list[Left] = field(default_factory=list)  # of launches that have ended
    _words: list[str] = field(default_factory=list)
    _starts_count: dict[str, int] = field(default_factory=dict)  # again: of srun, or of a node's warden
    _unheard: tuple[str, ...] = ()  # nodes whose warden may live, and no srun hears of its end
    _follow_at: float = 0.0
    _only_beside: bool = False
    _asking: Asking | None = None  # for the claim of a new launch, which the file system has not answered yet
    _ask_at: float = 0.0
    _marked: JobClaim | None = None  # the stay that Slurm was told is over
    _silent: str = ""
    _resorts_count: int = 0
    _resort_at: float = 0.0  # if none could be started
    _cancelled: bool = False  # by a person, or Slurm ends the job

    def start(self) -> None:
        """Launch on all nodes of the job; ``OSError`` where there is no srun."""
        self._launch_all(self.allocation.nodes)

    def _launch_all(self, nodes: tuple[str, ...]) -> None:
        self._nodes, self._left, self._words = nodes, [], []
        self._launch(nodes, founds=True)

    def _launch(
        self, nodes: tuple[str, ...], previous_died: str = "", *, founds: bool = False, follows: bool = False,
        only_beside: bool = False,
    ) -> None:  # fmt: skip
        words = step_argv(
            self.spec, self.paths, self.claim, self.allocation, nodes, self.extra, self._nodes[0], previous_died,
            only_beside=only_beside,
        )  # fmt: skip
        step = Step(words, self.variables, self.allocation.job, Tools(self.variables), hear_task=self.hear)
        launch = StepLaunch(step, nodes, said_bytes(self.paths, nodes), founds, follows, only_beside)
        step.start()
        self.launches.append(launch)

    def turn(self) -> None:
        """Take in what happened since the last turn."""
        if self.part is StepPart.STEP:
            for launch in tuple(self.launches):
                code = launch.step.ended
                self._hear(launch, ended=code is not None)
                if code is not None:
                    self.launches.remove(launch)
                    self._left += launch.step.left if launch.founds else []
                    self._words += launch.step.words
                    if code < 0 or launch.follows or not any(left.unreached for left in launch.step.left):
                        self._note_unheard(launch, code)
            if self._unheard:
                self._follow()
            elif not self.launches:
                self._after_step()
        elif self.part is StepPart.LAST_RESORT:
            assert self._resort is not None
            code = self._resort.poll()
            if code is not None and code < 0 and self._resorts_count < RESORTS_MAX and not self.over():
                self._decide_here(f"the supervisor of last resort was killed by {signal_name(-code)}")
            elif code is not None:
                self.part = StepPart.OVER

    def interrupt(self) -> None:
        """Tell every agent to cancel; where none lives, a supervisor of last resort finds the mark."""
        self._cancelled = True
        if self.launches and self.part is StepPart.STEP:
            self.launches[0].step.cancel("INT")

    def leave(self) -> None:
        """The run is over. Srun waits for a node that is gone until Slurm believes it; nobody else has to."""
        for launch in self.launches:
            launch.step.kill()
        if self._resort is not None:
            self._resort.send_signal(signal.SIGKILL)
        self.part = StepPart.OVER

    def kill(self) -> None:
        """No more grace: Slurm kills all that the step has, on every node."""
        if self.launches and self.part is StepPart.STEP:
            self._cancelled = True
            self.launches[0].step.cancel()
            return
        if self._resort is not None:
            self._resort.send_signal(signal.SIGKILL)
        self.part = StepPart.OVER

    # ---- nodes that are missing, wardens and sruns that were killed ----

    def _hear(self, launch: StepLaunch, ended: bool) -> None:
        """A node's last words may come a moment after srun tells of its end: what is new now is noted next time."""
        settled = launch.step.left[: None if ended else launch.settled_count]
        launch.settled_count = len(launch.step.left)
        unreached = [left for left in settled if left.unreached]
        new = [left for left in unreached or settled if left.node not in launch.heard and left.how != ONLY_WAITED]
        launch.heard.update(left.node for left in new)  # if srun does not reach one node, it kills what began elsewhere
        new = [left for left in new if left.how != NOBODY_THERE]
        again = [left for left in new if self._may_start_again(left)]
        if again and self._job_ends():
            return  # Slurm kills what the job has, so these ends say nothing of their nodes
        if not again or not self._started_again(again):
            again = []
        for left in new:
            if left not in again and left.node not in self._absent:
                self._absent[left.node] = Absent(left.node, launch.why(self.paths, left), left.unreached)
        found = tuple(self._absent.values())
        if found == self._noted or self.over():
            return
        try:
            note_absent(self.disk, self.paths, self.claim.token, found)
        except OSError as error:
            self.say(f"cannot record why {fold(self._absent)} did not connect: {error}")
        self._noted = found

    def _may_start_again(self, left: Left) -> bool:
        """A warden ends by itself with an exit code. One that was killed is started again while its node lives."""
        if left.unreached or left.how.startswith(ENDED_BY_ITSELF) or self._cancelled or self.over():
            return False
        count = self._starts_count[left.node] = self._starts_count.get(left.node, 0) + 1
        return count <= STARTS_AGAIN_MAX

    def _job_ends(self) -> bool:
        """Has Slurm begun to end this stay of the job? If Slurm is silent: no, since srun asks it as well."""
        try:
            facts = SlurmScheduler(Tools(self.variables)).job(self.claim.job, within_s=ASKED_WITHIN_S)
        except SchedulerSilent:
            return False
        if facts is not None and facts.runs and facts.restarts_count == self.claim.restart:
            return False
        shown = f"is {facts.state}" if facts is not None else "is gone"
        self.say(f"job {self.claim.job} {shown} in Slurm: no warden is started again")
        self._cancelled = True
        return True

    def _started_again(self, killed: list[Left]) -> bool:
        """One srun for all wardens that were killed at once."""
        nodes = tuple(left.node for left in killed)
        who = f"the warden on {fold(nodes)} was" if len(nodes) == 1 else f"the wardens on {fold(nodes)} were"
        self.say(f"{who} killed ({killed[0].how}): starting {'it' if len(nodes) == 1 else 'them'} again in this job")
        hows = {left.how for left in killed}
        return self._launched(nodes, how_killed(hows.pop()) if len(hows) == 1 else WARDEN_GONE)

    def _launched(
        self, nodes: tuple[str, ...], previous_died: str, *, follows: bool = False, only_beside: bool = False
    ) -> bool:
        try:
            self._launch(nodes, previous_died, follows=follows, only_beside=only_beside)
        except OSError as error:
            self.say(f"cannot start srun again: {error.strerror or error}")
            return False
        return True

    def _note_unheard(self, launch: StepLaunch, code: int) -> None:
        """Srun was killed, or it ended with some tasks' ends untold. What was started may live on, unheard."""
        rest = {node for node in launch.nodes if node not in launch.heard}
        if not rest or self.over() or self._cancelled:
            return
        count = self._starts_count["srun"] = self._starts_count.get("srun", 0) + 1
        if count > STARTS_AGAIN_MAX:
            return
        pause_s = FOLLOW_FIRST_S * FOLLOW_FACTOR ** (count - 2) if count > 1 else 0.0
        if not launch.follows and code >= 0:
            pause_s = max(pause_s, FOLLOW_FIRST_S)  # mostly the run is over, and its last record is not read yet
        self._only_beside = launch.only_beside or (not launch.follows and 0 <= code <= SIGNALLED)
        self._unheard = tuple(node for node in self._nodes if node in rest.union(self._unheard))
        self._follow_at = self.clock.now() + pause_s
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        when = f" in {pause_s:.0f} s" if pause_s else ""
        self.say(f"srun {how}, and what it started on {fold(self._unheard)} may live on: following it{when}")

    def _follow(self) -> None:
        """Start the srun whose tasks wait beside those wardens, once its pause is over."""
        if self.over() or self._cancelled:
            self._unheard = ()
        elif self.clock.now() >= self._follow_at and not self._job_ends():
            nodes, self._unheard = self._unheard, ()
            self._launched(nodes, WARDEN_GONE, follows=True, only_beside=self._only_beside)

    # ---- when every srun has ended ----

    def _after_step(self) -> None:
        if not self._cancelled and not self.over() and not self._is_marked():
            return
        if self.over():
            self.part = StepPart.OVER
            return
        unreached = {left.node for left in self._left if left.unreached}
        rest = tuple(node for node in self._nodes if node not in unreached)
        if unreached and rest and self.claim.launch + 1 < LAUNCHES_MAX and not self._cancelled:
            if self._asking is None:
                self.say(f"srun cannot reach {fold(unreached)}: launching on {fold(rest)}")
            claimed = self._claimed_again()
            if claimed is None:
                return
            if claimed:
                self._noted = ()
                self._absent = {name: one for name, one in self._absent.items() if one.scheduler}
                self._launch_all(rest)
                return
        told = "; ".join(self._words[-3:])
        undecided = "all agents have ended, and no supervisor has decided what comes next"
        self._decide_here(f"{undecided} ({told or 'srun said nothing'})")

    def _decide_here(self, why: str) -> None:
        if self.clock.now() < self._resort_at:
            return
        self.say(f"{why}: deciding here")
        try:
            argv = last_resort_argv(self.paths, self.claim, self.allocation)
            self._resort = ToolProcess(argv, self.variables, heard=False)
        except OSError as error:  # no memory for a fork, no file descriptor: the next turn tries again
            self.say(f"cannot start the supervisor of last resort: {error.strerror or error}; trying again")
            self._resort_at = self.clock.now() + MARK_AGAIN_S
            return
        self._resorts_count += 1
        self.part = StepPart.LAST_RESORT

    def _is_marked(self) -> bool:
        """Has Slurm noted that this step is over? False: the next turn asks again.

        Without that note a supervisor on nodes that srun lost would acknowledge for as long as Slurm says "running".
        """
        if self._marked == self.claim or self.clock.now() < self._ask_at:
            return self._marked == self.claim
        scheduler, stay = SlurmScheduler(Tools(self.variables)), self.claim
        try:
            scheduler.mark_over(self.paths.run, stay.job, stay.restart, stay.launch, MARKED_WITHIN_S)
        except SchedulerRefused as error:
            why = f"Slurm refuses to note in the comment of job {stay.job} that its step is over: {error}"
            why = f"{why}; this job starts nothing more, and gangrun resume {self.spec.run} continues the run"
            self.say(why)
            note_stopped(self.paths, self.disk, stay.seq, why, Failure.SCHEDULER)
            self.part = StepPart.OVER
            return False
        except SchedulerSilent as error:
            if self._silent != str(error):
                self._silent = str(error)
                self.say(f"the step has ended, and Slurm could not be told: {error}; trying again")
            self._ask_at = self.clock.now() + MARK_AGAIN_S
            return False
        self._marked, self._ask_at = stay, 0.0
        return True

    def _claimed_again(self) -> bool | None:
        """A new launch is a new stay: what is left of the last one's supervisor must not hold it.

        None: not known yet. The next turn asks again, so that a person is heard meanwhile.
        """
        asking = self._asking = self._asking or Asking(self.say, self.spec.policy.waiting_max_s)
        if self.clock.now() < self._ask_at:
            return None
        wish = msgspec.structs.replace(self.claim, launch=self.claim.launch + 1)
        try:
            claimed = JobClaims(self.paths, self.disk).claim(wish)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._ask_at = self.clock.now() + asking.pause_s(error)
                return None
            self.say(f"cannot launch again: {error}")
            claimed = None
        self._asking, self._ask_at = None, 0.0
        if not isinstance(claimed, Claimed):
            return False
        self.claim = wish
        return True


def said_bytes(paths: RunPaths, nodes: tuple[str, ...]) -> dict[str, int]:
    """How much each node's processes have said up to now: an earlier job's end is no reason for what follows."""
    found = dict.fromkeys(nodes, 0)
    for node in nodes:
        with contextlib.suppress(OSError):
            found[node] = paths.process_log(node).stat().st_size
    return found


def last_words(log: Path, said_bytes: int = 0) -> str:
    """The end of what a node's processes said after their first ``said_bytes``, in one line."""
    try:
        data = log.read_bytes()[said_bytes:][-LAST_WORDS_BYTES:]
    except OSError:
        return ""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return "; ".join(lines[-LAST_LINES_COUNT:])


def how_killed(how: str) -> str:
    """How a warden ended, from srun's words, such as "Killed" or "Segmentation fault (core dumped)"."""
    words = how.removesuffix("(core dumped)").strip()
    number = next((number for number in signal.valid_signals() if signal.strsignal(number) == words), None)
    return WARDEN_GONE if number is None else warden_killed(number)


def step_argv(
    spec: RunSpec,
    paths: RunPaths,
    claim: JobClaim,
    allocation: Allocation,
    nodes: tuple[str, ...],
    extra: tuple[str, ...],
    founder: str,
    previous_died: str = "",
    *,
    only_beside: bool = False,
) -> list[str]:
    """The command line of srun for these nodes of the allocation; all of it are the roster."""
    told = warden_spec(spec, paths, claim.token, claim.seq, founder, roster=fold(allocation.nodes))
    told |= {"previous_died": previous_died, "only_beside": only_beside}
    words = [json.dumps(told), str(paths.root), msgspec.json.encode(claim).decode()]
    command = own_command("gangrun.entry.slurm_node", words, sys.executable)
    return step.argv(step.StepShape(nodes, allocation.cpus_per_task, extra), command)


def last_resort_argv(paths: RunPaths, claim: JobClaim, allocation: Allocation) -> list[str]:
    """The supervisor that the batch script starts when nobody else is left to decide."""
    words = ["--run-dir", str(paths.root), "--node", allocation.host, "--job", claim.token, "--seq", str(claim.seq)]
    words += ["--roster", fold(allocation.nodes), "--last-resort"]
    return own_command("gangrun.entry.supervisor", words, sys.executable)


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
        observer = Observer(JournalReplay(self.paths, self.disk), self.clock, view)
        observer.catch_up()
        urgent = deque[str]()
        steps = JobStep(
            self.spec, self.paths, self.claim, self.allocation, self.variables, self.extra,
            over=lambda: is_over(observer.state(), steps.claim), say=view.say,
            hear=hears(view, urgent), disk=self.disk, clock=self.clock,
        )  # fmt: skip
        cancelling = Cancelling(
            self.paths, self.disk, self.clock, view.say, observer.state,
            insist=steps.interrupt, kill=steps.kill, excuse=self.excuse, urgent=urgent,
        )  # fmt: skip
        if not self.foreground:
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                # Slurm tells the step too, and what it means is found out there. Not SIG_IGN: srun would inherit that.
                signal.signal(signum, lambda _number, _frame: None)
        observer.start()
        steps.start()
        if refused := SlurmScheduler(Tools(self.variables)).comment_refused(self.claim.job, ASKED_WITHIN_S):
            then = f"if srun loses all nodes, this job ends, and gangrun resume {self.spec.run} continues the run"
            view.say(f"Slurm refuses a change of this job's comment ({refused}): {then}")
        self._stay(steps, observer, cancelling)
        cancelling.say_urgent()
        if not observer.leave(LAST_LOOK_WITHIN_S):
            view.say(f"some of the last lines are missing here: gangrun logs {self.paths.run} shows all")
        for words in lost_output(self.paths):
            view.say(words)
        goes_on = is_over(observer.state(), steps.claim) and not cancelling.meant
        return cancelling.code() if self.foreground and not goes_on else code_of(observer.state(), steps.claim)

    def _stay(self, steps: JobStep, observer: Observer, cancelling: Cancelling) -> None:
        give_up_at = float("inf")
        with selectors.DefaultSelector() as selector:
            if self.foreground:
                selector.register(cancelling.listen(), selectors.EVENT_READ)
            pause = threading.Event()
            while steps.part is not StepPart.OVER:
                if self.foreground:
                    for key, _ in selector.select(LOOK_EVERY_S):
                        key.fileobj.recv(4096)  # type: ignore[union-attr] # the socket above
                    cancelling.turn()
                else:
                    pause.wait(LOOK_EVERY_S)
                    cancelling.say_urgent()
                steps.turn()
                if give_up_at == float("inf") and is_over(observer.state(), steps.claim):
                    give_up_at = self.clock.now() + LETS_GO_WITHIN_S
                if self.clock.now() >= give_up_at:
                    steps.leave()
