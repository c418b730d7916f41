"""Sees a rank's death the moment it happens, and says how and why it ended.

One thread per rank waits in waitpid: nothing is polled, no kernel feature is needed, and the order of deaths, which
blame needs, is the order in which the kernel tells them.

The reason comes from what the rank left: its error report, torch's, or the tail of its stderr. Reads node-local files
and cgroup counters only; nothing is concluded here, blame is core's: core's table marks the end. The words and the
signature are those of ``gangrun.node.boot``, so that both ways of learning of one failure name it the same.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.model import ErrorReport, RankExit
from gangrun.core.recovery.error_rules import marked
from gangrun.node.boot import CAUSE_MAX_CHARS, CHAIN_MAX_COUNT, TEXT_MAX_CHARS, looks_collective, signature
from gangrun.node.processes import Proc
from gangrun.wire.messages import LiveRank
from gangrun.wire.progress import ProgressPage

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_LAST = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|[A-Z]\w*))(?:: (?P<message>.*))?$"
)
_START = "Traceback (most recent call last):"
_LINKS = (  # what Python writes between an exception and its cause, which it writes first
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_PREFIX = re.compile(r"^\[rank\d+\]:[ ]?")  # torch puts this before each line of a traceback
_IGNORED = "Exception ignored in"  # the traceback below it ends no process
REPORT_MAX_BYTES = 1024 * 1024
TAIL_LINES_COUNT, TAIL_MAX_BYTES, TAIL_LINE_MAX_CHARS = 20, 4096, 600
FRESH_S = 60.0  # what was written longer before the end did not end it: a handled exception, an old warning
# A victim that logs a handled error and ends within the next minute would else seem to fall before its culprit.
WRITTEN_WITHIN_S = 5.0
PAUSE_S = 1.0  # so long without a line parts two bursts
# What native code, CUDA, NCCL, a shell and Python itself write before a process ends.
_TELLING = re.compile(
    r"error|exception|fatal|abort|fail|assert|nccl|cuda|watchdog|timed? ?out|terminate called|what\(\):|core dumped"
    r"|killed|segmentation|illegal|refused|denied|no such|cannot|not found|out of memory|no space",
    re.IGNORECASE,
)


def read_error(files: RankFiles, stderr: Sequence[str]) -> ErrorReport | None:
    """The best account there is; None if the rank left none."""
    return _of_boot(_load(files.error)) or _of_torchelastic(files.torchelastic_error) or parse_traceback(stderr)


def _load(path: Path) -> dict[str, Any]:
    """The JSON object in a file that a dying process wrote; {} if there is none."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(REPORT_MAX_BYTES))
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_boot(found: dict[str, Any]) -> ErrorReport | None:
    if not found:
        return None
    chain = found.get("chain")
    return ErrorReport(
        kind=str(found.get("type", "")),
        message=str(found.get("message", "")),
        signature=str(found.get("signature", "")),
        traceback=str(found.get("traceback", "")),
        collective=bool(found.get("collective", False)),
        chain=tuple(map(str, chain)) if isinstance(chain, list) else (),
    )


def _of_torchelastic(path: Path) -> ErrorReport | None:
    message = _load(path).get("message")
    if isinstance(message, str):
        text, trace = message, ""
    elif isinstance(message, dict):
        extra = message.get("extraInfo")
        text, trace = (
            str(message.get("message", "")),
            str(extra.get("py_callstack", "") if isinstance(extra, dict) else ""),
        )
    else:
        return None
    parsed = parse_traceback(trace.splitlines())
    if parsed is not None:
        return parsed
    kind, _, rest = text.partition(": ")
    return ErrorReport(kind, rest, signature(kind, []), trace[-TEXT_MAX_CHARS:], looks_collective(kind, rest))


@dataclass(frozen=True, slots=True)
class _Traceback:
    """One that stands in lines ``first`` to ``last``."""

    first: int
    last: int
    error: ErrorReport

    @property
    def words(self) -> str:
        """As an entry of a chain."""
        return f"{self.error.kind}: {self.error.message}"[:CAUSE_MAX_CHARS]


