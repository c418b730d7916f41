"""A Slurm of numbers behind the real ``Scheduler``, and a clock that only waiting moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from gangrun.adapters.slurm.commands import Answer, Tools

WALL_START = 1_800_000_000.0
UNREACHABLE = Answer(1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
UNKNOWN_JOB = Answer(1, err="slurm_load_jobs error: Invalid job id specified\n")


class PretendTime:
    """``ports.Clock``; what was put on its calendar happens while somebody waits."""

    def __init__(self) -> None:
        self.at = 100.0
        self.wall_off_s = 0.0  # how wrong this node's wall clock is; Slurm's controller has another
        self.waits: list[float] = []
        self._calendar: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return WALL_START + self.at + self.wall_off_s

    def later(self, in_s: float, what: Callable[[], object]) -> None:
        self._calendar.append((self.at + in_s, what))
        self._calendar.sort(key=lambda entry: entry[0])

    def advance(self, by_s: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let time go by until ``stop``; did it stop?"""
        end = self.at + by_s
        while not stop():
            if not self._calendar or self._calendar[0][0] > end:
                self.at = end
                return False
            self.at, what = self._calendar.pop(0)
            what()
        return True

    def wait(self, for_s: float) -> bool:
        """As an Event that nobody sets."""
        self.waits.append(for_s)
        return self.advance(for_s)


class PretendBell:
    """``threading.Event`` on pretended time."""

    def __init__(self, time: PretendTime) -> None:
        self._time, self._rung = time, False

    def set(self) -> None:
        self._rung = True

    def clear(self) -> None:
        self._rung = False

    def is_set(self) -> bool:
        return self._rung

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody would ever wake it"
        return self._rung or self._time.advance(timeout, lambda: self._rung)


@dataclass
class PretendJob:
    job: str
    name: str = "train.r1"
    comment: str = ""
    state: str = "PENDING"
    reason: str = "None"
    start_wall: float | None = None
    end_wall: float | None = None
    restarts: int = 0
    exit_code: str = "0:0"
    preempt_wall: float | None = None
    excluded: str = ""
    dependency: str = "(null)"
    nodes: str = "n[1-2]"


def stamp(wall: float | None) -> str:
    return "Unknown" if wall is None else datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


class PretendSlurm(Tools):
    """Answers as scontrol, squeue and scancel do."""

    def __init__(self, time: PretendTime) -> None:
        super().__init__({})
        self.time = time
        self.jobs: dict[str, PretendJob] = {}
        self.asked: list[str] = []
        self.down = False  # nobody answers
        self.instead: dict[str, list[Answer]] = {}  # by the first words of a request: answers to give first
        self.costs_s = 0.0
        self.reservations = "No reservations in the system\n"
        self.tells_no_time = False  # what shows its configuration is refused
        self.behind_s = 0.0  # how much the controller's clock was set back

    def add(self, job: PretendJob) -> PretendJob:
        self.jobs[job.job] = job
        return job

    def run(self, argv: Sequence[str], within_s: float) -> Answer:
        self.time.advance(min(self.costs_s, within_s))
        line = " ".join(argv)
        self.asked.append(line)
        for start, answers in self.instead.items():
            if line.startswith(start) and answers:
                return answers.pop(0)
        if self.down:
            return UNREACHABLE
        if argv[0] == "squeue":
            return self._squeue(argv)
        if argv[0] == "scancel":
            return self._scancel(argv[1:])
        return self._scontrol(argv)

    def _squeue(self, argv: Sequence[str]) -> Answer:
        pending_only = "PENDING" in argv
        rows = [
            "\x1f".join([one.job, "jane", one.state, one.reason, "", "n/a", stamp(one.end_wall), one.excluded,
                         one.dependency, "main", one.name, one.comment or "(null)"]) + "\x1e\n"
            for one in self.jobs.values()
            if not pending_only or one.state == "PENDING"
        ]  # fmt: skip
        return Answer(0, "".join(rows))

    def _scancel(self, jobs: Sequence[str]) -> Answer:
        for job in jobs:
            if job not in self.jobs:
                return Answer(1, err=f"scancel: error: Kill job error on job id {job}: Invalid job id specified\n")
            self.jobs[job].state = "CANCELLED" if self.jobs[job].state == "PENDING" else "COMPLETING"
        return Answer(0)

    def _scontrol(self, argv: Sequence[str]) -> Answer:
        if argv[1:3] == ("show", "config"):
            if self.tells_no_time:
                return Answer(1, err="slurm_load_ctl_conf error: Access/permission denied\n")
            as_of = stamp(self.time.wall() - self.time.wall_off_s - self.behind_s)
            return Answer(0, f"Configuration data as of {as_of}\nKillWait                = 6 sec\n")
        if argv[1:3] == ("show", "reservation"):
            return Answer(0, self.reservations)
        if argv[1:3] == ("show", "partition"):
            return Answer(0, f"PartitionName={argv[3]}\n   DisableRootJobs=NO GraceTime=45 Hidden=NO\n")
        found = self.jobs.get(argv[-1] if argv[1] != "update" else argv[2].removeprefix("JobId="))
        if found is None:
            return UNKNOWN_JOB
        match argv[1]:
            case "show":
                return Answer(0, shown(found))
            case "requeue":
                found.state, found.restarts = "COMPLETING", found.restarts + 1
            case "update":
                key, _, value = argv[3].partition("=")
                if key == "ExcNodeList" and found.state == "RUNNING":
                    return Answer(1, err="Job is no longer pending execution for job 7\n")
                setattr(
                    found, {"ExcNodeList": "excluded", "Dependency": "dependency", "Comment": "comment"}[key], value
                )
            case _:
                raise AssertionError(argv)
        return Answer(0)


def shown(job: PretendJob) -> str:
    preempted = f" PreemptTime={stamp(job.preempt_wall)}" if job.preempt_wall else " PreemptTime=None"
    return (
        f"JobId={job.job} JobName={job.name}\n"
        "   UserId=jane(1001) GroupId=jane(1001) MCS_label=N/A\n"
        f"   JobState={job.state} Reason={job.reason} Dependency={job.dependency}\n"
        f"   Requeue=1 Restarts={job.restarts} BatchFlag=1 Reboot=0 ExitCode={job.exit_code}\n"
        f"   Partition=main AllocNode:Sid=login:1\n"
        f"   StartTime={stamp(job.start_wall)} EndTime={stamp(job.end_wall)} Deadline=N/A\n"
        f"   PreemptEligibleTime=Unknown{preempted}\n"
        f"   ReqNodeList=(null) ExcNodeList={job.excluded or '(null)'}\n"
        f"   NodeList={job.nodes or '(null)'}\n   BatchHost=n1\n"
        f"   Comment={job.comment}\n"
    )
