"""Plays one case through the real core: attempt after attempt, until the run ends or trains past the failure.

The player is the world around the core: agents that report, ranks that fall, a scheduler that gives the next job other
nodes. What an agent would make of a rank's text, it makes by the agent's own reader. There is no chance in it.
"""

from __future__ import annotations

import heapq
import re
import signal
import zlib
from dataclasses import dataclass, replace
from itertools import count

from gangrun.agent.ranks.exits import parse_traceback, telling
from gangrun.core.actions import (
    CheckNodes,
    ChooseResume,
    EndJob,
    SealAttempts,
    StartGang,
    StopGang,
    SubmitSuccessor,
    TakeStacks,
)
from gangrun.core.events import (
    ActDone,
    AgentJoined,
    AttemptSealed,
    DeadlinePassed,
    Event,
    GangStarted,
    GangStopped,
    NodeChecked,
    ProgressMarked,
    ProgressStalled,
    RankExited,
    RankFinished,
    ResumeChosen,
    StacksTaken,
    TermTaken,
)
from gangrun.core.evidence import ErrorReport, RankExit, RankObservation, RankStack
from gangrun.core.model import TERMINAL, Failure, Phase
from gangrun.core.nodes.standing import active
from gangrun.core.policy import Policy
from gangrun.core.recovery.error_rules import marked
from gangrun.node.boot import looks_collective
from tests.core.judgement.case import INNOCENT, Case, exit_of
from tests.core.life import Life

