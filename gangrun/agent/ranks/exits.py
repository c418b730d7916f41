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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.flight_dumps import WatchdogDump
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.evidence import Anomaly, ErrorReport, RankExit, SelfChecks
from gangrun.core.recovery.error_rules import SHELL_SIGNAL_BASE, marked
from gangrun.core.text import cut_middle, json_number
from gangrun.node.boot import CAUSE_MAX_CHARS, CHAIN_MAX_COUNT, TEXT_MAX_CHARS, looks_collective, signature
from gangrun.node.place_page import PlacePage
from gangrun.node.processes import Proc
from gangrun.wire.messages import LiveRank
from gangrun.wire.progress import ProgressPage

_FRAME = re.compile(r'^[\s>]*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_RICH_FRAME = re.compile(r"^│ (?P<file>\S.*?):(?P<line>\d+) in (?P<function>\S+)")
_LAST = re.compile(
    r"^(?P<kind>Exception|[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|[A-Z]\w*))"
    r"(?:: (?P<message>.*))?$"
)
# With what a logger, a launcher or a progress bar puts before it, or as rich frames it.
_START = re.compile(
    r"^(?P<prefix>.{0,200}?)(?:Traceback \(most recent call last\):(?: \(RANK \d+\))?\s*$|╭─+ Traceback \(most recent)"
)
_OF_A_WORKER, _OF_A_GROUP = "Original ", "Exception Group "  # before "Traceback"
_LINKS = (  # what Python writes between an exception and its cause, which it writes first
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# Torch puts this before each line, and loggers their own before it.
_PREFIX = re.compile(r"^(?:\S.{0,80}? )?\[rank\d+\]:[ ]?")
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_IGNORED = "Exception ignored in"  # the traceback below it ends no process
_OF_A_PART = re.compile(r"^(Exception in thread |Process \S+-\d+:$)")  # nor does one of a thread or of a child
# What Python, torch, native code and a shell write after the error that ends a process.
_EPILOGUE = re.compile(
    r"^(\s|$|[A-Za-z]+Error\b|Exception ignored|Error in |Traceback |terminate called|Fatal Python|free\(\)|double free"
    r"|corrupted|munmap_chunk|Abort|Segmentation|Killed|Current thread|Thread 0x|Extension modules|wandb: |srun: "
    r"|slurmstepd|make: |\+-|CUDA kernel errors|For debugging|Compile with|(\[rank\d+\]:)? ?\[[WEF]\d{4} "
    r"|\S+:\d+:\d+ \[\d+\] NCCL )|[a-z]Warning: |core dumped|leaked|returned non-zero|exit (code|status)|\.so\S*\(\+0x",
    re.IGNORECASE,
)
REPORT_MAX_BYTES = 1024 * 1024
TAIL_LINES_COUNT, TAIL_MAX_BYTES, TAIL_LINE_MAX_CHARS = 20, 4096, 600
OF_A_LAUNCHER = "ChildFailedError"  # torchrun's: one of its ranks failed
COMPARED_TIMES = 4  # as much of a healthy rank as a tail holds: errors of the failed one take no room there
FRESH_S = 60.0  # what was written longer before the end did not end it: a handled exception, an old warning
# A victim that logs a handled error and ends within the next minute would else seem to fall before its culprit.
WRITTEN_WITHIN_S = 5.0
_CRASHES = (4, 6, 7, 8, 11)  # ILL, ABRT, BUS, FPE, SEGV: a process may raise such a signal itself while it ends
PAUSE_S = 1.0  # so long without a line parts two bursts
# What native code, CUDA, NCCL, a shell and Python itself write before a process ends.
_TELLING = re.compile(
    r"error|exception|fatal|abort|fail|assert|nccl|cuda|watchdog|timed? ?out|terminate called|what\(\):|core dumped"
    r"|killed|segmentation|illegal|refused|denied|no such|cannot|not found|out of memory|no space",
    re.IGNORECASE,
)


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


def has_told_victim(files: RankFiles) -> bool:
    """Whether the rank's boot file has written that it ends because another one did."""
    return files.error.exists() and bool(_load(files.error).get("collective"))


def has_shown_error(files: RankFiles, stderr: Sequence[tuple[float, str]]) -> bool:
    """Whether the last line of the error that its boot file has written came on stderr after that.

    ``stderr``: its newest lines and when they were read. torch puts the rank before each.
    """
    report = _load(files.error)
    last = str(report.get("traceback", "")).rstrip().rpartition("\n")[2][: TAIL_LINE_MAX_CHARS // 2]
    since = report.get("written_at")
    return isinstance(since, float) and bool(last) and any(at >= since and last in line for at, line in stderr)


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
    opening: str = ""  # the line before it, if that says that it ends no process

    @property
    def words(self) -> str:
        """As an entry of a chain."""
        return cut_middle(f"{self.error.kind}: {self.error.message}", CAUSE_MAX_CHARS)


def parse_traceback(lines: Sequence[str]) -> ErrorReport | None:
    """The last Python traceback in these lines with the causes before it; None if there is none that is whole."""
    found = [one for one in _tracebacks(lines) if not one.opening]
    return found[-1].error if found else None


def _tracebacks(lines: Sequence[str]) -> list[_Traceback]:
    """All that are whole, each with its chain of causes."""
    lines = [_PREFIX.sub("", _COLOUR.sub("", line)) for line in lines]
    found: list[_Traceback] = []
    for start, line in enumerate(lines):
        begun = _START.match(line) if "Traceback" in line else None
        if begun is None or begun["prefix"].endswith(_OF_A_GROUP):
            continue
        one = _parse_at(lines, start, begun["prefix"])
        if one is None:
            continue
        before = found[-1] if found else None
        between = lines[before.last + 1 : start] if before is not None else []
        if before is not None and begun["prefix"].endswith(_OF_A_WORKER):
            message = "\n".join([before.error.message, *lines[before.last + 1 : one.last + 1]])
            found[-1] = replace(before, last=one.last, error=replace(before.error, message=message))
            continue
        link = next((link for line in between for link in _LINKS if line.endswith(link)), "")
        if before is not None and link:
            explains = link == _LINKS[0] or _wraps(lines[start : one.last + 1])
            chain = (before.words, *before.error.chain)[:CHAIN_MAX_COUNT] if explains else ()
            text = "\n".join(lines[before.first : one.last + 1])[-TEXT_MAX_CHARS:]
            one = replace(one, first=before.first, error=replace(one.error, chain=chain, traceback=text))
        found.append(one)
    return found


def _wraps(lines: Sequence[str]) -> bool:
    """Does this traceback end in a ``raise``, which tells of the error that was being handled, in its only frame?"""
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    return len(frames) == 1 and lines[frames[0] + 1].lstrip("> |").startswith("raise ")


def _parse_at(lines: Sequence[str], start: int, prefix: str) -> _Traceback | None:
    frames: list[tuple[str, str, int | None]] = []
    same_prefix = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", prefix))))
    for index in range(start + 1, len(lines)):
        before = same_prefix.match(lines[index])
        line = lines[index][before.end() :] if before is not None else lines[index]
        frame = _FRAME.match(line) or _RICH_FRAME.match(line)
        if frame:
            frames.append((frame["file"], frame["function"] or "", int(frame["line"])))
        elif line and not line[0].isspace() and line[0] not in "│╭╰>":
            last = _LAST.match(line)
            if last is None and frames:
                continue  # another thread's line got in between
            if last is None:
                return None
            kind, message = last["kind"], last["message"] or ""
            text = "\n".join(lines[start : index + 1])[-TEXT_MAX_CHARS:]
            error = ErrorReport(kind, message, signature(kind, frames), text, looks_collective(kind, message))
            head = lines[start - 1].lstrip() if start else ""
            return _Traceback(start, index, error, head if head.startswith(_IGNORED) or _OF_A_PART.match(head) else "")
    return None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a rank wrote before it ended: its error, the lines of stderr that tell most, and when it began to."""

    error: ErrorReport | None = None
    tail: tuple[str, ...] = ()
    written_at: float = 0.0  # 0.0: nobody knows
    reported: bool = False  # its error is what a rank writes as the last thing before it ends


def last_words(
    files: RankFiles, stderr: Sequence[tuple[float, str]], died: RankExit, *, through_boot: bool
) -> LastWords:
    """All that is known of why this rank ended. ``stderr``: its newest lines and when they were read.

    An exception that the boot file reported ended the rank, however it went down after that. A traceback on stderr
    may have been handled, or be another process's. It counts only if ``_survived`` does not hold for it.
    """
    fresh = [(at, line) for at, line in stderr if at >= died.at - FRESH_S]
    lines = [line for _, line in fresh]
    tracebacks = _tracebacks(lines)
    shown = next((one for one in reversed(tracebacks) if not one.opening), None)
    horizon_s = _horizon_s(died, through_boot=through_boot)
    if shown is not None and _survived(fresh[shown.last :], died.at, horizon_s):
        shown = None
    report = _load(files.error)
    error = _of_boot(report) or (shown.error if shown is not None else None)
    if error is not None and error.kind.endswith(OF_A_LAUNCHER) and not through_boot:
        error = _of_torchelastic(files.torchelastic_error) or _first_of([one for one in tracebacks if not one.opening])
    if error is None and horizon_s and not through_boot:
        error = _of_torchelastic(files.torchelastic_error)  # any process below the rank may have written it
    told = {
        index
        for one in tracebacks
        if not (horizon_s and _OF_A_PART.match(one.opening))
        for index in range(one.first, one.last + 1)
    }
    rest = [(at, line) for index, (at, line) in enumerate(fresh) if index not in told]
    tail = telling([line for _, line in rest])
    written_at = report.get("written_at")
    if isinstance(written_at, float) and 0.0 < written_at <= died.at:
        return LastWords(error, tail, round(written_at, 3), reported=True)
    if shown is not None and fresh[shown.first][0] >= died.at - WRITTEN_WITHIN_S:
        return LastWords(error, tail, round(fresh[shown.first][0], 3))
    return LastWords(error, tail, round(_written_at([one for one in rest if one[0] >= died.at - WRITTEN_WITHIN_S]), 3))


def _first_of(tracebacks: Sequence[_Traceback]) -> ErrorReport:
    """Of what a launcher and its ranks wrote: the rank's error that came first and is no victim's."""
    ranks = [one.error for one in tracebacks if not one.error.kind.endswith(OF_A_LAUNCHER)]
    return next((one for one in ranks if not one.collective), ranks[0] if ranks else tracebacks[-1].error)


def _horizon_s(died: RankExit, *, through_boot: bool) -> float:
    """How long before this end a traceback may have been written that tells of it.

    0.0: none does. Killed from outside, a rank has survived all that it wrote. An exception that nobody caught ends
    Python with code 1, and a rank's own boot file reports it: without a report only ``os._exit(1)`` and ``sys.exit(1)``
    right after it are left. Behind a wrapper, which may change the code, destructors and ``atexit`` come after it.
    """
    number = died.signal or max((died.code or 0) - SHELL_SIGNAL_BASE, 0)
    if number:
        return FRESH_S if number in _CRASHES and not through_boot else 0.0
    if through_boot:
        return WRITTEN_WITHIN_S if died.code == 1 else 0.0
    return FRESH_S if died.code == 1 else WRITTEN_WITHIN_S


def _survived(since: Sequence[tuple[float, str]], ended_at: float, horizon_s: float) -> bool:
    """Whether the process went on after the error whose last line is the first of these.

    What follows within ``PAUSE_S`` belongs to its message. After a pause only an epilogue may follow.
    """
    newest = since[0][0]
    if not horizon_s or newest < ended_at - horizon_s:  # a busy agent may have read them after the end
        return True
    for at, line in since:
        if at - newest > PAUSE_S and not _EPILOGUE.search(line):
            return True
        newest = at if at - newest <= PAUSE_S else newest
    return False


def _written_at(stderr: Sequence[tuple[float, str]]) -> float:
    """When the first line of the last burst came that tells of an error."""
    begin = next((i for i in range(len(stderr) - 1, 0, -1) if stderr[i][0] - stderr[i - 1][0] > PAUSE_S), 0)
    return next((at for at, line in stderr[begin:] if _TELLING.search(line)), 0.0)


def telling(lines: Sequence[str], times: int = 1) -> tuple[str, ...]:
    """Of these lines those that tell most, in their order: the last ones, and the first and last that name an error.
    ``times`` as many as a tail holds.
    """
    kept = [cut_middle(line, TAIL_LINE_MAX_CHARS) for line in lines if line.strip()]
    kept = list(reversed(dict.fromkeys(reversed(kept))))  # what is said again counts where it was said last
    telling_ones = [index for index, line in enumerate(kept) if _TELLING.search(line)]
    last_ones = range(len(kept) - 1, -1, -1)
    ranked = [index for three in zip_longest(telling_ones, reversed(telling_ones), last_ones) for index in three]
    chosen: dict[int, str] = {}
    left_bytes = times * TAIL_MAX_BYTES
    for index in dict.fromkeys(index for index in ranked if index is not None):
        size_bytes = len(kept[index].encode())
        if len(chosen) < times * TAIL_LINES_COUNT and size_bytes <= left_bytes:
            chosen[index] = kept[index]
            left_bytes -= size_bytes
    return tuple(chosen[index] for index in sorted(chosen))


class OomCounter:
    """Counts the kernel's out-of-memory kills in our own cgroup (v2 ``memory.events``, v1 ``memory.oom_control``)."""

    def __init__(self, proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = oom_file(proc, root)
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


def oom_file(proc: Path, root: Path) -> Path | None:
    """The file of our cgroup that counts kills for memory; None if there is none."""
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


MEMORY_NAMED_COUNT = 4


def memory_words(held: Mapping[int, int], ago_s: float, limit_bytes: int = 0, standbys_bytes: int = 0) -> str:
    """``3 s before, rank 1 held 12.4 GB, rank 0 held 3.1 GB``; "" if nobody looked. ``held``: bytes by rank.

    ``limit_bytes``: of the job's cgroup; 0: not known.
    """
    most = sorted(held.items(), key=lambda one: (-one[1], one[0]))[:MEMORY_NAMED_COUNT]
    told = [f"rank {rank} held {size / 1e9:.3g} GB" for rank, size in most]
    if not told:
        return ""
    rest_bytes = sum(held.values()) - sum(size for _, size in most)
    rest = [f"{len(held) - len(most)} other ranks {rest_bytes / 1e9:.3g} GB"] if len(held) > len(most) else []
    ours = [f"standbys held {standbys_bytes / 1e9:.3g} GB (--no-warm keeps none)"] if standbys_bytes else []
    of_limit = f" of {limit_bytes / 1e9:.3g} GB" if limit_bytes else ""
    return f"{ago_s:.0f} s before,{of_limit and f'{of_limit} allowed,'} {', '.join([*told, *rest, *ours])}"


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
    place: PlacePage | None = None
    dump: WatchdogDump | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    told: threading.Event = field(default_factory=threading.Event)  # how it ended

    @property
    def live(self) -> LiveRank:
        """As an inventory lists it."""
        return LiveRank(self.rank, self.proc.pid, self.proc.start_ticks)


class RankReports(Protocol):
    """What a rank says of itself; see ``observe.ScriptReports``."""

    def anomalies(self) -> tuple[Anomaly, ...]:
        """Of its loss and gradient norm, over the whole attempt."""

    def checks(self) -> SelfChecks | None:
        """What its own checks found."""


def watch(
    rank: WatchedRank,
    logs: RankLogs,
    oom: OomCounter,
    stopped_at: Callable[[], float],
    now: Callable[[], float],
    tell: Callable[[RankExit], None],
    orphaned: Callable[[], None] = lambda: None,
    reports: RankReports | None = None,
    memory: Callable[[], str] = str,
) -> None:
    """Start the thread; ``tell`` is called from it, once. What fails from ``stopped_at`` on does so because of us.

    ``orphaned`` is called from it too, at the very moment of the death: workers that end because their rank did must be
    noted before they are gone. ``reports``: what the rank says of itself, once all that it printed is read.
    ``memory``: who of the node held how much, asked for if the kernel killed it for memory.
    """

    def wait() -> None:
        code = rank.child.wait()
        at, last = now(), rank.slot.read()
        orphaned()
        rank.ended.set()
        logs.wait_read(rank.rank, READ_WITHIN_S)
        died = RankExit(rank.rank, rank.node, code if code >= 0 else None, -code if code < 0 else None, at=at)
        stderr = logs.stderr_tail(rank.rank)
        words = last_words(rank.files, stderr, died, through_boot=rank.through_boot) if code else LastWords()
        ours = (words.written_at if words.reported else at) >= stopped_at()
        by_itself = not words.reported and at < stopped_at()  # else we killed it, because of its error or another's end
        was_oom = code == -9 and by_itself and oom.killed_since()
        how = replace(
            died,
            oom_kill=was_oom,
            by_us=ours,
            error=words.error,
            step=last.step,
            log_step=logs.step(rank.rank) if last.step < 0 else -1,
            log_reach=logs.reach(rank.rank) if last.step < 0 else -1,
            total_steps=last.total_steps if last.total_steps > 0 else logs.total_steps(rank.rank),
            loss=json_number(logs.loss(rank.rank) if last.loss is None else last.loss),
            script_ended=rank.files.script_ended.exists(),
            tail=() if ours else words.tail,
            written_at=words.written_at,
            anomalies=reports.anomalies() if reports is not None else (),
            checks=reports.checks() if reports is not None else None,
            memory=memory() if was_oom else "",
            collectives=rank.dump.collectives() if code and rank.dump is not None else (),
        )
        before = None
        if ours:
            since = stopped_at() - 2 * FRESH_S  # a tail of a rank that fell has nothing older
            fresh = [line for line_at, line in stderr if since <= line_at < stopped_at()]
            before = telling(fresh, COMPARED_TIMES)
        tell(marked(how, before))  # here, since the supervisor may hear of thousands of ends at once
        rank.told.set()

    threading.Thread(target=wait, name=f"rank {rank.rank}", daemon=True).start()
