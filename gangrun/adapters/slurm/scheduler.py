"""What Slurm says of jobs, and what an ordinary user may ask of it.

Reads ``scontrol show job`` and ``squeue -o`` of 22.05 to 24.11; both print times in the zone that ``commands`` sets.
Blocks up to ``within_s`` a question: never call it from the supervisor's loop.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer, Tools
from gangrun.core.nodeset import NodesetError, unfold

ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
     "TIMEOUT"}
)  # fmt: skip
RUNS = frozenset({"RUNNING", "SIGNALING", "RESIZING", "STOPPED", "SUSPENDED"})
HELD = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch_failed_requeued_held", "ReqHeld"})
KILL_WAIT_S = 30.0
CLOCKS_APART_S = 60.0  # a node's wall clock, by which it says when it booted, may be as far from ours
NO_SUCH_JOB = "invalid job id"
OVER_ALREADY = ("already completing or completed", "job has already finished", "already finished", NO_SUCH_JOB)
NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "Unknown", "NONE"})

FIELD, RECORD = "\x1f", "\x1e"
# What a user wrote stands last: it may hold anything.
COLUMNS = ("%i", "%u", "%T", "%r", "%N", "%B", "%e", "%x", "%E", "%P", "%j", "%k")
FORMAT = FIELD.join(COLUMNS) + RECORD

_FIRST_LINE = re.compile(
    r"JobId=(?P<job>\S+)(?: ArrayJobId=\S+)?(?: ArrayTaskId=\S+)?(?: HetJob\S+=\S+)* JobName=(?P<name>.*)"
)
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*([0-9]+)", re.MULTILINE)
_SCRONTAB = re.compile(r"^ScronParameters\s*=.*\benable\b", re.MULTILINE)
_AS_OF = re.compile(r"^Configuration data as of (\S+)", re.MULTILINE)
_NODE_STATE = re.compile(r"^ *State=([A-Z]+)", re.MULTILINE)
_BOOT_TIME = re.compile(r"^NodeName=(\S+) .*? BootTime=(\S+)", re.MULTILINE)
_RESERVATION = re.compile(r"^ReservationName=(\S+) StartTime=(\S+) .*?\bNodes=(\S+) .*?\bFlags=(\S*)", re.MULTILINE)
_GRACE_TIME = re.compile(r"\bGraceTime=([0-9]+)")
_OVER = re.compile(r"\+over:([^+:\s]+):([0-9]+)\.([0-9]+)$")  # at the end of a comment: see ``mark_over``
_WORDS = re.compile(r"([A-Za-z][\w/:.&*]*)=(\S*)")
# These lines hold one value, which is free text or may hold blanks.
_WHOLE_LINES = ("Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Extra")
_ORDERLY = ("UserId", "JobState")


class SchedulerSilent(Exception):
    """Slurm could not be asked, or answered what nobody here can read: nothing is known."""


class SchedulerRefused(Exception):
    """Slurm heard the request and said no; nothing happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """One job as Slurm shows it. ``jobs_named`` leaves the fields marked * at their defaults."""

    job: str
    name: str = ""
    comment: str = ""
    over: tuple[tuple[str, int, int], ...] = ()  # (run, restart, launch), see ``mark_over``
    user: str = ""
    state: str = ""  # Slurm's word: PENDING, RUNNING, COMPLETING, COMPLETED, ...
    reason: str = ""  # Slurm's word, "" where there is none
    partition: str = ""  # while it waits, all that it may go to
    nodes: tuple[str, ...] = ()  # shrinks as nodes are declared DOWN
    batch_host: str = ""
    start_wall: float | None = None  # *
    end_wall: float | None = None  # the planned end while it runs, the real one afterwards
    restarts_count: int = 0  # *
    exit_code: int = 0  # *
    exit_signal: int = 0  # *
    preempted: bool = False  # * a preemption has been decided: in its grace time, or after it
    preempt_wall: float | None = None  # * when that was
    excluded: tuple[str, ...] = ()
    dependency: str = ""

    @property
    def runs(self) -> bool:
        """Its processes have not been told to end, or only by way of warning."""
        return self.state in RUNS

    def is_over(self, run: str, restart: int, launch: int) -> bool:
        """Has the launcher of this run noted that its step of this stay has ended?"""
        return any(name == run and (restart, launch) <= tuple(stay) for name, *stay in self.over)

    def stay_runs(self, run: str, restart: int, launch: int) -> bool:
        """Does this stay of the job run, for Slurm and for the run's launcher?"""
        return self.runs and self.restarts_count == restart and not self.is_over(run, restart, launch)

    @property
    def ended(self) -> bool:
        """Over as Slurm sees it. Processes on a host that was cut off may live on all the same."""
        return self.state in ENDED

    @property
    def held(self) -> bool:
        """Waits for a person: ``release`` lets it go."""
        return self.state == "SPECIAL_EXIT" or (self.state == "PENDING" and self.reason in HELD)