GANG_NODES, RANKS_PER_NODE = 3, 2
WORLD_SIZE = GANG_NODES * RANKS_PER_NODE
ATTEMPTS_MAX_COUNT = 14
EVENTS_MAX_COUNT = 3000
REPORTED_AFTER_S = 0.02  # from a rank's end to the supervisor
KILLED_AFTER_S = 0.01  # from the supervisor's word to the ranks' end
REMARKS_COUNT = 5  # innocent lines that each rank writes before
FINISHED_AFTER_S = 0.3  # the other ranks, from the first that falls once the script is over
SHOWN_AFTER_S = 60.0  # a rank trains so long before it falls


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a case."""

    causes: tuple[str, ...]  # of the attempts that failed, as the core called them
    restarts_count: int
    succeeded: bool
    failure: str  # whose it was, "" for a run that succeeded
    excluded: frozenset[str]
    last_nodes: frozenset[str]  # of the newest attempt
    jobs_count: int
    reason: str  # of the newest verdict

    @property
    def concluded(self) -> str:
        """The class of the newest verdict."""
        return class_of(self.causes)


# The core's word for a cause, as one of ``case.CLASSES``; a word that is not here is a class by itself.
_CLASS_OF = {
    "rank error": "code",
    "signal": "code",
    "out of memory": "host memory",
    "hardware": "device",
    "node silent": "device",
    "collective error": "network",
}
_AGAIN = "same failure again"
_OF_A_LOGGER = re.compile(r"\[(?!ERROR\] \d)")  # what follows a message; Ascend's messages have lines of their own
_RANK_PREFIX = re.compile(
    r"^(\S.{0,80}? )?\[rank\d+\]: ?"
)  # torch and loggers write it before each line of a traceback


def class_of(causes: tuple[str, ...]) -> str:
    """The class that the last verdict names. "The same again" is of the class of what came again."""
    named = [cause for cause in causes if cause != _AGAIN]
    if not named:
        return ""
    return _CLASS_OF.get(named[-1], named[-1])


def play(case: Case, spares: int, *, tests: bool = True, turn: int = 0, remarks: int = 0) -> Played:
    """Play it on three nodes and so many spares.

    Args:
        case: What happens.
        spares: How many nodes hold no ranks at first.
        tests: Suspects are tested, and nobody can tell how that went.
        turn: Which rank falls first where all fall at once.
        remarks: From which innocent line on the ranks write theirs.
    """
    return _World(case, spares, tests, turn, remarks).played()


class _World:
    def __init__(self, case: Case, spares: int, tests: bool, turn: int, remarks: int) -> None:
        self.case, self.turn, self.remarks = case, turn, remarks
        self.has_ended = case.header.get("script ended") == "yes"
        self.life = Life(GANG_NODES, RANKS_PER_NODE, Policy(can_requeue=True, test_suspects=tests))
        self.life.names = [f"n{number}" for number in range(GANG_NODES + spares)]
        self.fresh = count(10)
        self.order = count()
        self.queue: list[tuple[float, int, Event]] = []
        self.holders: dict[int, str] = {}  # rank -> node, of the newest attempt
        self.ending: dict[int, RankExit] = {}  # ranks that will end by themselves, with when
        self.finished: dict[int, float] = {}
        self.launched = 0
        self.jobs = 1

    def played(self) -> Played:
        self._begin_job("j1")
        for _ in range(EVENTS_MAX_COUNT):
            if self.life.phase in TERMINAL or self.launched > ATTEMPTS_MAX_COUNT:
                break
            self._next()
        state = self.life.state
        ended = [record for record in state.attempts if record.outcome not in {"", "succeeded", "requeued"}]
        return Played(
            (*(record.outcome for record in ended), *(["teardown"] if state.attempt.crashed_count else [])),
            self.launched - 1,
            state.phase is Phase.SUCCEEDED,
            state.ending.failure.value if isinstance(state.ending.failure, Failure) else "",
            frozenset(active(state.health.excluded, self.life.now)),
            frozenset(self.holders.values()),
            self.jobs,
            ended[-1].reason if ended else state.reason,
        )

    # ---- time --------------------------------------------------------------------------------------------------------

    def _at(self, at: float, event: Event) -> None:
        heapq.heappush(self.queue, (at, next(self.order), event))

    def _next(self) -> None:
        deadlines = self.life.state.timers.deadlines
        name, due = min(deadlines.items(), key=lambda item: (item[1].at, item[0]), default=("", None))
        if due is not None and (not self.queue or due.at <= self.queue[0][0]):
            self._tell(due.at, DeadlinePassed(name, due.generation))
            return
        assert self.queue, f"{self.case.file}: nothing will ever happen in {self.life.phase}: {self.life.reason}"
        at, _, event = heapq.heappop(self.queue)
        self._tell(at, event)

    def _tell(self, at: float, event: Event) -> None:
        self.life.on(event, after_s=max(0.0, at - self.life.now))
        for action in self.life.actions:
            self._perform(action)

    def _perform(self, action: object) -> None:
        now = self.life.now
        match action:
            case CheckNodes():
                for name in action.nodes:
                    self._at(now + 1, NodeChecked(name, True))
            case SealAttempts():
                self._at(now + 0.1, AttemptSealed(action.attempt))
            case ChooseResume():
                self._at(now + 0.1, ResumeChosen(action.attempt, None, "nothing was saved yet"))
            case StartGang():
                self._start(action)
            case StopGang():
                self._stop(action.attempt, action.settle_s)
            case TakeStacks():
                self._at(now + 1, StacksTaken(action.attempt, self._stacks()))
            case SubmitSuccessor():
                self.successor = action
                self._at(now + 1, ActDone((1, 1), SubmitSuccessor.__name__))
            case EndJob() if action.phase is Phase.PENDING:
                stay = [name for name in self.life.names if name not in self.successor.exclude]
                new = [f"n{next(self.fresh)}" for _ in range(len(self.life.names) - len(stay))]
                self.life.names = stay + new
                self.jobs += 1
                self.life.now += 60
                self._begin_job(f"j{self.jobs}")
            case _:
                pass

    def _begin_job(self, job: str) -> None:
        names, state = self.life.names, self.life.state
        self.queue.clear()
        taken = TermTaken(state.term + 1, job, (), (), state.attempt.number, tuple(names), seq=self.jobs - 1)
        self._tell(self.life.now, taken)
        for name in names:
            self._at(self.life.now, AgentJoined(name, f"{job}-{name}", f"b-{name}", RANKS_PER_NODE, (_address(name),)))

    # ---- an attempt --------------------------------------------------------------------------------------------------

    def _start(self, action: StartGang) -> None:
        self.launched += 1
        self.holders = {
            rank: seat.slot.node
            for seat in action.placement.seats
            for rank in range(seat.first_rank, seat.first_rank + seat.ranks_count)
        }
        now, attempt = self.life.now, action.attempt
        self._at(now + 1, GangStarted(attempt))
        self.ending, self.finished = {}, {}
        step = self.case.step(self.launched - 1)
        if not self._strikes():
            self._at(now + SHOWN_AFTER_S, ProgressMarked(attempt, 1000))
            for rank, node in self.holders.items():
                self._at(now + 2 * SHOWN_AFTER_S, RankFinished(attempt, rank, node, now + 2 * SHOWN_AFTER_S))
            return
        falls_at = now + 5
        if step >= 0:
            self._at(now + SHOWN_AFTER_S, ProgressMarked(attempt, step))
            falls_at = now + SHOWN_AFTER_S + 1
        self._fall(attempt, step, falls_at)

    def _strikes(self) -> bool:
        word, number = self.case.sticks
        if word == "node":
            return self.case.sick in self.holders.values()
        return word != "passes" or self.launched <= number

    def _fallers(self) -> list[int]:
        """The ranks that fall by the failure itself, in order."""
        word, number = self.case.sticks
        sick = [rank for rank, node in self.holders.items() if node == self.case.sick]
        falls = self.case.header.get("falls", "one").split()
        if falls == ["one"]:
            return sick[:1] if sick else [number if word == "rank" else 0]
        if falls == ["node"]:
            return sick
        if falls == ["others"]:
            return [rank for rank in self.holders if rank not in (sick or [number])]
        if falls == ["all"]:  # who is first changes from attempt to attempt
            ranks = list(self.holders)
            turn = (2 * self.launched + self.turn) % WORLD_SIZE
            return ranks[turn:] + ranks[:turn]
        return [int(number) for number in falls[1:]]

    def _fall(self, attempt: int, step: int, at: float) -> None:
        header, fallers = self.case.header, self._fallers()
        code, number = exit_of(header.get("exit", "1")) if header.get("exit") != "none" else (None, None)
        apart_s, slow_s = self.case.number("apart", 3) / 1000, self.case.number("slow end") / 1000
        for index, rank in enumerate(fallers):
            written = at + index * apart_s
            ends = written + (slow_s if index == 0 else 0.005)
            if code == 0:
                self._finish(attempt, rank, ends, step)
            elif header.get("exit") != "none":
                oom = header.get("oom") == "yes" and index == 0
                self._end(attempt, self._exit(rank, code, number, oom, self.case.text, ends, written, step))
        for rank in self.holders if self.has_ended and "others" not in header else ():
            if rank not in fallers:
                self._finish(attempt, rank, at + FINISHED_AFTER_S, step)
        if "others" in header and header["others"] != "none":
            self._others(attempt, step, at + self.case.number("others") / 1000, fallers)
        if "stall" in header:
            self._at(at + self.case.number("stall"), self._stalled(attempt, step, fallers))

    def _others(self, attempt: int, step: int, at: float, fallers: list[int]) -> None:
        code, number = exit_of(self.case.header.get("others exit", "1"))
        silent = fallers if self.case.header.get("exit") == "none" else []
        others = [rank for rank in reversed(self.holders) if rank not in fallers and rank not in silent]
        for index, rank in enumerate(others):
            written = at + 0.004 * index
            if code == 0:
                self._finish(attempt, rank, written + 0.005, step)
                continue
            self._end(
                attempt,
                self._exit(rank, code, number, False, self.case.others_text, written + 0.005, written, step),
            )

    def _finish(self, attempt: int, rank: int, at: float, step: int) -> None:
        self.finished[rank] = at
        self._at(at + REPORTED_AFTER_S, RankFinished(attempt, rank, self.holders[rank], at, step))

    def _end(self, attempt: int, rank_exit: RankExit) -> None:
        self.ending[rank_exit.rank] = rank_exit
        self._at(rank_exit.at + REPORTED_AFTER_S, RankExited(attempt, rank_exit))

    def _exit(
        self, rank: int, code: int | None, number: int | None, oom: bool, text: str, at: float, written: float,
        step: int,
    ) -> RankExit:  # fmt: skip
        lines = self._filled(text, rank).splitlines()
        error = reported(lines)
        told = set(error.traceback.splitlines()) if error is not None else set()
        tail = telling([*self._remarks(rank), *(line for line in lines if line not in told)])
        written_at = written if lines else 0.0
        return RankExit(
            rank, self.holders[rank], code, number, oom, False, error, at, step, tail, written_at,
            script_ended=self.has_ended,
        )  # fmt: skip

    def _remarks(self, rank: int) -> list[str]:
        """What a rank wrote before, as ranks do that fail for nothing of it: the same on all, one line on one node."""
        at = zlib.crc32(self.case.file.encode()) + self.remarks
        said = [INNOCENT[(at + 17 * index) % len(INNOCENT)] for index in range(REMARKS_COUNT + 1)]
        away = set(self.holders.values()) - {self.holders[faller] for faller in self._fallers()}
        if self.holders[rank] != min(away, default=""):
            said.pop()
        return said

    def _filled(self, text: str, rank: int) -> str:
        sick = self.case.sick or self.holders[self._fallers()[0]]
        silent = [r for r, node in self.holders.items() if node == sick]
        words = {
            "{rank}": str(rank),
            "{node}": self.holders[rank],
            "{sick}": sick,
            "{sick rank}": str(silent[0] if silent else 0),
            "{ip}": _address(sick),
        }
        for name, word in words.items():
            text = text.replace(name, word)
        return text

    def _stalled(self, attempt: int, step: int, fallers: list[int]) -> ProgressStalled:
        behind, stall_s = self.case.number("behind"), float(self.case.header["stall"])
        seen = tuple(
            RankObservation(rank, node, "S", step - behind if rank in fallers and step >= 0 else step, 1.0)
            for rank, node in self.holders.items()
            if rank not in self.finished
        )
        return ProgressStalled(attempt, stall_s, stall_s, seen)

    def _stacks(self) -> tuple[RankStack, ...]:
        own, _, others = self.case.header.get("stacks", "/").partition("/")
        fallers = self._fallers()
        return tuple(
            RankStack(rank, node, (own if rank in fallers else others).strip(), "")
            for rank, node in self.holders.items()
            if rank not in self.finished
        )

    def _stop(self, attempt: int, settle_s: float) -> None:
        """Ranks that fall by themselves until the settle is over tell their own story, all others are killed."""
        over_at = self.life.now + KILLED_AFTER_S + settle_s
        fell = {rank for rank, end in self.ending.items() if (end.written_at or end.at) <= over_at}
        slow = {rank for rank in fell if self.ending[rank].at > over_at}
        ended = (fell - slow) | {rank for rank, at in self.finished.items() if at <= over_at}
        self.queue = [one for one in self.queue if not self._is_undone(one[2], ended)]
        heapq.heapify(self.queue)
        for rank in slow:  # its error is written, and SIGTERM ends what is left of it
            cut = replace(self.ending[rank], at=over_at, code=None, signal=signal.SIGTERM)
            self._end(attempt, cut)
        for rank, node in self.holders.items():
            if rank not in ended | slow:
                stopped = RankExit(rank, node, None, signal.SIGTERM, by_us=True, at=over_at)
                self._end(attempt, marked(stopped, self._remarks(rank)))
        self._at(over_at + 1, GangStopped(attempt))

    @staticmethod
    def _is_undone(event: Event, ended: set[int]) -> bool:
        match event:
            case RankExited():
                return event.exit.rank not in ended
            case RankFinished():
                return event.rank not in ended
            case ProgressMarked() | ProgressStalled() | GangStarted():
                return True
            case _:
                return False


def _address(node: str) -> str:
    return f"10.0.0.{int(node[1:]) + 1}"


def reported(lines: list[str]) -> ErrorReport | None:
    """What the agent makes of a rank's text: by its own reader, with the whole message, as the boot file reports it."""
    error = parse_traceback(lines)
    if error is None:
        return None
    begun, *rest = error.message.split("\n")
    lines = [_RANK_PREFIX.sub("", line) for line in lines]
    heads = [
        i for i, line in enumerate(lines) if error.kind in line and begun in line
    ]  # a logger's words may come first
    at = max([i for i in heads if lines[i].startswith(error.kind)] or heads) + len(rest)
    more = []
    for line in lines[at + 1 :]:
        if not line.strip() or line.startswith(("terminate called", "Fatal Python error")) or _OF_A_LOGGER.match(line):
            break
        more.append(line)
    message = "\n".join([error.message, *more])
    text = "\n".join([error.traceback, *more])
    return replace(error, message=message, traceback=text, collective=looks_collective(error.kind, message))
