"""Sees a rank's death the moment it happens, and says how and why it ended.

One thread per rank waits in waitpid: nothing is polled, no kernel feature is needed, and the order of deaths, which
blame needs, is the order in which the kernel tells them.

The reason comes from what the rank left: its error report, torch's, or the tail of its stderr. Reads node-local files
and cgroup counters only; nothing is concluded here, blame is core's. The words and the signature are those of
``gangrun.node.boot``, so that both ways of learning of one failure name it the same.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.logs import RankLogs
from gangrun.core.model import ErrorReport, RankExit
from gangrun.node.boot import TEXT_MAX_CHARS, looks_collective, signature
from gangrun.node.processes import Proc
from gangrun.wire.messages import LiveRank
from gangrun.wire.progress import ProgressPage

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_LAST = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|[A-Z]\w*))(?:: (?P<message>.*))?$"
)
_START = "Traceback (most recent call last):"
REPORT_MAX_BYTES = 1024 * 1024


def read_error(files: RankFiles, stderr_tail: Sequence[str]) -> ErrorReport | None:
    """The best account there is; None if the rank left none."""
    return _of_boot(files.error) or _of_torchelastic(files.torchelastic_error) or parse_traceback(stderr_tail)


def _load(path: Path) -> dict[str, Any]:
    """The JSON object in a file that a dying process wrote; {} if there is none."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(REPORT_MAX_BYTES))
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_boot(path: Path) -> ErrorReport | None:
    found = _load(path)
    if not found:
        return None
    return ErrorReport(
        kind=str(found.get("type", "")),
        message=str(found.get("message", "")),
        signature=str(found.get("signature", "")),
        traceback=str(found.get("traceback", "")),
        collective=bool(found.get("collective", False)),
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


def parse_traceback(lines: Sequence[str]) -> ErrorReport | None:
    """The last Python traceback in these lines; None if there is none that is whole."""
    starts = [index for index, line in enumerate(lines) if line.strip() == _START]
    for start in reversed(starts):
        found = _parse_at(lines, start)
        if found is not None:
            return found
    return None


def _parse_at(lines: Sequence[str], start: int) -> ErrorReport | None:
    frames: list[tuple[str, str, int | None]] = []
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    for index in range(start + 1, len(lines)):
        line = lines[index].removeprefix(indent)
        frame = _FRAME.match(line)
        if frame:
            frames.append((frame["file"], frame["function"] or "", int(frame["line"])))
        elif line and not line[0].isspace():
            last = _LAST.match(line)
            if last is None:
                return None
            kind, message = last["kind"], last["message"] or ""
            text = "\n".join(lines[start : index + 1])
            return ErrorReport(
                kind, message, signature(kind, frames), text[-TEXT_MAX_CHARS:], looks_collective(kind, message)
            )
    return None


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

    @property
    def live(self) -> LiveRank:
        """As an inventory lists it."""
        return LiveRank(self.rank, self.proc.pid, self.proc.start_ticks)


def watch(
    rank: WatchedRank,
    logs: RankLogs,
    oom: OomCounter,
    by_us: Callable[[], bool],
    now: Callable[[], float],
    tell: Callable[[RankExit], None],
    orphaned: Callable[[], None] = lambda: None,
) -> None:
    """Start the thread; ``tell`` is called from it, once. ``orphaned``, too, at the very moment of the death: workers
    that end because their rank did must be noted before they are gone.
    """

    def wait() -> None:
        code = rank.child.wait()
        at, ours, last_step = now(), by_us(), rank.slot.read().step
        orphaned()
        rank.ended.set()
        logs.wait_read(rank.rank, READ_WITHIN_S)
        failed = code != 0
        how = RankExit(
            rank=rank.rank,
            node=rank.node,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            oom_kill=code == -9 and oom.killed_since(),
            by_us=ours,
            error=read_error(rank.files, logs.stderr_tail(rank.rank)) if failed else None,
            at=at,
            step=last_step,
        )
        tell(how)

    threading.Thread(target=wait, name=f"rank {rank.rank}", daemon=True).start()
