"""Remembers what was proven, so that it is not read again while no file was written to.

One small JSON file beside the checkpoints, replaced atomically. It only ever saves work: unreadable or alien content is
no memory, a read-only directory is tolerated, and any difference in size, times or inode means: look again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable

from gangrun.checkpoint.formats.dcp import BadFile, FileMark, Judgement, UnreadableFile, mark_of
from gangrun.checkpoint.formats.own import NO_CTIME
from gangrun.checkpoint.scan import MACHINE_FOLDER
from gangrun.core.model import Level

MEMORY_NAME = "verified.json"
_SCHEMA = 1
_READ_MAX_BYTES = 64 * 1024 * 1024
_REMEMBERED_FILES_COUNT = 200_000  # oldest steps are forgotten first


class Memory:
    """What was proven in one checkpoint directory."""

    def __init__(self, directory: str) -> None:
        self._folder = os.path.join(directory, MACHINE_FOLDER)
        self._path = os.path.join(self._folder, MEMORY_NAME)
        self._known, self._accepted = _load(self._path)
        self._changed = False

    def recall(self, name: str, path: str) -> Judgement | None:
        """The judgement of this step directory, if every file of it is as it was; None: look again."""
        judged = self._known.get(name)
        if judged is None:
            return None
        try:
            same = all(_as_it_was(mark_of(path, file), mark) for file, mark in judged.marks)
        except (BadFile, UnreadableFile):
            same = False
        if not same:
            self.forget(name)
        return judged if same else None

    def remember(self, name: str, judged: Judgement) -> None:
        """Keep what was found whole, by structure or in full; damaged ones are looked at again each time."""
        if judged.level is None:
            self.forget(name)
        elif self._known.get(name) != judged:
            self._known[name] = judged
            self._changed = True

    def forget(self, name: str) -> None:
        self._accepted.pop(name, None)
        self._changed = self._known.pop(name, None) is not None or self._changed

    def accept(self, name: str, seal: str) -> None:
        """Keep that somebody else accepts what is known of this step directory; ``seal`` says who, and what exactly."""
        if name in self._known and self._accepted.get(name) != seal:
            self._accepted[name] = seal
            self._changed = True

    def is_accepted(self, name: str, seal: str) -> bool:
        """The same who of the same."""
        return self._accepted.get(name) == seal

    def keep_only(self, names_newest_first: Iterable[str]) -> None:
        """Forget what is no longer there, and the oldest where there is too much."""
        left, kept = _REMEMBERED_FILES_COUNT, {}
        for name in names_newest_first:
            judged = self._known.get(name)
            if judged is not None and len(judged.marks) <= left:
                left -= len(judged.marks)
                kept[name] = judged
        self._changed = self._changed or len(kept) != len(self._known)
        self._known = kept
        self._accepted = {name: seal for name, seal in self._accepted.items() if name in kept}

    def save(self) -> str:
        """Write what changed; returns "" or why it could not be written, which costs time later and nothing else."""
        if not self._changed:
            return ""
        rows = {name: _row(judged, self._accepted.get(name, "")) for name, judged in self._known.items()}
        body = {"schema": _SCHEMA, "checkpoints": rows}
        try:
            write_json(self._folder, MEMORY_NAME, body)
        except OSError as error:
            return f"what was verified cannot be remembered in {self._folder} ({os.strerror(error.errno or 0)})"
        self._changed = False
        return ""


def write_json(folder: str, name: str, body: object) -> None:
    """Replace a small JSON file: whole or not at all. The folder must be a true directory, not a link elsewhere."""
    os.makedirs(folder, exist_ok=True)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(20, "not a directory", folder)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(json.dumps(body))  # not dump: that one is written in Python, and ten times slower
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(folder, name))
    except OSError:
        os.unlink(temporary)
        raise


def _as_it_was(found: FileMark, known: FileMark) -> bool:
    """The time of the last change counts where it was remembered: hard links change it, and nothing else."""
    return found == known or (known[2] == NO_CTIME and (found[0], found[1], found[3]) == (known[0], known[1], known[3]))


def _row(judged: Judgement, accepted: str) -> dict[str, object]:
    assert judged.level is not None, "only whole checkpoints are remembered"
    return {
        "level": judged.level.value,
        "deep": judged.deep,
        "why": judged.why,
        "save_id": judged.save_id,
        "entry_count": judged.entry_count,
        "data_bytes": judged.data_bytes,
        "accepted": accepted,
        "files": {path: list(mark) for path, mark in judged.marks},
    }


def _load(path: str) -> tuple[dict[str, Judgement], dict[str, str]]:
    """What is known, and what else was said of it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            body = json.loads(file.read(_READ_MAX_BYTES))
        if body["schema"] != _SCHEMA:
            return {}, {}
        rows = body["checkpoints"].items()
        known = {str(name): _judgement(row) for name, row in rows}
        return known, {str(name): row["accepted"] for name, row in rows if isinstance(row.get("accepted"), str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}, {}


def _judgement(row: dict[str, object]) -> Judgement:
    files, why, save_id = row["files"], row["why"], row["save_id"]
    entry_count, data_bytes = row["entry_count"], row["data_bytes"]
    if not isinstance(files, dict) or not isinstance(why, str) or not (save_id is None or isinstance(save_id, str)):
        raise TypeError("alien memory")
    deep = row["deep"] is True
    if not isinstance(entry_count, int) or not isinstance(data_bytes, int) or not files:
        raise TypeError("alien memory")
    marks = []
    for path, (size, mtime_ns, ctime_ns, inode) in files.items():
        marks.append((str(path), (int(size), int(mtime_ns), int(ctime_ns), int(inode))))
    return Judgement(Level(row["level"]), why, deep, tuple(marks), save_id, entry_count, data_bytes)