@dataclass(frozen=True, slots=True)
class Controller:
    """``wall`` is by its own clock as it answered. Slurm's tools reckon how long a job has left by the clock of the
    host that they run on, which may be wrong; when a job ends is decided, and shown, by this one.
    """

    kill_wait_s: float = KILL_WAIT_S  # between SIGTERM and SIGKILL
    wall: float | None = None
    takes_scrontab: bool = False


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A reservation for maintenance: from ``start_wall`` on its nodes are the administrators'."""

    name: str
    start_wall: float
    nodes: tuple[str, ...]


def read_maintenance(text: str) -> tuple[Maintenance, ...]:
    """From ``scontrol show reservation --oneliner``; what cannot be read is passed over."""
    found = []
    for name, start, nodes, flags in _RESERVATION.findall(text):
        start_wall = _instant(start)
        if start_wall is not None and "MAINT" in flags.split(","):
            with suppress(SchedulerSilent):
                found.append(Maintenance(name, start_wall, _nodes(nodes)))
    return tuple(found)


def read_job(text: str) -> JobFacts:
    """One job from ``scontrol show job``; ``SchedulerSilent`` where it is no such thing.

    Line by line, as a comment or a path may hold anything, ``JobState=`` included. The first to give a key wins.
    """
    lines = text.splitlines()
    first = _FIRST_LINE.match(lines[0]) if lines else None
    if first is None:
        raise SchedulerSilent(f"this is no job: {' '.join(text.split())[:200]!r}")
    found: dict[str, str] = {}
    awaited = list(_ORDERLY)  # a name may hold line breaks: what follows it counts from here on
    for line in lines[1:]:
        if awaited:
            if not line.startswith(f"   {awaited[0]}="):
                continue
            awaited.pop(0)
        key, _, value = line.strip().partition("=")
        if key in _WHOLE_LINES:
            found.setdefault(key, value.strip())
            continue
        for match in _WORDS.finditer(line):
            found.setdefault(match.group(1), match.group(2))
    return _from_scontrol(first.group("job"), first.group("name"), found)


def _from_scontrol(job: str, name: str, found: dict[str, str]) -> JobFacts:
    code, _, killed_by = found.get("ExitCode", "").partition(":")
    comment, over = _commented(found.get("Comment", ""))
    return JobFacts(
        job=job,
        name=name,
        comment=comment,
        over=over,
        user=found.get("UserId", "").partition("(")[0],
        state=found.get("JobState", "").partition(",")[0],
        reason=_said(found.get("Reason", "")),
        partition=_said(found.get("Partition", "")),
        nodes=_nodes(found.get("NodeList", "")),
        batch_host=_said(found.get("BatchHost", "")),
        start_wall=_instant(found.get("StartTime", "")),
        end_wall=_instant(found.get("EndTime", "")),
        restarts_count=_count(found.get("Restarts", "")),
        exit_code=_count(code),
        exit_signal=_count(killed_by),
        preempted=_said(found.get("PreemptTime", "")) != "",
        preempt_wall=_instant(found.get("PreemptTime", "")),
        excluded=_nodes(found.get("ExcNodeList", "")),
        dependency=_said(found.get("Dependency", "")),
    )