def parse_traceback(lines: Sequence[str]) -> ErrorReport | None:
    """The last Python traceback in these lines with the causes before it; None if there is none that is whole."""
    found = _tracebacks(lines)
    return found[-1].error if found else None


def _tracebacks(lines: Sequence[str]) -> list[_Traceback]:
    """All that are whole and may have ended a process, each with its chain of causes."""
    lines = [_PREFIX.sub("", line) for line in lines]
    found: list[_Traceback] = []
    for start in [index for index, line in enumerate(lines) if line.strip() == _START]:
        if start and lines[start - 1].lstrip().startswith(_IGNORED):
            continue
        one = _parse_at(lines, start)
        if one is None:
            continue
        before = found[-1] if found else None
        if before is not None and any(line.strip() in _LINKS for line in lines[before.last + 1 : start]):
            chain = (before.words, *before.error.chain)[:CHAIN_MAX_COUNT]
            text = "\n".join(lines[before.first : one.last + 1])[-TEXT_MAX_CHARS:]
            one = _Traceback(before.first, one.last, replace(one.error, chain=chain, traceback=text))
        found.append(one)
    return found


def _parse_at(lines: Sequence[str], start: int) -> _Traceback | None:
    frames: list[tuple[str, str, int | None]] = []
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    for index in range(start + 1, len(lines)):
        line = lines[index].removeprefix(indent)
        frame = _FRAME.match(line)
        if frame:
            frames.append((frame["file"], frame["function"] or "", int(frame["line"])))
        elif line and not line[0].isspace():
            last = _LAST.match(line)
            if last is None and frames:
                continue  # another thread's line got in between
            if last is None:
                return None
            kind, message = last["kind"], last["message"] or ""
            text = "\n".join(lines[start : index + 1])[-TEXT_MAX_CHARS:]
            error = ErrorReport(kind, message, signature(kind, frames), text, looks_collective(kind, message))
            return _Traceback(start, index, error)
    return None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a rank wrote before it ended: its error, the lines of stderr that tell most, and when it began to."""

    error: ErrorReport | None = None
    tail: tuple[str, ...] = ()
    written_at: float = 0.0  # 0.0: nobody knows
    reported: bool = False  # its error is what a rank writes as the last thing before it ends


def last_words(files: RankFiles, stderr: Sequence[tuple[float, str]], ended_at: float) -> LastWords:
    """All that is known of why this rank ended. ``stderr``: its newest lines and when they were read."""
    fresh = [(at, line) for at, line in stderr if at >= ended_at - FRESH_S]
    lines = [line for _, line in fresh]
    report = _load(files.error)
    error = read_error(files, lines)
    in_error = set(error.traceback.splitlines()) if error is not None else set()
    tail = telling([line for line in lines if _PREFIX.sub("", line) not in in_error])
    written_at = report.get("written_at")
    if isinstance(written_at, float) and 0.0 < written_at <= ended_at:
        return LastWords(error, tail, round(written_at, 3), reported=True)
    newest = [(at, line) for at, line in fresh if at >= ended_at - WRITTEN_WITHIN_S]
    return LastWords(error, tail, round(_written_at(newest), 3))


def _written_at(stderr: Sequence[tuple[float, str]]) -> float:
    """When the first line of the last traceback came, or the first line of the last burst that tells of an error."""
    found = _tracebacks([line for _, line in stderr])
    if found:
        return stderr[found[-1].first][0]
    begin = next((i for i in range(len(stderr) - 1, 0, -1) if stderr[i][0] - stderr[i - 1][0] > PAUSE_S), 0)
    return next((at for at, line in stderr[begin:] if _TELLING.search(line)), 0.0)


def telling(lines: Sequence[str]) -> tuple[str, ...]:
    """Of these lines those that tell most, in their order: the last ones, and the first and last that name an error."""
    kept = [line[:TAIL_LINE_MAX_CHARS] for line in lines if line.strip()]
    kept = list(reversed(dict.fromkeys(reversed(kept))))  # what is said again counts where it was said last
    telling_ones = [index for index, line in enumerate(kept) if _TELLING.search(line)]
    last_ones = range(len(kept) - 1, -1, -1)
    ranked = [index for three in zip_longest(telling_ones, reversed(telling_ones), last_ones) for index in three]
    chosen: dict[int, str] = {}
    left_bytes = TAIL_MAX_BYTES
    for index in dict.fromkeys(index for index in ranked if index is not None):
        size_bytes = len(kept[index].encode())
        if len(chosen) < TAIL_LINES_COUNT and size_bytes <= left_bytes:
            chosen[index] = kept[index]
            left_bytes -= size_bytes
    return tuple(chosen[index] for index in sorted(chosen))


class OomCounter:
    """Counts the kernel's out-of-memory kills in our own cgroup (v2 ``memory.events``, v1 ``memory.oom_control``)."""

    def __init__(self, proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = _oom_file(proc, root)
        self._seen_count = self._count()

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            pairs = (line.split() for line in self._file.read_text().splitlines())
            return next((int(pair[1]) for pair in pairs if pair[:1] == ["oom_kill"]), 0)
        except (OSError, ValueError, IndexError):
            return 0

    def killed_since(self) -> bool:
        """Whether the kernel has killed for memory since this was made."""
        return self._count() > self._seen_count


def _oom_file(proc: Path, root: Path) -> Path | None:
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            candidates = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            base = root / "memory"
            candidates = [base / path.lstrip("/") / "memory.oom_control", base / "memory.oom_control"]
        else:
            continue
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


READ_WITHIN_S = 5.0  # for its last lines, which lie in its pipes: only a node that hardly runs needs longer


class ChildProcess(Protocol):
    """What is needed of a ``Popen``."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Block until it ends; its code, negative for a signal."""


@dataclass(slots=True)
class WatchedRank:
    """One rank's process, and all that belongs to it."""

    rank: int
    node: str
    child: ChildProcess
    proc: Proc
    slot: ProgressPage
    files: RankFiles
    through_boot: bool  # started by node/boot.py, which knows our signals
    ended: threading.Event = field(default_factory=threading.Event)
    told: threading.Event = field(default_factory=threading.Event)  # how it ended

    @property
    def live(self) -> LiveRank:
        """As an inventory lists it."""
        return LiveRank(self.rank, self.proc.pid, self.proc.start_ticks)


def watch(
    rank: WatchedRank,
    logs: RankLogs,
    oom: OomCounter,
    stopped_at: Callable[[], float],
    now: Callable[[], float],
    tell: Callable[[RankExit], None],
    orphaned: Callable[[], None] = lambda: None,
) -> None:
    """Start the thread; ``tell`` is called from it, once. What fails from ``stopped_at`` on does so because of us.

    ``orphaned`` is called from it too, at the very moment of the death: workers that end because their rank did must be
    noted before they are gone.
    """

    def wait() -> None:
        code = rank.child.wait()
        at, last_step = now(), rank.slot.read().step
        orphaned()
        rank.ended.set()
        logs.wait_read(rank.rank, READ_WITHIN_S)
        words = last_words(rank.files, logs.stderr_tail(rank.rank), at) if code != 0 else LastWords()
        ours = (words.written_at if words.reported else at) >= stopped_at()
        how = RankExit(
            rank=rank.rank,
            node=rank.node,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            oom_kill=code == -9 and oom.killed_since(),
            by_us=ours,
            error=words.error,
            at=at,
            step=last_step,
            log_step=logs.step(rank.rank) if last_step < 0 else -1,
            tail=() if ours else words.tail,
            written_at=words.written_at,
        )
        tell(marked(how))  # here, since the supervisor may hear of thousands of ends at once
        rank.told.set()

    threading.Thread(target=wait, name=f"rank {rank.rank}", daemon=True).start()