def read_queue(text: str) -> tuple[JobFacts, ...]:
    """Jobs from ``squeue -h -o FORMAT``; what is no whole record is passed over."""
    jobs = []
    for record in text.split(RECORD):
        fields = record.removeprefix("\n").split(FIELD)
        if len(fields) < len(COLUMNS):
            continue
        job, user, state, reason, nodes, batch_host, end, excluded, dependency, partition, name = fields[:11]
        comment, over = _commented(FIELD.join(fields[11:]))
        jobs.append(
            JobFacts(
                job=job,
                name=name,
                comment=comment,
                over=over,
                user=user,
                state=state,
                reason=_said(reason).replace(" ", "_"),  # as scontrol has it
                partition=partition,
                nodes=_nodes(nodes),
                batch_host=_said(batch_host),
                end_wall=_instant(end),
                excluded=_nodes(excluded),
                dependency=_said(dependency),
            )
        )
    return tuple(jobs)


def _said(value: str) -> str:
    value = value.strip()
    return "" if value in NOTHING else value


def _commented(value: str) -> tuple[str, tuple[tuple[str, int, int], ...]]:
    """A comment, and the stays that ``mark_over`` named behind it."""
    comment, over = _said(value), list[tuple[str, int, int]]()
    while match := _OVER.search(comment):
        over.insert(0, (match[1], int(match[2]), int(match[3])))
        comment = comment[: match.start()]
    return comment, tuple(over)


def _count(value: str) -> int:
    return int(value) if value.isdigit() else 0


def _nodes(value: str) -> tuple[str, ...]:
    try:
        return unfold(_said(value))
    except NodesetError as error:
        raise SchedulerSilent(f"Slurm wrote a node list that cannot be read: {error}") from error


def _instant(value: str) -> float | None:
    try:
        return datetime.strptime(_said(value), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


class SlurmScheduler:
    """Slurm, asked through its tools by the user who runs this. Any thread may ask."""

    def __init__(self, tools: Tools, within_s: float = 10.0) -> None:
        self._tools, self._within_s = tools, within_s

    # ---- look ----

    def job(self, job: str, *, within_s: float | None = None) -> JobFacts | None:
        """All that Slurm shows of a job; None where it knows no such job (any more: MinJobAge after its end)."""
        within_s = self._within_s if within_s is None else within_s
        answer = self._tools.run(("scontrol", "show", "job", job), within_s)
        if answer.code == 0:
            return read_job(answer.out)
        if not answer.timed_out and NO_SUCH_JOB in answer.words.lower():
            return None
        raise SchedulerSilent(answer.words)

    def jobs_named(self, name: str) -> tuple[JobFacts, ...]:
        """This user's jobs of that name, in any state, ended ones too for as long as Slurm remembers them."""
        return tuple(job for job in self._queue(name, "all") if job.name == name)

    def mine(self) -> tuple[JobFacts, ...]:
        """All jobs of this user, in any state."""
        return self._queue("", "all")

    def dependents_of(self, job: str) -> tuple[JobFacts, ...]:
        """This user's pending jobs that wait for ``job`` to end well (``afterok``)."""
        return tuple(other for other in self._queue("", "PENDING") if job in awaited_ok(other.dependency))

    def _queue(self, name: str, states: str) -> tuple[JobFacts, ...]:
        by_name = () if not name or "," in name else ("--name", name)  # a comma would make it two names
        argv = ("squeue", "-h", "--me", *by_name, "-t", states, "-o", FORMAT)
        return read_queue(self._asked(argv).out)

    def is_down(self, node: str) -> bool:
        """Has Slurm given a node up? One that it has not heard for a while is not down yet."""
        found = _NODE_STATE.search(self._asked(("scontrol", "show", "node", node)).out)
        return found is not None and found.group(1) == "DOWN"

    def booted_since(self, walls: Mapping[str, float]) -> tuple[str, ...]:
        """Which of these nodes have booted after their moment, as their slurmd said when it registered. What Slurm does
        not say, or cannot be asked, is no.
        """
        if not walls:
            return ()
        try:
            text = self._asked(("scontrol", "show", "node", ",".join(walls), "--oneliner")).out
        except (SchedulerSilent, SchedulerRefused):
            return ()
        boots = {match.group(1): _instant(match.group(2)) for match in _BOOT_TIME.finditer(text)}
        return tuple(node for node, wall in walls.items() if (boots.get(node) or 0.0) > wall + CLOCKS_APART_S)

    def controller(self) -> Controller:
        """What slurmctld says of itself; defaults where it does not answer."""
        text = self._shown("config")
        kill_wait, as_of = _KILL_WAIT.search(text), _AS_OF.search(text)
        return Controller(
            float(kill_wait.group(1)) if kill_wait else KILL_WAIT_S,
            _instant(as_of.group(1)) if as_of else None,
            _SCRONTAB.search(text) is not None,
        )

    def grace_time_s(self, partition: str) -> float | None:
        """How long a preempted job of that partition may stay; None where Slurm does not say."""
        found = _GRACE_TIME.search(self._shown("partition", partition))
        return float(found.group(1)) if found else None

    def maintenance(self) -> tuple[Maintenance, ...] | None:
        """All maintenance that this user may see; None where Slurm does not answer."""
        try:
            return read_maintenance(self._asked(("scontrol", "show", "reservation", "--oneliner")).out)
        except (SchedulerSilent, SchedulerRefused):
            return None

    def _shown(self, *of: str) -> str:
        try:
            return self._asked(("scontrol", "show", *of)).out
        except (SchedulerSilent, SchedulerRefused):
            return ""

    # ---- ask ----

    def cancel(self, jobs: Sequence[str], *, within_s: float | None = None) -> None:
        """scancel, whatever state they are in; those that are over already do not matter."""
        if jobs:
            self._ask(("scancel", *jobs), within_s)

    def requeue(self, job: str) -> None:
        """Back into the queue under the same id; the job's processes get SIGTERM about 20 ms later."""
        self._ask(("scontrol", "requeue", job))

    def release(self, job: str) -> None:
        """Let a held job go."""
        self._ask(("scontrol", "release", job))

    def start_now(self, job: str) -> None:
        """Let a pending job that was requeued start before the two minutes that Slurm makes it wait are over.

        Not at once: in the second in which its last stay ended, its nodes take it for the old one, and it FAILs.
        """
        self._ask(("scontrol", "update", f"JobId={job}", "StartTime=now+3"))

    def set_excluded(self, job: str, nodes: Sequence[str]) -> None:
        """Replace the excluded nodes of a job that does not run; right after ``requeue`` it counts as such."""
        self._ask(("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"))

    def set_dependency(self, job: str, dependency: str) -> None:
        """Replace what a pending job waits for."""
        self._ask(("scontrol", "update", f"JobId={job}", f"Dependency={dependency}"))

    def mark_over(self, run: str, job: str, restart: int, launch: int, within_s: float) -> None:
        """Write into the job's comment that this run's step of this stay has ended, wherever its processes live on.

        Other runs of the job keep their marks.
        """
        with self._turn_to_comment(job):
            facts = self.job(job, within_s=within_s) or JobFacts(job=job)
            if not facts.is_over(run, restart, launch):
                marks = (*(mark for mark in facts.over if mark[0] != run), (run, restart, launch))
                self._comment(replace(facts, over=marks), within_s)

    def comment_refused(self, job: str, within_s: float) -> str:
        """Why Slurm would refuse ``mark_over``, "" if it does not: the job's comment is written as it is."""
        try:
            with self._turn_to_comment(job):
                facts = self.job(job, within_s=within_s)
                if facts is not None:
                    self._comment(facts, within_s)
        except SchedulerRefused as error:
            return str(error)
        except SchedulerSilent:
            pass  # nothing is known
        return ""

    @contextmanager
    def _turn_to_comment(self, job: str) -> Iterator[None]:
        """Two that write at once would lose a mark: a name that the kernel gives to one process is held meanwhile."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as turn:
            try:
                turn.bind(f"\0gangrun-comment-{os.getuid()}-{job}")
            except OSError as error:
                raise SchedulerSilent(f"another run writes the comment of job {job} ({error.strerror})") from None
            yield

    def _comment(self, facts: JobFacts, within_s: float) -> None:
        comment = facts.comment + "".join(f"+over:{name}:{first}.{last}" for name, first, last in facts.over)
        self._ask(("scontrol", "update", f"JobId={facts.job}", f"Comment={comment}"), within_s)

    def _ask(self, argv: Sequence[str], within_s: float | None = None) -> None:
        try:
            self._asked(argv, within_s)
        except SchedulerRefused as error:
            if argv[0] == "scancel" and any(words in str(error).lower() for words in OVER_ALREADY):
                return
            raise

    def _asked(self, argv: Sequence[str], within_s: float | None = None) -> Answer:
        answer = self._tools.run(argv, self._within_s if within_s is None else within_s)
        if answer.code == 0:
            return answer
        if answer.timed_out or answer.code < 0 or answer.code == NOT_FOUND or _is_unheard(answer.words):
            raise SchedulerSilent(answer.words)
        raise SchedulerRefused(answer.words)


UNHEARD = (
    "unable to contact slurm controller", "connect failure", "socket timed out", "zero bytes were transmitted",
    "communication connection failure", "establish a configuration source", "configure source", "unexpected message",
    "slurm backup controller in standby mode", "transport endpoint", "protocol authentication error",
)  # fmt: skip


def _is_unheard(words: str) -> bool:
    lowered = words.lower()
    return any(sign in lowered for sign in UNHEARD)


def awaited_ok(dependency: str) -> tuple[str, ...]:
    """The job ids that a dependency as Slurm shows it names under ``afterok``."""
    return tuple(
        match.group("job")
        for term in re.split(r"[,?]", dependency)
        for kind, _, ids in (term.partition(":"),)
        if kind == "afterok"
        for match in re.finditer(r"(?P<job>[0-9]+)(?:_\S+?)?(?:\([^)]*\))?(?::|$)", ids)
    )


REMEMBERED = ("State", "NodeList", "JobName")
REMEMBERED_WITHIN_S = 5.0


def remembered(tools: Tools, job: str, name: str) -> JobFacts | None:
    """How a job of that name ended, as accounting remembers it; None if it does not.

    For jobs that the controller has forgotten. Most small clusters have no sacct, and nothing depends on it. Job ids
    are given out again after a while.
    """
    argv = ("sacct", "-n", "-X", "-P", f"--delimiter={FIELD}", "-j", job, "-o", ",".join(REMEMBERED))
    answer = tools.run(argv, REMEMBERED_WITHIN_S)
    for line in reversed(answer.out.splitlines() if answer.code == 0 else ()):
        found = dict(zip(REMEMBERED, line.split(FIELD, len(REMEMBERED) - 1), strict=False))
        state = found["State"].partition(" ")[0]  # "CANCELLED by 1000"
        if state in ENDED and found.get("JobName") == name:
            return JobFacts(job=job, name=name, state=state, nodes=_accounted(found["NodeList"]))
    return None


def _accounted(text: str) -> tuple[str, ...]:
    try:
        return () if " " in text else unfold(text)  # "None assigned"
    except NodesetError:
        return ()
